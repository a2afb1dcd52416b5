//! The first step of an evaluation: committed messages are sent (Spindle §2.3, §3.2).
//!
//! `Deviation:` (Spindle §3.2) a long batch is sent in pieces, one in each evaluation, where a device carries pushes.

use std::ops::Range;

use squall_fabric::Fabric;
use squall_fabric::window::{Announcement, INDEXES_MAX};

use super::{Deliver, Subgroup, SubgroupFailure, SubgroupSettings};
use crate::coverage::{Point, reach};
use crate::mutation;

/// Returns the words of a piece. There are pieces only where a device carries what is pushed while the processor continues. In
/// shared memory nothing travels, and on TCP the kernel works within the call; no gain is known there, and one comparison on a
/// busy machine showed a loss with 10 KB.
pub(super) fn piece_words<F: Fabric>(fabric: &F, settings: &SubgroupSettings) -> usize {
    let capabilities = fabric.capabilities();
    let by_device = capabilities.one_sided_progress && !capabilities.early_sight;
    if by_device { settings.piece_bytes / 8 } else { usize::MAX }
}

impl<D: Deliver> Subgroup<D> {
    /// Sends the messages that the application has committed, or the first piece of them; returns how many.
    pub(super) fn send(&mut self) -> u64 {
        if self.send_express() {
            return 1;
        }
        let Some((publisher, _)) = &mut self.publisher else { return 0 };
        let count = if self.settings.batching.send { u64::MAX } else { 1 };
        let piece = self.piece_words;
        let announced = if mutant!(AnnounceBeyondPiece) { usize::MAX } else { piece };
        let table = &mut self.table;
        let mut pushes = 0;
        let sent = publisher.publish_piece(count, announced, |mut words: Range<usize>| {
            pushes += 1;
            mutant!(AnnounceBeyondPiece => words.end = words.end.min(words.start.saturating_add(piece)));
            if pushes == 1 || !mutant!(HalfOfWrappedBatch) {
                table.append(words);
            }
        });
        if sent == 0 {
            return 0;
        }
        if cfg!(feature = "coverage") && count > 1 && publisher.ready() > 0 {
            reach(Point::PieceSent);
        }
        if let Some(bodies) = &mut self.bodies {
            bodies.send(publisher, table);
        }
        let announcement = publisher.announcement();
        table.raise(self.row.announced, announcement);
        self.note_sent(sent, announcement);
        sent
    }

    /// Sends a message that is alone, and short enough, by one write that is record and announcement in one.
    #[inline]
    fn send_express(&mut self) -> bool {
        let Some((publisher, _)) = &self.publisher else { return false };
        if !publisher.wants_express() {
            return false;
        }
        if publisher.outstanding() == 1 {
            self.free(true);
        }
        let Some((publisher, _)) = &mut self.publisher else { return false };
        let Some(words) = publisher.publish_express() else { return false };
        let announcement = publisher.announcement();
        self.table.publish(words);
        self.counters.express += 1;
        self.note_sent(1, announcement);
        true
    }

    fn note_sent(&mut self, messages: u64, announcement: Announcement) {
        self.counters.send_batches += 1;
        self.counters.messages_sent += messages;
        self.rounds.note_sent();
        if announcement.indexes >= INDEXES_MAX - self.settings.window as u64 {
            self.fail(SubgroupFailure::Exhausted);
        }
    }
}
