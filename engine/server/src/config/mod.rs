//! Prometheus' configuration: what a file says ([`Config`]), and what is in force ([`load`]).
mod http;
pub mod load;
mod relabel;
mod scrape;
pub mod yaml;

use std::path::{Path, PathBuf};

use metricsstore_contract::PromDuration;
use metricsstore_scrape::{ScrapeConfig, ScrapeProtocol, TargetGroup};

use crate::retention::{Retention, parse_percentage, parse_size};
use yaml::{ConfigError, Node, Section};

/// The job under which an engine without configuration scrapes itself.
const SELF_JOB: &str = "metricsstore";

/// What holds for all jobs that do not say otherwise.
#[derive(Debug, Clone)]
pub struct Global {
    scrape_interval: PromDuration,
    scrape_timeout: PromDuration,
    /// Default step of subqueries.
    pub evaluation_interval: PromDuration,
    scrape_protocols: Vec<ScrapeProtocol>,
    body_size_limit: u64,
    sample_limit: u64,
    target_limit: u64,
    label_limit: u64,
    label_name_length_limit: u64,
    label_value_length_limit: u64,
    keep_dropped_targets: u64,
}

impl Default for Global {
    fn default() -> Global {
        let minute = PromDuration::from_ms(60_000);
        Global {
            scrape_interval: minute,
            scrape_timeout: PromDuration::from_ms(10_000),
            evaluation_interval: minute,
            scrape_protocols: ScrapeProtocol::DEFAULT.to_vec(),
            body_size_limit: 0,
            sample_limit: 0,
            target_limit: 0,
            label_limit: 0,
            label_name_length_limit: 0,
            label_value_length_limit: 0,
            keep_dropped_targets: 0,
        }
    }
}

/// One configuration file.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Settings for all jobs.
    pub global: Global,
    /// The jobs of this file.
    pub jobs: Vec<ScrapeConfig>,
    /// `storage.tsdb.out_of_order_time_window`; 0 accepts nothing out of order.
    pub out_of_order_window: PromDuration,
    /// `storage.exemplars.max_exemplars`; `None` where it is not set.
    pub max_exemplars: Option<usize>,
    /// `storage.tsdb.retention`; `None` where it is not set.
    pub retention: Option<Retention>,
    /// Further files with jobs, as patterns, resolved against the file's directory.
    pub scrape_config_files: Vec<PathBuf>,
    /// The file as it may be shown: without secrets.
    pub shown: String,
}

impl Config {
    /// No file at all: the engine scrapes itself at `address`.
    pub fn scraping_itself(address: &str, metrics_path: &str) -> Config {
        let mut job = ScrapeConfig::new(SELF_JOB);
        job.scrape_interval = PromDuration::from_ms(15_000);
        metrics_path.clone_into(&mut job.metrics_path);
        job.static_configs = vec![TargetGroup { targets: vec![address.to_owned()], labels: Vec::new() }];
        Config { jobs: vec![job], ..Config::default() }
    }

    /// Reads the main file.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let root = Node::parse(&path.display().to_string(), text)?;
        let top = root.section(
            &["global", "scrape_configs", "scrape_config_files", "storage", "runtime"],
            &["rule_files", "alerting", "remote_write", "remote_read", "tracing", "otlp"],
        )?;
        let global = top.read("global", read_global)?.unwrap_or_default();
        let storage = top.read("storage", read_storage)?.unwrap_or_default();
        top.read("runtime", |node| node.section(&["gogc"], &["log_level"]).map(|_| ()))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let jobs = top.read("scrape_configs", |node| scrape::jobs(node, &global, dir))?.unwrap_or_default();
        let scrape_config_files = match top.get("scrape_config_files") {
            None => Vec::new(),
            Some(list) => list
                .list()?
                .iter()
                .map(|item| Ok(dir.join(item.text()?)))
                .collect::<Result<_, ConfigError>>()?,
        };
        Ok(Config {
            global,
            jobs,
            out_of_order_window: storage.out_of_order_window,
            max_exemplars: storage.max_exemplars,
            retention: storage.retention,
            scrape_config_files,
            shown: root.shown(),
        })
    }

    /// Reads the jobs of a file that `scrape_config_files` names.
    pub fn parse_jobs(&self, path: &Path, text: &str) -> Result<Vec<ScrapeConfig>, ConfigError> {
        let root = Node::parse(&path.display().to_string(), text)?;
        let dir = path.parent().unwrap_or(Path::new(""));
        // A bare list of jobs is understood too: that is how jobs are handed around.
        if root.list().is_ok() {
            return scrape::jobs(&root, &self.global, dir);
        }
        let top = root.section(&["scrape_configs"], &[])?;
        Ok(top.read("scrape_configs", |node| scrape::jobs(node, &self.global, dir))?.unwrap_or_default())
    }
}

