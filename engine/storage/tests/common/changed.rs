//! A store of the golden directory in which one file holds other bytes.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use metricsstore_budget::{Budget, Grant};
use metricsstore_model::read::{Selection, Source};
use metricsstore_model::{Acknowledge, LabelBuf};
use metricsstore_storage::Store;

use super::formats::{Format, reseal};
use super::golden::{GoldenFiles, golden_files, lay_out};
use super::{DIR, HOUR_MS, Machine, NOW_MS, append, series};

/// What opening may take, whatever a file says of itself.
const BUDGET_BYTES: u64 = 64 << 20;

/// Samples by the text of their labels, which may be anything, and by time.
type Texts = BTreeMap<String, BTreeMap<i64, u64>>;

/// Everything, unless something that is needed for it is damaged.
fn read_texts(store: &Store) -> Option<Texts> {
    let everything = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&everything, &Grant::unlimited()).ok()?;
    let labels = batches.labels();
    let (mut times, mut values, mut label_buf) = (Vec::new(), Vec::new(), LabelBuf::new());
    let mut texts = Texts::new();
    while let Some(batch) = batches.next_batch().ok()? {
        for (index, id) in batch.ids.iter().enumerate() {
            batch.samples_into(index, &mut times, &mut values);
            labels.labels(*id, &mut label_buf);
            let text: Vec<String> = label_buf.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let samples = times.iter().copied().zip(values.iter().map(|value| value.to_bits()));
            texts.entry(text.join(";")).or_default().extend(samples);
        }
    }
    Some(texts)
}

/// The files that are changed.
fn golden() -> &'static [(PathBuf, Vec<u8>)] {
    static FILES: OnceLock<GoldenFiles> = OnceLock::new();
    FILES.get_or_init(|| golden_files("v1"))
}

fn machine_with(files: &[(PathBuf, Vec<u8>)]) -> Machine {
    let mut machine = Machine::new(1);
    machine.clock.set_wall_ms(NOW_MS + HOUR_MS);
    machine.options.retention_ms = None;
    machine.budget = Budget::new(BUDGET_BYTES);
    lay_out(&machine, files);
    machine
}

/// What the golden directory holds without its log, and what it holds at all.
fn golden_contents() -> &'static (Texts, Texts) {
    static CONTENTS: OnceLock<(Texts, Texts)> = OnceLock::new();
    CONTENTS.get_or_init(|| {
        let without_log: Vec<_> =
            golden().iter().filter(|(path, _)| !is_of(Format::Log, path)).cloned().collect();
        let read = |files| read_texts(&machine_with(files).open()).unwrap();
        (read(&without_log[..]), read(golden()))
    })
}

fn is_of(format: Format, path: &Path) -> bool {
    match format {
        Format::Log => path.starts_with(Path::new(DIR).join("wal")),
        Format::Segment => path.starts_with(Path::new(DIR).join("segments")),
        Format::Identity => path.starts_with(Path::new(DIR).join("identity")),
        Format::Manifest => path.ends_with("manifest"),
    }
}

/// The golden file of a format.
pub fn golden_file(format: Format) -> &'static [u8] {
    let found = golden().iter().find(|(path, _)| is_of(format, path));
    &found.unwrap_or_else(|| panic!("there is no golden file of {format:?}")).1
}

/// Opens the golden directory with these bytes as its file of a format, as they are and with their checksums made
/// right.
pub fn try_file(format: Format, bytes: &[u8]) {
    let path = &golden().iter().find(|(path, _)| is_of(format, path)).unwrap().0;
    let number = path.file_name().unwrap().to_string_lossy().parse().unwrap_or(0);
    let mut resealed = bytes.to_vec();
    reseal(format, number, &mut resealed);
    try_directory(format, bytes, false);
    if resealed != bytes {
        try_directory(format, &resealed, true);
    }
}

fn try_directory(format: Format, bytes: &[u8], is_resealed: bool) {
    let mut files = golden().to_vec();
    for (path, content) in &mut files {
        if is_of(format, path) {
            *content = bytes.to_vec();
        }
    }
    let mut machine = machine_with(&files);
    // The one thing that ends a start: a version that another release wrote.
    let Ok(store) = machine.try_open() else { return };
    assert!(machine.budget.counted() <= BUDGET_BYTES);
    let contents = read_texts(&store);
    if format == Format::Log
        && let Some(contents) = &contents
    {
        for (number, samples) in &golden_contents().0 {
            for (time, bits) in samples {
                let found = contents.get(number).and_then(|samples| samples.get(time));
                assert_eq!(found, Some(bits), "what is sealed is safe: series {number} at {time}");
            }
        }
    }
    // One that is valid and newer counts, whatever it says.
    if format == Format::Manifest
        && !is_resealed
        && let Some(contents) = &contents
    {
        assert_eq!(contents, &golden_contents().1, "the other copy of the manifest serves");
    }
    let time = NOW_MS + HOUR_MS;
    let written = append(&store, &[(999, time, 1.0)], Acknowledge::Durable);
    drop(store);
    machine.files = machine.files.crash();
    let store = machine.open();
    if written.is_ok_and(|verdicts| verdicts.written == 1)
        && let Some(mut again) = read_texts(&store)
        && let Some(contents) = contents
    {
        assert_eq!(
            again.remove(&series(999)).and_then(|samples| samples.get(&time).copied()),
            Some(1f64.to_bits())
        );
        assert_eq!(again, contents, "the next start reads the same");
    }
}
