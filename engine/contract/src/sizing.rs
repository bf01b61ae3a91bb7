//! The sizing rule: from limits to a memory budget and a number of threads. The operator applies it to what is declared,
//! the engine to the live cgroup; both call this.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Quantity, QuantityError};

/// What is always left between the budget and the limit for what no counter sees (stacks, the kernel's share, the
/// allocator's slack).
pub const HEADROOM_BYTES: u64 = 32 * 1024 * 1024;
/// The smallest `limits.memory` that a store may have.
pub const MIN_LIMIT_BYTES: u64 = 128 * 1024 * 1024;
/// The share of the machine's memory that an engine without any limit takes, in hundredths of a per cent.
pub const MACHINE_SHARE: u32 = 6_000;
/// The threads that an engine without a CPU limit starts with at least, if the machine has as many.
pub const UNLIMITED_THREADS: u32 = 4;

const WHOLE: u32 = 10_000;
/// An exbibyte: limits from here on mean "none".
const UNLIMITED: u64 = 1 << 60;

/// How a budget follows from a limit. Written `90%` or as a quantity (`512Mi`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetPolicy {
    /// A share of the limit, in hundredths of a per cent: 9000 is 90 %.
    Share(u32),
    /// So many bytes, whatever the limit allows.
    Absolute(u64),
}

/// A text that is neither a share nor a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetPolicyError {
    /// A percentage outside of 1 % to 100 % or with more than two decimals.
    #[error("the memory budget \"{text}\" is not a share: write 1% to 100%, for example 90%")]
    Share {
        /// What was given, cut to a bounded length.
        text: String,
    },
    /// A quantity of nothing.
    #[error("the memory budget \"{text}\" is nothing: write a share such as 90% or a quantity such as 512Mi")]
    Nothing {
        /// What was given, cut to a bounded length.
        text: String,
    },
    /// Not a quantity at all.
    #[error("the memory budget is neither a share nor a quantity: {0}")]
    Quantity(#[from] QuantityError),
}

impl Default for BudgetPolicy {
    fn default() -> Self {
        BudgetPolicy::Share(9_000)
    }
}

impl FromStr for BudgetPolicy {
    type Err = BudgetPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(64).collect::<String>();
        if let Some(number) = text.strip_suffix('%') {
            return parse_share(number)
                .map(BudgetPolicy::Share)
                .ok_or_else(|| BudgetPolicyError::Share { text: shown() });
        }
        match Quantity::parse(text)?.floor_units() {
            0 => Err(BudgetPolicyError::Nothing { text: shown() }),
            bytes => Ok(BudgetPolicy::Absolute(bytes)),
        }
    }
}

/// Hundredths of a per cent, from 1 % to 100 %, of a number with at most two decimals.
pub(crate) fn parse_share(number: &str) -> Option<u32> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str, most: usize| {
        let plain = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<u32>().ok()).flatten()
    };
    let hundredths = digits(fraction, 2)? * if fraction.len() == 1 { 10 } else { 1 };
    let share = digits(whole, 3)? * 100 + hundredths;
    (100..=WHOLE).contains(&share).then_some(share)
}

/// Writes hundredths of a per cent as people do.
pub(crate) fn write_share(share: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match share % 100 {
        0 => write!(f, "{}%", share / 100),
        hundredths => write!(f, "{}.{hundredths:02}%", share / 100),
    }
}

impl fmt::Display for BudgetPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetPolicy::Share(share) => write_share(*share, f),
            BudgetPolicy::Absolute(bytes) => write!(f, "{}", Quantity::from_units(*bytes)),
        }
    }
}

impl Serialize for BudgetPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BudgetPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The memory budget in bytes.
///
/// Under a limit it is min(share × limit, limit − 32Mi), or the absolute budget capped by limit − 32Mi. Without a limit a
/// share is 60 % of the machine's memory, and an absolute budget is capped by what the machine has less 32Mi; a limit that
/// is not below the machine's memory is none. `machine_bytes` is 0 where the machine is not known. Where less
/// than 64Mi are to be had at all, half of it stays free instead of 32Mi, so that a budget is never zero.
pub fn budget_bytes(policy: BudgetPolicy, limit_bytes: Option<u64>, machine_bytes: u64) -> u64 {
    // A cgroup without a limit may report a number beyond any machine (v1 does), and a limit that the machine cannot
    // give never bites before the machine itself is out of memory.
    let is_real = |limit: &u64| *limit < UNLIMITED && (machine_bytes == 0 || *limit < machine_bytes);
    let limit = limit_bytes.filter(is_real);
    let have = limit.unwrap_or(machine_bytes);
    let most = have - HEADROOM_BYTES.min(have / 2);
    let wanted = match policy {
        BudgetPolicy::Absolute(bytes) => bytes,
        BudgetPolicy::Share(share) if limit.is_some() => part(have, share),
        BudgetPolicy::Share(_) => part(have, MACHINE_SHARE),
    };
    wanted.min(most)
}

fn part(bytes: u64, share: u32) -> u64 {
    (u128::from(bytes) * u128::from(share) / u128::from(WHOLE)) as u64
}

/// How many threads an engine runs, before the machine is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadRule {
    /// Exactly so many: the user's number, or the CPU limit rounded up.
    Exactly(u32),
    /// So many, or as many as the machine has if that is less.
    AtMost(u32),
}

