//! The disk ladder: how full the data volume is, and the space that is kept back for the write that frees some.
//!
//! A file holds space back, the *reserve*. What is shed when the volume fills up, in this order:
//! 1. *tight*: merging pauses unless there are more segments than there should be, and the head is sealed early, as a
//!    segment is shorter than the log that it covers;
//! 2. *read only*: appends are refused and write nothing; queries, retention, seals and merges go on;
//! 3. a seal that finds no space gets that of the reserve.
//!
//! Writing goes on once the reserve is there again and a seal has room beside it, without a restart.
use std::io::ErrorKind;
use std::path::PathBuf;

use metricsstore_vfs::Space;

use crate::error::is_full_disk;
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use crate::{DiskLevel, ReadOnly};

/// The reserve: so many bytes, but never more than these shares of the volume and of what retention allows. It holds what
/// a seal usually makes of a head: a second line behind the room that is left free for one.
const RESERVE_BYTES: u64 = 8 << 20;
const RESERVE_SHARE: u64 = 20;
const RETENTION_SHARE: u64 = 16;
/// What is written between two looks at the volume, at most so much of it.
const SLACK_BYTES: u64 = 16 << 20;
const SLACK_SHARE: u64 = 20;
/// A log shorter than this, or than this part of the space that is left, is not worth a seal.
const LOG_BYTES: u64 = 1 << 20;
const LOG_SHARE: u64 = 8;

/// What is known of the volume.
pub(crate) struct Disk {
    /// What retention allows: bytes, and the bits of a share of the volume; none where they are this much and no number.
    allowed_bytes: AtomicU64,
    allowed_share: AtomicU64,
    level: AtomicU8,
    total: AtomicU64,
    available: AtomicU64,
    /// What sealing the head would write, generously.
    seal_bytes: AtomicU64,
    /// Bytes of the reserve that is there.
    reserve: AtomicU64,
    /// Why writes are refused, as it was reported last.
    reported: AtomicU8,
    /// A reserve that cannot be had for another reason than space is complained about once.
    complained: AtomicBool,
    pub(crate) read_only_entered: AtomicU64,
}

impl Disk {
    pub(crate) fn new(allowed_bytes: Option<u64>, allowed_share: Option<f64>) -> Disk {
        Disk {
            allowed_bytes: AtomicU64::new(allowed_bytes.unwrap_or(u64::MAX)),
            allowed_share: AtomicU64::new(allowed_share.unwrap_or(f64::NAN).to_bits()),
            level: AtomicU8::new(DiskLevel::Normal as u8),
            total: AtomicU64::new(u64::MAX),
            available: AtomicU64::new(u64::MAX),
            seal_bytes: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            reported: AtomicU8::new(0),
            complained: AtomicBool::new(false),
            read_only_entered: AtomicU64::new(0),
        }
    }

    /// Bytes that everything in the data directory may take: the lower of those that were set and of the share that was.
    /// A share binds once the size of the volume is known.
    pub(crate) fn allowed(&self) -> Option<u64> {
        let (bytes, total) = (self.allowed_bytes.load(Relaxed), self.total.load(Relaxed));
        let share = f64::from_bits(self.allowed_share.load(Relaxed));
        let of_volume =
            if share.is_nan() || total == u64::MAX { u64::MAX } else { (total as f64 * share) as u64 };
        Some(bytes.min(of_volume)).filter(|bytes| *bytes < u64::MAX)
    }

    /// Changes both bounds.
    pub(crate) fn allow(&self, bytes: Option<u64>, share: Option<f64>) {
        self.allowed_bytes.store(bytes.unwrap_or(u64::MAX), Relaxed);
        self.allowed_share.store(share.unwrap_or(f64::NAN).to_bits(), Relaxed);
    }

    pub(crate) fn level(&self) -> DiskLevel {
        let level = self.level.load(Relaxed);
        [DiskLevel::Normal, DiskLevel::Tight, DiskLevel::ReadOnly]
            .into_iter()
            .find(|&known| known as u8 == level)
            .unwrap_or_default()
    }

    pub(crate) fn available(&self) -> u64 {
        self.available.load(Relaxed)
    }

