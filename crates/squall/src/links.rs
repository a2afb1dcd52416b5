//! Links of processes that are in no view yet: few, and for a limited time.
//!
//! Whoever knows the secret can link with a member and name any number. So a number must be one that a leader can have given
//! about now; a link whose process does not become a member ends; and where a link is closed that may be a joiner's, the group
//! is told, because the others may have taken theirs: it would come into a view in which this member cannot reach it.

use std::collections::BTreeMap;

use squall_fabric::{Duration, Instant, NodeId};

/// The links of those who are in no view, since when they stand.
#[derive(Debug, Default)]
pub(crate) struct Links {
    since: BTreeMap<NodeId, Instant>,
}

/// What becomes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is taken.
    Take,
    /// It is closed; no joiner has this number.
    Close,
    /// It is closed, and so is what there is of this number; a joiner may have it.
    Report,
}

impl Links {
    /// Judges a new link, while the view is number `view`. If it is taken, it counts.
    pub(crate) fn judge(&mut self, node: NodeId, is_known: bool, view: u64, now: Instant) -> Verdict {
        if self.since.contains_key(&node) {
            // A leader gives each number once, so one of the two links is nobody's.
            return Verdict::Report;
        }
        if is_known || !is_timely(node, view) {
            return Verdict::Close;
        }
        if self.since.len() >= LINKS_MAX {
            return Verdict::Report;
        }
        self.since.insert(node, now);
        Verdict::Take
    }

    /// The link is closed; whether it stood.
    pub(crate) fn remove(&mut self, node: NodeId) -> bool {
        self.since.remove(&node).is_some()
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.since.contains_key(&node)
    }

    /// Those who have become members are forgotten here, and returned.
    pub(crate) fn take_members(&mut self, is_member: impl Fn(&NodeId) -> bool) -> Vec<NodeId> {
        self.since.extract_if(.., |node, _| is_member(node)).map(|(node, _)| node).collect()
    }

    /// Those whose time is over; they do not count any more.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<NodeId> {
        self.since.extract_if(.., |_, since| *since + LINK_LIFE <= now).map(|(node, _)| node).collect()
    }

    /// When the first of them is over.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.since.values().min().map(|since| *since + LINK_LIFE)
    }
}

/// Whether a leader can have given this number about now. Views may pass while a process joins, and a member may hear of them
/// late.
fn is_timely(node: NodeId, view: u64) -> bool {
    let given = u64::from(node.0 / ADMISSIONS_MAX).checked_sub(1);
    given.is_some_and(|given| given.abs_diff(view) <= VIEWS_APART_MAX)
}

/// The number of the `count`th process that is admitted in view `view`; `None` if there is none.
pub(crate) fn node_number(view: u64, count: u32) -> Option<NodeId> {
    let view = u32::try_from(view).ok().filter(|view| *view < VIEWS_MAX - 1)?;
    (count < ADMISSIONS_MAX).then(|| NodeId((view + 1) * ADMISSIONS_MAX + count))
}

/// The first members have smaller numbers than any that is admitted.
const ADMISSIONS_MAX: u32 = 1 << 12;
const VIEWS_MAX: u32 = 1 << 20;
const _: () = assert!(squall_protocols::membership::MEMBERS_MAX < ADMISSIONS_MAX as usize);

/// A leader admits one process at a time, so honest ones are few.
const LINKS_MAX: usize = 16;
/// A leader lets a joiner link for ten seconds, and a view may take as long as suspicion and more.
const LINK_LIFE: Duration = Duration::from_secs(120);
const VIEWS_APART_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_number_that_no_leader_has_given_is_nobodys() {
        let mut links = Links::default();
        for (view, node) in [(0, 7), (0, u32::MAX), (500, 1 << 12), (5, (200 << 12) + 1)] {
            assert_eq!(
                links.judge(NodeId(node), false, view, at(0)),
                Verdict::Close,
                "{node} in view {view}"
            );
        }
        let given = node_number(5, 0).unwrap();
        assert_eq!(links.judge(given, true, 5, at(0)), Verdict::Close, "it is a member");
        for view in [0, 5, 6, 69] {
            assert_eq!(Links::default().judge(given, false, view, at(0)), Verdict::Take, "in view {view}");
        }
    }

    /// The leader has given the number to one process. Whose link came first, nobody can say.
    #[test]
    fn a_number_that_comes_twice_is_reported() {
        let mut links = Links::default();
        let node = node_number(0, 0).unwrap();
        assert_eq!(links.judge(node, false, 0, at(0)), Verdict::Take);
        assert_eq!(links.judge(node, true, 0, at(1)), Verdict::Report);
        assert!(links.remove(node) && !links.remove(node));
    }

    #[test]
    fn ghosts_are_few_and_do_not_stay() {
        let mut links = Links::default();
        let node = |count| node_number(3, count).unwrap();
        let taken = (0..1000).filter(|count| links.judge(node(*count), false, 3, at(5)) == Verdict::Take);
        assert_eq!(taken.count(), LINKS_MAX);
        assert_eq!(links.judge(node(1001), false, 3, at(6)), Verdict::Report, "a joiner's link is not taken");
        assert!(links.take_expired(at(100)).is_empty());
        assert_eq!(links.next_deadline(), Some(at(125)));
        assert_eq!(links.take_expired(at(125)).len(), LINKS_MAX);
        assert_eq!(links.next_deadline(), None);
        assert_eq!(links.judge(node(1001), false, 3, at(126)), Verdict::Take);
    }

    #[test]
    fn a_member_is_no_ghost() {
        let mut links = Links::default();
        let [member, other] = [0, 1].map(|count| node_number(0, count).unwrap());
        for node in [member, other] {
            links.judge(node, false, 0, at(0));
        }
        assert_eq!(links.take_members(|node| *node == member), [member]);
        assert_eq!(links.take_expired(at(1000)), [other]);
    }
}
