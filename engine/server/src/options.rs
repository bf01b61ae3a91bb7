//! The flags as typed values.
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use metricsstore_contract::{BudgetPolicy, PromDuration};
use metricsstore_promql::{EngineOptions, Features};
use metricsstore_storage::{BlockFormat, WalSync};

use crate::features;
use crate::flags::Flags;
use crate::http::layers::Cors;
use crate::retention::{DEFAULT_RETENTION, Retention, parse_percentage, parse_size};

/// A flag whose value makes no sense: one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {value}: {reason}")]
pub struct OptionError {
    flag: String,
    value: String,
    reason: String,
}

/// Where an engine listens for operators.
#[derive(Debug, Clone)]
pub struct OpsOptions {
    /// Addresses.
    pub listen: Vec<SocketAddr>,
    /// File with the bearer token; without one only health is served.
    pub token_file: Option<PathBuf>,
}

/// What `serve` was told.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct Options {
    /// Prometheus configuration; `None`: scrape oneself.
    pub config_file: Option<PathBuf>,
    /// `engine.yaml`.
    pub runtime_file: Option<PathBuf>,
    /// Data directory.
    pub data_dir: PathBuf,
    /// What is kept, unless the configuration file or `engine.yaml` says otherwise.
    pub retention: Retention,
    /// In milliseconds.
    pub block_duration_ms: i64,
    /// In milliseconds; `None` leaves it to retention.
    pub max_block_duration_ms: Option<i64>,
    /// Format of blocks.
    pub block_format: BlockFormat,
    /// Where a shipper lists what it uploaded.
    pub delay_compact_file: Option<PathBuf>,
    /// When a write is acknowledged.
    pub wal_sync: WalSync,
    /// Addresses of the API.
    pub listen: Vec<SocketAddr>,
    /// The operations listener, where there is one.
    pub ops: Option<OpsOptions>,
    /// URL for others, without a slash at its end; empty when not given.
    pub external_url: String,
    /// Prefix of all routes: empty, or a slash and what follows without one at its end.
    pub route_prefix: String,
    /// Origins that browsers may read from.
    pub cors: Cors,
    /// Connections per listener.
    pub max_connections: usize,
    /// Whether `/api/v1/write` is served.
    pub remote_write: bool,
    /// Whether reload and quit are served on the web listener.
    pub lifecycle: bool,
    /// Whether snapshots and deletes are served on the web listener.
    pub admin: bool,
    /// Longest time of a query.
    pub query_timeout: Duration,
    /// Queries at once.
    pub query_concurrency: usize,
    /// What the query engine is told.
    pub promql: EngineOptions,
    /// Feature names that were asked for.
    pub features: Vec<String>,
    /// `--memory.budget`.
    pub budget: Option<BudgetPolicy>,
    /// `--cpu.threads`.
    pub threads: Option<u32>,
    /// Level of the log.
    pub log_level: tracing::Level,
    /// Whether the log is JSON.
    pub log_json: bool,
}

/// Most threads that make sense.
const MAX_THREADS: u32 = 1024;

impl Options {
    /// Checks the flags.
    pub fn from_flags(flags: &Flags) -> Result<Options, OptionError> {
        let read = Reader { flags };
        let features = features::split(flags.list("enable-feature"));
        let external_url = read.external_url()?;
        Ok(Options {
            config_file: read.path("config.file"),
            runtime_file: read.path("runtime.config-file"),
            data_dir: read.path("storage.tsdb.path").unwrap_or_else(|| PathBuf::from("data")),
            retention: read.retention()?,
            block_duration_ms: read.positive_duration("storage.tsdb.min-block-duration")?,
            max_block_duration_ms: read.max_block_duration()?,
            block_format: read.one_of(
                "storage.block-format",
                &[("native", BlockFormat::Native), ("prometheus", BlockFormat::Prometheus)],
            )?,
            delay_compact_file: read.path("storage.tsdb.delay-compact-file.path"),
            wal_sync: read.one_of(
                "storage.wal-sync",
                &[("commit", WalSync::Commit), ("interval", WalSync::Interval)],
            )?,
            listen: read.addresses("web.listen-address")?,
            ops: read.ops()?,
            route_prefix: read.route_prefix(&external_url)?,
            external_url,
            cors: Cors::new(flags.get("web.cors.origin"))
                .map_err(|error| read.wrong("web.cors.origin", error))?,
            max_connections: read.number("web.max-connections", 1, 1 << 20)? as usize,
            remote_write: flags.is_on("web.enable-remote-write-receiver"),
            lifecycle: flags.is_on("web.enable-lifecycle"),
            admin: flags.is_on("web.enable-admin-api"),
            query_timeout: Duration::from_millis(read.positive_duration("query.timeout")? as u64),
            query_concurrency: read.number("query.max-concurrency", 1, 4096)? as usize,
            promql: read.promql(&features)?,
            features,
            budget: read.optional("memory.budget", str::parse)?,
            threads: read.optional("cpu.threads", |text| match text.parse() {
                Ok(threads @ 1..=MAX_THREADS) => Ok(threads),
                _ => Err(format!("write a whole number from 1 to {MAX_THREADS}")),
            })?,
            log_level: read.one_of(
                "log.level",
                &[
                    ("debug", tracing::Level::DEBUG),
                    ("info", tracing::Level::INFO),
                    ("warn", tracing::Level::WARN),
                    ("error", tracing::Level::ERROR),
                ],
            )?,
            log_json: read.one_of("log.format", &[("logfmt", false), ("json", true)])?,
        })
    }
}

