//! What senders send: series that keep one rhythm, that jitter, that come seldom or in bursts; and everything that
//! senders do wrong.
use metricsstore_model::stale_nan;

use super::oracle::{Bounds, Oracle};
use super::random::Random;
use crate::common::NOW_MS;

/// Series that are sent at any one time.
const SERIES: u64 = 40;
/// The population moves on by some series every so often.
const ERA_MS: i64 = 7_200_000;
const ERA_SERIES: u64 = 13;

/// One series' samples in a request.
pub type Rows = Vec<(u32, Vec<(i64, f64)>)>;

/// Whether a series' samples are histograms.
pub fn is_histogram(series: u32) -> bool {
    series % 5 == 4
}

/// Makes one request.
pub fn request(random: &mut Random, oracle: &Oracle, at: Bounds) -> Rows {
    let target = random.below(4) as i64;
    let era = ((at.now_ms - NOW_MS).max(0) / ERA_MS) as u64 * ERA_SERIES;
    let first = random.below(SERIES);
    let mut rows = Rows::new();
    for index in 0..=random.below(12) {
        let series = (era + (first + index) % SERIES) as u32;
        let mut samples = regular(random, series, at.now_ms + target);
        if random.one_in(6) {
            samples.push(odd(random, oracle, series, at));
        }
        if random.one_in(12) {
            let mut again = samples[samples.len() - 1];
            if random.one_in(3) {
                again.1 = value(random, series);
            }
            samples.push(again);
        }
        // One message with many samples, or many messages.
        if random.one_in(2) {
            rows.push((series, samples));
        } else {
            rows.extend(samples.into_iter().map(|sample| (series, vec![sample])));
        }
    }
    rows
}

/// What a series sends in its rhythm; may be nothing new.
fn regular(random: &mut Random, series: u32, scraped_ms: i64) -> Vec<(i64, f64)> {
    match series % 6 {
        // Own times.
        0 => vec![(scraped_ms + random.below(5000) as i64, value(random, series))],
        // Seldom, else the time of the last full minute again.
        1 if !random.one_in(6) => vec![(scraped_ms / 60_000 * 60_000, f64::from(series))],
        // Bursts.
        2 => {
            let mut time = scraped_ms;
            (0..=random.below(4))
                .map(|_| {
                    time += 1 + random.below(2000) as i64;
                    (time, value(random, series))
                })
                .collect()
        }
        _ => vec![(scraped_ms, value(random, series))],
    }
}

/// A sample that is late, early, at a bound, or there already.
fn odd(random: &mut Random, oracle: &Oracle, series: u32, at: Bounds) -> (i64, f64) {
    let near = |random: &mut Random, bound_ms: i64| bound_ms.saturating_add(random.below(3) as i64 - 1);
    let time = match random.below(10) {
        0 => at.now_ms - random.below(1_900_000) as i64,
        1 => at.now_ms - 15_000,
        2 => at.now_ms + random.below(1000) as i64,
        3 => at.now_ms + 700_000,
        4 => near(random, at.now_ms + 600_000),
        5 => near(random, at.newest.1.saturating_sub(at.lag_ms)),
        6 => near(random, at.newest.1.saturating_sub(at.window_ms)),
        7 => near(random, at.retained_ms),
        _ => {
            let back = at.now_ms - random.below(3_600_000) as i64;
            if let Some((time, bits)) = oracle.sample_near(series, back) {
                let known = f64::from_bits(bits);
                return (time, if random.one_in(3) { value(random, series) } else { known });
            }
            at.now_ms
        }
    };
    (time, value(random, series))
}

fn value(random: &mut Random, series: u32) -> f64 {
    match random.below(10) {
        0 => stale_nan(),
        1 => f64::from_bits(random.next()),
        2 => random.pick(&[-0.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE, 1e300]),
        3 => random.below(1000) as f64 / 100.0,
        4 | 5 => f64::from(series),
        _ => random.below(50) as f64,
    }
}
