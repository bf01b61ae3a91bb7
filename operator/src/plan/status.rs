//! The status, computed once from one value. Conditions keep their transition time while their status stays.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use metricsstore_contract::RuntimeInfo;
use metricsstore_crds::{
    Effective, EffectiveRetention, Endpoints, MetricsStore, MetricsStoreStatus, Summary,
};

use super::rollout::{self, Step};
use super::{Plan, names, settle};
use crate::reconcile::{Refusal, Seen, Valid};

/// Everything that a reconcile came to.
pub struct Outcome<'a> {
    /// What was observed.
    pub seen: &'a Seen,
    /// The spec with defaults, or why it is not carried out.
    pub valid: Result<&'a Valid, &'a Refusal>,
    /// What should be.
    pub plan: Option<&'a Plan>,
    /// Why it could not be applied.
    pub refused: Option<&'a Refusal>,
    /// The StatefulSet after applying, or as found where nothing was applied.
    pub statefulset: Option<&'a StatefulSet>,
    /// The next step of a roll.
    pub step: Option<&'a Step>,
    /// When.
    pub now: Time,
}

/// A condition before it is dated.
struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(kind: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Verdict {
        Verdict { kind, holds, reason: reason.to_owned(), message: message.into() }
    }
}

/// The status but for what the sampler writes (`usage`, `summary.series`, `summary.disk`).
pub fn status(outcome: &Outcome) -> MetricsStoreStatus {
    let seen = outcome.seen;
    let before = seen.store.status.clone().unwrap_or_default();
    let ready = seen.pods.iter().filter(|pod| rollout::is_ready(pod)).count();
    let wanted = wanted_replicas(outcome);
    let updated = applied(outcome).map_or(0, |spec| {
        seen.pods.iter().filter(|pod| rollout::staleness(&spec.template, pod).is_none()).count()
    });
    let effective = effective(outcome, before.effective.as_ref());
    let name = seen.store.metadata.name.as_deref().unwrap_or_default();
    MetricsStoreStatus {
        observed_generation: seen.store.metadata.generation,
        conditions: Some(dated(
            verdicts(outcome, ready, wanted),
            before.conditions,
            seen.store.metadata.generation,
            &outcome.now,
        )),
        replicas: Some(count(seen.pods.len())),
        ready_replicas: Some(count(ready)),
        updated_replicas: Some(count(updated)),
        selector: Some(format!("{}={name}", names::STORE_LABEL)),
        image: outcome.valid.ok().map(|valid| valid.image.clone()).or(before.image),
        endpoints: outcome.valid.ok().map(endpoints).or(before.endpoints),
        summary: Some(Summary {
            replicas: Some(format!("{ready}/{wanted}")),
            version: versions(outcome).or_else(|| before.summary.and_then(|summary| summary.version)),
            budget: effective
                .as_ref()
                .and_then(|e| e.memory_budget_bytes)
                .map(|bytes| format!("{}Mi", bytes >> 20)),
            series: None,
            disk: None,
        }),
        effective,
        usage: None,
    }
}

/// The status of a store whose reconciles end early because of `why`: what was last known, and that it is tried again.
pub fn failing(store: &MetricsStore, why: &str, now: &Time) -> MetricsStoreStatus {
    let before = store.status.clone().unwrap_or_default();
    let message = format!("{why}. It is tried again; pods keep running as they are");
    let verdicts = vec![
        Verdict::new("Ready", false, "ReconcileFailing", message.clone()),
        Verdict::new("Reconciling", true, "ReconcileFailing", message),
        Verdict::new("Stalled", false, "ReconcileFailing", "the operator tries again by itself"),
    ];
    let generation = store.metadata.generation;
    let mut conditions = dated(verdicts, before.conditions.clone(), generation, now);
    let said = |old: &Condition| conditions.iter().any(|condition| condition.type_ == old.type_);
    let kept: Vec<Condition> = before.conditions.into_iter().flatten().filter(|old| !said(old)).collect();
    conditions.extend(kept);
    // What the sampler writes stays its own.
    let summary = before.summary.map(|summary| Summary { series: None, disk: None, ..summary });
    MetricsStoreStatus {
        observed_generation: generation,
        conditions: Some(conditions),
        summary,
        usage: None,
        ..before
    }
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

fn applied<'a>(outcome: &Outcome<'a>) -> Option<&'a StatefulSetSpec> {
    outcome.statefulset?.spec.as_ref()
}

