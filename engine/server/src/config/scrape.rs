//! `scrape_configs`.
use std::path::Path;

use metricsstore_scrape::{ScrapeConfig, ScrapeProtocol, TargetGroup};

use super::yaml::{ConfigError, Node, Section};
use super::{Global, duration, http, relabel, unless_default};

const KEYS: &[&str] = &[
    "job_name",
    "honor_labels",
    "honor_timestamps",
    "track_timestamps_staleness",
    "params",
    "scrape_interval",
    "scrape_timeout",
    "scrape_protocols",
    "fallback_scrape_protocol",
    "scrape_native_histograms",
    "always_scrape_classic_histograms",
    "convert_classic_histograms_to_nhcb",
    "extra_scrape_metrics",
    "metric_name_validation_scheme",
    "metrics_path",
    "scheme",
    "enable_compression",
    "body_size_limit",
    "sample_limit",
    "target_limit",
    "label_limit",
    "label_name_length_limit",
    "label_value_length_limit",
    "keep_dropped_targets",
    "static_configs",
    "relabel_configs",
    "metric_relabel_configs",
];

const LATER: &[&str] = &[
    "scrape_failure_log_file",
    "native_histogram_bucket_limit",
    "native_histogram_min_bucket_factor",
    "metric_name_escaping_scheme",
    "aws_sd_configs",
    "azure_sd_configs",
    "consul_sd_configs",
    "digitalocean_sd_configs",
    "dns_sd_configs",
    "docker_sd_configs",
    "dockerswarm_sd_configs",
    "ec2_sd_configs",
    "eureka_sd_configs",
    "file_sd_configs",
    "gce_sd_configs",
    "hetzner_sd_configs",
    "http_sd_configs",
    "ionos_sd_configs",
    "kubernetes_sd_configs",
    "kuma_sd_configs",
    "lightsail_sd_configs",
    "linode_sd_configs",
    "marathon_sd_configs",
    "nerve_sd_configs",
    "nomad_sd_configs",
    "oci_sd_configs",
    "openstack_sd_configs",
    "outscale_sd_configs",
    "ovhcloud_sd_configs",
    "puppetdb_sd_configs",
    "scaleway_sd_configs",
    "serverset_sd_configs",
    "stackit_sd_configs",
    "triton_sd_configs",
    "uyuni_sd_configs",
    "vultr_sd_configs",
];

/// The jobs of a list; names are unique.
pub fn jobs(list: &Node, global: &Global, dir: &Path) -> Result<Vec<ScrapeConfig>, ConfigError> {
    let mut jobs: Vec<ScrapeConfig> = Vec::new();
    for node in list.list()? {
        let job = read_job(node, global, dir)?;
        if jobs.iter().any(|other| other.job_name == job.job_name) {
            return Err(node.error(format!("two scrape configurations have the job name {:?}", job.job_name)));
        }
        jobs.push(job);
    }
    Ok(jobs)
}

fn read_job(node: &Node, global: &Global, dir: &Path) -> Result<ScrapeConfig, ConfigError> {
    let known: Vec<&str> = KEYS.iter().chain(http::KEYS).copied().collect();
    let later: Vec<&str> = LATER.iter().chain(http::LATER).copied().collect();
    let section = node.section(&known, &later)?;
    check_unsupported_values(&section)?;
    let name = section.read("job_name", Node::text)?.unwrap_or_default();
    if name.is_empty() {
        return Err(node.error("job_name is missing or empty"));
    }
    let mut job = ScrapeConfig::new(name);
    intervals(&section, global, &mut job)?;
    limits(&section, global, &mut job)?;
    protocols_of(&section, global, &mut job)?;
    let flag = |key, default| Ok::<_, ConfigError>(section.read(key, Node::boolean)?.unwrap_or(default));
    job.honor_labels = flag("honor_labels", job.honor_labels)?;
    job.honor_timestamps = flag("honor_timestamps", job.honor_timestamps)?;
    job.track_timestamps_staleness = flag("track_timestamps_staleness", job.track_timestamps_staleness)?;
    job.enable_compression = flag("enable_compression", job.enable_compression)?;
    if let Some(path) = section.read("metrics_path", Node::text)?.filter(|path| !path.is_empty()) {
        job.metrics_path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    }
    if let Some(node) = section.get("scheme") {
        job.scheme = match node.text()? {
            scheme @ ("http" | "https") => scheme.to_owned(),
            other => return Err(node.error(format!("unknown scheme {other:?}: write http or https"))),
        };
    }
    job.params = section.read("params", params)?.unwrap_or_default();
    job.static_configs = section.read("static_configs", static_configs)?.unwrap_or_default();
    job.relabel_configs = section.read("relabel_configs", relabel::rules)?.unwrap_or_default();
    job.metric_relabel_configs = section.read("metric_relabel_configs", relabel::rules)?.unwrap_or_default();
    job.http = http::read(&section, dir)?;
    Ok(job)
}

