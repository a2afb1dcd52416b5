//! Which processes are there, and how what others have announced in histories ends (OMG DDS 1.4 §2.2.3.11, LIVELINESS AUTOMATIC). No I/O, no
//! clock.
//!
//! A reader or writer that is closed says so itself. A process that dies does not, so another one does it for it, by an update of the histories
//! ([`GoneProcess`]) that names the process and an *order*: what the process has announced before that order ends, and nothing else. The order is
//! that of the next message of any topic ([`TopicRegistry::order`](crate::registry::TopicRegistry::order)), so it says which announcements the proposer knew. What such an update does
//! follows from it and from the histories, so it is the same at all members, wherever it comes in the order, and however often.
//!
//! **State.** Each history has the announcements, with their orders. The registry has the *lease* of each client outside the group: the order
//! of the last update by which the client said that it is there. It gets a lease when it gets its number, and renews it by each announcement, and
//! every [`RENEWAL_PERIOD`] ([`crate::client_link`]). The first member of the view has a [`PresenceWatch`], which counts for how many looks
//! each lease has been the same.
//!
//! **Step order**, at the first member of the view, after each view and every [`LOOK_PERIOD`]:
//! 1. It reads the histories: which processes have endpoints, which clients have leases, and the next order.
//! 2. It reads the view, after that: the view has every member that has announced something in what was read, and has not gone since. If
//!    the view is not as late as what was read, which may be the state of another member, it stops here.
//! 3. It proposes that each member is gone that is not in the view, before the next order; and each client whose lease has been the same for
//!    [`LEASE_LOOKS`] looks, before the order that follows the lease. There is no record of what was proposed: what is still there at the next look
//!    is proposed again.
//!
//! **Invariants.**
//! - No endpoint of a member of the view ends but by that member: members that have left a view do not come back under the same number, except by a
//!   restart of all members, which ends what is under way; and what they announce then has a later order than anything that was proposed before.
//! - An open endpoint of a client has an order that is at most that of the client's lease; a client without a lease has no open endpoint, and
//!   what it announces or writes is refused ([`KeptReply::Expired`](crate::kept::KeptReply::Expired)), not kept.
//! - A client whose lease is renewed has it afterwards, if it had it before: an update that ends it names the lease that the proposer saw.
//! - The endpoints of a process that has gone end when a member has been the first one of a view for [`LEASE_LOOKS`] looks; after a restart of
//!   all members, too, since leases are part of the histories. Until then they count in the bounds of histories.
//!
//! A client that was cut off for longer than its lease learns by the refusal that it has ended. It gets another number, announces its endpoints under that, and
//! does again what was refused; so nothing is lost, and nothing is there twice. Its readers remember how far they have read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A process has gone: what it has announced before this order ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GoneProcess {
    /// The node of a member, or the number of a client outside the group.
    pub(crate) node: u32,
    pub(crate) before: u64,
}

/// Which processes have something in the histories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence {
    /// The order of the next message of any topic.
    pub(crate) order: u64,
    /// The members that have endpoints which are open.
    pub(crate) members: BTreeSet<u32>,
    /// The order of the last update by which each client has said that it is there.
    pub(crate) leases: BTreeMap<u32, u64>,
}

impl Presence {
    /// Returns the members that have endpoints and are not in the view, which is one of this presence or a later one.
    pub(crate) fn absent(&self, view: &BTreeSet<u32>) -> Vec<GoneProcess> {
        self.members.difference(view).map(|node| GoneProcess { node: *node, before: self.order }).collect()
    }
}

/// For how long clients have not renewed their leases, as one member sees it.
#[derive(Debug, Default)]
pub(crate) struct PresenceWatch {
    /// The lease of each client, and for how many looks it has been the same.
    unheard: BTreeMap<u32, (u64, u32)>,
}

