//! From limits to `engine.yaml`.

use metricsstore_contract::{Budget, EngineConfig, OwnHost, Quantity, RemoteWrite, Retention, RuntimeInfo};

use super::names;
use crate::reconcile::Valid;

/// Everything that changes without a restart, on volumes of this size.
pub fn engine_config(valid: &Valid, volume: Quantity) -> EngineConfig {
    let mut config = EngineConfig::empty();
    config.budget = Some(Budget::new(valid.budget, valid.resources.limit_memory.floor_units()));
    config.threads = Some(valid.threads.into());
    config.retention =
        Some(Retention::by_time(valid.retention).within(valid.retention_size, volume.floor_units()));
    config.remote_write = (valid.replicas > 1).then(|| {
        let own = OwnHost { service: names::pods_service(&valid.name), namespace: valid.namespace.clone() };
        RemoteWrite::per_replica(own, names::write_addresses(&valid.name, &valid.namespace, valid.replicas))
    });
    config
}

/// The budget that follows from the declared limit.
pub fn budget_bytes(valid: &Valid) -> u64 {
    Budget::new(valid.budget, valid.resources.limit_memory.floor_units()).bytes
}

/// What an engine reports that the plan does not say, in words; `None` when it has arrived.
///
/// The budget is compared only where the engine sees the declared limit: on another live limit (someone resized the pod)
/// it rightly works out another one.
pub fn not_yet_in_force(valid: &Valid, info: &RuntimeInfo) -> Option<String> {
    let planned = budget_bytes(valid);
    let limit = valid.resources.limit_memory.floor_units();
    if info.memory_limit_bytes.is_none_or(|live| live == limit) && info.memory_budget_bytes != planned {
        return Some(format!("memory budget {} is in force, {planned} is planned", info.memory_budget_bytes));
    }
    // Behind the time there may be a size, which an older engine does not know: nothing waits for that.
    let retention = valid.retention.to_string();
    if info.storage_retention.split(" or ").next() != Some(&*retention) {
        return Some(format!("retention {} is in force, {retention} is planned", info.storage_retention));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const VOLUME: Quantity = Quantity::from_units(1 << 30);

    #[test]
    fn retention_goes_with_the_size_of_the_volume_that_a_share_is_one_of() {
        let config = engine_config(
            &fixtures::valid("resources: { limits: { memory: 1Gi } }, retention: { size: 50% }"),
            VOLUME,
        );
        let retention = config.retention.unwrap();
        assert_eq!(retention.size.unwrap().to_string(), "50%");
        assert_eq!((retention.time.to_string(), retention.volume_bytes), ("15d".into(), Some(1 << 30)));
    }

    #[test]
    fn the_limit_and_the_budget_are_written_together() {
        let config =
            engine_config(&fixtures::valid("resources: { limits: { memory: 1Gi, cpu: 1500m } }"), VOLUME);
        let (budget, threads) = (config.budget.unwrap(), config.threads.unwrap());
        assert_eq!((budget.bytes, budget.limit_bytes), (966_367_641, 1 << 30));
        assert_eq!((threads.count, threads.at_most_machine), (2, false));
        assert_eq!(config.remote_write, None);
    }

    #[test]
    fn two_replicas_take_remote_write_only_under_their_own_names() {
        let config =
            engine_config(&fixtures::valid("resources: { limits: { memory: 1Gi } }, replicas: 2"), VOLUME);
        assert_eq!(
            config.remote_write.unwrap().addresses,
            [
                "http://main-0.main-pods.monitoring.svc:9090/api/v1/write",
                "http://main-1.main-pods.monitoring.svc:9090/api/v1/write"
            ]
        );
    }

    #[test]
    fn a_live_limit_that_someone_else_set_is_no_deviation() {
        let valid = fixtures::valid("resources: { limits: { memory: 1Gi } }");
        let mut info = RuntimeInfo {
            memory_budget_bytes: 966_367_641,
            memory_limit_bytes: Some(1 << 30),
            storage_retention: "15d or 80%".into(),
            ..RuntimeInfo::default()
        };
        assert_eq!(not_yet_in_force(&valid, &info), None);
        "15d".clone_into(&mut info.storage_retention);
        assert_eq!(not_yet_in_force(&valid, &info), None, "an older engine");
        info.memory_budget_bytes = 5;
        assert!(not_yet_in_force(&valid, &info).is_some());
        info.memory_limit_bytes = Some(1 << 29);
        assert_eq!(not_yet_in_force(&valid, &info), None);
    }
}
