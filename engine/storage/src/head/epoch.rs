//! The columns of one shard between two seals.
use std::ops::Range;

use hashbrown::HashMap;
use metricsstore_budget::{Budget, Part};
use metricsstore_model::Refusal;

use super::late::LateRuns;
use super::pages::Pages;
use super::streams::{Place, Streams};
use crate::column::{Arena, Column, Encoding, Piece, decode_column};
use crate::kinds::Kinds;
use crate::sync::Mutex;

mod kinds;

const NONE: u32 = u32::MAX;
/// A series that would leave more rows empty than this follows another stream.
const MAX_GAP_ROWS: u32 = 2;
/// Gaps in a row after which a series leaves its stream.
const MAX_MISSES: u8 = 3;
/// Changes of stream within one epoch after which a series gets one of its own.
const MAX_SWITCHES: u8 = 3;

/// One shard's epoch. Readers that hold it keep it alive after it was sealed.
pub(crate) struct Epoch {
    pub(crate) data: Mutex<EpochData>,
}

/// Time bounds of one append, fixed at its start.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "units stand in names")]
pub(crate) struct Limits {
    /// Older samples are past retention.
    pub(crate) retained_ms: i64,
    /// Samples from here on are in order when they are newer than their series' last.
    pub(crate) in_order_ms: i64,
    /// Samples from here on are taken late when they are not in order; `None` takes none.
    pub(crate) late_ms: Option<i64>,
    /// Samples above are too far in the future.
    pub(crate) max_ms: i64,
    /// What is not newer may stand in blocks; `i64::MIN` where nothing in order does, which is so unless a clock ran ahead.
    pub(crate) in_blocks_ms: i64,
}

impl Limits {
    /// What has been judged before: any time, in order only.
    pub(crate) const NONE: Limits = Limits {
        retained_ms: i64::MIN,
        in_order_ms: i64::MIN,
        late_ms: None,
        max_ms: i64::MAX,
        in_blocks_ms: i64::MIN,
    };

    /// Whether a sample in order may stand in a block.
    pub(crate) fn may_be_in_blocks(&self, timestamp_ms: i64) -> bool {
        timestamp_ms <= self.in_blocks_ms.min(self.max_ms) && timestamp_ms >= self.in_order_ms
    }

    /// Whether a sample of this time may be late.
    pub(crate) fn takes_late(&self, timestamp_ms: i64) -> bool {
        self.late_ms.is_some_and(|late_ms| timestamp_ms >= late_ms)
    }

    /// What the bounds alone say of a sample; `None`: it may be in order.
    fn judge(&self, timestamp_ms: i64) -> Option<Judgement> {
        if timestamp_ms > self.max_ms {
            return Some(Judgement::Refused(Refusal::TooFarInFuture));
        }
        if timestamp_ms >= self.in_order_ms {
            return None;
        }
        let late = timestamp_ms >= self.retained_ms && self.takes_late(timestamp_ms);
        let refusal = || Judgement::Refused(self.refusal_of_older(Refusal::OutOfBounds));
        Some(if late { Judgement::Older { is_last: false } } else { refusal() })
    }

    /// Why an older sample is refused: `otherwise`, unless there is a window for it to be too old for.
    pub(crate) fn refusal_of_older(&self, otherwise: Refusal) -> Refusal {
        if self.late_ms.is_some() { Refusal::TooOld } else { otherwise }
    }
}

/// What became of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    Written,
    /// The same sample is there already.
    Duplicate,
    Refused(Refusal),
    /// Not in order: a duplicate when the series has the same, late when it has nothing of this time and the limits
    /// say so ([`EpochData::take_late`]), else refused.
    Older {
        /// Whether it is of the time of the series' last sample, whose value is sealed.
        is_last: bool,
    },
}

/// What is known of a series' last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Its time; the value is sealed.
    Time,
    /// A float sample.
    Sample,
    /// A histogram, which `EpochData::kinds` has; its bits say nothing.
    Histogram,
}

