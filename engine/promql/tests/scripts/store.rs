//! A store in memory that hands out series as a real one may: some share a stream of times, the others lie in one
//! sparse batch.
use std::collections::BTreeMap;
use std::sync::Arc;

use metricsstore_budget::Grant;
use metricsstore_model::read::{
    Columns, FloatColumns, Limited, ReadError, Selection, SeriesBatch, SeriesBatches, SeriesLabels,
    SeriesRef, Source,
};
use metricsstore_model::{LabelBuf, Matcher};

#[derive(Clone)]
struct Series {
    labels: LabelBuf,
    samples: BTreeMap<i64, f64>,
}

#[derive(Default, Clone)]
pub struct Store {
    series: Vec<Series>,
}

impl Store {
    pub fn append(&mut self, labels: &LabelBuf, samples: impl IntoIterator<Item = (i64, f64)>) {
        let samples: Vec<_> = samples.into_iter().collect();
        if samples.is_empty() {
            return;
        }
        let known = self.series.iter().position(|series| series.labels == *labels);
        let index = known.unwrap_or_else(|| {
            self.series.push(Series { labels: labels.clone(), samples: BTreeMap::new() });
            self.series.len() - 1
        });
        self.series[index].samples.extend(samples);
    }
}

/// Pairs named `job` and `instance` are the group, the others the residual.
struct Table(Vec<LabelBuf>);

impl Table {
    fn push(&self, index: u32, in_group: bool, into: &mut LabelBuf) {
        for (name, value) in self.0[index as usize].iter() {
            if matches!(name, "job" | "instance") == in_group {
                into.push(name, value);
            }
        }
    }
}

impl SeriesLabels for Table {
    fn push_group(&self, group: u32, labels: &mut LabelBuf) {
        self.push(group, true, labels);
    }
    fn push_residual(&self, residual: u32, labels: &mut LabelBuf) {
        self.push(residual, false, labels);
    }
}

struct Batches {
    batches: Vec<SeriesBatch>,
    table: Arc<Table>,
}

impl SeriesBatches for Batches {
    fn next_batch(&mut self) -> Result<Option<SeriesBatch>, ReadError> {
        Ok(self.batches.pop())
    }
    fn labels(&self) -> Arc<dyn SeriesLabels> {
        Arc::clone(&self.table) as Arc<dyn SeriesLabels>
    }
}

type Picked = (SeriesRef, Vec<(i64, f64)>);

fn dense(series: &[Picked]) -> SeriesBatch {
    SeriesBatch {
        times: series[0].1.iter().map(|(time, _)| *time).collect(),
        ids: series.iter().map(|(id, _)| *id).collect(),
        columns: Columns::Floats(FloatColumns {
            values: series.iter().flat_map(|(_, samples)| samples.iter().map(|(_, value)| *value)).collect(),
            absent: vec![],
        }),
        starts_ms: vec![],
    }
}

fn sparse(series: &[Picked]) -> SeriesBatch {
    let all = series.iter().flat_map(|(_, samples)| samples.iter().map(|(time, _)| *time));
    let times: Vec<i64> = all.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let mut columns = FloatColumns::default();
    let cells = times.len() * series.len();
    columns.absent = vec![0; cells.div_ceil(64)];
    for (_, samples) in series {
        let samples: BTreeMap<i64, f64> = samples.iter().copied().collect();
        for time in &times {
            let cell = columns.values.len();
            if !samples.contains_key(time) {
                columns.absent[cell / 64] |= 1 << (cell % 64);
            }
            columns.values.push(samples.get(time).copied().unwrap_or(7e77));
        }
    }
    SeriesBatch {
        times: times.into(),
        ids: series.iter().map(|(id, _)| *id).collect(),
        columns: Columns::Floats(columns),
        starts_ms: vec![],
    }
}

impl Source for Store {
    fn select(&self, selection: &Selection<'_>, _: &Grant) -> Result<Box<dyn SeriesBatches>, ReadError> {
        let mut by_times: BTreeMap<Vec<i64>, Vec<Picked>> = BTreeMap::new();
        for (index, series) in self.series.iter().enumerate() {
            let passes = selection
                .matchers
                .iter()
                .all(|matcher| matcher.matches(series.labels.get(&matcher.name).unwrap_or("")));
            let samples: Vec<(i64, f64)> =
                series.samples.range(selection.start_ms..=selection.end_ms).map(|(t, v)| (*t, *v)).collect();
            if passes && !samples.is_empty() {
                let id = SeriesRef { order: index as u64, group: index as u32, residual: index as u32 };
                let times = samples.iter().map(|(time, _)| *time).collect();
                by_times.entry(times).or_default().push((id, samples));
            }
        }
        let (shared, alone): (Vec<_>, Vec<_>) = by_times.into_values().partition(|series| series.len() > 1);
        let mut batches: Vec<SeriesBatch> = shared.iter().map(|series| dense(series)).collect();
        let alone: Vec<Picked> = alone.into_iter().flatten().collect();
        if !alone.is_empty() {
            batches.push(sparse(&alone));
        }
        let table = Arc::new(Table(self.series.iter().map(|series| series.labels.clone()).collect()));
        Ok(Box::new(Batches { batches, table }))
    }

    fn label_names(
        &self,
        _: &[Vec<Matcher>],
        _: i64,
        _: i64,
        _: usize,
    ) -> Result<Limited<String>, ReadError> {
        Ok(Limited { items: vec![], truncated: false })
    }

    fn label_values(
        &self,
        _: &str,
        _: &[Vec<Matcher>],
        _: i64,
        _: i64,
        _: usize,
    ) -> Result<Limited<String>, ReadError> {
        Ok(Limited { items: vec![], truncated: false })
    }

    fn series(&self, _: &[Vec<Matcher>], _: i64, _: i64, _: usize) -> Result<Limited<LabelBuf>, ReadError> {
        Ok(Limited { items: vec![], truncated: false })
    }
}
