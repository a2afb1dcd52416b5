//! Acknowledgements: what a member reports to the others about what it has, and what they know without a report
//! (Derecho §3.4, Spindle §2.3 and table 1).
//!
//! - *Received.* A member that has announced a message has it, except in mode `Durable`. So an announcement acknowledges the sender's own
//!   sequences, as far as no sequence of another sender comes in between, and `received` is pushed only where it says
//!   more: [`acknowledged`].
//! - *Delivered* frees messages of other members, and is pushed only while there may be such messages.
//! - If both rise in one evaluation they are pushed in one write: nothing depends on which of them is seen first.
//!
//! Both are stored in the member's own row in any case. With one sender and one receiver a message costs three
//! writes, record, announcement and one back, or two, if record and announcement are one write.
//!
//! `Deviation:` (Spindle §2.3) each member pushes both counts whenever they rise.

use squall_fabric::window::Announcement;

use super::subgroup::DeliveryOutlet;
use super::{Deliver, Subgroup};
use crate::mutation;

/// What this member has reported to the others, in total order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnnouncedProgress {
    /// `progress_announced.received <= received`, as pushed or as implied by the announcement.
    received: u64,
    /// `progress_announced.delivered <= delivered`
    delivered: u64,
    /// All messages of other members that were announced have sequences below this one.
    awaited: u64,
}

/// Returns up to which sequence a member has received everything, if it has published `received`, and announced
/// `indexes` as the sender with rank `sender` among `senders`.
#[inline]
pub(super) fn acknowledged(received: u64, sender: usize, indexes: u64, senders: usize) -> u64 {
    mutant!(AnnouncementCoversOthers => return received.max(indexes * senders as u64));
    if senders == 1 {
        return received.max(indexes);
    }
    let (round, index) = (received / senders as u64, received % senders as u64);
    received + u64::from(index == sender as u64 && round < indexes)
}

impl<D: Deliver> Subgroup<D> {
    /// Notes that the sender with rank `sender` has announced something.
    #[inline]
    pub(super) fn note_announced(&mut self, sender: usize, before: Announcement, now: Announcement) {
        let own = self.publisher.as_ref().map(|(_, own)| *own);
        // Nulls take no memory, so no sender waits for their acknowledgement, and no null is owed for them.
        let has_messages = before.records != now.records || mutant!(NullsForNulls);
        if has_messages {
            self.note_messages(sender, before, now);
        }
        if own == Some(sender) || !has_messages {
            return;
        }
        if let Some(own) = own {
            self.rounds.note_messages(own, sender, now.indexes);
        }
        if mutant!(KeepDelivered) {
            return;
        }
        let behind = (now.indexes - 1) * self.announced.len() as u64 + sender as u64 + 1;
        self.progress_announced.awaited = self.progress_announced.awaited.max(behind);
    }

    /// Notes where there may be messages that a sender has announced, for a consumer that waits.
    #[inline]
    pub(super) fn note_messages(&mut self, sender: usize, before: Announcement, now: Announcement) {
        let senders = self.announced.len() as u64;
        let is_own = |own: &(_, usize)| own.1 == sender;
        mutant!(OwnAreNoNews if self.publisher.as_ref().is_some_and(is_own) => return);
        let DeliveryOutlet::Pull(handoff) = &mut self.outlet else { return };
        let range = match self.settings.mode.is_ordered() {
            true => {
                let sequence = |index: u64| index * senders + sender as u64;
                sequence(before.indexes)..sequence(now.indexes.saturating_sub(1)) + 1
            }
            false => before.indexes..now.indexes,
        };
        handoff.note_messages(sender, range);
    }

    /// Returns up to which sequence the member with rank `rank` has received everything, as far as this one knows.
    #[inline]
    pub(super) fn received_by(&self, rank: usize) -> u64 {
        let received = self.row.received.load(self.table.row(rank));
        match self.sender_ranks[rank] {
            // The division is avoided where no sequence waits for this member.
            Some(sender) if received < self.received && self.announcement_acknowledges() => {
                acknowledged(received, sender, self.announced[sender].indexes, self.announced.len())
            }
            _ => received,
        }
    }

    /// Returns a sequence up to which the member with rank `rank` has received everything, for what is stable here. If its announcement
    /// says enough, its `received` is not loaded: the cache line stays with its owner, whose next store there would otherwise wait
    /// for it, and with that store the next announcement.
    #[inline]
    pub(super) fn received_at_least(&self, rank: usize) -> u64 {
        if self.announced.len() == 1 && self.sender_ranks[rank].is_some() && self.announcement_acknowledges()
        {
            // Of a single sender, whose announcement covers all sequences.
            let announced = self.announced[0].indexes;
            if announced >= self.received {
                return announced;
            }
        }
        self.received_by(rank)
    }

    /// Returns whether a sender has what it has announced, in the sense of the mode: a message in its memory is on no disk \[T1\].
    #[inline]
    fn announcement_acknowledges(&self) -> bool {
        !self.is_durable() || mutant!(AnnouncementIsDurable)
    }

    /// Queues the counts that the others do not know yet.
    #[inline]
    pub(super) fn announce(&mut self) {
        if !self.settings.mode.is_ordered() {
            return;
        }
        if let Some((publisher, sender)) = &self.publisher
            && self.announcement_acknowledges()
        {
            let indexes = publisher.announcement().indexes;
            let known =
                acknowledged(self.progress_announced.received, *sender, indexes, self.announced.len());
            self.progress_announced.received = known.min(self.received);
        }
        let delivered_column = self.row.delivered.column(0).word();
        let delivered = self.table.own().load_relaxed(delivered_column);
        let says_received = self.progress_announced.received < self.received;
        let says_delivered =
            self.progress_announced.delivered < delivered.min(self.progress_announced.awaited);
        let words = match (says_received, says_delivered) {
            (false, false) => return,
            (true, false) => self.row.received.word()..delivered_column,
            (false, true) => delivered_column..delivered_column + 1,
            (true, true) => self.row.received.word()..delivered_column + 1,
        };
        if says_received {
            self.progress_announced.received = self.received;
        }
        if says_delivered {
            self.progress_announced.delivered = delivered;
        }
        self.table.publish(words);
    }
}

#[cfg(test)]
mod tests {
    use super::acknowledged;
    use crate::multicast::sequences_complete;

    /// Compares the function with its definition: the member has everything below `received`, and its own indexes.
    #[test]
    fn an_announcement_acknowledges_only_the_senders_own_messages() {
        for senders in 1..5 {
            for sender in 0..senders {
                for received in 0..20 {
                    for indexes in 0..8 {
                        let here = |s: u64| {
                            s < received
                                || (s % senders as u64 == sender as u64 && s / (senders as u64) < indexes)
                        };
                        let complete = (0..).find(|s| !here(*s)).expect("it ends");
                        assert_eq!(acknowledged(received, sender, indexes, senders), complete);
                    }
                }
            }
        }
    }

    /// With one sender nothing is left to acknowledge.
    #[test]
    fn a_single_sender_need_not_acknowledge() {
        for indexes in 0..5 {
            assert_eq!(acknowledged(0, 0, indexes, 1), sequences_complete(&[indexes]));
        }
    }
}