/// What a series is judged by. It outlives the epoch.
struct Last {
    timestamp_ms: i64,
    bits: u64,
    /// The stream that the series follows.
    stream: u32,
    known: Known,
    /// Rows left empty lately.
    misses: u8,
    /// Changes of stream in this epoch.
    switches: u8,
}

impl Default for Last {
    fn default() -> Last {
        Last { timestamp_ms: 0, bits: 0, stream: NONE, known: Known::Nothing, misses: 0, switches: 0 }
    }
}

/// A series' samples in this epoch.
#[derive(Default)]
struct Cells {
    column: Column,
    stream: u32,
    first_row: u32,
    next_row: u32,
    /// Whether there are older pieces in `EpochData::closed`.
    has_closed: bool,
    /// Whether there are runs in `EpochData::late`.
    has_late: bool,
}

impl Cells {
    fn has_samples(&self) -> bool {
        self.has_closed || self.has_late || self.has_rows()
    }

    fn has_rows(&self) -> bool {
        self.next_row > self.first_row
    }
}

const _: () = assert!(size_of::<Last>() + size_of::<Cells>() <= 72);

/// Where a series' samples in order ended when a snapshot was taken. There were none when `next_row` is 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ColumnEnd {
    stream: u32,
    next_row: u32,
}

impl ColumnEnd {
    /// Takes what came later out of the first `in_order` of a series' pieces, which are in order.
    pub(crate) fn cut(self, pieces: &mut Vec<Piece>, in_order: usize) {
        // A series may follow a stream again that it had left: the last such piece that had begun.
        let had_begun = |piece: &Piece| piece.stream == self.stream && piece.first_row < self.next_row;
        let kept = pieces[..in_order].iter().rposition(had_begun).map_or(0, |at| at + 1);
        pieces.drain(kept..in_order);
        if let Some(piece) = kept.checked_sub(1).and_then(|at| pieces.get_mut(at)) {
            piece.rows = piece.rows.min(self.next_row - piece.first_row);
        }
    }
}

/// What a series left in a stream that it no longer follows.
struct ClosedPiece {
    column: Column,
    stream: u32,
    first_row: u32,
    next_row: u32,
    /// The piece before it, an index into `EpochData::closed`.
    previous: u32,
}

pub(crate) struct EpochData {
    lasts: Pages<Last>,
    cells: Pages<Cells>,
    streams: Streams,
    closed: Vec<ClosedPiece>,
    /// Newest closed piece of each series that has one: few have.
    newest_closed: HashMap<u32, u32>,
    late: LateRuns,
    /// Histograms and start timestamps, of the few series that have them.
    pub(crate) kinds: Kinds,
    arena: Arena,
    /// The stream that took the last sample.
    recent: u32,
    /// Series that have samples; those with floats and histograms are counted twice.
    pub(crate) series: u32,
    pub(crate) samples: u64,
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    counted: Counted,
}

/// Bytes this epoch has in the budget; given back when it goes.
struct Counted {
    budget: Budget,
    state: u64,
    payload: u64,
}

impl Counted {
    fn update(&mut self, state: u64, payload: u64) {
        for (part, old, new) in
            [(Part::SeriesState, &mut self.state, state), (Part::HeadPayload, &mut self.payload, payload)]
        {
            if new >= *old {
                self.budget.add(part, new - *old);
            } else {
                self.budget.sub(part, *old - new);
            }
            *old = new;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.update(0, 0);
    }
}

impl EpochData {
    pub(crate) fn new(budget: &Budget) -> EpochData {
        EpochData {
            lasts: Pages::default(),
            cells: Pages::default(),
            streams: Streams::default(),
            closed: Vec::new(),
            newest_closed: HashMap::new(),
            late: LateRuns::default(),
            kinds: Kinds::default(),
            arena: Arena::default(),
            recent: NONE,
            series: 0,
            samples: 0,
            min_ms: i64::MAX,
            max_ms: i64::MIN,
            counted: Counted { budget: budget.clone(), state: 0, payload: 0 },
        }
    }

