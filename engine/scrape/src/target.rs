//! From a job's configuration to the targets it scrapes.
use std::fmt::Write as _;
use std::time::Duration;

use metricsstore_contract::PromDuration;
use metricsstore_model::{LabelBuf, RawKeyHasher};
use url::form_urlencoded;

use crate::ScrapeConfig;
use crate::relabel::relabel;

const ADDRESS: &str = "__address__";
const SCHEME: &str = "__scheme__";
const METRICS_PATH: &str = "__metrics_path__";
const SCRAPE_INTERVAL: &str = "__scrape_interval__";
const SCRAPE_TIMEOUT: &str = "__scrape_timeout__";
const PARAM_PREFIX: &str = "__param_";
const META_PREFIX: &str = "__meta_";
const RESERVED_PREFIX: &str = "__";
const JOB: &str = "job";
const INSTANCE: &str = "instance";

/// Something to scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Names the target: the same labels and URL have the same number, in every process.
    pub(crate) id: u64,
    /// Labels before relabelling.
    pub(crate) discovered: LabelBuf,
    /// Labels that its series get, sorted.
    pub(crate) labels: LabelBuf,
    /// What is requested.
    pub(crate) url: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// Why a target of the configuration cannot be scraped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("target has no address")]
    NoAddress,
    #[error("{0:?} is not a valid host:port address")]
    Address(String),
    #[error("scheme {0:?} is neither http nor https")]
    Scheme(String),
    #[error("{label} {text:?} is not a duration above 0")]
    Duration { label: &'static str, text: String },
    #[error("scrape timeout {timeout} is greater than the scrape interval {interval}")]
    Timeout { timeout: String, interval: String },
}

/// What became of the targets of a job.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// To be scraped, each once.
    pub(crate) active: Vec<Target>,
    /// Labels, before relabelling, of those that relabelling dropped.
    pub(crate) dropped: Vec<LabelBuf>,
    /// Those that cannot be scraped, with their address.
    pub(crate) failed: Vec<(String, TargetError)>,
}

/// All targets of a job.
pub(crate) fn resolve(config: &ScrapeConfig) -> Resolved {
    let mut resolved = Resolved::default();
    for group in &config.static_configs {
        for address in &group.targets {
            let discovered = discovered_labels(config, address, &group.labels);
            let mut labels = discovered.clone();
            if !relabel(&config.relabel_configs, &mut labels) || labels.is_empty() {
                resolved.dropped.push(discovered);
                continue;
            }
            match target(config, discovered, labels) {
                Ok(target) if resolved.active.iter().any(|other| other.id == target.id) => {}
                Ok(target) => resolved.active.push(target),
                Err(error) => resolved.failed.push((address.clone(), error)),
            }
        }
    }
    resolved
}

fn discovered_labels(config: &ScrapeConfig, address: &str, group: &[(String, String)]) -> LabelBuf {
    let mut labels = LabelBuf::new();
    labels.set(ADDRESS, address);
    for (name, value) in group {
        if name != ADDRESS {
            labels.set(name, value);
        }
    }
    let interval = config.scrape_interval.to_string();
    let timeout = config.scrape_timeout.to_string();
    let defaults = [
        (JOB, config.job_name.as_str()),
        (SCRAPE_INTERVAL, &interval),
        (SCRAPE_TIMEOUT, &timeout),
        (METRICS_PATH, &config.metrics_path),
        (SCHEME, &config.scheme),
    ];
    for (name, value) in defaults {
        if labels.get(name).is_none() {
            labels.set(name, value);
        }
    }
    for (name, values) in &config.params {
        let label = format!("{PARAM_PREFIX}{name}");
        if let (Some(value), None) = (values.first(), labels.get(&label)) {
            labels.set(&label, value);
        }
    }
    labels.sort();
    labels
}

fn target(config: &ScrapeConfig, discovered: LabelBuf, mut labels: LabelBuf) -> Result<Target, TargetError> {
    let address = labels.get(ADDRESS).ok_or(TargetError::NoAddress)?.to_owned();
    if address.contains(['/', ' ', '?', '#', '@']) {
        return Err(TargetError::Address(address));
    }
    let (interval, interval_text) = duration(&labels, SCRAPE_INTERVAL)?;
    let (timeout, timeout_text) = duration(&labels, SCRAPE_TIMEOUT)?;
    if timeout > interval {
        return Err(TargetError::Timeout { timeout: timeout_text, interval: interval_text });
    }
    let url = url(config, &labels, &address)?;
    if labels.get(INSTANCE).is_none() {
        labels.set(INSTANCE, &address);
    }
    labels.retain(|name, _| !name.starts_with(META_PREFIX) && !name.starts_with(RESERVED_PREFIX));
    labels.sort();
    let id = RawKeyHasher::new(0, b"target").key(format!("{labels}{url}").as_bytes()).0 as u64;
    Ok(Target { id, discovered, labels, url, interval, timeout })
}

fn duration(labels: &LabelBuf, label: &'static str) -> Result<(Duration, String), TargetError> {
    let text = labels.get(label).unwrap_or("");
    match PromDuration::parse(text) {
        Ok(duration) if duration.ms() > 0 => {
            Ok((Duration::from_millis(duration.ms() as u64), text.to_owned()))
        }
        _ => Err(TargetError::Duration { label, text: text.to_owned() }),
    }
}

