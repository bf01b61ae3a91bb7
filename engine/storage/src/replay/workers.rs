//! Threads that put rows back into the head, each for its own shards: batches come to all of them in the order of the
//! log, so that the result does not depend on how many there are.
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use crate::head::{EpochData, Limits};
use crate::identity::SeriesId;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::wal::record::{self, LogSample};

/// Batches that wait for a thread.
const WAITING_BATCHES: usize = 2;

/// Where a record stands: file and offset.
pub(super) type Place = (u64, u64);

/// Records of rows and of late rows.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    records: Vec<(Place, u8, Range<usize>)>,
}

impl Batch {
    pub(super) fn push(&mut self, place: Place, kind: u8, body: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(body);
        self.records.push((place, kind, start..self.bytes.len()));
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// What applying records found.
#[derive(Default)]
pub(super) struct Findings {
    /// Bodies that make no sense, and why.
    pub(super) damages: BTreeMap<Place, &'static str>,
    /// Samples of series that are not defined.
    pub(super) undefined: u64,
}

impl Findings {
    pub(super) fn add(&mut self, other: Findings) {
        self.damages.extend(other.damages);
        self.undefined += other.undefined;
    }
}

/// Series that are known to be defined: few ids are asked for that are not there.
#[derive(Default)]
pub(super) struct Defined {
    words: Vec<u64>,
}

impl Defined {
    #[inline]
    pub(super) fn contains(&mut self, store: &Store, series: u32) -> bool {
        let (word, bit) = (series as usize / 64, 1 << (series % 64));
        if self.words.get(word).is_some_and(|word| word & bit != 0) {
            return true;
        }
        let is_defined = store.identity.series_ref(SeriesId(series)).is_some();
        if is_defined {
            self.words.resize(self.words.len().max(word + 1), 0);
            self.words[word] |= bit;
        }
        is_defined
    }
}

/// Applies records to those shards whose number leaves the remainder `number` when divided by `of`.
struct Worker<'s> {
    store: &'s Store,
    number: usize,
    of: usize,
    samples: Vec<LogSample>,
    defined: Defined,
    findings: Findings,
}

impl<'s> Worker<'s> {
    fn new(store: &'s Store, number: usize, of: usize) -> Worker<'s> {
        Worker {
            store,
            number,
            of,
            samples: Vec::new(),
            defined: Defined::default(),
            findings: Findings::default(),
        }
    }

    fn apply(&mut self, batch: &Batch) {
        for (place, kind, body) in &batch.records {
            let body = &batch.bytes[body.clone()];
            let layout = self.store.layout;
            if record::only_shard(body, layout).is_some_and(|shard| shard % self.of != self.number) {
                continue;
            }
            if let Err(what) = record::decode_rows(body, &mut self.samples) {
                self.findings.damages.insert(*place, what);
                continue;
            }
            if *kind == record::ROWS {
                self.apply_samples(|data, local, sample| {
                    // What is not newer than the series' last sample has been sealed already.
                    data.append(local, sample.timestamp_ms, sample.bits, Limits::NONE);
                });
            } else {
                self.apply_samples(|data, local, sample| {
                    // One that has been sealed already becomes a copy of itself: reads and merges keep one.
                    if data.value_at(local, sample.timestamp_ms).is_none() {
                        data.take_late(local, sample.timestamp_ms, sample.bits);
                    }
                });
            }
        }
        let view = self.store.view.load();
        let own = view.open.iter().skip(self.number).step_by(self.of);
        own.for_each(|epoch| epoch.data.lock().recount());
    }

    fn apply_samples(&mut self, apply: impl Fn(&mut EpochData, u32, &LogSample)) {
        let store = self.store;
        let view = store.view.load();
        let shard_of = |sample: &LogSample| store.layout.shard_of(sample.series);
        let mut newest = i64::MIN;
        for part in self.samples.chunk_by(|a, b| shard_of(a) == shard_of(b)) {
            let shard = shard_of(&part[0]);
            if shard % self.of != self.number {
                continue;
            }
            let mut data = view.open[shard].data.lock();
            for sample in part {
                if self.defined.contains(store, sample.series) {
                    apply(&mut data, store.layout.local(sample.series), sample);
                    newest = newest.max(sample.timestamp_ms);
                } else {
                    self.findings.undefined += 1;
                }
            }
        }
        store.newest_ms.fetch_max(newest, Relaxed);
    }
}

enum Message {
    Apply(Arc<Batch>),
    /// Everything before is applied: tell what was found.
    Report(SyncSender<Findings>),
}

/// All workers: threads that end with the scope, or the caller's own where there is one shard.
pub(super) struct Workers<'s> {
    inline: Option<Worker<'s>>,
    threads: Vec<SyncSender<Message>>,
}

impl<'s> Workers<'s> {
    pub(super) fn start<'scope>(store: &'s Store, scope: &'scope Scope<'scope, '_>) -> Workers<'s>
    where
        's: 'scope,
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let of = store.layout.shards().min(cores);
        // A model checker runs no threads but its own.
        if of == 1 || cfg!(shuttle) {
            return Workers { inline: Some(Worker::new(store, 0, 1)), threads: Vec::new() };
        }
        let start = |number| {
            let (sender, receiver) = sync_channel(WAITING_BATCHES);
            scope.spawn(move || run(Worker::new(store, number, of), &receiver));
            sender
        };
        Workers { inline: None, threads: (0..of).map(start).collect() }
    }

    /// Hands a batch to all of them; waits while they have enough to do.
    pub(super) fn apply(&mut self, batch: Batch) {
        if let Some(worker) = &mut self.inline {
            return worker.apply(&batch);
        }
        let batch = Arc::new(batch);
        for thread in &self.threads {
            // A thread ends before its sender only in a panic, which the scope passes on.
            let _ = thread.send(Message::Apply(Arc::clone(&batch)));
        }
    }

    /// Waits until everything handed over is applied and tells what was found since the last time.
    pub(super) fn finish(&mut self) -> Findings {
        if let Some(worker) = &mut self.inline {
            return std::mem::take(&mut worker.findings);
        }
        let ask = |thread: &SyncSender<Message>| {
            let (sender, receiver) = sync_channel(1);
            thread.send(Message::Report(sender)).ok().map(|()| receiver)
        };
        let mut findings = Findings::default();
        for answer in self.threads.iter().map(ask).collect::<Vec<_>>().into_iter().flatten() {
            findings.add(answer.recv().unwrap_or_default());
        }
        findings
    }
}

fn run(mut worker: Worker<'_>, messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Apply(batch) => worker.apply(&batch),
            Message::Report(answer) => _ = answer.send(std::mem::take(&mut worker.findings)),
        }
    }
}
