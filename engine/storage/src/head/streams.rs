//! Timestamp streams: rows of time that the series of a target share.
//!
//! A stream begins with one follower and costs that series 48 bytes and its times' encoded differences. The first that
//! joins makes it *shared*: its last rows are then kept as they are too, so that followers which are a few rows behind
//! find theirs.
use super::pages::Pages;
use crate::column::{Arena, Column, decode_column};

/// Rows before the newest that a shared stream keeps in plain form: followers may be so far behind.
const RECENT_ROWS: usize = 16;

/// In `Stream::company`: one follower, others may join.
const ALONE: u32 = u32::MAX;
/// One follower, nobody may join.
const PRIVATE: u32 = u32::MAX - 1;
/// The only follower has left.
const LEFT: u32 = u32::MAX - 2;

/// Streams of one shard and epoch. They are numbered as they are made and never removed: pieces and snapshots name them.
#[derive(Default)]
pub(super) struct Streams {
    all: Pages<Stream>,
    count: u32,
    companies: Vec<Company>,
}

#[derive(Default)]
struct Stream {
    /// Times of the rows that are kept nowhere else, encoded as values are: timestamps are integers that a double holds.
    packed: Column,
    /// The newest row; before the first, that of the epoch before.
    last_ms: i64,
    rows: u32,
    /// Index of the company of a shared stream, or one of the constants above.
    company: u32,
}

/// What a stream costs that one series follows, beside its encoded times.
pub(super) const STREAM_BYTES: usize = size_of::<Stream>();

const _: () = assert!(STREAM_BYTES == 48);

/// What only shared streams have.
struct Company {
    followers: u32,
    len: u32,
    /// Times of the `len` rows before the newest.
    recent: Box<[i64; RECENT_ROWS]>,
}

impl Company {
    fn new(followers: u32) -> Company {
        Company { followers, len: 0, recent: Box::default() }
    }

    fn recent(&self) -> &[i64] {
        &self.recent[..self.len as usize]
    }
}

/// Where a sample belongs in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a row that exists.
    Row(u32),
    /// In a new row, which would get this number.
    NewRow(u32),
    /// The stream has passed this time without a row, or so long ago that it is not looked for.
    Nowhere,
}

impl Streams {
    /// A stream without rows that one series follows; nobody joins a private one.
    pub(super) fn add(&mut self, private: bool) -> u32 {
        let company = if private { PRIVATE } else { ALONE };
        self.count += 1;
        *self.all.get_mut(self.count - 1) = Stream { last_ms: i64::MIN, company, ..Stream::default() };
        self.count - 1
    }

    /// Goes on, without rows, where a shared stream of the epoch before ended. Its followers join it.
    pub(super) fn add_successor(&mut self, before: &Streams, stream: u32) -> u32 {
        let id = self.add(false);
        let company = self.companies.len() as u32;
        self.companies.push(Company::new(0));
        let added = self.all.get_mut(id);
        (added.last_ms, added.company) = (before.last_ms(stream), company);
        id
    }

    /// Counts one more follower.
    pub(super) fn join(&mut self, stream: u32) {
        let stream = self.all.get_mut(stream);
        if let Some(company) = self.companies.get_mut(stream.company as usize) {
            company.followers += 1;
            return;
        }
        stream.company = self.companies.len() as u32;
        self.companies.push(Company::new(2));
    }

    /// Counts one follower less.
    pub(super) fn leave(&mut self, stream: u32) {
        let stream = self.all.get_mut(stream);
        match self.companies.get_mut(stream.company as usize) {
            Some(company) => company.followers -= 1,
            None => stream.company = LEFT,
        }
    }

    /// Whether a series whose sample has this time may join: the newest row is of this time and of this epoch.
    pub(super) fn may_join(&self, stream: u32, timestamp_ms: i64) -> bool {
        let stream = self.all.get(stream);
        stream.is_some_and(|stream| {
            let open = stream.company != PRIVATE && stream.company != LEFT;
            open && stream.rows > 0 && stream.last_ms == timestamp_ms
        })
    }

    pub(super) fn followers(&self, stream: u32) -> u32 {
        let company = self.all.get(stream).map_or(LEFT, |stream| stream.company);
        match self.companies.get(company as usize) {
            Some(company) => company.followers,
            None => u32::from(company != LEFT),
        }
    }

