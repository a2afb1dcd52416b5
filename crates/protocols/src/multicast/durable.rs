//! Durable delivery: a message is delivered when all members of the view have it on their disks (Derecho §2 and §3.4, "durable"
//! mode).
//!
//! **State.** A [`MessageLog`] takes the messages; a walk over the senders' windows says how far they were handed to it.
//!
//! **Law.** In mode [`DeliveryMode::Durable`] the column `received` says what is on this member's disk, not what is in its memory.
//! All else is as in mode `Atomic`: what all have acknowledged is stable, and is delivered in order. So the sender's announcement
//! acknowledges nothing, not even its own message.
//!
//! - \[T1\] Messages are appended in total order as they are received, before they are stable, so that the disk and the network work
//!   at the same time; what is published has come to the disk.
//! - \[T2\] A message is delivered when all members, joiners too, have published it.
//! - \[T4\] A member that wedges takes nothing more, appends what it has without a gap, waits until that is on the disk, and counts
//!   just that. So the trim is a number of sequences, below which all members that continue have everything on their disks. A
//!   member that is excluded, and one that stops, deliver no more than that, too.
//!
//! **Nulls** are not appended: a sequence below the log's count that has no message is a null. Those behind the last message count when
//! a message follows them, and else nowhere: no member waits for a null that stands before no message, and the trim, which is the least of
//! counts that each end with a message, leaves none out that matters. So the nulls that idle senders send ahead, by which a message comes to the
//! disks one exchange earlier, cost the disks nothing.
//!
//! Votes and views are on the disk in a register of their own \[T6\] \[T8\] ([`crate::group`]); restarts are in
//! [`crate::restart`].

use std::fmt;

use squall_fabric::{Duration, Instant};

use super::order::{indexes_below, sequences_complete};
use super::{Consumer, Deliver, DeliveryMode, Message, Subgroup, SubgroupFailure};
use crate::coverage::{Point, reach};
use crate::mutation;

/// The log of a durable subgroup in one view.
pub trait MessageLog {
    /// Takes the next message; the sequences between the previous one and this one are nulls.
    fn append(&mut self, message: Message<'_>);

    /// Notes that a batch of messages, which have come at the same time, was appended.
    fn end_batch(&mut self) {}

    /// Returns how many sequences are on the disk, with everything before them: none behind the last message. It never decreases. The
    /// node should be polled soon after it has grown.
    fn persisted(&self) -> u64;

    /// Notes that all members have everything below `sequences` on their disks: it is delivered everywhere, now or at the end of the
    /// view \[T2\]. Logs that nothing else reads need not care.
    fn note_stable(&mut self, _sequences: u64) {}

    /// Notes that this member's application has taken everything below `sequences`, which is stable.
    fn note_delivered(&mut self, _sequences: u64) {}
}

/// What a member of a durable subgroup has appended.
pub(super) struct Persistence {
    log: Box<dyn MessageLog + Send>,
    walk: Consumer,
    /// One more than the sequence of the last message that was appended: `persisted <= appended`.
    appended: u64,
    /// What `appended` was when this was last noted, and when that was.
    mark: (u64, Instant),
}

impl fmt::Debug for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let persisted = self.log.persisted();
        f.debug_struct("Persistence")
            .field("walk", &self.walk)
            .field("appended", &self.appended)
            .field("persisted", &persisted)
            .finish_non_exhaustive()
    }
}

impl<D: Deliver> Subgroup<D> {
    /// Appends messages to `log`, in a durable subgroup: without that it acknowledges and delivers nothing.
    ///
    /// # Panics
    /// If the mode is not [`DeliveryMode::Durable`], or this member has already received something.
    pub fn keep_log(&mut self, log: Box<dyn MessageLog + Send>) {
        assert!(self.is_durable(), "a log of a subgroup that is not durable");
        assert!(self.indexes.iter().all(|indexes| *indexes == 0), "a log without the first messages");
        let walk = Consumer::new(&self.table, &self.row, &self.settings, &self.start, self.bodies.as_ref());
        self.persistence = Some(Persistence { log, walk, appended: 0, mark: (0, Instant::from_nanos(0)) });
    }

    /// Returns whether messages are delivered when they are on the disks.
    pub(super) fn is_durable(&self) -> bool {
        self.settings.mode == DeliveryMode::Durable
    }

    /// Appends what has been received without a gap; returns how many sequences are on the disk \[T1\].
    pub(super) fn persist(&mut self) -> u64 {
        let complete = sequences_complete(&self.indexes);
        let Some(Persistence { log, walk, appended, .. }) = &mut self.persistence else { return 0 };
        if complete > walk.taken()[0] {
            let consumed = walk.consume(0, complete, u64::MAX, &mut |message: Message<'_>| {
                *appended = message.sequence + 1;
                log.append(message);
            });
            log.end_batch();
            if let Err(corrupt) = consumed {
                let persisted = log.persisted();
                self.fail(SubgroupFailure::Corrupt(corrupt));
                return persisted;
            }
        }
        mutant!(AcknowledgeUnflushed => return complete);
        let persisted = log.persisted();
        assert!(persisted <= *appended, "[T1] {persisted} sequences of {appended} are on the disk");
        persisted
    }

    /// Returns whether something has not come to the disk although it was appended [`SLOW_DISK`] ago.
    pub(super) fn is_behind_on_disk(&mut self, now: Instant) -> bool {
        let Some(Persistence { log, appended, mark, .. }) = &mut self.persistence else { return false };
        if log.persisted() >= mark.0 {
            *mark = (*appended, now);
            return false;
        }
        now.since(mark.1) >= SLOW_DISK
    }

    /// Returns whether something was appended that is not on the disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.persistence
            .as_ref()
            .is_some_and(|persistence| persistence.log.persisted() < persistence.appended)
    }

    /// Informs the log of what is stable.
    #[cold]
    pub(super) fn report_stable(&mut self) {
        if let Some(Persistence { log, .. }) = &mut self.persistence {
            log.note_stable(self.stable);
        }
    }

    /// Informs the log of what this member has delivered.
    pub(super) fn report_delivered(&mut self, sequences: u64) {
        if let Some(Persistence { log, .. }) = &mut self.persistence {
            log.note_delivered(sequences);
        }
    }

    /// Returns how many indexes of each sender a wedged member counts, when these are on its disk \[T4\].
    pub(super) fn durable_counts(&mut self) -> Option<Vec<u64>> {
        let persisted = self.persist();
        let appended = self.persistence.as_ref().map_or(0, |persistence| persistence.appended);
        if persisted < appended && self.failure.is_none() && !mutant!(WedgeUnflushed) {
            reach(Point::WedgeFlushed);
            return None;
        }
        mutant!(CountBeyondGap => return Some(self.indexes.clone()));
        let senders = self.indexes.len();
        Some((0..senders).map(|sender| indexes_below(appended, sender, senders)).collect())
    }
}

/// A disk that takes longer for a message is slow: others take a few milliseconds.
const SLOW_DISK: Duration = Duration::from_millis(40);
