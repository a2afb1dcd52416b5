//! Which step of the protocol a post belongs to (Derecho §3.4).

use squall_fabric::MirrorKey;
use squall_fabric::sim::Happening;
use squall_protocols::membership::{MembershipRow, SenderSegment};

use crate::group::STATES;

/// What a post in the first view carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakeoverStep {
    /// Messages, announcements and acknowledgements.
    Multicast,
    /// The members that the member suspects.
    Suspicion,
    /// The wish to leave.
    Leaving,
    /// How much of each sender is here.
    Counts,
    /// That the member has wedged.
    Wedge,
    /// A proposal, its own or one that it echoes.
    Proposal,
    /// Whose proposal it has echoed.
    Echo,
    /// That the proposal is decided.
    Decision,
    /// The heartbeat, after everything else.
    Heartbeat,
    /// The next view, for those who are new.
    ViewNotice,
    /// Anything in a later view.
    NextView,
}

/// Where the columns are in the first view of a group of `members` members that all send in one subgroup.
pub(super) struct StepColumns(MembershipRow);

impl StepColumns {
    pub(super) fn new(members: u32) -> Self {
        let senders = members as usize;
        let segment = SenderSegment {
            counts: 0,
            trims: 0,
            senders,
            ranks: (0..senders).collect(),
            durable: None,
            quorum: senders,
        };
        Self(MembershipRow::new(senders, &[segment], STATES))
    }

    /// The step of a post, if `what` is one.
    pub(super) fn step(&self, what: &Happening) -> Option<TakeoverStep> {
        match what {
            Happening::Posted { mirror: Some((key, first)), .. } | Happening::Shown { key, first, .. } => {
                Some(self.step_of(*key, *first))
            }
            _ => None,
        }
    }

    fn step_of(&self, MirrorKey(key): MirrorKey, first: usize) -> TakeoverStep {
        let row = &self.0;
        if key >> 63 == 1 {
            return TakeoverStep::ViewNotice;
        }
        match (key >> 20, key & 0xf_ffff) {
            (0, 0) => {}
            (0, _) => return TakeoverStep::Multicast,
            _ => return TakeoverStep::NextView,
        }
        if row.counts.words(0..row.counts.count()).contains(&first) {
            return TakeoverStep::Counts;
        }
        match first {
            word if word == row.accused.range().start => TakeoverStep::Suspicion,
            word if word == row.leaving.word() => TakeoverStep::Leaving,
            word if word == row.wedged.range().start => TakeoverStep::Wedge,
            word if word == row.echoed.word() => TakeoverStep::Echo,
            word if word == row.decided.word() => TakeoverStep::Decision,
            word if word == row.heartbeat.word() => TakeoverStep::Heartbeat,
            _ => TakeoverStep::Proposal,
        }
    }
}
