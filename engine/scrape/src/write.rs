//! From a response to the store: what is new, what has vanished, what the scrape reports about itself.
use std::sync::Arc;
use std::time::Instant;

use metricsstore_budget::{Budget, Part};
use metricsstore_ingest::text::{Page, PageOptions, TextLabels};
use metricsstore_model::{
    Acknowledge, Append, Batch, Extras, LabelBuf, LabelDecoder, LabelError, METRIC_NAME, Origin, RawKey,
    RawKeyHasher, Row, Sample, Verdicts, stale_nan,
};

use crate::body::{Body, StoredPage, check_content_type};
use crate::metadata::{Collector, MetadataCache, MetadataList};
use crate::relabel::relabel;
use crate::room::Hold;
use crate::seen::{DROPPED, REFUSED, Seen, TRACKED, rows_of, short};
use crate::stats::Counters;
use crate::target::Target;
use crate::{ScrapeConfig, ScrapeError};

/// Ends the raw bytes of report series, so that no exposed series can have the same.
const REPORT_MARK: u8 = 0xff;

/// What a row takes while its page is written: the row, its sample, its key and flags.
const ROW_BYTES: usize = size_of::<Row<'_>>() + size_of::<Sample>() + size_of::<u64>() + 4;

/// The series that a scrape reports about itself, as raw bytes.
const REPORT_SERIES: [&[u8]; 5] = [
    b"up\xff",
    b"scrape_duration_seconds\xff",
    b"scrape_samples_scraped\xff",
    b"scrape_samples_post_metric_relabeling\xff",
    b"scrape_series_added\xff",
];

/// What is remembered of a target between scrapes.
#[derive(Debug, Default)]
pub(crate) struct TargetState {
    seen: Seen,
    pub(crate) metadata: Arc<MetadataList>,
    has_reported: bool,
    /// Counts the bytes of `seen`.
    held: Option<Held>,
}

/// What a scrape reports.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    scraped: usize,
    after_relabelling: usize,
    added: usize,
}

/// Everything that writing the scrapes of one target needs.
pub(crate) struct Writer<'w> {
    pub(crate) target: &'w Target,
    pub(crate) config: &'w ScrapeConfig,
    pub(crate) hasher: RawKeyHasher,
    pub(crate) append: &'w dyn Append,
    pub(crate) budget: &'w Budget,
    pub(crate) counters: &'w Counters,
    pub(crate) metadata: &'w MetadataCache,
}

/// Bytes that are counted as long as they live.
#[derive(Debug)]
struct Held {
    budget: Budget,
    bytes: u64,
}

impl Held {
    fn new(budget: &Budget, bytes: usize) -> Held {
        budget.add(Part::Ingest, bytes as u64);
        Held { budget: budget.clone(), bytes: bytes as u64 }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.sub(Part::Ingest, self.bytes);
    }
}