    /// Bytes of the reserve that is there.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve.load(Relaxed)
    }

    /// What sealing would write.
    pub(crate) fn seal_bytes(&self) -> u64 {
        self.seal_bytes.load(Relaxed)
    }

    fn slack(&self) -> u64 {
        SLACK_BYTES.min(self.total.load(Relaxed) / SLACK_SHARE)
    }

    fn wanted_reserve(&self) -> u64 {
        let of_volume = RESERVE_BYTES.min(self.total.load(Relaxed) / RESERVE_SHARE);
        self.allowed().map_or(of_volume, |bytes| of_volume.min(bytes / RETENTION_SHARE))
    }

    /// Bytes of a reserve that is to be made. The size of some volumes changes: half of what is wanted will do.
    fn missing_reserve(&self) -> u64 {
        let wanted = self.wanted_reserve();
        if self.reserve() >= wanted / 2 { 0 } else { wanted }
    }

    /// Whether a file of so many bytes leaves room for a seal and for the reserve.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        let taken = self.seal_bytes().saturating_add(self.missing_reserve());
        bytes.saturating_add(taken) <= self.available()
    }

    /// Whether sealing a head now is worth it for the log that it frees.
    pub(crate) fn wants_seal(&self, log_bytes: u64) -> bool {
        match self.level() {
            DiskLevel::Normal => false,
            DiskLevel::Tight => log_bytes >= LOG_BYTES.max(self.available() / LOG_SHARE),
            DiskLevel::ReadOnly => true,
        }
    }

    /// A write has found no space, whatever was known before.
    pub(crate) fn found_full(&self) {
        self.level.store(DiskLevel::ReadOnly as u8, Relaxed);
    }

    fn see(&self, space: Space, head_bytes: u64) {
        self.total.store(space.total, Relaxed);
        self.available.store(space.available, Relaxed);
        self.seal_bytes.store(head_bytes + head_bytes / 4 + self.slack(), Relaxed);
    }

    /// The level after what was seen, with hysteresis: one is left only with some space to spare, and *read only* only
    /// with the reserve in place (`has_reserve`) and a log that works.
    fn settle(&self, has_reserve: bool, log_works: bool) {
        let (available, needed, slack) = (self.available(), self.seal_bytes(), self.slack());
        let level = self.level();
        let held = level == DiskLevel::ReadOnly
            && !(has_reserve && log_works && available >= needed.saturating_add(slack / 2));
        let spare = if level == DiskLevel::Normal { 0 } else { slack };
        let tight = needed.saturating_mul(2).saturating_add(self.wanted_reserve() + spare);
        let next = if held || available < needed {
            DiskLevel::ReadOnly
        } else if available < tight {
            DiskLevel::Tight
        } else {
            DiskLevel::Normal
        };
        self.level.store(next as u8, Relaxed);
        if next != level {
            let (available, reserve) = (available >> 10, self.reserve() >> 10);
            tracing::info!(
                level = next.name(),
                available_kib = available,
                reserve_kib = reserve,
                "disk level"
            );
        }
    }
}

impl Store {
    fn reserve_path(&self) -> PathBuf {
        self.options.dir.join("reserve")
    }

    /// Takes the reserve of an earlier process over, unless it is larger than it should be now.
    pub(crate) fn find_reserve(&self) {
        let Ok(space) = self.files.space(&self.options.dir) else { return };
        let disk = &self.ladder.disk;
        disk.see(space, 0);
        let entries = self.files.list(&self.options.dir).unwrap_or_default();
        match entries.iter().find(|entry| entry.name == "reserve") {
            Some(entry) if entry.len <= disk.wanted_reserve() => disk.reserve.store(entry.len, Relaxed),
            Some(_) => _ = self.remove_file(&self.reserve_path()),
            None => {}
        }
    }

    /// Looks at the volume, makes the reserve where it is missing and there is space for it, and works out the level.
    pub(crate) fn watch_disk(&self) {
        let Ok(space) = self.files.space(&self.options.dir) else { return };
        let disk = &self.ladder.disk;
        let head_bytes = self.head_figures().payload_bytes;
        disk.see(space, head_bytes);
        let missing = disk.missing_reserve();
        // Part of it may be there, and goes first.
        let room = disk.seal_bytes().saturating_add(missing - disk.reserve().min(missing));
        let has_reserve = missing == 0 || (disk.available() >= room && self.make_reserve());
        if let (true, Ok(space)) = (missing > 0 && has_reserve, self.files.space(&self.options.dir)) {
            disk.see(space, head_bytes);
        }
        disk.settle(has_reserve, self.log.broken().is_none());
        self.report_read_only();
    }

    /// Whether the reserve is there, or cannot be had on this volume at all.
    fn make_reserve(&self) -> bool {
        let disk = &self.ladder.disk;
        let (path, bytes) = (self.reserve_path(), disk.wanted_reserve());
        self.remove_file(&path);
        disk.reserve.store(0, Relaxed);
        match self.files.allocate(&path, bytes) {
            Ok(()) => {
                disk.reserve.store(bytes, Relaxed);
                true
            }
            Err(error) => {
                self.remove_file(&path);
                let lacks_space = is_full_disk(&error);
                if !lacks_space && !disk.complained.swap(true, Relaxed) {
                    tracing::warn!(%error, "no space can be kept back for a full disk");
                }
                !lacks_space
            }
        }
    }

