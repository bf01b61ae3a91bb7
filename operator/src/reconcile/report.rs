//! Report: the status, written only when it says something new, and events about what changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use metricsstore_crds::{MetricsStore, MetricsStoreStatus};
use serde_json::json;

use crate::context::Context;
use crate::error::Error;
use crate::events::{self, Tone};
use crate::plan::names;
use crate::plan::status::failing;

/// Writes the status where it differs from what is there; says whether nothing is under way.
pub async fn report(ctx: &Context, store: &MetricsStore, status: MetricsStoreStatus) -> Result<bool, Error> {
    let before = store.status.clone().unwrap_or_default();
    let settled = holds(&status, "Reconciling") == Some(false);
    if same(&before, &status) {
        return Ok(settled);
    }
    say_turns(ctx, store, &before, &status).await;
    write(ctx, store, &status).await.map(|()| settled)
}

/// Tells on the store why its reconciles fail. What cannot be told either is only logged: the reconcile is tried again.
pub async fn report_failure(ctx: &Context, namespace: &str, name: &str, error: &Error) {
    let api: Api<MetricsStore> = Api::namespaced(ctx.client.clone(), namespace);
    let Ok(Some(store)) = api.get_opt(name).await else { return };
    let why = error.told();
    let status = failing(&store, &why, &Time(Timestamp::now()));
    if same(&store.status.clone().unwrap_or_default(), &status) {
        return;
    }
    say(ctx, &store, Tone::Warning, "ReconcileFailing", "Reconcile", &why).await;
    if let Err(error) = write(ctx, &store, &status).await {
        tracing::info!(namespace, name, %error, "a failure could not be told on the store");
    }
}

async fn write(ctx: &Context, store: &MetricsStore, status: &MetricsStoreStatus) -> Result<(), Error> {
    let name = store.name_any();
    let api: Api<MetricsStore> = Api::namespaced(ctx.client.clone(), &store.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": MetricsStore::api_version(&()),
        "kind": MetricsStore::kind(&()),
        // A store of this name that was made since is another store.
        "metadata": { "name": name, "uid": store.metadata.uid },
        "status": status,
    });
    ctx.metrics.wrote("MetricsStore");
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    match api.patch_status(&name, &params, &Patch::Apply(&patch)).await {
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        other => other.map(drop).map_err(Error::write("status of MetricsStore", &name)),
    }
}

/// Equal but for what the sampler writes.
fn same(before: &MetricsStoreStatus, now: &MetricsStoreStatus) -> bool {
    let mut before = before.clone();
    before.usage = None;
    if let Some(summary) = &mut before.summary {
        summary.series = None;
        summary.disk = None;
    }
    before == *now
}

fn holds(status: &MetricsStoreStatus, kind: &str) -> Option<bool> {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
    Some(condition.status == "True")
}

/// An event for each of the main conditions whose reason is another one than before.
async fn say_turns(
    ctx: &Context,
    store: &MetricsStore,
    before: &MetricsStoreStatus,
    now: &MetricsStoreStatus,
) {
    for condition in now.conditions.iter().flatten() {
        let said = |old: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            old.type_ == condition.type_ && old.status == condition.status && old.reason == condition.reason
        };
        let old = before.conditions.iter().flatten().any(|old| said(&old));
        let tone = match (condition.type_.as_str(), condition.status.as_str()) {
            ("Ready", "True") => Tone::Normal,
            ("Stalled" | "Degraded" | "Refused", "True") => Tone::Warning,
            _ => continue,
        };
        if !old {
            say(ctx, store, tone, &condition.reason, "Reconcile", &condition.message).await;
        }
    }
}

/// An event about what was written.
pub async fn say_changes(ctx: &Context, store: &MetricsStore, changes: &[String]) {
    if !changes.is_empty() {
        say(ctx, store, Tone::Normal, "Applied", "Apply", &changes.join("; ")).await;
    }
}

/// Publishes an event about the store.
pub async fn say(ctx: &Context, store: &MetricsStore, tone: Tone, reason: &str, action: &str, note: &str) {
    events::publish(&ctx.client, store.object_ref(&()), tone, reason, action, note).await;
}
