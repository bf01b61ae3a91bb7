//! Writes a block front to back: samples as they come, labels and directory at the end.
//!
//! Memory: an open page for each part of the block's time and kind, streams that may be used again, and the label pairs
//! and sets of all series, each once.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_vfs::Files;
use roaring::RoaringBitmap;

use super::directory::Directory;
use super::extras::{ExtrasWriter, exemplar_column};
use super::finder::{Finder, Found};
use super::interner::Interner;
use super::labels::RowsWriter;
use super::page::{PageRef, PageSink};
use super::times::TimesWriter;
use super::values::{NewColumn, ValuesWriter};
use super::{
    COLUMN_ROWS, END_MAGIC, HEADER_BYTES, MAX_STREAM_ROWS, PAGE_BYTES, Parts, dictionary, header, page_crc,
    sets,
};
use crate::block::{BlockMeta, BlockSink, Format, NewBlock, SeriesData};
use crate::column::Encoder;
use crate::kinds::{HistogramColumn, Kind, KindColumn, StartColumn};
use crate::{StorageError, StoredExemplar};

/// Histograms or start timestamps in one column, at most.
const COLUMN_ENTRIES: u64 = 4096;

/// See the module's documentation.
pub(crate) struct NativeWriter {
    files: Arc<dyn Files>,
    dir: PathBuf,
    sink: PageSink,
    new: NewBlock,
    parts: Parts,
    interner: Interner,
    rows: RowsWriter,
    times: TimesWriter,
    finder: Finder,
    /// By part.
    values: Vec<ValuesWriter>,
    /// By kind and part.
    kinds: [Vec<ExtrasWriter>; 2],
    with: [RoaringBitmap; 2],
    exemplars: ExtrasWriter,
    /// The series that is being written, and those before it.
    labels: LabelBuf,
    series: u32,
    /// Float samples of it in a part of the time that may go on.
    floats: Vec<(i64, u64)>,
    min_ms: i64,
    max_ms: i64,
    float_samples: u64,
    histogram_samples: u64,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    times: Vec<i64>,
    payload: Vec<u8>,
}

impl NativeWriter {
    /// Begins a block in a directory of native blocks.
    pub(crate) fn create(
        files: &Arc<dyn Files>,
        dir: &Path,
        new: NewBlock,
    ) -> Result<NativeWriter, StorageError> {
        files.create_dir_all(dir).map_err(StorageError::io("create", dir))?;
        let path = dir.join(format!("{}.tmp", new.ulid));
        let file = files.create(&path).map_err(StorageError::io("create", &path))?;
        let parts = Parts::of(new.start_ms, new.end_ms);
        let mut sink = PageSink { file, path, ulid: new.ulid, offset: 0 };
        sink.put_bare(&header(new.ulid))?;
        debug_assert_eq!(sink.offset, HEADER_BYTES as u64);
        let by_part = || (0..parts.count).map(|_| ExtrasWriter::default()).collect();
        Ok(NativeWriter {
            files: Arc::clone(files),
            dir: dir.to_owned(),
            sink,
            parts,
            interner: Interner::default(),
            rows: RowsWriter::default(),
            times: TimesWriter::new(new.is_cold),
            finder: Finder::default(),
            values: (0..parts.count).map(|_| ValuesWriter::new(new.is_cold)).collect(),
            kinds: [by_part(), by_part()],
            with: <[RoaringBitmap; 2]>::default(),
            exemplars: ExtrasWriter::default(),
            labels: LabelBuf::new(),
            series: 0,
            floats: Vec::new(),
            min_ms: i64::MAX,
            max_ms: i64::MIN,
            float_samples: 0,
            histogram_samples: 0,
            scratch: Scratch::default(),
            new,
        })
    }

    fn misused(&self, what: &str) -> StorageError {
        StorageError::corrupt(&self.sink.path, self.sink.offset, what)
    }

    /// Row of the series that is being written.
    fn row(&self) -> u32 {
        self.series - 1
    }

    fn begin_series(&mut self, labels: &LabelBuf) -> Result<(), StorageError> {
        self.flush_floats()?;
        if self.series > 0 && *labels <= self.labels {
            return Err(self.misused("the series of a block do not come in the order of their labels"));
        }
        if self.series == u32::MAX {
            return Err(self.misused("a block cannot have more series"));
        }
        self.labels.clone_from(labels);
        self.series += 1;
        let sets = self.interner.row(labels);
        self.rows.push(sets, &mut self.sink)
    }

