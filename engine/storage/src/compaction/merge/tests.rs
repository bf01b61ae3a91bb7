use std::collections::{BTreeMap, VecDeque};

use metricsstore_model::histogram::{Counts, HistogramCounts};

use super::*;

/// A stream of what it was given.
struct Given(VecDeque<Result<SeriesData, StorageError>>);

impl SeriesStream for Given {
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError> {
        match self.0.pop_front() {
            None => Ok(false),
            Some(next) => {
                *series = next?;
                Ok(true)
            }
        }
    }
}

fn given(slices: impl IntoIterator<Item = SeriesData>) -> Box<dyn SeriesStream> {
    Box::new(Given(slices.into_iter().map(Ok).collect()))
}

fn labels(name: &str) -> LabelBuf {
    LabelBuf::from_pairs([("__name__", name)])
}

fn floats(name: &str, times: &[i64]) -> SeriesData {
    let floats = times.iter().map(|&time| (time, (time as f64).to_bits())).collect();
    SeriesData { labels: labels(name), floats, ..SeriesData::default() }
}

fn histogram(count: u64, reset_hint: ResetHint) -> Histogram {
    let counts = HistogramCounts::Integer(Counts { count, zero: count, ..Counts::default() });
    Histogram { counts, reset_hint, sum: count as f64, ..Histogram::default() }
}

fn histograms(name: &str, entries: &[(i64, Histogram)]) -> SeriesData {
    SeriesData { labels: labels(name), histograms: entries.to_vec(), ..SeriesData::default() }
}

fn all(merged: &mut MergedSeries<'_>) -> Vec<SeriesData> {
    let (mut slices, mut slice) = (Vec::new(), SeriesData::default());
    while merged.next_into(&mut slice).unwrap() {
        slices.push(slice.clone());
    }
    slices
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What stands at a time: bits of a float, or of the sum of a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Float(u64),
    Histogram(u64),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    cells: BTreeMap<i64, Cell>,
    starts: BTreeMap<i64, i64>,
    exemplars: Vec<(i64, u64)>,
}

/// A series of one input: its slices, and what the whole must be once it comes after earlier inputs in `model`.
fn random_series(random: &mut Random, name: &str, model: &mut Model) -> Vec<SeriesData> {
    let (mut slices, mut time) = (Vec::new(), random.below(300) as i64);
    for index in 0..=random.below(4) {
        let mut slice =
            SeriesData { labels: labels(name), is_continuation: index > 0, ..SeriesData::default() };
        for _ in 0..random.below(12) {
            time += 1 + random.below(9) as i64;
            let bits = if random.below(5) == 0 { STALE_NAN_BITS } else { random.below(50) };
            let cell = if random.below(4) == 0 {
                let mut one = histogram(3, ResetHint::Unknown);
                one.sum = f64::from_bits(bits);
                slice.histograms.push((time, one));
                Cell::Histogram(bits)
            } else {
                slice.floats.push((time, bits));
                Cell::Float(bits)
            };
            let is_stale =
                |cell: &Cell| matches!(cell, Cell::Float(b) | Cell::Histogram(b) if *b == STALE_NAN_BITS);
            let held = model.cells.entry(time).or_insert(cell);
            if is_stale(held) && !is_stale(&cell) {
                *held = cell;
            }
            if random.below(3) == 0 {
                slice.starts.push((time, time - 5));
                model.starts.entry(time).or_insert(time - 5);
            }
            if random.below(6) == 0 {
                let value = random.below(2) as f64;
                slice.exemplars.push(StoredExemplar { labels: labels("trace"), timestamp_ms: time, value });
                model.exemplars.push((time, value.to_bits()));
            }
        }
        slices.push(slice);
    }
    slices
}

#[test]
fn any_slices_of_any_inputs_merge_to_what_maps_say() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut model: BTreeMap<String, Model> = BTreeMap::new();
        let mut inputs = Vec::new();
        for _ in 0..=random.below(4) {
            let mut slices = Vec::new();
            for number in 0..6 {
                if random.below(3) > 0 {
                    let name = format!("m{number}");
                    let of_series = model.entry(name.clone()).or_default();
                    slices.extend(random_series(&mut random, &name, of_series));
                }
            }
            inputs.push(given(slices));
        }
        for of_series in model.values_mut() {
            of_series.exemplars.sort_unstable();
            of_series.exemplars.dedup();
        }
        model.retain(|_, of_series| !of_series.cells.is_empty());
        let mut merged = MergedSeries::new(inputs);
        merged.slice_samples = 2 + random.below(9) as usize;
        let (most, mut found) = (merged.slice_samples, BTreeMap::<String, Model>::new());
        let mut last = LabelBuf::new();
        for slice in all(&mut merged) {
            assert!(slice.samples() <= most && slice.samples() > 0, "seed {seed}");
            assert!(
                if slice.is_continuation { slice.labels == last } else { slice.labels > last },
                "seed {seed}"
            );
            last.clone_from(&slice.labels);
            let of_series = found.entry(slice.labels.metric_name().to_owned()).or_default();
            let newest_ms = of_series.cells.last_key_value().map(|(&time, _)| time);
            let cells = slice.floats.iter().map(|&(time, bits)| (time, Cell::Float(bits)));
            let sums = slice.histograms.iter().map(|(time, h)| (*time, Cell::Histogram(h.sum.to_bits())));
            for (time, cell) in cells.chain(sums) {
                assert!(Some(time) > newest_ms, "seed {seed}: slices ascend");
                assert_eq!(of_series.cells.insert(time, cell), None, "seed {seed}: a time stands once");
            }
            assert!(slice.starts.is_sorted() && slice.floats.is_sorted_by_key(|s| s.0));
            of_series.starts.extend(slice.starts);
            let exemplars = slice.exemplars.iter().map(|e| (e.timestamp_ms, e.value.to_bits()));
            of_series.exemplars.extend(exemplars);
        }
        for of_series in found.values_mut() {
            assert!(of_series.exemplars.is_sorted_by_key(|e| e.0), "seed {seed}: exemplars ascend");
            of_series.exemplars.sort_unstable();
        }
        assert_eq!(found, model, "seed {seed}");
        assert!(merged.damage().all(|damage| damage.count == 0));
    }
}

