//! Sends a population's samples as fast as the engine takes them.
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::population::{Population, SERIES_PER_TARGET};
use super::request::Request;
use super::wire::{Answer, Connection};

/// How often a request that is answered 429 or 503 is sent again, after the time that the answer names.
const MAX_RETRIES: u32 = 120;

/// What is sent, and over how many connections.
pub struct Load<'a> {
    /// Whose samples.
    pub population: &'a Population,
    /// Scrapes of every series.
    pub scrapes: usize,
    /// Series in one request.
    pub batch: usize,
    /// Connections that send side by side.
    pub senders: usize,
    /// Beginning of the first scrape.
    pub start_ms: i64,
}

/// What was sent.
#[derive(Default)]
pub struct Sent {
    /// Samples answered 2xx.
    pub accepted: u64,
    /// Latency of every request, sorted.
    pub latencies: Vec<Duration>,
    /// Requests that were answered 429 or 503 and sent again.
    pub retries: u64,
    /// From the first request to the last answer.
    pub wall: Duration,
    /// How much of `wall` the first scrape took, which creates the series.
    pub first_scrape: Duration,
}

/// The requests of one group of targets: one a scrape, in order.
struct Lane {
    targets: std::ops::Range<usize>,
    request: Request,
    next_scrape: usize,
}

/// Shared by the senders. Work is numbered scrape by scrape and lane by lane within a scrape, and taken in that order.
struct Desk<'a> {
    load: &'a Load<'a>,
    path: &'static str,
    lanes: Vec<Mutex<Lane>>,
    next: AtomicUsize,
    failed: AtomicBool,
    begun: Instant,
    total: Mutex<Sent>,
    failure: Mutex<Option<io::Error>>,
}

impl Load<'_> {
    /// Sends everything to `path` at `address`.
    pub fn send(&self, address: SocketAddr, path: &'static str) -> io::Result<Sent> {
        let per_lane = (self.batch / SERIES_PER_TARGET).max(1);
        let targets = self.population.targets();
        let lanes = (0..targets).step_by(per_lane);
        let desk = Desk {
            load: self,
            path,
            lanes: lanes.map(|first| Mutex::new(self.lane(first..(first + per_lane).min(targets)))).collect(),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            begun: Instant::now(),
            total: Mutex::default(),
            failure: Mutex::new(None),
        };
        thread::scope(|scope| {
            for _ in 0..self.senders {
                scope.spawn(|| desk.work(address));
            }
        });
        if let Some(error) = lock(&desk.failure).take() {
            return Err(error);
        }
        let mut sent = std::mem::take(&mut *lock(&desk.total));
        sent.wall = desk.begun.elapsed();
        sent.latencies.sort_unstable();
        Ok(sent)
    }

    fn lane(&self, targets: std::ops::Range<usize>) -> Lane {
        Lane { request: self.request(&targets, 0), targets, next_scrape: 0 }
    }

    fn request(&self, targets: &std::ops::Range<usize>, scrape: usize) -> Request {
        let population = self.population;
        Request::new(targets.clone().flat_map(|target| {
            let life = population.life_at(target, scrape);
            (0..SERIES_PER_TARGET).map(move |series| population.labels(&life, series))
        }))
    }

    /// Brings a lane's request to a scrape.
    fn prepare(&self, lane: &mut Lane, scrape: usize) {
        let begins = |target| scrape > 0 && self.population.life_at(target, scrape).scrapes.start == scrape;
        if lane.targets.clone().any(begins) {
            lane.request = self.request(&lane.targets, scrape);
        }
        for (position, target) in lane.targets.clone().enumerate() {
            let life = self.population.life_at(target, scrape);
            for series in 0..SERIES_PER_TARGET {
                lane.request.set(
                    position * SERIES_PER_TARGET + series,
                    self.population.timestamp_ms(&life, series, scrape, self.start_ms),
                    self.population.value(&life, series, scrape),
                );
            }
        }
    }
}

impl Desk<'_> {
    fn work(&self, address: SocketAddr) {
        let mut sent = Sent::default();
        if let Err(error) = self.send_all(address, &mut sent) {
            self.failed.store(true, Relaxed);
            lock(&self.failure).get_or_insert(error);
        }
        let mut total = lock(&self.total);
        total.accepted += sent.accepted;
        total.retries += sent.retries;
        total.latencies.append(&mut sent.latencies);
        total.first_scrape = total.first_scrape.max(sent.first_scrape);
    }

    fn send_all(&self, address: SocketAddr, sent: &mut Sent) -> io::Result<()> {
        let mut connection = Connection::open(address)?;
        while !self.failed.load(Relaxed) {
            let number = self.next.fetch_add(1, Relaxed);
            let (scrape, lane) = (number / self.lanes.len(), number % self.lanes.len());
            if scrape >= self.load.scrapes {
                break;
            }
            let Some(mut lane) = self.turn(lane, scrape) else { break };
            self.load.prepare(&mut lane, scrape);
            let begun = Instant::now();
            self.deliver(&mut connection, &lane.request, sent)?;
            sent.latencies.push(begun.elapsed());
            sent.accepted += lane.request.series() as u64;
            lane.next_scrape += 1;
            if scrape == 0 {
                sent.first_scrape = self.begun.elapsed();
            }
        }
        Ok(())
    }

    /// Waits until a lane's earlier scrapes are sent; `None` when another sender failed.
    fn turn(&self, lane: usize, scrape: usize) -> Option<MutexGuard<'_, Lane>> {
        while !self.failed.load(Relaxed) {
            let guard = lock(&self.lanes[lane]);
            if guard.next_scrape == scrape {
                return Some(guard);
            }
            drop(guard);
            thread::yield_now();
        }
        None
    }

    fn deliver(&self, connection: &mut Connection, request: &Request, sent: &mut Sent) -> io::Result<()> {
        let mut answer: Answer;
        for _ in 0..=MAX_RETRIES {
            answer = connection.write(self.path, request.packed())?;
            match answer.status {
                200..300 => return Ok(()),
                429 | 503 => {
                    sent.retries += 1;
                    thread::sleep(Duration::from_secs(answer.retry_after_seconds.unwrap_or(1).clamp(1, 10)));
                }
                _ => return Err(answer.error("a write was refused")),
            }
        }
        Err(io::Error::other(format!("a write was still answered 429 or 503 after {MAX_RETRIES} retries")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