    /// Judges a sample and takes it when it is in order: newer than the series' last and not too far behind.
    pub(crate) fn append(&mut self, local: u32, timestamp_ms: i64, bits: u64, limits: Limits) -> Judgement {
        if let Some(judgement) = limits.judge(timestamp_ms) {
            return judgement;
        }
        let last = self.lasts.get_mut(local);
        if last.known != Known::Nothing && timestamp_ms <= last.timestamp_ms {
            return match (timestamp_ms == last.timestamp_ms, bits == last.bits) {
                (true, _) if last.known == Known::Time => Judgement::Older { is_last: true },
                (true, true) if last.known == Known::Sample => Judgement::Duplicate,
                (true, _) => Judgement::Refused(Refusal::DuplicateTimestamp),
                (false, _) => Judgement::Older { is_last: false },
            };
        }
        self.take(local, timestamp_ms, bits);
        Judgement::Written
    }

    /// Takes a sample that is newer than the series' last.
    fn take(&mut self, local: u32, timestamp_ms: i64, bits: u64) {
        let row = self.row_for(local, timestamp_ms);
        let last = self.lasts.get_mut(local);
        (last.timestamp_ms, last.bits, last.known) = (timestamp_ms, bits, Known::Sample);
        let cells = self.cells.get_mut(local);
        if !cells.has_rows() {
            self.series += u32::from(!cells.has_samples());
            (cells.stream, cells.first_row, cells.next_row) = (last.stream, row, row);
        }
        cells.column.push(&mut self.arena, row - cells.next_row, bits);
        cells.next_row = row + 1;
        self.count(timestamp_ms);
    }

    /// Takes a sample that is not in order, at a time that the series does not have.
    pub(crate) fn take_late(&mut self, local: u32, timestamp_ms: i64, bits: u64) {
        self.late.push(local, (timestamp_ms, bits), &mut self.streams, &mut self.arena);
        let cells = self.cells.get_mut(local);
        self.series += u32::from(!cells.has_samples());
        cells.has_late = true;
        // One of a series without newer ones: what follows is judged by it.
        let last = self.lasts.get_mut(local);
        if last.known == Known::Nothing || last.timestamp_ms < timestamp_ms {
            (last.timestamp_ms, last.bits, last.known) = (timestamp_ms, bits, Known::Sample);
        }
        self.count(timestamp_ms);
    }

    fn count(&mut self, timestamp_ms: i64) {
        self.samples += 1;
        self.min_ms = self.min_ms.min(timestamp_ms);
        self.max_ms = self.max_ms.max(timestamp_ms);
    }

    /// The row for a sample in the series' stream, after a change of stream where the present one does not fit.
    fn row_for(&mut self, local: u32, timestamp_ms: i64) -> u32 {
        let last = self.lasts.get_mut(local);
        let (stream, misses) = (last.stream, last.misses);
        if stream == NONE {
            return self.follow_another(local, timestamp_ms);
        }
        let place = self.streams.place(stream, timestamp_ms);
        let (Place::Row(row) | Place::NewRow(row)) = place else {
            return self.follow_another(local, timestamp_ms);
        };
        let next_row =
            self.cells.get(local).filter(|cells| cells.has_rows()).map_or(row, |cells| cells.next_row);
        let gap = row.saturating_sub(next_row);
        let behind = row < next_row;
        if behind || gap > MAX_GAP_ROWS || (gap > 0 && misses >= MAX_MISSES) {
            return self.follow_another(local, timestamp_ms);
        }
        let last = self.lasts.get_mut(local);
        last.misses = if gap > 0 { misses + 1 } else { misses.saturating_sub(1) };
        if matches!(place, Place::NewRow(_)) {
            self.streams.push(stream, timestamp_ms, &mut self.arena);
        }
        self.recent = stream;
        row
    }

