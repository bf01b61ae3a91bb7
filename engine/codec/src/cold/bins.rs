//! Which integers are how likely: a model of a stream, fitted to it and stored with it.
//!
//! ```text
//! bins = number:varint | scale:1 | number × (lower:varint | width:1 | share:varint)
//! lower                zigzag, from the lower end of the bin before, the first from 0
//! ```
//! A bin is the integers `lower..lower + 2^width`; shares add up to `2^scale`. A lone bin has neither scale nor share.
use crate::Damaged;
use crate::varint::{self, unzigzag, zigzag};

/// Bins of one stream, at most.
pub(super) const MAX_BINS: usize = 256;
/// Shares add up to at most 2 to this.
pub(super) const MAX_SCALE: u32 = 12;
/// Between how many runs of sorted integers the best ends of bins are looked for, about.
const CUTS: usize = 32;
/// What a bin adds to the header beside the bits of its lower end.
const BIN_HEADER_BITS: f32 = 22.0;

/// Neighbouring integers that plain bits tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bin {
    /// The smallest of them.
    pub(super) lower: i64,
    /// There are 2 to this of them.
    pub(super) width: u8,
    /// How many in `2^scale` integers of the stream are in here, about.
    pub(super) share: u16,
}

/// The bins of a stream, ascending and without overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Bins {
    pub(super) bins: Vec<Bin>,
    pub(super) scale: u32,
}

/// A run of sorted integers, in a fit.
#[derive(Clone, Copy)]
struct Run {
    lower: i64,
    upper: i64,
    count: u32,
}

impl Run {
    fn width(self, up_to: Run) -> u8 {
        (64 - (up_to.upper.wrapping_sub(self.lower) as u64).leading_zeros()) as u8
    }
}

/// Looks for the bins that code integers like these in the fewest bits; keeps its memory.
#[derive(Default)]
pub(super) struct Fit {
    runs: Vec<Run>,
    /// For each number of first runs: bits, and where the last bin begins.
    best: Vec<(f32, usize)>,
}

impl Fit {
    /// The bits that `count` integers would take of which these are a sample, sorted, bins included.
    pub(super) fn bits(&mut self, sample: &[i64], count: usize) -> f32 {
        self.solve(sample, count as f32 / sample.len().max(1) as f32).unwrap_or_default()
    }

    /// The best bins for these integers, sorted.
    pub(super) fn bins(&mut self, sorted: &[i64]) -> Bins {
        if self.solve(sorted, 1.0).is_none() {
            return Bins::default();
        }
        let mut counts = Vec::new();
        let mut bins = Vec::new();
        let mut end = self.runs.len();
        while end > 0 {
            let start = self.best[end].1;
            let run = self.runs[start];
            bins.push(Bin { lower: run.lower, width: run.width(self.runs[end - 1]), share: 0 });
            counts.push(self.runs[start..end].iter().map(|run| run.count).sum::<u32>());
            end = start;
        }
        bins.reverse();
        counts.reverse();
        let scale = share_out(&mut bins, &counts);
        Bins { bins, scale }
    }

    /// Fills `best`; the bits of all.
    fn solve(&mut self, sorted: &[i64], weight: f32) -> Option<f32> {
        self.cut(sorted);
        let total_log = (sorted.len() as f32).log2();
        self.best.clear();
        self.best.push((0.0, 0));
        for end in 1..=self.runs.len() {
            let last = self.runs[end - 1];
            let (mut best, mut count) = ((f32::INFINITY, 0), 0);
            for start in (0..end).rev() {
                let first = self.runs[start];
                count += first.count;
                let width = f32::from(first.width(last));
                let each = total_log - (count as f32).log2() + width;
                let lower_bits = (64 - zigzag(first.lower).leading_zeros()) as f32;
                let bits = self.best[start].0 + weight * count as f32 * each + lower_bits + BIN_HEADER_BITS;
                if bits < best.0 {
                    best = (bits, start);
                }
            }
            self.best.push(best);
        }
        (!self.runs.is_empty()).then(|| self.best[self.runs.len()].0)
    }

