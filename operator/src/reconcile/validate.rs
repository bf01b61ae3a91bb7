//! Defaults are resolved and what cannot be carried out is refused with the cure. No client, no clock.
//!
//! The API server's rules have seen most mistakes already; they are looked at again because a store may be older than
//! the rules.

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use metricsstore_contract::{
    Budget, BudgetPolicy, PromDuration, Quantity, RetentionSize, ThreadRule, sizing,
};
use metricsstore_crds::{Amount, BlockFormat, MetricsStore, Receiver};

/// With less, an engine would refuse its first series.
const MIN_BUDGET_BYTES: u64 = 32 << 20;

/// Why a spec, or what it comes to, is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// One word for the condition's reason.
    pub reason: &'static str,
    /// What, on what, and the cure.
    pub message: String,
}

impl Refusal {
    /// A refusal of this reason.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { reason, message: message.into() }
    }
}

/// A store whose every field has a value.
#[derive(Debug, Clone)]
pub struct Valid {
    /// The store's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The engine's image.
    pub image: String,
    /// Names of Secrets to pull it with.
    pub image_pull_secrets: Vec<String>,
    /// Complete copies.
    pub replicas: i32,
    /// Requests and limits of the engine's container.
    pub resources: ContainerResources,
    /// How the memory budget follows from the limit.
    pub budget: BudgetPolicy,
    /// How many threads the engine runs.
    pub threads: ThreadRule,
    /// The number of threads that the spec names; the engine takes it at its start.
    pub threads_named: Option<u32>,
    /// How long samples are kept.
    pub retention: PromDuration,
    /// What everything on a volume may take.
    pub retention_size: RetentionSize,
    /// Format of the blocks that are written.
    pub block_format: BlockFormat,
    /// How far behind samples are accepted out of order; nothing by default.
    pub out_of_order_window: PromDuration,
    /// Wanted size of each volume.
    pub storage_size: Quantity,
    /// The storage class; `None` is the cluster's default.
    pub storage_class: Option<String>,
    /// How often is scraped.
    pub scrape_interval: PromDuration,
    /// When a scrape is given up.
    pub scrape_timeout: PromDuration,
    /// Whether remote write is taken.
    pub remote_write: bool,
    /// Where pods may run.
    pub scheduling: Placement,
    /// Nothing is to be changed.
    pub paused: bool,
}

/// Requests and limits, by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerResources {
    /// Processors that a node must have free.
    pub request_cpu: Option<Quantity>,
    /// Bytes that a node must have free.
    pub request_memory: Quantity,
    /// Processors that may be used.
    pub limit_cpu: Option<Quantity>,
    /// Bytes that may be used.
    pub limit_memory: Quantity,
}

/// Where pods may run.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Placement {
    pub node_selector: Option<std::collections::BTreeMap<String, String>>,
    pub affinity: Option<Affinity>,
    pub tolerations: Option<Vec<Toleration>>,
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    pub priority_class_name: Option<String>,
}

/// Resolves `store`; `own_image` is what the operator itself runs.
pub fn validate(store: &MetricsStore, own_image: &str) -> Result<Valid, Refusal> {
    let spec = &store.spec;
    let meta = &store.metadata;
    let resources = resources(store)?;
    let (interval, timeout) = scrape_times(store)?;
    let storage = spec.storage.clone().unwrap_or_default();
    Ok(Valid {
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        image: spec.image.clone().unwrap_or_else(|| own_image.to_owned()),
        image_pull_secrets: spec
            .image_pull_secrets
            .iter()
            .flatten()
            .map(|secret| secret.name.clone())
            .collect(),
        replicas: replicas(store)?,
        resources,
        budget: budget(store, resources.limit_memory.floor_units())?,
        threads: ThreadRule::new(threads(store)?, resources.limit_cpu, resources.request_cpu),
        threads_named: threads(store)?,
        retention: duration(
            "retention.time",
            spec.retention.as_ref().and_then(|r| r.time.as_deref()),
            "15d",
        )?,
        retention_size: retention_size(store)?,
        block_format: spec.tsdb.as_ref().and_then(|tsdb| tsdb.block_format).unwrap_or_default(),
        out_of_order_window: parsed_duration(
            "tsdb.outOfOrderTimeWindow",
            spec.tsdb.as_ref().and_then(|tsdb| tsdb.out_of_order_time_window.as_deref()).unwrap_or("0s"),
        )?,
        storage_size: positive("storage.size", required(storage.size.as_ref(), "storage.size", "50Gi")?)?,
        storage_class: storage.storage_class_name,
        scrape_interval: interval,
        scrape_timeout: timeout,
        remote_write: spec.remote_write.as_ref().and_then(|r| r.receiver).unwrap_or_default()
            == Receiver::Enabled,
        scheduling: placement(store),
        paused: spec.paused.unwrap_or_default(),
    })
}

