//! Links of processes that are in no view yet, bounded in number and in time \[J4\] (Derecho §3.3).
//!
//! Every process that knows the secret can link with a member and claim any number. So the number must be one that a
//! leader can have assigned recently, and a link whose process does not become a member is closed. When a member
//! closes a link that may belong to a candidate, it reports this to the group: the others may have accepted their
//! links, and the candidate would enter a view in which this member cannot reach it \[J3\].

use std::collections::BTreeMap;
use std::fmt;

use squall_fabric::{Duration, Instant, NodeId};

use super::mutation;
use super::number::is_timely;

/// The links of processes that are in no view, each with the time at which it was accepted.
#[derive(Debug)]
pub(super) struct PendingLinks {
    since: BTreeMap<NodeId, Instant>,
    life: Duration,
}

/// The decision about a new link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkVerdict {
    /// The link is accepted: the driver hands it to the fabric.
    Take,
    /// The link is closed: no candidate has this number.
    Close,
    /// The link is closed, and so is every other link of this number, which a candidate may have.
    Report,
}

impl fmt::Display for LinkVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Take => "the link is accepted",
            Self::Close => "no joining process has this number",
            Self::Report => {
                "the process has several links, or there are too many pending links; it has to ask again"
            }
        })
    }
}

impl PendingLinks {
    /// Returns an empty set, in which each link may remain for `life`.
    pub(super) const fn new(life: Duration) -> Self {
        Self { since: BTreeMap::new(), life }
    }

    /// Decides about a new link during view number `view`. An accepted link is counted.
    pub(super) fn judge(&mut self, node: NodeId, is_known: bool, view: u64, now: Instant) -> LinkVerdict {
        if self.since.contains_key(&node) {
            // A leader assigns each number once, so one of the two links is not the candidate's.
            return LinkVerdict::Report;
        }
        if is_known || !is_timely(node, view) {
            return LinkVerdict::Close;
        }
        if self.since.len() >= LINKS_MAX {
            return LinkVerdict::Report;
        }
        self.since.insert(node, now);
        LinkVerdict::Take
    }

    /// Removes a closed link. Returns whether it was pending.
    pub(super) fn remove(&mut self, node: NodeId) -> bool {
        self.since.remove(&node).is_some()
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.since.contains_key(&node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.since.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.since.len()
    }

    /// Removes and returns the nodes for which `is_over` is true.
    pub(super) fn take(&mut self, is_over: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.since.extract_if(.., |node, _| is_over(*node)).map(|(node, _)| node).collect()
    }

    /// Removes and returns the nodes whose links have expired. The time of those that are in the view begins anew: they are removed when
    /// all members have begun it.
    pub(super) fn take_expired(&mut self, now: Instant, is_member: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        mutant!(KeepLinks => return Vec::new());
        let life = self.life;
        let over = self.since.iter_mut().filter(|(_, since)| **since + life <= now);
        over.filter(|(node, _)| is_member(**node)).for_each(|(_, since)| *since = now);
        self.since.extract_if(.., |_, since| *since + life <= now).map(|(node, _)| node).collect()
    }

    /// Returns when the first link expires.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = self.since.values().min().filter(|_| !mutant!(KeepLinks));
        first.map(|since| *since + self.life)
    }
}

/// The maximum number of links of processes in no view. A leader admits one process at a time, so legitimate links
/// are few.
pub const LINKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::number::NodeNumbers;
    use super::*;

    fn none() -> PendingLinks {
        PendingLinks::new(Duration::from_secs(120))
    }

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    /// Returns the number that is assigned after `count` others in a view.
    fn number(view: u64, count: u32) -> NodeId {
        let mut numbers = NodeNumbers::default();
        (0..count).for_each(|_| _ = numbers.next(view, 64));
        numbers.next(view, 64).unwrap()
    }

    #[test]
    fn a_link_with_a_number_that_no_leader_assigned_is_closed() {
        let mut links = none();
        for (view, node) in [(0, 7), (0, u32::MAX), (500, 1 << 6), (5, (200 << 6) + 1)] {
            let verdict = links.judge(NodeId(node), false, view, at(0));
            assert_eq!(verdict, LinkVerdict::Close, "{node} in view {view}");
        }
        let given = number(5, 0);
        assert_eq!(links.judge(given, true, 5, at(0)), LinkVerdict::Close, "it is a member");
        for view in [0, 5, 6, 69] {
            assert_eq!(none().judge(given, false, view, at(0)), LinkVerdict::Take, "in view {view}");
        }
    }

    /// The leader has assigned the number to one process, and the member cannot tell which of the two links is that
    /// process's.
    #[test]
    fn a_second_link_with_the_same_number_is_reported() {
        let mut links = none();
        let node = number(0, 0);
        assert_eq!(links.judge(node, false, 0, at(0)), LinkVerdict::Take);
        assert_eq!(links.judge(node, true, 0, at(1)), LinkVerdict::Report);
        assert!(links.remove(node) && !links.remove(node));
    }

    #[test]
    fn pending_links_are_bounded_in_number_and_time() {
        let mut links = none();
        let taken =
            (0..60).filter(|count| links.judge(number(3, *count), false, 3, at(5)) == LinkVerdict::Take);
        assert_eq!(taken.count(), LINKS_MAX);
        let late = number(3, 61);
        assert_eq!(
            links.judge(late, false, 3, at(6)),
            LinkVerdict::Report,
            "a candidate's link is not accepted"
        );
        assert!(links.take_expired(at(100), |_| false).is_empty());
        assert_eq!(links.next_deadline(), Some(at(125)));
        assert_eq!(links.take_expired(at(125), |_| false).len(), LINKS_MAX);
        assert_eq!(links.next_deadline(), None);
        assert_eq!(links.judge(late, false, 3, at(126)), LinkVerdict::Take);
    }

    #[test]
    fn a_member_is_no_longer_counted() {
        let mut links = none();
        let [member, other] = [0, 1].map(|count| number(0, count));
        for node in [member, other] {
            links.judge(node, false, 0, at(0));
        }
        assert_eq!(links.take(|node| node == member), [member]);
        assert_eq!(links.take_expired(at(1000), |_| false), [other]);
    }
}