fn wanted_replicas(outcome: &Outcome) -> i32 {
    let applied = applied(outcome).and_then(|spec| spec.replicas);
    // Of a spec that was never carried out, it still says how many are missing.
    let asked = || outcome.seen.store.spec.replicas.unwrap_or(1);
    outcome.valid.ok().map(|valid| valid.replicas).or(applied).unwrap_or_else(asked)
}

fn engines<'a>(outcome: &Outcome<'a>) -> impl Iterator<Item = (&'a String, &'a RuntimeInfo)> {
    outcome.seen.engines.iter().filter_map(|(pod, info)| Some((pod, info.as_ref().ok()?)))
}

fn versions(outcome: &Outcome) -> Option<String> {
    let mut versions: Vec<&str> = engines(outcome).map(|(_, info)| info.version.as_str()).collect();
    versions.retain(|version| !version.is_empty());
    versions.sort_unstable();
    versions.dedup();
    (!versions.is_empty()).then(|| versions.join(", "))
}

/// As the engines report it; while none answers, what was reported last.
fn effective(outcome: &Outcome, before: Option<&Effective>) -> Option<Effective> {
    let smallest = engines(outcome).map(|(_, info)| info).min_by_key(|info| info.memory_budget_bytes);
    let reported = smallest.map(|info| Effective {
        memory_budget_bytes: i64::try_from(info.memory_budget_bytes).ok(),
        cpu_threads: i32::try_from(info.cpu_threads).ok(),
        retention: Some(EffectiveRetention {
            time: info.storage_retention.split(" or ").next().map(str::to_owned),
            bytes: info.retention_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
        }),
        storage: None,
    });
    let storage = outcome.plan.map(|plan| plan.storage.effective.to_string());
    let mut effective = reported.or_else(|| before.cloned()).unwrap_or_default();
    effective.storage = storage.or(effective.storage);
    (effective != Effective::default()).then_some(effective)
}

fn endpoints(valid: &Valid) -> Endpoints {
    let (name, namespace) = (&valid.name, &valid.namespace);
    let write = names::write_addresses(name, namespace, valid.replicas);
    Endpoints {
        query: Some(format!("http://{name}.{namespace}.svc:{}", names::WEB_PORT)),
        write: (valid.remote_write && !write.is_empty()).then_some(write),
    }
}

fn verdicts(outcome: &Outcome, ready: usize, wanted: i32) -> Vec<Verdict> {
    let stalled = stalled(outcome);
    let moving = if stalled.is_some() { None } else { moving(outcome) };
    let mut verdicts = vec![
        ready_verdict(outcome, stalled.as_ref(), moving.as_ref(), ready, wanted),
        available(ready, wanted),
        match &moving {
            Some(reason) => Verdict::new("Reconciling", true, reason.reason, reason.message.clone()),
            None => Verdict::new("Reconciling", false, "Settled", "nothing is under way"),
        },
        match &stalled {
            Some(refusal) => Verdict::new("Stalled", true, refusal.reason, refusal.message.clone()),
            None => Verdict::new("Stalled", false, "Applied", "the whole spec is applied"),
        },
        degraded(outcome),
    ];
    verdicts.extend(refusing(outcome));
    if outcome.valid.is_ok_and(|valid| valid.paused) {
        verdicts.push(Verdict::new(
            "Paused",
            true,
            "Paused",
            "spec.paused is true: nothing is changed; pods keep running. Set spec.paused to false to go on",
        ));
    }
    verdicts
}

/// What only a human can cure.
fn stalled(outcome: &Outcome) -> Option<Refusal> {
    let invalid = outcome.valid.err();
    let storage = outcome.plan.and_then(|plan| plan.storage.refusal.as_ref());
    let first = invalid.or(outcome.refused).or(storage).cloned();
    first
        .or_else(|| settle::missing_piece(outcome.seen))
        .or_else(|| settle::refused_config(outcome.seen, outcome.plan?))
}

