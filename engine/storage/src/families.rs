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
    by_name: Mutex<BTreeMap<String, Metadata>>,
}

impl Families {
    /// Takes a statement in the form in which it is kept; `None` when it says nothing new.
    pub(crate) fn learn(&self, metadata: &Metadata) -> Option<Metadata> {
        let mut families = self.by_name.lock();
        let known = families.get(&metadata.family);
        if metadata.family.is_empty() || (known.is_none() && families.len() >= MAX_FAMILIES) {
            return None;
        }
        let mut kept = metadata.clone();
        for text in [&mut kept.help, &mut kept.unit] {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        }
        if known == Some(&kept) || kept.family.len() > MAX_TEXT_BYTES {
            return None;
        }
        families.insert(kept.family.clone(), kept.clone());
        Some(kept)
    }

    /// All of them by name.
    pub(crate) fn all(&self) -> Vec<Metadata> {
        self.by_name.lock().values().cloned().collect()
    }

    /// Bytes of memory held, about.
    pub(crate) fn bytes(&self) -> u64 {
        let families = self.by_name.lock();
        let texts = |m: &Metadata| 2 * m.family.len() + m.help.len() + m.unit.len();
        families.values().map(|m| (texts(m) + size_of::<(String, Metadata)>()) as u64).sum()
    }
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
        assert_eq!(families.learn(&of("one")), Some(of("one")));
        assert_eq!(families.learn(&of("one")), None);
        assert_eq!(families.learn(&of("two")), Some(of("two")));
        assert_eq!(families.all(), [of("two")]);
        let long = of(&"ü".repeat(MAX_TEXT_BYTES));
        assert_eq!(families.learn(&long).unwrap().help.len(), MAX_TEXT_BYTES);
        assert_eq!(families.learn(&long), None);
    }
}
