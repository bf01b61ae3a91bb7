//! The controller: what wakes a reconcile, how many run at once, and how it all ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use kube::api::ListParams;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use metricsstore_crds::MetricsStore;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::error::Error;
use crate::events::{self, Tone};
use crate::plan::names;
use crate::reconcile::{self, Source, SourceKind};
use crate::sampler;

/// A store that may not be readable: one bad object must not end the watch of all.
pub type Guarded = DeserializeGuard<MetricsStore>;

/// Shorter than what load balancers allow an idle connection.
const WATCH_SECONDS: u32 = 200;
/// So many failures in a row pass by themselves (a conflict, a time-out); the next is told on the store.
const SILENT_FAILURES: u32 = 2;
/// How often the API is asked for while the CRD is not there.
const CRD_PAUSE: Duration = Duration::from_secs(5);

/// Runs until `stop`; returns after the reconciles under way have ended.
pub async fn run(ctx: Context, stop: CancellationToken) {
    if wait_for_crd(&ctx, &stop).await.is_none() {
        return;
    }
    let all = watcher::Config::default().timeout(WATCH_SECONDS);
    let ours = all.clone().labels(&format!("app.kubernetes.io/managed-by={}", names::FIELD_MANAGER));
    let of_stores = all.clone().labels(names::STORE_LABEL);
    let controller = Controller::new(api::<Guarded>(&ctx), all.clone());
    let stores = controller.store();
    let (secrets_of, maps_of) = (stores.clone(), stores.clone());
    let controller = controller
        .with_config(Config::default().concurrency(ctx.options.concurrency))
        .owns(api::<PartialObjectMeta<StatefulSet>>(&ctx), ours.clone())
        .owns(api::<PartialObjectMeta<Service>>(&ctx), ours.clone())
        .owns(api::<PartialObjectMeta<ConfigMap>>(&ctx), ours.clone())
        .owns(api::<PartialObjectMeta<Secret>>(&ctx), ours.clone())
        .owns(api::<PartialObjectMeta<ServiceAccount>>(&ctx), ours)
        .watches(api::<PartialObjectMeta<Pod>>(&ctx), of_stores.clone(), labelled)
        .watches(api::<PartialObjectMeta<PersistentVolumeClaim>>(&ctx), of_stores, labelled)
        // Only names are looked at, and nothing is kept: ten thousand foreign secrets cost nothing.
        .watches(api::<PartialObjectMeta<Secret>>(&ctx), all.clone(), move |secret| {
            naming(&secrets_of, SourceKind::Secret, &secret)
        })
        .watches(api::<PartialObjectMeta<ConfigMap>>(&ctx), all, move |map| {
            naming(&maps_of, SourceKind::ConfigMap, &map)
        })
        .graceful_shutdown_on(stop.clone().cancelled_owned());
    let synced = announce_sync(ctx.clone(), stores.clone());
    let samples = sampler::run(ctx.clone(), stores);
    let reconciles = controller.run(reconcile_one, pause, Arc::new(ctx)).for_each(async |result| {
        if let Err(error) = result {
            tracing::debug!(%error, "controller");
        }
    });
    let background = async { futures::join!(synced, samples) };
    tokio::select! {
        () = reconciles => {}
        _ = background => {}
    }
}

fn api<K>(ctx: &Context) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let client: Client = ctx.client.clone();
    match &ctx.options.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

/// Waits until the API server knows `MetricsStores`; `None` when told to stop before.
async fn wait_for_crd(ctx: &Context, stop: &CancellationToken) -> Option<()> {
    loop {
        let asked = api::<Guarded>(ctx).list(&ListParams::default().limit(1)).await;
        let Err(error) = asked else { return Some(()) };
        tracing::warn!(
            %error,
            "MetricsStores cannot be listed: install the CRD (the chart's crds.install does) and check the operator's role"
        );
        tokio::select! {
            () = tokio::time::sleep(CRD_PAUSE) => {}
            () = stop.cancelled() => return None,
        }
    }
}

async fn announce_sync(ctx: Context, stores: Store<Guarded>) {
    if stores.wait_until_ready().await.is_ok() {
        ctx.metrics.set_synced();
        tracing::info!(stores = stores.len(), "watching stores");
    }
}

#[allow(clippy::needless_pass_by_value)] // the controller hands objects over
/// The store that a pod or a claim is labelled with.
fn labelled<K: Resource>(object: K) -> Option<ObjectRef<Guarded>> {
    let store = object.labels().get(names::STORE_LABEL)?;
    Some(ObjectRef::new(store).within(&object.namespace()?))
}

/// The stores whose scrape configuration is in this object.
fn naming<K: Resource>(stores: &Store<Guarded>, kind: SourceKind, object: &K) -> Vec<ObjectRef<Guarded>> {
    let (name, namespace) = (object.name_any(), object.namespace());
    let names_it = |source: &Source| source.kind == kind && source.name == name;
    let stores = stores.state();
    let naming = stores.iter().filter(|store| {
        store.namespace() == namespace
            && store.0.as_ref().is_ok_and(|store| reconcile::sources(store).iter().any(names_it))
    });
    naming.map(|store| ObjectRef::from_obj(store.as_ref())).collect()
}

async fn reconcile_one(store: Arc<Guarded>, ctx: Arc<Context>) -> Result<Action, Error> {
    let (namespace, name) = (store.namespace().unwrap_or_default(), store.name_any());
    if let Err(invalid) = &store.0 {
        say_unreadable(&ctx, &store, &invalid.error).await;
        ctx.metrics.reconciled(Duration::ZERO, Some("unreadable"));
        return Ok(Action::await_change());
    }
    let started = Instant::now();
    let result = Box::pin(reconcile::reconcile(&ctx, &namespace, &name)).await;
    ctx.metrics.reconciled(started.elapsed(), result.as_ref().err().map(Error::label));
    if let Err(error) = &result
        && ctx.failures_in_a_row(&namespace, &name) >= SILENT_FAILURES
    {
        reconcile::report_failure(&ctx, &namespace, &name, error).await;
    }
    let again = result?;
    ctx.succeeded(&namespace, &name);
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// The store was made under another schema; its pods keep running as they are.
async fn say_unreadable(ctx: &Context, store: &Guarded, error: &str) {
    let note = format!("the store cannot be read: {error}; correct it. Its pods keep running");
    events::publish(&ctx.client, store.object_ref(&()), Tone::Warning, "Unreadable", "Reconcile", &note)
        .await;
}

#[allow(clippy::needless_pass_by_value)] // the controller's signature
fn pause(store: Arc<Guarded>, error: &Error, ctx: Arc<Context>) -> Action {
    let (namespace, name) = (store.namespace().unwrap_or_default(), store.name_any());
    let pause = ctx.pause_after_error(&namespace, &name);
    tracing::warn!(namespace, name, %error, ?pause, "a reconcile failed and is tried again");
    Action::requeue(pause)
}
