//! Which labels of a new series go into its group. The split is a representation: any choice gives right answers,
//! a good one makes many series share few rows.
//!
//! Labels with well-known names of places (job, instance, namespace, pod, …) always go into the group. What else
//! all series of one place share is learned once per job, from the first batch that brings enough of them (a first
//! scrape, a sender's first requests), and unlearned when series of one place turn out to differ in it.
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashMap};
use metricsstore_model::{LabelBuf, METRIC_NAME};

/// What tells series of one place apart, even if a batch happens to bring one value only.
const NEVER: [&str; 4] = [METRIC_NAME, "code", "le", "quantile"];
/// New series of one place from which a rule is learned.
const ENOUGH: usize = 16;
/// Rules kept; with more jobs than this, learning starts anew.
const MAX_RULES: usize = 4096;
/// Names in one rule.
const MAX_LEARNED: usize = 32;

/// Whether a label says where a series comes from.
pub(crate) fn is_place(name: &str) -> bool {
    matches!(
        name,
        "cluster"
            | "container"
            | "endpoint"
            | "exported_container"
            | "exported_instance"
            | "exported_job"
            | "exported_namespace"
            | "exported_node"
            | "exported_pod"
            | "host"
            | "hostname"
            | "instance"
            | "job"
            | "namespace"
            | "node"
            | "pod"
            | "service"
    )
}

/// What was learned of one job.
#[derive(Default)]
pub(super) struct Rule {
    learned: Vec<Box<str>>,
    rejected: Vec<Box<str>>,
    settled: bool,
}

/// Rules by job.
#[derive(Default)]
pub(super) struct Splits {
    rules: HashMap<String, Rule>,
    hasher: DefaultHashBuilder,
}

/// New series of one place in one batch.
struct Place<'l> {
    first: &'l LabelBuf,
    /// Labels that all of them have alike.
    shared: Vec<(&'l str, &'l str)>,
    series: usize,
}

impl Rule {
    /// Whether the label goes into the group although its name does not say so.
    pub(super) fn has_learned(&self, name: &str) -> bool {
        self.learned.iter().any(|learned| &**learned == name)
    }

    fn learn(&mut self, place: &Place<'_>) {
        let rejected = &mut self.rejected;
        self.learned.retain(|name| {
            let agreed =
                place.first.get(name).is_none() || place.shared.iter().any(|&(shared, _)| shared == &**name);
            if !agreed && rejected.len() < MAX_LEARNED {
                rejected.push(name.clone());
            }
            agreed
        });
        if self.settled || place.series < ENOUGH {
            return;
        }
        self.settled = true;
        let names = place.shared.iter().map(|&(name, _)| name);
        self.learned = names
            .filter(|&name| !self.rejected.iter().any(|rejected| &**rejected == name))
            .take(MAX_LEARNED)
            .map(Box::from)
            .collect();
    }
}

impl Splits {
    /// Learns from the new series of a batch.
    pub(super) fn learn<'l>(&mut self, series: impl Iterator<Item = &'l LabelBuf>) {
        let mut places: HashMap<u64, Place<'l>> = HashMap::new();
        for labels in series {
            let mut at = self.hasher.build_hasher();
            labels.iter().filter(|(name, _)| is_place(name)).for_each(|pair| pair.hash(&mut at));
            let place = places.entry(at.finish()).or_insert_with(|| Place {
                first: labels,
                shared: labels.iter().filter(|(name, _)| !is_place(name) && !NEVER.contains(name)).collect(),
                series: 0,
            });
            place.series += 1;
            place.shared.retain(|&(name, value)| labels.get(name) == Some(value));
        }
        if self.rules.len() + places.len() > MAX_RULES {
            self.rules.clear();
        }
        for place in places.values().filter(|place| place.series > 1) {
            let job = place.first.get("job").unwrap_or("");
            self.rules.entry_ref(job).or_default().learn(place);
        }
    }

    /// What is known of the job of a series.
    pub(super) fn rule(&self, labels: &LabelBuf) -> Option<&Rule> {
        self.rules.get(labels.get("job").unwrap_or(""))
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_model::LabelBuf;

    use super::Splits;

    fn series(instance: &str, region: &str, number: usize) -> LabelBuf {
        LabelBuf::from_pairs([
            ("__name__", format!("metric_{number}").as_str()),
            ("instance", instance),
            ("job", "node"),
            ("region", region),
            ("cpu", &(number % 4).to_string()),
        ])
    }

    #[test]
    fn what_all_series_of_a_place_share_is_learned() {
        let mut splits = Splits::default();
        let batch: Vec<LabelBuf> = (0..40).map(|n| series(["a", "b"][n % 2], ["x", "y"][n % 2], n)).collect();
        splits.learn(batch.iter());
        let rule = splits.rule(&batch[0]).unwrap();
        assert!(rule.has_learned("region"));
        assert!(!rule.has_learned("cpu") && !rule.has_learned("__name__"));
    }

    #[test]
    fn what_differs_within_a_place_is_unlearned_for_good() {
        let mut splits = Splits::default();
        let first: Vec<LabelBuf> = (0..20).map(|n| series("a", "x", n)).collect();
        splits.learn(first.iter());
        assert!(splits.rule(&first[0]).unwrap().has_learned("region"));
        splits.learn([series("a", "x", 30), series("a", "y", 31)].iter());
        assert!(!splits.rule(&first[0]).unwrap().has_learned("region"));
        splits.learn(first.iter());
        assert!(!splits.rule(&first[0]).unwrap().has_learned("region"));
    }
}
