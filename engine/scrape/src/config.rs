//! What to scrape and how: the `scrape_configs` of a configuration file as plain values, checked and with the
//! global settings filled in. Reading YAML is the caller's business.
use std::path::PathBuf;

use metricsstore_contract::PromDuration;

use crate::relabel::RelabelConfig;

/// One job. [`ScrapeConfig::new`] gives Prometheus' defaults.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the switches of the configuration format")]
pub struct ScrapeConfig {
    /// Value of the label `job`; unique among the jobs.
    pub job_name: String,
    /// Keep exposed labels that a target label of the same name would replace (otherwise they become `exported_…`).
    pub honor_labels: bool,
    /// Use timestamps that the page gives.
    pub honor_timestamps: bool,
    /// Mark series with timestamps of their own stale as well when they vanish.
    pub track_timestamps_staleness: bool,
    /// Time between scrapes; positive.
    pub scrape_interval: PromDuration,
    /// Longest duration of a scrape; positive, at most the interval.
    pub scrape_timeout: PromDuration,
    /// Path of the page; starts with `/`.
    pub metrics_path: String,
    /// `http` or `https`.
    pub scheme: String,
    /// URL parameters, each with its values in order.
    pub params: Vec<(String, Vec<String>)>,
    /// Formats to ask for, most wanted first; those that are not read yet are left out of the request.
    pub scrape_protocols: Vec<ScrapeProtocol>,
    /// What a page without usable Content-Type is taken for; `None` fails such a scrape.
    pub fallback_scrape_protocol: Option<ScrapeProtocol>,
    /// Ask for gzip.
    pub enable_compression: bool,
    /// Longest page after decompression, in bytes; 0 is unlimited (see [`crate::MAX_BODY_BYTES`]).
    pub body_size_limit: u64,
    /// Most samples after relabelling; 0 is unlimited.
    pub sample_limit: u64,
    /// Most labels of a series, the target's included; 0 is unlimited.
    pub label_limit: u64,
    /// Longest label name, in bytes; 0 is unlimited.
    pub label_name_length_limit: u64,
    /// Longest label value, in bytes; 0 is unlimited.
    pub label_value_length_limit: u64,
    /// Most targets after relabelling; more of them make every scrape of the job fail. 0 is unlimited.
    pub target_limit: u64,
    /// Dropped targets that are kept to be shown; 0 keeps [`crate::MAX_DROPPED_TARGETS`].
    pub keep_dropped_targets: u64,
    /// Targets named in the configuration.
    pub static_configs: Vec<TargetGroup>,
    /// Changes to the labels of targets, before they are scraped.
    pub relabel_configs: Vec<RelabelConfig>,
    /// Changes to the labels of scraped series, before they are stored.
    pub metric_relabel_configs: Vec<RelabelConfig>,
    /// How to talk to the targets.
    pub http: HttpConfig,
}

impl ScrapeConfig {
    /// A job with the defaults of Prometheus: one minute between scrapes, ten seconds for each.
    pub fn new(job_name: impl Into<String>) -> ScrapeConfig {
        ScrapeConfig {
            job_name: job_name.into(),
            honor_labels: false,
            honor_timestamps: true,
            track_timestamps_staleness: false,
            scrape_interval: PromDuration::from_ms(60_000),
            scrape_timeout: PromDuration::from_ms(10_000),
            metrics_path: "/metrics".into(),
            scheme: "http".into(),
            params: Vec::new(),
            scrape_protocols: ScrapeProtocol::DEFAULT.to_vec(),
            fallback_scrape_protocol: None,
            enable_compression: true,
            body_size_limit: 0,
            sample_limit: 0,
            label_limit: 0,
            label_name_length_limit: 0,
            label_value_length_limit: 0,
            target_limit: 0,
            keep_dropped_targets: 0,
            static_configs: Vec::new(),
            relabel_configs: Vec::new(),
            metric_relabel_configs: Vec::new(),
            http: HttpConfig::default(),
        }
    }
}

