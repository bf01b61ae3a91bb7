//! Reads against the oracle: everything, ranges, snapshots that are held open, labels.
use std::collections::BTreeSet;

use metricsstore_budget::Grant;
use metricsstore_model::read::{ReadError, Selection, SeriesBatches, Source};
use metricsstore_model::{LabelBuf, MatchOp, Matcher};
use metricsstore_storage::Store;

use super::oracle::Oracle;
use super::random::Random;
use crate::common::{Contents, labels_of, read_batch};

/// More than there is.
const MANY: usize = 100_000;

/// A select that was begun and not yet read to its end.
pub struct Held {
    batches: Box<dyn SeriesBatches>,
    read: Contents,
    expected: Contents,
    /// Late samples sent since, which alone may be seen.
    late: BTreeSet<(u32, i64, u64)>,
    /// A batch could not be read; those after it prove nothing.
    failed: Option<ReadError>,
}

impl Held {
    /// Begins a select of which `expected` must come, whatever happens meanwhile.
    pub fn begin(store: &Store, start_ms: i64, end_ms: i64, expected: Contents) -> Held {
        let selection = Selection { matchers: &[], start_ms, end_ms };
        let batches = store.select(&selection, &Grant::unlimited()).unwrap();
        Held { batches, read: Contents::new(), expected, late: BTreeSet::new(), failed: None }
    }

    /// Takes note of a late sample that is sent while the select is open.
    pub fn sent_late(&mut self, series: u32, time_ms: i64, bits: u64) {
        self.late.insert((series, time_ms, bits));
    }

    /// Reads one batch; `false` after the last, or when one could not be read.
    pub fn step(&mut self) -> bool {
        let (read, labels) = (self.batches.next_batch(), self.batches.labels());
        if let Ok(Some(batch)) = &read {
            read_batch(batch, &*labels, &mut self.read);
        }
        self.failed = read.as_ref().err().cloned().or_else(|| labels.failure());
        self.failed.is_none() && matches!(read, Ok(Some(_)))
    }

    /// Reads to the end and compares. `Ok(false)`: a failing file system kept it from that.
    pub fn finish(mut self, disturbed: bool) -> Result<bool, String> {
        while self.failed.is_none() && self.step() {}
        match self.failed {
            None => {}
            Some(ReadError::Io { .. }) if disturbed => return Ok(false),
            Some(error) => return Err(format!("a select that was held open fails: {error}")),
        }
        self.read.retain(|series, samples| {
            let expected = self.expected.get(series);
            samples.retain(|time, bits| {
                expected.is_some_and(|samples| samples.contains_key(time))
                    || !self.late.contains(&(*series, *time, *bits))
            });
            !samples.is_empty()
        });
        if self.read == self.expected {
            return Ok(true);
        }
        Err(format!("a select that was held open changed: {}", difference(&self.read, &self.expected)))
    }
}

/// The first difference in words.
pub fn difference(read: &Contents, expected: &Contents) -> String {
    for (series, samples) in expected {
        let found = read.get(series);
        for (time, bits) in samples {
            let value = found.and_then(|samples| samples.get(time));
            if value != Some(bits) {
                return format!("series {series} at {time} reads {value:x?} instead of {bits:x}");
            }
        }
    }
    for (series, samples) in read {
        for time in samples.keys() {
            if expected.get(series).is_none_or(|samples| !samples.contains_key(time)) {
                return format!("series {series} at {time} is too much");
            }
        }
    }
    "none".into()
}

/// Matchers as queries have them, and sometimes none.
pub fn matchers(random: &mut Random) -> Vec<Matcher> {
    let job = format!("j{}", random.below(4));
    let digit = random.below(10);
    let matcher = |op, name: &str, value: &str| Matcher::new(op, name, value).unwrap();
    match random.below(8) {
        0 => vec![Matcher::equal("job", &job)],
        1 => {
            vec![matcher(MatchOp::NotEqual, "job", &job), matcher(MatchOp::Regex, "n", &format!(".*{digit}"))]
        }
        2 => vec![matcher(MatchOp::Regex, "__name__", "m1|m3|m5"), matcher(MatchOp::NotRegex, "n", "1.*")],
        3 => vec![Matcher::equal("n", &random.below(200).to_string())],
        4 => vec![Matcher::equal("absent", ""), matcher(MatchOp::Regex, "job", "j[01]")],
        5 => vec![matcher(MatchOp::NotEqual, "absent", "")],
        _ => Vec::new(),
    }
}

/// Whether a series passes all matchers.
pub fn passes(series: u32, matchers: &[Matcher]) -> bool {
    let labels = labels_of(series);
    let value = |name: &str| labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
    matchers.iter().all(|matcher| matcher.matches(value(&matcher.name)))
}

/// Compares lists of series and label values. A list may name series whose samples in the range have expired or lie
/// beside the range in the same file, but no others.
pub fn check_labels(
    store: &Store,
    oracle: &Oracle,
    (start_ms, end_ms): (i64, i64),
    random: &mut Random,
) -> Result<(), String> {
    let matchers = matchers(random);
    let any_of = if matchers.is_empty() { Vec::new() } else { vec![matchers.clone()] };
    let surely: BTreeSet<u32> =
        oracle.contents(start_ms, end_ms, |series| passes(series, &matchers)).into_keys().collect();
    let perhaps: BTreeSet<u32> = oracle.series().filter(|&series| passes(series, &matchers)).collect();
    let within = |what: &str, found: &BTreeSet<String>, of: &dyn Fn(u32) -> String| {
        let least: BTreeSet<String> = surely.iter().map(|&series| of(series)).collect();
        let most: BTreeSet<String> = perhaps.iter().map(|&series| of(series)).collect();
        if let Some(missing) = least.difference(found).next() {
            return Err(format!("{what} {missing} is missing with {matchers:?}"));
        }
        found
            .difference(&most)
            .next()
            .map_or(Ok(()), |more| Err(format!("{what} {more} is too much with {matchers:?}")))
    };
    let series = store.series(&any_of, start_ms, end_ms, MANY).unwrap();
    let found: BTreeSet<String> = series.items.iter().map(|labels| format!("{labels:?}")).collect();
    if found.len() != series.items.len() || series.truncated {
        return Err("a list of series names one twice or is cut".into());
    }
    let label_text = |series| format!("{:?}", LabelBuf::from_pairs(labels_of(series)));
    within("series", &found, &label_text)?;
    for name in ["n", "job", "__name__"] {
        let values = store.label_values(name, &any_of, start_ms, end_ms, MANY).unwrap().items;
        if !values.is_sorted_by(|a, b| a < b) {
            return Err(format!("values of {name} are not sorted: {values:?}"));
        }
        let limit = 1 + random.below(5) as usize;
        let few = store.label_values(name, &any_of, start_ms, end_ms, limit).unwrap();
        if few.items.len() != limit.min(values.len()) || few.truncated != (values.len() > limit) {
            return Err(format!("{limit} values of {name} are {few:?} of {values:?}"));
        }
        let value_of = |series| labels_of(series).into_iter().find(|(key, _)| key == name).unwrap().1;
        within(name, &values.into_iter().collect(), &value_of)?;
    }
    Ok(())
}
