//! Several streams of series as one: by label set, and within a series by time.
//!
//! Of several samples of one time the first one holds that is no staleness marker, in the order of the inputs; where all
//! are markers, the first. What is known of counter resets holds against the histogram that stood before in the same
//! input, or at the end of the input before: where another one came between, nothing is known
//! (prometheus/prometheus#15358). Every histogram is validated again before it is handed on (grafana/mimir#16273).
//!
//! Memory: a slice for each input and the one that is handed out. Samples are moved in runs, as far as no other input has
//! any, so that inputs that follow each other in time cost a search each and no comparison per sample.
use metricsstore_model::histogram::{Histogram, ResetHint};
use metricsstore_model::{LabelBuf, STALE_NAN_BITS};

use crate::block::series::{SLICE_HISTOGRAMS, SLICE_SAMPLES};
use crate::block::{SeriesData, SeriesStream};
use crate::{StorageError, StoredExemplar};

/// What is left out of a merge because an input is damaged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Times that a series, a part of one or a histogram was left out.
    pub(crate) count: u64,
    /// What was wrong the first time.
    pub(crate) first: Option<String>,
}

impl Damage {
    fn note(&mut self, what: &impl ToString) {
        self.count += 1;
        self.first.get_or_insert_with(|| what.to_string());
    }
}

/// See the module's documentation.
pub(crate) struct MergedSeries<'s> {
    inputs: Vec<Input<'s>>,
    /// The series that is being merged, if any is.
    labels: LabelBuf,
    in_series: bool,
    /// Whether a slice of it was handed out.
    is_continuation: bool,
    /// The histogram of it that was handed on last: of which input, and its time.
    before: Option<(usize, i64)>,
    /// Exemplars of it that were not handed out yet: they wait for the samples of their time.
    exemplars: Vec<StoredExemplar>,
    slice_samples: usize,
}

impl<'s> MergedSeries<'s> {
    /// Of the same time the samples of earlier inputs hold.
    pub(crate) fn new(streams: Vec<Box<dyn SeriesStream + 's>>) -> MergedSeries<'s> {
        MergedSeries {
            inputs: streams.into_iter().map(Input::new).collect(),
            labels: LabelBuf::new(),
            in_series: false,
            is_continuation: false,
            before: None,
            exemplars: Vec::new(),
            slice_samples: SLICE_SAMPLES,
        }
    }

    /// What was left out so far, by input.
    pub(crate) fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.inputs.iter().map(|input| &input.damage)
    }

    /// Turns to the least label set of all; `false` after the last.
    fn begin_series(&mut self) -> Result<bool, StorageError> {
        for input in &mut self.inputs {
            input.load_next_series()?;
        }
        let waiting = || self.inputs.iter().filter(|input| input.state == State::Loaded);
        let Some(least) = waiting().map(|input| &input.slice.labels).min() else { return Ok(false) };
        self.labels.clone_from(least);
        for input in &mut self.inputs {
            if input.state == State::Loaded && input.slice.labels == self.labels {
                input.takes_part = true;
                self.exemplars.append(&mut input.slice.exemplars);
            }
        }
        (self.in_series, self.is_continuation, self.before) = (true, false, None);
        Ok(true)
    }

    /// Adds to a slice until it is full or the series ends.
    fn fill(&mut self, out: &mut SeriesData) -> Result<(), StorageError> {
        while !self.is_full(out) {
            for input in &mut self.inputs {
                while input.is_used_up() {
                    input.load_more()?;
                    if input.takes_part {
                        self.exemplars.append(&mut input.slice.exemplars);
                    }
                }
            }
            let Some((first, time_ms, others_ms)) = self.earliest() else {
                self.in_series = false;
                break;
            };
            if others_ms == Some(time_ms) {
                self.take_shared(time_ms, out);
            } else {
                let until_ms = self.inputs[first].fitting_until(others_ms, self.slice_samples, out);
                self.take_run(first, until_ms, out);
            }
        }
        self.hand_on_exemplars(out);
        Ok(())
    }

    fn is_full(&self, out: &SeriesData) -> bool {
        out.samples() + 2 > self.slice_samples || out.histograms.len() >= SLICE_HISTOGRAMS
    }

