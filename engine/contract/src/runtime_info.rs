//! The body of `/api/v1/status/runtimeinfo`: Prometheus' keys with Prometheus' meaning, and ours beside them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an engine says about itself. Times are RFC 3339 texts.
///
/// A reader may be older or newer than the engine: absent keys take their defaults, unknown ones are ignored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeInfo {
    /// When the process started.
    pub start_time: String,
    /// The working directory.
    #[serde(rename = "CWD")]
    pub cwd: String,
    /// The machine's, in a cluster the pod's name.
    pub hostname: String,
    /// When this was answered.
    pub server_time: String,
    /// Whether the last (re)load of the configuration succeeded.
    pub reload_config_success: bool,
    /// When the configuration in force was loaded.
    pub last_config_time: String,
    /// Damaged pieces found on disk since the start.
    pub corruption_count: u64,
    /// Running tasks: the nearest thing to Prometheus' goroutines.
    pub goroutine_count: u64,
    /// The threads in force; the same as `cpu_threads`.
    #[serde(rename = "GOMAXPROCS")]
    pub gomaxprocs: u32,
    /// The memory budget in force, in bytes; the same as `memory_budget_bytes`.
    #[serde(rename = "GOMEMLIMIT")]
    pub gomemlimit: i64,
    /// Always empty: there is no garbage collector.
    #[serde(rename = "GOGC")]
    pub gogc: String,
    /// Always empty.
    #[serde(rename = "GODEBUG")]
    pub godebug: String,
    /// The retention in force, as Prometheus prints it, such as `15d or 80%`.
    pub storage_retention: String,

    /// The engine's version, without a leading `v`.
    pub version: String,
    /// Replay is done and queries are answered.
    pub ready: bool,
    /// The memory budget in force.
    pub memory_budget_bytes: u64,
    /// The live cgroup limit; `None` without one.
    pub memory_limit_bytes: Option<u64>,
    /// Memory that counts against the budget at this moment.
    pub memory_used_bytes: u64,
    /// `memory_used_bytes` over `memory_budget_bytes`, 0 to 1 and above.
    pub budget_used: f64,
    /// Name of the level of pressure in force, such as `normal` or `refuse_series`.
    pub pressure: String,
    /// Why writes are refused whatever they hold, and what ends that; `None` while they are taken.
    pub read_only: Option<String>,
    /// The threads in force.
    pub cpu_threads: u32,
    /// Live series.
    pub series_count: u64,
    /// Samples acknowledged since the process started.
    pub samples_appended: u64,
    /// Requests, series and samples refused since the process started, by reason (such as `new_series`, `queries`).
    pub refusals: BTreeMap<String, u64>,
    /// Bytes that everything in the data directory may take at present; `None` without a bound.
    pub retention_bytes: Option<u64>,
    /// The data directory and the file system under it.
    pub disk: DiskUsage,
    /// `engine.yaml`; `None` when the engine runs without one.
    pub runtime_config: Option<ConfigVerdict>,
    /// Keys of `engine.yaml` that this engine does not know, by path.
    pub unknown_runtime_keys: Vec<String>,
    /// The configuration file and the files it names, in the order in which they were read.
    pub config_files: Vec<ConfigVerdict>,
}

/// What the engine thinks of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigVerdict {
    /// The file's path as the engine sees it.
    pub path: String,
    /// [`crate::content_hash`] of the contents that this verdict is about.
    pub content_hash: String,
    /// [`crate::content_hash`] of the contents in force: the same when they are good, else of the last good ones; `None`
    /// when there were none.
    pub in_force_hash: Option<String>,
    /// Why the contents are not in force: file, line, column, and the nearest valid key.
    pub error: Option<String>,
}

/// Bytes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskUsage {
    /// Everything in the data directory.
    pub data_bytes: u64,
    /// Used on the file system, whoever uses it.
    pub used_bytes: u64,
    /// The file system's size.
    pub total_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_keys_keep_their_spelling() {
        let json = serde_json::to_value(RuntimeInfo::default()).unwrap();
        for key in [
            "startTime",
            "CWD",
            "hostname",
            "serverTime",
            "reloadConfigSuccess",
            "lastConfigTime",
            "corruptionCount",
            "goroutineCount",
            "GOMAXPROCS",
            "GOMEMLIMIT",
            "GOGC",
            "GODEBUG",
            "storageRetention",
            "memoryBudgetBytes",
            "readOnly",
            "cpuThreads",
            "seriesCount",
            "samplesAppended",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn an_older_engine_and_a_newer_engine_are_understood() {
        let info: RuntimeInfo =
            serde_json::from_str(r#"{"GOMAXPROCS": 2, "memoryBudgetBytes": 5, "somethingNew": {}}"#).unwrap();
        assert_eq!((info.gomaxprocs, info.memory_budget_bytes, info.series_count), (2, 5, 0));
    }
}
