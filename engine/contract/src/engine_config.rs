//! `engine.yaml`: what can change without a restart, written by the operator and read by the engine.
//!
//! An operator may be newer than an engine, so keys that an engine does not know are collected as warnings, never errors.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{BudgetPolicy, OwnHost, PromDuration, RetentionSize, ThreadRule, budget_bytes};

/// The schema version that this code writes.
pub const SCHEMA: u32 = 1;

/// Keys that were not known, kept only by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Unknown(Vec<String>);

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Unknown;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unknown, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Unknown(keys))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The whole of `engine.yaml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineConfig {
    /// [`SCHEMA`] of whoever wrote it.
    pub schema: u32,
    /// The memory budget; absent: the engine's flag, else the default rule on the live limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The number of threads; absent: the engine's flag, else the default rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Threads>,
    /// What is kept; absent: the engine's flags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// Who may send remote write here; absent: everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_write: Option<RemoteWrite>,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

/// The memory budget with what it was worked out from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// `90%` or `512Mi`. The engine applies it to the live cgroup limit, whatever `bytes` says.
    pub policy: BudgetPolicy,
    /// What the operator worked out from the declared limit.
    pub bytes: u64,
    /// The declared `limits.memory`.
    pub limit_bytes: u64,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

/// The number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Threads {
    /// At least 1.
    pub count: u32,
    /// Whether a machine with fewer processors lowers `count` to what it has (there is no CPU limit).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_most_machine: bool,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

/// What is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Samples older than this go.
    pub time: PromDuration,
    /// What everything on disk may take; absent: whatever there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<RetentionSize>,
    /// The claim's capacity: a share is one of this where the file system is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_bytes: Option<u64>,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

/// The rule of a store with two or more replicas, each of which has its own write address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteWrite {
    /// Only requests addressed to the pod itself are taken; others are answered 503 naming `addresses`.
    pub own_host: OwnHost,
    /// One URL per replica; a sender lists all of them.
    pub addresses: Vec<String>,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

impl EngineConfig {
    /// A configuration that decides nothing: every part is left to the engine's flags and defaults.
    pub fn empty() -> EngineConfig {
        EngineConfig {
            schema: SCHEMA,
            budget: None,
            threads: None,
            retention: None,
            remote_write: None,
            unknown: Unknown::default(),
        }
    }

    /// Reads from any format, and lists the keys that were not known by their path, such as `budget.colour`.
    pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<(EngineConfig, Vec<String>), D::Error> {
        let config = EngineConfig::deserialize(from)?;
        let unknown = config.unknown_keys();
        Ok((config, unknown))
    }

    fn unknown_keys(&self) -> Vec<String> {
        let parts = [
            ("", Some(&self.unknown)),
            ("budget.", self.budget.as_ref().map(|part| &part.unknown)),
            ("threads.", self.threads.as_ref().map(|part| &part.unknown)),
            ("retention.", self.retention.as_ref().map(|part| &part.unknown)),
            ("remoteWrite.", self.remote_write.as_ref().map(|part| &part.unknown)),
        ];
        parts
            .into_iter()
            .flat_map(|(at, keys)| {
                keys.into_iter().flat_map(move |keys| keys.0.iter().map(move |key| format!("{at}{key}")))
            })
            .collect()
    }
}

impl Budget {
    /// The budget under the declared `limit_bytes`.
    pub fn new(policy: BudgetPolicy, limit_bytes: u64) -> Budget {
        Budget {
            policy,
            bytes: budget_bytes(policy, Some(limit_bytes), 0),
            limit_bytes,
            unknown: Unknown::default(),
        }
    }

    /// The budget under the limit that holds at this moment; without one, the declared limit decides.
    pub fn under(&self, live_limit_bytes: Option<u64>, machine_bytes: u64) -> u64 {
        budget_bytes(self.policy, live_limit_bytes.or(Some(self.limit_bytes)), machine_bytes)
    }
}

impl Threads {
    /// The number on a machine with `cpus` processors, at least 1.
    pub fn on(&self, cpus: u32) -> u32 {
        let rule = if self.at_most_machine {
            ThreadRule::AtMost(self.count)
        } else {
            ThreadRule::Exactly(self.count.max(1))
        };
        rule.on(cpus)
    }
}

impl From<ThreadRule> for Threads {
    fn from(rule: ThreadRule) -> Threads {
        let (count, at_most_machine) = match rule {
            ThreadRule::Exactly(count) => (count, false),
            ThreadRule::AtMost(count) => (count, true),
        };
        Threads { count, at_most_machine, unknown: Unknown::default() }
    }
}

impl Retention {
    /// By time only.
    pub fn by_time(time: PromDuration) -> Retention {
        Retention { time, size: None, volume_bytes: None, unknown: Unknown::default() }
    }

    /// By time, and by what everything may take on a volume of so many bytes.
    #[must_use]
    pub fn within(self, size: RetentionSize, volume_bytes: u64) -> Retention {
        Retention { size: Some(size), volume_bytes: Some(volume_bytes), ..self }
    }
}

impl RemoteWrite {
    /// The rule of the pods under `own_host` with one of `addresses` each.
    pub fn per_replica(own_host: OwnHost, addresses: Vec<String>) -> RemoteWrite {
        RemoteWrite { own_host, addresses, unknown: Unknown::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> EngineConfig {
        EngineConfig {
            budget: Some(Budget::new(BudgetPolicy::default(), 1 << 30)),
            threads: Some(ThreadRule::AtMost(4).into()),
            retention: Some(
                Retention::by_time(PromDuration::from_ms(15 * 86_400_000))
                    .within(RetentionSize::default(), 50 << 30),
            ),
            remote_write: Some(RemoteWrite::per_replica(
                OwnHost { service: "main-pods".into(), namespace: "m".into() },
                vec!["http://main-0.main-pods.m.svc:9090/api/v1/write".into()],
            )),
            ..EngineConfig::empty()
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = serde_json::to_string(&full()).unwrap();
        let (read, unknown) = EngineConfig::read(&mut serde_json::Deserializer::from_str(&text)).unwrap();
        assert_eq!((read, unknown), (full(), vec![]));
    }

    #[test]
    fn the_keys_have_the_names_of_the_contract() {
        let json = serde_json::to_value(full()).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["budget"]["policy"], "90%");
        assert_eq!(json["budget"]["bytes"], 966_367_641);
        assert_eq!(json["budget"]["limitBytes"], 1_073_741_824);
        assert_eq!(json["threads"], serde_json::json!({ "count": 4, "atMostMachine": true }));
        assert_eq!(
            json["retention"],
            serde_json::json!({ "time": "15d", "size": "80%", "volumeBytes": 53_687_091_200_u64 })
        );
        assert_eq!(json["remoteWrite"]["ownHost"]["service"], "main-pods");
    }

    #[test]
    fn keys_of_a_newer_operator_are_listed_and_the_rest_holds() {
        let text = r#"{"schema": 2, "colour": "red", "budget":
            {"policy": "90%", "bytes": 1, "limitBytes": 1073741824, "burst": {"a": [1]}}}"#;
        let (config, unknown) = EngineConfig::read(&mut serde_json::Deserializer::from_str(text)).unwrap();
        assert_eq!(unknown, ["colour", "budget.burst"]);
        assert_eq!(config.budget.unwrap().under(None, 1 << 40), 966_367_641);
    }

    #[test]
    fn the_live_limit_wins_over_the_declared_one() {
        let budget = Budget::new(BudgetPolicy::default(), 1 << 30);
        assert_eq!(budget.under(Some(128 << 20), 1 << 40), 100_663_296);
    }
}
