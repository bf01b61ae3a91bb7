//! What is done to running pods: told of new files, deleted, evicted.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use metricsstore_crds::MetricsStore;
use serde_json::json;

use super::Seen;
use super::report;
use crate::context::Context;
use crate::error::Error;
use crate::events::Tone;
use crate::plan::rollout::{Replacement, Step};
use crate::plan::{Plan, names};

/// Touches pods that were last touched for other files. A change of a pod makes the kubelet look at its volumes at once,
/// instead of up to a minute later.
pub async fn deliver_config(ctx: &Context, namespace: &str, plan: &Plan, pods: &[Pod]) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    for pod in pods {
        let carried = pod.annotations().get(names::CONFIG_HASH);
        if carried == Some(&plan.config_hash) || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let patch = json!({ "metadata": {
            "uid": pod.metadata.uid, "annotations": { names::CONFIG_HASH: plan.config_hash } } });
        ctx.metrics.wrote("Pod");
        let params =
            PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
        match api.patch(&pod.name_any(), &params, &Patch::Merge(&patch)).await {
            // The pod is gone or another one by now; the next look sees it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
            other => drop(other.map_err(Error::write("Pod", &pod.name_any()))?),
        }
    }
    Ok(())
}

/// Asks an engine to read its configuration again. It may fail: the next look asks again.
pub async fn ask_to_reload(ctx: &Context, seen: &Seen, pod: &str) {
    let token = seen.existing.ops.as_ref().and_then(|secret| secret.data.as_ref()?.get(names::TOKEN_KEY));
    let address = seen.pods.iter().find(|found| found.name_any() == pod);
    let address = address.and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
    if let (Some(token), Some(address)) = (token, address)
        && let Err(error) = ctx.engines.reload(&address, &String::from_utf8_lossy(&token.0)).await
    {
        tracing::info!(pod, %error, "the engine did not reload its configuration");
    }
}

/// Carries out a step of a roll; says what it came to, which is a wait where a pod cannot go now.
pub async fn take(ctx: &Context, store: &MetricsStore, namespace: &str, step: Step) -> Result<Step, Error> {
    let blocked = match &step {
        Step::Settled | Step::Wait(_) => None,
        Step::Delete(replacement) => {
            delete(ctx, store, namespace, replacement).await?;
            None
        }
        Step::Evict(replacement) => evict(ctx, store, namespace, replacement).await?,
    };
    Ok(blocked.map_or(step, Step::Wait))
}

fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..DeleteParams::default()
    }
}

async fn delete(
    ctx: &Context,
    store: &MetricsStore,
    namespace: &str,
    replacement: &Replacement,
) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    ctx.metrics.wrote("Pod");
    match api.delete(&replacement.pod, &only(&replacement.uid)).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
        other => drop(other.map_err(Error::write("Pod", &replacement.pod))?),
    }
    let note = format!("{} is not ready and not as planned: {}", replacement.pod, replacement.why);
    report::say(ctx, store, Tone::Normal, "PodDeleted", "Roll", &note).await;
    Ok(())
}

/// Why the pod cannot go now; `None` when it goes.
async fn evict(
    ctx: &Context,
    store: &MetricsStore,
    namespace: &str,
    replacement: &Replacement,
) -> Result<Option<String>, Error> {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let params = EvictParams { delete_options: Some(only(&replacement.uid)), ..EvictParams::default() };
    ctx.metrics.wrote("Pod");
    match api.evict(&replacement.pod, &params).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(None),
        Err(kube::Error::Api(status)) if status.code == 429 => {
            let note = format!("{} cannot be evicted at the moment: {}", replacement.pod, status.message);
            report::say(ctx, store, Tone::Warning, "EvictionBlocked", "Roll", &note).await;
            return Ok(Some(note));
        }
        other => drop(other.map_err(Error::write("Pod", &replacement.pod))?),
    }
    let note = format!("{} is replaced: {}", replacement.pod, replacement.why);
    report::say(ctx, store, Tone::Normal, "PodEvicted", "Roll", &note).await;
    Ok(None)
}