    /// Frees the space of the reserve for a seal; false when there was none.
    pub(crate) fn give_up_reserve(&self) -> bool {
        let bytes = self.ladder.disk.reserve.swap(0, Relaxed);
        if bytes == 0 {
            return false;
        }
        match self.files.remove(&self.reserve_path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, "the reserve cannot be given up");
                return false;
            }
            _ => {}
        }
        // Some file systems free blocks only with that.
        let _ = self.files.sync_dir(&self.options.dir);
        tracing::warn!(bytes, "the volume is full: the space kept back goes to a seal");
        true
    }

    /// Why writes are refused at present.
    pub(crate) fn read_only(&self) -> Option<ReadOnly> {
        if self.ladder.disk.level() == DiskLevel::ReadOnly {
            return Some(ReadOnly::DiskFull);
        }
        self.log.broken().map(|_| ReadOnly::LogFailed)
    }

    /// Logs and counts that writes begin to be refused, or are taken again.
    pub(crate) fn report_read_only(&self) {
        let disk = &self.ladder.disk;
        let now = self.read_only();
        let code = now.map_or(0, |reason| reason as u8);
        if disk.reported.swap(code, Relaxed) == code {
            return;
        }
        let (available_bytes, needed_bytes) = (disk.available(), disk.seal_bytes());
        let Some(reason) = now else {
            tracing::info!(available_bytes, "writes are taken again");
            return;
        };
        disk.read_only_entered.fetch_add(1, Relaxed);
        tracing::error!(
            reason = reason.name(),
            available_bytes,
            needed_bytes,
            "writes are refused, queries are answered; {}",
            reason.cure()
        );
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_vfs::Space;

    use super::{Disk, RESERVE_BYTES};
    use crate::DiskLevel::{self, Normal, ReadOnly, Tight};

    const MI: u64 = 1 << 20;

    /// The level of a 10 GiB volume with so many MiB left and a head of 8 MiB.
    fn see(disk: &Disk, mebibytes: u64, has_reserve: bool) -> DiskLevel {
        disk.see(Space { total: 10 << 30, available: mebibytes * MI }, 8 * MI);
        disk.settle(has_reserve, true);
        disk.level()
    }

    #[test]
    fn levels_rise_while_a_seal_still_fits_and_fall_with_space_to_spare() {
        let disk = Disk::new(None, None);
        // A seal may write 10 MiB, and 16 MiB may be written until the next look.
        for (left, level) in [
            (1000, Normal),
            (60, Normal),
            (59, Tight),
            (60, Tight),
            (76, Normal),
            (26, Tight),
            (25, ReadOnly),
            (33, ReadOnly),
            (34, Tight),
            (0, ReadOnly),
            (1000, Normal),
        ] {
            assert_eq!(see(&disk, left, true), level, "{left} MiB left");
        }
    }

    #[test]
    fn writing_does_not_go_on_before_the_reserve_is_there_again() {
        let disk = Disk::new(None, None);
        disk.found_full();
        assert_eq!(disk.level(), ReadOnly);
        assert_eq!(see(&disk, 5000, false), ReadOnly);
        disk.settle(true, false);
        assert_eq!(disk.level(), ReadOnly, "the log must work, too");
        assert_eq!(see(&disk, 5000, true), Normal);
    }

    #[test]
    fn the_reserve_is_a_small_share_of_the_volume_and_of_what_may_be_kept() {
        for (total, allowed, wanted) in [
            (10 << 30, None, RESERVE_BYTES),
            (100 * MI, None, 5 * MI),
            (10 << 30, Some(96 * MI), 6 * MI),
            (10 << 30, Some(10 << 30), RESERVE_BYTES),
        ] {
            let disk = Disk::new(allowed, None);
            disk.see(Space { total, available: total }, 0);
            assert_eq!(disk.wanted_reserve(), wanted);
        }
    }

    #[test]
    fn the_lower_of_a_number_and_a_share_of_the_volume_is_what_may_be_kept() {
        let disk = Disk::new(None, Some(0.5));
        assert_eq!(disk.allowed(), None, "the volume is not known yet");
        disk.see(Space { total: 1000, available: 1000 }, 0);
        assert_eq!(disk.allowed(), Some(500));
        disk.allow(Some(300), Some(0.5));
        assert_eq!(disk.allowed(), Some(300));
        disk.allow(Some(700), Some(0.5));
        assert_eq!(disk.allowed(), Some(500));
        disk.allow(Some(700), None);
        assert_eq!(disk.allowed(), Some(700));
        disk.allow(None, None);
        assert_eq!(disk.allowed(), None);
    }

    #[test]
    fn work_that_is_not_needed_leaves_room_for_a_seal_and_for_the_reserve() {
        let disk = Disk::new(None, None);
        see(&disk, 100, true);
        assert!(disk.has_room_for(66 * MI) && !disk.has_room_for(67 * MI));
        assert!(!disk.wants_seal(100 * MI));
        see(&disk, 59, true);
        assert!(disk.wants_seal(8 * MI) && !disk.wants_seal(7 * MI));
    }
}
