//! Samples of the load, taken apart from reconciling so that a busy store does not keep the reconciler busy.
//!
//! The sampler owns `status.usage`, `summary.series` and `summary.disk` under a field manager of its own. It publishes the
//! first sample of a ready store as soon as two looks give a rate, later ones only when two significant digits changed, at
//! most every ten minutes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::{Api, Resource, ResourceExt};
use metricsstore_contract::RuntimeInfo;
use metricsstore_crds::{MetricsStore, MetricsStoreStatus, Usage};
use serde_json::{Value, json};

use crate::context::Context;
use crate::controller::Guarded;
use crate::error::Error;
use crate::plan::{names, rollout, settle};

/// How often stores are looked at: the second look is well within 30 s of Ready.
const TICK: Duration = Duration::from_secs(8);
/// How often a changed sample is published.
const PUBLISH: Duration = Duration::from_mins(10);
const FIELD_MANAGER: &str = "metricsstore-operator-usage";

/// What is remembered of a store between two looks.
#[derive(Default)]
struct History {
    published: Option<Instant>,
    /// When the samples below were counted, and how many each pod had acknowledged.
    counted: Option<(Instant, HashMap<String, u64>)>,
}

/// Samples for ever; the caller drops it.
pub async fn run(ctx: Context, stores: Store<Guarded>) {
    let mut histories: HashMap<String, History> = HashMap::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let stores = stores.state();
        ctx.metrics.stores(stores.len());
        let live: Vec<MetricsStore> =
            stores.iter().filter_map(|store| store.0.as_ref().ok().cloned()).collect();
        histories.retain(|uid, _| live.iter().any(|store| store.metadata.uid.as_ref() == Some(uid)));
        for store in live {
            let history = histories.entry(store.uid().unwrap_or_default()).or_default();
            if let Err(error) = sample(&ctx, &store, history).await {
                tracing::info!(store = %store.name_any(), %error, "no sample was taken");
            }
        }
    }
}

async fn sample(ctx: &Context, store: &MetricsStore, history: &mut History) -> Result<(), Error> {
    let before = store.status.clone().unwrap_or_default();
    let due = history.published.is_none_or(|at| at.elapsed() >= PUBLISH);
    let ready = before.ready_replicas.unwrap_or(0) > 0;
    if !ready {
        history.counted = None;
        // Figures of a store that sleeps are no figures.
        return if before.replicas == Some(0) && before.usage.is_some() {
            publish(ctx, store, None).await
        } else {
            Ok(())
        };
    }
    if !due {
        return Ok(());
    }
    let infos = ask(ctx, store).await?;
    let Some(usage) = usage(&infos, history) else { return Ok(()) };
    if usage.samples_per_second.is_none() {
        // The first look has nothing to compare with; the next one, in a few seconds, has.
        return Ok(());
    }
    let disk = fullest(&infos);
    let found = before.summary.as_ref().and_then(|summary| summary.disk.clone());
    if before.usage.as_ref() == Some(&usage) && found == disk {
        // Looked at, nothing new: the next look is due in ten minutes.
        history.published = Some(Instant::now());
        return Ok(());
    }
    publish(ctx, store, Some((usage, disk))).await?;
    history.published = Some(Instant::now());
    Ok(())
}

async fn ask(ctx: &Context, store: &MetricsStore) -> Result<HashMap<String, RuntimeInfo>, Error> {
    let name = store.name_any();
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &store.namespace().unwrap_or_default());
    let own = ListParams::default().labels(&format!("{}={name}", names::STORE_LABEL));
    let pods = api.list(&own).await.map_err(Error::read("pods of", &name))?.items;
    let asked = pods.iter().filter(|pod| rollout::is_ready(pod)).filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.clone()?;
        let key = pod.uid().unwrap_or_default();
        Some(async move { Some((key, ctx.engines.runtime_info(&address).await.ok()?)) })
    });
    Ok(join_all(asked).await.into_iter().flatten().collect())
}