    /// Adds the exemplars up to the newest sample of a slice, all once the series ends.
    fn hand_on_exemplars(&mut self, out: &mut SeriesData) {
        if self.exemplars.is_empty() {
            return;
        }
        self.exemplars.sort_by_key(|exemplar| exemplar.timestamp_ms);
        let newest_ms = out.floats.last().map(|s| s.0).max(out.histograms.last().map(|s| s.0));
        let ready = |exemplar: &StoredExemplar| !self.in_series || Some(exemplar.timestamp_ms) <= newest_ms;
        let count = self.exemplars.partition_point(ready);
        for exemplar in self.exemplars.drain(..count) {
            let same_time =
                out.exemplars.iter().rev().take_while(|e| e.timestamp_ms == exemplar.timestamp_ms);
            if !same_time.into_iter().any(|other| is_same(other, &exemplar)) {
                out.exemplars.push(exemplar);
            }
        }
    }

    /// The input with the earliest time that is left, that time, and the earliest of all the others.
    fn earliest(&self) -> Option<(usize, i64, Option<i64>)> {
        let mut found: Option<(usize, i64, Option<i64>)> = None;
        for (index, input) in self.inputs.iter().enumerate() {
            let Some(time_ms) = input.next_ms() else { continue };
            found = Some(match found {
                None => (index, time_ms, None),
                Some((_, least, _)) if time_ms < least => (index, time_ms, Some(least)),
                Some((first, least, others)) => {
                    (first, least, Some(others.map_or(time_ms, |others| others.min(time_ms))))
                }
            });
        }
        found
    }

    /// Takes what one input has before `until_ms`; the others have nothing there.
    fn take_run(&mut self, index: usize, until_ms: Option<i64>, out: &mut SeriesData) {
        let (first, rest) = (self.inputs[index].at, self.inputs[index].ends_before(until_ms));
        let histograms = first.histograms..rest.histograms;
        let input = &mut self.inputs[index];
        out.floats.extend_from_slice(&input.slice.floats[first.floats..rest.floats]);
        out.starts.extend_from_slice(&input.slice.starts[first.starts..rest.starts]);
        input.at = rest;
        for place in histograms {
            let (time_ms, histogram) = std::mem::take(&mut self.inputs[index].slice.histograms[place]);
            if !self.hand_on(index, time_ms, histogram, out) {
                out.starts.retain(|&(time, _)| time != time_ms);
            }
        }
    }

    /// Takes what several inputs have at one time.
    fn take_shared(&mut self, time_ms: i64, out: &mut SeriesData) {
        let mut held: Option<(usize, Sample)> = None;
        let mut start_ms = None;
        for index in 0..self.inputs.len() {
            let input = &mut self.inputs[index];
            if input.next_ms() != Some(time_ms) {
                continue;
            }
            let (sample, start) = input.pop(time_ms);
            start_ms = start_ms.or(start);
            let Some(sample) = sample else { continue };
            let replaces = held.as_ref().is_none_or(|(_, held)| held.is_stale() && !sample.is_stale());
            let lost = if replaces { held.replace((index, sample)) } else { Some((index, sample)) };
            if let Some((loser, Sample::Histogram(_))) = lost {
                self.inputs[loser].before = Some((loser, time_ms));
            }
        }
        let is_written = match held {
            Some((_, Sample::Float(bits))) => {
                out.floats.push((time_ms, bits));
                true
            }
            Some((index, Sample::Histogram(histogram))) => self.hand_on(index, time_ms, *histogram, out),
            None => false,
        };
        out.starts.extend(start_ms.filter(|_| is_written).map(|start_ms| (time_ms, start_ms)));
    }

    /// Adds a histogram of an input, with what is still true of its counter. Says whether it is valid.
    fn hand_on(
        &mut self,
        index: usize,
        time_ms: i64,
        mut histogram: Histogram,
        out: &mut SeriesData,
    ) -> bool {
        let against = self.made_against(index);
        let input = &mut self.inputs[index];
        input.before = Some((index, time_ms));
        if histogram.validate().is_err() {
            input.damage.note(&"a histogram whose parts contradict each other");
            return false;
        }
        if against != self.before && histogram.reset_hint != ResetHint::Gauge {
            histogram.reset_hint = ResetHint::Unknown;
        }
        self.before = Some((index, time_ms));
        out.histograms.push((time_ms, histogram));
        true
    }