fn refuse(message: String) -> Refusal {
    Refusal::new("InvalidSpec", message)
}

fn required<'a>(amount: Option<&'a Amount>, field: &str, example: &str) -> Result<&'a Amount, Refusal> {
    amount.ok_or_else(|| refuse(format!("spec.{field} is missing: add it, for example {example}")))
}

fn quantity(field: &str, amount: &Amount) -> Result<Quantity, Refusal> {
    amount.quantity().map_err(|error| refuse(format!("spec.{field}: {error}")))
}

fn positive(field: &str, amount: &Amount) -> Result<Quantity, Refusal> {
    let quantity = quantity(field, amount)?;
    if quantity.is_positive() {
        Ok(quantity)
    } else {
        Err(refuse(format!("spec.{field} is {amount}: it must be above 0")))
    }
}

fn resources(store: &MetricsStore) -> Result<ContainerResources, Refusal> {
    let resources = store.spec.resources.clone().unwrap_or_default();
    let (limits, requests) = (resources.limits.unwrap_or_default(), resources.requests.unwrap_or_default());
    let memory = required(limits.memory.as_ref(), "resources.limits.memory", "1Gi")?;
    let limit_memory = positive("resources.limits.memory", memory)?;
    if limit_memory.floor_units() < sizing::MIN_LIMIT_BYTES {
        return Err(refuse(format!("spec.resources.limits.memory is {memory}: set 128Mi or more")));
    }
    // From an exbibyte on, a control group's limit means that there is none.
    if limit_memory.floor_units() >= 1 << 60 {
        return Err(refuse(format!("spec.resources.limits.memory is {memory}: set less than 1Ei")));
    }
    let optional =
        |field: &str, amount: &Option<Amount>| amount.as_ref().map(|a| quantity(field, a)).transpose();
    let limit_cpu = optional("resources.limits.cpu", &limits.cpu)?;
    Ok(ContainerResources {
        // The API server fills absent requests in from the limits; saying so ourselves lets both be compared by value.
        request_cpu: optional("resources.requests.cpu", &requests.cpu)?.or(limit_cpu),
        request_memory: optional("resources.requests.memory", &requests.memory)?.unwrap_or(limit_memory),
        limit_cpu,
        limit_memory,
    })
}

fn replicas(store: &MetricsStore) -> Result<i32, Refusal> {
    match store.spec.replicas.unwrap_or(1) {
        replicas @ 0..=9 => Ok(replicas),
        other => Err(refuse(format!("spec.replicas is {other}: write 0 (hibernated, claims kept) to 9"))),
    }
}

/// The share of a limit, or the quantity, must come to something that an engine can work with.
fn budget(store: &MetricsStore, limit: u64) -> Result<BudgetPolicy, Refusal> {
    let Some(text) = store.spec.memory.as_ref().and_then(|memory| memory.budget.as_ref()) else {
        return Ok(BudgetPolicy::default());
    };
    let policy = text.0.parse().map_err(|error| refuse(format!("spec.memory.budget: {error}")))?;
    let bytes = Budget::new(policy, limit).bytes;
    if bytes < MIN_BUDGET_BYTES {
        return Err(refuse(format!(
            "spec.memory.budget {text} comes to {bytes} bytes, and an engine needs 32Mi: leave it out for 90%, or raise \
             resources.limits.memory"
        )));
    }
    Ok(policy)
}

fn retention_size(store: &MetricsStore) -> Result<RetentionSize, Refusal> {
    let size = store.spec.retention.as_ref().and_then(|retention| retention.size.as_ref());
    size.map_or(Ok(RetentionSize::default()), |text| {
        text.0.parse().map_err(|error| refuse(format!("spec.retention.size: {error}")))
    })
}

fn threads(store: &MetricsStore) -> Result<Option<u32>, Refusal> {
    match store.spec.cpu.as_ref().and_then(|cpu| cpu.threads) {
        None => Ok(None),
        Some(threads @ 1..=256) => Ok(Some(threads.unsigned_abs())),
        Some(other) => Err(refuse(format!("spec.cpu.threads is {other}: write 1 to 256, or leave it out"))),
    }
}

fn parsed_duration(field: &str, text: &str) -> Result<PromDuration, Refusal> {
    PromDuration::parse(text).map_err(|error| refuse(format!("spec.{field}: {error}")))
}

