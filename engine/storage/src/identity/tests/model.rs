//! Random batches, removals, restarts, selects and listings against a plain map.
use std::collections::{BTreeMap, BTreeSet};

use metricsstore_model::read::SeriesLabels as _;
use metricsstore_model::{LabelBuf, MatchOp, Matcher};
use roaring::RoaringBitmap;

use super::{Identity, Resolved, identity, raw, resolve_raw};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

const NAMES: [&str; 7] = ["__name__", "instance", "job", "le", "path", "pod", "zone"];
const VALUES: [&str; 6] = ["a", "b", "c", "ab", "näh", "x.y"];
const PATTERNS: [&str; 9] = ["a", "a|b", ".*", ".+", "", "a.*", "[^a]", "a|", "x\\.y|zzz"];

/// What is known of one series: id and creation order.
type Model = BTreeMap<LabelBuf, (u32, u64)>;

fn random_series(random: &mut Random) -> LabelBuf {
    // A shared part makes groups, some of them learned, some contradicted.
    let target = random.pick(&VALUES);
    let mut labels = LabelBuf::new();
    for name in NAMES {
        let value = match name {
            "instance" | "zone" if random.chance(85) => target,
            _ if random.chance(60) => random.pick(&VALUES),
            _ => continue,
        };
        labels.push(name, value);
    }
    if labels.is_empty() {
        labels.push("__name__", "lonely");
    }
    labels
}

fn random_matchers(random: &mut Random) -> Vec<Matcher> {
    (0..random.below(4))
        .map(|_| {
            let ops = [MatchOp::Equal, MatchOp::NotEqual, MatchOp::Regex, MatchOp::NotRegex];
            let op = ops[random.below(4)];
            let name = if random.chance(95) { random.pick(&NAMES) } else { "unknown" };
            let value = match op {
                MatchOp::Equal | MatchOp::NotEqual if random.chance(15) => "",
                MatchOp::Equal | MatchOp::NotEqual => random.pick(&VALUES),
                _ => random.pick(&PATTERNS),
            };
            Matcher::new(op, name, value).unwrap()
        })
        .collect()
}

fn passes(labels: &LabelBuf, matchers: &[Matcher]) -> bool {
    matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or("")))
}

fn append(identity: &Identity, model: &mut Model, random: &mut Random, next_order: &mut u64) {
    let series: Vec<LabelBuf> = (0..=random.below(60)).map(|_| random_series(random)).collect();
    let admit_new = random.chance(90);
    let raws: Vec<String> = series
        .iter()
        .map(|labels| {
            let text = raw(labels);
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            let turn = random.below(lines.len());
            lines.rotate_left(turn);
            lines.concat()
        })
        .collect();
    for (labels, got) in series.iter().zip(resolve_raw(identity, &raws, admit_new)) {
        match (model.get(labels), got) {
            (Some(&(id, _)), Ok(Resolved::Known(got))) => assert_eq!(got.0, id, "{labels}"),
            (None, Ok(Resolved::Created(got))) if admit_new => {
                assert!(model.values().all(|&(id, _)| id != got.0), "id {} is in use", got.0);
                model.insert(labels.clone(), (got.0, *next_order));
                *next_order += 1;
            }
            (None, Err(_)) if !admit_new => {}
            other => panic!("{labels}: {other:?}"),
        }
    }
    assert_eq!(identity.len(), model.len());
    assert_eq!(identity.next_order(), *next_order);
}

fn check_select(identity: &Identity, model: &Model, random: &mut Random) {
    let matchers = random_matchers(random);
    let selected = identity.select(&matchers);
    let mut labels = LabelBuf::new();
    let got: Model = selected
        .series
        .iter()
        .map(|&(id, series)| {
            selected.labels.labels(series, &mut labels);
            assert_eq!(identity.series_ref(id), Some(series));
            (labels.clone(), (id.0, series.order))
        })
        .collect();
    assert_eq!(got.len(), selected.series.len(), "no series twice");
    assert!(selected.series.is_sorted());
    let want = model.iter().filter(|(labels, _)| passes(labels, &matchers));
    assert!(got.iter().eq(want), "{matchers:?}");
}

fn check_listings(identity: &Identity, model: &Model, random: &mut Random) {
    let any_of: Vec<Vec<Matcher>> = (0..random.below(3)).map(|_| random_matchers(random)).collect();
    let within: Option<RoaringBitmap> =
        random.chance(60).then(|| model.values().map(|&(id, _)| id).filter(|_| random.chance(50)).collect());
    let limit = if random.chance(30) { random.below(5) } else { usize::MAX };
    let scope: Vec<&LabelBuf> = model
        .iter()
        .filter(|(labels, _)| any_of.is_empty() || any_of.iter().any(|matchers| passes(labels, matchers)))
        .filter(|(_, (id, _))| within.as_ref().is_none_or(|within| within.contains(*id)))
        .map(|(labels, _)| labels)
        .collect();
    let within = within.as_ref();

    let names: BTreeSet<&str> = scope.iter().flat_map(|labels| labels.iter().map(|(name, _)| name)).collect();
    let got = identity.label_names(&any_of, within, limit);
    assert!(got.items.iter().map(String::as_str).eq(names.iter().copied().take(limit)), "{any_of:?}");
    assert_eq!(got.truncated, names.len() > limit);

    let name = random.pick(&NAMES);
    let values: BTreeSet<&str> = scope.iter().filter_map(|labels| labels.get(name)).collect();
    let got = identity.label_values(name, &any_of, within, limit);
    assert!(got.items.iter().map(String::as_str).eq(values.iter().copied().take(limit)), "{any_of:?}");
    assert_eq!(got.truncated, values.len() > limit);

    let got = identity.series(&any_of, within, limit);
    assert!(got.items.iter().eq(scope.iter().copied().take(limit)), "{any_of:?}");
    assert_eq!(got.truncated, scope.len() > limit);
}

fn remove(identity: &Identity, model: &mut Model, random: &mut Random, next_order: u64) {
    let percent = [0, 3, 50, 97, 100][random.below(5)];
    let before = if random.chance(70) { next_order } else { next_order.saturating_sub(10) };
    let ids = model.values().map(|&(id, _)| id);
    let live: RoaringBitmap = ids.filter(|_| !random.chance(percent)).collect();
    let old = model.len();
    model.retain(|_, &mut (id, order)| live.contains(id) || order >= before);
    assert_eq!(identity.retain(&live, before), old - model.len());
}

/// A new identity from definitions in pieces of random sizes.
fn restart(identity: &Identity, random: &mut Random) -> Identity {
    let loaded = super::identity();
    let mut mark = 0;
    while mark < identity.next_order() {
        let mut record = Vec::new();
        mark = identity.encode_definitions(mark, 1 + random.below(200), &mut record);
        loaded.load_definitions(&record).unwrap();
    }
    loaded
}

#[test]
fn random_histories_agree_with_a_plain_map() {
    for seed in 1..=8 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut identity = identity();
        let mut model = Model::new();
        let mut next_order = 0;
        for _ in 0..120 {
            match random.below(100) {
                0..45 => append(&identity, &mut model, &mut random, &mut next_order),
                45..52 => remove(&identity, &mut model, &mut random, next_order),
                52..56 => {
                    identity = restart(&identity, &mut random);
                    assert_eq!(identity.len(), model.len());
                    // Orders of series that are gone may be given out again.
                    next_order = model.values().map(|&(_, order)| order + 1).max().unwrap_or(0);
                }
                56..80 => check_select(&identity, &model, &mut random),
                _ => check_listings(&identity, &model, &mut random),
            }
        }
    }
}