/// Switches of features that are not served yet may be off.
pub fn check_unsupported_values(section: &Section<'_>) -> Result<(), ConfigError> {
    for key in ["scrape_native_histograms", "convert_classic_histograms_to_nhcb", "extra_scrape_metrics"] {
        unless_default(section, key, &["false"])?;
    }
    // Without native histograms every classic one is scraped anyway.
    section.read("always_scrape_classic_histograms", Node::boolean)?;
    unless_default(section, "metric_name_validation_scheme", &["utf8"])
}

fn intervals(section: &Section<'_>, global: &Global, job: &mut ScrapeConfig) -> Result<(), ConfigError> {
    job.scrape_interval = section.read("scrape_interval", duration)?.unwrap_or(global.scrape_interval);
    match section.get("scrape_timeout") {
        Some(node) => {
            job.scrape_timeout = duration(node)?;
            if job.scrape_timeout > job.scrape_interval {
                return Err(node.error(format!(
                    "scrape_timeout {} is longer than scrape_interval {}",
                    job.scrape_timeout, job.scrape_interval
                )));
            }
        }
        None => job.scrape_timeout = global.scrape_timeout.min(job.scrape_interval),
    }
    Ok(())
}

fn limits(section: &Section<'_>, global: &Global, job: &mut ScrapeConfig) -> Result<(), ConfigError> {
    let limit = |key, default| Ok::<_, ConfigError>(section.read(key, Node::number)?.unwrap_or(default));
    job.body_size_limit = section.read("body_size_limit", bytes)?.unwrap_or(global.body_size_limit);
    job.sample_limit = limit("sample_limit", global.sample_limit)?;
    job.target_limit = limit("target_limit", global.target_limit)?;
    job.label_limit = limit("label_limit", global.label_limit)?;
    job.label_name_length_limit = limit("label_name_length_limit", global.label_name_length_limit)?;
    job.label_value_length_limit = limit("label_value_length_limit", global.label_value_length_limit)?;
    job.keep_dropped_targets = limit("keep_dropped_targets", global.keep_dropped_targets)?;
    Ok(())
}

fn protocols_of(section: &Section<'_>, global: &Global, job: &mut ScrapeConfig) -> Result<(), ConfigError> {
    job.scrape_protocols = match section.get("scrape_protocols") {
        Some(node) => protocols(node)?,
        None => global.scrape_protocols.clone(),
    };
    job.fallback_scrape_protocol = section.read("fallback_scrape_protocol", |node| node.parsed(protocol))?;
    Ok(())
}

fn protocol(name: &str) -> Result<ScrapeProtocol, String> {
    ScrapeProtocol::from_name(name).ok_or_else(|| {
        crate::suggest::unknown("scrape protocol", name, ScrapeProtocol::ALL.map(ScrapeProtocol::name))
    })
}

/// A list of scrape protocols, each once, one of them readable.
pub fn protocols(node: &Node) -> Result<Vec<ScrapeProtocol>, ConfigError> {
    let mut all = Vec::new();
    for item in node.list()? {
        let next = item.parsed(protocol)?;
        if all.contains(&next) {
            return Err(item.error(format!("{} stands twice", next.name())));
        }
        all.push(next);
    }
    if !all.iter().any(|protocol| protocol.is_read()) {
        return Err(node.error("none of these formats is read in this version; add PrometheusText0.0.4"));
    }
    Ok(all)
}

/// Bytes with a unit whose step is 1024, as Prometheus reads them: `512`, `10MB`, `1GiB`.
pub fn bytes(node: &Node) -> Result<u64, ConfigError> {
    let text = node.text()?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => Some(0),
        "KB" | "KiB" => Some(10),
        "MB" | "MiB" => Some(20),
        "GB" | "GiB" => Some(30),
        "TB" | "TiB" => Some(40),
        _ => None,
    };
    let value =
        number.parse::<u64>().ok().zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    value.ok_or_else(|| node.error(format!("{text:?} is not a size: write for example 10MB")))
}

