//! The roster: the first members and their ranks (Derecho §2.2).

use squall_fabric::NodeId;

use super::mutation;

/// The members of the first view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster<A> {
    /// The name of this start of the group.
    pub session: u64,
    /// The coordinator.
    pub coordinator: NodeId,
    /// The address of each member, in the order of the ranks.
    pub listen: Vec<A>,
}

impl<A: Clone> Roster<A> {
    /// Returns the address of a member.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn address(&self, node: NodeId) -> &A {
        &self.listen[node.0 as usize]
    }

    /// Returns all members.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<A> {
        (0..u32::try_from(self.listen.len()).expect("at most MEMBERS_MAX")).map(NodeId)
    }
}

/// Assigns the ranks 0 to `wishes.len() - 1`: processes that asked for a rank get it, and the others fill the gaps in
/// order \[Q3\].
///
/// The wishes must be distinct and in range.
pub(super) fn assign(wishes: &[Option<u32>]) -> Vec<u32> {
    let is_free = |rank: &u32| !wishes.contains(&Some(*rank)) || mutant!(IgnoreRanks);
    let mut free = (0..).filter(is_free);
    let wish = |wish: &Option<u32>| wish.filter(|_| !mutant!(IgnoreRanks));
    wishes.iter().map(|own| wish(own).unwrap_or_else(|| free.next().expect("an endless range"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_granted_and_gaps_are_filled_in_order() {
        assert_eq!(assign(&[None, Some(0), None, Some(2)]), [1, 0, 3, 2]);
        assert_eq!(assign(&[None]), [0]);
    }
}
