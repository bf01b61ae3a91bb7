//! 500k series at 15 s offered to a control group of 150 MiB, in long runs then many more: what fits is served without a
//! gap, what does not is refused and counted, nothing is killed, and everything is served again when the load falls.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::matrix::{self, Response};
use super::process::{Engine, Folder, Start, encoded, now_ms, setting};
use metricsstore_e2e::bench::cgroup::Cgroup;
use metricsstore_e2e::bench::population::{Life, Population, SCRAPE_INTERVAL_MS, SERIES_PER_TARGET, Shape};
use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::{Answer, Connection};

const LIMIT_BYTES: u64 = 150 << 20;
const OFFERED: usize = 500_000;
/// What must be served of the offer.
const SERVED: usize = 280_000;
/// More than fits: some of these must be refused.
const FLOOD: usize = 1_300_000;
/// What goes on when the load falls, and what comes new then.
const KEPT: usize = 150_000;
const NEW: usize = 50_000;
const SENDERS: usize = 2;
const TARGETS_PER_REQUEST: usize = 10;
const SERIES_PER_REQUEST: usize = TARGETS_PER_REQUEST * SERIES_PER_TARGET;
/// Scrapes of the offer in continuous integration; those of the flood, which long runs have.
const SCRAPES: u64 = 6;
const FLOOD_SCRAPES: u64 = 0;
/// Wall time that half a million series take: data time goes faster, and seals find time.
const PACE_MS: u64 = 4000;
/// Scrapes within which everything must be served after the load fell.
const SCRAPES_TO_RECOVER: usize = 10;
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const MAX_RETRIES: u32 = 240;

#[test]
fn half_a_million_series_in_150_mib_are_served_or_refused_but_nothing_is_killed() {
    let scrapes = setting("ENGINE_MEMORY_SCRAPES", SCRAPES) as usize;
    let folder = Folder::new("small-memory");
    let cgroup = Cgroup::create(&format!("metricsstore-small-{}", std::process::id()), LIMIT_BYTES).unwrap();
    let join: Vec<String> =
        cgroup.procs().iter().map(|file| format!("echo $$ > {}; ", file.display())).collect();
    let join = join.concat();
    let start = Start::new(folder.path(), &[]).after(&["sh", "-c", &format!("{join}exec \"$0\" \"$@\"")]);
    let mut engine = start.run();
    let mut load = Load::new(&engine, scrapes);

    for _ in 0..scrapes {
        load.scrape(|series| series < OFFERED);
        load.report(&engine);
    }
    load.check_counts(&engine);
    let served = load.read_back(&engine);
    println!("{served} of {OFFERED} series are served without a gap");
    assert!(served >= SERVED, "{served} series are served");

    let flood_scrapes = setting("ENGINE_FLOOD_SCRAPES", FLOOD_SCRAPES);
    for _ in 0..flood_scrapes {
        load.scrape(|series| series < FLOOD);
        load.report(&engine);
    }
    if flood_scrapes > 0 {
        assert!(load.refused.load(Relaxed) > 0, "everything fits: the flood must be larger");
        load.check_counts(&engine);
        assert_eq!(load.read_back(&engine), served, "the flood took series away");
    }

    let mut quiet = 0;
    for _ in 0..SCRAPES_TO_RECOVER {
        let refused = load.scrape(|series| !(KEPT..FLOOD).contains(&series));
        load.report(&engine);
        quiet = if refused == 0 { quiet + 1 } else { 0 };
        if quiet == 2 {
            break;
        }
    }
    assert_eq!(quiet, 2, "series are still refused after the load fell");
    load.check_counts(&engine);
    assert!(engine.is_alive());
    let (kills, limit_hits) = (cgroup.oom_kills(), cgroup.limit_hits());
    println!("{kills} OOM kills; the limit, page cache included, was reached {limit_hits} times");
    assert_eq!(kills, 0);
    engine.terminate();
}

