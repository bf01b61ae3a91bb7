//! A made-up but Kubernetes-like population of series, the same for a seed on every machine.
//!
//! Targets have 200 series each, in a fixed order, with about 280 label bytes a series. What the values are like, how
//! the times of one scrape differ, and whether targets are replaced is the population's [`Shape`].
use std::ops::Range;

/// Series of one target.
pub const SERIES_PER_TARGET: usize = 200;
/// Time between two scrapes of a target.
pub const SCRAPE_INTERVAL_MS: i64 = 15_000;
/// Scrapes after which a tenth of the targets is replaced by new ones, when they are replaced: ten minutes.
const SCRAPES_PER_REPLACEMENT: usize = 40;
/// One in so many targets is replaced each time.
const REPLACED_ONE_IN: usize = 10;
/// Times that are a series' own differ by less than this from one scrape to the next.
const JITTER_MS: u64 = 100;

/// What values are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Constants, integer and float counters, integer gauges and a few doubles; two in three samples repeat the last.
    Usual,
    /// Half of the series are pseudo-random doubles of full precision, half are counters `base + rate · t` of full
    /// precision: about 3.7 bytes of information a sample.
    Incompressible,
}

/// How the times of one scrape differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// All series of a target have one time, always at the same distance.
    OfTarget,
    /// All series of a target have one time, which varies by up to 100 ms from scrape to scrape.
    OfTargetVarying,
    /// Every series has its own time, which varies by up to 100 ms from scrape to scrape.
    OfSeries,
}

/// What kind of series a population has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Their values.
    pub values: Values,
    /// Their times.
    pub times: Times,
    /// Whether a tenth of the targets, with all their series, is replaced every ten minutes.
    pub churn: bool,
}

impl Shape {
    /// Usual values, times of targets, always the same series.
    pub const USUAL: Shape = Shape { values: Values::Usual, times: Times::OfTarget, churn: false };
}

/// The population: everything follows from the seed, the shape and the number of targets.
#[derive(Debug, Clone, Copy)]
pub struct Population {
    seed: u64,
    targets: usize,
    shape: Shape,
}

/// One life of a target: it begins anew, under another name, when it is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Which target.
    pub target: usize,
    /// How often it was replaced.
    pub generation: usize,
    /// The scrapes it lives for.
    pub scrapes: Range<usize>,
}

/// Families of a target's page: name, the label that tells its series apart, and how many there are.
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
    /// A population of `series` series at any time (rounded up to whole targets).
    pub fn new(seed: u64, series: usize, shape: Shape) -> Population {
        Population { seed, targets: series.div_ceil(SERIES_PER_TARGET), shape }
    }

    /// Number of targets at any time.
    pub fn targets(&self) -> usize {
        self.targets
    }

    /// Number of series at any time.
    pub fn series(&self) -> usize {
        self.targets * SERIES_PER_TARGET
    }

    /// The life that a target leads at a scrape, with no end to its scrapes.
    pub fn life_at(&self, target: usize, scrape: usize) -> Life {
        let life = |generation: usize, scrapes| Life { target, generation, scrapes };
        if !self.shape.churn {
            return life(0, 0..usize::MAX);
        }
        // Replacements are counted from 1; a target's turn is every tenth.
        let first = (1 + target % REPLACED_ONE_IN) * SCRAPES_PER_REPLACEMENT;
        if scrape < first {
            return life(0, 0..first);
        }
        let every = REPLACED_ONE_IN * SCRAPES_PER_REPLACEMENT;
        let generation = 1 + (scrape - first) / every;
        let begin = first + (generation - 1) * every;
        life(generation, begin..begin + every)
    }

    /// All lives of a target within the first `scrapes` scrapes.
    pub fn lives(&self, target: usize, scrapes: usize) -> Vec<Life> {
        let mut lives = Vec::new();
        let mut next = 0;
        while next < scrapes {
            let mut life = self.life_at(target, next);
            life.scrapes.end = life.scrapes.end.min(scrapes);
            next = life.scrapes.end;
            lives.push(life);
        }
        lives
    }

    fn random(&self, a: u64, b: u64) -> u64 {
        mix(self.seed ^ mix(a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(b)))
    }

    /// A number that no other life has.
    fn number(&self, life: &Life) -> usize {
        life.generation * self.targets + life.target
    }

    /// The `instance` label of a life, which tells lives apart.
    pub fn instance(&self, life: &Life) -> String {
        let number = self.number(life);
        format!("10.{}.{}.{}:9090", 64 + number / 65_536, number / 256 % 256, number % 256)
    }

    /// Sorted label pairs of one series.
    pub fn labels(&self, life: &Life, series: usize) -> Vec<(&'static str, String)> {
        let (family, own_label, index) = family_of(series);
        let target = life.target;
        let namespace = format!("team-{:02}-production", target / 25 % 100);
        let workload = format!("service-{:04}", target / 5);
        let hash = self.random(self.number(life) as u64, 1);
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
            ("instance", self.instance(life)),
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

    /// When a series is sampled for the `scrape`-th time, for a run that starts at `start_ms`: targets are spread over
    /// the interval.
    pub fn timestamp_ms(&self, life: &Life, series: usize, scrape: usize, start_ms: i64) -> i64 {
        let id = self.id(life, series);
        let interval = SCRAPE_INTERVAL_MS as u64;
        let offset = match self.shape.times {
            Times::OfTarget => self.random(self.number(life) as u64, 2) % interval,
            Times::OfTargetVarying => self.varying(self.number(life) as u64, scrape),
            Times::OfSeries => self.varying(id, scrape),
        };
        start_ms + offset as i64 + scrape as i64 * SCRAPE_INTERVAL_MS
    }

    /// When in the interval something is sampled whose time varies.
    fn varying(&self, id: u64, scrape: usize) -> u64 {
        self.random(id, 2) % (SCRAPE_INTERVAL_MS as u64 - JITTER_MS)
            + self.random(id, 200_000 + scrape as u64) % JITTER_MS
    }

    fn id(&self, life: &Life, series: usize) -> u64 {
        (self.number(life) * SERIES_PER_TARGET + series) as u64
    }

    /// The value of one series at one scrape.
    pub fn value(&self, life: &Life, series: usize, scrape: usize) -> f64 {
        let id = self.id(life, series);
        let noise = || self.random(id, 100 + scrape as u64);
        let age = (scrape - life.scrapes.start) as u64;
        if self.shape.values == Values::Incompressible {
            return match id % 2 {
                0 => unit(noise()),
                _ => unit(self.random(id, 4)) * 1e6 + unit(self.random(id, 5)) * 100.0 * (age * 15) as f64,
            };
        }
        let start = self.random(id, 4) % 1_000_000;
        let step = 1 + self.random(id, 5) % 200;
        match self.random(id, 3) % 100 {
            0..58 => (start % 7) as f64,
            58..80 => (start + step * self.moved(id, age)) as f64,
            80..88 => (start as f64 + age as f64 * step as f64 * 0.37) / 1000.0,
            88..96 => (start % 10_000 + noise() % (1 + step)) as f64,
            _ => unit(noise()),
        }
    }

    /// How often a counter moved in its first `age` scrapes: it rests one scrape in four, as most do.
    fn moved(&self, id: u64, age: u64) -> u64 {
        // Two random bits a scrape; the counter rests when both are zero.
        let moves = |word: u64| ((word | word >> 1) & 0x5555_5555_5555_5555).count_ones();
        let word = |block: u64| self.random(id, 1000 + block);
        let whole: u32 = (0..age / 32).map(|block| moves(word(block))).sum();
        let rest = word(age / 32) & ((1 << (age % 32 * 2)) - 1);
        u64::from(whole + moves(rest))
    }
}

