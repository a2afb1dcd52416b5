//! Errors of readers that begin at an earlier position.

use std::path::Path;

use super::{GroupError, HistoryError, ReceiveError};
use crate::slot::Position;

squall_fabric::debug_as_text!(ReplayError);

/// Why there is no further message from an earlier position on ([`crate::Deliveries::from`]).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The log begins later.
    #[error(
        "the log of this member begins at position {} of view {}, later than this reader: begin there (`DeliveriesFrom::seek`), or, \
        if this member has joined later, ask again when it has got what was before from the others",
        oldest.sequence, oldest.view
    )]
    Compacted {
        /// The oldest position from which this member can read.
        oldest: Position,
    },
    /// This member was away, and has not got from the others yet what follows.
    #[error(transparent)]
    Incomplete(#[from] HistoryError),
    /// The log could not be changed.
    #[error("cannot change the log in {}: {cause}", folder.display())]
    Log {
        /// The folder of the log.
        folder: Box<Path>,
        /// Why.
        cause: String,
    },
    /// The group has ended, and everything delivered has been taken, or is in the log for the next run.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl From<ReceiveError> for ReplayError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Group(error) => Self::Group(error),
        }
    }
}