/// Targets that share labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetGroup {
    /// `host:port` each: the label `__address__`.
    pub targets: Vec<String>,
    /// Labels of all of them, `__…__` ones included.
    pub labels: Vec<(String, String)>,
}

/// Formats a target may answer with, by the names of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrapeProtocol {
    /// `PrometheusProto`
    PrometheusProto,
    /// `PrometheusText0.0.4`
    PrometheusText0_0_4,
    /// `PrometheusText1.0.0`
    PrometheusText1_0_0,
    /// `OpenMetricsText0.0.1`
    OpenMetricsText0_0_1,
    /// `OpenMetricsText1.0.0`
    OpenMetricsText1_0_0,
}

impl ScrapeProtocol {
    /// Every protocol.
    pub const ALL: [ScrapeProtocol; 5] = [
        ScrapeProtocol::PrometheusProto,
        ScrapeProtocol::PrometheusText0_0_4,
        ScrapeProtocol::PrometheusText1_0_0,
        ScrapeProtocol::OpenMetricsText0_0_1,
        ScrapeProtocol::OpenMetricsText1_0_0,
    ];

    /// Prometheus' default order.
    pub const DEFAULT: [ScrapeProtocol; 4] = [
        ScrapeProtocol::OpenMetricsText1_0_0,
        ScrapeProtocol::OpenMetricsText0_0_1,
        ScrapeProtocol::PrometheusText1_0_0,
        ScrapeProtocol::PrometheusText0_0_4,
    ];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ScrapeProtocol::PrometheusProto => "PrometheusProto",
            ScrapeProtocol::PrometheusText0_0_4 => "PrometheusText0.0.4",
            ScrapeProtocol::PrometheusText1_0_0 => "PrometheusText1.0.0",
            ScrapeProtocol::OpenMetricsText0_0_1 => "OpenMetricsText0.0.1",
            ScrapeProtocol::OpenMetricsText1_0_0 => "OpenMetricsText1.0.0",
        }
    }

    /// The protocol of that name.
    pub fn from_name(name: &str) -> Option<ScrapeProtocol> {
        ScrapeProtocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Whether pages of this format are read.
    pub const fn is_read(self) -> bool {
        matches!(self, ScrapeProtocol::PrometheusText0_0_4 | ScrapeProtocol::PrometheusText1_0_0)
    }
}

/// How to talk HTTP to the targets of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// The `Authorization` header, if any.
    pub authorization: Option<Authorization>,
    /// TLS.
    pub tls: TlsConfig,
    /// Follow redirects, at most ten in a row.
    pub follow_redirects: bool,
    /// More request headers, in order.
    pub headers: Vec<(String, Vec<Secret>)>,
}

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            authorization: None,
            tls: TlsConfig::default(),
            follow_redirects: true,
            headers: Vec::new(),
        }
    }
}

/// `basic_auth`, `authorization`, `bearer_token` and `bearer_token_file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorization {
    /// `basic_auth`.
    Basic {
        /// User's name.
        username: Secret,
        /// Password.
        password: Secret,
    },
    /// `authorization`; bearer tokens have the kind `Bearer`.
    Credentials {
        /// First word of the header.
        kind: String,
        /// Rest of the header.
        credentials: Secret,
    },
}

/// A secret, given as text or in a file that is read again for every scrape.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// A file whose content, without white space around it, is the secret.
    File(PathBuf),
}

/// Never shows the text.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Secret::Text(_) => f.write_str("<secret>"),
            Secret::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

/// TLS of the client. Files are read again when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates to trust; the system's when absent.
    pub ca: Option<Pem>,
    /// The client's certificate chain.
    pub cert: Option<Pem>,
    /// The client's key.
    pub key: Option<Pem>,
    /// Name to check the server's certificate against, instead of the target's host.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
}

/// PEM blocks, given as text or in a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The blocks.
    Text(String),
    /// Path of the file.
    File(PathBuf),
}

/// Never shows the text, which may be a key.
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("<pem>"),
            Pem::File(path) => write!(f, "File({})", path.display()),
        }
    }
}
