//! StatefulSet: `OnDelete`, so that the operator does the rolling, and `Parallel`, so that a broken pod holds up no other.
//!
//! What is immutable (selector, service name, pod management, claim templates) is rendered the same for ever.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, ContainerResizePolicy, HTTPGetAction,
    LocalObjectReference, PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext,
    TopologySpreadConstraint, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use metricsstore_contract::{Quantity, content_hash};
use metricsstore_crds::BlockFormat;
use serde_json::Value;

use crate::plan::canonical::canonical_json;
use crate::plan::names::{self, CONTAINER, DATA, OPS_DIR, OPS_PORT, RUNTIME_DIR, SCRAPE_DIR, WEB_PORT};
use crate::plan::storage::Storage;
use crate::reconcile::Valid;

/// Not root, in the image and on the volume.
const USER: i64 = 65532;
const DATA_DIR: &str = "/data";

pub fn render(valid: &Valid, storage: &Storage, existing: Option<&StatefulSet>) -> StatefulSet {
    StatefulSet {
        metadata: names::child(valid, valid.name.clone()),
        spec: Some(StatefulSetSpec {
            replicas: Some(valid.replicas),
            service_name: Some(names::pods_service(&valid.name)),
            selector: LabelSelector {
                match_labels: Some(names::selector(&valid.name)),
                ..LabelSelector::default()
            },
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".into()),
                rolling_update: None,
            }),
            template: template(valid),
            volume_claim_templates: Some(vec![claim(valid, storage, existing)]),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

fn template(valid: &Valid) -> PodTemplateSpec {
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(names::labels(&valid.name)), ..ObjectMeta::default() }),
        spec: Some(pod(valid)),
    };
    let annotations = [
        (names::PLAN_HASH.to_owned(), plan_hash(&template)),
        (names::RESOURCES.to_owned(), describe_resources(valid)),
    ];
    if let Some(meta) = template.metadata.as_mut() {
        meta.annotations = Some(annotations.into());
    }
    template
}

/// Hash of a rendered template without resources and without our own annotations: what may not change while a pod lives.
pub fn plan_hash(template: &PodTemplateSpec) -> String {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(meta) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.remove("annotations");
    }
    let containers = value.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        container.remove("resources");
    }
    content_hash(canonical_json(&value).as_bytes())
}

/// Requests and limits in one line, by value.
fn describe_resources(valid: &Valid) -> String {
    let resources = desired_resources(valid);
    let line = |kind: &str, list: Option<BTreeMap<String, ApiQuantity>>| {
        let list = list.unwrap_or_default();
        list.into_iter().map(|(name, value)| format!("{kind}.{name}={}", value.0)).collect::<Vec<_>>()
    };
    [line("requests", resources.requests), line("limits", resources.limits)].concat().join(",")
}

/// The requests and limits of the engine's container.
pub fn desired_resources(valid: &Valid) -> ResourceRequirements {
    let list = |cpu: Option<Quantity>, memory: Quantity| {
        let cpu = cpu.map(|cpu| ("cpu".to_owned(), ApiQuantity(cpu.to_string())));
        let memory = ("memory".to_owned(), ApiQuantity(memory.to_string()));
        Some(cpu.into_iter().chain([memory]).collect::<BTreeMap<_, _>>())
    };
    let resources = &valid.resources;
    ResourceRequirements {
        requests: list(resources.request_cpu, resources.request_memory),
        limits: list(resources.limit_cpu, resources.limit_memory),
        claims: None,
    }
}

