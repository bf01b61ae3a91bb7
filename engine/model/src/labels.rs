//! A label set in one reusable buffer.
use std::cmp::Ordering;
use std::fmt;

/// The label that holds the metric's name.
pub const METRIC_NAME: &str = "__name__";

/// Whether a name needs no quotes: `[a-zA-Z_][a-zA-Z0-9_]*`.
pub fn is_legacy_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[derive(Clone, Copy)]
struct Pair {
    name_start: u32,
    value_start: u32,
    value_end: u32,
}

/// A label set: all text in one allocation, which [`LabelBuf::clear`] keeps for the next series.
///
/// Pairs stay in the order they were pushed until [`LabelBuf::sort`]; readers that need the canonical order
/// (sorted by name, bytewise) sort first.
#[derive(Clone, Default)]
pub struct LabelBuf {
    text: String,
    pairs: Vec<Pair>,
}

impl LabelBuf {
    /// An empty set.
    pub fn new() -> LabelBuf {
        LabelBuf::default()
    }

    /// A sorted set from pairs, for tests and tools.
    pub fn from_pairs<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> LabelBuf {
        let mut labels = LabelBuf::new();
        for (name, value) in pairs {
            labels.push(name.as_ref(), value.as_ref());
        }
        labels.sort();
        labels
    }

    /// Forgets the labels and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
    }

    /// Adds a pair without looking for its name among the others.
    pub fn push(&mut self, name: &str, value: &str) {
        let name_start = self.text.len() as u32;
        self.text.push_str(name);
        let value_start = self.text.len() as u32;
        self.text.push_str(value);
        self.pairs.push(Pair { name_start, value_start, value_end: self.text.len() as u32 });
    }

    /// Sets `name`, replacing its value when it has one; an empty value removes the label. Keeps the order.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.position(name) {
            Some(index) if value.is_empty() => {
                self.pairs.remove(index);
            }
            Some(index) => {
                let kept = self.pairs[index];
                let name_text = self.text[kept.name_start as usize..kept.value_start as usize].to_owned();
                self.push(&name_text, value);
                if let Some(pair) = self.pairs.pop() {
                    self.pairs[index] = pair;
                }
            }
            None if value.is_empty() => {}
            None => self.push(name, value),
        }
    }

    /// Removes `name`; says whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let found = self.position(name);
        if let Some(index) = found {
            self.pairs.remove(index);
        }
        found.is_some()
    }

    /// Keeps the pairs for which `keep(name, value)` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        let text = &self.text;
        self.pairs.retain(|pair| keep(name_of(text, *pair), value_of(text, *pair)));
    }

    /// Sorts by name, bytewise: the canonical order.
    pub fn sort(&mut self) {
        let text = &self.text;
        self.pairs.sort_by(|a, b| name_of(text, *a).cmp(name_of(text, *b)));
    }

    /// The first name that stands twice in a sorted set.
    pub fn duplicate_name(&self) -> Option<&str> {
        self.pairs
            .windows(2)
            .find(|w| name_of(&self.text, w[0]) == name_of(&self.text, w[1]))
            .map(|w| name_of(&self.text, w[0]))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.pairs.iter().position(|pair| name_of(&self.text, *pair) == name)
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.position(name).map(|index| value_of(&self.text, self.pairs[index]))
    }

    /// The metric's name, empty when there is none.
    pub fn metric_name(&self) -> &str {
        self.get(METRIC_NAME).unwrap_or("")
    }

    /// Pairs in their present order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> + Clone {
        self.pairs.iter().map(|pair| (name_of(&self.text, *pair), value_of(&self.text, *pair)))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

fn name_of(text: &str, pair: Pair) -> &str {
    &text[pair.name_start as usize..pair.value_start as usize]
}

fn value_of(text: &str, pair: Pair) -> &str {
    &text[pair.value_start as usize..pair.value_end as usize]
}

impl PartialEq for LabelBuf {
    fn eq(&self, other: &LabelBuf) -> bool {
        self.iter().eq(other.iter())
    }
}
impl Eq for LabelBuf {}

impl PartialOrd for LabelBuf {
    fn partial_cmp(&self, other: &LabelBuf) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Prometheus' order of label sets: pair by pair, name before value, the shorter set first.
impl Ord for LabelBuf {
    fn cmp(&self, other: &LabelBuf) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl std::hash::Hash for LabelBuf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for (name, value) in self.iter() {
            name.hash(state);
            value.hash(state);
        }
    }
}

/// `{a="1", b="2"}`, values quoted as Go does for plain text.
impl fmt::Display for LabelBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (name, value)) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            if is_legacy_label_name(name) {
                f.write_str(name)?;
            } else {
                write!(f, "{name:?}")?;
            }
            write!(f, "={value:?}")?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for LabelBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::LabelBuf;

    #[test]
    fn set_replaces_in_place_and_an_empty_value_removes() {
        let mut labels = LabelBuf::from_pairs([("b", "2"), ("a", "1")]);
        labels.set("a", "longer");
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "longer"), ("b", "2")]);
        labels.set("b", "");
        labels.set("c", "");
        assert_eq!(labels.to_string(), r#"{a="longer"}"#);
    }

    #[test]
    fn a_repeated_name_is_found_after_sorting() {
        let labels = LabelBuf::from_pairs([("b", "2"), ("a", "1"), ("b", "3")]);
        assert_eq!(labels.duplicate_name(), Some("b"));
    }

    #[test]
    fn order_is_by_name_then_value_then_length() {
        let short = LabelBuf::from_pairs([("a", "1")]);
        let long = LabelBuf::from_pairs([("a", "1"), ("b", "1")]);
        let later = LabelBuf::from_pairs([("a", "2")]);
        assert!(short < long && long < later);
    }
}
