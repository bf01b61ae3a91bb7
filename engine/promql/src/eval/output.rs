//! Rows of an evaluation to a result.
use metricsstore_model::LabelBuf;

use crate::ast::Expr;
use crate::error::QueryError;
use crate::value::{LabelTable, Matrix, Point, Value, Vector};

use super::vectors::{Labels, Vectors, is_absent};
use super::window::Window;
use super::{Evaluated, Evaluation, Query, Steps};

/// Memory for labels is reserved in pieces of this many bytes.
const TABLE_PIECE: usize = 64 << 10;

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
                let labels = self.table_of(&vectors.labels, 0..vectors.len())?;
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

    /// Sorted by labels, absent cells and empty rows left out.
    fn matrix(&self, vectors: &Vectors, steps: Steps) -> Evaluation<Value> {
        let mut rows = Rows::default();
        for row in 0..vectors.len() {
            let cells = vectors.row(row).iter().enumerate();
            let points = cells
                .filter(|(_, value)| !is_absent(**value))
                .map(|(step, &value)| Point { t_ms: steps.time(step), value });
            rows.push(row, points);
        }
        self.sorted_matrix(&vectors.labels, &rows)
    }

    /// The samples of a range vector as they are.
    pub(super) fn range_result(&self, expr: &Expr, steps: Steps) -> Evaluation<Value> {
        let mut windows = Vec::new();
        let vectors = self.over_windows(expr, steps, &mut |window: &Window<'_>| {
            let points = window.times.iter().zip(window.values);
            windows.push(points.map(|(&t_ms, &value)| Point { t_ms, value }).collect::<Vec<_>>());
            Some((windows.len() - 1) as f64)
        })?;
        let vectors = vectors.drop_marked_names()?;
        let mut rows = Rows::default();
        for row in 0..vectors.len() {
            let window = vectors.row(row).first().copied().unwrap_or_default() as usize;
            rows.push(row, windows.get_mut(window).map(std::mem::take).unwrap_or_default().into_iter());
        }
        self.sorted_matrix(&vectors.labels, &rows)
    }

    fn sorted_matrix(&self, labels: &Labels, rows: &Rows) -> Evaluation<Value> {
        let table = self.table_of(labels, rows.ends.iter().map(|(row, _)| *row))?;
        let mut order: Vec<usize> = (0..rows.ends.len()).collect();
        order.sort_by(|&a, &b| table.pairs(a).cmp(table.pairs(b)));
        self.account.keep_bytes((table.bytes() + rows.points.len() * size_of::<Point>()) as u64)?;
        let mut matrix = Matrix { points: Vec::with_capacity(rows.points.len()), ..Matrix::default() };
        for index in order {
            let start = if index == 0 { 0 } else { rows.ends[index - 1].1 };
            matrix.labels.push(table.pairs(index));
            matrix.points.extend_from_slice(&rows.points[start..rows.ends[index].1]);
            matrix.ends.push(matrix.points.len());
        }
        Ok(Value::Matrix(matrix))
    }

    /// Label sets as text. Their memory is reserved as they grow, piece by piece.
    fn table_of(&self, labels: &Labels, rows: impl Iterator<Item = usize>) -> Evaluation<LabelTable> {
        let mut table = LabelTable::default();
        let mut buffer = LabelBuf::new();
        let mut reserved = 0;
        for row in rows {
            labels.get(row, &mut buffer);
            table.push(buffer.iter());
            if table.bytes() > reserved {
                self.account.keep_bytes(TABLE_PIECE as u64)?;
                self.check_interrupt()?;
                reserved += TABLE_PIECE;
            }
            if reserved > LabelTable::MAX_BYTES {
                return Err(QueryError::Execution(
                    "labels of the result exceed 4 GiB; select fewer series".into(),
                ));
            }
        }
        Ok(table)
    }
}

/// Points of the rows that have any, and where each row's points end.
#[derive(Default)]
struct Rows {
    points: Vec<Point>,
    ends: Vec<(usize, usize)>,
}

impl Rows {
    fn push(&mut self, row: usize, points: impl Iterator<Item = Point>) {
        let before = self.points.len();
        self.points.extend(points);
        if self.points.len() > before {
            self.ends.push((row, self.points.len()));
        }
    }
}
