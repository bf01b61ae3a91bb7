//! The file `meta.json` of a Prometheus block.
//!
//! ```text
//! {"ulid", "minTime", "maxTime",
//!  "stats": {"numSamples"?, "numFloatSamples"?, "numHistogramSamples"?, "numSeries"?, "numChunks"?, "numTombstones"?},
//!  "compaction": {"level", "sources"?: [ulid], "deletable"?, "parents"?: [{"ulid", "minTime", "maxTime"}], "failed"?,
//!                 "hints"?: [text]},
//!  "version": 1, …}
//! ```
//! Times are ms, `maxTime` the first that is not in the block; zeros and empty lists are left out; indented by tabs.
//! What else stands in it, such as the section `thanos`, is kept.
use std::io;
use std::path::Path;

use metricsstore_vfs::Files;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::super::{BlockMeta, Format, NewBlock, Parent, Ulid};
use crate::StorageError;
use crate::manifest::write_atomically;

pub(crate) const FILE_NAME: &str = "meta.json";
const VERSION: u32 = 1;
/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;
/// How a block says that it was cut from samples that came late.
const LATE_HINT: &str = "from-out-of-order";

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) ulid: Ulid,
    pub(crate) min_time: i64,
    pub(crate) max_time: i64,
    #[serde(default)]
    pub(crate) stats: Stats,
    pub(crate) compaction: Compaction,
    version: u32,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Stats {
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_float_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_histogram_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_series: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_chunks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_tombstones: u64,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Compaction {
    pub(crate) level: u32,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub(crate) sources: Vec<Ulid>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) deletable: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub(crate) parents: Vec<Described>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) failed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub(crate) hints: Vec<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A block that was merged into this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Described {
    ulid: Ulid,
    min_time: i64,
    max_time: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A list, or nothing where there is `null`.
fn list<'d, T: Deserialize<'d>, D: Deserializer<'d>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Serialize for Ulid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'d> Deserialize<'d> for Ulid {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Ulid, D::Error> {
        String::deserialize(from)?.parse().map_err(|_| D::Error::custom("this is not an ULID"))
    }
}

impl Meta {
    /// Of a block that has been written.
    pub(crate) fn new(block: &NewBlock, stats: Stats) -> Meta {
        let described = |parent: &Parent| Described {
            ulid: parent.ulid,
            min_time: parent.start_ms,
            max_time: parent.end_ms,
        };
        Meta {
            ulid: block.ulid,
            min_time: block.start_ms,
            max_time: block.end_ms,
            stats,
            compaction: Compaction {
                level: block.level,
                sources: block.sources.clone(),
                parents: block.parents.iter().map(described).collect(),
                hints: block.is_late.then(|| LATE_HINT.to_owned()).into_iter().collect(),
                ..Compaction::default()
            },
            version: VERSION,
            others: Map::new(),
        }
    }

    /// Reads the file in the directory of a block.
    pub(crate) fn read(files: &dyn Files, dir: &Path) -> Result<Meta, StorageError> {
        let path = dir.join(FILE_NAME);
        let bytes = files.read(&path, MAX_BYTES).map_err(StorageError::io("read", &path))?;
        let meta: Meta = serde_json::from_slice(&bytes)
            .map_err(|error| StorageError::corrupt(&path, 0, error.to_string()))?;
        if meta.version != VERSION {
            let file = path.display().to_string();
            return Err(StorageError::Version { file, found: meta.version, supported: VERSION });
        }
        if meta.min_time > meta.max_time {
            return Err(StorageError::corrupt(&path, 0, "the block ends before it begins"));
        }
        Ok(meta)
    }

