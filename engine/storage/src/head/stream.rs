//! Timestamp streams: rows of time that many series share.
use std::ops::Range;

use crate::column::{Arena, Column, decode_column};

/// A stream that only one series follows is packed from this many rows on.
const PACK_ROWS: u32 = 8;

/// Rows of time of one stream within one epoch.
pub(crate) struct Stream {
    times: Times,
    rows: u32,
    /// Open columns that follow it.
    pub(crate) members: u32,
    /// Newest row, of earlier epochs too; `i64::MIN` before the first.
    last_ms: i64,
    /// Nobody else may join.
    pub(crate) private: bool,
}

enum Times {
    Plain(Vec<i64>),
    /// Encoded as values are; timestamps are integers that a double holds.
    Packed(Column),
}

impl Stream {
    /// A stream without rows; nobody joins a private one.
    pub(crate) fn new(private: bool) -> Stream {
        Stream { times: Times::Plain(Vec::new()), rows: 0, members: 0, last_ms: i64::MIN, private }
    }

    /// A private stream with one member, which never has memory beside the struct and the arena.
    pub(crate) fn packed() -> Stream {
        Stream { times: Times::Packed(Column::default()), members: 1, ..Stream::new(true) }
    }

    /// The newest row's time, of earlier epochs too.
    pub(crate) fn last_ms(&self) -> i64 {
        self.last_ms
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Appends a row later than all others.
    pub(crate) fn push(&mut self, timestamp_ms: i64, arena: &mut Arena) -> u32 {
        debug_assert!(self.last_ms < timestamp_ms);
        if self.rows == PACK_ROWS && self.members <= 1 {
            self.pack(arena);
        }
        match &mut self.times {
            Times::Plain(times) => times.push(timestamp_ms),
            Times::Packed(column) => column.push(arena, 0, (timestamp_ms as f64).to_bits()),
        }
        self.last_ms = timestamp_ms;
        self.rows += 1;
        self.rows - 1
    }

    fn pack(&mut self, arena: &mut Arena) {
        if let Times::Plain(times) = &self.times {
            let mut column = Column::default();
            for &time in times {
                column.push(arena, 0, (time as f64).to_bits());
            }
            self.times = Times::Packed(column);
        }
    }

    /// Whether the newest row is of this epoch and has this time.
    pub(crate) fn ends_at(&self, timestamp_ms: i64) -> bool {
        self.last_ms == timestamp_ms && self.rows > 0
    }

    /// Where a sample of this time belongs.
    #[inline]
    pub(crate) fn place(&self, timestamp_ms: i64, arena: &Arena) -> Place {
        if self.last_ms < timestamp_ms {
            return Place::NewRow(self.rows);
        }
        if self.ends_at(timestamp_ms) {
            return Place::Row(self.rows - 1);
        }
        self.row_at(timestamp_ms, arena).map_or(Place::Nowhere, Place::Row)
    }

    /// The row of this time.
    pub(crate) fn row_at(&self, timestamp_ms: i64, arena: &Arena) -> Option<u32> {
        if timestamp_ms > self.last_ms {
            return None;
        }
        let found = match &self.times {
            Times::Plain(times) => times.binary_search(&timestamp_ms),
            Times::Packed(_) => {
                let mut times = Vec::new();
                self.times_into(0..self.rows, arena, &mut times);
                times.binary_search(&timestamp_ms)
            }
        };
        found.ok().map(|row| row as u32)
    }

    /// Appends the times of `rows` to `out`.
    pub(crate) fn times_into(&self, rows: Range<u32>, arena: &Arena, out: &mut Vec<i64>) {
        match &self.times {
            Times::Plain(times) => out.extend_from_slice(&times[rows.start as usize..rows.end as usize]),
            Times::Packed(column) => {
                let mut payload = Vec::new();
                column.copy_payload(arena, &mut payload);
                let decoded = decode_column(&payload, rows, |_, bits| out.push(f64::from_bits(bits) as i64));
                debug_assert!(decoded.is_ok());
            }
        }
    }

    /// The same stream in the next epoch: no rows, no members.
    pub(crate) fn successor(&self) -> Stream {
        Stream { last_ms: self.last_ms, ..Stream::new(false) }
    }

    /// Bytes of memory held beside the struct and the arena.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match &self.times {
            Times::Plain(times) => times.capacity() as u64 * 8,
            Times::Packed(_) => 0,
        }
    }
}

/// Where a sample belongs in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a row that exists.
    Row(u32),
    /// In a new row, which would get this number.
    NewRow(u32),
    /// The stream has passed this time without a row.
    Nowhere,
}
