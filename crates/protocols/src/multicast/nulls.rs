//! Null-sends: how far a sender without messages must raise its announcement, so that others need not wait (Spindle
//! §3.3).
//!
//! Message `k` of rank `j` is preceded in the order by indexes `0..=k` of ranks below `j` and by `0..k` of ranks
//! above. So a sender that knows of message `k` of rank `j` owes `k + 1` indexes if its own rank is below `j`, else `k`.
//!
//! **Ahead.** A sender that has sent nulls [`IDLE_AFTER`] times since its latest message owes one more: with it, the message that may come
//! next waits for no null, but for acknowledgements alone, which is one exchange less. The sender of that message owes nothing for it, so its
//! next message has the index that it would have had. If the idle sender sends a message itself, that one takes a later index, and may wait
//! for nulls of the others once.
//!
//! **Only messages.** What is owed follows from messages, never from nulls: each message makes each sender raise its announcement at most twice,
//! so without messages nulls end \[N4\].
//!
//! `Deviation:` Spindle sends one null per received message and proves by induction that this is enough. With
//! batches it is not [N5]: the whole gap is filled at once. It sends none ahead.

use squall_fabric::window::INDEXES_MAX;

use super::{Deliver, Subgroup};
use crate::coverage::{Point, reach};
use crate::mutation;

/// What a sender owes to the messages of the others. No I/O.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundsOwed {
    /// With this many indexes of this sender, no message that it knows of waits for one.
    due: u64,
    /// How often this sender has sent nulls since its latest message.
    idle: u64,
}

impl RoundsOwed {
    /// Notes that the sender with rank `sender` has sent messages, and `indexes` indexes in total; this one has rank `own`.
    #[inline]
    pub(super) fn note_messages(&mut self, own: usize, sender: usize, indexes: u64) {
        let owed = if own < sender { indexes } else { indexes.saturating_sub(1) };
        self.due = self.due.max(owed);
    }

    /// Notes that this sender has sent a message.
    #[inline]
    pub(super) const fn note_sent(&mut self) {
        self.idle = 0;
    }

    /// Notes that this sender has sent nulls.
    pub(super) const fn note_nulls(&mut self) {
        self.idle += 1;
    }

    /// Returns how many indexes this sender owes to the messages that it knows of.
    #[inline]
    pub(super) const fn due(&self) -> u64 {
        self.due
    }

    /// Returns how many indexes this sender owes in total, those ahead included.
    #[inline]
    pub(super) const fn owed(&self) -> u64 {
        // A peer whose memory is corrupt may have announced the last index.
        if self.idle >= IDLE_AFTER && self.due + 1 < INDEXES_MAX { self.due + 1 } else { self.due }
    }
}

/// A sender that has sent nulls as often is likely to do so again. One that takes turns with others, or had no core for as long as others sent
/// many messages, is not idle.
const IDLE_AFTER: u64 = 16;

impl<D: Deliver> Subgroup<D> {
    /// Sends nulls (Spindle §3.3): committed messages go first; what is still owed is filled by nulls [N1]. A sender
    /// that has just sent at least as much as it still owes keeps pace, and sends no nulls, since every null is a
    /// round that its next message could have taken. If it stops, the next evaluation fills the gap.
    #[inline]
    pub(super) fn fill_rounds(&mut self, sent: u64) {
        mutant!(NoNulls => return);
        if self.present().is_some_and(|present| self.rounds.due() > present + sent) {
            self.send_nulls();
        }
    }

    /// Sends nulls ahead if this member is idle. No message waits for them yet, so this comes after the acknowledgement.
    #[inline]
    pub(super) fn fill_ahead(&mut self, sent: u64) {
        let is_ahead = |present: u64| self.rounds.due() <= present && self.rounds.owed() > present;
        if sent == 0 && self.failure.is_none() && self.present().is_some_and(is_ahead) {
            self.send_nulls();
        }
    }

    /// Returns how many indexes this member has announced, if it is a sender that sends nulls.
    #[inline]
    fn present(&self) -> Option<u64> {
        let sends_nulls = self.settings.null_sends && self.settings.mode.is_ordered();
        let (publisher, _) = self.publisher.as_ref().filter(|_| sends_nulls)?;
        Some(publisher.announcement().indexes)
    }

