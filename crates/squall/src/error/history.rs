//! Errors of histories.

use std::path::Path;

use crate::slot::Position;

/// Why a history ends too soon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The log begins later than the group. What it has follows.
    #[error(
        "the log in {} does not reach back to the views before {view} yet, since this member joined later: ask again when it has got them from the \
         others",
        folder.display()
    )]
    Earlier {
        /// The folder of the log.
        folder: Box<Path>,
        /// The first view of which it knows what counts.
        view: u64,
    },
    /// What was before is not kept: a checkpoint has taken its place. What is kept follows, if this comes first; else the history ends, since
    /// it was removed while it was read.
    #[error(
        "the log in {} keeps the messages from position {} of view {} on, and not what was before: a longer `retain` in the configuration \
         keeps more from now on",
        folder.display(), oldest.sequence, oldest.view
    )]
    Compacted {
        /// The folder of the log.
        folder: Box<Path>,
        /// The oldest position that is kept.
        oldest: Position,
    },
    /// A part is not in the log of this member. Nothing follows.
    #[error(
        "the log in {} lacks messages {from} to {to} of view {view}, which this member gets from the others: ask again later",
        folder.display()
    )]
    Missing {
        /// The folder of the log.
        folder: Box<Path>,
        /// The view.
        view: u64,
        /// The first message that is missing.
        from: u64,
        /// The last one.
        to: u64,
    },
}