struct Reader<'f> {
    flags: &'f Flags,
}

impl Reader<'_> {
    fn wrong(&self, flag: &str, reason: impl Display) -> OptionError {
        OptionError {
            flag: flag.to_owned(),
            value: self.flags.list(flag).join(","),
            reason: reason.to_string(),
        }
    }

    fn path(&self, flag: &str) -> Option<PathBuf> {
        Some(self.flags.get(flag)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn optional<T, E: Display>(
        &self,
        flag: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, OptionError> {
        match self.flags.get(flag) {
            "" => Ok(None),
            text => parse(text).map(Some).map_err(|error| self.wrong(flag, error)),
        }
    }

    fn duration(&self, flag: &str) -> Result<i64, OptionError> {
        PromDuration::parse(self.flags.get(flag))
            .map(PromDuration::ms)
            .map_err(|error| self.wrong(flag, error))
    }

    fn retention(&self) -> Result<Retention, OptionError> {
        let size = self.optional("storage.tsdb.retention.size", parse_size)?.flatten();
        let percentage = self.optional("storage.tsdb.retention.percentage", parse_percentage)?.flatten();
        let time = match self.flags.get("storage.tsdb.retention.time") {
            "" if size.is_some() || percentage.is_some() => None,
            "" => Some(DEFAULT_RETENTION),
            _ => Some(self.duration("storage.tsdb.retention.time")?).filter(|ms| *ms > 0),
        };
        Ok(Retention { time_ms: time, bytes: size, percentage, volume_bytes: None })
    }

    fn positive_duration(&self, flag: &str) -> Result<i64, OptionError> {
        match self.duration(flag)? {
            0 => Err(self.wrong(flag, "must be longer than nothing")),
            ms => Ok(ms),
        }
    }

    fn max_block_duration(&self) -> Result<Option<i64>, OptionError> {
        let longest = self.optional("storage.tsdb.max-block-duration", PromDuration::parse)?;
        let longest = longest.map(PromDuration::ms).filter(|ms| *ms > 0);
        if longest.is_some_and(|longest| {
            self.duration("storage.tsdb.min-block-duration").is_ok_and(|shortest| longest < shortest)
        }) {
            return Err(self.wrong(
                "storage.tsdb.max-block-duration",
                "must not be shorter than --storage.tsdb.min-block-duration",
            ));
        }
        Ok(longest)
    }

    fn number(&self, flag: &str, least: u64, most: u64) -> Result<u64, OptionError> {
        match self.flags.get(flag).parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(self.wrong(flag, format!("write a whole number from {least} to {most}"))),
        }
    }

    fn one_of<T: Clone>(&self, flag: &str, choices: &[(&str, T)]) -> Result<T, OptionError> {
        let text = self.flags.get(flag).to_ascii_lowercase();
        choices.iter().find(|(name, _)| *name == text).map(|(_, value)| value.clone()).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.wrong(flag, format!("this version knows {}", names.join(", ")))
        })
    }

    fn addresses(&self, flag: &str) -> Result<Vec<SocketAddr>, OptionError> {
        let mut all = Vec::new();
        for text in self.flags.list(flag).iter().filter(|text| !text.is_empty()) {
            // Go's ":9090" is every interface, by IPv6 and IPv4.
            let full = if text.starts_with(':') { format!("[::]{text}") } else { text.clone() };
            let first = full.to_socket_addrs().map_err(|error| self.wrong(flag, error))?.next();
            all.push(first.ok_or_else(|| self.wrong(flag, "names no address"))?);
        }
        Ok(all)
    }

    fn ops(&self) -> Result<Option<OpsOptions>, OptionError> {
        let token_file = self.path("ops.token-file");
        let mut listen = self.addresses("ops.listen-address")?;
        if listen.is_empty() {
            if token_file.is_none() {
                return Ok(None);
            }
            listen.push(SocketAddr::from(([0, 0, 0, 0], 9091)));
        }
        Ok(Some(OpsOptions { listen, token_file }))
    }

    fn external_url(&self) -> Result<String, OptionError> {
        let text = self.flags.get("web.external-url");
        if text.is_empty() {
            return Ok(String::new());
        }
        let url = url::Url::parse(text).map_err(|error| self.wrong("web.external-url", error))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(self.wrong("web.external-url", "the scheme must be http or https"));
        }
        Ok(url.as_str().trim_end_matches('/').to_owned())
    }

    fn route_prefix(&self, external_url: &str) -> Result<String, OptionError> {
        let prefix = match self.flags.get("web.route-prefix") {
            "" => url::Url::parse(external_url).map_or_else(|_| String::new(), |url| url.path().to_owned()),
            text => text.to_owned(),
        };
        let trimmed = prefix.trim_matches('/');
        if trimmed.contains(['{', '}', '*', '?', '#']) {
            return Err(self.wrong("web.route-prefix", "a plain path is expected"));
        }
        Ok(if trimmed.is_empty() { String::new() } else { format!("/{trimmed}") })
    }

    fn promql(&self, names: &[String]) -> Result<EngineOptions, OptionError> {
        let on = |name: &str| names.iter().any(|known| known == name);
        Ok(EngineOptions {
            lookback_ms: self.positive_duration("query.lookback-delta")?,
            max_samples: self.number("query.max-samples", 1, u64::MAX)?,
            features: Features {
                experimental_functions: on("promql-experimental-functions"),
                delayed_name_removal: on("promql-delayed-name-removal"),
                unquoted_utf8_names: on("promql-unquoted-utf8-names"),
                binop_fill_modifiers: on("promql-binop-fill-modifiers"),
                extended_range_selectors: on("promql-extended-range-selectors"),
                type_and_unit_labels: on("type-and-unit-labels"),
            },
            ..EngineOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use crate::flags::{Invocation, parse};

    fn options(args: &[&str]) -> Result<Options, String> {
        let args = ["metricsstore", "serve"].iter().chain(args).map(Into::into);
        match parse(args) {
            Ok(Invocation::Serve(flags)) => Options::from_flags(&flags).map_err(|error| error.to_string()),
            _ => Err("not serve".into()),
        }
    }

    #[test]
    fn prometheus_reference_flags_are_understood() {
        let options = options(&[
            "--config.file=c.yml",
            "--web.listen-address=127.0.0.1:9090",
            "--storage.tsdb.path=/d",
            "--web.enable-remote-write-receiver",
            "--storage.tsdb.min-block-duration=24h",
            "--storage.tsdb.max-block-duration=24h",
            "--storage.tsdb.retention.time=200y",
            "--enable-feature=promql-experimental-functions,st-storage",
        ])
        .unwrap();
        assert_eq!(options.block_duration_ms, 86_400_000);
        assert_eq!(options.max_block_duration_ms, Some(86_400_000));
        assert_eq!(options.retention.time_ms, Some(200 * 365 * 86_400_000));
        assert!(options.remote_write && options.promql.features.experimental_functions);
        assert!(options.ops.is_none());
    }

    #[test]
    fn a_value_that_makes_no_sense_names_flag_and_value() {
        let error = options(&["--storage.block-format=parquet"]).unwrap_err();
        assert_eq!(error, "--storage.block-format parquet: this version knows native, prometheus");
        let error = options(&["--storage.tsdb.max-block-duration=1h"]).unwrap_err();
        assert_eq!(
            error,
            "--storage.tsdb.max-block-duration 1h: must not be shorter than --storage.tsdb.min-block-duration"
        );
        assert!(options(&["--query.timeout=0s"]).unwrap_err().starts_with("--query.timeout 0s:"));
        assert!(options(&["--cpu.threads=0"]).unwrap_err().starts_with("--cpu.threads 0:"));
    }

    #[test]
    fn samples_are_kept_for_15_days_unless_a_size_or_a_percentage_is_what_bounds_them() {
        let shown = |args: &[&str]| options(args).unwrap().retention.to_string();
        assert_eq!(shown(&[]), "15d");
        assert_eq!(shown(&["--storage.tsdb.retention.size=512MB"]), "512MiB");
        assert_eq!(shown(&["--storage.tsdb.retention.percentage=80"]), "80%");
        assert_eq!(shown(&["--storage.tsdb.retention.time=0s"]), "");
        assert_eq!(
            shown(&["--storage.tsdb.retention.time=2w", "--storage.tsdb.retention.size=1TB"]),
            "2w or 1TiB"
        );
        assert!(options(&["--storage.tsdb.retention.percentage=101"]).is_err());
        assert!(options(&["--storage.tsdb.retention.size=50"]).is_err());
    }

    #[test]
    fn the_route_prefix_is_the_external_urls_path_unless_given() {
        let prefix = |args: &[&str]| options(args).unwrap().route_prefix;
        assert_eq!(prefix(&["--web.external-url=https://x.org/prom/"]), "/prom");
        assert_eq!(prefix(&["--web.external-url=https://x.org/prom", "--web.route-prefix=/"]), "");
        assert_eq!(prefix(&[]), "");
    }

    #[test]
    fn a_token_file_opens_the_operations_listener() {
        let ops = options(&["--ops.token-file=/t"]).unwrap().ops.unwrap();
        assert_eq!(ops.listen, ["0.0.0.0:9091".parse().unwrap()]);
    }
}
