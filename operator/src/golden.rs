//! Golden renderings: what a corpus of stores comes to, committed. Whoever changes one sees whether pods would restart.
//!
//! `UPDATE_GOLDEN=1 cargo test -p metricsstore-operator golden` writes them anew.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::fixtures::IMAGE;
use crate::plan::diff::first_difference;
use crate::plan::{children, names, plan};
use crate::reconcile::{Existing, Piece, Seen, SourceKind, sources, validate};

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

/// Every store of the corpus: name and manifest.
fn corpus() -> Vec<(String, Value)> {
    let mut stores: Vec<(String, Value)> = std::fs::read_dir(path("tests/stores"))
        .unwrap()
        .map(|entry| {
            let file = entry.unwrap().path();
            let text = std::fs::read_to_string(&file).unwrap();
            (file.file_stem().unwrap().to_str().unwrap().to_owned(), serde_yaml_ng::from_str(&text).unwrap())
        })
        .collect();
    stores.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!stores.is_empty());
    stores
}

/// All children of a fresh store of this manifest.
fn render(mut manifest: Value) -> children::Children {
    manifest["apiVersion"] = json!("metricsstore.dev/v1alpha1");
    manifest["kind"] = json!("MetricsStore");
    manifest["metadata"] = json!({ "name": "main", "namespace": "monitoring", "uid": "store-uid" });
    let store: metricsstore_crds::MetricsStore = serde_json::from_value(manifest).unwrap();
    let valid = validate(&store, IMAGE).unwrap();
    let content = |kind| match kind {
        SourceKind::Secret => b"scrape_configs: [{ job_name: a }]\n".to_vec(),
        SourceKind::ConfigMap => b"- job_name: b\n".to_vec(),
    };
    let pieces = sources(&store)
        .into_iter()
        .map(|source| Piece { content: Ok(content(source.kind)), source })
        .collect();
    let seen = Seen {
        store,
        existing: Existing::default(),
        pods: vec![],
        claims: vec![],
        pieces,
        engines: [].into(),
    };
    plan(&valid, &seen, "token").unwrap().children
}

fn documents(children: children::Children) -> String {
    fn document(object: &impl Serialize) -> String {
        // Through a JSON value, so that keys are sorted; secrets are shown as text.
        let mut value = serde_json::to_value(object).unwrap();
        if value["kind"] == "Secret" {
            let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(value.clone()).unwrap();
            let data = secret.data.unwrap().into_iter();
            let text = data.map(|(key, bytes)| (key, json!(String::from_utf8(bytes.0).unwrap())));
            value["data"] = Value::Object(text.collect());
        }
        serde_yaml_ng::to_string(&value).unwrap()
    }
    let children::Children { service_account, ops, scrape, config_map, web, pods, statefulset } = children;
    [
        document(&service_account),
        document(&ops),
        document(&scrape),
        document(&config_map),
        document(&web),
        document(&pods),
        document(&statefulset),
    ]
    .join("---\n")
}

#[test]
fn golden_renderings_are_what_is_committed() {
    for (name, manifest) in corpus() {
        let file = path(&format!("tests/golden/{name}.yaml"));
        let rendered = documents(render(manifest));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, &rendered).unwrap();
        }
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        let line = committed.lines().zip(rendered.lines()).take_while(|(a, b)| a == b).count() + 1;
        assert!(
            committed == rendered,
            "tests/golden/{name}.yaml is no longer what is rendered, from line {line} on: if that is meant, write it with \
             UPDATE_GOLDEN=1; if the plan hash changed, say in docs/restarts.md who is rolled and why"
        );
    }
}

#[test]
fn every_plan_hash_is_listed_with_what_it_restarts() {
    let listed = std::fs::read_to_string(path("../docs/restarts.md")).unwrap();
    for (name, manifest) in corpus() {
        let set = render(manifest).statefulset;
        let annotations = set.spec.unwrap().template.metadata.unwrap().annotations.unwrap();
        let hash = &annotations[names::PLAN_HASH];
        assert!(
            listed.contains(&format!("{name} `{hash}`")),
            "pods of stores like {name} would be rolled: list `{name} `{hash}`` in docs/restarts.md with the reason"
        );
    }
}

