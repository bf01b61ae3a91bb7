//! One store, five steps: observe → validate → plan → apply → report. The two in the middle take no client and no clock.

mod apply;
mod observe;
mod report;
mod steps;
mod validate;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::error::Error;
use crate::plan::rollout::{self, Step};
use crate::plan::status::{Outcome, status};
use crate::plan::{Plan, plan, settle};
use k8s_openapi::api::apps::v1::StatefulSet;

pub use apply::Applied;
pub use observe::{Existing, Piece, Seen, Source, SourceKind, sources};
pub use report::report_failure;
pub use validate::{ContainerResources, Placement, Refusal, Valid, validate};

/// How soon to look again while something is under way; most of what matters wakes us anyway.
const SOON: Duration = Duration::from_secs(3);
/// How soon to look again at a store where nothing is under way: what engines say has no watch.
const LATER: Duration = Duration::from_secs(30);

/// Brings one store nearer to its spec; says when to look again, or `None` when there is nothing to look at.
pub async fn reconcile(ctx: &Context, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let Some(seen) = Box::pin(observe::observe(ctx, namespace, name)).await? else { return Ok(None) };
    if seen.store.metadata.deletion_timestamp.is_some() {
        // The garbage collector takes the children; claims have no owner and stay.
        return Ok(None);
    }
    let valid = validate(&seen.store, &ctx.options.image);
    let done = match &valid {
        Ok(valid) => Box::pin(act(ctx, &seen, valid)).await?,
        Err(_) => Done::default(),
    };
    let found = seen.existing.statefulset.as_ref();
    let outcome = Outcome {
        seen: &seen,
        valid: valid.as_ref(),
        plan: done.plan.as_ref(),
        refused: done.refused.as_ref(),
        statefulset: done.statefulset.as_ref().or(found),
        step: done.step.as_ref(),
        now: Time(Timestamp::now()),
    };
    let settled = report::report(ctx, &seen.store, status(&outcome)).await?;
    Ok(Some(if settled { LATER } else { SOON }))
}

/// What was done for a valid store.
#[derive(Default)]
struct Done {
    plan: Option<Plan>,
    refused: Option<Refusal>,
    statefulset: Option<StatefulSet>,
    step: Option<Step>,
}

async fn act(ctx: &Context, seen: &Seen, valid: &Valid) -> Result<Done, Error> {
    match taken_name(seen) {
        Some(Taken::ByAnother(refused)) => return Ok(Done { refused: Some(refused), ..Done::default() }),
        Some(Taken::ForNow(why)) => return Ok(Done { step: Some(Step::Wait(why)), ..Done::default() }),
        None => {}
    }
    let planned = plan(valid, seen, &fresh_token()?)?;
    if valid.paused {
        return Ok(Done { plan: Some(planned), ..Done::default() });
    }
    let (statefulset, changes) = match Box::pin(apply::apply(
        ctx,
        &valid.namespace,
        planned.children.clone(),
        &seen.existing,
    ))
    .await?
    {
        Applied::Refused(refused) => {
            return Ok(Done { plan: Some(planned), refused: Some(refused), ..Done::default() });
        }
        Applied::Done { statefulset, changes } => (*statefulset, changes),
    };
    report::say_changes(ctx, &seen.store, &changes).await;
    steps::deliver_config(ctx, &valid.namespace, &planned, &seen.pods).await?;
    for (pod, info) in &seen.engines {
        if info.as_ref().is_ok_and(|info| settle::files_to_read(&planned, info)) {
            steps::ask_to_reload(ctx, seen, pod).await;
        }
    }
    let step = rollout::next_step(&statefulset, &seen.pods);
    let step = steps::take(ctx, &seen.store, &valid.namespace, step).await?;
    Ok(Done { plan: Some(planned), refused: None, statefulset: Some(statefulset), step: Some(step) })
}

/// Why a child's name is not free.
enum Taken {
    /// Somebody else's object, which is never taken over.
    ByAnother(Refusal),
    /// What is left of a deleted store of this name.
    ForNow(String),
}

fn taken_name(seen: &Seen) -> Option<Taken> {
    fn check<K: Resource<DynamicType = ()>>(child: Option<&K>, store: &str, uid: &str) -> Option<Taken> {
        let child = child?;
        let owners = child.owner_references();
        if owners.iter().any(|owner| owner.uid == uid) {
            return None;
        }
        let (kind, name) = (K::kind(&()), child.name_any());
        let owner = owners.iter().find(|owner| owner.kind == "MetricsStore");
        if owner.is_some_and(|owner| owner.name == store) || child.meta().deletion_timestamp.is_some() {
            return Some(Taken::ForNow(format!(
                "{kind} {name} of a deleted store of this name is being removed"
            )));
        }
        let message = match owner {
            // The store `a` has a Service `a-pods`, and so would a store `a-pods`.
            Some(owner) => {
                format!("{kind} {name} belongs to the store {}: give one of the two another name", owner.name)
            }
            None => format!(
                "{kind} {name} exists and is not this store's: delete it, or give the store another name"
            ),
        };
        Some(Taken::ByAnother(Refusal::new("NameInUse", message)))
    }
    let uid = seen.store.metadata.uid.as_deref().unwrap_or_default();
    let store = seen.store.metadata.name.as_deref().unwrap_or_default();
    let Existing { service_account, ops, scrape, config_map, web, pods, statefulset } = &seen.existing;
    check(service_account.as_ref(), store, uid)
        .or_else(|| check(ops.as_ref(), store, uid))
        .or_else(|| check(scrape.as_ref(), store, uid))
        .or_else(|| check(config_map.as_ref(), store, uid))
        .or_else(|| check(web.as_ref(), store, uid))
        .or_else(|| check(pods.as_ref(), store, uid))
        .or_else(|| check(statefulset.as_ref(), store, uid))
}

/// 256 random bits in hex.
fn fresh_token() -> Result<String, Error> {
    use std::fmt::Write;
    use std::io::Read;
    let mut bytes = [0_u8; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    /// What a Service named like the store, with these owners, means for it.
    fn taken_by(owners: &serde_json::Value) -> Option<Taken> {
        let mut seen = fixtures::seen("resources: { limits: { memory: 1Gi } }");
        let service = json!({ "metadata": { "name": "main", "ownerReferences": owners } });
        seen.existing.web = Some(serde_json::from_value::<Service>(service).unwrap());
        taken_name(&seen)
    }

    #[test]
    fn only_the_stores_own_children_are_touched() {
        let owner = |name: &str, uid: &str| json!([{ "apiVersion": "metricsstore.dev/v1alpha1", "kind": "MetricsStore", "name": name, "uid": uid }]);
        assert!(taken_by(&owner("main", "store-uid")).is_none());
        assert!(matches!(taken_by(&owner("main", "an-older-store")), Some(Taken::ForNow(_))));
        // Two stores whose children's names meet never wait for each other's end.
        let met = taken_by(&owner("ma", "another-store"));
        assert!(
            matches!(met, Some(Taken::ByAnother(refusal)) if refusal.message.contains("belongs to the store ma:"))
        );
        assert!(
            matches!(taken_by(&json!([])), Some(Taken::ByAnother(refusal)) if refusal.reason == "NameInUse")
        );
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, other) = (fresh_token().unwrap(), fresh_token().unwrap());
        assert_eq!((one.len(), one == other), (64, false));
    }
}
