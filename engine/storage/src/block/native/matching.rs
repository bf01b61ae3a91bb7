//! Which rows pass matchers, and which names and values rows have.
//!
//! A matcher is evaluated once per distinct value of its label and becomes sets of labels; a label stands in at most one
//! of the two sets of a row. With a missing label counting as empty:
//! - a matcher that the empty string fails *demands* that one of a row's sets is among those whose value passes;
//! - a matcher that the empty string passes *bars* the rows of which one set has a value that fails.
use metricsstore_model::{MatchOp, Matcher};
use roaring::RoaringBitmap;

use super::NativeBlock;
use super::dictionary::Name;
use super::directory::Directory;
use super::interner::RowSets;
use super::labels::{ROWS_PER_PAGE, RowPage, Span};
use crate::StorageError;

/// All matchers, as sets of labels.
#[derive(Default)]
struct Conditions {
    demanded: Vec<RoaringBitmap>,
    barred: RoaringBitmap,
}

impl Conditions {
    fn pass(&self, sets: RowSets) -> bool {
        self.demanded.iter().all(|demanded| demanded.contains(sets.place) || demanded.contains(sets.rest))
            && !self.barred.contains(sets.place)
            && !self.barred.contains(sets.rest)
    }

    /// Whether a page can have rows that pass.
    fn may_pass(&self, page: &RowPage) -> bool {
        let meets = |sets: &RoaringBitmap, span: Span| sets.range_cardinality(span.min..=span.max) > 0;
        self.demanded.iter().all(|demanded| meets(demanded, page.places) || meets(demanded, page.rests))
    }
}

impl NativeBlock {
    pub(super) fn matching_rows(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError> {
        let (mut conditions, mut rows) = (Conditions::default(), RoaringBitmap::new());
        let mut names = None;
        for matcher in matchers {
            let demands = !matcher.matches_empty();
            let sets = self.sets_for(matcher, demands, &mut names)?;
            if !demands {
                conditions.barred |= sets;
            } else if sets.is_empty() {
                return Ok(rows);
            } else {
                conditions.demanded.push(sets);
            }
        }
        let series = self.directory.meta.series as u32;
        if conditions.demanded.is_empty() && conditions.barred.is_empty() {
            rows.insert_range(0..series);
            return Ok(rows);
        }
        for (page, first) in self.directory.rows.iter().zip((0..series).step_by(ROWS_PER_PAGE as usize)) {
            if conditions.may_pass(page) {
                let of_page = first..(first + ROWS_PER_PAGE).min(series);
                self.visit_rows(of_page, |row, sets| {
                    if conditions.pass(sets) {
                        rows.insert(row);
                    }
                })?;
            }
        }
        Ok(rows)
    }

    /// The sets with a value that decides a matcher: one that passes when it demands, one that fails when it bars.
    fn sets_for(
        &self,
        matcher: &Matcher,
        demands: bool,
        names: &mut Option<Vec<Name>>,
    ) -> Result<RoaringBitmap, StorageError> {
        let Directory { dictionary, sets, .. } = &self.directory;
        let (mut pairs, mut found) = (Vec::new(), RoaringBitmap::new());
        if let Some(words) = listed(matcher, demands) {
            for word in words.into_iter().filter(|word| !word.is_empty()) {
                pairs.extend(dictionary.find(&matcher.name, word, &self.source)?);
            }
        } else {
            let names = match names {
                Some(names) => names,
                None => names.insert(dictionary.names(&self.source)?),
            };
            if let Some(name) = names.iter().find(|name| *name.name == *matcher.name) {
                dictionary.visit(name.pairs.clone(), &self.source, |pair, value| {
                    if matcher.matches(value) == demands {
                        pairs.push(pair);
                    }
                })?;
            }
        }
        for pair in pairs {
            sets.add_sets_of(pair, &mut found, &self.source)?;
        }
        Ok(found)
    }

    pub(super) fn names_in(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        let names = self.directory.dictionary.names(&self.source)?;
        let pairs = rows.map(|rows| self.pairs_of(rows)).transpose()?;
        let is_in = |name: &Name| {
            let of_name = |pairs: &RoaringBitmap| pairs.range_cardinality(name.pairs.clone()) > 0;
            pairs.as_ref().is_none_or(of_name)
        };
        let mut names: Vec<String> = names.into_iter().filter(is_in).map(|name| name.name).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn values_in(
        &self,
        name: &str,
        rows: Option<&RoaringBitmap>,
    ) -> Result<Vec<String>, StorageError> {
        let dictionary = &self.directory.dictionary;
        let names = dictionary.names(&self.source)?;
        let Some(name) = names.into_iter().find(|found| found.name == name) else { return Ok(Vec::new()) };
        let pairs = rows.map(|rows| self.pairs_of(rows)).transpose()?;
        let mut values = Vec::new();
        dictionary.visit(name.pairs, &self.source, |pair, value| {
            if pairs.as_ref().is_none_or(|pairs| pairs.contains(pair)) {
                values.push(value.to_owned());
            }
        })?;
        Ok(values)
    }

    /// All label pairs that these rows have.
    fn pairs_of(&self, rows: &RoaringBitmap) -> Result<RoaringBitmap, StorageError> {
        let (mut sets, mut pairs) = (RoaringBitmap::new(), RoaringBitmap::new());
        self.visit_rows(rows.iter(), |_, of_row| {
            sets.insert(of_row.place);
            sets.insert(of_row.rest);
        })?;
        for set in sets {
            pairs.extend(self.directory.sets.set(set, &self.source)?.pairs);
        }
        Ok(pairs)
    }
}

/// The values that decide a matcher, where they can be listed.
fn listed(matcher: &Matcher, demands: bool) -> Option<Vec<&str>> {
    match matcher.op {
        MatchOp::NotEqual if !demands => Some(vec![&matcher.value]),
        _ if demands => matcher.words(),
        _ => None,
    }
}
