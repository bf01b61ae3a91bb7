//! Which series pass matchers.
use metricsstore_model::{MatchOp, Matcher};
use roaring::RoaringBitmap;

use super::IndexReader;
use crate::StorageError;

impl IndexReader {
    /// Rows of the series that pass all matchers.
    pub(crate) fn matching(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError> {
        // Those that a series without the label does not pass come first: they name series, the others take some away.
        let (mut requiring, mut excluding): (Vec<&Matcher>, Vec<&Matcher>) =
            matchers.iter().partition(|matcher| !matcher.matches_empty());
        requiring.sort_by_key(|matcher| self.lists_of(matcher));
        excluding.sort_by_key(|matcher| self.lists_of(matcher));
        let mut found: Option<RoaringBitmap> = None;
        for matcher in requiring {
            let mut passing = self.passing(matcher)?;
            if let Some(found) = &found {
                passing &= found;
            }
            if passing.is_empty() {
                return Ok(passing);
            }
            found = Some(passing);
        }
        let mut found = match found {
            // A damaged list may name what is no series.
            Some(found) => found & self.references(),
            None => self.references().clone(),
        };
        for matcher in excluding {
            if found.is_empty() {
                break;
            }
            found -= self.failing(matcher)?;
        }
        Ok(self.rows_of(&found))
    }

    /// How many postings lists are to be read for a matcher, at most.
    fn lists_of(&self, matcher: &Matcher) -> usize {
        match matcher.words() {
            Some(words) if !matcher.matches_empty() => words.len(),
            _ => self.values(&matcher.name) as usize,
        }
    }

    /// References of the series that have the label with a value that passes.
    fn passing(&self, matcher: &Matcher) -> Result<RoaringBitmap, StorageError> {
        match matcher.words() {
            Some(words) => self.union(&matcher.name, &words),
            None => self.union_where(&matcher.name, |value| matcher.matches(value)),
        }
    }

    /// References of the series that have the label with a value that does not pass.
    fn failing(&self, matcher: &Matcher) -> Result<RoaringBitmap, StorageError> {
        match matcher.op {
            MatchOp::NotEqual => self.union(&matcher.name, &[&matcher.value]),
            _ => self.union_where(&matcher.name, |value| !matcher.matches(value)),
        }
    }
}
