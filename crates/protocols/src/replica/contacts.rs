//! The members that a client outside the group knows, and when it asks for the current ones (Derecho app. A: external
//! clients).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Duration, Instant, NodeId};

use super::mutation;
use crate::membership::View;

/// What a client knows about the group: a view, and the address `A` of each member.
///
/// All members may be replaced one by one while a client is idle, or while the one member that it uses stays. So it
/// does not wait for a failure: it asks for the members when an answer names a later view than it knows, when
/// a member has failed, and otherwise periodically.
///
/// **Law.** Each answer of a member names the member's view ([`Contacts::handle_view`]), and failures of members are
/// reported ([`Contacts::handle_failure`]). When [`Contacts::next_at`]
/// has come, or after a round of failures, the client asks the [`Contacts::candidates`] in their order until one
/// answers, and hands in that answer ([`Contacts::handle_members`]), or that there was none
/// ([`Contacts::handle_silence`]).
///
/// It is bounded: it has the members of one view, [`FORMER_MAX`] former ones, and the contacts of the configuration.
/// An idle client asks once in a period, and at most [`EAGER`] times as often when answers name later views or members
/// fail.
#[derive(Clone, Debug)]
pub struct Contacts<A> {
    configured: Vec<A>,
    view: View,
    members: BTreeMap<NodeId, A>,
    /// The addresses of members of earlier views, the latest first.
    former: VecDeque<A>,
    period: Duration,
    /// How often the client has asked, so that each member is asked first in its turn.
    inquiries: usize,
    /// When the client asks next.
    next_at: Instant,
    /// It does not ask before this time, unless something has failed.
    earliest: Instant,
    /// Since when members have answered with a view before the known one.
    behind_since: Option<Instant>,
}

impl<A: Clone + PartialEq> Contacts<A> {
    /// Returns a client that knows only the `configured` contacts, and asks once in a `period` when nothing happens.
    #[must_use]
    pub const fn new(configured: Vec<A>, period: Duration) -> Self {
        let start = Instant::from_nanos(0);
        Self {
            configured,
            view: View::first(Vec::new()),
            members: BTreeMap::new(),
            former: VecDeque::new(),
            period,
            inquiries: 0,
            next_at: start,
            earliest: start,
            behind_since: None,
        }
    }

    /// Returns the latest view that is known, which has no members at first.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// Returns the address of a member of the view.
    #[must_use]
    pub fn address(&self, node: NodeId) -> Option<&A> {
        self.members.get(&node)
    }

    /// Returns when the client asks for the members next.
    #[must_use]
    pub const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Handles an answer of a member that is in the view `id`. Returns whether [`Contacts::next_at`] is earlier now.
    pub fn handle_view(&mut self, id: u64) -> bool {
        id > self.view.id && self.ask_soon()
    }

    /// Handles that a member has failed, or has closed its connection: it may have left, and the others may follow
    /// it. Returns whether [`Contacts::next_at`] is earlier now.
    pub fn handle_failure(&mut self) -> bool {
        self.ask_soon()
    }

    fn ask_soon(&mut self) -> bool {
        let is_earlier = self.earliest < self.next_at && !mutant!(AskAfterFailures);
        if is_earlier {
            self.next_at = self.earliest;
        }
        is_earlier
    }

    /// Returns the processes to ask for the members: those of the view, another one first each time; then former
    /// ones, which may have returned; and the configured ones last.
    #[must_use]
    pub fn candidates(&self) -> Vec<A> {
        let first = self.inquiries.checked_rem(self.members.len()).unwrap_or(0);
        let members = self.members.values().skip(first).chain(self.members.values().take(first));
        let mut candidates: Vec<A> = Vec::new();
        for candidate in members.chain(&self.former).chain(&self.configured) {
            if !candidates.contains(candidate) {
                candidates.push(candidate.clone());
            }
        }
        candidates
    }

    /// Handles the answer of one of the candidates, the node `by`, with its view and the members' addresses.
    ///
    /// A view before the known one counts only if `by` is not a member of the known one, and so is asked only when
    /// the members are silent, or if members answer with such views for two periods: a group that has started again
    /// numbers its views from 0.
    pub fn handle_members(&mut self, now: Instant, by: NodeId, view: View, members: BTreeMap<NodeId, A>) {
        if view.id >= self.view.id || members.is_empty() {
            self.behind_since = None;
        }
        let behind_since = *self.behind_since.get_or_insert(now);
        let is_other = self.view.rank(by).is_none() || now >= behind_since + self.period * 2;
        if !members.is_empty() && (view.id >= self.view.id || is_other) {
            self.behind_since = None;
            self.replace(members);
            self.view = view;
        }
        self.wait(now);
    }

    fn replace(&mut self, members: BTreeMap<NodeId, A>) {
        let known = std::mem::replace(&mut self.members, members);
        for address in known.into_values() {
            self.former.retain(|former| *former != address);
            self.former.push_front(address);
        }
        self.former.retain(|former| !self.members.values().any(|address| address == former));
        self.former.truncate(FORMER_MAX);
    }

