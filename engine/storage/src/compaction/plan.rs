//! Which blocks are compacted next: a pure function of what they say of themselves.
//!
//! In this order, as Prometheus' leveled compaction does it:
//! 1. blocks that overlap in time, the oldest first;
//! 2. blocks that stand in one range of three times the length, for each length up to the longest, once that range is
//!    over: there is a newer block, and the newest of all is left alone, since more may come for its time;
//! 3. a block of which much is deleted.
//!
//! A block that a shipper has not listed yet is left as it is, and so is everything it stands together with.
use std::ops::Range;

use crate::block::BlockMeta;

/// Lengths of blocks grow by this factor.
const FACTOR: i64 = 3;
/// Blocks are not merged into longer ones than this, and than this part of retention.
const MAX_LENGTH_MS: i64 = 31 * 24 * 3_600_000;
const RETENTION_PART: i64 = 10;
/// Blocks that are merged at once, at most: each takes memory while it is read.
const MAX_INPUTS: usize = 16;
/// A block is written anew once more than one in so many of its samples is deleted.
const DELETED_PART: f64 = 20.0;

/// A block as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'m> {
    pub(crate) meta: &'m BlockMeta,
    /// About how much of it is deleted, from 0 to 1.
    pub(crate) deleted: f64,
    /// Whether a shipper has yet to take it: until then it is not merged.
    pub(crate) is_held: bool,
}

/// How long blocks may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    shortest_ms: i64,
    longest_ms: i64,
    /// Whether nothing is compacted at all.
    is_off: bool,
}

impl Lengths {
    /// `longest_ms` as it was set, if it was; retention where there is one. No longer than the shortest: nothing is
    /// compacted.
    pub(crate) fn new(shortest_ms: i64, longest_ms: Option<i64>, retention_ms: Option<i64>) -> Lengths {
        let of_retention = retention_ms.map_or(MAX_LENGTH_MS, |ms| MAX_LENGTH_MS.min(ms / RETENTION_PART));
        let shortest_ms = shortest_ms.max(1);
        Lengths {
            shortest_ms,
            longest_ms: longest_ms.unwrap_or(of_retention).max(shortest_ms),
            is_off: longest_ms.is_some_and(|longest_ms| longest_ms <= shortest_ms),
        }
    }

    /// Lengths of merged blocks, ascending.
    fn merged(self) -> impl Iterator<Item = i64> {
        let longer = |length: &i64| length.checked_mul(FACTOR);
        std::iter::successors(Some(self.shortest_ms), longer)
            .skip(1)
            .take_while(move |&length| length <= self.longest_ms)
    }
}

