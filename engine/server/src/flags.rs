//! The command line: one table of flags, Prometheus' names where Prometheus has the flag.
use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::{suggest, tsdb};

/// What a flag takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One value; the last one counts.
    Value,
    /// Any number of values.
    List,
    /// `--name` and `--no-name`.
    Switch,
}

struct Spec {
    name: &'static str,
    kind: Kind,
    /// The name that switches a switch off.
    negation: &'static str,
    default: &'static str,
    help: &'static str,
}

const fn value(name: &'static str, default: &'static str, help: &'static str) -> Spec {
    Spec { name, kind: Kind::Value, negation: "", default, help }
}

const fn list(name: &'static str, default: &'static str, help: &'static str) -> Spec {
    Spec { name, kind: Kind::List, negation: "", default, help }
}

macro_rules! switch {
    ($name:literal, $help:literal) => {
        Spec {
            name: $name,
            kind: Kind::Switch,
            negation: concat!("no-", $name),
            default: "false",
            help: $help,
        }
    };
}

const SERVE: &[Spec] = &[
    value("config.file", "", "Prometheus configuration file; without one the engine scrapes itself"),
    value("storage.tsdb.path", "data/", "Data directory"),
    value(
        "storage.tsdb.retention.time",
        "",
        "How long samples are kept, 0s for ever; 15d unless a size or a percentage is set",
    ),
    value(
        "storage.tsdb.retention.size",
        "0",
        "Bytes that everything in the data directory may take, such as 50GB; 0 sets no bound",
    ),
    value(
        "storage.tsdb.retention.percentage",
        "0",
        "The same as a share of the data volume, such as 80; 0 sets no bound; takes the place of a size",
    ),
    value(
        "storage.tsdb.min-block-duration",
        "2h",
        "Time that one block is for when it is cut; a series may lag behind the newest sample by half of it",
    ),
    value(
        "storage.tsdb.max-block-duration",
        "",
        "Longest time that merged blocks are for; by default a tenth of retention, at most 31d",
    ),
    value(
        "storage.tsdb.delay-compact-file.path",
        "",
        "JSON file in which a shipper (thanos.shipper.json) lists what it uploaded; other new blocks are not merged",
    ),
    value("storage.wal-sync", "commit", "When a write is acknowledged: commit (after fdatasync) or interval"),
    value(
        "storage.block-format",
        "native",
        "Format of blocks: native (a fraction of the size) or prometheus (for Thanos and promtool)",
    ),
    list("web.listen-address", "0.0.0.0:9090", "Address of the API; repeatable"),
    value("web.external-url", "", "URL under which the engine is reachable from outside"),
    value("web.route-prefix", "", "Prefix of all routes; by default the path of --web.external-url"),
    value("web.cors.origin", ".*", "Regular expression of origins that browsers may read answers from"),
    value("web.max-connections", "512", "Simultaneous connections per listener"),
    switch!("web.enable-remote-write-receiver", "Take remote write at /api/v1/write"),
    switch!("web.enable-lifecycle", "Reload and quit by HTTP on the web listener"),
    switch!("web.enable-admin-api", "Snapshot and delete by HTTP on the web listener"),
    switch!(
        "web.enable-otlp-receiver",
        "Taken for compatibility: this version does not receive OTLP, a warning says so"
    ),
    value("query.timeout", "2m", "Longest time a query may take"),
    value("query.max-concurrency", "20", "Queries that run at once; others wait"),
    value("query.max-samples", "50000000", "Samples one query may hold in memory"),
    value("query.lookback-delta", "5m", "How far an instant selector looks back"),
    list("enable-feature", "", "Feature names of Prometheus, comma-separated; repeatable"),
    value("log.level", "info", "debug, info, warn or error"),
    value("log.format", "logfmt", "logfmt or json"),
    value("memory.budget", "", "Share of the memory limit (90%) or a quantity (1500Mi)"),
    value("cpu.threads", "", "Worker threads; by default the CPU limit rounded up"),
    value(
        "ops.listen-address",
        "",
        "Address of the operations listener; 0.0.0.0:9091 when a token file is set",
    ),
    value("ops.token-file", "", "File with the bearer token of the operations listener"),
    value("runtime.config-file", "", "engine.yaml: what may change without a restart"),
];

