//! What the store must hold and must answer, in plain maps: one cell for each series and timestamp.
use std::collections::{BTreeMap, BTreeSet};

use metricsstore_model::Refusal;

use crate::common::Contents;

/// How far a sample may lie in the future.
const FUTURE_MS: i64 = 600_000;

/// How sure it is that a cell is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Absent, or present with one of its values.
    Maybe,
    /// Seen, but perhaps in memory only.
    Seen,
    /// An append said so: the kernel has it.
    Written,
    /// It survives any crash.
    Durable,
}

#[derive(Debug, Clone)]
struct Cell {
    /// One, unless the state is `Maybe`.
    values: Vec<u64>,
    state: State,
}

/// What an append may make of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// Taken, or there already with this value.
    Written,
    Refused(Refusal),
}

/// Bounds of one append, which judges all of its samples by those of its start.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub now_ms: i64,
    pub retained_ms: i64,
    /// Half a block.
    pub lag_ms: i64,
    /// Out-of-order window; 0 for none.
    pub window_ms: i64,
    /// The file system fails at times, so that sealed values cannot always be compared.
    pub disturbed: bool,
    /// Newest timestamp of the store: at least and at most.
    pub newest: (i64, i64),
    /// The store may have forgotten the newest samples of series that are older, and then takes nothing older in order.
    pub forgotten_ms: i64,
}

impl Bounds {
    /// The newest timestamp that others are judged by: no clock that ran ahead closes the window to them.
    fn credible(&self, newest_ms: i64) -> i64 {
        newest_ms.min(self.now_ms.saturating_add(FUTURE_MS))
    }

    /// What is older may be late, whatever its series has.
    pub fn in_order_ms(&self) -> i64 {
        self.credible(self.newest.1).saturating_sub(self.lag_ms).max(self.forgotten_ms)
    }
}

/// Where a sample stands to its series' newest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    After,
    At,
    Before,
}

fn covers(ranges: &[(i64, i64)], time_ms: i64) -> bool {
    ranges.iter().any(|&(from_ms, to_ms)| (from_ms..=to_ms).contains(&time_ms))
}

#[derive(Default)]
pub struct Oracle {
    cells: BTreeMap<u32, BTreeMap<i64, Cell>>,
    /// Series that were ever offered: the store may know them.
    offered: BTreeSet<u32>,
    /// Newest sample of a series among those that retention took while the process ran.
    gone: BTreeMap<u32, i64>,
    /// Times that were deleted of a series, ends inclusive: late samples may not come back there.
    deleted: BTreeMap<u32, Vec<(i64, i64)>>,
    /// Newest sample of a series among those that were deleted: files may hold it for long.
    deleted_newest: BTreeMap<u32, i64>,
    /// Times of a series, ends inclusive, that a deletion which failed may have hidden and not stored yet.
    unsettled: BTreeMap<u32, Vec<(i64, i64)>>,
    /// What such a deletion hid: without background work in between, the next process may show it again.
    hidden: Vec<(u32, i64, Cell)>,
    newest: (i64, i64),
    forgotten_ms: i64,
    /// Samples before this may be gone: the highest bound of retention that background work has seen.
    certain_from_ms: i64,
}

impl Oracle {
    pub fn new() -> Oracle {
        Oracle {
            newest: (i64::MIN, i64::MIN),
            forgotten_ms: i64::MIN,
            certain_from_ms: i64::MIN,
            ..Oracle::default()
        }
    }

    /// The bounds of an append now.
    pub fn bounds(&self, now_ms: i64, retained_ms: i64, lag_ms: i64) -> Bounds {
        let (newest, forgotten_ms) = (self.newest, self.forgotten_ms);
        Bounds { now_ms, retained_ms, lag_ms, window_ms: 0, disturbed: false, newest, forgotten_ms }
    }

    /// A seal may take place.
    pub fn may_seal(&mut self, bounds: Bounds) {
        let forgotten_ms = bounds.credible(self.newest.1).saturating_sub(bounds.lag_ms);
        self.forgotten_ms = self.forgotten_ms.max(forgotten_ms);
    }

    /// Retention may remove what is older from now on.
    pub fn expire_before(&mut self, time_ms: i64) {
        self.certain_from_ms = self.certain_from_ms.max(time_ms);
    }

    // --- Appends -------------------------------------------------------------------------------------------------