    /// Announces as many indexes as are owed, unless the application has committed messages.
    fn send_nulls(&mut self) {
        let Some((publisher, sender)) = &mut self.publisher else { return };
        let present = publisher.announcement().indexes;
        let mut owed = self.rounds.owed();
        mutant!(OneNullPerReceipt => owed = owed.min(present + 1));
        if owed <= present || publisher.ready() > 0 {
            return;
        }
        reach(Point::NullsSent);
        self.rounds.note_nulls();
        self.counters.nulls_sent += publisher.raise(owed);
        let announcement = publisher.announcement();
        self.table.raise(self.row.announced, announcement);
        let sender = *sender;
        let before = std::mem::replace(&mut self.announced[sender], announcement);
        self.indexes[sender] = announcement.indexes;
        if before.records != announcement.records {
            // Messages that were sent since the last look.
            self.note_messages(sender, before, announcement);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::sequences_complete;

    /// Returns whether message `index` of rank `sender` waits, if the others have sent this many indexes.
    fn waits(sender: usize, index: u64, indexes: &[u64]) -> bool {
        index * indexes.len() as u64 + sender as u64 >= sequences_complete(indexes)
    }

    /// Compares what is owed with its definition: with fewer indexes the latest message waits, with that many it does
    /// not.
    #[test]
    fn exactly_the_gap_is_owed() {
        for own in 0..3 {
            for a in 0..5 {
                for b in 0..5 {
                    let mut indexes = vec![a, b];
                    indexes.insert(own, 0);
                    let mut rounds = RoundsOwed::default();
                    let senders = || (0..3).filter(|rank| *rank != own && indexes[*rank] > 0);
                    senders().for_each(|rank| rounds.note_messages(own, rank, indexes[rank]));
                    let owed = rounds.owed();
                    let waits = |sent: u64| {
                        let mut others = vec![u64::MAX; 3];
                        others[own] = sent;
                        senders().any(|rank| waits(rank, indexes[rank] - 1, &others))
                    };
                    assert!(!waits(owed), "own {own}, {indexes:?}: {owed} are not enough");
                    assert!(owed == 0 || waits(owed - 1), "own {own}, {indexes:?}: {owed} are too many");
                }
            }
        }
    }

    /// Lets a sender send what it owes; returns how many indexes it has sent.
    fn fill(rounds: &mut RoundsOwed, present: u64) -> u64 {
        if rounds.owed() > present {
            rounds.note_nulls();
        }
        present.max(rounds.owed())
    }

    /// Whichever rank sends alone: once the others are idle, its next message waits for none of them, and takes the next index.
    #[test]
    fn the_next_message_waits_for_no_idle_sender() {
        const IDLE_FROM: u64 = IDLE_AFTER + 2;
        for sender in 0..3 {
            let (mut rounds, mut indexes) = ([RoundsOwed::default(); 3], [0; 3]);
            for message in 0..2 * IDLE_AFTER {
                let (mut before, index) = (indexes, indexes[sender]);
                before[sender] += 1;
                let has_waited = waits(sender, index, &before);
                match message {
                    // Nothing is before the very first one.
                    0 => assert_eq!(has_waited, sender > 0, "{sender}"),
                    1..IDLE_AFTER => assert!(has_waited, "{sender}: message {message}"),
                    // They become idle, one after the other.
                    IDLE_AFTER..IDLE_FROM => {}
                    _ => assert!(!has_waited, "{sender}: message {message}"),
                }
                assert_eq!(index, message, "{sender}: it has sent no nulls");
                indexes = before;
                rounds[sender].note_sent();
                for own in (0..3).filter(|own| *own != sender) {
                    rounds[own].note_messages(own, sender, indexes[sender]);
                    indexes[own] = fill(&mut rounds[own], indexes[own]);
                }
                assert!(rounds[sender].owed() <= indexes[sender], "it owes nothing for that");
            }
        }
    }

    /// Senders that take turns, or that had no core while others sent many messages, are not idle: nothing is sent ahead of them.
    #[test]
    fn a_sender_that_is_not_idle_owes_exactly_the_gap() {
        let (mut rounds, mut indexes) = (RoundsOwed::default(), 0);
        for turn in 1..10 {
            for message in 1..IDLE_AFTER {
                rounds.note_messages(1, 0, turn * 1000 + message);
                indexes = fill(&mut rounds, indexes);
                assert_eq!(indexes, turn * 1000 + message - 1);
            }
            rounds.note_sent();
        }
    }

    #[test]
    fn the_last_index_is_not_passed() {
        let mut rounds = RoundsOwed::default();
        rounds.note_messages(0, 1, INDEXES_MAX - 1);
        (0..IDLE_AFTER).for_each(|_| rounds.note_nulls());
        assert_eq!(rounds.owed(), INDEXES_MAX - 1);
    }

    /// [N4] Nulls of others cause none.
    #[test]
    fn nulls_end() {
        let (mut rounds, mut indexes) = ([RoundsOwed::default(); 4], [0, 70, 30, 0]);
        (0..IDLE_AFTER).for_each(|_| [0, 3].iter().for_each(|idle| rounds[*idle].note_nulls()));
        for (own, rounds) in rounds.iter_mut().enumerate() {
            [1, 2].iter().filter(|sender| **sender != own).for_each(|sender| {
                rounds.note_messages(own, *sender, indexes[*sender]);
            });
        }
        for _ in 0..3 {
            for (rounds, indexes) in rounds.iter_mut().zip(&mut indexes) {
                *indexes = fill(rounds, *indexes);
            }
        }
        assert_eq!(indexes, [71, 70, 69, 70], "one more where a sender is idle");
    }
}
