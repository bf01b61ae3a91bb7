use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::fixtures;
use crate::plan;
use crate::reconcile::validate;

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn info() -> RuntimeInfo {
    RuntimeInfo {
        version: "0.1.0".into(),
        memory_budget_bytes: 966_367_641,
        memory_limit_bytes: Some(1 << 30),
        cpu_threads: 2,
        storage_retention: "15d".into(),
        ..RuntimeInfo::default()
    }
}

/// The status of a store whose one pod is as planned and ready, after `change`.
fn serving(fields: &str, change: impl FnOnce(&mut Seen)) -> MetricsStoreStatus {
    let mut seen = fixtures::seen(fields);
    let valid = validate(&seen.store, fixtures::IMAGE).unwrap();
    let planned = plan::plan(&valid, &seen, "token").unwrap();
    let mut set = planned.children.statefulset.clone();
    set.metadata.generation = Some(1);
    set.status = serde_json::from_value(json!({ "replicas": 1, "observedGeneration": 1 })).unwrap();
    for ordinal in 0..valid.replicas {
        let template = serde_json::to_value(&set.spec.as_ref().unwrap().template).unwrap();
        let mut pod = json!({ "metadata": template["metadata"], "spec": template["spec"] });
        pod["metadata"]["name"] = json!(format!("main-{ordinal}"));
        pod["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        seen.pods.push(serde_json::from_value(pod).unwrap());
        let mut info = info();
        for (file, contents) in planned.children.scrape.data.iter().flatten() {
            info.config_files.push(metricsstore_contract::ConfigVerdict {
                path: format!("{}/{file}", names::SCRAPE_DIR),
                content_hash: metricsstore_contract::content_hash(&contents.0),
                ..Default::default()
            });
        }
        seen.engines.insert(format!("main-{ordinal}"), Ok(info));
    }
    change(&mut seen);
    let planned = plan::plan(&valid, &seen, "token").unwrap();
    let step = rollout::next_step(&set, &seen.pods);
    let step = (!valid.paused).then_some(&step);
    status(&Outcome {
        seen: &seen,
        valid: Ok(&valid),
        plan: Some(&planned),
        refused: None,
        statefulset: Some(&set),
        step,
        now: at(100),
    })
}

fn condition<'a>(status: &'a MetricsStoreStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.as_ref().unwrap().iter().find(|condition| condition.type_ == kind)
}

fn says(status: &MetricsStoreStatus, kind: &str, holds: &str, reason: &str) -> String {
    let condition = condition(status, kind).unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), (holds, reason), "{condition:?}");
    condition.message.clone()
}

const GI: &str = "resources: { limits: { memory: 1Gi } }";

#[test]
fn a_serving_store_is_ready_and_says_what_is_in_force() {
    let status = serving(GI, |_| {});
    says(&status, "Ready", "True", "Serving");
    says(&status, "Available", "True", "Serving");
    for kind in ["Reconciling", "Stalled", "Degraded"] {
        assert_eq!(condition(&status, kind).unwrap().status, "False");
    }
    assert_eq!(status.observed_generation, Some(1));
    let effective = status.effective.unwrap();
    assert_eq!((effective.memory_budget_bytes, effective.cpu_threads), (Some(966_367_641), Some(2)));
    assert_eq!(effective.storage.as_deref(), Some("50Gi"));
    let summary = status.summary.unwrap();
    assert_eq!((summary.replicas.as_deref(), summary.budget.as_deref()), (Some("1/1"), Some("921Mi")));
}

#[test]
fn one_write_address_per_replica_is_listed() {
    let endpoints = serving("resources: { limits: { memory: 1Gi } }, replicas: 2", |_| {}).endpoints.unwrap();
    assert_eq!(endpoints.write.unwrap().len(), 2);
    assert_eq!(endpoints.query.as_deref(), Some("http://main.monitoring.svc:9090"));
    let disabled =
        serving("resources: { limits: { memory: 1Gi } }, remoteWrite: { receiver: Disabled }", |_| {});
    assert_eq!(disabled.endpoints.unwrap().write, None);
}

#[test]
fn a_budget_that_has_not_arrived_is_reconciling() {
    let status = serving(GI, |seen| {
        if let Some(Ok(info)) = seen.engines.get_mut("main-0") {
            info.memory_budget_bytes = 5;
        }
    });
    says(&status, "Reconciling", "True", "Settling");
    says(&status, "Ready", "False", "Settling");
}

#[test]
fn a_missing_scrape_configuration_stalls_with_the_cure_while_pods_run_on() {
    let status = serving(GI, |seen| {
        seen.pieces.push(crate::reconcile::Piece {
            source: crate::reconcile::Source {
                kind: crate::reconcile::SourceKind::Secret,
                name: "extra".into(),
                key: "k".into(),
            },
            content: Err(Refusal::new(
                "ScrapeConfigMissing",
                "Secret extra does not exist in monitoring: create it",
            )),
        });
    });
    assert!(says(&status, "Stalled", "True", "ScrapeConfigMissing").contains("create it"));
    says(&status, "Available", "True", "Serving");
    // Never both.
    assert_eq!(condition(&status, "Reconciling").unwrap().status, "False");
}