/// Flags of Prometheus, and of later versions, that would do nothing here today: naming one is an error.
const UNSUPPORTED: &[&str] = &[
    "agent",
    "alertmanager.drain-notification-queue-on-shutdown",
    "alertmanager.notification-batch-size",
    "alertmanager.notification-queue-capacity",
    "auto-gomaxprocs",
    "auto-gomemlimit",
    "auto-gomemlimit.ratio",
    "auto-gomemlimit.refresh-interval",
    "config.auto-reload",
    "config.auto-reload-interval",
    "rules.alert.for-grace-period",
    "rules.alert.for-outage-tolerance",
    "rules.alert.resend-delay",
    "rules.max-concurrent-evals",
    "scrape.adjust-timestamps",
    "scrape.discovery-reload-interval",
    "scrape.timestamp-tolerance",
    "storage.agent.path",
    "storage.remote.flush-deadline",
    "storage.remote.read-concurrent-limit",
    "storage.remote.read-max-bytes-in-frame",
    "storage.remote.read-sample-limit",
    "storage.tsdb.allow-overlapping-compaction",
    "storage.tsdb.block-reload-interval",
    "storage.tsdb.delayed-compaction.max-percent",
    "storage.tsdb.head-chunks-write-queue-size",
    "storage.tsdb.max-block-chunk-segment-size",
    "storage.tsdb.no-lockfile",
    "storage.tsdb.samples-per-chunk",
    "storage.tsdb.wal-compression",
    "storage.tsdb.wal-compression-type",
    "storage.tsdb.wal-segment-size",
    "web.config.file",
    "web.console.libraries",
    "web.console.templates",
    "web.max-notifications-subscribers",
    "web.page-title",
    "web.read-timeout",
    "web.remote-write-receiver.accepted-protobuf-messages",
    "web.search.max-limit",
    "web.user-assets",
    "write-documentation",
];

/// What the command line asks for.
pub enum Invocation {
    /// `metricsstore serve`.
    Serve(Flags),
    /// `metricsstore check config FILE`.
    CheckConfig(String),
    /// `metricsstore tsdb …`.
    Tsdb(ArgMatches),
}

/// Why the command line is not understood, or what it asked to print.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// Not understood: one sentence.
    #[error("{0}")]
    Wrong(String),
    /// `--help`, `--version`: text to print, which is no failure.
    #[error("{0}")]
    Print(String),
}

/// Every flag of `serve` with its value, given or default.
#[derive(Debug, Clone)]
pub struct Flags {
    values: BTreeMap<&'static str, Vec<String>>,
}

impl Flags {
    /// The value of a flag; empty when it has none.
    pub fn get(&self, name: &str) -> &str {
        self.list(name).last().map_or("", String::as_str)
    }

    /// All values of a repeatable flag.
    pub fn list(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name) == "true"
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.values.iter().map(|(name, values)| (*name, values.join(",")))
    }
}

/// Reads a command line, the program's name first.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, FlagError> {
    let args: Vec<OsString> = args.into_iter().collect();
    refuse_unsupported(&args)?;
    let matches = command().try_get_matches_from(args).map_err(|error| explain(&error))?;
    match matches.subcommand() {
        Some(("serve", serve)) => Ok(Invocation::Serve(collect(serve))),
        Some(("tsdb", tsdb)) => Ok(Invocation::Tsdb(tsdb.clone())),
        Some(("check", check)) => {
            let file = check.subcommand_matches("config").and_then(|config| config.get_one::<String>("file"));
            Ok(Invocation::CheckConfig(file.cloned().unwrap_or_default()))
        }
        _ => Err(FlagError::Wrong(
            "say what to do: metricsstore serve, metricsstore tsdb, or metricsstore check config FILE".into(),
        )),
    }
}

fn command() -> Command {
    let serve = SERVE.iter().fold(
        Command::new("serve").about("Scrapes, stores and answers").display_name("metricsstore"),
        |command, spec| match spec.kind {
            Kind::Switch => command.arg(switch_arg(spec)).arg(negation(spec)),
            Kind::Value | Kind::List => command.arg(value_arg(spec)),
        },
    );
    let config = Command::new("config").about("Reads a configuration file and says what is wrong with it");
    Command::new("metricsstore")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about("A time series database that speaks Prometheus")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve)
        .subcommand(tsdb::command())
        .subcommand(
            Command::new("check")
                .about("Checks files without starting")
                .subcommand_required(true)
                .subcommand(config.arg(Arg::new("file").required(true).value_name("FILE"))),
        )
}

fn value_arg(spec: &Spec) -> Arg {
    let arg =
        Arg::new(spec.name).long(spec.name).help(spec.help).value_name("VALUE").allow_hyphen_values(true);
    let arg = if spec.kind == Kind::List {
        arg.action(ArgAction::Append)
    } else {
        arg.action(ArgAction::Set).overrides_with(spec.name)
    };
    if spec.default.is_empty() { arg } else { arg.default_value(spec.default) }
}

fn switch_arg(spec: &Spec) -> Arg {
    let overridden = [spec.negation, spec.name];
    Arg::new(spec.name)
        .long(spec.name)
        .help(spec.help)
        .action(ArgAction::SetTrue)
        .overrides_with_all(overridden)
}

