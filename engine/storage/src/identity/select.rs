//! Which series pass a list of matchers.
//!
//! A matcher is evaluated once per distinct value of its label, and becomes a set of rows. A label stands in at most
//! one of a series' two rows, so with a missing label counting as empty:
//! - a matcher that the empty string fails *demands* that group or residual is among the rows whose value passes;
//! - a matcher that the empty string passes *bars* the series whose group or residual has a value that fails.
use metricsstore_model::read::SeriesRef;
use metricsstore_model::{MatchOp, Matcher};

use super::SeriesId;
use super::row_set::RowSet;
use super::tables::Tables;
use crate::sync::RwLock;

/// Values that are matched in one read section, so that an expensive pattern does not keep writers waiting.
const VALUES_AT_ONCE: usize = 1024;

/// A matcher as pairs.
struct Condition {
    demands: bool,
    pairs: Vec<u32>,
}

/// The series that pass all matchers, ascending by id.
pub(super) fn select(tables: &RwLock<Tables>, matchers: &[Matcher]) -> Vec<(SeriesId, SeriesRef)> {
    let mut conditions = Vec::with_capacity(matchers.len());
    for matcher in matchers {
        let condition = evaluate(tables, matcher);
        if condition.demands && condition.pairs.is_empty() {
            return Vec::new();
        }
        conditions.push(condition);
    }
    let tables = tables.read();
    let mut ids = Sieve::new(&tables, &conditions).ids();
    ids.sort_unstable_by_key(|&(id, _)| id);
    let mut order_of = tables.series.orders.ascending();
    ids.into_iter()
        .map(|(id, [group, residual])| (SeriesId(id), SeriesRef { order: order_of(id), group, residual }))
        .collect()
}

fn evaluate(tables: &RwLock<Tables>, matcher: &Matcher) -> Condition {
    let demands = !matcher.matches_empty();
    if let Some(words) = listed(matcher, demands) {
        let tables = tables.read();
        let pairs = words
            .into_iter()
            .filter(|word| !word.is_empty())
            .filter_map(|word| tables.pairs.find(&tables.symbols, &matcher.name, word))
            .collect();
        return Condition { demands, pairs };
    }
    let candidates = {
        let tables = tables.read();
        let name = tables.symbols.find(&matcher.name);
        name.map(|name| tables.pairs.of_name(name).to_vec()).unwrap_or_default()
    };
    let mut pairs = Vec::new();
    for chunk in candidates.chunks(VALUES_AT_ONCE) {
        let tables = tables.read();
        let value = |pair: u32| tables.symbols.get(tables.pairs.get(pair).1);
        pairs.extend(chunk.iter().copied().filter(|&pair| matcher.matches(value(pair)) == demands));
    }
    Condition { demands, pairs }
}

/// The values that decide a matcher, where they can be listed: those that pass when it demands, those that fail when
/// it bars.
fn listed(matcher: &Matcher, demands: bool) -> Option<Vec<&str>> {
    match matcher.op {
        MatchOp::NotEqual if !demands => Some(vec![&matcher.value]),
        _ if demands => matcher.words(),
        _ => None,
    }
}

/// All conditions as sets of rows.
struct Sieve<'t> {
    tables: &'t Tables,
    demanded: Vec<RowSet>,
    barred: Option<RowSet>,
}

impl<'t> Sieve<'t> {
    fn new(tables: &'t Tables, conditions: &[Condition]) -> Sieve<'t> {
        let mut sieve = Sieve { tables, demanded: Vec::new(), barred: None };
        for condition in conditions {
            let mut own = condition.demands.then(|| RowSet::new(tables.rows.len()));
            let set = match &mut own {
                Some(own) => own,
                None => sieve.barred.get_or_insert_with(|| RowSet::new(tables.rows.len())),
            };
            let postings = condition.pairs.iter().filter_map(|&pair| tables.pairs.rows(pair));
            postings.for_each(|rows| rows.add_to(set));
            sieve.demanded.extend(own);
        }
        sieve
    }

    fn passes(&self, [group, residual]: [u32; 2]) -> bool {
        self.demanded.iter().all(|set| set.contains(group) || set.contains(residual))
            && self.barred.as_ref().is_none_or(|set| !set.contains(group) && !set.contains(residual))
    }

    /// The series that pass, in any order, each once: by way of the rows of the most selective demand, or by a scan
    /// of the table when even that covers much of it.
    fn ids(&self) -> Vec<(u32, [u32; 2])> {
        let Tables { rows, series, .. } = self.tables;
        let cost = |set: &RowSet| set.iter().map(|row| u64::from(rows.series(row))).sum::<u64>();
        match self.demanded.iter().map(|set| (cost(set), set)).min_by_key(|&(cost, _)| cost) {
            Some((cost, set)) if cost < series.len() as u64 / 4 => {
                let mut found = Vec::new();
                for row in set.iter() {
                    series.visit_row(rows, row, |id| {
                        found.extend(series.get(id).filter(|&rows| self.passes(rows)).map(|rows| (id, rows)));
                    });
                }
                found
            }
            _ => series.iter().filter(|&(_, rows)| self.passes(rows)).collect(),
        }
    }
}