    /// Takes floats in, and writes those of all parts of the time but the last.
    fn add_floats(&mut self, mut floats: &[(i64, u64)]) -> Result<(), StorageError> {
        while let Some(&(time, _)) = floats.first() {
            if self.floats.last().is_some_and(|&(last, _)| last >= time) {
                return Err(self.misused("the samples of a series do not ascend in time"));
            }
            let is_full = self.floats.len() >= MAX_STREAM_ROWS as usize;
            let part = self.parts.of_time(time);
            if is_full || self.floats.first().is_some_and(|&(first, _)| self.parts.of_time(first) != part) {
                self.flush_floats()?;
            }
            let room = MAX_STREAM_ROWS as usize - self.floats.len();
            let of_part = floats.partition_point(|&(time, _)| self.parts.of_time(time) <= part).min(room);
            let (taken, rest) = floats.split_at(of_part.max(1));
            if !taken.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(self.misused("the samples of a series do not ascend in time"));
            }
            self.floats.extend_from_slice(taken);
            floats = rest;
        }
        Ok(())
    }

    /// Writes the floats of one part of the time.
    fn flush_floats(&mut self) -> Result<(), StorageError> {
        let floats = std::mem::take(&mut self.floats);
        let written = match floats.as_slice() {
            [] => Ok(()),
            floats => self.write_floats(floats),
        };
        self.floats = floats;
        self.floats.clear();
        written
    }

    fn write_floats(&mut self, floats: &[(i64, u64)]) -> Result<(), StorageError> {
        self.count(floats[0].0, floats[floats.len() - 1].0);
        self.float_samples += floats.len() as u64;
        self.scratch.times.clear();
        self.scratch.times.extend(floats.iter().map(|&(time, _)| time));
        let found = self.finder.stream(&self.scratch.times, &mut self.times, &mut self.sink)?;
        let (stream, rows) = match &found {
            Found::Whole(stream) => (*stream, None),
            Found::Rows(stream, rows) => (*stream, Some(rows)),
        };
        let row_of = |index: usize| rows.map_or(index as u32, |rows| rows[index]);
        let mut start = 0;
        while start < floats.len() {
            let first_row = row_of(start);
            let end_row = (first_row / COLUMN_ROWS + 1) * COLUMN_ROWS;
            let mut encoder = Encoder::default();
            let mut end = start;
            while end < floats.len() && row_of(end) < end_row {
                encoder.set(row_of(end) - first_row, floats[end].1);
                end += 1;
            }
            self.scratch.payload.clear();
            let rows = encoder.rows();
            encoder.finish(&mut self.scratch.payload);
            let column = NewColumn {
                row: self.row(),
                stream,
                first_row,
                rows,
                payload: &self.scratch.payload,
                samples: (end - start) as u64,
                min_ms: floats[start].0,
                max_ms: floats[end - 1].0,
            };
            let part = self.parts.of_time(floats[0].0);
            self.values[part as usize].push(&column, &mut self.sink)?;
            start = end;
        }
        Ok(())
    }

    fn count(&mut self, min_ms: i64, max_ms: i64) {
        self.min_ms = self.min_ms.min(min_ms);
        self.max_ms = self.max_ms.max(max_ms);
    }

    fn add_histograms(&mut self, series: &SeriesData) -> Result<(), StorageError> {
        let (Some(first), Some(last)) = (series.histograms.first(), series.histograms.last()) else {
            return Ok(());
        };
        self.count(first.0, last.0);
        self.histogram_samples += series.histograms.len() as u64;
        let parts = self.parts;
        for of_part in series.histograms.chunk_by(|a, b| parts.of_time(a.0) == parts.of_time(b.0)) {
            let mut column = HistogramColumn::default();
            for (index, (time, histogram)) in of_part.iter().enumerate() {
                column.push(*time, histogram, false);
                let is_full = column.payload().len() >= PAGE_BYTES / 2;
                if is_full || index + 1 == of_part.len() {
                    self.add_kind(Kind::Histograms, column.column())?;
                    column = HistogramColumn::default();
                }
            }
        }
        Ok(())
    }

    fn add_starts(&mut self, starts: &[(i64, i64)]) -> Result<(), StorageError> {
        let parts = self.parts;
        for of_part in starts.chunk_by(|a, b| parts.of_time(a.0) == parts.of_time(b.0)) {
            for few in of_part.chunks(COLUMN_ENTRIES as usize) {
                let mut column = StartColumn::default();
                for &(time, start) in few {
                    column.push(time, start);
                }
                self.add_kind(Kind::Starts, column.column())?;
            }
        }
        Ok(())
    }

    fn add_kind(&mut self, kind: Kind, column: Option<KindColumn>) -> Result<(), StorageError> {
        let Some(column) = column else { return Ok(()) };
        let row = self.row();
        self.with[kind as usize].insert(row);
        let part = self.parts.of_time(column.min_ms);
        self.kinds[kind as usize][part as usize].push(row, &column, &mut self.sink)
    }

    fn add_exemplars(&mut self, exemplars: &[StoredExemplar]) -> Result<(), StorageError> {
        if exemplars.is_empty() {
            return Ok(());
        }
        self.exemplars.push(self.row(), &exemplar_column(exemplars), &mut self.sink)
    }

    /// Writes everything that is left, and makes it durable under the unfinished name.
    fn complete(&mut self) -> Result<BlockMeta, StorageError> {
        self.flush_floats()?;
        let directory = self.close_pages()?;
        let mut bytes = Vec::new();
        directory.put(&mut bytes);
        let offset = self.sink.offset;
        let mut footer = Vec::new();
        footer.extend_from_slice(&offset.to_le_bytes());
        footer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        footer.extend_from_slice(&page_crc(self.new.ulid, offset, &bytes).to_le_bytes());
        footer.extend_from_slice(END_MAGIC);
        let crc = crc32c::crc32c(&footer);
        footer.extend_from_slice(&crc.to_le_bytes());
        self.sink.put_bare(&bytes)?;
        self.sink.put_bare(&footer)?;
        self.sink.file.sync().map_err(StorageError::io("sync", &self.sink.path))?;
        Ok(BlockMeta { bytes: self.sink.offset, ..directory.meta })
    }

    fn close_pages(&mut self) -> Result<Directory, StorageError> {
        let sink = &mut self.sink;
        let finish = |tables: &mut Vec<ExtrasWriter>, sink: &mut PageSink| {
            std::mem::take(tables).into_iter().map(|table| table.finish(sink)).collect::<Result<Vec<_>, _>>()
        };
        let values = std::mem::take(&mut self.values);
        let values: Vec<_> = values.into_iter().map(|table| table.finish(sink)).collect::<Result<_, _>>()?;
        let [histograms, starts] = &mut self.kinds;
        let kinds = [finish(histograms, sink)?, finish(starts, sink)?];
        let exemplars = std::mem::take(&mut self.exemplars).finish(sink)?;
        let (streams, times) = std::mem::replace(&mut self.times, TimesWriter::new(false)).finish(sink)?;
        let rows = std::mem::take(&mut self.rows).finish(sink)?;
        let interner = std::mem::take(&mut self.interner);
        let order = interner.sorted_pairs();
        let dictionary = dictionary::write(&interner, &order, sink)?;
        let sets = sets::write(&interner, &order, sink)?;
        let mut with = [None; 2];
        for (with, rows) in with.iter_mut().zip(&mut self.with) {
            *with = write_rows(rows, sink)?;
        }
        let meta = self.meta(values.iter().flatten().map(|entry| entry.columns).sum());
        let parts = self.parts;
        let is_cold = self.new.is_cold;
        Ok(Directory {
            meta,
            is_cold,
            parts,
            rows,
            sets,
            dictionary,
            with,
            streams,
            times,
            values,
            kinds,
            exemplars,
        })
    }

    fn meta(&self, columns: u64) -> BlockMeta {
        let new = &self.new;
        let is_empty = self.min_ms > self.max_ms;
        BlockMeta {
            ulid: new.ulid,
            format: Format::Native,
            start_ms: new.start_ms,
            end_ms: new.end_ms,
            min_ms: if is_empty { new.start_ms } else { self.min_ms },
            max_ms: if is_empty { new.start_ms } else { self.max_ms },
            level: new.level,
            sources: new.sources.clone(),
            parents: new.parents.clone(),
            is_late: new.is_late,
            series: u64::from(self.series),
            float_samples: self.float_samples,
            histogram_samples: self.histogram_samples,
            chunks: columns,
            bytes: 0,
        }
    }
}

