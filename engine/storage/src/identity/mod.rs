//! Who the series are: symbols, groups, residuals, ids, lookup, postings.
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_model::read::{Limited, SeriesLabels, SeriesRef};
use metricsstore_model::{Batch, LabelBuf, Matcher, RawKey, Refusal};
use roaring::RoaringBitmap;

/// A series of this store. Dense, and stable until the series is removed by [`Identity::retain`]; then the number
/// may be given to another series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub u32);

/// What a row of a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// A series that existed before the row.
    Known(SeriesId),
    /// A series that this row created.
    Created(SeriesId),
    /// Relabelling drops the row.
    Dropped,
}

/// What a select found.
pub struct Selected {
    /// The series, ascending by id.
    pub series: Vec<(SeriesId, SeriesRef)>,
    /// Their labels; stays valid when series are removed afterwards.
    pub labels: Arc<dyn SeriesLabels>,
}

/// Bytes in use, as counted in the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Label names and values.
    pub symbols: u64,
    /// Rows, series and the lookup over them.
    pub identity: u64,
    /// Label pairs and where they occur.
    pub postings: u64,
    /// Raw keys.
    pub raw_cache: u64,
}

/// Definitions that cannot be loaded; nothing of their record was applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The bytes are not what the format says.
    #[error("series definitions are damaged at byte {offset}: {what}")]
    Corrupt {
        /// Offset in the record.
        offset: u64,
        /// What was found.
        what: &'static str,
    },
    /// Written by a later version.
    #[error("series definitions have format version {0}, this engine reads version 1; upgrade the engine")]
    Version(u8),
}

/// The series of a store. All methods take `&self`: creation and removal are serialised inside, readers share short
/// read sections.
pub struct Identity {
    budget: Budget,
}

impl Identity {
    /// No series; bytes are counted in `budget` (this is the only writer of the parts symbols, identity, postings
    /// and raw cache).
    pub fn new(budget: Budget) -> Identity {
        Identity { budget }
    }

    /// The series of a raw key seen before: one hash lookup, no decoding. `None`: only [`Identity::resolve`] knows.
    pub fn lookup_key(&self, _key: RawKey) -> Option<Resolved> {
        None
    }

    /// Finds or creates the series of every row of `batch`: `out` (cleared first) gets one entry per row. Known raw
    /// keys cost one hash lookup each under one shared lock; only the others are decoded. With `admit_new` false,
    /// rows that would create a series get [`Refusal::SeriesBudget`].
    pub fn resolve(&self, _batch: &Batch<'_>, _admit_new: bool, out: &mut Vec<Result<Resolved, Refusal>>) {
        out.clear();
    }

    /// The series that pass all matchers (every series when there is none).
    pub fn select(&self, _matchers: &[Matcher]) -> Selected {
        Selected { series: Vec::new(), labels: self.labels() }
    }

    /// Labels by group and residual, for [`SeriesRef`]s that [`Identity::series_ref`] gives until the next
    /// [`Identity::retain`].
    pub fn labels(&self) -> Arc<dyn SeriesLabels> {
        struct None_;
        impl SeriesLabels for None_ {
            fn push_group(&self, _: u32, _: &mut LabelBuf) {}
            fn push_residual(&self, _: u32, _: &mut LabelBuf) {}
        }
        Arc::new(None_)
    }

    /// Group, residual and creation order of a series.
    pub fn series_ref(&self, _id: SeriesId) -> Option<SeriesRef> {
        None
    }

    /// The label set of a series, sorted; `false` (and nothing in `labels`) when there is no such series.
    pub fn labels_of(&self, _id: SeriesId, labels: &mut LabelBuf) -> bool {
        labels.clear();
        false
    }

    /// Sorted label names of the series that pass one of the matcher lists (all when there is none) and are in
    /// `within` (a set of series ids; `None`: every series).
    pub fn label_names(
        &self,
        _any_of: &[Vec<Matcher>],
        _within: Option<&RoaringBitmap>,
        _limit: usize,
    ) -> Limited<String> {
        Limited { items: Vec::new(), truncated: false }
    }

    /// Sorted values of one label, of series chosen likewise.
    pub fn label_values(
        &self,
        _name: &str,
        _any_of: &[Vec<Matcher>],
        _within: Option<&RoaringBitmap>,
        _limit: usize,
    ) -> Limited<String> {
        Limited { items: Vec::new(), truncated: false }
    }

    /// Label sets of series chosen likewise, in Prometheus' order.
    pub fn series(
        &self,
        _any_of: &[Vec<Matcher>],
        _within: Option<&RoaringBitmap>,
        _limit: usize,
    ) -> Limited<LabelBuf> {
        Limited { items: Vec::new(), truncated: false }
    }

    /// Number of series.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether there is no series.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The creation order that the next new series gets: a mark for [`Identity::encode_definitions`] and
    /// [`Identity::retain`].
    pub fn next_order(&self) -> u64 {
        0
    }

    /// Removes every series that was created before the mark `before` and is not in `live` from symbols, postings,
    /// caches and ids; returns how many. Ids and orders of the others stay; freed ids are given out again.
    ///
    /// The caller says by `live` that the others are gone from everything that names ids (head, log, segments), and
    /// lets no batch stand between [`Identity::resolve`] and its use of ids of such series.
    pub fn retain(&self, _live: &RoaringBitmap, _before: u64) -> usize {
        0
    }

    /// Appends to `out` one self-contained record that defines the series created since the mark `from`, at most
    /// `max_series`, and returns the mark to go on with; nothing is appended when it equals `from`. All live series:
    /// start at 0 and repeat until the mark equals [`Identity::next_order`].
    ///
    /// Call it before the log takes a batch that [`Identity::resolve`] returned, under the log's own lock: then every
    /// id in the log is defined before it is used, whichever batch created it. Cheap when nothing is new.
    pub fn encode_definitions(&self, from: u64, _max_series: usize, _out: &mut Vec<u8>) -> u64 {
        from
    }

    /// Applies one record and returns the number of series that it added. Records may overlap. Of two series with
    /// one id, or of two ids with one label set, the later creation order stays.
    pub fn load_definitions(&self, _record: &[u8]) -> Result<usize, DefinitionError> {
        Ok(0)
    }

    /// Bytes in use.
    pub fn footprint(&self) -> Footprint {
        let _ = &self.budget;
        Footprint::default()
    }
}