    pub(super) fn rows(&self, stream: u32) -> u32 {
        self.all.get(stream).map_or(0, |stream| stream.rows)
    }

    /// The newest row's time, of the epoch before while there is none; `i64::MIN` before the first.
    pub(super) fn last_ms(&self, stream: u32) -> i64 {
        self.all.get(stream).map_or(i64::MIN, |stream| stream.last_ms)
    }

    /// Appends a row later than all others and returns its number.
    pub(super) fn push(&mut self, stream: u32, timestamp_ms: i64, arena: &mut Arena) -> u32 {
        let stream = self.all.get_mut(stream);
        debug_assert!(stream.last_ms < timestamp_ms);
        if stream.rows > 0 {
            match self.companies.get_mut(stream.company as usize) {
                None => pack(&mut stream.packed, &[stream.last_ms], arena),
                Some(company) => {
                    if company.len as usize == RECENT_ROWS {
                        // Half at a time, so that a row is rarely moved.
                        let (old, kept) = company.recent.split_at_mut(RECENT_ROWS / 2);
                        pack(&mut stream.packed, old, arena);
                        old.copy_from_slice(kept);
                        company.len /= 2;
                    }
                    company.recent[company.len as usize] = stream.last_ms;
                    company.len += 1;
                }
            }
        }
        stream.last_ms = timestamp_ms;
        stream.rows += 1;
        stream.rows - 1
    }

    /// Where a sample of this time belongs.
    #[inline]
    pub(super) fn place(&self, stream: u32, timestamp_ms: i64) -> Place {
        let Some(stream) = self.all.get(stream) else { return Place::Nowhere };
        if stream.last_ms < timestamp_ms {
            return Place::NewRow(stream.rows);
        }
        if stream.rows > 0 && stream.last_ms == timestamp_ms {
            return Place::Row(stream.rows - 1);
        }
        self.recent_row(stream, timestamp_ms).map_or(Place::Nowhere, Place::Row)
    }

    /// The row of this time among the recent ones but the newest.
    fn recent_row(&self, stream: &Stream, timestamp_ms: i64) -> Option<u32> {
        let company = self.companies.get(stream.company as usize)?;
        let row = company.recent().binary_search(&timestamp_ms).ok()?;
        Some(stream.rows - 1 - company.len + row as u32)
    }

    /// The row of this time, however old.
    pub(super) fn row_at(&self, stream: u32, timestamp_ms: i64, arena: &Arena) -> Option<u32> {
        let found = self.all.get(stream).filter(|stream| stream.rows > 0)?;
        if timestamp_ms >= found.last_ms {
            return (timestamp_ms == found.last_ms).then(|| found.rows - 1);
        }
        self.recent_row(found, timestamp_ms).or_else(|| {
            let mut times = Vec::new();
            unpack(&found.packed, self.packed_rows(found), arena, &mut times);
            times.binary_search(&timestamp_ms).ok().map(|row| row as u32)
        })
    }

    fn packed_rows(&self, stream: &Stream) -> u32 {
        let recent = self.companies.get(stream.company as usize).map_or(0, |company| company.len);
        stream.rows.saturating_sub(1 + recent)
    }

    /// Appends the times of all rows to `out`.
    pub(super) fn times_into(&self, stream: u32, arena: &Arena, out: &mut Vec<i64>) {
        let Some(stream) = self.all.get(stream).filter(|stream| stream.rows > 0) else { return };
        unpack(&stream.packed, self.packed_rows(stream), arena, out);
        if let Some(company) = self.companies.get(stream.company as usize) {
            out.extend_from_slice(company.recent());
        }
        out.push(stream.last_ms);
    }

    /// Number of streams, followed or not.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of memory held beside the arena.
    pub(super) fn bytes(&self) -> u64 {
        let companies = self.companies.capacity() * size_of::<Company>()
            + self.companies.len() * size_of::<[i64; RECENT_ROWS]>();
        self.all.bytes() + companies as u64
    }
}

fn pack(packed: &mut Column, times: &[i64], arena: &mut Arena) {
    for &time in times {
        packed.push(arena, 0, (time as f64).to_bits());
    }
}

