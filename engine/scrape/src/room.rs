//! The part of the memory budget that pages may hold while they are read: a target decides what it sends, so nothing
//! of it is kept before there is room for it.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metricsstore_budget::{Budget, Part};

use crate::ScrapeError;

/// All pages in flight may hold this part of the budget.
const SHARE: u64 = 4;

/// What the pages of all targets hold together.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    budget: Budget,
    held: Arc<AtomicU64>,
}

impl Room {
    pub(crate) fn new(budget: Budget) -> Room {
        Room { budget, held: Arc::default() }
    }

    /// For one page, which holds nothing yet.
    pub(crate) fn hold(&self) -> Hold {
        Hold { room: self.clone(), bytes: 0 }
    }
}

/// Bytes of one page, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    room: Room,
    bytes: u64,
}

impl Hold {
    /// Counts `bytes` more, or says that they are not to be had.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ScrapeError> {
        let (bytes, limit) = (bytes as u64, self.room.budget.limit() / SHARE);
        let more = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= limit);
        let grown = self.room.held.fetch_update(Relaxed, Relaxed, more);
        grown.map_err(|_| ScrapeError::Memory { limit, page: self.bytes + bytes })?;
        self.room.budget.add(Part::Ingest, bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Makes room in `buffer` for at least `bytes` more.
    pub(crate) fn make_room(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<(), ScrapeError> {
        if buffer.capacity() - buffer.len() >= bytes {
            return Ok(());
        }
        let before = buffer.capacity();
        // Doubling keeps the number of copies small.
        let wanted = bytes.max(before);
        self.grow(buffer.len() + wanted - before)?;
        buffer.reserve_exact(wanted);
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Relaxed);
        self.room.budget.sub(Part::Ingest, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_budget::{Budget, Part};

    use super::Room;
    use crate::ScrapeError;

    #[test]
    fn pages_hold_a_quarter_of_the_budget_together_and_give_it_back() {
        let budget = Budget::new(400);
        let room = Room::new(budget.clone());
        let (mut one, mut other) = (room.hold(), room.hold());
        assert_eq!(one.grow(70), Ok(()));
        assert_eq!(other.grow(31), Err(ScrapeError::Memory { limit: 100, page: 31 }));
        assert_eq!(other.grow(30), Ok(()));
        assert_eq!(budget.part(Part::Ingest), 100);
        drop(one);
        assert_eq!(other.grow(70), Ok(()));
        drop(other);
        assert_eq!(budget.part(Part::Ingest), 0);
    }

    #[test]
    fn a_buffer_grows_no_further_than_the_room() {
        let mut hold = Room::new(Budget::new(400)).hold();
        let mut buffer = Vec::new();
        hold.make_room(&mut buffer, 60).unwrap();
        buffer.resize(buffer.capacity(), 0);
        assert!(hold.make_room(&mut buffer, 1).is_err());
        assert_eq!(buffer.capacity(), 60);
    }
}
