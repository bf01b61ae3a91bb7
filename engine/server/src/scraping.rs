//! The scraper's place in the server: started once the store is open, shown by the API.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use metricsstore_budget::Level;
use metricsstore_model::{LabelBuf, Metadata};
use metricsstore_scrape::{ActiveTarget, ScrapeConfig, ScrapeManager, ScrapeOptions, Targets};
use metricsstore_storage::Store;
use serde::Serialize;

use crate::app::{App, rfc3339};
use crate::http::params::Params;
use crate::http::reply::{ApiError, ErrorType, Reply, success};
use crate::metrics::Page;

/// What Go prints for a time that never was.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The scraper, once it runs.
#[derive(Default)]
pub struct Scraping {
    manager: OnceLock<ScrapeManager>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ActiveJson<'t> {
    discovered_labels: BTreeMap<&'t str, &'t str>,
    labels: BTreeMap<&'t str, &'t str>,
    scrape_pool: &'t str,
    scrape_url: &'t str,
    global_url: String,
    last_error: &'t str,
    last_scrape: String,
    last_scrape_duration: f64,
    health: &'static str,
    scrape_interval: String,
    scrape_timeout: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DroppedJson<'t> {
    discovered_labels: BTreeMap<&'t str, &'t str>,
    scrape_pool: &'t str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetsJson<'t> {
    active_targets: Vec<ActiveJson<'t>>,
    dropped_targets: Vec<DroppedJson<'t>>,
    dropped_target_counts: Option<&'t BTreeMap<String, u64>>,
}

#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct MetadataJson<'m> {
    #[serde(rename = "type")]
    kind: &'static str,
    help: &'m str,
    unit: &'m str,
}

fn pairs(labels: &LabelBuf) -> BTreeMap<&str, &str> {
    labels.iter().collect()
}

impl Scraping {
    /// Starts scraping into the store. Must be called on a tokio runtime.
    pub fn start(&self, app: &Arc<App>, store: Arc<Store>, process_key: u64) {
        let weak = Arc::downgrade(app);
        let options = ScrapeOptions {
            offset_seed: seed_of(&app.memory.hostname),
            skip_scrapes: Arc::new(move || {
                weak.upgrade().is_some_and(|app| app.memory.level() >= Level::RefuseWrites)
            }),
            budget: app.budget.clone(),
            pages_at_once: app.threads() as usize,
            ..ScrapeOptions::new(process_key)
        };
        self.manager.get_or_init(|| ScrapeManager::new(store, options));
    }

    /// Scrapes these jobs from now on.
    pub fn apply(&self, jobs: Vec<ScrapeConfig>) {
        if let Some(manager) = self.manager.get() {
            manager.apply(jobs);
        }
    }

    /// Ends all scrapes.
    pub async fn stop(&self) {
        if let Some(manager) = self.manager.get() {
            manager.stop().await;
        }
    }

    fn targets(&self) -> Targets {
        self.manager.get().map(ScrapeManager::targets).unwrap_or_default()
    }

    /// `GET /api/v1/targets`.
    pub fn targets_reply(&self, external_url: &str, state: &str, pool: &str) -> Reply {
        let targets = self.targets();
        let state = state.to_ascii_lowercase();
        let any = matches!(state.as_str(), "" | "any");
        let (show_active, show_dropped) = (any || state == "active", any || state == "dropped");
        let in_pool = |of: &str| pool.is_empty() || pool == of;
        let active = targets.active.iter().filter(|target| show_active && in_pool(&target.scrape_pool));
        let dropped = targets.dropped.iter().filter(|target| show_dropped && in_pool(&target.scrape_pool));
        success(&TargetsJson {
            active_targets: active.map(|target| active_json(target, external_url)).collect(),
            dropped_targets: dropped
                .map(|target| DroppedJson {
                    discovered_labels: pairs(&target.discovered_labels),
                    scrape_pool: &target.scrape_pool,
                })
                .collect(),
            dropped_target_counts: show_dropped.then_some(&targets.dropped_counts),
        })
    }

    /// `GET /api/v1/scrape_pools`.
    pub fn pools_reply(&self) -> Reply {
        let targets = self.targets();
        success(&BTreeMap::from([("scrapePools", targets.dropped_counts.keys().collect::<Vec<_>>())]))
    }