    /// Puts the file into the directory of a block durably, in place of the one that is there. Gives its length in bytes.
    pub(crate) fn write(&self, files: &dyn Files, dir: &Path) -> Result<u64, StorageError> {
        let path = dir.join(FILE_NAME);
        let text = self.text().map_err(StorageError::io("write", &path))?;
        write_atomically(files, dir, FILE_NAME, &text)?;
        Ok(text.len() as u64)
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, format))?;
        Ok(text)
    }

    /// What is known of the block from this file. The oldest and the newest sample do not stand in it: they are said to
    /// be as far apart as they can be.
    pub(crate) fn block(&self) -> BlockMeta {
        let parent = |described: &Described| Parent {
            ulid: described.ulid,
            start_ms: described.min_time,
            end_ms: described.max_time,
        };
        let Stats { num_samples, num_float_samples, num_histogram_samples, .. } = self.stats;
        // Releases that knew no histograms counted samples only.
        let is_split = num_float_samples > 0 || num_histogram_samples > 0;
        BlockMeta {
            ulid: self.ulid,
            format: Format::Prometheus,
            start_ms: self.min_time,
            end_ms: self.max_time,
            min_ms: self.min_time,
            max_ms: self.max_time.saturating_sub(1).max(self.min_time),
            level: self.compaction.level,
            sources: self.compaction.sources.clone(),
            parents: self.compaction.parents.iter().map(parent).collect(),
            is_late: self.compaction.hints.iter().any(|hint| hint == LATE_HINT),
            series: self.stats.num_series,
            float_samples: if is_split { num_float_samples } else { num_samples },
            histogram_samples: num_histogram_samples,
            chunks: self.stats.num_chunks,
            bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_vfs::sim::SimFiles;

    use super::*;

    fn dir() -> &'static Path {
        Path::new("/block")
    }

    fn files_with(text: &str) -> SimFiles {
        let files = SimFiles::new(1);
        files.create_dir_all(dir()).unwrap();
        let file = files.create(&dir().join(FILE_NAME)).unwrap();
        file.append(text.as_bytes()).unwrap();
        file.sync().unwrap();
        files
    }

    /// Reads a text and writes what was read.
    fn again(text: &str) -> String {
        let files = files_with(text);
        Meta::read(&files, dir()).unwrap().write(&files, dir()).unwrap();
        let names: Vec<String> = files.list(dir()).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [FILE_NAME]);
        String::from_utf8(files.read(&dir().join(FILE_NAME), 1 << 20).unwrap()).unwrap()
    }

    const HANDED: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/prometheus/snapshot/01M8PQN08JPBB7KPSZQ0D3Y8MN/meta.json"
    ));

    #[test]
    fn what_prometheus_wrote_is_written_again_byte_for_byte() {
        assert_eq!(again(HANDED), HANDED);
    }

    #[test]
    fn a_block_says_what_it_is() {
        let ulid = |text: &str| text.parse::<Ulid>().unwrap();
        let first = ulid("01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let parent = Parent { ulid: first, start_ms: 0, end_ms: 7_200_000 };
        let new = NewBlock {
            ulid: ulid("01M8PQN08JPBB7KPSZQ0D3Y8MN"),
            start_ms: 0,
            end_ms: 21_600_000,
            level: 2,
            sources: vec![first],
            parents: vec![parent],
            is_late: true,
            is_cold: false,
        };
        let stats = Stats {
            num_samples: 5,
            num_float_samples: 3,
            num_histogram_samples: 2,
            num_series: 1,
            num_chunks: 2,
            ..Stats::default()
        };
        let meta = Meta::new(&new, stats);
        let text = String::from_utf8(meta.text().unwrap()).unwrap();
        let want = "{\n\t\"ulid\": \"01M8PQN08JPBB7KPSZQ0D3Y8MN\",\n\t\"minTime\": 0,\n\t\"maxTime\": 21600000,\n\t\
            \"stats\": {\n\t\t\"numSamples\": 5,\n\t\t\"numFloatSamples\": 3,\n\t\t\"numHistogramSamples\": 2,\n\t\t\
            \"numSeries\": 1,\n\t\t\"numChunks\": 2\n\t},\n\t\"compaction\": {\n\t\t\"level\": 2,\n\t\t\"sources\": [\n\t\t\t\
            \"01ARZ3NDEKTSV4RRFFQ69G5FAV\"\n\t\t],\n\t\t\"parents\": [\n\t\t\t{\n\t\t\t\t\
            \"ulid\": \"01ARZ3NDEKTSV4RRFFQ69G5FAV\",\n\t\t\t\t\"minTime\": 0,\n\t\t\t\t\"maxTime\": 7200000\n\t\t\t}\n\t\t],\n\t\t\
            \"hints\": [\n\t\t\t\"from-out-of-order\"\n\t\t]\n\t},\n\t\"version\": 1\n}";
        assert_eq!(text, want);
        let block = Meta::read(&files_with(&text), dir()).unwrap().block();
        assert_eq!((block.start_ms, block.end_ms, block.level, block.is_late), (0, 21_600_000, 2, true));
        assert_eq!((block.sources, block.parents), (new.sources, new.parents));
        assert_eq!((block.series, block.float_samples, block.histogram_samples, block.chunks), (1, 3, 2, 2));
    }

    #[test]
    fn what_others_added_is_kept() {
        let text = HANDED
            .replace(
                "\"version\": 1",
                "\"version\": 1,\n\t\"thanos\": {\n\t\t\"labels\": {\n\t\t\t\"a\": \"<b>\"\n\t\t}\n\t}",
            )
            .replace("\"level\": 1,", "\"level\": 1,\n\t\t\"other\": null,");
        let first = again(&text);
        assert!(first.contains("thanos") && first.contains("<b>") && first.contains("other"), "{first}");
        assert_eq!(again(&first), first);
    }

    #[test]
    fn another_version_and_what_is_no_meta_are_errors() {
        let read = |text: &str| Meta::read(&files_with(text), dir());
        let newer = HANDED.replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(read(&newer), Err(StorageError::Version { found: 2, .. })));
        assert!(matches!(
            read(&HANDED.replace("1700006400000", "1900006400000")),
            Err(StorageError::Corrupt { .. })
        ));
        for end in 0..HANDED.len() {
            assert!(matches!(read(&HANDED[..end]), Err(StorageError::Corrupt { .. })), "cut at {end}");
        }
        assert!(read(&HANDED.replace("01M8PQN08JPBB7KPSZQ0D3Y8MN", "01m8pqn08jpbb7kpszq0d3y8mn")).is_err());
    }
}
