//! Changed files of each format, always the same ones: what the fuzz targets (`cargo xtask fuzz`) do for
//! hours.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use common::changed::{golden_file, try_file};
use common::formats::Format;

const MUTATIONS: u64 = 500;

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

/// Bytes flipped, set to what is special, cut out, repeated, put elsewhere.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => bytes[at..end].fill([0, 0xff][random.below(2)]),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => bytes.truncate(at),
        }
    }
}

fn mutate_all(format: Format) {
    for seed in 0..MUTATIONS {
        let mut bytes = golden_file(format).to_vec();
        mutate(&mut Random(seed), &mut bytes);
        let tried = std::panic::catch_unwind(|| try_file(format, &bytes));
        assert!(tried.is_ok(), "{format:?}, seed {seed}: {bytes:?}");
    }
}

#[test]
fn changed_log_files_cost_what_they_hold_and_no_more() {
    mutate_all(Format::Log);
}

#[test]
fn changed_segments_cost_what_they_hold_and_no_more() {
    mutate_all(Format::Segment);
}

#[test]
fn a_changed_manifest_costs_nothing() {
    mutate_all(Format::Manifest);
}

#[test]
fn changed_identity_files_cost_what_they_hold_and_no_more() {
    mutate_all(Format::Identity);
}