    /// Cuts sorted integers into runs: equal ones stay together, and runs are shorter the nearer they are to either end,
    /// so that a few odd integers do not widen the bins of many.
    fn cut(&mut self, sorted: &[i64]) {
        self.runs.clear();
        let longest = sorted.len() / CUTS;
        let mut rank = 0;
        for equal in sorted.chunk_by(|a, b| a == b) {
            let count = equal.len();
            let room = longest.min((rank + count).min(sorted.len() - rank) / 4);
            rank += count;
            match self.runs.last_mut() {
                Some(run) if run.count as usize + count <= room => {
                    run.upper = equal[0];
                    run.count += count as u32;
                }
                _ => self.runs.push(Run { lower: equal[0], upper: equal[0], count: count as u32 }),
            }
        }
    }
}

/// Gives every bin its share of `2^scale`, none less than 1; the scale.
fn share_out(bins: &mut [Bin], counts: &[u32]) -> u32 {
    let all: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let least = bins.len().next_power_of_two().ilog2() + 1;
    let scale = all.next_power_of_two().ilog2().clamp(least, MAX_SCALE.max(least));
    let mut left = 1_i64 << scale;
    for (bin, &count) in bins.iter_mut().zip(counts) {
        bin.share = (((u64::from(count) << scale) + all / 2) / all).clamp(1, (1 << scale) - 1) as u16;
        left -= i64::from(bin.share);
    }
    // What rounding left over goes to the largest, which it changes least.
    while left != 0 && bins.len() > 1 {
        let Some(largest) = bins.iter_mut().max_by_key(|bin| bin.share) else { break };
        let moved = left.max(1 - i64::from(largest.share));
        if moved == 0 {
            break;
        }
        largest.share = (i64::from(largest.share) + moved) as u16;
        left -= moved;
    }
    scale
}

impl Bins {
    /// Appends them to `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.bins.len() as u64);
        let is_lone = self.bins.len() < 2;
        if !is_lone {
            out.push(self.scale as u8);
        }
        let mut before = 0_i64;
        for bin in &self.bins {
            varint::put(out, zigzag(bin.lower.wrapping_sub(before)));
            out.push(bin.width);
            if !is_lone {
                varint::put(out, u64::from(bin.share));
            }
            before = bin.lower;
        }
    }

    /// Takes what [`Bins::put`] wrote off the front of `bytes`, into `self`.
    pub(super) fn take(&mut self, bytes: &mut &[u8]) -> Result<(), Damaged> {
        self.bins.clear();
        let number = varint::take(bytes)?;
        if number == 0 || number > MAX_BINS as u64 {
            return Err(Damaged::new("a stream with no bins or too many"));
        }
        let is_lone = number == 1;
        self.scale = if is_lone { 0 } else { u32::from(take_byte(bytes)?) };
        if self.scale > MAX_SCALE {
            return Err(Damaged::new("shares of too fine a scale"));
        }
        let mut left = 1_u64 << self.scale;
        let mut lower = 0_i64;
        for _ in 0..number {
            lower = lower.wrapping_add(unzigzag(varint::take(bytes)?));
            let width = take_byte(bytes)?;
            let share = if is_lone { 1 } else { varint::take(bytes)? };
            if width > 64 || share == 0 || share > left {
                return Err(Damaged::new("a bin that is too wide, or shares that do not add up"));
            }
            left -= share;
            self.bins.push(Bin { lower, width, share: share as u16 });
        }
        if left != 0 { Err(Damaged::new("shares that do not add up")) } else { Ok(()) }
    }
}

/// Takes a byte off the front of `bytes`.
pub(super) fn take_byte(bytes: &mut &[u8]) -> Result<u8, Damaged> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Err(Damaged::new("bytes that are cut off"));
    };
    *bytes = rest;
    Ok(first)
}