    /// Notes that none of the candidates has answered.
    pub fn handle_silence(&mut self, now: Instant) {
        self.wait(now);
    }

    fn wait(&mut self, now: Instant) {
        self.inquiries += 1;
        self.earliest = now + self.period / EAGER;
        self.next_at = now + self.period;
        mutant!(AskAfterFailures => self.next_at = now + self.period * NEVER);
    }
}

/// The number of former members that a client remembers: one group of the largest size.
pub const FORMER_MAX: usize = crate::membership::MEMBERS_MAX;
/// How many times as often a client asks when answers name later views than it knows.
pub const EAGER: u32 = 16;
/// A number of periods that no run reaches.
const NEVER: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Member;

    const PERIOD: Duration = Duration::from_millis(16);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Returns the view `id` with these nodes, each with its number as its address.
    fn group(id: u64, nodes: &[u32]) -> (View, BTreeMap<NodeId, u32>) {
        let member = |node: &u32| Member { node: NodeId(*node), tag: 0 };
        let view = View { id, ..View::first(nodes.iter().map(member).collect()) };
        (view, nodes.iter().map(|node| (NodeId(*node), *node)).collect())
    }

    fn learn(contacts: &mut Contacts<u32>, millis: u64, by: u32, id: u64, nodes: &[u32]) {
        let (view, members) = group(id, nodes);
        contacts.handle_members(at(millis), NodeId(by), view, members);
    }

    /// An idle client asks once in a period, and one that learns of a later view or loses a member asks soon, but not
    /// more often than stated.
    #[test]
    fn it_asks_periodically_and_when_there_is_a_later_view() {
        let mut contacts = Contacts::new(vec![0], PERIOD);
        assert_eq!(contacts.next_at(), at(0), "at once");
        learn(&mut contacts, 100, 0, 3, &[0, 1]);
        assert_eq!(contacts.next_at(), at(116));
        assert!(!contacts.handle_view(3) && !contacts.handle_view(2), "no news");
        assert_eq!(contacts.next_at(), at(116));
        assert!(contacts.handle_view(4));
        assert!(!contacts.handle_view(5), "it is about to ask");
        assert_eq!(contacts.next_at(), at(101));
        contacts.handle_silence(at(101));
        assert_eq!(contacts.next_at(), at(117));
        assert!(contacts.handle_failure() && !contacts.handle_failure());
        assert_eq!(contacts.next_at(), at(102));
    }

    /// Members are asked first, each in its turn; then former ones; and the configured ones last, each once.
    #[test]
    fn everyone_known_is_asked() {
        let mut contacts = Contacts::new(vec![0, 9], PERIOD);
        assert_eq!(contacts.candidates(), [0, 9]);
        learn(&mut contacts, 0, 0, 1, &[0, 1, 2]);
        assert_eq!(contacts.candidates(), [1, 2, 0, 9]);
        learn(&mut contacts, 0, 1, 2, &[2, 3]);
        assert_eq!(contacts.candidates(), [2, 3, 1, 0, 9]);
        assert_eq!(contacts.address(NodeId(0)), None);
        learn(&mut contacts, 0, 2, 3, &[0, 3]);
        assert_eq!(contacts.candidates(), [3, 0, 2, 1, 9], "a member that returns is no longer a former one");
    }

    /// An earlier view from a known member does not count; that of another group does, and so does that of a group
    /// that has started again.
    #[test]
    fn a_group_that_has_started_again_counts() {
        let mut contacts = Contacts::new(vec![0], PERIOD);
        learn(&mut contacts, 0, 0, 7, &[0, 1]);
        learn(&mut contacts, 0, 1, 6, &[0, 1, 2]);
        assert_eq!(contacts.view().id, 7, "1 is behind");
        learn(&mut contacts, 0, 5, 0, &[5]);
        assert_eq!((contacts.view().id, contacts.address(NodeId(5))), (0, Some(&5)));
        learn(&mut contacts, 0, 5, 7, &[0, 1]);
        learn(&mut contacts, 40, 0, 1, &[0, 1]);
        learn(&mut contacts, 71, 1, 1, &[0, 1]);
        learn(&mut contacts, 71, 1, 9, &[]);
        assert_eq!(contacts.view().id, 7, "an answer without addresses does not count");
        learn(&mut contacts, 72, 1, 1, &[0, 1]);
        learn(&mut contacts, 104, 1, 1, &[0, 1]);
        assert_eq!(contacts.view().id, 1, "no member is behind for this long");
    }

    /// However many members join and leave, few are remembered.
    #[test]
    fn former_members_are_bounded() {
        let mut contacts = Contacts::new(vec![0], PERIOD);
        for node in 0..u32::try_from(2 * FORMER_MAX).expect("few") {
            learn(&mut contacts, 0, node, node.into(), &[node, node + 1]);
        }
        assert_eq!(contacts.candidates().len(), 2 + FORMER_MAX + 1);
    }
}