fn unpack(packed: &Column, rows: u32, arena: &Arena, out: &mut Vec<i64>) {
    let mut payload = Vec::new();
    packed.copy_payload(arena, &mut payload);
    let decoded = decode_column(&payload, 0..rows, |_, bits| out.push(f64::from_bits(bits) as i64));
    debug_assert!(decoded.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times_of(streams: &Streams, stream: u32, arena: &Arena) -> Vec<i64> {
        let mut times = Vec::new();
        streams.times_into(stream, arena, &mut times);
        times
    }

    /// A little later each time, never regular.
    fn irregular(count: i64) -> Vec<i64> {
        (0..count).map(|n| 1_800_000_000_000 + n * 15_000 + n * 7919 % 1000).collect()
    }

    #[test]
    fn every_row_is_found_and_no_other_time_alone_and_in_company() {
        let times = irregular(200);
        for joined_at in [0, 1, 16, 17, 18, 100, 200] {
            let (mut streams, mut arena) = (Streams::default(), Arena::default());
            let stream = streams.add(false);
            for (row, &time) in times.iter().enumerate() {
                assert_eq!(streams.place(stream, time), Place::NewRow(row as u32));
                assert_eq!(streams.push(stream, time, &mut arena), row as u32);
                assert!(streams.may_join(stream, time));
                if row + 1 == joined_at {
                    streams.join(stream);
                }
            }
            assert_eq!(times_of(&streams, stream, &arena), times, "joined at {joined_at}");
            assert_eq!(streams.followers(stream), if (1..=200).contains(&joined_at) { 2 } else { 1 });
            for (row, &time) in times.iter().enumerate() {
                assert_eq!(streams.row_at(stream, time, &arena), Some(row as u32));
                assert_eq!(streams.row_at(stream, time + 1, &arena), None);
                let place = streams.place(stream, time);
                assert!(place == Place::Row(row as u32) || place == Place::Nowhere);
                let behind = times.len() - 1 - row;
                assert!(behind > RECENT_ROWS / 2 || joined_at != 1 || place == Place::Row(row as u32));
            }
        }
    }

    #[test]
    fn nobody_joins_a_private_stream_or_one_that_was_left() {
        let (mut streams, mut arena) = (Streams::default(), Arena::default());
        let (private, left) = (streams.add(true), streams.add(false));
        assert!(!streams.may_join(left, i64::MIN), "there is no row yet");
        streams.push(private, 5, &mut arena);
        streams.push(left, 5, &mut arena);
        assert!(!streams.may_join(private, 5) && streams.may_join(left, 5) && !streams.may_join(left, 6));
        streams.leave(left);
        assert!(!streams.may_join(left, 5));
        assert_eq!((streams.followers(private), streams.followers(left)), (1, 0));
        assert_eq!(times_of(&streams, left, &arena), [5]);
    }

    #[test]
    fn a_successor_goes_on_behind_the_end_of_the_stream_before() {
        let (mut streams, mut arena) = (Streams::default(), Arena::default());
        let stream = streams.add(false);
        streams.push(stream, 10, &mut arena);
        streams.join(stream);
        let mut next = Streams::default();
        let successor = next.add_successor(&streams, stream);
        next.join(successor);
        assert_eq!((next.rows(successor), next.followers(successor)), (0, 1));
        assert_eq!(next.place(successor, 10), Place::Nowhere);
        assert_eq!(next.place(successor, 11), Place::NewRow(0));
        assert!(!next.may_join(successor, 10));
        next.push(successor, 11, &mut arena);
        assert_eq!(times_of(&next, successor, &arena), [11]);
    }

    #[test]
    fn jittered_times_take_less_than_two_bytes_each() {
        let (mut streams, mut arena) = (Streams::default(), Arena::default());
        let times = irregular(2000);
        let stream = streams.add(false);
        for &time in &times {
            streams.push(stream, time, &mut arena);
        }
        assert!(arena.used_bytes() < 2 * 2000, "{} bytes", arena.used_bytes());
        let regular = streams.add(false);
        let before = arena.used_bytes();
        for n in 0..2000 {
            streams.push(regular, n * 15_000, &mut arena);
        }
        assert!(arena.used_bytes() - before <= 64, "{} bytes", arena.used_bytes() - before);
    }
}
