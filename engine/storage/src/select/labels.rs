//! Labels of what a select found, from identity and from blocks.
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_model::read::{ReadError, SeriesLabels, SeriesRef};

use super::roster::Roster;
use crate::StorageError;
use crate::block::Block;
use crate::sync::Mutex;

/// Series that identity does not know have the labels of their first row in a block, and no group.
pub(super) struct JoinedLabels {
    pub(super) live: Arc<dyn SeriesLabels>,
    pub(super) blocks: Vec<Arc<dyn Block>>,
    pub(super) roster: Arc<Roster>,
    /// Why labels could not be read: what was answered since is not right.
    pub(super) failure: Mutex<Option<ReadError>>,
}

impl JoinedLabels {
    fn of_row(&self, residual: u32, labels: &mut LabelBuf) -> Option<Result<(), StorageError>> {
        let row = self.roster.rows(Roster::place_in_blocks(residual)?).first()?;
        Some(self.blocks[row.block as usize].labels(row.row, labels))
    }

    fn note(&self, error: StorageError) {
        self.failure.lock().get_or_insert_with(|| error.into());
    }
}

impl SeriesLabels for JoinedLabels {
    fn push_group(&self, group: u32, labels: &mut LabelBuf) {
        if !Roster::is_in_blocks(group) {
            self.live.push_group(group, labels);
        }
    }

    fn push_residual(&self, residual: u32, labels: &mut LabelBuf) {
        let mut row = LabelBuf::new();
        match self.of_row(residual, &mut row) {
            Some(Ok(())) => row.iter().for_each(|(name, value)| labels.push(name, value)),
            Some(Err(error)) => self.note(error),
            None => self.live.push_residual(residual, labels),
        }
    }

    fn labels(&self, series: SeriesRef, labels: &mut LabelBuf) {
        labels.clear();
        match self.of_row(series.residual, labels) {
            Some(Ok(())) => {}
            Some(Err(error)) => self.note(error),
            None => self.live.labels(series, labels),
        }
    }

    fn failure(&self) -> Option<ReadError> {
        self.failure.lock().clone()
    }
}
