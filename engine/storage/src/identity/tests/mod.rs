mod definitions;
mod footprint;
mod model;
mod removal;

use metricsstore_budget::Budget;
use metricsstore_model::read::SeriesLabels as _;
use metricsstore_model::{
    Batch, Extras, LabelBuf, LabelDecoder, LabelError, MatchOp, Matcher, Origin, RawKeyHasher, Refusal, Row,
};

use roaring::RoaringBitmap;

use super::{Identity, Resolved, SeriesId};

/// Raw labels of the tests: `name=value` lines; `#drop` is a row that relabelling drops.
struct Lines;

impl LabelDecoder for Lines {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        let text = std::str::from_utf8(raw_labels).map_err(|_| LabelError::NotUtf8(String::new()))?;
        for line in text.lines().filter(|line| *line != "#drop") {
            let (name, value) = line.split_once('=').unwrap();
            labels.push(name, value);
        }
        Ok(text != "#drop")
    }
}

fn raw(labels: &LabelBuf) -> String {
    labels.iter().flat_map(|(name, value)| [name, "=", value, "\n"]).collect()
}

fn resolve_raw(identity: &Identity, raws: &[String], admit_new: bool) -> Vec<Result<Resolved, Refusal>> {
    let keys = RawKeyHasher::new(1, b"lines");
    let rows = raws
        .iter()
        .map(|raw| Row { raw_labels: raw.as_bytes(), key: keys.key(raw.as_bytes()), samples: 0..0 })
        .collect();
    let batch = Batch {
        origin: Origin::RemoteWrite(0),
        decoder: &Lines,
        rows,
        samples: Vec::new(),
        extras: Extras::default(),
    };
    let mut out = Vec::new();
    identity.resolve(&batch, admit_new, &mut out);
    out
}

fn resolve(identity: &Identity, series: &[LabelBuf]) -> Vec<Resolved> {
    let raws: Vec<String> = series.iter().map(raw).collect();
    resolve_raw(identity, &raws, true).into_iter().map(Result::unwrap).collect()
}

fn id_of(resolved: Resolved) -> SeriesId {
    match resolved {
        Resolved::Known(id) | Resolved::Created(id) => id,
        Resolved::Dropped => panic!("dropped"),
    }
}