#[test]
fn hints_hold_only_where_the_histogram_before_is_the_one_they_were_made_against() {
    use ResetHint::{Gauge, NoReset, Unknown};
    let old = histograms(
        "m",
        &[(10, histogram(1, Unknown)), (20, histogram(2, NoReset)), (40, histogram(4, NoReset))],
    );
    let late = histograms("m", &[(30, histogram(3, Unknown)), (31, histogram(9, Gauge))]);
    let next = histograms("m", &[(50, histogram(5, NoReset)), (60, histogram(6, NoReset))]);
    let mut merged = MergedSeries::new(vec![given([old.clone()]), given([late]), given([next.clone()])]);
    let hints = |slices: Vec<SeriesData>| -> Vec<(i64, ResetHint)> {
        let all = slices.into_iter().flat_map(|slice| slice.histograms);
        all.map(|(time, histogram)| (time, histogram.reset_hint)).collect()
    };
    // The one at 40 was made against that at 20, the one at 50 against that at 31.
    let want = [
        (10, Unknown),
        (20, NoReset),
        (30, Unknown),
        (31, Gauge),
        (40, Unknown),
        (50, Unknown),
        (60, NoReset),
    ];
    assert_eq!(hints(all(&mut merged)), want);
    let mut merged = MergedSeries::new(vec![given([old]), given([next])]);
    let want = [(10, Unknown), (20, NoReset), (40, NoReset), (50, NoReset), (60, NoReset)];
    assert_eq!(hints(all(&mut merged)), want);
}

#[test]
fn a_bad_series_costs_only_itself_and_is_counted() {
    let corrupt = || StorageError::corrupt(std::path::Path::new("block"), 7, "a page is damaged");
    let rest = SeriesData { is_continuation: true, ..floats("b", &[90]) };
    let damaged = Given(VecDeque::from([
        Ok(floats("a", &[1])),
        Err(corrupt()),
        // Times that do not ascend, and what goes on with them.
        Ok(floats("b", &[5, 5])),
        Ok(rest),
        // Label sets that do not ascend (thanos-io/thanos#5497).
        Ok(floats("a", &[30])),
        Ok(floats("c", &[6])),
        Err(corrupt()),
    ]));
    let whole = given([floats("a", &[2]), floats("b", &[3]), floats("d", &[4])]);
    let mut merged = MergedSeries::new(vec![Box::new(damaged), whole]);
    let found: Vec<(String, Vec<i64>)> = all(&mut merged)
        .iter()
        .map(|slice| (slice.labels.metric_name().to_owned(), slice.floats.iter().map(|s| s.0).collect()))
        .collect();
    let want = [("a", vec![1, 2]), ("b", vec![3]), ("c", vec![6]), ("d", vec![4])];
    assert_eq!(found, want.map(|(name, times)| (name.to_owned(), times)));
    let damage: Vec<Damage> = merged.damage().cloned().collect();
    assert_eq!((damage[0].count, damage[1].count), (4, 0));
    assert!(damage[0].first.as_deref().unwrap().contains("a page is damaged"));
}

#[test]
fn an_invalid_histogram_is_left_out_with_its_start_timestamp() {
    let mut invalid = histogram(2, ResetHint::NoReset);
    invalid.schema = 100;
    let mut series = histograms("m", &[(10, histogram(1, ResetHint::Unknown)), (20, invalid)]);
    series.histograms.push((30, histogram(3, ResetHint::NoReset)));
    series.starts = vec![(10, 1), (20, 1), (30, 1)];
    let mut merged = MergedSeries::new(vec![given([series])]);
    let slices = all(&mut merged);
    let times: Vec<(i64, ResetHint)> = slices[0].histograms.iter().map(|(t, h)| (*t, h.reset_hint)).collect();
    assert_eq!(times, [(10, ResetHint::Unknown), (30, ResetHint::Unknown)]);
    assert_eq!(slices[0].starts, [(10, 1), (30, 1)]);
    assert_eq!(merged.damage().next().unwrap().count, 1);
}

#[test]
fn exemplars_of_series_without_samples_and_after_the_last_sample_stay() {
    let exemplar = |timestamp_ms| StoredExemplar { labels: labels("trace"), timestamp_ms, value: f64::NAN };
    let mut first = floats("a", &[10, 30]);
    first.exemplars = vec![exemplar(10), exemplar(40)];
    let mut same = floats("a", &[20]);
    same.exemplars = vec![exemplar(10), exemplar(20)];
    let only = SeriesData { labels: labels("b"), exemplars: vec![exemplar(5)], ..SeriesData::default() };
    let mut merged = MergedSeries::new(vec![given([first]), given([same, only])]);
    let times: Vec<Vec<i64>> = all(&mut merged)
        .iter()
        .map(|slice| slice.exemplars.iter().map(|e| e.timestamp_ms).collect())
        .collect();
    assert_eq!(times, [vec![10, 20, 40], vec![5]]);
}