    /// Closes what the series has, and lets it join the stream of the previous sample when that has a row of this
    /// time, else a new one.
    fn follow_another(&mut self, local: u32, timestamp_ms: i64) -> u32 {
        self.close_piece(local);
        let last = self.lasts.get_mut(local);
        let (old, switches) = (last.stream, last.switches);
        if old != NONE {
            self.streams.leave(old);
        }
        let private = switches >= MAX_SWITCHES;
        let recent = self.recent;
        let (stream, row) = if !private && recent != old && self.streams.may_join(recent, timestamp_ms) {
            self.streams.join(recent);
            (recent, self.streams.rows(recent) - 1)
        } else {
            let stream = self.streams.add(private);
            (stream, self.streams.push(stream, timestamp_ms, &mut self.arena))
        };
        let last = self.lasts.get_mut(local);
        last.stream = stream;
        last.misses = 0;
        last.switches = if old == NONE { switches } else { switches.saturating_add(1) };
        self.recent = stream;
        row
    }

    fn close_piece(&mut self, local: u32) {
        let next_closed = self.closed.len() as u32;
        if !self.cells.get(local).is_some_and(Cells::has_rows) {
            return;
        }
        let cells = std::mem::take(self.cells.get_mut(local));
        let Cells { column, stream, first_row, next_row, has_late, .. } = cells;
        (self.cells.get_mut(local).has_closed, self.cells.get_mut(local).has_late) = (true, has_late);
        let previous = self.newest_closed.insert(local, next_closed).unwrap_or(NONE);
        self.closed.push(ClosedPiece { column, stream, first_row, next_row, previous });
    }

    /// Tells when the last sealed sample of a series was, for series that have nothing in memory.
    pub(crate) fn remember(&mut self, local: u32, timestamp_ms: i64) {
        let last = self.lasts.get_mut(local);
        let newer = last.known == Known::Time && last.timestamp_ms < timestamp_ms;
        if newer || last.known == Known::Nothing {
            (last.timestamp_ms, last.known) = (timestamp_ms, Known::Time);
        }
    }

    /// The epoch that follows: no samples. It takes over what `live` series that may still be judged by their last
    /// sample are judged by, so that this one takes no samples any more.
    pub(crate) fn succeed(&mut self, remember_from_ms: i64, live: impl Fn(u32) -> bool) -> EpochData {
        let mut next = EpochData::new(&self.counted.budget);
        let mut successors = vec![NONE; self.streams.count() as usize];
        next.lasts = std::mem::take(&mut self.lasts);
        next.lasts.retain(|local, last| {
            if last.known == Known::Nothing || last.timestamp_ms < remember_from_ms || !live(local) {
                *last = Last::default();
                return false;
            }
            (last.misses, last.switches) = (0, 0);
            // One that went alone may find company in the next epoch.
            if self.streams.followers(last.stream) < 2 {
                last.stream = NONE;
                return true;
            }
            let successor = &mut successors[last.stream as usize];
            if *successor == NONE {
                *successor = next.streams.add_successor(&self.streams, last.stream);
            }
            next.streams.join(*successor);
            last.stream = *successor;
            true
        });
        let lasts = &next.lasts;
        next.kinds =
            self.kinds.successor(|local| lasts.get(local).is_some_and(|last| last.known == Known::Histogram));
        self.recount();
        next.recount();
        next
    }

    /// Brings the budget up to date with what is held.
    pub(crate) fn recount(&mut self) {
        let closed = self.closed.capacity() * size_of::<ClosedPiece>() + self.newest_closed.allocation_size();
        let pages = self.lasts.bytes() + self.cells.bytes();
        let state = pages + closed as u64 + self.streams.bytes() + self.late.bytes();
        self.counted.update(state, self.arena.allocated_bytes() + self.kinds.bytes());
    }

    /// Bytes of encoded samples, with what runs of late ones cost beside.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.arena.used_bytes() + self.kinds.payload_bytes() + self.late.overhead_bytes()
    }

    /// Where a series' samples in order end at this moment.
    pub(crate) fn column_end(&self, local: u32) -> ColumnEnd {
        let cells = self.cells.get(local).filter(|cells| cells.has_rows());
        cells.map_or_else(ColumnEnd::default, |cells| ColumnEnd {
            stream: cells.stream,
            next_row: cells.next_row,
        })
    }

    /// Number of streams, those without rows included.
    pub(crate) fn stream_count(&self) -> u32 {
        self.streams.count()
    }

