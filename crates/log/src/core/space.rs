//! A log on a disk without space for another segment: it continues in those that it has.

use super::{LogAnswer, LogCore};
use crate::disk::DiskError;

impl LogCore {
    /// Takes note that the disk has no space for the segment that [`LogAction::Prepare`](super::LogAction::Prepare) has asked for. The
    /// log continues in the segments that it has, and fails when one is needed that is not there. It asks again after
    /// [`Self::try_again`].
    pub fn handle_no_space(&mut self, error: DiskError) {
        self.preparing = None;
        self.is_put_off = true;
        self.shortage = Some(error);
        self.note_space();
    }

    /// Reports once that little is left.
    pub(super) fn note_space(&mut self) {
        let is_little =
            self.space_left().is_some_and(|left| left <= u64::from(self.settings.segment_bytes) / 2);
        if let Some(shortage) = self.shortage.clone().filter(|_| is_little && !self.is_short) {
            self.is_short = true;
            self.answers.push_back(LogAnswer::NoSpace(shortage));
        }
    }

    /// Has the log ask again for a segment for which there was no space.
    pub const fn try_again(&mut self) {
        self.is_put_off = false;
    }

    /// Returns how many bytes of the segments that are ready are not used, while the disk has no space for another one.
    #[must_use]
    pub fn space_left(&self) -> Option<u64> {
        self.shortage.as_ref()?;
        let segment = u64::from(self.settings.segment_bytes);
        let queued: usize = self.full.iter().map(|frame| frame.buffer.len()).sum();
        let used = self.offset + (queued + self.collecting.buffer.len()) as u64;
        Some((segment + if self.prepared.is_some() { segment } else { 0 }).saturating_sub(used))
    }
}