#[test]
fn refusals_and_pressure_are_visible() {
    let status = serving(GI, |seen| {
        if let Some(Ok(info)) = seen.engines.get_mut("main-0") {
            info.pressure = "refuse_series".into();
            info.refusals.insert("new_series".into(), 123_456);
        }
    });
    assert!(says(&status, "Degraded", "True", "MemoryPressure").contains("limits.memory"));
    assert_eq!(
        says(&status, "Refused", "True", "Refused"),
        "main-0 has refused since it started: new_series 120k"
    );
    says(&status, "Ready", "True", "Serving");
}

#[test]
fn a_failing_pod_is_degraded_in_the_kubelets_words() {
    let status = serving(GI, |seen| {
        seen.pods[0].status = serde_json::from_value(json!({ "containerStatuses": [{
            "name": "metricsstore", "image": "x", "imageID": "", "ready": false, "restartCount": 3,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } } }] }))
        .unwrap();
    });
    assert_eq!(says(&status, "Degraded", "True", "PodFailing"), "main-0: CrashLoopBackOff");
    says(&status, "Ready", "False", "Starting");
    says(&status, "Available", "False", "NoReplica");
}

#[test]
fn a_pod_that_stops_is_not_failing() {
    let status = serving(GI, |seen| {
        seen.pods[0].metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        seen.pods[0].status = serde_json::from_value(json!({ "containerStatuses": [{
            "name": "metricsstore", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "reason": "Completed", "exitCode": 0 } } }] }))
        .unwrap();
    });
    says(&status, "Degraded", "False", "Healthy");
    says(&status, "Reconciling", "True", "Starting");
}

#[test]
fn paused_and_hibernated_are_said() {
    let paused = serving("resources: { limits: { memory: 1Gi } }, paused: true", |_| {});
    says(&paused, "Paused", "True", "Paused");
    says(&paused, "Ready", "True", "Paused");
    let asleep = serving("resources: { limits: { memory: 1Gi } }, replicas: 0", |_| {});
    says(&asleep, "Ready", "True", "Hibernated");
    assert_eq!(condition(&serving(GI, |_| {}), "Paused"), None);
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    let old = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "Old", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z" });
    let status = serving(GI, |seen| {
        seen.store.status =
            serde_json::from_value(json!({ "conditions": [old("Ready", "True"), old("Stalled", "True")] }))
                .unwrap();
    });
    assert_eq!(condition(&status, "Ready").unwrap().last_transition_time, at(1));
    assert_eq!(condition(&status, "Stalled").unwrap().last_transition_time, at(100));
}

#[test]
fn an_invalid_spec_stalls_and_keeps_what_was_known() {
    let mut seen = fixtures::seen(GI);
    seen.pods = vec![Pod::default()];
    seen.store.status = serde_json::from_value(json!({ "image": "running" })).unwrap();
    let refusal = Refusal::new("InvalidSpec", "spec.x is wrong: write y");
    let status = status(&Outcome {
        seen: &seen,
        valid: Err(&refusal),
        plan: None,
        refused: None,
        statefulset: None,
        step: None,
        now: at(100),
    });
    says(&status, "Stalled", "True", "InvalidSpec");
    says(&status, "Ready", "False", "InvalidSpec");
    assert_eq!(status.image.as_deref(), Some("running"));
    assert_eq!(status.observed_generation, Some(1));
}

#[test]
fn a_failing_reconcile_is_told_without_forgetting_what_was_known() {
    let mut store = fixtures::store("resources: { limits: { memory: 1Gi } }");
    store.metadata.generation = Some(2);
    store.status = Some(serving("resources: { limits: { memory: 1Gi } }", |_| {}));
    let told = failing(&store, "Secret extra could not be read: forbidden", &at(200));
    let of = |kind: &str| told.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap().clone();
    let ready = of("Ready");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "ReconcileFailing"));
    assert!(
        ready.message.starts_with("Secret extra could not be read: forbidden. It is tried again"),
        "{ready:?}"
    );
    assert_eq!((of("Reconciling").status, of("Stalled").status), ("True".into(), "False".into()));
    assert_eq!((of("Available").status, of("Available").last_transition_time), ("True".into(), at(100)));
    assert_eq!((told.observed_generation, told.ready_replicas), (Some(2), Some(1)));
    // The next failure of the same kind writes nothing.
    store.status = Some(told.clone());
    assert_eq!(failing(&store, "Secret extra could not be read: forbidden", &at(300)), told);
}

#[test]
fn a_spec_that_was_never_carried_out_is_not_hibernated() {
    let seen = fixtures::seen("resources: { limits: { memory: 1Gi } }, retention: { time: 1x }, replicas: 2");
    let refusal = validate(&seen.store, fixtures::IMAGE).unwrap_err();
    let told = status(&Outcome {
        seen: &seen,
        valid: Err(&refusal),
        plan: None,
        refused: None,
        statefulset: None,
        step: None,
        now: at(100),
    });
    let available = told.conditions.iter().flatten().find(|c| c.type_ == "Available").unwrap();
    assert_eq!(
        (available.reason.as_str(), told.summary.unwrap().replicas.unwrap().as_str()),
        ("NoReplica", "0/2")
    );
}
