//! What the medium shows after the power failed: everything synced, and any legal part of the rest.
use std::collections::BTreeSet;
use std::ops::Range;

use super::random::Random;
use super::tree::{Content, Tree};

/// The unit in which a medium writes all or nothing.
const SECTOR: usize = 512;

pub(super) fn image(tree: &Tree, random: &mut Random) -> Tree {
    let mut after = tree.deep_copy();
    settle_names(&mut after, random);
    after.for_each_file(|content| settle_content(content, random));
    after
}

/// Keeps or loses each unsynced change of names. A change on a name is lost with the earlier changes of that name
/// that it builds upon; a rename is one change.
fn settle_names(tree: &mut Tree, random: &mut Random) {
    let pending = tree.take_pending();
    let journalled = random.below(pending.len() as u64 + 1) as usize;
    let style = random.below(4);
    let mut lost = BTreeSet::new();
    for (position, change) in pending.into_iter().enumerate() {
        let keep = match style {
            0 => false,
            1 => true,
            // A journal commits changes in order, across directories.
            2 => position < journalled,
            _ => random.coin(),
        };
        if keep && !change.keys().any(|key| lost.contains(&key)) {
            tree.make_durable(&change);
        } else {
            lost.extend(change.keys());
        }
    }
    tree.fall_back_to_durable_names();
}

/// Keeps, loses or tears the bytes after the last sync. The synced prefix always survives.
fn settle_content(content: &mut Content, random: &mut Random) {
    let synced = content.synced;
    let unsynced = content.bytes.len() - synced;
    match random.below(5) {
        0 => content.bytes.truncate(synced),
        1 => {}
        2 => content.bytes.truncate(synced + random.below(unsynced as u64 + 1) as usize),
        // The length reached the medium, the bytes did not.
        3 => content.bytes[synced..].fill(0),
        _ => {
            content.bytes.truncate(synced + random.below(unsynced as u64 + 1) as usize);
            for sector in sectors(synced..content.bytes.len()) {
                if random.coin() {
                    content.bytes[sector].fill(0);
                }
            }
        }
    }
    content.synced = content.bytes.len();
}

/// The parts of a byte range that lie in one sector each.
fn sectors(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = range.start / SECTOR;
    let last = range.end.div_ceil(SECTOR);
    (first..last).map(move |number| {
        let start = (number * SECTOR).max(range.start);
        let end = ((number + 1) * SECTOR).min(range.end);
        start..end.max(start)
    })
}
