//! What pages say about their metrics. Targets of one kind say the same, so lists are shared.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use metricsstore_ingest::text::{Entry, MetricKind};
use metricsstore_model::RawKeyHasher;

/// Most metrics that are remembered of one target.
const MAX_METRICS: usize = 20_000;

/// Longest help text that is remembered, in bytes.
const MAX_HELP_BYTES: usize = 1024;

/// Type and help of a metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Metadata {
    /// Its type.
    pub kind: MetricKind,
    /// Its help text.
    pub help: String,
    /// Its unit; the text format has none.
    pub unit: String,
}

/// Metadata of a target by metric.
pub(crate) type MetadataList = BTreeMap<String, Metadata>;

/// The metadata lines of a page as they come, cheap to compare with the last page's.
#[derive(Default)]
pub(crate) struct Collector {
    /// Lines, each as name, separator, kind or help, separator.
    lines: Vec<u8>,
}

const TYPE_LINE: u8 = 1;
const HELP_LINE: u8 = 2;

impl Collector {
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Help { name, text } => self.line(HELP_LINE, name, text),
            Entry::Type { name, kind } => self.line(TYPE_LINE, name, kind.name().as_bytes()),
            Entry::Series(_) | Entry::Comment(_) => {}
        }
    }

    fn line(&mut self, kind: u8, name: &[u8], value: &[u8]) {
        self.lines.push(kind);
        self.lines.extend_from_slice(name);
        self.lines.push(b'\n');
        self.lines.extend_from_slice(value);
        self.lines.push(b'\n');
    }

    fn list(&self) -> MetadataList {
        let mut list = MetadataList::new();
        let mut parts = self.lines.split(|&byte| byte == b'\n');
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            let Some((&line, name)) = name.split_first() else { break };
            let name = String::from_utf8_lossy(name).into_owned();
            if list.len() >= MAX_METRICS && !list.contains_key(&name) {
                continue;
            }
            let entry = list.entry(name).or_insert_with(|| Metadata {
                kind: MetricKind::Unknown,
                help: String::new(),
                unit: String::new(),
            });
            if line == HELP_LINE {
                entry.help = Entry::help_text(&value[..value.len().min(MAX_HELP_BYTES)]);
            } else {
                entry.kind = kind_of(value);
            }
        }
        list
    }
}

fn kind_of(name: &[u8]) -> MetricKind {
    let kinds = [MetricKind::Counter, MetricKind::Gauge, MetricKind::Histogram, MetricKind::Summary];
    kinds.into_iter().find(|kind| kind.name().as_bytes() == name).unwrap_or(MetricKind::Unknown)
}

/// Lists in use, by the hash of the lines they come from.
#[derive(Debug, Default)]
pub(crate) struct MetadataCache {
    lists: Mutex<HashMap<u128, Weak<MetadataList>>>,
}

impl MetadataCache {
    /// The list of a page's lines; `None` when it is `current`.
    pub(crate) fn list(
        &self,
        collector: &Collector,
        current: &Arc<MetadataList>,
    ) -> Option<Arc<MetadataList>> {
        let key = RawKeyHasher::new(0, b"metadata").key(&collector.lines).0;
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lists.get(&key).and_then(Weak::upgrade);
        if let Some(list) = known {
            return (!Arc::ptr_eq(&list, current)).then_some(list);
        }
        lists.retain(|_, list| list.strong_count() > 0);
        let list = Arc::new(collector.list());
        lists.insert(key, Arc::downgrade(&list));
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metricsstore_ingest::text::{Entry, MetricKind};

    use super::{Collector, MetadataCache, MetadataList};

    fn collector(help: &'static [u8]) -> Collector {
        let mut collector = Collector::default();
        collector.add(&Entry::Help { name: b"a", text: help });
        collector.add(&Entry::Type { name: b"a", kind: MetricKind::Gauge });
        collector
    }

    #[test]
    fn equal_pages_share_a_list_and_unused_lists_go() {
        let cache = MetadataCache::default();
        let none = Arc::new(MetadataList::new());
        let one = cache.list(&collector(b"x"), &none).unwrap();
        assert_eq!(one["a"].kind, MetricKind::Gauge);
        assert_eq!(one["a"].help, "x");
        assert!(cache.list(&collector(b"x"), &one).is_none());
        assert!(Arc::ptr_eq(&one, &cache.list(&collector(b"x"), &none).unwrap()));
        drop(one);
        let other = cache.list(&collector(b"y"), &none).unwrap();
        assert_eq!(other["a"].help, "y");
        assert_eq!(cache.lists.lock().unwrap().len(), 1);
    }
}