/// In `[0, 1)`, with all the precision a double has there.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
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

    use super::*;

    #[test]
    fn families_fill_a_target() {
        assert_eq!(FAMILIES.iter().map(|family| family.2).sum::<usize>(), SERIES_PER_TARGET);
    }

    #[test]
    fn every_series_is_one_of_a_kind_and_about_280_bytes_long() {
        let population = Population::new(1, 2000, Shape { churn: true, ..Shape::USUAL });
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for life in (0..population.targets()).flat_map(|target| population.lives(target, 100)) {
            for series in 0..SERIES_PER_TARGET {
                let labels = population.labels(&life, series);
                assert!(labels.is_sorted());
                bytes += labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
                assert!(seen.insert(labels));
            }
        }
        let mean = bytes / seen.len();
        assert!((260..300).contains(&mean), "{mean} label bytes a series");
    }

    #[test]
    fn about_two_in_three_samples_repeat() {
        let population = Population::new(1, 2000, Shape::USUAL);
        let mut repeats = 0;
        let mut all = 0;
        for target in 0..population.targets() {
            let life = population.life_at(target, 0);
            for series in 0..SERIES_PER_TARGET {
                for scrape in 1..50 {
                    all += 1;
                    let value = |s| population.value(&life, series, s).to_bits();
                    repeats += usize::from(value(scrape) == value(scrape - 1));
                }
            }
        }
        let share = repeats * 100 / all;
        assert!((60..70).contains(&share), "{share} % repeat");
    }

    #[test]
    fn a_tenth_of_the_targets_is_replaced_every_ten_minutes() {
        let population = Population::new(1, 100 * SERIES_PER_TARGET, Shape { churn: true, ..Shape::USUAL });
        let replaced = |at: usize| {
            let differs =
                |&target: &usize| population.life_at(target, at) != population.life_at(target, at - 1);
            (0..100).filter(differs).count()
        };
        assert_eq!((1..40).map(replaced).sum::<usize>(), 0);
        assert!((1..36).all(|k| replaced(k * 40) == 10));
        for target in 0..100 {
            let lives = population.lives(target, 1440);
            assert_eq!(lives.iter().map(|life| life.scrapes.len()).sum::<usize>(), 1440);
            assert!(lives.is_sorted_by(|a, b| a.scrapes.end == b.scrapes.start));
        }
    }

    #[test]
    fn counters_never_fall_and_rest_one_scrape_in_four() {
        let population = Population::new(1, 200, Shape::USUAL);
        let moves = |age| population.moved(7, age + 1) - population.moved(7, age);
        assert!((0..4000).all(|age| moves(age) <= 1));
        assert!((2900..3100).contains(&population.moved(7, 4000)), "{}", population.moved(7, 4000));
    }
}