fn identity() -> Identity {
    Identity::new(Budget::unlimited())
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> LabelBuf {
    LabelBuf::from_pairs(pairs)
}

#[test]
fn a_series_is_created_once_whatever_the_order_of_its_labels_and_the_place_in_the_batch() {
    let identity = identity();
    let got =
        resolve_raw(&identity, &["a=1\nb=2\n".into(), "b=2\na=1\n".into(), "b=2\nc=\na=1".into()], true);
    let id = SeriesId(0);
    assert_eq!(got, [Ok(Resolved::Created(id)), Ok(Resolved::Known(id)), Ok(Resolved::Known(id))]);
    assert_eq!(identity.len(), 1);
}

#[test]
fn what_does_not_form_a_series_is_refused_in_its_words_and_the_rest_of_the_batch_is_not() {
    let identity = identity();
    let long = format!("a={}\n", "x".repeat(64 << 10));
    let many: String = (0..1025).flat_map(|n| ["n".to_string(), n.to_string(), "=1\n".into()]).collect();
    let raws = ["=1\nb=2\n", "a=1\na=2\n", "a=\n", &long, &many, "#drop", "a=1\n"].map(String::from);
    let got = resolve_raw(&identity, &raws, true);
    assert_eq!(got[0], Err(Refusal::Labels(LabelError::EmptyName)));
    assert_eq!(got[1], Err(Refusal::Labels(LabelError::Duplicate("a".into()))));
    assert_eq!(got[2], Err(Refusal::Labels(LabelError::NoLabels)));
    assert!(matches!(got[3], Err(Refusal::Labels(LabelError::Limit(_)))));
    assert!(matches!(got[4], Err(Refusal::Labels(LabelError::Limit(_)))));
    assert_eq!(got[5], Ok(Resolved::Dropped));
    assert_eq!(got[6], Ok(Resolved::Created(SeriesId(0))));
}

#[test]
fn a_full_budget_refuses_new_series_only() {
    let identity = identity();
    resolve(&identity, &[labels([("a", "1")])]);
    let got = resolve_raw(&identity, &["a=1\n".into(), "b=1\n".into(), "a=2\n".into()], false);
    assert_eq!(got[0], Ok(Resolved::Known(SeriesId(0))));
    assert_eq!(got[1..], [Err(Refusal::SeriesBudget), Err(Refusal::SeriesBudget)]);
    assert_eq!(identity.label_names(&[], None, 10).items, ["a"]);
    let later = resolve_raw(&identity, &["b=1\n".into()], true);
    assert_eq!(later, [Ok(Resolved::Created(SeriesId(1)))]);
}

#[test]
fn known_and_dropped_keys_are_answered_without_decoding() {
    let identity = identity();
    let raws = ["a=1\n", "#drop"].map(String::from);
    resolve_raw(&identity, &raws, true);
    let keys = RawKeyHasher::new(1, b"lines");
    let known = |raw: &str| identity.cache.read().get(keys.key(raw.as_bytes())).map(Resolved::known);
    assert_eq!(known("a=1\n"), Some(Resolved::Known(SeriesId(0))));
    assert_eq!(known("#drop"), Some(Resolved::Dropped));
    assert_eq!(known("a=2\n"), None);
}

#[test]
fn a_missing_label_counts_as_empty_on_either_side_of_the_split() {
    let identity = identity();
    // `pod` is of the group; `zone` of the residual.
    let series = [
        labels([("__name__", "up"), ("job", "a"), ("pod", "p")]),
        labels([("__name__", "up"), ("job", "a"), ("zone", "z")]),
        labels([("__name__", "up"), ("job", "b")]),
    ];
    resolve(&identity, &series);
    let found = |op, name, value| {
        let selected = identity.select(&[Matcher::new(op, name, value).unwrap()]);
        selected.series.iter().map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    assert_eq!(found(MatchOp::Equal, "pod", ""), [1, 2]);
    assert_eq!(found(MatchOp::NotEqual, "pod", ""), [0]);
    assert_eq!(found(MatchOp::NotEqual, "pod", "p"), [1, 2]);
    assert_eq!(found(MatchOp::Regex, "zone", "z|"), [0, 1, 2]);
    assert_eq!(found(MatchOp::Regex, "zone", "y|"), [0, 2]);
    assert_eq!(found(MatchOp::NotRegex, "zone", ".+"), [0, 2]);
    assert_eq!(found(MatchOp::Regex, "zone", ".+"), [1]);
    assert_eq!(found(MatchOp::Equal, "unknown", ""), [0, 1, 2]);
    assert_eq!(found(MatchOp::NotEqual, "unknown", ""), [0; 0]);
    assert_eq!(found(MatchOp::Equal, "unknown", "x"), [0; 0]);
}

#[test]
fn readers_see_whole_series_while_others_are_created_and_removed() {
    let identity = identity();
    let series = |n: u32| {
        let (name, instance) = (format!("m{}", n % 7), (n / 100).to_string());
        labels([("__name__", &name), ("instance", &instance), ("job", "j"), ("n", &n.to_string())])
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0..50 {
                let rows: Vec<LabelBuf> = (batch * 100..batch * 100 + 100).map(series).collect();
                resolve(&identity, &rows);
                if batch % 10 == 9 {
                    let live = (0..5000).filter(|id| id % 3 != 0).collect();
                    identity.retain(&live, identity.next_order());
                }
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        scope.spawn(|| {
            let mut found = LabelBuf::new();
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let selected = identity.select(&[Matcher::equal("__name__", "m3")]);
                for &(_, series_ref) in &selected.series {
                    selected.labels.labels(series_ref, &mut found);
                    assert_eq!(found.metric_name(), "m3");
                    assert_eq!(found.len(), 4);
                    assert_eq!(found, series(found.get("n").unwrap().parse().unwrap()));
                }
            }
        });
    });
    assert!(identity.len() > 1000);
}

impl Identity {
    /// A removal with nothing beside it; returns how many series went.
    fn retain(&self, live: &RoaringBitmap, before: u64) -> usize {
        let removal = self.prepare_removal(live, before);
        removal.map_or(0, |removal| self.finish_removal(removal, |_| false).series.len() as usize)
    }
}
