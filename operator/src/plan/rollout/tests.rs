use serde_json::json;

use super::*;
use crate::fixtures;

fn set(spec: &str) -> StatefulSet {
    let mut set = fixtures::plan(spec).children.statefulset;
    set.metadata.generation = Some(3);
    set.status = serde_json::from_value(json!({ "replicas": 0, "observedGeneration": 3 })).unwrap();
    set
}

/// A pod made from `set` as it is now.
fn pod(set: &StatefulSet, ordinal: u32, ready: bool) -> Pod {
    let template = serde_json::to_value(&set.spec.as_ref().unwrap().template).unwrap();
    let mut pod = json!({ "metadata": template["metadata"], "spec": template["spec"] });
    pod["metadata"]["name"] = json!(format!("main-{ordinal}"));
    pod["metadata"]["uid"] = json!(format!("uid-{ordinal}"));
    pod["status"] =
        json!({ "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] });
    serde_json::from_value(pod).unwrap()
}

const ONE: &str = "resources: { limits: { memory: 1Gi, cpu: 500m } }";
const TWO: &str = "resources: { limits: { memory: 1Gi, cpu: 500m } }, replicas: 2";
const TWO_NEW: &str = "resources: { limits: { memory: 1Gi, cpu: 500m } }, replicas: 2, image: new";

#[test]
fn pods_as_planned_are_left_alone() {
    let set = set(TWO);
    assert_eq!(next_step(&set, &[pod(&set, 0, true), pod(&set, 1, true)]), Step::Settled);
}

#[test]
fn other_spellings_defaults_and_foreign_additions_roll_nothing() {
    let planned = set(ONE);
    let mut pod = pod(&set("resources: { limits: { memory: 1024Mi, cpu: '0.5' } }"), 0, true);
    let spec = pod.spec.as_mut().unwrap();
    spec.node_name = Some("node".into());
    spec.containers.insert(0, serde_json::from_value(json!({ "name": "sidecar" })).unwrap());
    pod.metadata.annotations.as_mut().unwrap().insert("foreign".into(), "x".into());
    assert_eq!(next_step(&planned, &[pod]), Step::Settled);
}

#[test]
fn a_healthy_pod_of_another_plan_is_evicted_highest_ordinal_first() {
    let old = set(TWO);
    let step = next_step(&set(TWO_NEW), &[pod(&old, 0, true), pod(&old, 1, true)]);
    let Step::Evict(replacement) = step else { panic!("{step:?}") };
    assert_eq!((replacement.pod.as_str(), replacement.uid.as_str()), ("main-1", "uid-1"));
    assert!(replacement.why.starts_with("containers[metricsstore].image: "), "{}", replacement.why);
}

#[test]
fn while_a_new_pod_is_not_ready_no_healthy_one_goes() {
    let new = set(TWO_NEW);
    let step = next_step(&new, &[pod(&set(TWO), 0, true), pod(&new, 1, false)]);
    assert_eq!(step, Step::Wait("main-1 is not ready".into()));
}

#[test]
fn a_broken_pod_that_is_not_at_the_target_is_deleted_and_never_waited_for() {
    // A bad image reached main-1; the spec is corrected: main-1 goes at once although it never became ready.
    let bad = set("resources: { limits: { memory: 1Gi, cpu: 500m } }, replicas: 2, image: bad");
    let step = next_step(&set(TWO_NEW), &[pod(&set(TWO), 0, true), pod(&bad, 1, false)]);
    assert!(matches!(&step, Step::Delete(replacement) if replacement.pod == "main-1"), "{step:?}");
}

#[test]
fn resources_that_differ_by_value_roll() {
    let step =
        next_step(&set("resources: { limits: { memory: 2Gi, cpu: 500m } }"), &[pod(&set(ONE), 0, true)]);
    let Step::Evict(replacement) = step else { panic!("{step:?}") };
    assert_eq!(replacement.why, "resources.limits.memory: 1Gi, wanted 2Gi");
}

#[test]
fn resources_that_somebody_else_set_roll_nothing() {
    let mut resized = serde_json::to_value(pod(&set(ONE), 0, true)).unwrap();
    resized["spec"]["containers"][0]["resources"]["limits"]["memory"] = "3Gi".into();
    assert_eq!(next_step(&set(ONE), &[serde_json::from_value(resized).unwrap()]), Step::Settled);
}

#[test]
fn a_limit_that_was_taken_out_of_the_spec_rolls() {
    let step = next_step(&set("resources: { limits: { memory: 1Gi } }"), &[pod(&set(ONE), 0, true)]);
    assert!(matches!(step, Step::Evict(_)), "{step:?}");
}

#[test]
fn nothing_goes_before_the_controller_has_seen_the_template_or_while_a_pod_stops() {
    let (old, mut new) = (set(TWO), set(TWO_NEW));
    let mut stopping = pod(&old, 1, true);
    stopping.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(next_step(&new, &[pod(&old, 0, true), stopping]), Step::Wait("main-1 is stopping".into()));
    new.metadata.generation = Some(4);
    assert!(matches!(next_step(&new, &[pod(&old, 0, false)]), Step::Wait(_)));
}

#[test]
fn a_pod_that_stops_for_ever_does_not_hold_up_a_broken_one() {
    let (old, new) = (set(TWO), set(TWO_NEW));
    let mut stopping = pod(&old, 1, false);
    stopping.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let step = next_step(&new, &[pod(&old, 0, false), stopping]);
    assert!(matches!(&step, Step::Delete(replacement) if replacement.pod == "main-0"), "{step:?}");
}

#[test]
fn hibernated_stores_are_settled_without_pods() {
    assert_eq!(next_step(&set("resources: { limits: { memory: 1Gi } }, replicas: 0"), &[]), Step::Settled);
    assert!(matches!(next_step(&set(ONE), &[]), Step::Wait(_)));
}

#[test]
fn the_kubelets_words_say_why_a_pod_is_not_ready() {
    let set = set(ONE);
    let mut pod = pod(&set, 0, false);
    pod.status = serde_json::from_value(json!({ "containerStatuses": [{
        "name": "metricsstore", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ErrImageNeverPull", "message": "image is not present" } } }] }))
    .unwrap();
    let step = next_step(&set, &[pod]);
    assert_eq!(step, Step::Wait("main-0 is not ready: ErrImageNeverPull: image is not present".into()));
}
