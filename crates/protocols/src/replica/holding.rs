//! Holding: whether a member's state counts when a view ends (Derecho app. A: state transfer).
//!
//! A view says which members hold the state of a shard, as of the end of the view before. So it has to be settled for each
//! member, at the moment at which it wedges, whether it holds the state. The thread that polls the group and the one that
//! receives states share this.

use super::mutation;

/// One member's claim to the state of a shard.
///
/// **Law.** [`Holding::begin_view`] when a view is installed; [`Holding::seal`] when it ends; [`Holding::hold`] before a
/// state that has come is taken over, which must follow if the answer is [`HoldDecision::Counted`].
#[derive(Debug, Default)]
pub struct Holding {
    /// In which view this member has come into the shard, while it is in it.
    stay: Option<u64>,
    /// The stay in which it has got the state.
    held: Option<u64>,
    /// The present view has ended, so no state is taken over.
    is_sealed: bool,
    /// The present view has no holder, so none will ever be.
    is_lost: bool,
}

/// What may be done with a state that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDecision {
    /// Take it over: this member counts as one that holds the state.
    Counted,
    /// The view is about to change: ask again.
    Later,
    /// Drop it: this member has left the shard since, or the group takes the state for lost.
    NotWanted,
}

impl Holding {
    /// View `view` is installed: this member is in the shard since view `stay`, or not at all; and `has_holders` says
    /// whether some member of the view holds the state.
    pub const fn begin_view(&mut self, view: u64, stay: Option<u64>, has_holders: bool) {
        self.stay = stay;
        self.is_sealed = false;
        self.is_lost = view > 0 && !has_holders;
    }

    /// The view ends. Whether this member holds the state: no more and no less until the next view.
    pub fn seal(&mut self) -> bool {
        self.is_sealed = !mutant!(HoldAfterWedge);
        self.holds()
    }

    /// Whether this member holds the state. With the state of view 0 all members begin.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.stay.is_some() && (self.stay == Some(0) || self.stay == self.held)
    }

    /// Whether this member, which is in the shard since view `since` as far as it has come, may take a state over.
    pub fn hold(&mut self, since: u64) -> HoldDecision {
        if self.stay != Some(since) || self.is_lost {
            return HoldDecision::NotWanted;
        }
        if self.is_sealed {
            return HoldDecision::Later;
        }
        self.held = Some(since);
        HoldDecision::Counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts when a view ends stays as it is until the next one.
    #[test]
    fn between_two_views_nothing_is_taken_over() {
        let mut holding = Holding::default();
        holding.begin_view(3, Some(3), true);
        assert_eq!((holding.seal(), holding.hold(3)), (false, HoldDecision::Later));
        holding.begin_view(4, Some(3), true);
        assert_eq!((holding.hold(3), holding.seal()), (HoldDecision::Counted, true));
    }

    /// A state that was asked for in another stay, or by a group that has given it up, is not taken over.
    #[test]
    fn a_state_of_another_stay_does_not_count() {
        let mut holding = Holding::default();
        holding.begin_view(3, Some(3), true);
        assert_eq!(holding.hold(3), HoldDecision::Counted);
        holding.begin_view(4, None, true);
        assert_eq!((holding.holds(), holding.hold(3)), (false, HoldDecision::NotWanted));
        holding.begin_view(5, Some(5), true);
        assert_eq!((holding.holds(), holding.hold(3)), (false, HoldDecision::NotWanted));
        holding.begin_view(6, Some(5), false);
        assert_eq!(holding.hold(5), HoldDecision::NotWanted);
    }

    /// The members of the first view have the state with which the shard begins.
    #[test]
    fn the_first_members_hold_the_first_state() {
        let mut holding = Holding::default();
        holding.begin_view(0, Some(0), false);
        assert!(holding.holds() && holding.seal());
    }
}