/// What is under way.
fn moving(outcome: &Outcome) -> Option<Refusal> {
    let valid = outcome.valid.ok()?;
    if valid.paused {
        return None;
    }
    match outcome.step? {
        Step::Settled => {}
        Step::Wait(what) => {
            let reason = if is_rolling(outcome) { "Rolling" } else { "Starting" };
            return Some(Refusal::new(reason, format!("waiting: {what}")));
        }
        Step::Delete(replacement) | Step::Evict(replacement) => {
            return Some(Refusal::new(
                "Rolling",
                format!("replacing {}: {}", replacement.pod, replacement.why),
            ));
        }
    }
    let plan = outcome.plan?;
    let pending =
        engines(outcome).find_map(|(pod, info)| Some((pod, settle::not_yet_in_force(valid, plan, info)?)));
    if let Some((pod, what)) = pending {
        return Some(Refusal::new("Settling", format!("{pod}: {what}")));
    }
    let silent = outcome.seen.engines.iter().find_map(|(pod, info)| Some((pod, info.as_ref().err()?)));
    silent
        .map(|(pod, error)| Refusal::new("Settling", format!("{pod} does not say what is in force: {error}")))
}

fn is_rolling(outcome: &Outcome) -> bool {
    applied(outcome).is_some_and(|spec| {
        outcome.seen.pods.iter().any(|pod| rollout::staleness(&spec.template, pod).is_some())
    })
}

fn ready_verdict(
    outcome: &Outcome,
    stalled: Option<&Refusal>,
    moving: Option<&Refusal>,
    ready: usize,
    wanted: i32,
) -> Verdict {
    if let Some(refusal) = stalled.or(moving) {
        return Verdict::new("Ready", false, refusal.reason, refusal.message.clone());
    }
    if wanted == 0 {
        let message =
            "hibernated: no pods run and the claims are kept; set spec.replicas to 1 or more to serve";
        return Verdict::new("Ready", true, "Hibernated", message);
    }
    let all = count(ready) == wanted;
    let paused = outcome.valid.is_ok_and(|valid| valid.paused);
    let budget = engines(outcome).map(|(_, info)| info.memory_budget_bytes).min();
    let budget = budget.map_or(String::new(), |bytes| format!(", memory budget {}Mi each", bytes >> 20));
    let reason = if paused { "Paused" } else { "Serving" };
    Verdict::new("Ready", all, reason, format!("{ready} of {wanted} replicas serve{budget}"))
}

fn available(ready: usize, wanted: i32) -> Verdict {
    match (ready, wanted) {
        (0, 0) => Verdict::new("Available", false, "Hibernated", "no replica is wanted"),
        (0, _) => Verdict::new("Available", false, "NoReplica", format!("none of {wanted} replicas serves")),
        _ => Verdict::new("Available", true, "Serving", format!("{ready} of {wanted} replicas serve")),
    }
}

fn degraded(outcome: &Outcome) -> Verdict {
    // A pod that is told to stop may end as it likes.
    let staying = outcome.seen.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let failing = staying.filter(|pod| !rollout::is_ready(pod)).find_map(|pod| {
        Some(format!("{}: {}", pod.metadata.name.as_deref().unwrap_or("?"), rollout::trouble(pod)?))
    });
    if let Some(message) = failing {
        return Verdict::new("Degraded", true, "PodFailing", message);
    }
    match engines(outcome).find(|(_, info)| settle::sheds(info)) {
        Some((pod, info)) => Verdict::new("Degraded", true, "MemoryPressure", settle::shedding(pod, info)),
        None => Verdict::new("Degraded", false, "Healthy", "nothing is shed and no pod fails"),
    }
}

/// What engines have refused since they started; true only while there is something to say.
fn refusing(outcome: &Outcome) -> Option<Verdict> {
    let lines: Vec<String> = engines(outcome).filter_map(|(pod, info)| settle::refusals(pod, info)).collect();
    (!lines.is_empty()).then(|| Verdict::new("Refused", true, "Refused", lines.join("; ")))
}

/// Transition times are kept while a condition's status stays the same.
fn dated(
    verdicts: Vec<Verdict>,
    before: Option<Vec<Condition>>,
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    let before = before.unwrap_or_default();
    let date = |verdict: Verdict| {
        let status = if verdict.holds { "True" } else { "False" };
        let old =
            before.iter().find(|condition| condition.type_ == verdict.kind && condition.status == status);
        Condition {
            type_: verdict.kind.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason,
            // The API server takes 32768 characters; nobody reads more than this.
            message: verdict.message.chars().take(2048).collect(),
            observed_generation: generation,
            last_transition_time: old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
        }
    };
    verdicts.into_iter().map(date).collect()
}

#[cfg(test)]
mod tests;
