//! Who the series are: labels to ids and back, in a few bytes per series.
//!
//! A series is a *group* (the labels that all series of one place share) and a *residual* (the others, the metric's
//! name among them). Both are rows of one small table of label sets, so the table of series needs two numbers each,
//! postings go from label pairs to rows instead of series, and matchers are decided on rows. How a label set is
//! split ([`split`]) is a representation only: lookup goes by the whole set.
//!
//! Tables ([`tables`]) only grow. Writers are serialised and hold the tables for about a thousand new series at a
//! time; readers hold them for one evaluation. Removal builds the next generation beside the old one, which its
//! readers keep until they are done.
//!
//! Locks are taken in this order: `writer`, then the tables, then `recent` or `cache`.
mod definitions;
pub(crate) mod id_table;
mod listing;
mod load;
mod ordered;
mod orders;
mod pairs;
mod posting;
mod raw_cache;
mod removal;
mod row_set;
mod rows;
mod select;
mod series;
mod split;
pub(crate) mod symbols;
mod tables;
#[cfg(test)]
mod tests;
mod tight;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use metricsstore_budget::{Budget, Level, Part};
use metricsstore_model::read::{Limited, SeriesLabels, SeriesRef};
use metricsstore_model::{Batch, LabelBuf, LabelError, Matcher, Refusal};
use roaring::RoaringBitmap;

use definitions::Record;
use listing::Scope;
use raw_cache::{DROPPED, RawCache};
pub use removal::{Removal, Removed};
use split::Splits;
pub(crate) use split::is_place;
use tables::{MAX_SERIES, PairSet, Tables};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{ArcSwap, Mutex, RwLock};

/// Labels of one series.
const MAX_LABELS: usize = 1024;
/// Bytes of one series' names and values together.
const MAX_LABEL_BYTES: usize = 64 << 10;
/// Unknown rows that are decoded, and created under one lock, at a time.
const ROWS_AT_ONCE: usize = 1024;
/// Raw keys kept beyond two per series (a series may come from two senders).
const SPARE_RAW_KEYS: usize = 1 << 16;

/// A series of this store. Dense, and stable until the series is removed by [`Identity::finish_removal`]; then the number
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
    pub labels: Arc<Labels>,
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
    tables: ArcSwap<RwLock<Tables>>,
    /// Held while series are created or removed.
    writer: Mutex<Splits>,
    cache: RwLock<RawCache>,
    recent: Mutex<Recent>,
    next_order: AtomicU64,
    /// Bytes counted for tables that are being built beside the present ones.
    aside: Arc<AtomicU64>,
}

/// Ids of the latest series in creation order, kept until they are encoded.
#[derive(Default)]
struct Recent {
    /// Order of the first.
    base: u64,
    ids: VecDeque<u32>,
}

/// A row whose key is unknown, decoded.
struct Unknown {
    row: u32,
    labels: LabelBuf,
}

/// Labels of one generation.
pub struct Labels(Arc<RwLock<Tables>>);

impl Labels {
    /// The [`fingerprint`](crate::block::series::fingerprint) of each series: labels are decoded once for each row that
    /// some of them share.
    pub(crate) fn fingerprints(&self, series: &[(SeriesId, SeriesRef)]) -> Vec<u128> {
        let mut known: HashMap<u32, u128> = HashMap::new();
        let mut of_group = (u32::MAX, 0);
        let mut fingerprints = Vec::with_capacity(series.len());
        for chunk in series.chunks(ROWS_AT_ONCE) {
            let tables = self.0.read();
            let mut of_row = |row| *known.entry(row).or_insert_with(|| tables.row_fingerprint(row));
            fingerprints.extend(chunk.iter().map(|(_, series)| {
                if of_group.0 != series.group {
                    of_group = (series.group, of_row(series.group));
                }
                of_group.1.wrapping_add(of_row(series.residual))
            }));
        }
        fingerprints
    }
}

impl SeriesLabels for Labels {
    fn push_group(&self, group: u32, labels: &mut LabelBuf) {
        self.0.read().row_labels(group).for_each(|(name, value)| labels.push(name, value));
    }

    fn push_residual(&self, residual: u32, labels: &mut LabelBuf) {
        self.push_group(residual, labels);
    }

    fn labels(&self, series: SeriesRef, labels: &mut LabelBuf) {
        self.0.read().labels([series.group, series.residual], labels);
    }
}

