//! Null-sends: how far a sender without messages must raise its announcement, so that others need not wait (Spindle
//! §3.3).
//!
//! Message `k` of rank `j` is preceded in the order by indexes `0..=k` of ranks below `j` and by `0..k` of ranks
//! above. So a sender that knows of message `k` of rank `j` owes `k + 1` indexes if its own rank is below `j`, else `k`.
//!
//! **Ahead.** A sender that has sent no message for [`IDLE_ROUNDS`] indexes owes one more: with it, the message that may come next waits for
//! no null, but for acknowledgements alone, which is one exchange less. The sender of that message owes nothing for it, so its
//! next message has the index that it would have had. If the idle sender sends a message itself, that one takes a later index, and may wait
//! for nulls of the others once.
//!
//! **Only messages.** What is owed follows from messages, never from nulls: each message makes each sender raise its announcement at most once,
//! so without messages nulls end \[N4\].
//!
//! `Deviation:` Spindle sends one null per received message and proves by induction that this is enough. With
//! batches it is not [N5]: the whole gap is filled at once. It sends none ahead.

use squall_fabric::window::INDEXES_MAX;

/// What a sender owes to the messages of the others. No I/O.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundsOwed {
    /// With this many indexes of this sender, no message that it knows of waits for one.
    due: u64,
    /// How many indexes this sender had after its latest message.
    sent: u64,
}

impl RoundsOwed {
    /// Notes that the sender with rank `sender` has sent messages, and `indexes` indexes in total; this one has rank `own`.
    #[inline]
    pub(super) fn note_messages(&mut self, own: usize, sender: usize, indexes: u64) {
        let owed = if own < sender { indexes } else { indexes.saturating_sub(1) };
        self.due = self.due.max(owed);
    }

    /// Notes that this sender has sent a message, and `indexes` indexes in total.
    #[inline]
    pub(super) const fn note_sent(&mut self, indexes: u64) {
        self.sent = indexes;
    }

    /// Returns how many indexes this sender owes to the messages that it knows of.
    #[inline]
    pub(super) const fn due(&self) -> u64 {
        self.due
    }

    /// Returns how many indexes this sender owes in total, those ahead included, if it has sent `present`.
    #[inline]
    pub(super) const fn owed(&self, present: u64) -> u64 {
        let is_idle = present.saturating_sub(self.sent) >= IDLE_ROUNDS;
        // A peer whose memory is corrupt may have announced the last index.
        if is_idle && self.due + 1 < INDEXES_MAX { self.due + 1 } else { self.due }
    }
}

/// After as many nulls a sender is likely to send more of them. In between, a sender that takes turns with others is not idle.
const IDLE_ROUNDS: u64 = 16;

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
                    let owed = rounds.owed(0);
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

    /// Whichever rank sends alone: once the others are idle, its next message waits for none of them, and takes the next index.
    #[test]
    fn the_next_message_waits_for_no_idle_sender() {
        const IDLE_FROM: u64 = IDLE_ROUNDS + 2;
        for sender in 0..3 {
            let (mut rounds, mut indexes) = ([RoundsOwed::default(); 3], [0; 3]);
            for message in 0..2 * IDLE_ROUNDS {
                let (mut before, index) = (indexes, indexes[sender]);
                before[sender] += 1;
                let has_waited = waits(sender, index, &before);
                match message {
                    // Nothing is before the very first one.
                    0 => assert_eq!(has_waited, sender > 0, "{sender}"),
                    1..IDLE_ROUNDS => assert!(has_waited, "{sender}: message {message}"),
                    // They become idle, one after the other.
                    IDLE_ROUNDS..IDLE_FROM => {}
                    _ => assert!(!has_waited, "{sender}: message {message}"),
                }
                assert_eq!(index, message, "{sender}: it has sent no nulls");
                indexes = before;
                rounds[sender].note_sent(indexes[sender]);
                for own in (0..3).filter(|own| *own != sender) {
                    rounds[own].note_messages(own, sender, indexes[sender]);
                    indexes[own] = indexes[own].max(rounds[own].owed(indexes[own]));
                }
                assert!(rounds[sender].owed(indexes[sender]) <= indexes[sender], "it owes nothing for that");
            }
        }
    }

    /// A sender that takes turns with another one is not idle: nothing is sent ahead of it.
    #[test]
    fn a_sender_that_takes_turns_owes_exactly_the_gap() {
        let mut rounds = RoundsOwed::default();
        for turn in 1..10 {
            let indexes = turn * IDLE_ROUNDS;
            rounds.note_messages(1, 0, indexes);
            assert_eq!(rounds.owed(indexes - 1), indexes - 1);
            rounds.note_sent(indexes);
        }
    }

    #[test]
    fn the_last_index_is_not_passed() {
        let mut rounds = RoundsOwed::default();
        rounds.note_messages(0, 1, INDEXES_MAX - 1);
        assert_eq!([rounds.owed(0), rounds.owed(INDEXES_MAX - 2)], [INDEXES_MAX - 1; 2]);
    }

    /// [N4] Each message makes each sender raise its announcement at most once: nulls cause none.
    #[test]
    fn nulls_end() {
        let (mut rounds, mut indexes) = ([RoundsOwed::default(); 4], [0, 70, 30, 0]);
        rounds[1].note_sent(70);
        rounds[2].note_sent(30);
        for own in 0..4 {
            [1, 2].iter().filter(|sender| **sender != own).for_each(|sender| {
                rounds[own].note_messages(own, *sender, indexes[*sender]);
            });
        }
        for _ in 0..3 {
            for own in 0..4 {
                indexes[own] = indexes[own].max(rounds[own].owed(indexes[own]));
            }
        }
        // One more where none was sent: those are idle.
        assert_eq!(indexes, [71, 70, 70, 70]);
    }
}