fn url(config: &ScrapeConfig, labels: &LabelBuf, address: &str) -> Result<String, TargetError> {
    let scheme = labels.get(SCHEME).unwrap_or("");
    if scheme != "http" && scheme != "https" {
        return Err(TargetError::Scheme(scheme.to_owned()));
    }
    let mut params = config.params.clone();
    for (label, value) in labels.iter() {
        let Some(name) = label.strip_prefix(PARAM_PREFIX) else { continue };
        match params.iter_mut().find(|(other, _)| other == name) {
            Some((_, values)) if !values.is_empty() => value.clone_into(&mut values[0]),
            Some((_, values)) => values.push(value.to_owned()),
            None => params.push((name.to_owned(), vec![value.to_owned()])),
        }
    }
    params.sort_by(|a, b| a.0.cmp(&b.0));
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, values) in &params {
        for value in values {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    let path = labels.get(METRICS_PATH).unwrap_or("");
    let mut url = format!("{scheme}://{address}");
    if !path.starts_with('/') && !path.is_empty() {
        url.push('/');
    }
    push_path(path, &mut url);
    if !query.is_empty() {
        url.push('?');
        url.push_str(&query);
    }
    Ok(url)
}

/// Escapes what may not stand in a path.
fn push_path(path: &str, url: &mut String) {
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => url.push(byte as char),
            b'-' | b'_' | b'.' | b'~' | b'/' | b'$' | b'&' | b'+' | b',' | b':' | b';' | b'=' | b'@' => {
                url.push(byte as char);
            }
            _ => {
                let _ = write!(url, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Resolved, TargetError, resolve};
    use crate::{Action, RelabelConfig, RelabelRegex, ScrapeConfig, TargetGroup};

    fn job(addresses: &[&str], labels: &[(&str, &str)]) -> ScrapeConfig {
        let mut config = ScrapeConfig::new("node");
        config.static_configs.push(TargetGroup {
            targets: addresses.iter().map(|&a| a.to_owned()).collect(),
            labels: labels.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect(),
        });
        config
    }

    fn only(resolved: &Resolved) -> (String, String) {
        assert_eq!((resolved.active.len(), resolved.dropped.len(), resolved.failed.len()), (1, 0, 0));
        (resolved.active[0].labels.to_string(), resolved.active[0].url.clone())
    }

    #[test]
    fn a_target_has_job_and_instance_and_keeps_no_reserved_label() {
        let resolved = resolve(&job(&["db:9100"], &[("env", "prod"), ("__meta_x", "y")]));
        let (labels, url) = only(&resolved);
        assert_eq!(labels, r#"{env="prod", instance="db:9100", job="node"}"#);
        assert_eq!(url, "http://db:9100/metrics");
        assert_eq!(
            resolved.active[0].discovered.to_string(),
            r#"{__address__="db:9100", __meta_x="y", __metrics_path__="/metrics", __scheme__="http", __scrape_interval__="1m", __scrape_timeout__="10s", env="prod", job="node"}"#
        );
    }

    #[test]
    fn path_scheme_parameters_and_times_can_come_from_labels() {
        let mut config = job(
            &["db:1"],
            &[
                ("__metrics_path__", "/a b"),
                ("__scheme__", "https"),
                ("__scrape_interval__", "5s"),
                ("__scrape_timeout__", "500ms"),
                ("__param_module", "tcp"),
            ],
        );
        config.params =
            vec![("module".into(), vec!["http".into(), "dns".into()]), ("a".into(), vec!["&".into()])];
        let resolved = resolve(&config);
        let (_, url) = only(&resolved);
        assert_eq!(url, "https://db:1/a%20b?a=%26&module=tcp&module=dns");
        assert_eq!(resolved.active[0].interval.as_millis(), 5000);
        assert_eq!(resolved.active[0].timeout.as_millis(), 500);
    }

    #[test]
    fn relabelling_drops_and_moves_targets() {
        let mut config = job(&["a:1", "b:1"], &[]);
        let mut keep = RelabelConfig::new(Action::Keep).unwrap();
        keep.source_labels = vec!["__address__".into()];
        keep.regex = RelabelRegex::new("a:.*").unwrap();
        let mut port = RelabelConfig::new(Action::Replace).unwrap();
        port.source_labels = vec!["__address__".into()];
        port.regex = RelabelRegex::new("(.*):1").unwrap();
        port.target_label = "__address__".into();
        port.replacement = "${1}:2".into();
        config.relabel_configs = vec![keep, port];
        let resolved = resolve(&config);
        assert_eq!(resolved.active[0].url, "http://a:2/metrics");
        assert_eq!(resolved.active[0].labels.get("instance"), Some("a:2"));
        assert_eq!(resolved.dropped[0].get("__address__"), Some("b:1"));
    }

    #[test]
    fn a_repeated_target_is_scraped_once_and_a_bad_one_says_why() {
        assert_eq!(resolve(&job(&["a:1", "a:1"], &[])).active.len(), 1);
        let failure = |address: &str, labels: &[(&str, &str)]| {
            resolve(&job(&[address], labels)).failed.pop().map(|(_, error)| error)
        };
        assert_eq!(failure("http://a:1/x", &[]), Some(TargetError::Address("http://a:1/x".into())));
        assert_eq!(failure("a:1", &[("__scheme__", "ftp")]), Some(TargetError::Scheme("ftp".into())));
        assert!(matches!(
            failure("a:1", &[("__scrape_interval__", "1s")]),
            Some(TargetError::Timeout { .. })
        ));
        assert!(matches!(
            failure("a:1", &[("__scrape_timeout__", "0s")]),
            Some(TargetError::Duration { .. })
        ));
    }
}