impl Identity {
    /// No series; bytes are counted in `budget` (this is the only writer of the parts symbols, identity, postings
    /// and raw cache).
    pub fn new(budget: Budget) -> Identity {
        let seed = DefaultHashBuilder::default().hash_one("seed");
        Identity {
            budget,
            tables: ArcSwap::from_pointee(RwLock::new(Tables::new(seed))),
            writer: Mutex::default(),
            cache: RwLock::default(),
            recent: Mutex::default(),
            next_order: AtomicU64::new(0),
            aside: Arc::default(),
        }
    }

    /// Finds or creates the series of every row of `batch`: `out` (cleared first) gets one entry per row. Known raw
    /// keys cost one hash lookup each under one shared lock; only the others are decoded. With `admit_new` false,
    /// rows that would create a series get [`Refusal::SeriesBudget`].
    pub fn resolve(&self, batch: &Batch<'_>, admit_new: bool, out: &mut Vec<Result<Resolved, Refusal>>) {
        out.clear();
        let mut unknown = Vec::new();
        {
            let cache = self.cache.read();
            for (index, row) in batch.rows.iter().enumerate() {
                let found = cache.get(row.key);
                unknown.extend(found.is_none().then_some(index as u32));
                out.push(found.map(Resolved::known).ok_or(Refusal::SeriesBudget));
            }
        }
        for rows in unknown.chunks(ROWS_AT_ONCE) {
            self.resolve_unknown(batch, rows, admit_new, out);
        }
    }

    /// Decodes rows whose keys are unknown, then finds or creates their series and notes the keys.
    fn resolve_unknown(
        &self,
        batch: &Batch<'_>,
        rows: &[u32],
        admit_new: bool,
        out: &mut [Result<Resolved, Refusal>],
    ) {
        let mut unknown = Vec::with_capacity(rows.len());
        for &row in rows {
            let mut labels = LabelBuf::new();
            let decoded = batch.decoder.decode(batch.rows[row as usize].raw_labels, &mut labels);
            let checked =
                decoded.and_then(|kept| if kept { check(&mut labels).map(|()| true) } else { Ok(false) });
            match checked {
                Ok(true) => unknown.push(Unknown { row, labels }),
                Ok(false) => out[row as usize] = Ok(Resolved::Dropped),
                Err(error) => out[row as usize] = Err(Refusal::Labels(error)),
            }
        }
        let mut splits = self.writer.lock();
        self.find(&mut unknown, out);
        if admit_new && !unknown.is_empty() {
            splits.learn(unknown.iter().map(|unknown| &unknown.labels));
            self.create(&splits, &unknown, out);
        }
        let bound = self.len() * 2 + SPARE_RAW_KEYS;
        let mut cache = self.cache.write();
        for &row in rows {
            if let Ok(resolved) = &out[row as usize] {
                cache.insert(batch.rows[row as usize].key, resolved.to_cache(), bound, |bytes| {
                    let then = self.budget.counted() + bytes as u64;
                    Level::Normal.next(then, self.budget.limit()) < Level::SealEarly
                });
            }
        }
        drop(cache);
        self.account();
    }

    /// Answers the rows whose labels are those of a series and leaves the others in `unknown`.
    fn find(&self, unknown: &mut Vec<Unknown>, out: &mut [Result<Resolved, Refusal>]) {
        let tables = self.tables.load();
        let tables = tables.read();
        let mut scratch = PairSet::default();
        unknown.retain(|unknown| {
            let found = tables.find(&unknown.labels, &mut scratch);
            out[unknown.row as usize] = found.map(Resolved::known).ok_or(Refusal::SeriesBudget);
            found.is_none()
        });
    }

    fn create(&self, splits: &Splits, unknown: &[Unknown], out: &mut [Result<Resolved, Refusal>]) {
        let tables = self.tables.load();
        let mut tables = tables.write();
        let mut recent = self.recent.lock();
        let mut scratch = PairSet::default();
        let mut in_group = Vec::new();
        let mut order = self.next_order.load(Ordering::Relaxed);
        for Unknown { row, labels } in unknown {
            if !tables.has_room(MAX_LABEL_BYTES, labels.len()) {
                continue;
            }
            let rule = splits.rule(labels);
            in_group.clear();
            in_group.extend(
                labels
                    .iter()
                    .map(|(name, _)| is_place(name) || rule.is_some_and(|rule| rule.has_learned(name))),
            );
            let rows = [true, false].map(|wanted| {
                let side = labels.iter().zip(&in_group).filter(|&(_, &in_group)| in_group == wanted);
                tables.intern_labels(side.map(|(label, _)| label), &mut scratch)
            });
            let next_id = tables.series.next_id();
            // An earlier row of the batch may have the same labels in other bytes.
            let (id, new) = tables.intern_series(rows, next_id, order, &mut scratch);
            if new {
                order += 1;
                recent.ids.push_back(id);
            }
            out[*row as usize] =
                Ok(if new { Resolved::Created(SeriesId(id)) } else { Resolved::Known(SeriesId(id)) });
        }
        self.next_order.store(order, Ordering::Release);
    }

