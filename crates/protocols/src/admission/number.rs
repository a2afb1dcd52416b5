//! Node numbers: no two attempts to join ever have the same one \[J1\] (Derecho §3.3).

use squall_fabric::NodeId;

use super::mutation;
use crate::membership::MEMBERS_MAX;

/// The numbers that this member has assigned in the present view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeNumbers {
    view: u64,
    given: u32,
}

impl NodeNumbers {
    /// Returns the next number of view `view`, in which at most `most` numbers are assigned.
    ///
    /// # Errors
    /// [`NumbersExhausted`] if the view, or the group, has no number left.
    pub(super) fn next(&mut self, view: u64, most: u32) -> Result<NodeId, NumbersExhausted> {
        if self.view != view {
            *self = Self { view, given: 0 };
        }
        let first = first_number(view).ok_or(NumbersExhausted::Group)?;
        if self.given >= most.min(ADMISSIONS_MAX) {
            return Err(NumbersExhausted::View);
        }
        let node = NodeId(first + self.given);
        self.given += u32::from(!mutant!(RepeatNumber));
        Ok(node)
    }
}

/// No number is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumbersExhausted {
    /// In this view; the next view has further numbers.
    View,
    /// The group has had almost 2^26 views.
    Group,
}

/// The number of views that have numbers.
pub const VIEWS_WITH_NUMBERS: u64 = (1 << 32) / ADMISSIONS_MAX as u64 - BEFORE;

/// Returns the first number that is assigned in view `view`, if the view has numbers. The first members of the group
/// have lower numbers.
fn first_number(view: u64) -> Option<u32> {
    u32::try_from(view.checked_add(BEFORE)?).ok()?.checked_mul(ADMISSIONS_MAX)
}

/// Returns whether a leader can have assigned this number at about the time of view `view`. Views may pass while a
/// process joins, and a member may learn of them late.
pub(super) fn is_timely(node: NodeId, view: u64) -> bool {
    view_of(node).is_some_and(|given| given.abs_diff(view) <= VIEWS_APART_MAX)
}

/// Returns the view in which this number is assigned, unless it is a first member's.
pub(super) fn view_of(node: NodeId) -> Option<u64> {
    u64::from(node.0 / ADMISSIONS_MAX).checked_sub(BEFORE)
}

/// The count of numbers in a view. It is small, so that the numbers last for almost 2^26 views. A leader that needs more
/// asks for the next view.
pub const ADMISSIONS_MAX: u32 = 64;
const VIEWS_APART_MAX: u64 = 64;

/// The numbers below this many views' are those of the first members.
const BEFORE: u64 = (MEMBERS_MAX as u64).div_ceil(ADMISSIONS_MAX as u64);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_never_assigned_twice() {
        let mut given = BTreeSet::new();
        for view in [0, 1, 2, 70, VIEWS_WITH_NUMBERS - 1] {
            let mut numbers = NodeNumbers::default();
            for _ in 0..ADMISSIONS_MAX {
                let node = numbers.next(view, ADMISSIONS_MAX).unwrap();
                assert!(node.0 >= u32::try_from(MEMBERS_MAX).unwrap() && given.insert(node), "{node}");
                assert!(is_timely(node, view) && is_timely(node, view + 64) && !is_timely(node, view + 65));
            }
            assert_eq!(numbers.next(view, ADMISSIONS_MAX), Err(NumbersExhausted::View));
            assert_eq!(
                numbers.next(view + 1, ADMISSIONS_MAX).is_ok(),
                view + 1 < VIEWS_WITH_NUMBERS,
                "the next view has further numbers"
            );
        }
    }

    /// View numbers have 64 bits, node numbers 32.
    #[test]
    fn no_numbers_are_assigned_after_the_last_view_that_has_some() {
        for view in [VIEWS_WITH_NUMBERS, 1 << 26, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(NodeNumbers::default().next(view, 1), Err(NumbersExhausted::Group), "view {view}");
        }
        assert!(
            !is_timely(NodeId(7), 0) && !is_timely(NodeId(u32::MAX), 0),
            "no leader assigns these in view 0"
        );
    }
}