    /// `GET /api/v1/metadata`: what targets say, and what came with remote write.
    pub fn metadata_reply(&self, params: &Params, written: &[Metadata]) -> Reply {
        let number = |name: &str| match params.get(name) {
            "" => Ok(usize::MAX),
            text => match text.parse::<i64>() {
                Ok(number) => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
                Err(_) => Err(ApiError::new(ErrorType::BadData, format!("{name} must be a number"))),
            },
        };
        let (limit, per_metric) = match (number("limit"), number("limit_per_metric")) {
            (Ok(limit), Ok(0)) => (limit, usize::MAX),
            (Ok(limit), Ok(per_metric)) => (limit, per_metric),
            (Err(error), _) | (_, Err(error)) => return error.into_reply(),
        };
        let metric = params.get("metric");
        let all = self.manager.get().map(ScrapeManager::metadata).unwrap_or_default();
        let mut families: BTreeMap<&str, BTreeSet<MetadataJson<'_>>> = BTreeMap::new();
        for (name, statements) in &all {
            let statements = statements.iter().map(|metadata| MetadataJson {
                kind: metadata.kind.name(),
                help: &metadata.help,
                unit: &metadata.unit,
            });
            families.entry(name).or_default().extend(statements);
        }
        for metadata in written {
            families.entry(&metadata.family).or_default().insert(MetadataJson {
                kind: metadata.kind.name(),
                help: &metadata.help,
                unit: &metadata.unit,
            });
        }
        let shown: BTreeMap<&str, Vec<MetadataJson<'_>>> = families
            .into_iter()
            .filter(|(name, _)| metric.is_empty() || metric == *name)
            .take(limit)
            .map(|(name, statements)| (name, statements.into_iter().take(per_metric).collect()))
            .collect();
        success(&shown)
    }

    /// The scraper's own families.
    pub fn metrics(&self, page: &mut Page) {
        let Some(manager) = self.manager.get() else { return };
        let stats = manager.stats();
        page.family("metricsstore_scrapes_total", "counter", "Scrapes by what became of them.");
        for (result, count) in [
            ("succeeded", stats.scrapes_succeeded),
            ("failed", stats.scrapes_failed),
            ("skipped", stats.scrapes_skipped),
            ("append_failed", stats.appends_failed),
        ] {
            page.sample("", &[("result", result)], count as f64);
        }
        page.counter(
            "metricsstore_scrape_samples_total",
            "Samples scraped and written.",
            stats.samples_written,
        );
        for (name, help, count) in [
            (
                "prometheus_target_scrapes_sample_out_of_order_total",
                "Samples rejected due to not being in the expected order.",
                stats.refused_out_of_order,
            ),
            (
                "prometheus_target_scrapes_sample_duplicate_timestamp_total",
                "Samples rejected due to duplicate timestamps but different values.",
                stats.refused_duplicate,
            ),
            (
                "prometheus_target_scrapes_sample_out_of_bounds_total",
                "Samples rejected due to timestamp falling outside of the time bounds.",
                stats.refused_out_of_bounds,
            ),
            (
                "metricsstore_scrape_series_refused_total",
                "Scraped series refused because memory is short.",
                stats.refused_series_budget,
            ),
        ] {
            page.counter(name, help, count);
        }
    }
}

fn active_json<'t>(target: &'t ActiveTarget, external_url: &str) -> ActiveJson<'t> {
    ActiveJson {
        discovered_labels: pairs(&target.discovered_labels),
        labels: pairs(&target.labels),
        scrape_pool: &target.scrape_pool,
        scrape_url: &target.scrape_url,
        global_url: global_url(&target.scrape_url, external_url),
        last_error: &target.last_error,
        last_scrape: target.last_scrape_ms.map_or_else(|| NEVER.to_owned(), rfc3339),
        last_scrape_duration: target.last_scrape_duration.as_secs_f64(),
        health: target.health.name(),
        scrape_interval: shown(target.scrape_interval),
        scrape_timeout: shown(target.scrape_timeout),
    }
}

fn shown(duration: std::time::Duration) -> String {
    metricsstore_contract::PromDuration::from_ms(duration.as_millis() as i64).to_string()
}

/// The page's address for somebody elsewhere: a loopback host becomes the host of `--web.external-url`.
fn global_url(scrape_url: &str, external_url: &str) -> String {
    let (Ok(mut url), Ok(external)) = (url::Url::parse(scrape_url), url::Url::parse(external_url)) else {
        return scrape_url.to_owned();
    };
    let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    if is_local && url.set_host(external.host_str()).is_err() {
        return scrape_url.to_owned();
    }
    url.to_string()
}

/// The same for one machine after every start.
fn seed_of(hostname: &str) -> u64 {
    u64::from_str_radix(&metricsstore_contract::content_hash(hostname.as_bytes()), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::global_url;

    #[test]
    fn a_loopback_target_is_shown_under_the_external_host() {
        let external = "https://prom.example.org/x";
        assert_eq!(
            global_url("http://localhost:9090/metrics", external),
            "http://prom.example.org:9090/metrics"
        );
        assert_eq!(global_url("http://10.0.0.1:1/m", external), "http://10.0.0.1:1/m");
        assert_eq!(global_url("http://localhost:1/m", ""), "http://localhost:1/m");
    }
}
