//! Several columns of one series as one.
use metricsstore_model::histogram::{Histogram, ResetHint};

use super::{HistogramColumn, Kind, KindColumn, StartColumn, decode_histograms, decode_starts};

/// Histograms by ascending time.
pub(crate) type Merged = Vec<(i64, Histogram)>;

/// One histogram in the order of arrival.
struct Arrived {
    timestamp_ms: i64,
    /// Time of the one that arrived before it.
    after_ms: Option<i64>,
    histogram: Histogram,
}

/// Histograms of columns, older ones first, that `wanted` takes by the column's index and their time. What is known of counter resets holds
/// against the histogram that arrived before: where another one came between, nothing is known
/// (prometheus/prometheus#15358). Says which column is damaged, and how.
pub(crate) fn merged_histograms<'c>(
    columns: impl IntoIterator<Item = &'c KindColumn>,
    wanted: impl Fn(usize, i64) -> bool,
) -> Result<Merged, (usize, &'static str)> {
    let (mut all, mut after_ms): (Vec<Arrived>, Option<i64>) = (Vec::new(), None);
    for (index, column) in columns.into_iter().enumerate() {
        let decoded = decode_histograms(&column.payload, |timestamp_ms, histogram| {
            let before = after_ms.replace(timestamp_ms);
            if wanted(index, timestamp_ms) {
                all.push(Arrived { timestamp_ms, after_ms: before, histogram });
            }
        });
        decoded.map_err(|what| (index, what))?;
    }
    all.sort_by_key(|arrived| arrived.timestamp_ms);
    all.dedup_by_key(|arrived| arrived.timestamp_ms);
    let mut before = None;
    let merged = all.into_iter().map(|arrived| {
        let Arrived { timestamp_ms, after_ms, mut histogram } = arrived;
        let apart = before.is_some() && before != after_ms;
        if apart && histogram.reset_hint != ResetHint::Gauge {
            histogram.reset_hint = ResetHint::Unknown;
        }
        before = Some(timestamp_ms);
        (timestamp_ms, histogram)
    });
    Ok(merged.collect())
}

/// Start timestamps of columns by ascending time of the sample, likewise.
pub(crate) fn merged_starts<'c>(
    columns: impl IntoIterator<Item = &'c KindColumn>,
    wanted: impl Fn(usize, i64) -> bool,
) -> Result<Vec<(i64, i64)>, (usize, &'static str)> {
    let mut all = Vec::new();
    for (index, column) in columns.into_iter().enumerate() {
        let decoded = decode_starts(&column.payload, column.entries, |time, start| {
            if wanted(index, time) {
                all.push((time, start));
            }
        });
        decoded.map_err(|what| (index, what))?;
    }
    all.sort_by_key(|&(time, _)| time);
    all.dedup_by_key(|&mut (time, _)| time);
    Ok(all)
}

