//! The first step of an evaluation: committed messages are sent (Spindle §2.3, §3.2).

use squall_fabric::window::{Announcement, INDEXES_MAX};

use super::{Deliver, Subgroup, SubgroupFailure};
use crate::mutation;

impl<D: Deliver> Subgroup<D> {
    /// Sends the messages that the application has committed; returns how many.
    pub(super) fn send(&mut self) -> u64 {
        if self.send_express() {
            return 1;
        }
        let Some((publisher, _)) = &mut self.publisher else { return 0 };
        let count = if self.settings.batching.send { u64::MAX } else { 1 };
        let table = &mut self.table;
        let mut pushes = 0;
        let sent = publisher.publish(count, |words| {
            pushes += 1;
            if pushes == 1 || !mutant!(HalfOfWrappedBatch) {
                table.append(words);
            }
        });
        if sent == 0 {
            return 0;
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
        if announcement.indexes >= INDEXES_MAX - self.settings.window as u64 {
            self.fail(SubgroupFailure::Exhausted);
        }
    }
}