struct Load {
    population: Population,
    /// For ten targets each, ready but for the samples.
    requests: Vec<Request>,
    address: SocketAddr,
    start_ms: i64,
    /// Scrapes sent so far.
    scrapes: usize,
    pace: Duration,
    /// Series that answers refused.
    refused: AtomicU64,
    /// Requests that were refused whole.
    busy: AtomicU64,
}

impl Load {
    fn new(engine: &Engine, scrapes: usize) -> Load {
        let population = Population::new(1, FLOOD + NEW, Shape::USUAL);
        let flood = setting("ENGINE_FLOOD_SCRAPES", FLOOD_SCRAPES) as usize;
        let all = scrapes + flood + SCRAPES_TO_RECOVER + 1;
        Load {
            requests: (0..population.targets())
                .step_by(TARGETS_PER_REQUEST)
                .map(|first| {
                    Request::new(series_of(&population, first).map(|(life, n)| population.labels(&life, n)))
                })
                .collect(),
            population,
            address: engine.address,
            start_ms: now_ms() - all as i64 * SCRAPE_INTERVAL_MS,
            scrapes: 0,
            pace: Duration::from_millis(setting("ENGINE_MEMORY_PACE_MS", PACE_MS)),
            refused: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    /// Sends one scrape of those series, spread over the pace; the number of series that were refused.
    fn scrape(&mut self, series: impl Fn(usize) -> bool) -> u64 {
        let before = self.refused.load(Relaxed);
        let mut requests = std::mem::take(&mut self.requests);
        let mut sent: Vec<(usize, &mut Request)> =
            requests.iter_mut().enumerate().filter(|(index, _)| series(index * SERIES_PER_REQUEST)).collect();
        let pace = self.pace * (sent.len() * SERIES_PER_REQUEST / 1000) as u32 / (OFFERED / 1000) as u32;
        let share = sent.len().div_ceil(SENDERS);
        let begun = Instant::now();
        thread::scope(|scope| {
            for share in sent.chunks_mut(share) {
                let load = &*self;
                scope.spawn(move || load.send(share, begun, pace));
            }
        });
        self.requests = requests;
        self.scrapes += 1;
        thread::sleep(pace.saturating_sub(begun.elapsed()));
        self.refused.load(Relaxed) - before
    }

    fn send(&self, requests: &mut [(usize, &mut Request)], begun: Instant, pace: Duration) {
        let mut connection = Connection::open(self.address).unwrap();
        let count = requests.len() as u32;
        for (at, (index, request)) in requests.iter_mut().enumerate() {
            thread::sleep((pace * at as u32 / count).saturating_sub(begun.elapsed()));
            let series = series_of(&self.population, *index * TARGETS_PER_REQUEST);
            for (place, (life, series)) in series.enumerate() {
                let time_ms = self.population.timestamp_ms(&life, series, self.scrapes, self.start_ms);
                request.set(place, time_ms, self.population.value(&life, series, self.scrapes));
            }
            let answer = self.deliver(&mut connection, request.packed());
            if answer.status == 400 {
                self.refused.fetch_add(refused_series(&answer), Relaxed);
            }
        }
    }

    /// As senders do: a refused request comes again.
    fn deliver(&self, connection: &mut Connection, body: &[u8]) -> Answer {
        for _ in 0..MAX_RETRIES {
            let answer = connection.write("/api/v1/write", body).unwrap();
            if answer.status != 503 {
                let text = String::from_utf8_lossy(&answer.body);
                assert!(matches!(answer.status, 204 | 400), "{}: {text}", answer.status);
                return answer;
            }
            assert!(answer.retry_after_seconds.is_some());
            self.busy.fetch_add(1, Relaxed);
            thread::sleep(RETRY_PAUSE);
        }
        panic!("writes were refused for a whole minute")
    }

    fn report(&self, engine: &Engine) {
        let info = engine.data("/api/v1/status/runtimeinfo");
        let mib = |key: &str| info[key].as_u64().unwrap_or(0) >> 20;
        println!(
            "scrape {}: {} series, {} refused so far, {} requests refused whole, {} of {} MiB used, {}",
            self.scrapes,
            info["seriesCount"],
            self.refused.load(Relaxed),
            self.busy.load(Relaxed),
            mib("memoryUsedBytes"),
            mib("memoryBudgetBytes"),
            info["pressure"],
        );
    }

    /// The engine's own counts are those of its answers.
    fn check_counts(&self, engine: &Engine) {
        let new_series = engine.metric("metricsstore_refused_total{reason=\"new_series\"}");
        assert_eq!(new_series as u64, self.refused.load(Relaxed));
        assert_eq!(
            engine.metric("metricsstore_refused_total{reason=\"busy\"}") as u64,
            self.busy.load(Relaxed)
        );
    }

    /// Series of the offer that are there, each of which must have every scrape since its first, with the values sent.
    fn read_back(&self, engine: &Engine) -> usize {
        let mut connection = engine.connect();
        let targets = 0..OFFERED / SERIES_PER_TARGET;
        targets.map(|target| self.read_target(&mut connection, &self.population.life_at(target, 0))).sum()
    }

    fn read_target(&self, connection: &mut Connection, life: &Life) -> usize {
        let range_s = (self.scrapes as i64 + 2) * SCRAPE_INTERVAL_MS / 1000;
        let end_s = (self.start_ms + (self.scrapes as i64 + 1) * SCRAPE_INTERVAL_MS) / 1000;
        let query = encoded(&format!("{{instance=\"{}\"}}[{range_s}s]", self.population.instance(life)));
        let path = format!("/api/v1/query?query={query}&time={end_s}");
        let answer = (0..MAX_RETRIES).find_map(|_| {
            let answer = connection.get(&path).unwrap();
            if answer.status == 503 {
                thread::sleep(RETRY_PAUSE);
                return None;
            }
            Some(answer)
        });
        let answer = answer.expect("small queries must be answered");
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 200, "{text}");
        let response: Response<'_> = serde_json::from_str(&text).unwrap();
        let numbers: HashMap<_, _> =
            (0..SERIES_PER_TARGET).map(|series| (self.population.labels(life, series), series)).collect();
        for found in &response.data.result {
            let mut labels: Vec<(&str, String)> =
                found.metric.iter().map(|(&name, &value)| (name, value.to_owned())).collect();
            labels.sort_unstable();
            let series = numbers[&labels];
            self.check_series(life, series, &found.values);
        }
        response.data.result.len()
    }

    fn check_series(&self, life: &Life, series: usize, values: &[(f64, &str)]) {
        let first = self.scrapes.checked_sub(values.len()).unwrap();
        for (scrape, (time_s, text)) in (first..).zip(values) {
            let time_ms = self.population.timestamp_ms(life, series, scrape, self.start_ms);
            let value = self.population.value(life, series, scrape);
            let found = (matrix::time_ms(*time_s), text.parse::<f64>().unwrap().to_bits());
            assert_eq!(found, (time_ms, value.to_bits()), "series {series} of {life:?} has a gap");
        }
    }
}

/// The series of one request, whose first target is given.
fn series_of(population: &Population, first: usize) -> impl Iterator<Item = (Life, usize)> {
    let targets = first..(first + TARGETS_PER_REQUEST).min(population.targets());
    let lives = targets.map(|target| population.life_at(target, 0));
    lives
        .collect::<Vec<_>>()
        .into_iter()
        .flat_map(|life| (0..SERIES_PER_TARGET).map(move |n| (life.clone(), n)))
}

/// The first number of `3 of 2000 series refused: …`.
fn refused_series(answer: &Answer) -> u64 {
    let text = String::from_utf8_lossy(&answer.body);
    let (number, rest) = text.split_once(" of ").unwrap_or_default();
    assert!(rest.contains(" series refused: ") && rest.contains(" were written"), "{text}");
    number.parse().unwrap()
}