fn read_global(node: &Node) -> Result<Global, ConfigError> {
    let section = node.section(
        &[
            "scrape_interval",
            "scrape_timeout",
            "evaluation_interval",
            "external_labels",
            "scrape_protocols",
            "body_size_limit",
            "sample_limit",
            "target_limit",
            "label_limit",
            "label_name_length_limit",
            "label_value_length_limit",
            "keep_dropped_targets",
            "metric_name_validation_scheme",
            "scrape_native_histograms",
            "convert_classic_histograms_to_nhcb",
            "always_scrape_classic_histograms",
            "extra_scrape_metrics",
        ],
        &[
            "rule_query_offset",
            "query_log_file",
            "query_max_series",
            "query_max_samples_read",
            "query_max_duration",
            "scrape_failure_log_file",
            "metric_name_escaping_scheme",
        ],
    )?;
    scrape::check_unsupported_values(&section)?;
    // External labels are for what leaves the engine, which nothing does yet; they are checked and shown.
    section.read("external_labels", Node::text_pairs)?;
    let defaults = Global::default();
    let interval = section.read("scrape_interval", duration)?.unwrap_or(defaults.scrape_interval);
    let timeout = section.read("scrape_timeout", duration)?;
    if let Some(given) = section.get("scrape_timeout").filter(|_| timeout.is_some_and(|t| t > interval)) {
        return Err(given.error("global scrape timeout greater than scrape interval"));
    }
    Ok(Global {
        scrape_interval: interval,
        scrape_timeout: timeout.unwrap_or(defaults.scrape_timeout.min(interval)),
        evaluation_interval: section
            .read("evaluation_interval", duration)?
            .unwrap_or(defaults.evaluation_interval),
        scrape_protocols: section
            .read("scrape_protocols", scrape::protocols)?
            .unwrap_or(defaults.scrape_protocols),
        body_size_limit: section.read("body_size_limit", scrape::bytes)?.unwrap_or_default(),
        sample_limit: section.read("sample_limit", Node::number)?.unwrap_or_default(),
        target_limit: section.read("target_limit", Node::number)?.unwrap_or_default(),
        label_limit: section.read("label_limit", Node::number)?.unwrap_or_default(),
        label_name_length_limit: section.read("label_name_length_limit", Node::number)?.unwrap_or_default(),
        label_value_length_limit: section.read("label_value_length_limit", Node::number)?.unwrap_or_default(),
        keep_dropped_targets: section.read("keep_dropped_targets", Node::number)?.unwrap_or_default(),
    })
}

/// A duration that is longer than nothing.
fn duration(node: &Node) -> Result<PromDuration, ConfigError> {
    let duration = node.parsed(PromDuration::parse)?;
    if duration.ms() == 0 {
        return Err(node.error("must be longer than nothing"));
    }
    Ok(duration)
}

/// The section `storage`.
#[derive(Default)]
struct Storage {
    out_of_order_window: PromDuration,
    max_exemplars: Option<usize>,
    retention: Option<Retention>,
}

fn read_storage(node: &Node) -> Result<Storage, ConfigError> {
    let section = node.section(&["tsdb", "exemplars"], &[])?;
    let tsdb = section.read("tsdb", |node| {
        let tsdb = node.section(
            &["out_of_order_time_window", "retention"],
            &["stale_series_compaction_threshold", "chunk_encoding"],
        )?;
        let window = tsdb.read("out_of_order_time_window", |node| node.parsed(PromDuration::parse))?;
        Ok((window.unwrap_or_default(), tsdb.read("retention", read_retention)?))
    })?;
    let (out_of_order_window, retention) = tsdb.unwrap_or_default();
    let exemplars = section.read("exemplars", |node| {
        // Nothing and less turn them off.
        let number = |node: &Node| node.parsed(str::parse::<i64>).map(|number| number.max(0) as usize);
        node.section(&["max_exemplars"], &[])?.read("max_exemplars", number)
    })?;
    Ok(Storage { out_of_order_window, max_exemplars: exemplars.flatten(), retention })
}

/// Where there is a section, it says everything: what it leaves out bounds nothing.
fn read_retention(node: &Node) -> Result<Retention, ConfigError> {
    let section = node.section(&["time", "size", "percentage"], &[])?;
    let time = section.read("time", |node| node.parsed(PromDuration::parse))?;
    let size = section.read("size", |node| node.parsed(parse_size))?;
    let percentage = section.read("percentage", |node| node.parsed(parse_percentage))?;
    Ok(Retention {
        time_ms: time.map(PromDuration::ms).filter(|ms| *ms > 0),
        bytes: size.flatten(),
        percentage: percentage.flatten(),
        volume_bytes: None,
    })
}

/// An error when a key has another value than those that change nothing.
fn unless_default(section: &Section<'_>, key: &str, defaults: &[&str]) -> Result<(), ConfigError> {
    match section.get(key) {
        Some(node) if !node.is_empty() && !defaults.contains(&node.text()?) => Err(node.error(format!(
            "{key}: {} is not supported in this version; remove it or write {}",
            node.text()?,
            defaults.first().copied().unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}
