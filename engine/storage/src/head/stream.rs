//! Timestamp streams: rows of time that many series share.

/// Rows of time of one stream within one epoch.
#[derive(Default)]
pub(crate) struct Stream {
    times: Vec<i64>,
    /// Newest row, of earlier epochs too.
    last_ms: Option<i64>,
    /// Open columns that follow it.
    pub(crate) members: u32,
    /// Nobody else may join.
    pub(crate) private: bool,
}

impl Stream {
    /// A stream without rows; nobody joins a private one.
    pub(crate) fn new(private: bool) -> Stream {
        Stream { private, ..Stream::default() }
    }

    pub(crate) fn rows(&self) -> u32 {
        self.times.len() as u32
    }

    /// Appends a row later than all others.
    pub(crate) fn push(&mut self, timestamp_ms: i64) -> u32 {
        debug_assert!(self.last_ms.is_none_or(|last| last < timestamp_ms));
        self.times.push(timestamp_ms);
        self.last_ms = Some(timestamp_ms);
        self.rows() - 1
    }

    /// Whether the newest row is of this epoch and has this time.
    pub(crate) fn ends_at(&self, timestamp_ms: i64) -> bool {
        self.last_ms == Some(timestamp_ms) && !self.times.is_empty()
    }

    /// Where a sample of this time belongs.
    pub(crate) fn place(&self, timestamp_ms: i64) -> Place {
        if self.last_ms.is_none_or(|last| last < timestamp_ms) {
            return Place::NewRow(self.rows());
        }
        if self.ends_at(timestamp_ms) {
            return Place::Row(self.rows() - 1);
        }
        match self.times.binary_search(&timestamp_ms) {
            Ok(row) => Place::Row(row as u32),
            Err(_) => Place::Nowhere,
        }
    }

    pub(crate) fn times_into(&self, rows: std::ops::Range<u32>, out: &mut Vec<i64>) {
        out.extend_from_slice(&self.times[rows.start as usize..rows.end as usize]);
    }

    /// The same stream in the next epoch: no rows, no members.
    pub(crate) fn successor(&self) -> Stream {
        Stream { times: Vec::new(), last_ms: self.last_ms, members: 0, private: self.private }
    }

    /// Bytes of memory held beside the struct.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.times.capacity() as u64 * 8
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
