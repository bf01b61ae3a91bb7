//! Deleting samples: a tombstone in the log at once, masked wherever they are read from then on.
use metricsstore_model::{AppendError, Matcher};

use crate::head::Layout;
use crate::identity::SeriesId;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::view::View;
use crate::wal::body::BodyWriter;
use crate::wal::record;
use crate::wal::tombstone_record::{Tombstone, push_tombstone};

/// A record of tombstones is written once it is this long.
const RECORD_BYTES: usize = 4 << 20;

impl Store {
    /// Deletes the samples in a time range, ends inclusive, in milliseconds, of every series that passes one of the
    /// matcher lists; returns once that is durable. What comes later is not touched, unless it is late and its time was
    /// deleted. The samples leave the disk with their segments.
    pub fn delete(&self, any_of: &[Vec<Matcher>], start_ms: i64, end_ms: i64) -> Result<(), AppendError> {
        let position = {
            // Alone: every sample is before or after it.
            let _gate = self.gate.write();
            if self.closed.load(Relaxed) {
                return Err(AppendError::ShuttingDown);
            }
            let view = self.view.load();
            let mut tombstones: Vec<Tombstone> = Vec::new();
            for matchers in any_of {
                for (series, reference) in self.identity.select(matchers).series {
                    let Some(newest_ms) = newest_ms_of(&view, self.layout, series) else { continue };
                    let max_ms = end_ms.min(newest_ms);
                    if start_ms <= max_ms {
                        let order = reference.order;
                        tombstones.push(Tombstone { series: series.0, order, min_ms: start_ms, max_ms });
                    }
                }
            }
            self.log_tombstones(&tombstones).map_err(AppendError::Log)?;
            self.tombstones.add(&tombstones);
            self.log.position()
        };
        self.log.wait_durable(position).map_err(AppendError::Log)
    }

    fn log_tombstones(&self, tombstones: &[Tombstone]) -> Result<(), String> {
        let mut body = BodyWriter::default();
        for (index, tombstone) in tombstones.iter().enumerate() {
            push_tombstone(&mut body, tombstone);
            if body.len() >= RECORD_BYTES || index + 1 == tombstones.len() {
                self.log.append(record::TOMBSTONES, &mut std::mem::take(&mut body).finish())?;
            }
        }
        Ok(())
    }
}

/// No sample of the series is newer; `None` where it has none.
fn newest_ms_of(view: &View, layout: Layout, series: SeriesId) -> Option<i64> {
    let open = &view.open[layout.shard_of(series.0)];
    let remembered = open.data.lock().newest_ms_of(layout.local(series.0));
    let frozen = view.frozen.get(layout.shard_of(series.0)).map(|epoch| epoch.data.lock().max_ms);
    let sealed = view.segments.iter().filter(|segment| segment.series.contains(series.0));
    remembered.or_else(|| sealed.map(|segment| segment.max_ms).chain(frozen).max())
}