impl ThreadRule {
    /// The user's number if there is one, else the CPU limit rounded up, else max(4, 2 × request) bounded by the machine.
    pub fn new(threads: Option<u32>, limit: Option<Quantity>, request: Option<Quantity>) -> ThreadRule {
        let whole = |cpus: Quantity| cpus.ceil_units().clamp(1, 1024) as u32;
        match (threads, limit.filter(|limit| limit.is_positive())) {
            (Some(threads), _) => ThreadRule::Exactly(threads.clamp(1, 1024)),
            (None, Some(limit)) => ThreadRule::Exactly(whole(limit)),
            (None, None) => {
                let requested = request.map_or(0, |request| whole(request.times(2)));
                ThreadRule::AtMost(requested.max(UNLIMITED_THREADS))
            }
        }
    }

    /// The number on a machine with `cpus` processors, at least 1.
    pub fn on(self, cpus: u32) -> u32 {
        match self {
            ThreadRule::Exactly(threads) => threads,
            ThreadRule::AtMost(threads) => threads.min(cpus).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MI: u64 = 1024 * 1024;
    const MACHINE: u64 = 64 * 1024 * MI;

    #[test]
    fn the_budget_is_the_smaller_of_ninety_per_cent_and_the_limit_less_thirty_two_mebibytes() {
        let budget = |limit| budget_bytes(BudgetPolicy::default(), Some(limit), MACHINE);
        assert_eq!(budget(1024 * MI), 966_367_641);
        assert_eq!(budget(128 * MI), 100_663_296);
        assert_eq!(budget(2048 * MI), 1_932_735_283);
        assert_eq!(budget(320 * MI), 288 * MI);
    }

    #[test]
    fn an_absolute_budget_is_capped_by_the_limit_less_thirty_two_mebibytes() {
        let budget = |bytes, limit| budget_bytes(BudgetPolicy::Absolute(bytes), Some(limit), MACHINE);
        assert_eq!(budget(300 * MI, 1024 * MI), 300 * MI);
        assert_eq!(budget(1000 * MI, 1024 * MI), 992 * MI);
        assert_eq!(budget(4096 * MI, 128 * MI), 96 * MI);
    }

    #[test]
    fn without_a_limit_the_engine_takes_sixty_per_cent_of_the_machine() {
        assert_eq!(budget_bytes(BudgetPolicy::default(), None, 10_000 * MI), 6_000 * MI);
        assert_eq!(budget_bytes(BudgetPolicy::default(), Some(u64::MAX), 10_000 * MI), 6_000 * MI);
        assert_eq!(budget_bytes(BudgetPolicy::default(), Some(20_000 * MI), 10_000 * MI), 6_000 * MI);
        assert_eq!(budget_bytes(BudgetPolicy::default(), Some(20_000 * MI), 0), 18_000 * MI);
        assert_eq!(budget_bytes(BudgetPolicy::Absolute(200 * MI), None, 10_000 * MI), 200 * MI);
    }

    #[test]
    fn below_sixty_four_mebibytes_half_of_the_limit_stays_free() {
        assert_eq!(budget_bytes(BudgetPolicy::default(), Some(40 * MI), MACHINE), 20 * MI);
        assert_eq!(budget_bytes(BudgetPolicy::default(), Some(64 * MI), MACHINE), 32 * MI);
    }

    #[test]
    fn threads_round_up_and_without_a_limit_stop_at_the_machine() {
        let cpus = |text: &str| Some(Quantity::parse(text).unwrap());
        assert_eq!(ThreadRule::new(None, cpus("1500m"), None).on(64), 2);
        assert_eq!(ThreadRule::new(None, cpus("100m"), cpus("100m")).on(64), 1);
        assert_eq!(ThreadRule::new(Some(3), cpus("8"), None).on(64), 3);
        assert_eq!(ThreadRule::new(None, None, None).on(64), 4);
        assert_eq!(ThreadRule::new(None, None, None).on(2), 2);
        assert_eq!(ThreadRule::new(None, None, cpus("3500m")).on(64), 7);
        assert_eq!(ThreadRule::new(None, None, cpus("500m")).on(64), 4);
    }

    #[test]
    fn policies_are_read_and_printed() {
        for (text, policy, shown) in [
            ("90%", BudgetPolicy::Share(9_000), "90%"),
            ("87.5%", BudgetPolicy::Share(8_750), "87.50%"),
            ("100%", BudgetPolicy::Share(10_000), "100%"),
            ("512Mi", BudgetPolicy::Absolute(512 * MI), "512Mi"),
            ("0.5Gi", BudgetPolicy::Absolute(512 * MI), "512Mi"),
        ] {
            assert_eq!(text.parse(), Ok(policy));
            assert_eq!(policy.to_string(), shown);
        }
        for text in ["0%", "0.5%", "101%", "%", "-5%", "9O%", "1.234%", "0", "0.1", "", "lots"] {
            assert!(text.parse::<BudgetPolicy>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_budget_never_comes_closer_to_the_limit_than_the_headroom(
            limit in 64 * MI..MACHINE, share in 100_u32..=10_000, absolute in 1..MACHINE,
        ) {
            for policy in [BudgetPolicy::Share(share), BudgetPolicy::Absolute(absolute)] {
                let budget = budget_bytes(policy, Some(limit), MACHINE);
                prop_assert!(budget > 0 && budget <= limit - HEADROOM_BYTES);
            }
        }
    }
}
