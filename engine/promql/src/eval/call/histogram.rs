//! Functions of classic histograms: series that differ in `le` alone belong together.
use metricsstore_model::LabelBuf;

use crate::annotation::Monotonicity;
use crate::ast::{Call, Expr};

use super::super::functions::buckets::{self, Bucket};
use super::super::functions::quantile::is_invalid;
use super::super::keys::{Grouping, Keys};
use super::super::vectors::{ABSENT, Labels, Vectors, is_absent};
use super::super::{Evaluation, Query, Steps};

const BUCKET_LABEL: &str = "le";

/// The rows of a vector sorted into histograms.
struct Histograms {
    input: Vectors,
    /// Upper bound and row of each bucket, by histogram.
    rows: Vec<Vec<(f64, u32)>>,
    labels: Labels,
}

impl Query<'_> {
    pub(super) fn histogram_quantile(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let q = self.scalar(&call.args[0], steps)?;
        let arg = &call.args[1];
        for &q in q.iter().filter(|q| is_invalid(**q)) {
            self.annotations.borrow_mut().invalid_quantile(q, call.args[0].span);
        }
        let histograms = self.histograms(arg, steps)?;
        let names = self.delayed_names().then(|| histograms.names());
        self.per_histogram(&histograms, |histogram, step, found| {
            let (value, forced) = buckets::quantile(q[step], found);
            if let Some(forced) = forced {
                let name = names.as_ref().map_or("", |names| &names[histogram]);
                let time = steps.time(step);
                let details = Monotonicity {
                    least_bucket: forced.least_bucket,
                    greatest_bucket: forced.greatest_bucket,
                    greatest_difference: forced.greatest_difference,
                    first_ms: time,
                    last_ms: time,
                    samples: 1,
                };
                self.annotations.borrow_mut().forced_monotonicity(name, arg.span, details);
            }
            value
        })
    }

    pub(super) fn histogram_fraction(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let lower = self.scalar(&call.args[0], steps)?;
        let upper = self.scalar(&call.args[1], steps)?;
        let histograms = self.histograms(&call.args[2], steps)?;
        self.per_histogram(&histograms, |_, step, found| buckets::fraction(lower[step], upper[step], found))
    }

    fn histograms(&self, arg: &Expr, steps: Steps) -> Evaluation<Histograms> {
        let input = self.vector(arg, steps)?;
        let mut keys = Keys::new(Grouping::except(&[BUCKET_LABEL]), &self.account);
        let key_of = keys.assign(&input.labels)?;
        let mut rows: Vec<Vec<(f64, u32)>> = vec![Vec::new(); keys.len()];
        let mut labels = LabelBuf::new();
        for (row, &key) in key_of.iter().enumerate() {
            input.labels.get(row, &mut labels);
            let text = labels.get(BUCKET_LABEL).unwrap_or_default();
            match text.parse::<f64>() {
                Ok(bound) if !bound.is_nan() => rows[key as usize].push((bound, row as u32)),
                _ => {
                    let name = if self.delayed_names() { labels.metric_name() } else { "" };
                    self.annotations.borrow_mut().bad_bucket_label(name, text, arg.span);
                }
            }
        }
        Ok(Histograms { input, rows, labels: keys.into_labels() })
    }

    fn per_histogram(
        &self,
        histograms: &Histograms,
        mut f: impl FnMut(usize, usize, &mut Vec<Bucket>) -> f64,
    ) -> Evaluation<Vectors> {
        let width = histograms.input.width;
        let mut values = Vec::with_capacity(histograms.rows.len() * width);
        let mut found = Vec::new();
        for (histogram, rows) in histograms.rows.iter().enumerate() {
            self.check_interrupt()?;
            for step in 0..width {
                found.clear();
                let cells =
                    rows.iter().map(|&(bound, row)| (bound, histograms.input.row(row as usize)[step]));
                let present = cells.filter(|(_, count)| !is_absent(*count));
                found.extend(present.map(|(upper_bound, count)| Bucket { upper_bound, count }));
                values.push(if found.is_empty() { ABSENT } else { f(histogram, step, &mut found) });
            }
        }
        let mut vectors = Vectors::new(histograms.labels.clone(), values, width, &self.account)?;
        vectors.one_name = histograms.input.one_name;
        vectors.without_empty_rows().drop_names(self.delayed_names())
    }
}

impl Histograms {
    fn names(&self) -> Vec<String> {
        let mut labels = LabelBuf::new();
        (0..self.rows.len())
            .map(|histogram| {
                self.labels.get(histogram, &mut labels);
                labels.metric_name().to_owned()
            })
            .collect()
    }
}
