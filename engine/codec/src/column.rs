//! The value column of one series: an append-only bit stream with 24 bytes of state, which together with the
//! [`Chain`](crate::fragments::Chain) of its payload makes 32 bytes per series.
//!
//! Rows are those of a timestamp stream; a cell is a value or absent. Every `f64` survives bit for bit:
//! −0.0, ±Inf, any NaN. A value is seen as an integer of the column's kind (a count of pages, of
//! sectors, of ones or of decimal places down to 10^−9, else the bit pattern without the zeros at its end),
//! and each integer is predicted from the two before it: by the last one, or by the last one and the last
//! step, whichever would have been shorter lately. A value as predicted only lengthens a pending run, so
//! constants and steady counters cost nothing; another one costs about the bits of its residual, with a
//! width that adapts. Exclusive-or coding is not among the kinds: on the bit patterns that it would code
//! well, residuals without their trailing zeros are as short, and one coder serves all kinds.
//!
//! # Symbols (most significant bit first)
//! ```text
//! 0 gamma(n)                     n values as predicted
//! 10 w bits                      residual, zigzag, in the expected width w
//! 110 w+2 bits                   residual, somewhat longer
//! 1110 len-1:6 bits              residual of len bits
//! 111100 gamma(n)                n absent cells
//! 111101                         the staleness marker
//! 111110 unit:4 [first]          from here on counts of a unit: 0 4096, 1 512, 2 one, 3…11 10^−1…10^−9
//! 111111 shift:6 [first]         from here on bit patterns without their lowest `shift` bits, which are zero
//! first = gamma(len+1) bits      only in the first kind symbol of a column: its first value, zigzag, in len bits
//! gamma(n) = k zeros, then n in k+1 bits
//! ```
//! A kind symbol in mid-stream carries the last value over into the new kind, and the symbol of the next
//! value follows. **The end of the payload stands for "and so on to the last row"**: absent cells when it
//! ends within `111100 gamma(n)`, values as predicted otherwise. Zero bits behind the end mean the same, so
//! padding is harmless and a pending run need not be written. A column of one repeated value has no payload
//! at all: the value is in its state ([`ColumnState::constant`]).
mod kind;
mod reader;

pub(crate) use kind::{Kind, from_ordered, to_ordered, trailing_zeros};
pub use reader::ColumnReader;
pub(crate) use reader::IntegerReader;

use crate::bits::BitSink;
use crate::varint::zigzag;

/// Bits of the NaN that ends a series.
pub const STALE_NAN_BITS: u64 = 0x7ff0_0000_0000_0002;

/// What one series has at one row, or at several rows in a run.
#[derive(Debug, Clone, Copy)]
pub enum Cell {
    /// A sample; the staleness marker is one.
    Value(f64),
    /// No sample at this many rows.
    Absent(u32),
}

/// In the kind of bit patterns, after how many explicit values the column tries to count units again.
const UNITS_RETRY: u8 = 32;

const PREFIX_RUN: (u64, u32) = (0b0, 1);
const PREFIX_WIDTH: (u64, u32) = (0b10, 2);
const PREFIX_LONGER: (u64, u32) = (0b110, 3);
const PREFIX_LENGTH: (u64, u32) = (0b1110, 4);
const ABSENT: (u64, u32) = (0b11_1100, 6);
const STALE: (u64, u32) = (0b11_1101, 6);
const UNITS: (u64, u32) = (0b11_1110, 6);
const PATTERN: (u64, u32) = (0b11_1111, 6);
/// How much wider than expected the second residual symbol is.
const LONGER_BY: u32 = 2;

/// A column has payload, or must get it before anything else is written.
const WRITTEN: u8 = 1;
/// The pending run is of absent cells, and its symbol is written up to the gamma code.
const IN_ABSENT: u8 = 2;
/// The last present cell was the staleness marker.
const ENDED_STALE: u8 = 4;

/// State of the encoder of one column.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ColumnState {
    last: i64,
    step: i64,
    /// Cells of the run that is not written yet.
    run: u32,
    /// Expected width of residuals in quarter bits, and which prediction was better lately.
    width: u8,
    score: i8,
    kind: Kind,
    /// Low three bits: the flags above; the rest counts values since the last such try.
    flags: u8,
}

const _: () = assert!(size_of::<ColumnState>() == 24);

impl Default for ColumnState {
    fn default() -> ColumnState {
        ColumnState::EMPTY
    }
}