    /// The series that pass all matchers (every series when there is none).
    pub fn select(&self, matchers: &[Matcher]) -> Selected {
        let tables = self.tables.load_full();
        Selected { series: select::select(&tables, matchers), labels: Arc::new(Labels(tables)) }
    }

    /// Creation order of a series, and its rows as of now: they change when series are removed.
    pub fn series_ref(&self, id: SeriesId) -> Option<SeriesRef> {
        let tables = self.tables.load();
        let tables = tables.read();
        tables.series.get(id.0).map(|rows| tables.series_ref(id.0, rows))
    }

    /// Sorted label names of the series that pass one of the matcher lists (all when there is none) and are in
    /// `within` (a set of series ids; `None`: every series).
    pub fn label_names(
        &self,
        any_of: &[Vec<Matcher>],
        within: Option<&RoaringBitmap>,
        limit: usize,
    ) -> Limited<String> {
        listing::names(&self.tables.load_full(), Scope { any_of, within }, limit)
    }

    /// Sorted values of one label, of series chosen likewise.
    pub fn label_values(
        &self,
        name: &str,
        any_of: &[Vec<Matcher>],
        within: Option<&RoaringBitmap>,
        limit: usize,
    ) -> Limited<String> {
        listing::values(&self.tables.load_full(), name, Scope { any_of, within }, limit)
    }

    /// Label sets of series chosen likewise, in Prometheus' order.
    pub fn series(
        &self,
        any_of: &[Vec<Matcher>],
        within: Option<&RoaringBitmap>,
        limit: usize,
    ) -> Limited<LabelBuf> {
        listing::label_sets(&self.tables.load_full(), Scope { any_of, within }, limit)
    }

    /// Number of series.
    pub fn len(&self) -> usize {
        self.tables.load().read().series.len()
    }

    /// The creation order that the next new series gets: a mark for [`Identity::encode_definitions`] and
    /// [`Identity::prepare_removal`].
    pub fn next_order(&self) -> u64 {
        self.next_order.load(Ordering::Acquire)
    }

    /// Appends to `out` one self-contained record that defines the series created since the mark `from`, at most
    /// `max_series`, and returns the mark to go on with; nothing is appended when it equals `from`. All live series:
    /// start at 0 and repeat until the mark reaches [`Identity::next_order`].
    ///
    /// Call it before the log takes a batch that [`Identity::resolve`] returned, under the log's own lock: then every
    /// id in the log is defined before it is used, whichever batch created it. Cheap when nothing is new.
    pub fn encode_definitions(&self, from: u64, max_series: usize, out: &mut Vec<u8>) -> u64 {
        let next = self.next_order();
        if from >= next || max_series == 0 {
            return from;
        }
        let recent = self.recent.lock().since(from, max_series);
        let tables = self.tables.load();
        let tables = tables.read();
        let (series, mark) = recent.unwrap_or_else(|| tables.created_in(from..next, max_series));
        definitions::encode(&tables, &series, out);
        mark
    }

    /// Applies one record and returns the number of series that it added. Records may overlap. Of two series with
    /// one id, or of two ids with one label set, the later creation order stays. For start-up, before any batch.
    pub fn load_definitions(&self, record: &[u8]) -> Result<usize, DefinitionError> {
        let record = Record::decode(record)?;
        let _writer = self.writer.lock();
        let mut tables = self.tables.load_full();
        let (add, superseded) = tables.read().judge(&record)?;
        if !superseded.is_empty() {
            let next = tables.read().without(superseded);
            self.cache.write().retain(|id| next.series.get(id).is_some());
            tables = Arc::new(RwLock::new(next));
            self.tables.store(Arc::clone(&tables));
        }
        let added = tables.write().add(&record, &add)?;
        let next_order =
            add.iter().map(|definition| definition.order + 1).max().unwrap_or(0).max(self.next_order());
        // What was loaded is in the log already.
        *self.recent.lock() = Recent { base: next_order, ids: VecDeque::new() };
        self.next_order.store(next_order, Ordering::Release);
        self.account();
        Ok(added)
    }

    /// Makes room at once for as many series and label sets as will be loaded, counted as [`Identity::counts`] does.
    pub(crate) fn expect(&self, [series, rows]: [usize; 2]) {
        let tables = self.tables.load();
        let mut tables = tables.write();
        let Tables { rows: row_table, series: table, .. } = &mut *tables;
        row_table.reserve(rows.min(2 * MAX_SERIES as usize));
        table.reserve(row_table, series.min(MAX_SERIES as usize));
    }