fn params(node: &Node) -> Result<Vec<(String, Vec<String>)>, ConfigError> {
    node.pairs()?.iter().map(|(key, values)| Ok((key.text()?.to_owned(), values.texts()?))).collect()
}

fn static_configs(node: &Node) -> Result<Vec<TargetGroup>, ConfigError> {
    node.list()?
        .iter()
        .map(|item| {
            let section = item.section(&["targets", "labels"], &[])?;
            let targets = match section.get("targets") {
                None => Vec::new(),
                Some(list) => {
                    list.list()?.iter().map(target).collect::<Result<Vec<String>, ConfigError>>()?
                }
            };
            let labels = section.read("labels", Node::text_pairs)?.unwrap_or_default();
            Ok(TargetGroup { targets, labels })
        })
        .collect()
}

fn target(node: &Node) -> Result<String, ConfigError> {
    let text = node.text()?;
    if text.is_empty() {
        return Err(node.error("a target has no address"));
    }
    if text.contains('/') {
        return Err(
            node.error(format!("{text:?} is not a valid hostname: write host:port, without scheme or path"))
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use metricsstore_scrape::{Action, Authorization, Pem, Secret};

    use crate::config::Config;

    fn read(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("/etc/ms/scrape.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_takes_what_it_says_and_the_rest_from_the_global_section() {
        let text = r"
global: {scrape_interval: 30s, scrape_timeout: 5s, sample_limit: 7, external_labels: {a: b}}
scrape_configs:
- job_name: api
  scheme: https
  metrics_path: metrics
  scrape_timeout: 20s
  body_size_limit: 10MB
  params: {module: [a, b]}
  authorization: {credentials_file: token}
  tls_config: {ca_file: ../ca.crt, insecure_skip_verify: true}
  static_configs:
  - targets: ['10.0.0.1:6443', h]
    labels: {cluster: x}
  metric_relabel_configs:
  - {source_labels: [__name__], regex: 'go_.*', action: drop}
";
        let config = read(text).unwrap();
        let job = &config.jobs[0];
        assert_eq!((job.scrape_interval.ms(), job.scrape_timeout.ms()), (30_000, 20_000));
        assert_eq!((job.sample_limit, job.body_size_limit), (7, 10 << 20));
        assert_eq!((job.metrics_path.as_str(), job.scheme.as_str()), ("/metrics", "https"));
        assert_eq!(job.params, [("module".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        let token = Secret::File(PathBuf::from("/etc/ms/token"));
        let bearer = Authorization::Credentials { kind: "Bearer".into(), credentials: token };
        assert_eq!(job.http.authorization, Some(bearer));
        assert_eq!(job.http.tls.ca, Some(Pem::File(PathBuf::from("/etc/ms/../ca.crt"))));
        assert_eq!(job.static_configs[0].targets, ["10.0.0.1:6443", "h"]);
        assert_eq!(job.metric_relabel_configs[0].action, Action::Drop);
    }

    #[test]
    fn what_makes_no_sense_is_refused_where_it_stands() {
        for (text, error) in [
            ("- static_configs: []", "2:3: job_name is missing or empty"),
            ("- {job_name: a}\n- {job_name: a}", "3:3: two scrape configurations have the job name \"a\""),
            (
                "- job_name: a\n  scrape_interval: 5s\n  scrape_timeout: 9s",
                "4:19: scrape_timeout 9s is longer than scrape_interval 5s",
            ),
            (
                "- job_name: a\n  static_configs: [{targets: ['http://h/x']}]",
                "3:31: \"http://h/x\" is not a valid hostname: write host:port, without scheme or path",
            ),
            (
                "- job_name: a\n  kubernetes_sd_configs: [{role: pod}]",
                "3:3: kubernetes_sd_configs is not supported in this version; remove it",
            ),
            (
                "- job_name: a\n  relabel_configs: [{action: dorp}]",
                "3:30: unknown relabel action \"dorp\", did you mean \"drop\"?",
            ),
            (
                "- job_name: a\n  bearer_token: x\n  basic_auth: {username: u}",
                "3:17: at most one of basic_auth, authorization, bearer_token and bearer_token_file may be \
                 configured",
            ),
        ] {
            let found = read(&format!("scrape_configs:\n{text}\n")).unwrap_err();
            assert_eq!(found, format!("/etc/ms/scrape.yaml:{error}"));
        }
    }
}