    /// Appends the times of all rows of a stream to `out`.
    pub(crate) fn times_into(&self, stream: u32, out: &mut Vec<i64>) {
        self.streams.times_into(stream, &self.arena, out);
    }

    /// Pages of series, free ones included.
    pub(crate) fn page_count(&self) -> u32 {
        self.cells.len().max(self.kinds.page_count())
    }

    /// Number of streams, and of those with one member.
    pub(crate) fn stream_figures(&self) -> (u64, u64) {
        let followers = (0..self.streams.count()).map(|stream| self.streams.followers(stream));
        let used = followers.filter(|&followers| followers > 0);
        used.fold((0, 0), |(all, single), followers| (all + 1, single + u64::from(followers == 1)))
    }

    /// Whether there is a sample at this time, but no start timestamp of it.
    pub(crate) fn lacks_start(&self, local: u32, timestamp_ms: i64) -> bool {
        !self.kinds.has_start(local, timestamp_ms)
            && (self.value_at(local, timestamp_ms).is_some()
                || self.histogram_at(local, timestamp_ms).is_some())
    }

    /// Calls `visit` with column, stream and rows of every piece of a series: what is in order from the newest to the
    /// oldest, then what is late.
    fn visit_pieces(&self, local: u32, mut visit: impl FnMut(&Column, u32, Range<u32>)) {
        let Some(cells) = self.cells.get(local) else { return };
        if cells.has_rows() {
            visit(&cells.column, cells.stream, cells.first_row..cells.next_row);
        }
        if cells.has_closed {
            let mut at = self.newest_closed.get(&local).copied().unwrap_or(NONE);
            while let Some(closed) = self.closed.get(at as usize) {
                visit(&closed.column, closed.stream, closed.first_row..closed.next_row);
                at = closed.previous;
            }
        }
        if cells.has_late {
            for run in self.late.of(local) {
                visit(&run.column, run.stream, 0..run.rows);
            }
        }
    }

    /// The bits of a series' sample at this time.
    pub(crate) fn value_at(&self, local: u32, timestamp_ms: i64) -> Option<u64> {
        let mut found = None;
        let mut payload = Vec::new();
        self.visit_pieces(local, |column, stream, rows| {
            let row = self.streams.row_at(stream, timestamp_ms, &self.arena);
            let Some(row) = row.filter(|row| found.is_none() && rows.contains(row)) else { return };
            let row = row - rows.start;
            payload.clear();
            column.copy_payload(&self.arena, &mut payload);
            let decoded = decode_column(&payload, row..row + 1, |_, bits| found = Some(bits));
            debug_assert!(decoded.is_ok());
        });
        found
    }

    /// Copies the encoded rows of a series: what is in order, oldest piece first, then what is late.
    pub(crate) fn pieces_into(&self, local: u32, payload: &mut Vec<u8>, pieces: &mut Vec<Piece>) {
        let first = pieces.len();
        self.visit_pieces(local, |column, stream, rows| {
            let start = payload.len();
            column.copy_payload(&self.arena, payload);
            let piece = Piece {
                stream,
                first_row: rows.start,
                rows: rows.end - rows.start,
                payload: start..payload.len(),
                encoding: Encoding::Column,
            };
            pieces.push(piece);
        });
        let late = self.late_runs(local);
        let in_order = pieces.len() - late;
        pieces[first..in_order].reverse();
    }

    /// How many of a series' pieces are late.
    pub(crate) fn late_runs(&self, local: u32) -> usize {
        let has_late = self.cells.get(local).is_some_and(|cells| cells.has_late);
        if has_late { self.late.of(local).len() } else { 0 }
    }

    /// Local ids of the series that have samples in this epoch, some twice.
    pub(crate) fn locals(&self) -> impl Iterator<Item = u32> + '_ {
        let cells = self.cells.iter().filter(|(_, cells)| cells.has_samples());
        cells.map(|(local, _)| local).chain(self.kinds.locals())
    }

    /// Whether a series has samples in this epoch.
    pub(crate) fn has_samples(&self, local: u32) -> bool {
        self.cells.get(local).is_some_and(Cells::has_samples) || self.kinds.has_samples(local)
    }
}