impl ColumnState {
    /// A column without cells.
    pub const EMPTY: ColumnState =
        ColumnState { last: 0, step: 0, run: 0, width: 0, score: 0, kind: Kind::NONE, flags: 0 };

    /// Appends a cell. What it writes to `sink` continues the payload of the cells before.
    #[inline]
    pub fn append(&mut self, cell: Cell, sink: &mut impl BitSink) {
        match cell {
            Cell::Value(value) if value.to_bits() == STALE_NAN_BITS => self.append_stale(sink),
            Cell::Value(value) => self.append_value(value, sink),
            Cell::Absent(cells) => self.append_absent(cells, sink),
        }
    }

    /// The value of all present cells while nothing of the column is written; readers need it then.
    pub fn constant(&self) -> Option<f64> {
        (!self.has(WRITTEN) && self.kind != Kind::NONE).then(|| self.kind.value(self.last))
    }

    /// The last present cell: a value, or the staleness marker.
    pub fn last(&self) -> Option<f64> {
        if self.has(ENDED_STALE) {
            return Some(f64::from_bits(STALE_NAN_BITS));
        }
        (self.kind != Kind::NONE).then(|| self.kind.value(self.last))
    }

    /// Writes what a reader would need from the state, so that payload and number of rows alone give the cells: the
    /// value of a constant column, nothing otherwise.
    pub fn finish(&mut self, sink: &mut impl BitSink) {
        if self.constant().is_some() {
            self.flags |= WRITTEN;
            self.write_first(sink);
        }
    }

    fn append_value(&mut self, value: f64, sink: &mut impl BitSink) {
        self.flags &= !ENDED_STALE;
        if self.has(IN_ABSENT) {
            self.flush(sink);
        }
        if self.kind == Kind::NONE {
            return self.begin(value, sink);
        }
        if self.kind.value(self.predicted()).to_bits() == value.to_bits() {
            return self.count_predicted(sink);
        }
        self.flush(sink);
        let integer = match self.kind.integer(value) {
            Some(integer) if self.kind.is_units() || !self.retry_is_due() => integer,
            found => self.change_kind(value, found, sink),
        };
        self.write_integer(integer, sink);
    }

    fn begin(&mut self, value: f64, sink: &mut impl BitSink) {
        (self.kind, self.last) = Kind::shortest(value);
        if self.has(WRITTEN) {
            self.write_first(sink);
        }
    }

    fn append_absent(&mut self, cells: u32, sink: &mut impl BitSink) {
        if cells == 0 {
            return;
        }
        if !self.has(IN_ABSENT) || self.run.checked_add(cells).is_none() {
            self.flush(sink);
            write(sink, ABSENT, 0, 0);
            self.flags |= IN_ABSENT;
        }
        self.run += cells;
    }

    fn append_stale(&mut self, sink: &mut impl BitSink) {
        self.flush(sink);
        write(sink, STALE, 0, 0);
        self.flags |= ENDED_STALE;
    }

    fn count_predicted(&mut self, sink: &mut impl BitSink) {
        if self.run == u32::MAX {
            self.flush(sink);
        }
        self.advance_predicted(1);
        self.run += 1;
    }

    /// Writes the pending run, and before it the first value when that is still in the state only.
    fn flush(&mut self, sink: &mut impl BitSink) {
        if !self.has(WRITTEN) {
            self.flags |= WRITTEN;
            if self.kind != Kind::NONE {
                self.write_first(sink);
            }
        }
        if self.has(IN_ABSENT) {
            self.flags &= !IN_ABSENT;
            write_gamma(sink, self.run);
        } else if self.run > 0 {
            write(sink, PREFIX_RUN, 0, 0);
            write_gamma(sink, self.run);
        }
        self.run = 0;
    }

    fn write_first(&self, sink: &mut impl BitSink) {
        self.write_kind(sink);
        let first = zigzag(self.last);
        let len = 64 - first.leading_zeros();
        write_gamma(sink, len + 1);
        sink.write(first, len);
    }

    fn write_kind(&self, sink: &mut impl BitSink) {
        match self.kind.shift() {
            Some(shift) => write(sink, PATTERN, u64::from(shift), 6),
            None => write(sink, UNITS, u64::from(self.kind.unit()), 4),
        }
    }

