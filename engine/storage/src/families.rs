//! What metric families are: the latest statement on each, bounded in number and size.
use std::collections::BTreeMap;

use metricsstore_model::Metadata;

use crate::sync::Mutex;

/// Families that are kept; statements on further ones are left out.
const MAX_FAMILIES: usize = 64 << 10;
/// Longest text that is kept of a statement, in bytes; a longer one is cut.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// Statements by the name of the family.
#[derive(Default)]
pub(crate) struct Families {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_name: BTreeMap<String, Metadata>,
    bytes: u64,
}

impl Families {
    /// Takes a statement in the form in which it is kept; `None` when it says nothing new, or when all would take more
    /// than `room_bytes` with it.
    pub(crate) fn learn(&self, metadata: &Metadata, room_bytes: u64) -> Option<Metadata> {
        let mut families = self.kept.lock();
        let known = families.by_name.get(&metadata.family);
        if metadata.family.is_empty() || (known.is_none() && families.by_name.len() >= MAX_FAMILIES) {
            return None;
        }
        let mut kept = metadata.clone();
        for text in [&mut kept.help, &mut kept.unit] {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        }
        if known == Some(&kept) || kept.family.len() > MAX_TEXT_BYTES {
            return None;
        }
        let bytes = families.bytes - known.map_or(0, bytes_of) + bytes_of(&kept);
        if bytes > room_bytes {
            return None;
        }
        families.bytes = bytes;
        families.by_name.insert(kept.family.clone(), kept.clone());
        Some(kept)
    }

    /// All of them by name.
    pub(crate) fn all(&self) -> Vec<Metadata> {
        self.kept.lock().by_name.values().cloned().collect()
    }

    /// Bytes of memory held, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }
}

fn bytes_of(metadata: &Metadata) -> u64 {
    let texts = 2 * metadata.family.len() + metadata.help.len() + metadata.unit.len();
    (texts + size_of::<(String, Metadata)>()) as u64
}

#[cfg(test)]
mod tests {
    use metricsstore_model::MetricType;

    use super::*;

    #[test]
    fn the_latest_statement_holds_and_a_repeated_one_is_no_news() {
        let families = Families::default();
        let of = |help: &str| Metadata {
            family: "up".into(),
            kind: MetricType::Gauge,
            help: help.into(),
            unit: String::new(),
        };
        assert_eq!(families.learn(&of("one"), u64::MAX), Some(of("one")));
        assert_eq!(families.learn(&of("one"), u64::MAX), None);
        assert_eq!(families.learn(&of("two"), u64::MAX), Some(of("two")));
        assert_eq!(families.all(), [of("two")]);
        let long = of(&"ü".repeat(MAX_TEXT_BYTES));
        assert_eq!(families.learn(&long, u64::MAX).unwrap().help.len(), MAX_TEXT_BYTES);
        assert_eq!(families.learn(&long, u64::MAX), None);
    }

    #[test]
    fn families_beyond_the_room_are_left_out_and_known_ones_can_still_change() {
        let families = Families::default();
        let of = |family: u32, help: &str| Metadata {
            family: format!("family_{family:04}"),
            kind: MetricType::Counter,
            help: help.into(),
            unit: String::new(),
        };
        let room_bytes = 10_000;
        let learnt = (0..1_000).filter(|n| families.learn(&of(*n, "some"), room_bytes).is_some()).count();
        assert!((10..1_000).contains(&learnt));
        assert!(families.bytes() <= room_bytes);
        assert_eq!(families.learn(&of(0, "else"), room_bytes), Some(of(0, "else")));
        assert_eq!(families.learn(&of(0, &"e".repeat(4_000)), 1_000), None);
    }
}
