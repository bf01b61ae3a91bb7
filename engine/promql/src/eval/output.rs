//! Rows of an evaluation to a result.
use crate::ast::Expr;
use crate::value::{LabelTable, Matrix, Point, Value, Vector};

use super::vectors::{Labels, Vectors, is_absent};
use super::window::Window;
use super::{Evaluated, Evaluation, Query, Steps};

impl Query<'_> {
    pub(super) fn instant_result(&self, expr: &Expr, steps: Steps) -> Evaluation<Value> {
        let t_ms = steps.start_ms;
        match self.eval(expr, steps)? {
            Evaluated::Scalar(values) => {
                Ok(Value::Scalar(Point { t_ms, value: values.first().copied().unwrap_or(f64::NAN) }))
            }
            Evaluated::Text(text) => Ok(Value::String { t_ms, text }),
            Evaluated::Vector(vectors) => {
                let vectors = vectors.drop_marked_names()?.merge_same_labels()?.without_empty_rows();
                self.account.keep_bytes((vectors.len() * size_of::<Point>()) as u64)?;
                let table = vectors.labels.edited(&self.account, |_, _| {})?;
                self.account.keep_bytes(table.sets().bytes() as u64)?;
                let labels = table.into_sets();
                let points = vectors.values.iter().map(|&value| Point { t_ms, value }).collect();
                Ok(Value::Vector(Vector { labels, points }))
            }
        }
    }

    pub(super) fn steps_result(&self, expr: &Expr, steps: Steps) -> Evaluation<Value> {
        let vectors = match self.eval(expr, steps)? {
            Evaluated::Scalar(values) => {
                let mut table = LabelTable::default();
                table.push([]);
                let points = steps.times().zip(values).map(|(t_ms, value)| Point { t_ms, value }).collect();
                return Ok(Value::Matrix(Matrix { labels: table, points, ends: vec![steps.count] }));
            }
            Evaluated::Text(_) => return Err(super::type_mismatch(expr)),
            Evaluated::Vector(vectors) => vectors.drop_marked_names()?.merge_same_labels()?,
        };
        self.matrix(&vectors, steps)
    }

    fn matrix(&self, vectors: &Vectors, steps: Steps) -> Evaluation<Value> {
        let count = vectors.values.iter().filter(|value| !is_absent(**value)).count();
        self.sorted_matrix(&vectors.labels, count, |row, points| {
            let cells = vectors.row(row).iter().enumerate().filter(|(_, value)| !is_absent(**value));
            points.extend(cells.map(|(step, &value)| Point { t_ms: steps.time(step), value }));
        })
    }

    /// The samples of a range vector as they are.
    pub(super) fn range_result(&self, expr: &Expr, steps: Steps) -> Evaluation<Value> {
        let mut points: Vec<Point> = Vec::new();
        let mut windows = Vec::new();
        let mut held = self.scratch(0)?;
        let mut failure = None;
        let vectors = self.over_windows(expr, steps, &mut |window: &Window<'_>| {
            let count = window.values.len() as u64;
            let room = held.grow(count * size_of::<Point>() as u64).and_then(|()| held.add_samples(count));
            if let Err(error) = room {
                failure.get_or_insert(error);
                return None;
            }
            let start = points.len();
            let samples = window.times.iter().zip(window.values);
            points.extend(samples.map(|(&t_ms, &value)| Point { t_ms, value }));
            windows.push(start..points.len());
            Some((windows.len() - 1) as f64)
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        let vectors = vectors.drop_marked_names()?;
        self.sorted_matrix(&vectors.labels, points.len(), |row, into| {
            let window = vectors.row(row).first().and_then(|window| windows.get(*window as usize));
            into.extend_from_slice(window.map_or(&[][..], |window| &points[window.clone()]));
        })
    }

    /// Rows with points, sorted by their labels; `append` adds the points of a row.
    fn sorted_matrix(
        &self,
        labels: &Labels,
        count: usize,
        append: impl Fn(usize, &mut Vec<Point>),
    ) -> Evaluation<Value> {
        let table = labels.edited(&self.account, |_, _| {})?;
        let sets = table.sets();
        let mut order: Vec<usize> = (0..sets.len()).collect();
        order.sort_by(|&a, &b| sets.pairs(a).cmp(sets.pairs(b)));
        self.account.keep_bytes((sets.bytes() + count * size_of::<Point>()) as u64)?;
        let mut matrix = Matrix { points: Vec::with_capacity(count), ..Matrix::default() };
        for row in order {
            let before = matrix.points.len();
            append(row, &mut matrix.points);
            if matrix.points.len() > before {
                matrix.labels.push(sets.pairs(row));
                matrix.ends.push(matrix.points.len());
            }
        }
        Ok(Value::Matrix(matrix))
    }
}