impl Writer<'_> {
    /// Writes one scrape, failed or not; returns why it failed.
    pub(crate) fn scrape(
        &self,
        state: &mut TargetState,
        response: Result<(Body, Hold), ScrapeError>,
        timestamp_ms: i64,
        started: Instant,
    ) -> Result<(), ScrapeError> {
        let mut counts = Counts::default();
        let result = response.and_then(|(body, mut hold)| {
            self.write_page(state, &body, &mut hold, timestamp_ms, started, &mut counts)
        });
        let Err(error) = result else { return Ok(()) };
        if let ScrapeError::Append(_) = error {
            return Err(error);
        }
        // A failed scrape ends all series of the target.
        self.end_all(state, timestamp_ms, &report(counts, started, false))?;
        Err(error)
    }

    /// Ends all series of the target, the report's included: it is not scraped any more.
    pub(crate) fn end_of_run(&self, state: &mut TargetState, timestamp_ms: i64) -> Result<(), ScrapeError> {
        if !state.has_reported {
            return Ok(());
        }
        self.end_all(state, timestamp_ms, &[stale_nan(); REPORT_SERIES.len()])
    }

    fn end_all(
        &self,
        state: &mut TargetState,
        timestamp_ms: i64,
        report: &[f64; REPORT_SERIES.len()],
    ) -> Result<(), ScrapeError> {
        let text = state.seen.text();
        let mut rewritten = Vec::new();
        let ended = rows_of(&text, &mut rewritten, self.hasher, state.seen.tracked());
        let mut batch = RowsAndSamples::default();
        batch.push_all(ended, timestamp_ms, stale_nan());
        batch.push_report(self.hasher, timestamp_ms, report);
        self.append(batch)?;
        state.seen.untrack();
        state.held = Some(Held::new(self.budget, state.seen.bytes()));
        state.has_reported = true;
        Ok(())
    }

    fn write_page(
        &self,
        state: &mut TargetState,
        body: &Body,
        hold: &mut Hold,
        timestamp_ms: i64,
        started: Instant,
        counts: &mut Counts,
    ) -> Result<(), ScrapeError> {
        let text = body.text(self.config.body_size_limit, hold)?;
        if !text.is_empty() {
            check_content_type(&body.content_type, self.config)?;
        }
        let options = PageOptions {
            hasher: self.hasher,
            timestamp_ms,
            honor_timestamps: self.config.honor_timestamps,
            expected_rows: state.seen.len(),
        };
        // No row is shorter than a line.
        let lines = text.split(|&byte| byte == b'\n').count();
        hold.grow(lines * ROW_BYTES)?;
        let (mut rewritten, mut collector) = (Vec::new(), Collector::default());
        let page = Page::parse(&text, &mut rewritten, &options, |entry| collector.add(entry))
            .inspect_err(|error| counts.scraped = error.samples as usize)?;
        let mut flags = self.judge(state, &page, counts)?;
        let keys: Vec<u64> = page.rows.iter().map(|row| short(row.key)).collect();

        let vanished = state.seen.vanished(&keys, &flags);
        let old_text = if vanished.is_empty() { Vec::new() } else { state.seen.text() };
        let mut old_rewritten = Vec::new();
        let ended = rows_of(&old_text, &mut old_rewritten, self.hasher, vanished);

        let (mut batch, places) = kept(page, &flags);
        let exposed = batch.rows.len();
        batch.push_all(ended, timestamp_ms, stale_nan());
        batch.push_report(self.hasher, timestamp_ms, &report(*counts, started, true));
        let verdicts = self.append(batch)?;

        for refused in verdicts.refused.iter().filter(|refused| (refused.row as usize) < exposed) {
            self.counters.count_refusal(&refused.refusal);
            if refused.sample.is_none() {
                flags[places.get(refused.row as usize).map_or(refused.row, |&row| row) as usize] = REFUSED;
            }
        }
        self.counters.count_written(verdicts.written);
        state.has_reported = true;
        if !state.seen.is_same(&keys, &flags) {
            state.seen = Seen::new(keys, flags, StoredPage::new(body, &text, hold));
            state.held = Some(Held::new(self.budget, state.seen.bytes()));
        }
        if let Some(metadata) = self.metadata.list(&collector, &state.metadata) {
            state.metadata = metadata;
        }
        Ok(())
    }

    /// Flags of each row. Labels are decoded, relabelled and checked for new rows only; one bad series fails the
    /// scrape.
    fn judge(
        &self,
        state: &TargetState,
        page: &Page<'_>,
        counts: &mut Counts,
    ) -> Result<Vec<u8>, ScrapeError> {
        let mut labels = LabelBuf::new();
        let mut flags = Vec::with_capacity(page.rows.len());
        let sample_limit = match self.config.sample_limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let limits = RelabelledLabels { target: self.target, config: self.config };
        for (row, known) in state.seen.look_up(&page.rows).into_iter().enumerate() {
            counts.scraped = row + 1;
            let is_dropped = match known {
                Some(flags) => flags & DROPPED != 0,
                None => !limits.check(page.rows[row].raw_labels, &mut labels)?,
            };
            if is_dropped {
                flags.push(DROPPED);
                continue;
            }
            counts.after_relabelling += 1;
            if known.is_none() && counts.after_relabelling <= sample_limit {
                counts.added += 1;
            }
            let is_tracked = !page.has_own_timestamp(row) || self.config.track_timestamps_staleness;
            flags.push(if is_tracked { TRACKED } else { 0 });
        }
        if counts.after_relabelling > sample_limit {
            let samples = counts.after_relabelling as u64;
            return Err(ScrapeError::SampleLimit { samples, limit: self.config.sample_limit });
        }
        Ok(flags)
    }

    fn append(&self, batch: RowsAndSamples<'_>) -> Result<Verdicts, ScrapeError> {
        let decoder = RelabelledLabels { target: self.target, config: self.config };
        let batch = Batch {
            origin: Origin::Scrape(self.target.id),
            decoder: &decoder,
            rows: batch.rows,
            samples: batch.samples,
            extras: Extras::default(),
        };
        Ok(self.append.append(&batch, Acknowledge::Written)?)
    }
}

/// Makes the keys of a target's rows: all that decides what the raw bytes decode to is in the salt.
pub(crate) fn hasher(process_key: u64, target: &Target, config: &ScrapeConfig) -> RawKeyHasher {
    let rules = &config.metric_relabel_configs;
    let salt = format!("text {} {} {rules:?}", config.honor_labels, target.labels);
    RawKeyHasher::new(process_key, salt.as_bytes())
}

