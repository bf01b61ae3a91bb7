//! The next step of a roll, worked out anew from the pods each time: there is no state that could go stale, and a newer
//! spec takes over in the middle.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use serde_json::Value;

use super::diff::first_difference;
use super::names;

/// What is done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Every pod is there, ready and as planned.
    Settled,
    /// Something has to happen first.
    Wait(String),
    /// A pod that is not ready and not as planned: there is nothing to wait for.
    Delete(Replacement),
    /// A ready pod that is not as planned, while all others are ready.
    Evict(Replacement),
}

/// A pod that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Its name.
    pub pod: String,
    /// Its UID; another pod of that name is left alone.
    pub uid: String,
    /// The first difference, in words.
    pub why: String,
}

/// Decides from the applied StatefulSet and its pods.
pub fn next_step(statefulset: &StatefulSet, pods: &[Pod]) -> Step {
    let observed = statefulset.status.as_ref().and_then(|status| status.observed_generation);
    if observed != statefulset.metadata.generation {
        // A pod that goes now would come back from the previous template.
        return Step::Wait("the StatefulSet controller has not seen the new template yet".into());
    }
    let Some(spec) = &statefulset.spec else { return Step::Settled };
    let (stopping, staying): (Vec<&Pod>, Vec<&Pod>) =
        pods.iter().partition(|pod| pod.metadata.deletion_timestamp.is_some());
    let mut stale: Vec<(&Pod, String)> =
        staying.into_iter().filter_map(|pod| Some((pod, staleness(&spec.template, pod)?))).collect();
    stale.sort_by_key(|(pod, _)| ordinal(pod));
    // Before anything is waited for: what is broken and outdated serves nobody, and its node may be gone for good.
    if let Some((pod, why)) = stale.iter().find(|(pod, _)| !is_ready(pod)) {
        return Step::Delete(replacement(pod, why));
    }
    if let Some(pod) = stopping.first() {
        return Step::Wait(format!("{} is stopping", name(pod)));
    }
    let wanted = spec.replicas.unwrap_or(1);
    if let Some(pod) = pods.iter().find(|pod| !is_ready(pod)) {
        return Step::Wait(format!(
            "{} is not ready{}",
            name(pod),
            trouble(pod).map_or(String::new(), |t| format!(": {t}"))
        ));
    }
    if (pods.len() as i64) < i64::from(wanted) {
        // A quota, an admission rule or a priority class that does not exist is told to the StatefulSet alone.
        let (name, namespace) = (&statefulset.metadata.name, &statefulset.metadata.namespace);
        return Step::Wait(format!(
            "{} of {wanted} pods exist; if this lasts, `kubectl describe statefulset {} -n {}` says why",
            pods.len(),
            name.as_deref().unwrap_or_default(),
            namespace.as_deref().unwrap_or_default()
        ));
    }
    match stale.last() {
        Some((pod, why)) => Step::Evict(replacement(pod, why)),
        None => Step::Settled,
    }
}

/// Why a pod is not as planned, in words; `None` when it is. Judged by our annotations, never by the raw spec, which
/// webhooks, sidecars and autoscalers change; the raw spec only explains. A pod whose live resources somebody else set
/// (a vertical autoscaler at its creation, a resize by hand) stays: its engine follows the live limit, and to replace it
/// would bring the same pod again, for ever.
pub fn staleness(template: &PodTemplateSpec, pod: &Pod) -> Option<String> {
    let planned = template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
    let carried = pod.metadata.annotations.as_ref();
    let same = |key: &str| planned.and_then(|map| map.get(key)) == carried.and_then(|map| map.get(key));
    let wanted = serde_json::to_value(template.spec.as_ref()).unwrap_or_default();
    let found = serde_json::to_value(pod.spec.as_ref()).unwrap_or_default();
    if !same(names::PLAN_HASH) {
        let difference = first_difference(&without_resources(wanted), &found);
        return Some(difference.unwrap_or_else(|| "it was made from another plan".into()));
    }
    // The annotation also catches what the plan no longer sets: a limit that was taken out of the spec.
    (!same(names::RESOURCES)).then(|| {
        let carried = carried.and_then(|map| map.get(names::RESOURCES)).map_or("unknown", String::as_str);
        first_difference(&resources(&wanted), &resources(&found))
            .unwrap_or_else(|| format!("resources: made with {carried}"))
    })
}

fn engine(spec: &Value) -> Option<&Value> {
    let containers = spec.get("containers")?.as_array()?;
    containers
        .iter()
        .find(|container| container.get("name").and_then(Value::as_str) == Some(names::CONTAINER))
}

fn resources(spec: &Value) -> Value {
    let resources = engine(spec).and_then(|engine| engine.get("resources")).cloned().unwrap_or_default();
    serde_json::json!({ "resources": resources })
}

fn without_resources(mut spec: Value) -> Value {
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        container.remove("resources");
    }
    spec
}

fn replacement(pod: &Pod, why: &str) -> Replacement {
    Replacement {
        pod: name(pod).to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        why: why.to_owned(),
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("?")
}

/// The number at the end of a pod's name.
fn ordinal(pod: &Pod) -> u32 {
    name(pod).rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// Whether the pod takes requests.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What keeps a pod from becoming ready, in the kubelet's or the scheduler's words.
pub fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let container = containers.filter_map(|container| container.state.as_ref()).find_map(|state| {
        let waiting = state.waiting.as_ref().filter(|w| w.reason.as_deref() != Some("ContainerCreating"));
        let words =
            waiting.map(|waiting| (waiting.reason.clone(), waiting.message.clone())).or_else(|| {
                let ended = state.terminated.as_ref()?;
                Some((ended.reason.clone(), Some(format!("exit {}", ended.exit_code))))
            })?;
        Some(words)
    });
    let unschedulable = || {
        let conditions = status.conditions.iter().flatten();
        let condition = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((condition.reason.clone(), condition.message.clone()))
    };
    let (reason, message) = container.or_else(unschedulable)?;
    let words: Vec<String> = [reason, message].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(": "))
}

#[cfg(test)]
mod tests;
