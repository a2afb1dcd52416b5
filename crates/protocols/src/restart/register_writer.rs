//! What others may see of a register: what is on the disk (Derecho §3.4, "Total failures").

use super::mutation;
use super::register::Register;
use super::view_end::Vote;
use crate::ends::Ballot;

/// A register and its copy on the disk.
///
/// **Law.** The owner changes the register by its transitions. [`RegisterWriter::poll_write`] yields what the driver is to write and
/// to flush; when it is on the disk, the driver calls [`RegisterWriter::handle_written`]. One write is under way at a time, and a
/// write takes along all changes made meanwhile. Only what is on the disk may be shown to others or acted upon \[T6\] \[T8\] \[T12\]
/// \[T15\].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterWriter {
    wanted: Register,
    durable: Register,
    writing: Option<Register>,
    /// It may have been changed since the last write began.
    is_changed: bool,
}

impl RegisterWriter {
    /// A register that is on the disk.
    #[must_use]
    pub fn new(register: Register) -> Self {
        Self { wanted: register.clone(), durable: register, writing: None, is_changed: false }
    }

    /// The register with all changes.
    #[must_use]
    pub const fn wanted(&self) -> &Register {
        &self.wanted
    }

    /// The register with the changes that are on the disk.
    #[must_use]
    pub const fn durable(&self) -> &Register {
        &self.durable
    }

    /// The register, to change it.
    pub const fn change(&mut self) -> &mut Register {
        self.is_changed = true;
        &mut self.wanted
    }

    /// Whether a write is under way.
    #[must_use]
    pub const fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// What to write next, if no write is under way.
    pub fn poll_write(&mut self) -> Option<Register> {
        let is_due = self.writing.is_none() && std::mem::take(&mut self.is_changed);
        if !is_due || self.wanted == self.durable {
            return None;
        }
        self.writing = Some(self.wanted.clone());
        Some(stored(&self.wanted))
    }

    /// The write has come to the disk.
    ///
    /// # Panics
    /// If none is under way.
    pub fn handle_written(&mut self) {
        self.durable = self.writing.take().expect("a write is under way");
    }

    /// The vote that others may see.
    #[must_use]
    pub fn visible_vote(&self) -> Option<&Vote> {
        let Some(vote) = &self.wanted.vote else { return None };
        let is_early = match vote.ballot.is_restart() {
            false => mutant!(ShowEchoEarly) || mutant!(ForgetEcho),
            true => mutant!(ShowAcceptanceEarly) || mutant!(ForgetAcceptance),
        };
        if is_early { Some(vote) } else { self.durable.vote.as_ref() }
    }

    /// Whether others see the latest vote. Until they do, a member must not show them that it suspects the leader for which it has
    /// voted: a later leader that sees the suspicion takes it that no vote follows any more \[T6\].
    #[must_use]
    pub fn shows_vote(&self) -> bool {
        self.visible_vote() == self.wanted.vote.as_ref() || mutant!(SuspectBeforeEcho)
    }

    /// The promise that others may see.
    #[must_use]
    pub fn visible_promise(&self) -> Option<Ballot> {
        match mutant!(ForgetPromise) {
            true => self.wanted.promise,
            false => self.durable.promise,
        }
    }

    /// Whether the present view is on the disk, so that the process may act in it \[T8\].
    #[must_use]
    pub fn has_recorded_view(&self) -> bool {
        self.durable.record.view == self.wanted.record.view || mutant!(ActBeforeRecord)
    }
}

/// What comes to the disk of a register: all of it.
fn stored(register: &Register) -> Register {
    let mut stored = register.clone();
    let is_forgotten = |vote: &Vote| match vote.ballot.is_restart() {
        false => mutant!(ForgetEcho),
        true => mutant!(ForgetAcceptance),
    };
    if stored.vote.as_ref().is_some_and(is_forgotten) {
        stored.vote = None;
    }
    mutant!(ForgetPromise => stored.promise = stored.vote.as_ref().map(|vote| vote.ballot));
    stored
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::super::mutation::{RestartMutation, with};
    use super::super::register::tests::{end, view};
    use super::*;

    #[test]
    fn a_change_is_seen_when_it_is_on_the_disk() {
        let mut writer = RegisterWriter::new(Register::new(1, NodeId(0), view(0, &[0, 1])));
        assert_eq!(writer.poll_write(), None);
        let vote = Vote { ballot: Ballot::live(0), end: end(2, view(1, &[0])) };
        assert!(writer.change().vote(vote.clone()));
        let written = writer.poll_write().expect("a change");
        assert_eq!((written.vote.as_ref(), writer.visible_vote()), (Some(&vote), None));
        assert!(!writer.shows_vote(), "a suspicion of the leader has to wait");
        assert!(with(RestartMutation::SuspectBeforeEcho, || writer.shows_vote()));
        let ballot = Ballot::above(None, NodeId(1));
        assert!(writer.change().promise(ballot));
        assert_eq!(writer.poll_write(), None, "one write at a time");
        writer.handle_written();
        assert_eq!((writer.visible_vote(), writer.visible_promise()), (Some(&vote), Some(vote.ballot)));
        assert!(writer.poll_write().is_some());
        writer.handle_written();
        assert_eq!(writer.visible_promise(), Some(ballot));
        writer.change().end_view(&vote.end);
        assert!(!writer.has_recorded_view());
    }
}
