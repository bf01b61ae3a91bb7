//! A made-up but Kubernetes-like population of series, the same for a seed on every machine.
//!
//! Targets have 200 series each, in a fixed order, with about 280 label bytes a series. Values: constants, integer and
//! float counters, integer gauges and a few full-precision doubles; about two in three samples repeat the last value.

/// Series of one target.
pub const SERIES_PER_TARGET: usize = 200;
/// Time between two scrapes of a target.
pub const SCRAPE_INTERVAL_MS: i64 = 15_000;

/// The population: everything follows from the seed and the number of targets.
#[derive(Debug, Clone, Copy)]
pub struct Population {
    seed: u64,
    targets: usize,
}

/// Families of a target's page: name, the label that tells its series apart, and how its values move.
const FAMILIES: [(&str, &str, usize); 12] = [
    ("apiserver_request_duration_seconds_bucket", "le", 60),
    ("container_memory_working_set_bytes", "container", 8),
    ("container_network_receive_packets_dropped_total", "interface", 8),
    ("kube_pod_container_status_last_terminated_reason", "reason", 24),
    ("http_server_requests_seconds_count", "uri", 24),
    ("http_server_requests_seconds_sum", "uri", 24),
    ("go_memstats_heap_inuse_bytes", "generation", 4),
    ("process_cpu_seconds_total", "mode", 4),
    ("workqueue_queue_duration_seconds_bucket", "le", 24),
    ("jvm_threads_states_threads", "state", 8),
    ("node_disk_io_time_weighted_seconds_total", "device", 8),
    ("app_cache_hit_ratio", "cache", 4),
];

impl Population {
    /// A population of `series` series (rounded up to whole targets).
    pub fn new(seed: u64, series: usize) -> Population {
        Population { seed, targets: series.div_ceil(SERIES_PER_TARGET) }
    }

    /// Number of targets.
    pub fn targets(&self) -> usize {
        self.targets
    }

    /// Number of series.
    pub fn series(&self) -> usize {
        self.targets * SERIES_PER_TARGET
    }

    fn random(&self, a: u64, b: u64) -> u64 {
        mix(self.seed ^ mix(a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(b)))
    }

    /// The `instance` label of a target, which tells targets apart.
    pub fn instance(target: usize) -> String {
        format!("10.{}.{}.{}:9090", 64 + target / 65_536, target / 256 % 256, target % 256)
    }

    /// Sorted label pairs of one series.
    pub fn labels(&self, target: usize, series: usize) -> Vec<(&'static str, String)> {
        let (family, own_label, index) = family_of(series);
        let namespace = format!("team-{:02}-production", target / 25 % 100);
        let workload = format!("service-{:04}", target / 5);
        let hash = self.random(target as u64, 1);
        let own_value = match own_label {
            "le" => format!("{:.3}", 0.005 * ((index + 1) * (index + 1)) as f64),
            "uri" => format!("/api/v1/resource/{index:02}/items"),
            _ => format!("{own_label}-{index}"),
        };
        let mut labels = vec![
            ("__name__", family.to_owned()),
            ("cluster", "eu-central-1-production".to_owned()),
            ("container", workload.clone()),
            ("endpoint", "http-metrics".to_owned()),
            ("instance", Self::instance(target)),
            ("job", format!("{namespace}/{workload}")),
            ("namespace", namespace),
            ("node", format!("ip-10-0-{}-{}.internal", target / 40 % 256, target % 40)),
            ("pod", format!("{workload}-{:09x}-{:05x}", hash >> 28, hash & 0xf_ffff)),
            ("service", format!("{workload}-metrics")),
        ];
        labels.retain(|(name, _)| *name != own_label);
        labels.push((own_label, own_value));
        labels.sort_unstable();
        labels
    }

    /// When a target is scraped for the `scrape`-th time, for a run that starts at `start_ms`: targets are spread
    /// over the interval, and keep to it.
    pub fn timestamp_ms(&self, target: usize, scrape: usize, start_ms: i64) -> i64 {
        let offset = (self.random(target as u64, 2) % SCRAPE_INTERVAL_MS as u64) as i64;
        start_ms + offset + scrape as i64 * SCRAPE_INTERVAL_MS
    }

    /// The value of one series at one scrape.
    pub fn value(&self, target: usize, series: usize, scrape: usize) -> f64 {
        let id = (target * SERIES_PER_TARGET + series) as u64;
        let kind = self.random(id, 3) % 100;
        let start = self.random(id, 4) % 1_000_000;
        let step = 1 + self.random(id, 5) % 200;
        let noise = self.random(id, 100 + scrape as u64);
        match kind {
            0..58 => (start % 7) as f64,
            58..80 => {
                // A counter that rests one scrape in four, as most do.
                let moved =
                    (0..=scrape as u64).filter(|&s| !self.random(id, 1000 + s).is_multiple_of(4)).count();
                (start + step * moved as u64) as f64
            }
            80..88 => (start as f64 + scrape as f64 * step as f64 * 0.37) / 1000.0,
            88..96 => (start % 10_000 + noise % (1 + step)) as f64,
            _ => (noise >> 11) as f64 / (1u64 << 53) as f64,
        }
    }
}

fn family_of(series: usize) -> (&'static str, &'static str, usize) {
    let mut rest = series;
    for (name, label, count) in FAMILIES {
        if rest < count {
            return (name, label, rest);
        }
        rest -= count;
    }
    unreachable!("the families hold {SERIES_PER_TARGET} series")
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{FAMILIES, Population, SERIES_PER_TARGET};

    #[test]
    fn families_fill_a_target() {
        assert_eq!(FAMILIES.iter().map(|family| family.2).sum::<usize>(), SERIES_PER_TARGET);
    }

    #[test]
    fn every_series_is_one_of_a_kind_and_about_280_bytes_long() {
        let population = Population::new(1, 2000);
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for target in 0..population.targets() {
            for series in 0..SERIES_PER_TARGET {
                let labels = population.labels(target, series);
                assert!(labels.is_sorted());
                bytes += labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
                assert!(seen.insert(labels));
            }
        }
        let mean = bytes / population.series();
        assert!((260..300).contains(&mean), "{mean} label bytes a series");
    }

    #[test]
    fn about_two_in_three_samples_repeat() {
        let population = Population::new(1, 2000);
        let mut repeats = 0;
        let mut all = 0;
        for target in 0..population.targets() {
            for series in 0..SERIES_PER_TARGET {
                for scrape in 1..20 {
                    all += 1;
                    let value = |s| population.value(target, series, s).to_bits();
                    repeats += usize::from(value(scrape) == value(scrape - 1));
                }
            }
        }
        let share = repeats * 100 / all;
        assert!((60..70).contains(&share), "{share} % repeat");
    }
}
