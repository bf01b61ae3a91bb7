//! `metricsstore tsdb …`: what is in a data directory, and ways into and out of it.
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use metricsstore_contract::PromDuration;
use metricsstore_model::Matcher;
use metricsstore_promql::{Features, parse_selector_with};
use metricsstore_storage::{DataDir, Selected, StorageError, Ulid};
use metricsstore_vfs::real::{RealClock, RealFiles};
use metricsstore_vfs::{Clock, Files};

mod analyze;
mod dump;
mod list;
mod progress;
mod text;
mod transfer;
mod verify;

/// Why a command failed: one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The storage says so.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Nobody reads the output, or the disk it goes to is full.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// There is something to worry about, which was printed.
    #[error("{0}")]
    Found(String),
}

/// Length of the parts in which a log is sorted where nothing depends on it.
const RANGE_MS: i64 = 7_200_000;

const PATH_HELP: &str = "Data directory: of a store (running or not), of a snapshot, or of Prometheus";

/// The subcommand for the command line.
pub fn command() -> Command {
    let path = || Arg::new("path").value_name("DIR").default_value("data/").help(PATH_HELP);
    Command::new("tsdb")
        .about("Looks into data directories, checks them, and carries blocks in and out")
        .long_about(
            "Looks into data directories, checks them, and carries blocks in and out.\n\n\
             Every command takes the directory of a store, of a snapshot (DIR/snapshots/NAME), or of Prometheus. Only \
             import changes anything, and only where it imports to: the others may run beside a running engine.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("Lists blocks: time, samples, chunks, series, size")
                .arg(path())
                .arg(switch("human-readable", "Times as dates and sizes with units").short('r')),
        )
        .subcommand(
            Command::new("analyze")
                .about("Counts series, labels and label pairs, and what a sample takes")
                .arg(path())
                .arg(Arg::new("block").value_name("ULID").help("This block only; by default the whole directory"))
                .arg(value("limit", "20", "Items of each list"))
                .arg(matchers()),
        )
        .subcommand(
            Command::new("verify")
                .about("Reads everything and checks it; the exit code is 1 where anything is wrong")
                .arg(path()),
        )
        .subcommand(selection(
            Command::new("dump")
                .about("Prints samples: `{labels} value milliseconds`, one a line, as promtool tsdb dump does")
                .arg(path()),
        ))
        .subcommand(selection(
            Command::new("export")
                .about("Writes blocks that Prometheus, Thanos and promtool read, or OpenMetrics text")
                .after_help(
                    "The way back to Prometheus: stop the engine or make a snapshot, export into an empty directory, and \
                     start Prometheus with --storage.tsdb.path on it.\n\nexample: metricsstore tsdb export \
                     --output=/prometheus /data/snapshots/20261201T020000Z-0123456789abcdef",
                )
                .arg(path())
                .arg(value("format", "prometheus", "prometheus (blocks) or openmetrics (text, floats only)"))
                .arg(value("output", "", "Directory for blocks; file for text, - for standard output"))
                .arg(value("block-duration", "2h", "Length of the blocks of what is in none yet")),
        ))
        .subcommand(
            Command::new("import")
                .about("Takes the blocks and the log of another data directory into a store, bit for bit")
                .after_help(
                    "The engine must not run. An import that was interrupted goes on where it was: blocks keep their names, and \
                     what is there already is passed over. Retention deletes what is older than it once the engine runs: set \
                     it first.\n\nexample: metricsstore tsdb import --storage.tsdb.path=/data /var/lib/prometheus",
                )
                .arg(Arg::new("path").value_name("SOURCE").required(true).help(PATH_HELP))
                .arg(value("storage.tsdb.path", "data/", "Data directory of the store that takes them"))
                .arg(value("storage.block-format", "native", "What the blocks become: native or prometheus"))
                .arg(value("storage.tsdb.min-block-duration", "2h", "Length of the blocks of what is in none yet"))
                .arg(switch("dry-run", "Only says what would be imported")),
        )
}