fn duration(field: &str, text: Option<&str>, default: &str) -> Result<PromDuration, Refusal> {
    let duration = parsed_duration(field, text.unwrap_or(default))?;
    if duration.ms() == 0 {
        return Err(refuse(format!("spec.{field} is nothing: write for example {default}")));
    }
    Ok(duration)
}

/// A timeout that nobody set is never longer than the interval.
fn scrape_times(store: &MetricsStore) -> Result<(PromDuration, PromDuration), Refusal> {
    let scrape = store.spec.scrape.clone().unwrap_or_default();
    let interval = duration("scrape.interval", scrape.interval.as_deref(), "15s")?;
    let timeout = duration("scrape.timeout", scrape.timeout.as_deref(), "10s")?;
    match scrape.timeout {
        None => Ok((interval, timeout.min(interval))),
        Some(_) if timeout <= interval => Ok((interval, timeout)),
        Some(_) => Err(refuse(format!(
            "spec.scrape.timeout {timeout} is longer than the interval {interval}: set scrape.timeout to {interval} or less"
        ))),
    }
}

fn placement(store: &MetricsStore) -> Placement {
    let scheduling = store.spec.scheduling.clone().unwrap_or_default();
    Placement {
        node_selector: scheduling.node_selector.filter(|labels| !labels.is_empty()),
        affinity: scheduling.affinity,
        tolerations: scheduling.tolerations.filter(|list| !list.is_empty()),
        topology_spread_constraints: scheduling.topology_spread_constraints,
        priority_class_name: scheduling.priority_class_name.filter(|name| !name.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{IMAGE, store, valid};

    const GI: &str = "resources: { limits: { memory: 1Gi } }";

    #[test]
    fn the_smallest_store_gets_every_default() {
        let valid = valid(GI);
        assert_eq!(valid.image, IMAGE);
        assert_eq!((valid.replicas, valid.remote_write, valid.paused), (1, true, false));
        assert_eq!(
            (valid.retention.to_string(), valid.retention_size.to_string()),
            ("15d".into(), "80%".into())
        );
        assert_eq!(
            (valid.scrape_interval.to_string(), valid.scrape_timeout.to_string()),
            ("15s".into(), "10s".into())
        );
        assert_eq!(valid.budget, BudgetPolicy::Share(9_000));
        // As the API server does it: what is not requested is the limit.
        assert_eq!(valid.resources.request_memory, valid.resources.limit_memory);
        assert_eq!(valid.resources.request_cpu, None);
    }

    #[test]
    fn a_timeout_that_nobody_set_is_never_longer_than_the_interval() {
        let short = valid("resources: { limits: { memory: 1Gi } }, scrape: { interval: 5s }");
        assert_eq!(short.scrape_timeout.to_string(), "5s");
        let store = store("resources: { limits: { memory: 1Gi } }, scrape: { interval: 5s, timeout: 6s }");
        let refusal = validate(&store, IMAGE).unwrap_err();
        assert!(refusal.message.contains("set scrape.timeout to 5s or less"), "{refusal}");
    }

    #[test]
    fn stores_older_than_the_schemas_rules_are_refused_with_the_cure() {
        for (fields, cure) in [
            ("replicas: 1", "spec.resources.limits.memory is missing: add it, for example 1Gi"),
            ("resources: { limits: { memory: 64Mi } }", "set 128Mi or more"),
            ("resources: { limits: { memory: 1Gi } }, storage: {}", "spec.storage.size is missing"),
            ("resources: { limits: { memory: 1Gi } }, storage: { size: big }", "write a number"),
            (
                "resources: { limits: { memory: 1Gi } }, replicas: 10",
                "write 0 (hibernated, claims kept) to 9",
            ),
            ("resources: { limits: { memory: 1Gi } }, memory: { budget: 200% }", "write 1% to 100%"),
            ("resources: { limits: { memory: 1Gi } }, memory: { budget: 90 }", "comes to 90 bytes"),
            ("resources: { limits: { memory: 1Gi } }, memory: { budget: 1% }", "leave it out for 90%"),
            ("resources: { limits: { memory: 9Ei } }", "set less than 1Ei"),
            ("resources: { limits: { memory: 1Gi } }, cpu: { threads: 0 }", "write 1 to 256"),
            ("resources: { limits: { memory: 1Gi } }, retention: { time: 1x }", "for example 15d"),
            ("resources: { limits: { memory: 1Gi } }, retention: { size: 101% }", "such as 80%"),
            ("resources: { limits: { memory: 1Gi } }, retention: { size: much }", "spec.retention.size: "),
        ] {
            let refusal = validate(&store(fields), IMAGE).unwrap_err();
            assert_eq!(refusal.reason, "InvalidSpec");
            assert!(refusal.message.contains(cure), "{fields}: {refusal}");
        }
    }
}