    fn retry_is_due(&mut self) -> bool {
        const ONE: u8 = 8;
        self.flags = self.flags.wrapping_add(ONE);
        (self.flags / ONE).is_multiple_of(UNITS_RETRY)
    }

    /// Looks for a kind that holds the last value and this one; `found` is the integer in the present kind, if any.
    #[cold]
    fn change_kind(&mut self, value: f64, found: Option<i64>, sink: &mut impl BitSink) -> i64 {
        let last = self.kind.value(self.last);
        match (self.kind.common(last, value), found) {
            // A retry that found no unit: all is as before.
            (kind, Some(integer)) if !kind.is_units() => integer,
            (kind, _) => {
                self.carry_over(kind);
                self.write_kind(sink);
                kind.integer(value).unwrap_or_default()
            }
        }
    }

    /// Goes over to a kind that holds the last value; false when it does not.
    fn carry_over(&mut self, kind: Kind) -> bool {
        let Some(last) = kind.integer(self.kind.value(self.last)) else { return false };
        self.last = last;
        self.step = 0;
        self.score = 0;
        self.kind = kind;
        true
    }

    /// Writes an integer that is not as predicted.
    fn write_integer(&mut self, integer: i64, sink: &mut impl BitSink) {
        let width = self.expected_width();
        let residual = zigzag(integer.wrapping_sub(self.predicted()));
        self.observe(integer);
        let len = (64 - residual.leading_zeros()).max(1);
        if len <= width {
            write(sink, PREFIX_WIDTH, residual, width);
        } else if len <= width + LONGER_BY && width + LONGER_BY <= 64 {
            write(sink, PREFIX_LONGER, residual, width + LONGER_BY);
        } else {
            write(sink, PREFIX_LENGTH, u64::from(len - 1), 6);
            sink.write(residual, len);
        }
    }

    /// What the next integer is expected to be.
    fn predicted(&self) -> i64 {
        if self.score > 0 { self.last.wrapping_add(self.step) } else { self.last }
    }

    /// Goes over `count` integers that are as predicted.
    fn advance_predicted(&mut self, count: u32) {
        if self.score > 0 {
            self.last = self.last.wrapping_add(self.step.wrapping_mul(i64::from(count)));
        } else {
            self.step = 0;
        }
    }

    fn expected_width(&self) -> u32 {
        u32::from(self.width).div_ceil(4).clamp(1, 64)
    }

    /// Learns from an integer that is not as predicted: writer and reader do so alike.
    fn observe(&mut self, integer: i64) {
        let step = integer.wrapping_sub(self.last);
        let held = bit_len(step);
        let steady = bit_len(step.wrapping_sub(self.step));
        self.width = next_width(self.width, if self.score > 0 { steady } else { held });
        self.score = (i32::from(self.score) + (held - steady).clamp(-8, 8)).clamp(-24, 24) as i8;
        self.step = step;
        self.last = integer;
    }

    /// A column of integers without kinds, for [`crate::timestamps`].
    pub(crate) fn integers(first: i64) -> ColumnState {
        ColumnState { last: first, flags: WRITTEN, ..ColumnState::EMPTY }
    }

    pub(crate) fn append_integer(&mut self, integer: i64, sink: &mut impl BitSink) {
        if integer == self.predicted() {
            self.count_predicted(sink);
        } else {
            self.flush(sink);
            self.write_integer(integer, sink);
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

fn bit_len(integer: i64) -> i32 {
    64 - zigzag(integer).leading_zeros() as i32
}

/// Moves the expected width, in quarter bits, a quarter of the way to `len` bits, half the way up when `len` is far longer.
fn next_width(width: u8, len: i32) -> u8 {
    let target = len * 4;
    let now = i32::from(width);
    let moved = match target - now {
        _ if width == 0 => target,
        far if far > 12 => now + far / 2,
        near => now + (near + 2).div_euclid(4),
    };
    moved.clamp(1, 255) as u8
}

fn write(sink: &mut impl BitSink, (prefix, prefix_len): (u64, u32), value: u64, len: u32) {
    if prefix_len + len <= 64 {
        sink.write(prefix.unbounded_shl(len) | value, prefix_len + len);
    } else {
        sink.write(prefix, prefix_len);
        sink.write(value, len);
    }
}

/// Elias' gamma code of a positive number: at most 63 bits.
fn write_gamma(sink: &mut impl BitSink, number: u32) {
    let len = 32 - number.leading_zeros();
    sink.write(u64::from(number), 2 * len - 1);
}
