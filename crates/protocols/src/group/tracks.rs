//! Message tracks: where the time of a few messages went, kept always, for drawings (Spindle §4.1.1 measures the same delays).

use std::collections::VecDeque;

use super::SubgroupId;
use crate::multicast::MessageTrack;

/// The number of tracks that are kept: seconds of a busy subgroup.
pub const TRACKS_KEPT: usize = 256;

/// The latest messages of this node that were measured, of all its subgroups.
#[derive(Clone, Debug, Default)]
pub struct MessageTracks {
    /// The oldest first: `kept.len() <= TRACKS_KEPT`.
    kept: VecDeque<(SubgroupId, MessageTrack)>,
    /// How many there were: `kept.len() <= recorded`.
    recorded: u64,
}

impl MessageTracks {
    /// Returns how many messages were measured in all.
    #[must_use]
    pub const fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Returns the latest ones, the oldest first. Those of one subgroup do not overlap.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = &(SubgroupId, MessageTrack)> {
        self.kept.iter()
    }

    pub(super) fn note(&mut self, id: SubgroupId, track: MessageTrack) {
        if self.kept.len() == TRACKS_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((id, track));
        self.recorded += 1;
    }
}