fn pod(valid: &Valid) -> PodSpec {
    let secrets = valid.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let secrets: Vec<_> = secrets.collect();
    PodSpec {
        service_account_name: Some(valid.name.clone()),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            fs_group_change_policy: Some("OnRootMismatch".into()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(30),
        enable_service_links: Some(false),
        containers: vec![container(valid)],
        volumes: Some(volumes(valid)),
        node_selector: valid.scheduling.node_selector.clone(),
        affinity: valid.scheduling.affinity.clone(),
        tolerations: valid.scheduling.tolerations.clone(),
        topology_spread_constraints: Some(spread(valid)),
        priority_class_name: valid.scheduling.priority_class_name.clone(),
        ..PodSpec::default()
    }
}

/// Copies go to different nodes where that is possible.
fn spread(valid: &Valid) -> Vec<TopologySpreadConstraint> {
    valid.scheduling.topology_spread_constraints.clone().unwrap_or_else(|| {
        vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(LabelSelector {
                match_labels: Some(names::selector(&valid.name)),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        }]
    })
}

fn container(valid: &Valid) -> Container {
    Container {
        name: CONTAINER.into(),
        image: Some(valid.image.clone()),
        command: Some(vec!["metricsstore".into()]),
        args: Some(args(valid)),
        ports: Some(vec![port("web", WEB_PORT), port("ops", OPS_PORT)]),
        resources: Some(desired_resources(valid)),
        resize_policy: Some(vec![resize_freely("cpu"), resize_freely("memory")]),
        // Listens before replay and lives while it replays, so starting takes seconds whatever the volume holds.
        startup_probe: Some(Probe {
            period_seconds: Some(1),
            failure_threshold: Some(60),
            ..probe("/-/healthy")
        }),
        liveness_probe: Some(Probe {
            period_seconds: Some(10),
            failure_threshold: Some(6),
            ..probe("/-/healthy")
        }),
        readiness_probe: Some(Probe {
            period_seconds: Some(2),
            failure_threshold: Some(3),
            ..probe("/-/ready")
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount(DATA, DATA_DIR, false),
            mount("runtime", RUNTIME_DIR, true),
            mount("scrape", SCRAPE_DIR, true),
            mount("ops", OPS_DIR, true),
        ]),
        ..Container::default()
    }
}

fn args(valid: &Valid) -> Vec<String> {
    let mut args = vec![
        "serve".to_owned(),
        format!("--config.file={SCRAPE_DIR}/{}", names::SCRAPE_FILE),
        format!("--storage.tsdb.path={DATA_DIR}"),
        format!("--web.listen-address=:{WEB_PORT}"),
        format!("--ops.listen-address=:{OPS_PORT}"),
        format!("--ops.token-file={OPS_DIR}/{}", names::TOKEN_KEY),
        format!("--runtime.config-file={RUNTIME_DIR}/{}", names::ENGINE_FILE),
    ];
    if valid.remote_write {
        args.push("--web.enable-remote-write-receiver".into());
    }
    if valid.block_format == BlockFormat::Prometheus {
        args.push("--storage.block-format=prometheus".into());
    }
    // Said here too, so that another number rolls the pods: threads and shards are made at the start.
    if let Some(threads) = valid.threads_named {
        args.push(format!("--cpu.threads={threads}"));
    }
    args
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: number.into(),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

fn resize_freely(resource: &str) -> ContainerResizePolicy {
    ContainerResizePolicy { resource_name: resource.into(), restart_policy: "NotRequired".into() }
}

fn probe(path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String("ops".into()),
            ..HTTPGetAction::default()
        }),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Whole directories, never a subPath: only those follow their object.
fn volumes(valid: &Valid) -> Vec<Volume> {
    let secret = |volume: &str, name: String| Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource { secret_name: Some(name), ..SecretVolumeSource::default() }),
        ..Volume::default()
    };
    vec![
        Volume {
            name: "runtime".into(),
            config_map: Some(ConfigMapVolumeSource {
                name: valid.name.clone(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        secret("scrape", names::scrape_secret(&valid.name)),
        secret("ops", names::ops_secret(&valid.name)),
    ]
}

/// Carries only our own label: what others put on claims, or release tools on children, must never change a template.
/// The annotation keeps claims when Argo CD prunes the store.
fn claim(valid: &Valid, storage: &Storage, existing: Option<&StatefulSet>) -> PersistentVolumeClaim {
    let frozen =
        existing.and_then(|set| set.spec.as_ref()?.volume_claim_templates.as_ref()?.first()?.spec.clone());
    let storage_class_name = match frozen {
        Some(spec) => spec.storage_class_name,
        None => valid.storage_class.clone(),
    };
    let keep = ("argocd.argoproj.io/sync-options".to_owned(), "Prune=false,Delete=false".to_owned());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(DATA.into()),
            labels: Some(names::selector(&valid.name)),
            annotations: Some([keep].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name,
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), ApiQuantity(storage.template.to_string()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}