/// The figures of the busiest replica, two significant digits.
fn usage(infos: &HashMap<String, RuntimeInfo>, history: &mut History) -> Option<Usage> {
    let most = |figure: fn(&RuntimeInfo) -> u64| {
        let most = infos.values().map(figure).max()?;
        i64::try_from(settle::two_digits(most)).ok()
    };
    let series = most(|info| info.series_count)?;
    let now = Instant::now();
    let counts: HashMap<String, u64> =
        infos.iter().map(|(pod, info)| (pod.clone(), info.samples_appended)).collect();
    let rate = history.counted.as_ref().and_then(|(at, before)| rate(before, &counts, now - *at));
    history.counted = Some((now, counts));
    Some(Usage {
        series: Some(series),
        samples_per_second: rate,
        memory_bytes: most(|info| info.memory_used_bytes),
        disk_bytes: most(|info| info.disk.data_bytes),
    })
}

/// Samples per second of the busiest pod that was there at both times; a restarted engine counts from zero and is left out.
fn rate(before: &HashMap<String, u64>, now: &HashMap<String, u64>, between: Duration) -> Option<i64> {
    let millis = u64::try_from(between.as_millis()).ok().filter(|millis| *millis > 0)?;
    let grown = now.iter().filter_map(|(pod, count)| count.checked_sub(*before.get(pod)?)).max()?;
    i64::try_from(settle::two_digits(grown.saturating_mul(1000) / millis)).ok()
}

/// How full the fullest volume is.
fn fullest(infos: &HashMap<String, RuntimeInfo>) -> Option<String> {
    let shares = infos.values().filter(|info| info.disk.total_bytes > 0);
    let share =
        shares.map(|info| info.disk.used_bytes.saturating_mul(100).div_ceil(info.disk.total_bytes)).max()?;
    Some(format!("{share}%"))
}

async fn publish(
    ctx: &Context,
    store: &MetricsStore,
    sample: Option<(Usage, Option<String>)>,
) -> Result<(), Error> {
    let name = store.name_any();
    let api: Api<MetricsStore> = Api::namespaced(ctx.client.clone(), &store.namespace().unwrap_or_default());
    let params = PatchParams::apply(FIELD_MANAGER).force();
    ctx.metrics.wrote("MetricsStore");
    match api.patch_status(&name, &params, &Patch::Apply(&patch(store, sample))).await {
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        other => other.map(drop).map_err(Error::write("usage of MetricsStore", &name)),
    }
}

fn patch(store: &MetricsStore, sample: Option<(Usage, Option<String>)>) -> Value {
    let status = sample.map_or_else(MetricsStoreStatus::default, |(usage, disk)| {
        let series = usage.series.and_then(|series| u64::try_from(series).ok()).map(settle::short);
        MetricsStoreStatus {
            usage: Some(usage),
            summary: Some(metricsstore_crds::Summary { series, disk, ..Default::default() }),
            ..MetricsStoreStatus::default()
        }
    });
    json!({
        "apiVersion": MetricsStore::api_version(&()),
        "kind": MetricsStore::kind(&()),
        "metadata": { "name": store.name_any(), "uid": store.metadata.uid },
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infos(series: u64, samples: u64) -> HashMap<String, RuntimeInfo> {
        let info = RuntimeInfo { series_count: series, samples_appended: samples, ..RuntimeInfo::default() };
        [("pod".to_owned(), info)].into()
    }

    #[test]
    fn the_first_sample_has_no_rate_and_the_second_has() {
        let mut history = History::default();
        let first = usage(&infos(1_234, 100), &mut history).unwrap();
        assert_eq!((first.series, first.samples_per_second), (Some(1_200), None));
        history.counted =
            history.counted.map(|(at, counts)| (at.checked_sub(Duration::from_secs(10)).unwrap(), counts));
        let second = usage(&infos(1_234, 10_100), &mut history).unwrap();
        assert_eq!(second.samples_per_second, Some(1_000));
    }

    #[test]
    fn a_restarted_engine_gives_no_negative_rate() {
        let counts = |count| [("pod".to_owned(), count)].into();
        assert_eq!(rate(&counts(500), &counts(3), Duration::from_secs(1)), None);
    }

    #[test]
    fn nobody_answering_is_no_sample() {
        assert_eq!(usage(&HashMap::new(), &mut History::default()), None);
    }
}