fn write_rows(rows: &mut RoaringBitmap, sink: &mut PageSink) -> Result<Option<PageRef>, StorageError> {
    if rows.is_empty() {
        return Ok(None);
    }
    rows.optimize();
    let mut content = Vec::new();
    rows.serialize_into(&mut content).map_err(StorageError::io("write", &sink.path))?;
    sink.put(&content).map(Some)
}

impl BlockSink for NativeWriter {
    fn add(&mut self, series: &SeriesData) -> Result<(), StorageError> {
        if !series.is_continuation {
            self.begin_series(&series.labels)?;
        } else if self.series == 0 {
            return Err(self.misused("a series goes on that did not begin"));
        }
        self.add_floats(&series.floats)?;
        self.add_histograms(series)?;
        self.add_starts(&series.starts)?;
        self.add_exemplars(&series.exemplars)
    }

    fn finish(mut self: Box<Self>) -> Result<BlockMeta, StorageError> {
        let meta = self.complete()?;
        let name = self.dir.join(self.new.ulid.to_string());
        let renamed =
            self.files.rename(&self.sink.path, &name).map_err(StorageError::io("rename", &self.sink.path));
        let durable = renamed
            .and_then(|()| self.files.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir)));
        if let Err(error) = durable {
            // Nobody knows of it: it must not look like a block.
            let _ = self.files.remove(&name);
            return Err(error);
        }
        Ok(meta)
    }

    fn abandon(self: Box<Self>) {
        let _ = self.files.remove(&self.sink.path);
    }
}