#[test]
fn a_change_of_resources_alone_keeps_the_plan_hash() {
    for (name, manifest) in corpus() {
        let mut larger = manifest.clone();
        larger["spec"]["resources"] = json!({ "limits": { "memory": "8Gi", "cpu": 3 } });
        let hash = |manifest| children::plan_hash(&render(manifest).statefulset.spec.unwrap().template);
        assert_eq!(hash(manifest), hash(larger), "{name}");
    }
}

#[test]
fn pods_pass_pod_security_restricted() {
    for (name, manifest) in corpus() {
        let pod = serde_json::to_value(render(manifest).statefulset.spec.unwrap().template.spec).unwrap();
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        for container in pod["containers"].as_array().unwrap() {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["capabilities"]["drop"], json!(["ALL"]), "{name}");
        }
        for volume in pod["volumes"].as_array().unwrap() {
            assert!(volume.get("hostPath").is_none(), "{name}");
        }
    }
}

#[test]
fn claims_carry_only_our_own_label_and_stay_when_a_store_is_pruned() {
    for (name, manifest) in corpus() {
        let set = render(manifest).statefulset;
        assert!(set.spec.as_ref().unwrap().persistent_volume_claim_retention_policy.is_none(), "{name}");
        let claim = &set.spec.unwrap().volume_claim_templates.unwrap()[0];
        let labels: Vec<&String> = claim.metadata.labels.as_ref().unwrap().keys().collect();
        assert_eq!(labels, ["metricsstore.dev/store"], "{name}");
        let annotations = claim.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["argocd.argoproj.io/sync-options"], "Prune=false,Delete=false", "{name}");
        assert!(claim.metadata.owner_references.is_none(), "{name}");
    }
}

/// Children of stores of the corpus as a Kubernetes 1.34 API server kept them after they were applied.
fn live(name: &str) -> Vec<(Value, Value)> {
    let text = std::fs::read_to_string(path(&format!("tests/live/{name}.json"))).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let manifest = corpus().into_iter().find(|(store, _)| store == name).unwrap().1;
    let children::Children { service_account, ops, scrape, config_map, web, pods, statefulset } =
        render(manifest);
    [
        ("service_account", serde_json::to_value(service_account)),
        ("ops", serde_json::to_value(ops)),
        ("scrape", serde_json::to_value(scrape)),
        ("config_map", serde_json::to_value(config_map)),
        ("web", serde_json::to_value(web)),
        ("pods", serde_json::to_value(pods)),
        ("statefulset", serde_json::to_value(statefulset)),
    ]
    .into_iter()
    .map(|(child, wanted)| (wanted.unwrap(), found[child].clone()))
    .collect()
}

#[test]
fn what_the_api_server_made_of_a_child_is_no_difference() {
    for name in ["placed", "scraping"] {
        for (wanted, found) in live(name) {
            assert_eq!(first_difference(&wanted, &found), None, "{name}");
        }
    }
}

#[test]
fn drift_of_any_single_field_is_noticed() {
    fn leaves(at: &str, value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, below)| {
                leaves(&format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), below, all);
            }),
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(place, below)| leaves(&format!("{at}/{place}"), below, all));
            }
            _ => all.push(at.to_owned()),
        }
    }
    for name in ["placed", "scraping"] {
        for (wanted, found) in live(name) {
            let mut all = vec![];
            leaves("", &wanted, &mut all);
            for leaf in all {
                let mut drifted = found.clone();
                *drifted.pointer_mut(&leaf).unwrap() = json!("drifted");
                assert!(first_difference(&wanted, &drifted).is_some(), "{name}: {leaf}");
            }
        }
    }
}