impl PresenceWatch {
    /// Looks at the leases, [`LOOK_PERIOD`] after it did so last at the earliest; returns the clients that are taken to have gone. It counts looks instead of
    /// measuring time, so a pause of this process is no silence of the clients.
    pub(crate) fn look(&mut self, leases: &BTreeMap<u32, u64>) -> Vec<GoneProcess> {
        self.unheard.retain(|node, (lease, _)| leases.get(node) == Some(lease));
        for (node, lease) in leases {
            self.unheard.entry(*node).and_modify(|(_, looks)| *looks += 1).or_insert((*lease, 0));
        }
        let is_over = |(_, (_, looks)): &(&u32, &(u64, u32))| *looks >= LEASE_LOOKS;
        let over = self.unheard.iter().filter(is_over);
        over.map(|(node, (lease, _))| GoneProcess { node: *node, before: lease + 1 }).collect()
    }
}

/// The numbers that a process gives its endpoints.
#[derive(Debug, Default)]
pub(crate) struct EndpointNumbers {
    next: u16,
    /// How many have been looked at, of all that there are.
    passed: u32,
    /// Those of earlier runs of the process, of which there is something in histories.
    taken: BTreeSet<u16>,
}

impl EndpointNumbers {
    /// Notes that endpoints of an earlier run have these numbers; before this run has any. It begins after the greatest one of them.
    pub(crate) fn exclude(&mut self, taken: impl IntoIterator<Item = u16>) {
        self.taken.extend(taken);
        self.next = self.taken.last().map_or(0, |last| last.wrapping_add(1));
    }

    /// Returns a number that no endpoint has had; `None` if there is none left.
    pub(crate) fn take(&mut self) -> Option<u16> {
        while self.passed <= u16::MAX.into() {
            let number = self.next;
            (self.next, self.passed) = (number.wrapping_add(1), self.passed + 1);
            if !self.taken.contains(&number) {
                return Some(number);
            }
        }
        None
    }
}

/// How often the first member of a view looks at the leases of clients.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// A client has gone when it has not renewed its lease for this many looks. That is far above the time in which it finds another member.
pub(crate) const LEASE_LOOKS: u32 = 60;
/// How often a client renews its lease: a few renewals may fail.
pub(crate) const RENEWAL_PERIOD: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });
/// How many processes a member proposes at a time that have gone.
pub(crate) const GONE_AT_ONCE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_renewed_does_not_end() {
        let mut watch = PresenceWatch::default();
        for look in 0..10 * u64::from(LEASE_LOOKS) {
            // One renews at every look but the last ones of its lease; the other one never does.
            let leases = BTreeMap::from([(7, look / u64::from(LEASE_LOOKS)), (8, 3)]);
            let gone = watch.look(&leases);
            assert!(gone.iter().all(|gone| gone.node != 7), "{look}");
            let is_over = look >= u64::from(LEASE_LOOKS);
            assert_eq!(gone.contains(&GoneProcess { node: 8, before: 4 }), is_over, "{look}");
        }
        assert_eq!(watch.look(&BTreeMap::new()), []);
        assert!(watch.unheard.is_empty(), "nothing is remembered of a client that has no lease");
    }

    #[test]
    fn members_outside_of_the_view_are_absent() {
        let presence = Presence { order: 9, members: BTreeSet::from([1, 2, 5]), ..Presence::default() };
        assert_eq!(presence.absent(&BTreeSet::from([1, 2, 5, 6])), []);
        assert_eq!(presence.absent(&BTreeSet::from([1, 5])), [GoneProcess { node: 2, before: 9 }]);
    }

    #[test]
    fn numbers_of_earlier_runs_are_left_out() {
        for (taken, first) in [(vec![], 0), (vec![1, 7], 8), (vec![1, u16::MAX], 0)] {
            let mut numbers = EndpointNumbers::default();
            numbers.exclude(taken.clone());
            let given: Vec<u16> = std::iter::from_fn(|| numbers.take()).collect();
            assert_eq!(given[0], first);
            let all: BTreeSet<u16> = given.iter().copied().chain(taken.iter().copied()).collect();
            assert_eq!((all.len(), given.len()), (1 << 16, (1 << 16) - taken.len()));
        }
    }
}
