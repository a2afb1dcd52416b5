//! The roster: the first members and their ranks (Derecho §2.2).

use squall_fabric::NodeId;

use super::mutation;

/// The members of the first view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster<A> {
    /// Names this start of the group.
    pub session: u64,
    /// The member that coordinates.
    pub coordinator: NodeId,
    /// Where each is reached, in the order of their ranks.
    pub listen: Vec<A>,
}

impl<A: Clone> Roster<A> {
    /// Where a member is reached.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn address(&self, node: NodeId) -> &A {
        &self.listen[node.0 as usize]
    }

    /// All members.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<A> {
        (0..u32::try_from(self.listen.len()).expect("at most MEMBERS_MAX")).map(NodeId)
    }
}

/// Gives out the ranks 0 to `wishes.len() - 1`: those who have asked for one get it, the others fill the gaps in order \[Q3\].
///
/// Wishes are distinct and in range.
pub(super) fn assign(wishes: &[Option<u32>]) -> Vec<u32> {
    let is_free = |rank: &u32| !wishes.contains(&Some(*rank)) || mutant!(IgnoreRanks);
    let mut free = (0..).filter(is_free);
    let wish = |wish: &Option<u32>| wish.filter(|_| !mutant!(IgnoreRanks));
    wishes.iter().map(|own| wish(own).unwrap_or_else(|| free.next().expect("without an end"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_kept_and_gaps_are_filled_in_order() {
        assert_eq!(assign(&[None, Some(0), None, Some(2)]), [1, 0, 3, 2]);
        assert_eq!(assign(&[None]), [0]);
    }
}
