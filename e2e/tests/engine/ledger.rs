//! A writer that keeps a ledger: every sample that it sent, and what became of it. The engine's answers to queries are
//! held against it, bit for bit: everything acknowledged is there, and nothing is there that was never sent.
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use super::matrix::{self, Response};
use super::process::{Engine, Random, encoded};
use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::{Answer, Connection};

/// Longest stretch of data time that a ledger covers.
const RANGE: &str = "6h";
/// A series ends and another begins once in so many requests.
const STEPS_PER_CHURN: u64 = 7;
/// So many requests between two that hold late samples.
const STEPS_PER_LATE: u64 = 10;
/// Late samples lie so far behind.
const LATE_MS: i64 = 60_000;

/// What became of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Answered 204: it must be there.
    Acknowledged,
    /// Answered with the promise that nothing was written: it must not be there.
    Refused,
    /// No answer, or one that speaks of a part: it may be there, as it was sent.
    Unknown,
}

/// What a writer sends.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Series at a time.
    pub series: usize,
    /// Data time of the first request.
    pub start_ms: i64,
    /// Data time between two requests.
    pub step_ms: i64,
    /// Whether samples are sent late too.
    pub late: bool,
    /// Whether all values are doubles that nothing compresses.
    pub incompressible: bool,
}

/// A writer with its ledger.
pub struct Writer {
    name: String,
    plan: Plan,
    random: Random,
    step: u64,
    /// The generation of each series in use.
    generations: Vec<u32>,
    entries: BTreeMap<String, BTreeMap<i64, (u64, Fate)>>,
    connection: Option<Connection>,
    /// Answers by status; 0 stands for none.
    pub answers: BTreeMap<u16, u64>,
}

/// One sample of a request.
struct Sample {
    series: String,
    time_ms: i64,
    bits: u64,
}

impl Writer {
    pub fn new(number: usize, seed: u64, plan: Plan) -> Writer {
        Writer {
            name: format!("w{number}"),
            plan,
            random: Random::new(seed ^ (number as u64) << 32),
            step: 0,
            generations: vec![0; plan.series],
            entries: BTreeMap::new(),
            connection: None,
            answers: BTreeMap::new(),
        }
    }

    /// Sends the next request and writes down what became of it; the answer, if there was one.
    pub fn send(&mut self, address: SocketAddr) -> Option<Answer> {
        self.step += 1;
        if self.step.is_multiple_of(STEPS_PER_CHURN) {
            let ended = self.random.below(self.generations.len() as u64) as usize;
            self.generations[ended] += 1;
        }
        let samples = if self.plan.late && self.step.is_multiple_of(STEPS_PER_LATE) {
            self.late_samples()
        } else {
            self.samples()
        };
        self.deliver(address, &samples)
    }

    fn samples(&mut self) -> Vec<Sample> {
        let now_ms = self.plan.start_ms + self.step as i64 * self.plan.step_ms;
        let mut samples = Vec::with_capacity(self.plan.series);
        for index in 0..self.plan.series {
            // Some go by a clock of their own.
            let lag = if index % 10 == 9 { self.random.below(self.plan.step_ms as u64) as i64 } else { 0 };
            let bits = self.value(index);
            samples.push(Sample { series: self.series(index), time_ms: now_ms - lag, bits });
        }
        samples
    }

    /// At times between those of the samples that are in order.
    fn late_samples(&mut self) -> Vec<Sample> {
        let now_ms = self.plan.start_ms + self.step as i64 * self.plan.step_ms;
        let mut samples = Vec::new();
        for index in (0..self.plan.series).filter(|index| index % 10 != 9) {
            let back_ms = self.random.below(LATE_MS as u64) as i64 / self.plan.step_ms * self.plan.step_ms;
            let time_ms = now_ms - back_ms - self.plan.step_ms / 2;
            let bits = self.value(index);
            let series = self.series(index);
            let is_taken = self.entries.get(&series).is_some_and(|times| times.contains_key(&time_ms));
            if !is_taken {
                samples.push(Sample { series, time_ms, bits });
            }
        }
        samples
    }

    fn series(&self, index: usize) -> String {
        format!("{index}-{}", self.generations[index])
    }