/// Values of the report series, in their order.
fn report(counts: Counts, started: Instant, is_up: bool) -> [f64; REPORT_SERIES.len()] {
    [
        f64::from(u8::from(is_up)),
        started.elapsed().as_secs_f64(),
        counts.scraped as f64,
        counts.after_relabelling as f64,
        counts.added as f64,
    ]
}

#[derive(Default)]
struct RowsAndSamples<'b> {
    rows: Vec<Row<'b>>,
    samples: Vec<Sample>,
}

impl<'b> RowsAndSamples<'b> {
    fn push(&mut self, raw_labels: &'b [u8], key: RawKey, sample: Sample) {
        let at = self.samples.len() as u32;
        self.samples.push(sample);
        self.rows.push(Row { raw_labels, key, samples: at..at + 1 });
    }

    fn push_all(&mut self, rows: Vec<Row<'b>>, timestamp_ms: i64, value: f64) {
        for row in rows {
            self.push(row.raw_labels, row.key, Sample { timestamp_ms, value });
        }
    }

    fn push_report(&mut self, hasher: RawKeyHasher, timestamp_ms: i64, values: &[f64; REPORT_SERIES.len()]) {
        for (raw_labels, &value) in REPORT_SERIES.into_iter().zip(values) {
            self.push(raw_labels, hasher.key(raw_labels), Sample { timestamp_ms, value });
        }
    }
}

/// Rows that relabelling keeps, and the place in the page of each (empty when all are kept).
fn kept<'p>(page: Page<'p>, flags: &[u8]) -> (RowsAndSamples<'p>, Vec<u32>) {
    if flags.iter().all(|flags| flags & DROPPED == 0) {
        return (RowsAndSamples { rows: page.rows, samples: page.samples }, Vec::new());
    }
    let (mut batch, mut places) = (RowsAndSamples::default(), Vec::new());
    for (place, (row, sample)) in page.rows.into_iter().zip(page.samples).enumerate() {
        if flags[place] & DROPPED == 0 {
            batch.push(row.raw_labels, row.key, sample);
            places.push(place as u32);
        }
    }
    (batch, places)
}

/// Decodes exposed rows with relabelling, and report rows without.
struct RelabelledLabels<'w> {
    target: &'w Target,
    config: &'w ScrapeConfig,
}

impl LabelDecoder for RelabelledLabels<'_> {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        if let Some((&REPORT_MARK, name)) = raw_labels.split_last() {
            labels.clear();
            labels.push(METRIC_NAME, std::str::from_utf8(name).unwrap_or_default());
            for (name, value) in self.target.labels.iter() {
                labels.push(name, value);
            }
            return Ok(true);
        }
        let rules = &self.config.metric_relabel_configs;
        let decoder = TextLabels {
            target: &self.target.labels,
            honor_labels: self.config.honor_labels,
            relabel: &|labels| rules.is_empty() || relabel(rules, labels),
        };
        decoder.decode(raw_labels, labels)
    }
}

impl RelabelledLabels<'_> {
    /// Whether the series is kept; fails when it is none or breaks a limit.
    fn check(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, ScrapeError> {
        let kept = self.decode(raw_labels, labels).map_err(|error| {
            let series = String::from_utf8_lossy(&raw_labels[..raw_labels.len().min(200)]).into_owned();
            ScrapeError::Labels { series, error }
        })?;
        if kept {
            self.check_limits(labels)?;
        }
        Ok(kept)
    }

    fn check_limits(&self, labels: &LabelBuf) -> Result<(), ScrapeError> {
        let over = |length: usize, limit: u64| limit > 0 && length as u64 > limit;
        let metric = || labels.metric_name().chars().take(50).collect::<String>();
        if over(labels.len(), self.config.label_limit) {
            return Err(ScrapeError::LabelLimit(format!(
                "label_limit exceeded (metric: {}, number of labels: {}, limit: {})",
                metric(),
                labels.len(),
                self.config.label_limit
            )));
        }
        for (name, value) in labels.iter() {
            let checks = [
                ("label_name_length_limit", name.len(), self.config.label_name_length_limit),
                ("label_value_length_limit", value.len(), self.config.label_value_length_limit),
            ];
            for (limit_name, length, limit) in checks {
                if over(length, limit) {
                    let name: String = name.chars().take(50).collect();
                    return Err(ScrapeError::LabelLimit(format!(
                        "{limit_name} exceeded (metric: {}, label name: {name}, length: {length}, limit: {limit})",
                        metric()
                    )));
                }
            }
        }
        Ok(())
    }
}