fn negation(spec: &Spec) -> Arg {
    let overridden = [spec.negation, spec.name];
    Arg::new(spec.negation)
        .long(spec.negation)
        .hide(true)
        .action(ArgAction::SetTrue)
        .overrides_with_all(overridden)
}

fn collect(matches: &ArgMatches) -> Flags {
    let of = |spec: &Spec| match spec.kind {
        Kind::Switch => vec![matches.get_flag(spec.name).to_string()],
        Kind::Value | Kind::List => {
            matches.get_many::<String>(spec.name).map_or_else(Vec::new, |values| values.cloned().collect())
        }
    };
    Flags { values: SERVE.iter().map(|spec| (spec.name, of(spec))).collect() }
}

fn refuse_unsupported(args: &[OsString]) -> Result<(), FlagError> {
    for arg in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        let Some(flag) = arg.strip_prefix("--") else { continue };
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        if UNSUPPORTED.iter().any(|known| name == *known || name.strip_prefix("no-") == Some(known)) {
            return Err(FlagError::Wrong(format!("--{name} is not supported in this version; remove it")));
        }
    }
    Ok(())
}

/// Flags of a command and of those below it.
fn long_flags(command: &Command, flags: &mut Vec<String>) {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    flags.extend(shown.filter_map(|arg| arg.get_long().map(str::to_owned)));
    command.get_subcommands().for_each(|below| long_flags(below, flags));
}

fn explain(error: &clap::Error) -> FlagError {
    use clap::error::{ContextKind, ContextValue};
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => FlagError::Print(error.render().to_string()),
        ErrorKind::UnknownArgument => {
            let typed = given(ContextKind::InvalidArg);
            let name = typed.trim_start_matches('-');
            if typed.starts_with('-') {
                let mut known = vec!["help".to_owned(), "version".to_owned()];
                long_flags(&command(), &mut known);
                let text = match suggest::nearest(name, known.iter().map(String::as_str)) {
                    Some(near) => format!("unknown flag \"{typed}\", did you mean \"--{near}\"?"),
                    None => format!("unknown flag \"{typed}\"; --help after the command lists them"),
                };
                FlagError::Wrong(text)
            } else {
                FlagError::Wrong(format!("unexpected argument {typed:?}"))
            }
        }
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            FlagError::Wrong(first.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FlagError, Flags, Invocation, parse};

    fn serve(args: &[&str]) -> Result<Flags, String> {
        let args = ["metricsstore", "serve"].iter().chain(args).map(Into::into);
        match parse(args) {
            Ok(Invocation::Serve(flags)) => Ok(flags),
            Ok(_) => Err("not serve".into()),
            Err(FlagError::Wrong(text) | FlagError::Print(text)) => Err(text),
        }
    }

    #[test]
    fn a_value_may_follow_an_equals_sign_or_a_space() {
        let flags = serve(&["--storage.tsdb.path=/a", "--query.timeout", "30s"]).unwrap();
        assert_eq!((flags.get("storage.tsdb.path"), flags.get("query.timeout")), ("/a", "30s"));
        assert_eq!(flags.get("storage.tsdb.min-block-duration"), "2h");
    }

    #[test]
    fn the_last_of_a_switch_and_its_negation_counts() {
        let on = "--web.enable-lifecycle";
        let off = "--no-web.enable-lifecycle";
        assert!(serve(&[on]).unwrap().is_on("web.enable-lifecycle"));
        assert!(!serve(&[on, off]).unwrap().is_on("web.enable-lifecycle"));
        assert!(serve(&[off, on]).unwrap().is_on("web.enable-lifecycle"));
        assert!(!serve(&[]).unwrap().is_on("web.enable-lifecycle"));
    }

    #[test]
    fn an_unknown_flag_names_the_nearest_known_one() {
        assert_eq!(
            serve(&["--web.listen-addres=:1"]).unwrap_err(),
            r#"unknown flag "--web.listen-addres", did you mean "--web.listen-address"?"#
        );
    }

    #[test]
    fn a_flag_without_a_function_here_is_refused() {
        assert_eq!(
            serve(&["--web.config.file=web.yaml"]).unwrap_err(),
            "--web.config.file is not supported in this version; remove it"
        );
    }

    #[test]
    fn the_version_is_told_before_and_after_the_command() {
        let version = concat!("metricsstore ", env!("CARGO_PKG_VERSION"), "\n");
        assert_eq!(serve(&["--version"]).unwrap_err(), version);
        let Err(FlagError::Print(text)) = parse(["metricsstore", "--version"].map(Into::into)) else {
            panic!("no text")
        };
        assert_eq!(text, version);
    }

    #[test]
    fn repeatable_flags_collect_and_replace_the_default() {
        let flags = serve(&["--web.listen-address=a:1", "--web.listen-address=b:2"]).unwrap();
        assert_eq!(flags.list("web.listen-address"), ["a:1", "b:2"]);
    }
}
