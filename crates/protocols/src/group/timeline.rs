//! The timeline: when a node took which step of its latest view changes (Derecho §3.4, and the pauses of §4).

use std::collections::VecDeque;

use squall_fabric::Instant;

use crate::membership::{Membership, Proposal, View, ViewChangeStep, ViewChangeSteps};

/// The number of view changes that are kept: enough to examine the last few, and few enough to keep always.
pub const CHANGES_KEPT: usize = 16;

/// A node's change from one view to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewChange {
    /// The number of the view that begins, or would have begun.
    pub to: u64,
    /// The number of its members; 0 if this node never learned it.
    pub members: usize,
    /// The number of members of the previous view that are not in it.
    pub removed: usize,
    /// The number of members that are new in it; all of them, if it is the first view of this node.
    pub joined: usize,
    /// Whether this node led when the previous view ended.
    pub led: bool,
    /// When each step was taken, by this node's clock. Without [`ViewChangeStep::Installed`] the group has ended here.
    pub steps: ViewChangeSteps,
}

impl ViewChange {
    /// Returns the change that begins when the end of the view of `membership` is decided.
    pub(super) fn decided(membership: &Membership, decision: &Proposal) -> Self {
        let removed = decision.removed.len();
        let joined = decision.joins.len();
        let members = membership.view().members.len() - removed + joined;
        Self { members, removed, joined, ..Self::stopped(membership) }
    }

    /// Returns the change in which the node stops in the view of `membership`.
    pub(super) fn stopped(membership: &Membership) -> Self {
        let (to, led) = (membership.view().id + 1, membership.leads());
        Self { to, members: 0, removed: 0, joined: 0, led, steps: *membership.steps() }
    }

    /// Returns the change to `view`, which is this node's first.
    fn first(view: &View) -> Self {
        let members = view.members.len();
        Self {
            to: view.id,
            members,
            removed: 0,
            joined: members,
            led: false,
            steps: ViewChangeSteps::default(),
        }
    }
}

/// The latest view changes.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    changes: VecDeque<ViewChange>,
    /// The latest view is installed and not ready yet.
    opening: bool,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self { changes: VecDeque::with_capacity(CHANGES_KEPT), opening: false }
    }

    pub(super) fn changes(&self) -> impl ExactSizeIterator<Item = &ViewChange> {
        self.changes.iter()
    }

    pub(super) const fn is_opening(&self) -> bool {
        self.opening
    }

    pub(super) fn add(&mut self, change: ViewChange) {
        if self.changes.len() == CHANGES_KEPT {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
        self.opening = false;
    }

    /// Notes that `view` is installed.
    pub(super) fn install(&mut self, view: &View, at: Instant) {
        if self.changes.back().is_none_or(|change| change.to != view.id) {
            self.add(ViewChange::first(view));
        }
        self.note(ViewChangeStep::Installed, at);
        self.opening = true;
    }

    /// Notes that the latest change has reached `step`.
    pub(super) fn note(&mut self, step: ViewChangeStep, at: Instant) {
        if let Some(change) = self.changes.back_mut() {
            change.steps.note(step, at);
        }
        self.opening = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_changes_are_kept() {
        let mut timeline = Timeline::new();
        for id in 0..40 {
            timeline.install(&View { id, ..View::first(Vec::new()) }, Instant::from_nanos(id));
            assert!(timeline.is_opening());
            timeline.note(ViewChangeStep::Ready, Instant::from_nanos(id + 1));
        }
        assert!(!timeline.is_opening());
        let kept: Vec<u64> = timeline.changes().map(|change| change.to).collect();
        assert_eq!(kept, (40 - CHANGES_KEPT as u64..40).collect::<Vec<_>>());
    }
}
