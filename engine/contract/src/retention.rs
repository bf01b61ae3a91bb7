//! How much may be kept: a share of the volume or a quantity.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sizing::{parse_share, write_share};
use crate::{Quantity, QuantityError};

/// What everything in a data directory may take. Written `80%` or as a quantity (`40Gi`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionSize {
    /// A share of the volume, in hundredths of a per cent: 8000 is 80 %.
    Share(u32),
    /// So many bytes.
    Bytes(u64),
}

/// A text that is neither a share nor a quantity above nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetentionSizeError {
    /// A percentage outside of 1 % to 100 % or with more than two decimals, or a quantity of nothing.
    #[error("\"{text}\" is no size: write a share from 1% to 100% such as 80%, or a quantity such as 40Gi")]
    Meaningless {
        /// What was given, cut to a bounded length.
        text: String,
    },
    /// Not a quantity at all.
    #[error("the size is neither a share such as 80% nor a quantity: {0}")]
    Quantity(#[from] QuantityError),
}

impl Default for RetentionSize {
    fn default() -> Self {
        RetentionSize::Share(8_000)
    }
}

impl FromStr for RetentionSize {
    type Err = RetentionSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let meaningless = || RetentionSizeError::Meaningless { text: text.chars().take(64).collect() };
        match text.strip_suffix('%') {
            Some(number) => parse_share(number).map(RetentionSize::Share).ok_or_else(meaningless),
            None => match Quantity::parse(text)?.floor_units() {
                0 => Err(meaningless()),
                bytes => Ok(RetentionSize::Bytes(bytes)),
            },
        }
    }
}

impl fmt::Display for RetentionSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RetentionSize::Share(share) => write_share(*share, f),
            RetentionSize::Bytes(bytes) => write!(f, "{}", Quantity::from_units(*bytes)),
        }
    }
}

impl Serialize for RetentionSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RetentionSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::RetentionSize;

    #[test]
    fn a_size_is_a_share_or_a_quantity_and_never_nothing() {
        for (text, size) in [
            ("80%", RetentionSize::Share(8_000)),
            ("12.5%", RetentionSize::Share(1_250)),
            ("40Gi", RetentionSize::Bytes(40 << 30)),
        ] {
            assert_eq!(text.parse(), Ok(size));
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for text in ["0%", "101%", "0", "80 %", "much", ""] {
            assert!(text.parse::<RetentionSize>().is_err(), "{text}");
        }
    }
}