    /// The histogram that arrived before the next one of an input: the one before in it, or else the last of the nearest
    /// earlier input that had any. Of an input that is not at its end nobody knows whether that was its last.
    fn made_against(&self, index: usize) -> Option<(usize, i64)> {
        let earlier = self.inputs[..index].iter().rev();
        self.inputs[index].before.or_else(|| {
            let nearest = earlier.into_iter().find(|input| input.takes_part || input.before.is_some())?;
            nearest.before.filter(|_| !nearest.takes_part)
        })
    }
}

impl SeriesStream for MergedSeries<'_> {
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError> {
        loop {
            series.clear();
            if !self.in_series && !self.begin_series()? {
                return Ok(false);
            }
            self.fill(series)?;
            if series.samples() > 0 || !series.exemplars.is_empty() {
                series.labels.clone_from(&self.labels);
                series.is_continuation = std::mem::replace(&mut self.is_continuation, true);
                return Ok(true);
            }
        }
    }
}

/// One sample of either kind.
enum Sample {
    Float(u64),
    Histogram(Box<Histogram>),
}

impl Sample {
    fn is_stale(&self) -> bool {
        match self {
            Sample::Float(bits) => *bits == STALE_NAN_BITS,
            Sample::Histogram(histogram) => histogram.is_stale(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The slice is used up, or there was none yet.
    Empty,
    /// The slice begins a series or is part of the one that is being merged.
    Loaded,
    /// There are no more.
    Ended,
}

/// Places in a slice, one for each of its columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct At {
    floats: usize,
    histograms: usize,
    starts: usize,
}

struct Input<'s> {
    stream: Box<dyn SeriesStream + 's>,
    slice: SeriesData,
    state: State,
    /// What of the slice was taken.
    at: At,
    /// Whether the slice belongs to the series that is being merged.
    takes_part: bool,
    /// Whether a series began with the slice that was loaded last, or with an empty one before it.
    has_begun: bool,
    /// Labels of the last series that began, newest time of it so far, and whether the rest of it is left out.
    labels: LabelBuf,
    newest_ms: Option<i64>,
    is_left_out: bool,
    /// The histogram of the series that was taken last.
    before: Option<(usize, i64)>,
    damage: Damage,
}

impl<'s> Input<'s> {
    fn new(stream: Box<dyn SeriesStream + 's>) -> Input<'s> {
        Input {
            stream,
            slice: SeriesData::default(),
            state: State::Empty,
            at: At::default(),
            takes_part: false,
            has_begun: false,
            labels: LabelBuf::new(),
            newest_ms: None,
            is_left_out: true,
            before: None,
            damage: Damage::default(),
        }
    }

    /// Brings the first slice of the next series, unless it is there.
    fn load_next_series(&mut self) -> Result<(), StorageError> {
        self.before = None;
        if self.state == State::Empty { self.load() } else { Ok(()) }
    }

    /// Whether it takes part and has no sample left in its slice.
    fn is_used_up(&self) -> bool {
        self.takes_part && self.next_ms().is_none()
    }

    /// Brings the next slice, of the series that is being merged or of a later one.
    fn load_more(&mut self) -> Result<(), StorageError> {
        self.load()?;
        self.takes_part = self.state == State::Loaded && !self.has_begun;
        Ok(())
    }

    /// Brings the next slice that is in order and not empty. What is damaged is left out, up to the next series.
    fn load(&mut self) -> Result<(), StorageError> {
        self.at = At::default();
        (self.state, self.has_begun) = (State::Empty, false);
        loop {
            match self.stream.next_into(&mut self.slice) {
                Ok(false) => {
                    self.state = State::Ended;
                    return Ok(());
                }
                Ok(true) => {}
                Err(error @ StorageError::Corrupt { .. }) => {
                    self.damage.note(&error);
                    self.is_left_out = true;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if self.slice.is_continuation && self.is_left_out {
                continue;
            }
            if let Err(what) = self.check() {
                self.damage.note(&what);
                self.is_left_out = true;
            } else if self.slice.samples() > 0 || !self.slice.exemplars.is_empty() {
                self.state = State::Loaded;
                return Ok(());
            }
        }
    }

    /// Whether the slice follows the one before. Start timestamps without a sample are dropped.
    fn check(&mut self) -> Result<(), &'static str> {
        let SeriesData { labels, is_continuation, floats, histograms, starts, exemplars: _ } =
            &mut self.slice;
        if !*is_continuation {
            let is_sorted = labels.iter().is_sorted_by(|a, b| a.0 < b.0);
            if !is_sorted || (self.labels >= *labels && !self.labels.is_empty()) {
                return Err("label sets that do not ascend");
            }
            self.labels.clone_from(labels);
            (self.newest_ms, self.is_left_out, self.has_begun) = (None, false, true);
        }
        let ascend = floats.is_sorted_by(|a, b| a.0 < b.0) && histograms.is_sorted_by(|a, b| a.0 < b.0);
        let first =
            [floats.first().map(|s| s.0), histograms.first().map(|s| s.0)].into_iter().flatten().min();
        if !ascend || first.is_some_and(|first_ms| Some(first_ms) <= self.newest_ms) {
            return Err("samples that do not ascend in time");
        }
        let of_float = |time: i64| floats.binary_search_by_key(&time, |s| s.0).is_ok();
        let of_histogram = |time: i64| histograms.binary_search_by_key(&time, |s| s.0).is_ok();
        if histograms.iter().any(|&(time, _)| of_float(time)) {
            return Err("a float and a histogram at one time");
        }
        starts.retain(|&(time, _)| of_float(time) || of_histogram(time));
        let last = floats.last().map(|s| s.0).max(histograms.last().map(|s| s.0));
        self.newest_ms = self.newest_ms.max(last);
        Ok(())
    }

    /// The earliest time of the samples that are left of the slice, if it takes part.
    fn next_ms(&self) -> Option<i64> {
        if !self.takes_part {
            return None;
        }
        let float = self.slice.floats.get(self.at.floats).map(|sample| sample.0);
        let histogram = self.slice.histograms.get(self.at.histograms).map(|sample| sample.0);
        [float, histogram].into_iter().flatten().min()
    }

    /// The places of the first entries at or after a time; the ends where there is none.
    fn ends_before(&self, until_ms: Option<i64>) -> At {
        let (slice, at) = (&self.slice, self.at);
        let is_before = |time_ms: i64| until_ms.is_none_or(|until_ms| time_ms < until_ms);
        At {
            floats: at.floats + slice.floats[at.floats..].partition_point(|s| is_before(s.0)),
            histograms: at.histograms + slice.histograms[at.histograms..].partition_point(|s| is_before(s.0)),
            starts: at.starts + slice.starts[at.starts..].partition_point(|s| is_before(s.0)),
        }
    }

    /// The time before which everything of this input fits into a slice of so many samples; not later than `until_ms`.
    fn fitting_until(&self, until_ms: Option<i64>, slice_samples: usize, out: &SeriesData) -> Option<i64> {
        let (at, end) = (self.at, self.ends_before(until_ms));
        let room = slice_samples - out.samples();
        let is_mixed = end.floats > at.floats && end.histograms > at.histograms;
        let floats = if is_mixed { room / 2 } else { room };
        let histograms = floats.min(SLICE_HISTOGRAMS - out.histograms.len());
        let float = self.slice.floats[..end.floats].get(at.floats + floats).map(|s| s.0);
        let histogram = self.slice.histograms[..end.histograms].get(at.histograms + histograms).map(|s| s.0);
        [float, histogram, until_ms].into_iter().flatten().min()
    }

    /// Takes the sample of a time and its start timestamp, if they are next.
    fn pop(&mut self, time_ms: i64) -> (Option<Sample>, Option<i64>) {
        let (slice, at) = (&mut self.slice, &mut self.at);
        let mut sample = None;
        if let Some(&(_, bits)) = slice.floats.get(at.floats).filter(|s| s.0 == time_ms) {
            at.floats += 1;
            sample = Some(Sample::Float(bits));
        } else if let Some((_, histogram)) =
            slice.histograms.get_mut(at.histograms).filter(|s| s.0 == time_ms)
        {
            at.histograms += 1;
            sample = Some(Sample::Histogram(Box::new(std::mem::take(histogram))));
        }
        let start = slice.starts.get(at.starts).filter(|s| s.0 == time_ms).map(|s| s.1);
        at.starts += usize::from(start.is_some());
        (sample, start)
    }
}

/// Whether two exemplars are one, bit for bit.
fn is_same(a: &StoredExemplar, b: &StoredExemplar) -> bool {
    a.timestamp_ms == b.timestamp_ms && a.value.to_bits() == b.value.to_bits() && a.labels == b.labels
}

#[cfg(test)]
mod tests;
