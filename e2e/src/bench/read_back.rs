//! Reads every sample back over an engine's HTTP API and compares labels, time and value bit for bit.
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use serde::Deserialize;

use super::engine::Kind;
use super::population::{Life, Population, SCRAPE_INTERVAL_MS, SERIES_PER_TARGET};
use super::wire::Connection;

/// Relative error that VictoriaMetrics' values may have: it keeps twelve decimal digits of some.
const DECIMAL_ERROR: f64 = 1e-11;

/// What came back.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Samples with the right labels and time, and the right value.
    pub right: u64,
    /// Samples that were acknowledged and did not come back.
    pub missing: u64,
    /// Of those that are right, how many are not so to the last bit (only VictoriaMetrics).
    pub rounded: u64,
}

/// What is expected to come back, and from where.
pub struct ReadBack<'a> {
    /// Whose samples.
    pub population: &'a Population,
    /// Scrapes of every series.
    pub scrapes: usize,
    /// Beginning of the first scrape.
    pub start_ms: i64,
    /// Whom to ask.
    pub engine: Kind,
    /// Where.
    pub address: SocketAddr,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    data: Data<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    result: Vec<Series<'a>>,
}

type Labels<'a> = HashMap<Cow<'a, str>, Cow<'a, str>>;

#[derive(Deserialize)]
struct Series<'a> {
    #[serde(borrow)]
    metric: Labels<'a>,
    #[serde(borrow, default)]
    values: Vec<(f64, &'a str)>,
    #[serde(borrow, default)]
    value: Option<(f64, &'a str)>,
}

/// A series that came back: times in milliseconds.
struct Got {
    key: String,
    samples: Vec<(i64, f64)>,
}

impl ReadBack<'_> {
    /// Reads everything; an error on the first sample that is wrong.
    pub fn all(&self) -> io::Result<Found> {
        let mut connection = Connection::open(self.address)?;
        if self.engine == Kind::VictoriaMetrics {
            let answer = connection.get("/internal/force_flush")?;
            if answer.status != 200 {
                return Err(answer.error("flush"));
            }
        }
        let mut found = Found::default();
        for target in 0..self.population.targets() {
            for life in self.population.lives(target, self.scrapes) {
                let got = self.fetch(&mut connection, &life)?;
                self.check(&life, got, &mut found)?;
            }
        }
        Ok(found)
    }

    /// Whether an instant query for one target at one scrape answers what was sent, or a part of it when the engine
    /// `may_lose` some.
    pub fn is_right_at(&self, target: usize, scrape: usize, may_lose: bool) -> io::Result<bool> {
        let life = self.population.life_at(target, scrape);
        let time = seconds(self.population.timestamp_ms(&life, 0, scrape, self.start_ms));
        let path = format!("/api/v1/query?query={}&time={time}", self.selector(&life));
        let answer = Connection::open(self.address)?.get(&path)?;
        let Ok(response) = serde_json::from_slice::<Response>(&answer.body) else { return Ok(false) };
        let mut expected = self.expected(&life);
        for series in &response.data.result {
            let (Some(index), Some((_, text))) = (expected.remove(&key(&series.metric)), series.value) else {
                return Ok(false);
            };
            let wanted = self.population.value(&life, index, scrape);
            if !text.parse().is_ok_and(|value| self.agrees(value, wanted)) {
                return Ok(false);
            }
        }
        Ok(answer.status == 200 && (may_lose || expected.is_empty()))
    }

    /// Whether a value is what was sent: to the last bit, but for VictoriaMetrics.
    fn agrees(&self, value: f64, wanted: f64) -> bool {
        let near = (value - wanted).abs() <= wanted.abs() * DECIMAL_ERROR;
        value.to_bits() == wanted.to_bits() || (near && self.engine == Kind::VictoriaMetrics)
    }

    fn selector(&self, life: &Life) -> String {
        format!("%7Binstance%3D%22{}%22%7D", self.population.instance(life).replace(':', "%3A"))
    }

    /// All samples of one life of a target.
    fn fetch(&self, connection: &mut Connection, life: &Life) -> io::Result<Vec<Got>> {
        let at = |scrape: usize| self.start_ms + scrape as i64 * SCRAPE_INTERVAL_MS;
        let (from, to) = (at(life.scrapes.start) - 1, at(life.scrapes.end) + SCRAPE_INTERVAL_MS);
        let selector = self.selector(life);
        // VictoriaMetrics leaves out the last half minute otherwise.
        let all = if self.engine == Kind::VictoriaMetrics { "&nocache=1" } else { "" };
        let path = format!("/api/v1/query?query={selector}%5B{}ms%5D&time={}{all}", to - from, seconds(to));
        let answer = connection.get(&path)?;
        if answer.status != 200 {
            return Err(answer.error(&path));
        }
        query(&answer.body).map_err(io::Error::other)
    }

    fn expected(&self, life: &Life) -> HashMap<String, usize> {
        let labels = |series| {
            let pairs = self.population.labels(life, series);
            pairs
                .into_iter()
                .map(|(name, value)| (Cow::Borrowed(name), Cow::Owned(value)))
                .collect::<Labels>()
        };
        (0..SERIES_PER_TARGET).map(|series| (key(&labels(series)), series)).collect()
    }

    fn check(&self, life: &Life, got: Vec<Got>, found: &mut Found) -> io::Result<()> {
        let mut expected = self.expected(life);
        for series in got {
            let Some(index) = expected.remove(&series.key) else {
                let what = format!("a series came back that was not sent, or twice: {}", series.key);
                return Err(io::Error::other(what));
            };
            let mut rest = series.samples.into_iter().peekable();
            for scrape in life.scrapes.clone() {
                let time_ms = self.population.timestamp_ms(life, index, scrape, self.start_ms);
                let Some((_, value)) = rest.next_if(|(time, _)| *time == time_ms) else {
                    found.missing += 1;
                    continue;
                };
                let wanted = self.population.value(life, index, scrape);
                if !self.agrees(value, wanted) {
                    return Err(wrong(&series.key, time_ms, &format!("{value} instead of {wanted}")));
                }
                found.rounded += u64::from(value.to_bits() != wanted.to_bits());
                found.right += 1;
            }
            if let Some((time_ms, value)) = rest.next() {
                return Err(wrong(
                    &series.key,
                    time_ms,
                    &format!("{value}, which was not sent for that time"),
                ));
            }
        }
        found.missing += (expected.len() * life.scrapes.len()) as u64;
        Ok(())
    }
}

fn wrong(series: &str, time_ms: i64, what: &str) -> io::Error {
    io::Error::other(format!("{series} came back with {what}, at {time_ms}"))
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

fn query(body: &[u8]) -> serde_json::Result<Vec<Got>> {
    let response: Response = serde_json::from_slice(body)?;
    let samples = |series: &Series| {
        let values = series.values.iter();
        values
            .map(|(time, text)| ((time * 1000.0).round() as i64, text.parse().unwrap_or(f64::NAN)))
            .collect()
    };
    Ok(response
        .data
        .result
        .iter()
        .map(|series| Got { key: key(&series.metric), samples: samples(series) })
        .collect())
}

fn key(labels: &Labels) -> String {
    let mut pairs: Vec<_> = labels.iter().collect();
    pairs.sort_unstable();
    pairs.into_iter().flat_map(|(name, value)| [name, "=", value, ","]).collect()
}