/// The columns of one series from several segments as one, of each what is not before `from_ms` of its index; `None`
/// where nothing is left. Every histogram is validated
/// again before it is written (grafana/mimir#16273); one that fails is left out. `damaged` hears of columns that cannot
/// be decoded and of histograms that are left out, by the column's index.
pub(crate) fn merge_kinds(
    kind: Kind,
    mut columns: Vec<KindColumn>,
    from_ms: impl Fn(usize) -> i64,
    mut damaged: impl FnMut(usize, &'static str),
) -> Option<KindColumn> {
    if columns.len() < 2 && columns.first().is_none_or(|column| column.min_ms >= from_ms(0)) {
        return columns.pop();
    }
    let mut places: Vec<usize> = (0..columns.len()).collect();
    loop {
        let parts = places.iter().map(|&place| &columns[place]);
        let is_here = |index: usize, time| time >= from_ms(places[index]);
        let merged = match kind {
            Kind::Histograms => merged_histograms(parts, is_here).map(|merged| {
                let mut column = HistogramColumn::default();
                for (timestamp_ms, histogram) in merged {
                    match histogram.validate() {
                        Ok(()) => column.push(timestamp_ms, &histogram, false),
                        Err(_) => damaged(places[0], "a histogram whose parts contradict each other"),
                    }
                }
                column.column()
            }),
            Kind::Starts => merged_starts(parts, is_here).map(|merged| {
                let mut column = StartColumn::default();
                for (timestamp_ms, start_ms) in merged {
                    column.push(timestamp_ms, start_ms);
                }
                column.column()
            }),
        };
        match merged {
            Ok(column) => return column,
            // It is left out and the others are tried again.
            Err((index, what)) => damaged(places.remove(index), what),
        }
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_model::histogram::{Counts, HistogramCounts};

    use super::*;

    fn histogram(count: u64, reset_hint: ResetHint) -> Histogram {
        let counts = HistogramCounts::Integer(Counts { count, zero: count, ..Counts::default() });
        Histogram { counts, reset_hint, ..Histogram::default() }
    }

    fn column(entries: &[(i64, Histogram)]) -> KindColumn {
        let mut column = HistogramColumn::default();
        for (time, histogram) in entries {
            column.push(*time, histogram, false);
        }
        column.column().unwrap()
    }

    #[test]
    fn hints_hold_only_where_the_histogram_before_is_the_one_they_were_made_against() {
        use ResetHint::{Gauge, NoReset, Unknown};
        let old =
            column(&[(10, histogram(1, Unknown)), (20, histogram(2, NoReset)), (40, histogram(4, NoReset))]);
        let late = column(&[(30, histogram(3, Unknown)), (31, histogram(9, Gauge))]);
        let next = column(&[(50, histogram(5, NoReset))]);
        let merged =
            merge_kinds(Kind::Histograms, vec![old, late, next], |_| i64::MIN, |_, what| panic!("{what}"))
                .unwrap();
        assert_eq!((merged.min_ms, merged.max_ms, merged.entries), (10, 50, 6));
        let mut hints = Vec::new();
        decode_histograms(&merged.payload, |time, histogram| hints.push((time, histogram.reset_hint)))
            .unwrap();
        // The one at 40 was made against that at 20, the one at 50 arrived after that at 31.
        let expected =
            [(10, Unknown), (20, NoReset), (30, Unknown), (31, Gauge), (40, Unknown), (50, Unknown)];
        assert_eq!(hints, expected);
    }

    #[test]
    fn of_one_time_the_first_holds_and_invalid_histograms_are_left_out() {
        let mut invalid = histogram(3, ResetHint::Unknown);
        invalid.schema = 100;
        let first = column(&[(10, histogram(1, ResetHint::Unknown)), (20, invalid)]);
        let second =
            column(&[(10, histogram(7, ResetHint::Unknown)), (30, histogram(8, ResetHint::Unknown))]);
        let mut left_out = 0;
        let merged =
            merge_kinds(Kind::Histograms, vec![first, second], |_| i64::MIN, |_, _| left_out += 1).unwrap();
        let mut decoded = Vec::new();
        decode_histograms(&merged.payload, |time, histogram| decoded.push((time, histogram))).unwrap();
        assert_eq!(decoded, [(10, histogram(1, ResetHint::Unknown)), (30, histogram(8, ResetHint::Unknown))]);
        assert_eq!(left_out, 1);
    }

    #[test]
    fn a_damaged_column_costs_only_itself() {
        let good = column(&[(10, histogram(1, ResetHint::Unknown))]);
        let bad = KindColumn { payload: vec![0, 0xff], ..good.clone() };
        let more = column(&[(20, histogram(2, ResetHint::Unknown))]);
        let mut damaged = Vec::new();
        let merged = merge_kinds(
            Kind::Histograms,
            vec![good, bad, more],
            |_| i64::MIN,
            |index, _| damaged.push(index),
        )
        .unwrap();
        assert_eq!((merged.entries, damaged), (2, vec![1]));
    }
}