/// The blocks to compact next, as places in `blocks`, which are in the order of their beginnings.
pub(crate) fn choose(blocks: &[Candidate<'_>], lengths: Lengths) -> Option<Vec<usize>> {
    if lengths.is_off || blocks.is_empty() {
        return None;
    }
    overlapping(blocks, lengths)
        .or_else(|| {
            // The newest by its time, whatever its name.
            let newest = (0..blocks.len()).max_by_key(|&place| (blocks[place].meta.end_ms, place))?;
            let older: Vec<usize> = (0..blocks.len()).filter(|&place| place != newest).collect();
            lengths.merged().find_map(|length_ms| complete_range(blocks, &older, length_ms))
        })
        .or_else(|| mostly_deleted(blocks))
}

/// The first blocks that overlap, as long as the result is no longer than blocks may be, or than the longest of them.
fn overlapping(blocks: &[Candidate<'_>], lengths: Lengths) -> Option<Vec<usize>> {
    let mut at = 0;
    while at < blocks.len() {
        let group = overlapping_from(blocks, at, lengths);
        if group.len() > 1 && blocks[group.clone()].iter().all(|block| !block.is_held) {
            return Some(group.collect());
        }
        at = group.end;
    }
    None
}

/// The block at a place and those after it that overlap with it or with one another.
fn overlapping_from(blocks: &[Candidate<'_>], first: usize, lengths: Lengths) -> Range<usize> {
    let start_ms = blocks[first].meta.start_ms;
    let mut end_ms = blocks[first].meta.end_ms;
    let mut longest_ms = lengths.longest_ms.max(length_of(blocks[first].meta));
    let mut end = first + 1;
    while end < blocks.len() && end - first < MAX_INPUTS && blocks[end].meta.start_ms < end_ms {
        longest_ms = longest_ms.max(length_of(blocks[end].meta));
        let next_ms = end_ms.max(blocks[end].meta.end_ms);
        if next_ms.saturating_sub(start_ms) > longest_ms {
            break;
        }
        (end_ms, end) = (next_ms, end + 1);
    }
    first..end
}

fn length_of(meta: &BlockMeta) -> i64 {
    meta.end_ms.saturating_sub(meta.start_ms)
}

/// The blocks of the first range of a length that holds several and is over: they fill it, or a newer block begins after
/// them.
fn complete_range(blocks: &[Candidate<'_>], older: &[usize], length_ms: i64) -> Option<Vec<usize>> {
    let newest_start_ms = older.iter().map(|&place| blocks[place].meta.start_ms).max()?;
    let range_of = |place: &usize| {
        let meta = blocks[*place].meta;
        let range = meta.start_ms.div_euclid(length_ms);
        let fits = meta.end_ms <= range.saturating_add(1).saturating_mul(length_ms);
        fits.then_some(range)
    };
    let fitting: Vec<usize> = older.iter().copied().filter(|place| range_of(place).is_some()).collect();
    let groups = fitting.chunk_by(|a, b| range_of(a) == range_of(b));
    let chosen = groups.filter(|group| group.len() > 1).find(|group| {
        let metas = || group.iter().map(|&place| blocks[place].meta);
        let start_ms = metas().map(|meta| meta.start_ms).min().unwrap_or(0);
        let end_ms = metas().map(|meta| meta.end_ms).max().unwrap_or(0);
        let is_over = end_ms.saturating_sub(start_ms) == length_ms || end_ms <= newest_start_ms;
        is_over && group.iter().all(|&place| !blocks[place].is_held)
    })?;
    Some(chosen.iter().copied().take(MAX_INPUTS).collect())
}

/// The oldest block of which enough is deleted.
fn mostly_deleted(blocks: &[Candidate<'_>]) -> Option<Vec<usize>> {
    let is_due = |block: &Candidate<'_>| !block.is_held && block.deleted * DELETED_PART > 1.0;
    blocks.iter().position(is_due).map(|place| vec![place])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Format, Ulid};

    const H: i64 = 3_600_000;

    type Case = (&'static [(i64, i64)], &'static [usize]);

    fn meta(start_h: i64, end_h: i64) -> BlockMeta {
        BlockMeta {
            ulid: Ulid(1),
            format: Format::Native,
            start_ms: start_h * H,
            end_ms: end_h * H,
            min_ms: start_h * H,
            max_ms: end_h * H - 1,
            level: 1,
            sources: Vec::new(),
            parents: Vec::new(),
            is_late: false,
            series: 1,
            float_samples: 1,
            histogram_samples: 0,
            chunks: 1,
            bytes: 1,
        }
    }

    fn lengths() -> Lengths {
        Lengths::new(2 * H, None, None)
    }

    /// What is chosen of blocks from and to an hour.
    fn chosen(hours: &[(i64, i64)]) -> Option<Vec<usize>> {
        chosen_with(hours, lengths(), &[])
    }

    fn chosen_with(hours: &[(i64, i64)], lengths: Lengths, held: &[usize]) -> Option<Vec<usize>> {
        let metas: Vec<BlockMeta> = hours.iter().map(|&(start, end)| meta(start, end)).collect();
        let candidate = |(place, meta)| Candidate { meta, deleted: 0.0, is_held: held.contains(&place) };
        let candidates: Vec<Candidate<'_>> = metas.iter().enumerate().map(candidate).collect();
        choose(&candidates, lengths)
    }

    /// Blocks from, to and what is chosen of them: the cases of `TestLeveledCompactor` in Prometheus' `tsdb/compact_test.go`
    /// (Apache License 2.0), but for those about tombstones.
    const PROMETHEUS: [Case; 14] = [
        (&[(0, 20)], &[]),
        (&[(0, 20), (20, 40)], &[]),
        (&[(0, 20), (20, 40), (40, 60)], &[]),
        (&[(0, 20), (20, 40), (40, 60), (60, 80)], &[0, 1, 2]),
        (&[(0, 20), (20, 40), (60, 80)], &[]),
        (&[(0, 20), (20, 40), (60, 80), (80, 100)], &[0, 1]),
        (&[(0, 20), (20, 40), (40, 60), (60, 120), (120, 180)], &[0, 1, 2]),
        (&[(20, 40), (60, 120), (120, 180), (720, 960), (960, 980)], &[0, 1, 2]),
        (&[(0, 360), (360, 420), (420, 540), (540, 560)], &[1, 2]),
        (&[(0, 20), (19, 40), (40, 60)], &[0, 1]),
        (&[(0, 20), (20, 40), (30, 50)], &[1, 2]),
        (&[(0, 20), (10, 40), (30, 50)], &[0, 1, 2]),
        (&[(0, 360), (340, 560), (360, 420), (420, 540)], &[0, 1, 2, 3]),
        (&[(0, 10), (9, 20), (30, 40), (39, 50)], &[0, 1]),
    ];

    #[test]
    fn what_prometheus_compacts_is_compacted() {
        let lengths = Lengths::new(20, Some(1620), None);
        for (hours, want) in PROMETHEUS {
            let chosen =
                chosen_with(hours, Lengths { shortest_ms: 20 * H, longest_ms: 1620 * H, ..lengths }, &[]);
            assert_eq!(chosen.unwrap_or_default(), want, "{hours:?}");
        }
    }

    #[test]
    fn ranges_are_merged_once_they_are_complete() {
        for (hours, want) in [
            (&[][..], None),
            // With a gap, and the range is over.
            (&[(0, 2), (4, 6), (6, 8), (8, 10)], Some(vec![0, 1])),
            // Of several lengths the shorter ones first.
            (&[(0, 6), (6, 12), (12, 14), (14, 16), (16, 18), (18, 20)], Some(vec![2, 3, 4])),
            (&[(0, 6), (6, 12), (12, 18), (18, 20)], Some(vec![0, 1, 2])),
            // Before the epoch, too.
            (&[(-6, -4), (-4, -2), (-2, 0), (0, 2)], Some(vec![0, 1, 2])),
            // Blocks that stand across ranges stay.
            (&[(1, 7), (7, 13), (20, 22)], None),
        ] {
            assert_eq!(chosen(hours), want, "{hours:?}");
        }
    }

    #[test]
    fn blocks_that_overlap_come_first_and_even_the_newest_does() {
        for (hours, want) in [
            (&[(0, 2), (0, 2)][..], Some(vec![0, 1])),
            (&[(0, 6), (2, 4), (6, 8), (6, 8), (8, 10)], Some(vec![0, 1])),
            (&[(0, 2), (2, 4), (4, 6), (6, 8), (6, 8)], Some(vec![3, 4])),
        ] {
            assert_eq!(chosen(hours), want, "{hours:?}");
        }
        let short = Lengths::new(2 * H, Some(6 * H), None);
        assert_eq!(chosen_with(&[(0, 4), (2, 6), (5, 8)], short, &[]), Some(vec![0, 1]), "the chain is cut");
        assert_eq!(
            chosen_with(&[(0, 6), (5, 11), (20, 22)], short, &[]),
            None,
            "it would be longer than all"
        );
        let many = vec![(0, 2); 40];
        assert_eq!(chosen(&many).unwrap().len(), MAX_INPUTS);
    }

    #[test]
    fn lengths_are_bound_by_what_was_set_or_by_retention() {
        let of = |longest: Option<i64>, retention: Option<i64>| {
            let lengths = Lengths::new(2 * H, longest.map(|h| h * H), retention.map(|h| h * H));
            lengths.merged().map(|ms| ms / H).collect::<Vec<_>>()
        };
        assert_eq!(of(None, None), [6, 18, 54, 162, 486]);
        assert_eq!(of(None, Some(15 * 24)), [6, 18]);
        assert!(of(None, Some(24)).is_empty());
        assert_eq!(of(Some(20), Some(15 * 24)), [6, 18]);
        assert!(of(Some(2), None).is_empty());
        let off = Lengths::new(2 * H, Some(2 * H), None);
        assert_eq!(chosen_with(&[(0, 2), (0, 2), (2, 4)], off, &[]), None, "as long as the shortest: off");
    }

    #[test]
    fn what_no_shipper_has_listed_stays_with_all_that_stands_with_it() {
        let hours = [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14)];
        assert_eq!(chosen_with(&hours, lengths(), &[6]), Some(vec![0, 1, 2]));
        assert_eq!(chosen_with(&hours, lengths(), &[1, 6]), Some(vec![3, 4, 5]));
        assert_eq!(chosen_with(&[(0, 2), (0, 2), (2, 4)], lengths(), &[1]), None);
    }

    #[test]
    fn a_block_of_which_more_than_a_twentieth_is_deleted_is_written_anew() {
        let metas = [meta(0, 2), meta(6, 8), meta(12, 14)];
        let with = |deleted: [f64; 3], held: bool| {
            let candidate = |(meta, deleted)| Candidate { meta, deleted, is_held: held };
            choose(&metas.iter().zip(deleted).map(candidate).collect::<Vec<_>>(), lengths())
        };
        assert_eq!(with([0.0, 0.05, 0.0], false), None);
        assert_eq!(with([0.0, 0.051, 0.5], false), Some(vec![1]));
        assert_eq!(with([0.0, 0.0, 1.0], false), Some(vec![2]));
        assert_eq!(with([0.0, 0.0, 1.0], true), None);
    }
}