    fn value(&mut self, index: usize) -> u64 {
        let random = self.random.next();
        let value = match if self.plan.incompressible { 7 } else { index % 8 } {
            0 => (index % 3) as f64,
            1 => (self.step * 17 + index as u64) as f64,
            2 => (random % 100_000) as f64 / 1000.0,
            3 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324][(random % 5) as usize],
            _ => f64::from_bits(random),
        };
        // A NaN reads back as the text of any of them.
        (if value.is_nan() { 1.5 } else { value }).to_bits()
    }

    fn deliver(&mut self, address: SocketAddr, samples: &[Sample]) -> Option<Answer> {
        let labels = |sample: &Sample| {
            vec![
                ("__name__", "ledger".to_owned()),
                ("instance", "10.0.0.1:9090".to_owned()),
                ("series", sample.series.clone()),
                ("writer", self.name.clone()),
            ]
        };
        let mut request = Request::new(samples.iter().map(labels));
        for (index, sample) in samples.iter().enumerate() {
            request.set(index, sample.time_ms, f64::from_bits(sample.bits));
        }
        let answer = self.exchange(address, request.packed());
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        *self.answers.entry(status).or_default() += 1;
        let fate = match &answer {
            Some(answer) if answer.status == 204 => Fate::Acknowledged,
            Some(answer) if is_refused_whole(answer) => Fate::Refused,
            _ => Fate::Unknown,
        };
        for sample in samples {
            let times = self.entries.entry(sample.series.clone()).or_default();
            times.insert(sample.time_ms, (sample.bits, fate));
        }
        answer
    }

    fn exchange(&mut self, address: SocketAddr, packed: &[u8]) -> Option<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) if connection.address() == address => connection,
            _ => Connection::open(address).ok()?,
        };
        let answer = connection.write("/api/v1/write", packed).ok()?;
        self.connection = Some(connection);
        Some(answer)
    }

    /// Reads everything back and compares; the number of samples that were acknowledged and found.
    pub fn check(&self, engine: &Engine) -> u64 {
        let query = encoded(&format!("ledger{{writer=\"{}\"}}[{RANGE}]", self.name));
        let end_s = (self.plan.start_ms + self.step as i64 * self.plan.step_ms) / 1000 + 1;
        let (status, text) = engine.get(&format!("/api/v1/query?query={query}&time={end_s}"));
        assert_eq!(status, 200, "{text}");
        let response: Response<'_> = serde_json::from_str(&text).unwrap();
        let mut found = HashMap::new();
        for series in response.data.result {
            let name = series.metric["series"];
            assert!(found.insert(name, series.values).is_none(), "{} {name} is there twice", self.name);
        }
        let mut right = 0;
        for (series, sent) in &self.entries {
            right += self.check_series(series, sent, &found.remove(&**series).unwrap_or_default());
        }
        assert!(found.is_empty(), "{} has series that were never sent: {:?}", self.name, found.keys());
        right
    }

    fn check_series(&self, series: &str, sent: &BTreeMap<i64, (u64, Fate)>, found: &[(f64, &str)]) -> u64 {
        let place = |time_ms: i64| format!("{} {series} at {time_ms}", self.name);
        let mut last_ms = i64::MIN;
        let mut right = 0;
        for &(time_s, text) in found {
            let time_ms = matrix::time_ms(time_s);
            assert!(time_ms > last_ms, "{} comes after {last_ms}", place(time_ms));
            last_ms = time_ms;
            let Some(&(bits, fate)) = sent.get(&time_ms) else {
                panic!("{} is {text} and was never sent", place(time_ms))
            };
            assert_ne!(fate, Fate::Refused, "{} was refused and is there", place(time_ms));
            let value: f64 = text.parse().unwrap();
            assert_eq!(value.to_bits(), bits, "{} is {text}, not {}", place(time_ms), f64::from_bits(bits));
            right += u64::from(fate == Fate::Acknowledged);
        }
        let acknowledged = sent.iter().filter(|(_, (_, fate))| *fate == Fate::Acknowledged);
        if acknowledged.clone().count() as u64 != right {
            let there: std::collections::HashSet<i64> =
                found.iter().map(|(time_s, _)| matrix::time_ms(*time_s)).collect();
            let lost: Vec<i64> = acknowledged.map(|(&time_ms, _)| time_ms).collect();
            let lost: Vec<i64> = lost.into_iter().filter(|time_ms| !there.contains(time_ms)).collect();
            panic!("{} acknowledged samples are lost, the first: {}", lost.len(), place(lost[0]));
        }
        right
    }
}

/// Whether an answer promises that nothing of the request was written.
fn is_refused_whole(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    answer.status == 503 && text.contains("nothing of this request was written")
}

/// Whether there is any series that no writer sent.
pub fn check_strangers(engine: &Engine) {
    let query = encoded("count({__name__!=\"ledger\",__name__!=\"\"})");
    let data = engine.data(&format!("/api/v1/query?query={query}"));
    assert_eq!(data["result"], serde_json::json!([]), "there are series that nobody sent");
}
