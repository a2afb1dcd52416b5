//! The list of contacts, and the sets of contacts that may start a group (Derecho §2.2).

/// The contacts of a cluster, the same at every process and in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactList<A> {
    /// The addresses at which some of the processes listen.
    all: Vec<A>,
    /// The position of this process on the list.
    own: Option<usize>,
}

impl<A: Clone + PartialEq> ContactList<A> {
    /// Returns a list on which this process has position `own`, or does not appear.
    ///
    /// # Panics
    /// If the list is empty, or `own` is not a position on it.
    #[must_use]
    pub fn new(all: Vec<A>, own: Option<usize>) -> Self {
        assert!(
            !all.is_empty() && own.is_none_or(|own| own < all.len()),
            "not a position on the list of contacts"
        );
        Self { all, own }
    }

    /// Returns all contacts.
    #[must_use]
    pub fn all(&self) -> &[A] {
        &self.all
    }

    /// Returns the position of this process.
    #[must_use]
    pub const fn own(&self) -> Option<usize> {
        self.own
    }

    /// Returns the other contacts, in the order of the list.
    pub(super) fn others(&self) -> impl Iterator<Item = &A> {
        self.all.iter().enumerate().filter(|(place, _)| Some(*place) != self.own).map(|(_, contact)| contact)
    }

    /// Returns whether the contacts at these distinct positions may start a group of `members`: they are a majority
    /// of the contacts, where the first contact breaks a tie, or, if fewer members than that are planned, include the
    /// first contact.
    #[must_use]
    pub fn is_quorum(&self, places: &[usize], members: u32) -> bool {
        let has_first = places.contains(&0);
        if (members as usize) < self.quorum() {
            return has_first;
        }
        2 * places.len() + usize::from(has_first) > self.all.len()
    }

    /// Returns the size of the smallest quorum.
    #[must_use]
    pub const fn quorum(&self) -> usize {
        self.all.len().div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any two quorums of up to seven contacts have a contact in common, for every number of members, and all
    /// contacts together are a quorum.
    #[test]
    fn quorums_intersect() {
        for contacts in 1..=7_usize {
            let list = ContactList::new((0..contacts).collect(), None);
            for members in 1..=8 {
                let places =
                    |set: usize| (0..contacts).filter(|place| set >> place & 1 == 1).collect::<Vec<_>>();
                let quorums: Vec<usize> =
                    (0..1 << contacts).filter(|set| list.is_quorum(&places(*set), members)).collect();
                assert!(quorums.contains(&((1 << contacts) - 1)));
                for (a, b) in quorums.iter().flat_map(|a| quorums.iter().map(move |b| (a, b))) {
                    assert_ne!(a & b, 0, "{contacts} contacts, {members} members");
                }
                let least = quorums.iter().map(|set| set.count_ones()).min();
                assert!(
                    least <= Some(members),
                    "the smallest quorum has at most as many contacts as there are members"
                );
            }
        }
    }

    /// Of two contacts, the first alone may start a group; of three, any two may.
    #[test]
    fn a_majority_or_half_with_the_first() {
        let two = ContactList::new(vec!['a', 'b'], Some(1));
        assert!(two.is_quorum(&[0], 3) && !two.is_quorum(&[1], 3));
        let three = ContactList::new(vec!['a', 'b', 'c'], None);
        assert!(three.is_quorum(&[1, 2], 3) && !three.is_quorum(&[0], 3));
        assert!(three.is_quorum(&[0], 1) && !three.is_quorum(&[1, 2], 1));
    }
}