    /// Every answer that is right for a sample, given what is known. One, unless failures left it open.
    pub fn allowed(&self, series: u32, time_ms: i64, bits: u64, bounds: Bounds) -> Vec<Expected> {
        if time_ms > bounds.now_ms.saturating_add(FUTURE_MS) {
            return vec![Expected::Refused(Refusal::TooFarInFuture)];
        }
        let mut allowed = Vec::new();
        if self.is_deleted(series, time_ms) {
            // What stood there may or may not be compared with, and what is late there may be masked.
            let refusals =
                [Refusal::DuplicateTimestamp, Refusal::OutOfOrder, Refusal::TooOld, Refusal::OutOfBounds];
            allowed.push(Expected::Written);
            allowed.extend(refusals.map(Expected::Refused));
            return allowed;
        }
        for newest_ms in [bounds.newest.0, bounds.newest.1] {
            let newest_ms = bounds.credible(newest_ms);
            let lagging_ms = newest_ms.saturating_sub(bounds.lag_ms).max(bounds.retained_ms);
            for in_order_ms in [lagging_ms, lagging_ms.max(bounds.forgotten_ms)] {
                for expected in self.allowed_behind(newest_ms, in_order_ms, series, (time_ms, bits), bounds) {
                    if !allowed.contains(&expected) {
                        allowed.push(expected);
                    }
                }
            }
        }
        allowed
    }

    /// The same when it is known which sample is the store's newest.
    fn allowed_behind(
        &self,
        newest_ms: i64,
        in_order_ms: i64,
        series: u32,
        (time_ms, bits): (i64, u64),
        bounds: Bounds,
    ) -> Vec<Expected> {
        let in_order = time_ms >= in_order_ms;
        let may_be_late = bounds.window_ms > 0
            && time_ms >= newest_ms.saturating_sub(bounds.window_ms)
            && time_ms >= bounds.retained_ms;
        let older = |refusal| Expected::Refused(if bounds.window_ms > 0 { Refusal::TooOld } else { refusal });
        if !in_order && !may_be_late {
            return vec![older(Refusal::OutOfBounds)];
        }
        let taken = Expected::Refused(Refusal::DuplicateTimestamp);
        let mut allowed = Vec::new();
        for (place, value) in self.situations(series, time_ms) {
            // What is too old to be in order is late whatever its series has.
            let place = if in_order { place } else { Place::Before };
            allowed.push(match (place, value) {
                (_, Some(value)) if value == bits => Expected::Written,
                (Place::At, Some(_)) => taken.clone(),
                (Place::Before, Some(_)) if may_be_late => taken.clone(),
                (Place::After, _) => Expected::Written,
                (_, None) if may_be_late => Expected::Written,
                _ => older(Refusal::OutOfOrder),
            });
            // A clock ran ahead, so that younger samples stand in blocks: they are compared with, and their series need not
            // be known. What is at most half a block behind the newest sample stands in none.
            let uncut_ms = bounds.newest.1.saturating_sub(bounds.lag_ms);
            if newest_ms < bounds.newest.1 && in_order && time_ms < uncut_ms {
                allowed.push(if value.is_none() { Expected::Written } else { taken.clone() });
                allowed.extend(bounds.disturbed.then(|| taken.clone()));
            }
            if bounds.disturbed && place != Place::After {
                allowed.push(if place == Place::At || may_be_late {
                    taken.clone()
                } else {
                    older(Refusal::OutOfOrder)
                });
            }
        }
        allowed
    }

    /// Every way in which a time can stand to what the series has, and what it can have there.
    fn situations(&self, series: u32, time_ms: i64) -> Vec<(Place, Option<u64>)> {
        let empty = BTreeMap::new();
        let cells = self.cells.get(&series).unwrap_or(&empty);
        let is_certain =
            |time_ms: i64, cell: &Cell| cell.state > State::Maybe && time_ms >= self.certain_from_ms;
        let mut later = cells.range(time_ms + 1..).peekable();
        // One that retention took may still be remembered as the series' newest.
        let gone = [self.gone.get(&series), self.deleted_newest.get(&series)];
        let gone_ms = gone.into_iter().flatten().copied().max().unwrap_or(i64::MIN);
        let perhaps_before = later.peek().is_some() || gone_ms > time_ms;
        let surely_before = later.any(|(&time, cell)| is_certain(time, cell));
        let mut situations = Vec::new();
        let here = cells.get(&time_ms);
        for &value in here.map_or(&[][..], |cell| &cell.values) {
            if perhaps_before {
                situations.push((Place::Before, Some(value)));
            }
            if !surely_before {
                situations.push((Place::At, Some(value)));
            }
        }
        if !here.is_some_and(|cell| is_certain(time_ms, cell)) {
            if perhaps_before {
                situations.push((Place::Before, None));
            }
            if !surely_before {
                situations.push((Place::After, None));
            }
            if gone_ms == time_ms || (here.is_some() && time_ms < self.certain_from_ms) {
                situations.push((Place::At, None));
            }
        }
        situations
    }

