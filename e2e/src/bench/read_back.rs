//! Reads every sample back over the query API and compares labels, time and value bit for bit.
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use serde::Deserialize;

use super::population::{Population, SCRAPE_INTERVAL_MS, SERIES_PER_TARGET};
use super::wire::Connection;

#[derive(Deserialize)]
struct Response {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: HashMap<String, String>,
    values: Vec<(f64, String)>,
}

/// Number of samples that came back right; an error on the first that is wrong.
pub fn count(population: &Population, address: SocketAddr, scrapes: usize, start_ms: i64) -> io::Result<u64> {
    let mut connection = Connection::open(address)?;
    let end_ms = start_ms + (scrapes as i64 + 1) * SCRAPE_INTERVAL_MS;
    let range_s = (scrapes as i64 + 2) * SCRAPE_INTERVAL_MS / 1000;
    let mut right = 0;
    for target in 0..population.targets() {
        let query = format!(
            "%7Binstance%3D%22{}%22%7D%5B{range_s}s%5D",
            Population::instance(target).replace(':', "%3A")
        );
        let time = format!("{}.{:03}", end_ms / 1000, end_ms % 1000);
        let answer = connection.get(&format!("/api/v1/query?query={query}&time={time}"))?;
        if answer.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(io::Error::other(format!(
                "query of target {target}: status {}: {text}",
                answer.status
            )));
        }
        let response: Response = serde_json::from_slice(&answer.body).map_err(io::Error::other)?;
        right += check_target(population, target, scrapes, start_ms, &response.data.result)?;
    }
    Ok(right)
}

fn check_target(
    population: &Population,
    target: usize,
    scrapes: usize,
    start_ms: i64,
    found: &[Series],
) -> io::Result<u64> {
    let mut expected = HashMap::with_capacity(SERIES_PER_TARGET);
    for series in 0..SERIES_PER_TARGET {
        let pairs = population.labels(target, series);
        expected.insert(key(pairs.iter().map(|(name, value)| (*name, value.as_str()))), series);
    }
    let mut right = 0;
    for series in found {
        let mut labels: Vec<(&str, &str)> =
            series.metric.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        labels.sort_unstable();
        let Some(index) = expected.remove(&key(labels.iter().copied())) else {
            return Err(io::Error::other(format!(
                "a series came back that was not sent, or twice: {labels:?}"
            )));
        };
        if series.values.len() != scrapes {
            return Err(io::Error::other(format!(
                "{} of {scrapes} samples came back of {labels:?}",
                series.values.len()
            )));
        }
        for (scrape, (time, text)) in series.values.iter().enumerate() {
            let wanted_time = population.timestamp_ms(target, scrape, start_ms);
            let wanted = population.value(target, index, scrape);
            let value: f64 = text.parse().map_err(io::Error::other)?;
            if (time * 1000.0).round() as i64 != wanted_time || value.to_bits() != wanted.to_bits() {
                return Err(io::Error::other(format!(
                    "{labels:?} at {wanted_time} should be {wanted}, but {text} at {time} came back"
                )));
            }
            right += 1;
        }
    }
    Ok(right)
}

fn key<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    pairs.flat_map(|(name, value)| [name, "\u{1}", value, "\u{2}"]).collect()
}