    /// Gives back what [`Identity::expect`] took too much.
    pub(crate) fn fit(&self) {
        let tables = self.tables.load();
        let mut tables = tables.write();
        let Tables { rows, series, .. } = &mut *tables;
        rows.fit();
        series.fit(rows);
        drop(tables);
        self.account();
    }

    /// Numbers of series and of the label sets that they share.
    pub(crate) fn counts(&self) -> [usize; 2] {
        let tables = self.tables.load();
        let tables = tables.read();
        [tables.series.len(), tables.rows.len()]
    }

    /// Forgets raw keys, which only save time: a known series is then found by its labels.
    pub fn shed_raw_keys(&self) {
        self.cache.write().clear();
        self.account();
    }

    /// The same for the keys of series that are not in `kept`, once there are so many new keys that it pays: series
    /// end, and their keys would stay as long as their samples.
    pub fn forget_raw_keys_but(&self, kept: &RoaringBitmap) {
        if !self.cache.read().has_grown() {
            return;
        }
        let mut is_kept = vec![0u64; kept.max().map_or(0, |id| id as usize / 64 + 1)];
        kept.iter().for_each(|id| is_kept[id as usize / 64] |= 1 << (id % 64));
        let bit = |id: u32| is_kept.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1);
        self.cache.write().retain(bit);
        self.account();
    }

    /// Bytes in use.
    pub fn footprint(&self) -> Footprint {
        let tables = self.tables.load();
        let tables = tables.read();
        let recent = self.recent.lock().ids.capacity() * size_of::<u32>();
        Footprint {
            symbols: tables.symbols.bytes() as u64,
            identity: (tables.identity_bytes() + recent) as u64,
            postings: tables.pairs.bytes() as u64,
            raw_cache: self.cache.read().bytes() as u64,
        }
    }

    fn account(&self) {
        let footprint = self.footprint();
        self.budget.set(Part::Symbols, footprint.symbols);
        self.budget.set(Part::Identity, footprint.identity + self.aside.load(Ordering::Relaxed));
        self.budget.set(Part::Postings, footprint.postings);
        self.budget.set(Part::RawCache, footprint.raw_cache);
    }
}

impl Resolved {
    fn known(cached: u32) -> Resolved {
        if cached == DROPPED { Resolved::Dropped } else { Resolved::Known(SeriesId(cached)) }
    }

    fn to_cache(self) -> u32 {
        match self {
            Resolved::Known(id) | Resolved::Created(id) => id.0,
            Resolved::Dropped => DROPPED,
        }
    }
}

impl Recent {
    /// Ids and orders from `from` on, and the mark after them; `None` when they go further back than this list.
    /// Earlier ones are forgotten.
    fn since(&mut self, from: u64, max_series: usize) -> Option<(Vec<(u32, u64)>, u64)> {
        let before = usize::try_from(from.checked_sub(self.base)?).ok()?;
        self.ids.drain(..before.min(self.ids.len()));
        self.base = from;
        if self.ids.capacity() > 4 * self.ids.len() + 4 * ROWS_AT_ONCE {
            self.ids.shrink_to(2 * self.ids.len() + ROWS_AT_ONCE);
        }
        let series: Vec<(u32, u64)> = self.ids.iter().copied().zip(from..).take(max_series).collect();
        let mark = from + series.len() as u64;
        Some((series, mark))
    }
}

/// Brings a decoded label set into its canonical form, or says why it does not form a series.
fn check(labels: &mut LabelBuf) -> Result<(), LabelError> {
    if labels.iter().any(|(_, value)| value.is_empty()) {
        labels.retain(|_, value| !value.is_empty());
    }
    if !labels.iter().map(|(name, _)| name).is_sorted() {
        labels.sort();
    }
    if let Some(name) = labels.duplicate_name() {
        return Err(LabelError::Duplicate(name.to_owned()));
    }
    match labels.iter().next() {
        None => return Err(LabelError::NoLabels),
        Some(("", _)) => return Err(LabelError::EmptyName),
        Some(_) => {}
    }
    if labels.len() > MAX_LABELS {
        return Err(LabelError::Limit(format!("{} labels, {MAX_LABELS} are accepted", labels.len())));
    }
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_LABEL_BYTES {
        return Err(LabelError::Limit(format!("{bytes} bytes of text, {MAX_LABEL_BYTES} are accepted")));
    }
    Ok(())
}