    /// Whether the store surely knows the series without a look into blocks, surely not, or either. What is at most
    /// `lag_ms` behind the newest sample stands in no block.
    pub fn knows(&self, series: u32, lag_ms: i64) -> Option<bool> {
        let uncut_ms = self.newest.1.saturating_sub(lag_ms).max(self.certain_from_ms);
        let certain = self
            .cells
            .get(&series)
            .is_some_and(|cells| cells.range(uncut_ms..).any(|(_, cell)| cell.state > State::Maybe));
        match (certain, self.offered.contains(&series)) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    pub fn offer(&mut self, series: u32) {
        self.offered.insert(series);
    }

    /// An append said that the sample is written.
    pub fn written(&mut self, series: u32, time_ms: i64, bits: u64) {
        if self.is_deleted(series, time_ms) {
            return self.attempted(series, time_ms, bits);
        }
        let cells = self.cells.entry(series).or_default();
        let cell = cells.entry(time_ms).or_insert_with(|| Cell { values: vec![bits], state: State::Written });
        cell.values.retain(|&value| value == bits);
        if cell.values.is_empty() {
            cell.values.push(bits);
        }
        cell.state = cell.state.max(State::Written);
        self.newest = (self.newest.0.max(time_ms), self.newest.1.max(time_ms));
    }

    /// An append failed: the sample may have been taken.
    pub fn attempted(&mut self, series: u32, time_ms: i64, bits: u64) {
        let cells = self.cells.entry(series).or_default();
        let cell = cells.entry(time_ms).or_insert_with(|| Cell { values: Vec::new(), state: State::Maybe });
        if cell.state == State::Maybe && !cell.values.contains(&bits) {
            cell.values.push(bits);
        }
        self.newest.1 = self.newest.1.max(time_ms);
    }

    /// An append was acknowledged as durable: so is this sample of it.
    pub fn durable(&mut self, series: u32, time_ms: i64) {
        if self.is_deleted(series, time_ms) {
            return;
        }
        if let Some(cell) = self.cells.get_mut(&series).and_then(|cells| cells.get_mut(&time_ms)) {
            cell.state = State::Durable;
        }
    }

    // --- Deletions -----------------------------------------------------------------------------------------------

    /// Whether a time of a series was deleted: what is answered there may depend on which files still hold it.
    pub fn is_deleted(&self, series: u32, time_ms: i64) -> bool {
        self.deleted.get(&series).is_some_and(|ranges| covers(ranges, time_ms))
    }

    /// A deletion came back, or failed and may have done part of its work.
    pub fn delete(
        &mut self,
        wanted: impl Fn(u32) -> bool,
        start_ms: i64,
        end_ms: i64,
        is_certain: bool,
    ) -> u64 {
        let mut samples = 0;
        if start_ms > end_ms {
            return samples;
        }
        for (&series, cells) in self.cells.iter_mut().filter(|&(&series, _)| wanted(series)) {
            self.deleted.entry(series).or_default().push((start_ms, end_ms));
            if !is_certain {
                self.unsettled.entry(series).or_default().push((start_ms, end_ms));
            }
            let Some((&newest_ms, _)) = cells.range(start_ms..=end_ms).next_back() else { continue };
            let newest = self.deleted_newest.entry(series).or_insert(newest_ms);
            *newest = newest_ms.max(*newest);
            for (_, cell) in cells.range_mut(start_ms..=end_ms) {
                cell.state = State::Maybe;
                samples += 1;
            }
            if is_certain {
                cells.retain(|&time, _| !(start_ms..=end_ms).contains(&time));
            }
        }
        self.cells.retain(|_, cells| !cells.is_empty());
        samples
    }

    /// Background work stored what deletions hid.
    pub fn deletions_settled(&mut self) {
        self.unsettled.clear();
        self.hidden.clear();
    }

    /// The process ended: what it had only hidden may be seen again.
    fn unhide(&mut self) {
        for (series, time_ms, cell) in self.hidden.drain(..) {
            self.cells.entry(series).or_default().entry(time_ms).or_insert(cell);
        }
    }

    // --- Failures ------------------------------------------------------------------------------------------------

    fn change(&mut self, change: impl Fn(State) -> State) {
        for cell in self.cells.values_mut().flat_map(BTreeMap::values_mut) {
            cell.state = change(cell.state);
        }
    }

    /// Everything that is written was synced.
    pub fn all_seen_durable(&mut self) {
        self.change(|state| if state > State::Maybe { State::Durable } else { state });
    }

    /// The power failed.
    pub fn power_failed(&mut self) {
        self.unhide();
        self.change(|state| if state < State::Durable { State::Maybe } else { state });
    }

    /// The process was killed.
    pub fn killed(&mut self) {
        self.unhide();
        self.change(|state| if state < State::Written { State::Maybe } else { state });
    }

    // --- Reads ---------------------------------------------------------------------------------------------------

    /// Compares with everything the store holds, hidden samples included, and learns from it what was open. Says what
    /// is wrong.
    pub fn learn(&mut self, contents: &Contents) -> Result<(), String> {
        for (series, samples) in contents {
            let cells = self.cells.get(series);
            for (time, bits) in samples {
                let Some(cell) = cells.and_then(|cells| cells.get(time)) else {
                    return Err(format!("series {series} at {time} reads {bits:x}, which must not be there"));
                };
                if !cell.values.contains(bits) {
                    let values = &cell.values;
                    return Err(format!("series {series} at {time} reads {bits:x} instead of {values:x?}"));
                }
            }
        }
        let none = BTreeMap::new();
        let certain_from_ms = self.certain_from_ms;
        let (gone, mut lost) = (&mut self.gone, None);
        let (unsettled, hidden) = (&self.unsettled, &mut self.hidden);
        for (series, cells) in &mut self.cells {
            let read = contents.get(series).unwrap_or(&none);
            cells.retain(|time, cell| {
                if let Some(&bits) = read.get(time) {
                    cell.values = vec![bits];
                    cell.state = cell.state.max(State::Seen);
                    return true;
                }
                let is_unsettled = unsettled.get(series).is_some_and(|ranges| covers(ranges, *time));
                if is_unsettled && cell.state == State::Maybe {
                    hidden.push((*series, *time, cell.clone()));
                }
                if *time < certain_from_ms {
                    let gone_ms = gone.entry(*series).or_insert(*time);
                    *gone_ms = (*gone_ms).max(*time);
                } else if cell.state > State::Maybe {
                    lost = Some(format!("series {series} at {time} was {:?} and is lost", cell.state));
                }
                false
            });
        }
        self.cells.retain(|_, cells| !cells.is_empty());
        lost.map_or(Ok(()), Err)
    }

    /// After [`Oracle::learn`] nothing is open about the newest timestamp of a process that runs on.
    pub fn settle_newest(&mut self) {
        self.newest.0 = self.newest.0.max(self.max_time_ms());
        self.newest.1 = self.newest.0.max(self.max_deleted_ms());
    }

    /// A new process knows only what is there.
    pub fn restarted(&mut self) {
        self.deletions_settled();
        self.gone.clear();
        self.forgotten_ms = i64::MIN;
        self.newest = (self.max_time_ms(), self.max_time_ms().max(self.max_deleted_ms()));
    }

    fn max_time_ms(&self) -> i64 {
        let lasts = self.cells.values().filter_map(|cells| cells.last_key_value());
        lasts.map(|(&time, _)| time).max().unwrap_or(i64::MIN)
    }

    fn max_deleted_ms(&self) -> i64 {
        self.deleted_newest.values().copied().max().unwrap_or(i64::MIN)
    }

    /// What a select of this range must give. Only right after [`Oracle::learn`].
    pub fn contents(&self, start_ms: i64, end_ms: i64, wanted: impl Fn(u32) -> bool) -> Contents {
        let mut contents = Contents::new();
        if start_ms > end_ms {
            return contents;
        }
        for (&series, cells) in self.cells.iter().filter(|&(&series, _)| wanted(series)) {
            let samples: BTreeMap<i64, u64> =
                cells.range(start_ms..=end_ms).map(|(&time, cell)| (time, cell.values[0])).collect();
            if !samples.is_empty() {
                contents.insert(series, samples);
            }
        }
        contents
    }

    /// Series that may have samples anywhere, deleted ones included: they are named until their files go.
    pub fn series(&self) -> impl Iterator<Item = u32> + '_ {
        self.cells.keys().chain(self.deleted_newest.keys()).copied()
    }

    /// Whether a series may have a sample that is newer.
    pub fn may_have_newer(&self, series: u32, time_ms: i64) -> bool {
        self.cells.get(&series).is_some_and(|cells| cells.range(time_ms + 1..).next().is_some())
    }

    /// A sample of a series that is not too long ago: what duplicates are made of.
    pub fn sample_near(&self, series: u32, time_ms: i64) -> Option<(i64, u64)> {
        let cells = self.cells.get(&series)?;
        let (&time, cell) = cells.range(..=time_ms).next_back().or_else(|| cells.iter().next_back())?;
        Some((time, cell.values[0]))
    }
}
