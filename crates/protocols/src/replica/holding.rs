//! Holding: whether a member's state counts when a view ends (Derecho app. A: state transfer).
//!
//! A view says which members held the state of a shard when the previous view ended. So each member has to determine,
//! at the moment at which it wedges, whether it holds the state. The thread that polls the group and the one that
//! receives states share this.

use super::mutation;

/// One member's claim to the state of a shard.
///
/// **Law.** [`Holding::begin_view`] when a view is installed; [`Holding::seal`] when it ends; [`Holding::hold`]
/// before a state that has arrived is taken over, which must follow if the answer is [`HoldDecision::Counted`].
#[derive(Debug, Default)]
pub struct Holding {
    /// The view in which this member has entered the shard, while it is in it.
    stay: Option<u64>,
    /// The stay in which it has got the state, by the view in which it began.
    held: Option<u64>,
    /// The current view has ended, so no state is taken over.
    is_sealed: bool,
    /// The current view has no holder, so there will never be one.
    is_lost: bool,
}

/// What may be done with a state that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDecision {
    /// Take it over: this member counts as one that holds the state.
    Counted,
    /// The view is about to change: ask again.
    Later,
    /// Drop it: this member has left the shard since, or the group considers the state lost.
    NotWanted,
}

impl Holding {
    /// Notes that view `view` is installed: this member has been in the shard since view `stay`, or is not in it;
    /// `has_holders` says whether some member of the view holds the state.
    pub const fn begin_view(&mut self, view: u64, stay: Option<u64>, has_holders: bool) {
        self.stay = stay;
        self.is_sealed = false;
        self.is_lost = view > 0 && !has_holders;
    }

    /// Notes that this member has the state in the view that has begun, with which its group begins again: it is made from the log
    /// \[A13\], or is the initial one \[A18\].
    pub fn recover(&mut self) {
        self.held = self.stay;
    }

    /// Ends the view; returns whether this member holds the state, which does not change until the next view.
    pub fn seal(&mut self) -> bool {
        self.is_sealed = !mutant!(HoldAfterWedge);
        self.holds()
    }

    /// Returns whether this member holds the state. All members of view 0 begin with the initial state.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.stay.is_some() && (self.stay == Some(0) || self.stay == self.held)
    }

    /// Returns whether this member, which has been in the shard since view `since` as far as it knows, may take over
    /// a state.
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

    /// What counts when a view ends does not change until the next one.
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