fn value(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(help).value_name("VALUE").allow_hyphen_values(true);
    if default.is_empty() { arg } else { arg.default_value(default) }
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

fn matchers() -> Arg {
    value("match", "", "Series selector, such as '{job=\"a\"}'; repeatable, by default all series")
        .action(ArgAction::Append)
}

fn selection(command: Command) -> Command {
    command
        .arg(matchers())
        .arg(value("min-time", "", "From this time on, in milliseconds since the epoch"))
        .arg(value("max-time", "", "Up to and with this time, in milliseconds since the epoch"))
}

/// Runs a subcommand and says what its outcome means to a shell.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let Some((name, matches)) = matches.subcommand() else { return ExitCode::from(2) };
    let mut out = BufWriter::new(io::stdout().lock());
    let done = match name {
        "list" => list::run(matches, &mut out),
        "analyze" => analyze::run(matches, &mut out),
        "verify" => verify::run(matches, &mut out),
        "dump" => dump::run(matches, &mut out),
        "export" => transfer::export(matches, &mut out),
        _ => transfer::import(matches, &mut out),
    };
    let flushed = out.flush().map_err(ToolError::from);
    match done.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        // Who pipes into `head` has seen enough.
        Err(ToolError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::serve::fail(&error.to_string()),
    }
}

fn files() -> Arc<dyn Files> {
    Arc::new(RealFiles)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(RealClock::default())
}

fn path_of(matches: &ArgMatches, name: &str) -> PathBuf {
    PathBuf::from(matches.get_one::<String>(name).map_or("", String::as_str))
}

fn text_of<'m>(matches: &'m ArgMatches, name: &str) -> &'m str {
    matches.get_one::<String>(name).map_or("", String::as_str)
}

/// Opens the directory that is named, without what Prometheus has beyond blocks.
fn open_blocks(matches: &ArgMatches) -> Result<DataDir, ToolError> {
    Ok(DataDir::open(&files(), &clock(), &path_of(matches, "path"))?)
}

/// Opens all of the directory that is named; what has to be sorted is, in a directory for temporary files.
fn open(matches: &ArgMatches) -> Result<DataDir, ToolError> {
    let scratch = std::env::temp_dir().join(format!("metricsstore-tsdb-{}", std::process::id()));
    open_sorted(matches, &scratch, RANGE_MS)
}

fn open_sorted(matches: &ArgMatches, scratch: &Path, range_ms: i64) -> Result<DataDir, ToolError> {
    let mut dir = open_blocks(matches)?;
    let mut progress = progress::Progress::new();
    dir.read_log(scratch, range_ms, &mut |done, total| progress.at_bytes(done, total))?;
    Ok(dir)
}

/// What `--match`, `--min-time` and `--max-time` select.
fn selected(matches: &ArgMatches) -> Result<Selected, ToolError> {
    Ok(Selected {
        block: None,
        any_of: any_of(matches)?,
        min_ms: milliseconds(matches, "min-time")?.unwrap_or(i64::MIN),
        max_ms: milliseconds(matches, "max-time")?.unwrap_or(i64::MAX),
    })
}

fn any_of(matches: &ArgMatches) -> Result<Vec<Vec<Matcher>>, ToolError> {
    let features = Features::default();
    let parse = |text: &String| {
        parse_selector_with(text, features)
            .map_err(|error| ToolError::Wrong(format!("--match {text}: {error}")))
    };
    matches.get_many::<String>("match").into_iter().flatten().map(parse).collect()
}

fn milliseconds(matches: &ArgMatches, name: &str) -> Result<Option<i64>, ToolError> {
    match matches.get_one::<String>(name) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            ToolError::Wrong(format!("--{name} {text}: write milliseconds since the epoch, a whole number"))
        }),
    }
}

fn ulid(text: &str) -> Result<Ulid, ToolError> {
    text.parse().map_err(|_| {
        ToolError::Wrong(format!("{text} is no name of a block: metricsstore tsdb list shows them"))
    })
}

fn duration_ms(matches: &ArgMatches, name: &str) -> Result<i64, ToolError> {
    match PromDuration::parse(text_of(matches, name)) {
        Ok(duration) if duration.ms() > 0 => Ok(duration.ms()),
        Ok(_) => Err(ToolError::Wrong(format!("--{name} must be longer than nothing"))),
        Err(error) => Err(ToolError::Wrong(format!("--{name}: {error}"))),
    }
}
