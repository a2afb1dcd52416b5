//! Which members a client outside the group knows, and when it asks for the present ones (Derecho app. A: external clients).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Duration, Instant, NodeId};

use super::mutation;
use crate::membership::View;

/// What a client knows of the group: a view, and where its members are reached, each at an `A`.
///
/// All members may be replaced one by one while a client is idle, or while the one member that it uses stays. So it does not
/// wait for a failure: it asks for the members when an answer names a later view than it knows, and otherwise now and then.
///
/// **Law.** Each answer of a member names the view that the member is in ([`Contacts::handle_view`]). When
/// [`Contacts::next_at`] has come, or after a round of failures, the client asks the [`Contacts::candidates`] in their order
/// until one answers, and hands in that answer ([`Contacts::handle_members`]), or that there was none
/// ([`Contacts::handle_silence`]).
///
/// Bounded: the members of one view, [`FORMER_MAX`] former ones, and the contacts of the configuration. A client that waits
/// asks once in a period, and not more than [`EAGER`] times as often when answers name later views.
#[derive(Clone, Debug)]
pub struct Contacts<A> {
    configured: Vec<A>,
    view: View,
    members: BTreeMap<NodeId, A>,
    /// Where members of earlier views were reached, the latest first.
    former: VecDeque<A>,
    period: Duration,
    /// How often members have been asked for, so that each is asked first in its turn.
    inquiries: usize,
    /// When it asks next.
    next_at: Instant,
    /// It does not ask before, unless something has failed.
    earliest: Instant,
    /// Since when members answer with a view before the known one.
    behind_since: Option<Instant>,
}

impl<A: Clone + PartialEq> Contacts<A> {
    /// A client that knows nothing but the `configured` contacts, and asks once in a `period` when nothing happens.
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

    /// The latest view that is known; without members at first.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// Where a member of the view is reached.
    #[must_use]
    pub fn address(&self, node: NodeId) -> Option<&A> {
        self.members.get(&node)
    }

    /// When the client asks for the members next.
    #[must_use]
    pub const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// An answer has come from a member that is in the view `id`. Returns whether [`Contacts::next_at`] is earlier now.
    pub fn handle_view(&mut self, id: u64) -> bool {
        let is_news = id > self.view.id && self.earliest < self.next_at && !mutant!(AskAfterFailures);
        if is_news {
            self.next_at = self.earliest;
        }
        is_news
    }

    /// Whom to ask for the members: those of the view, another one first each time; then former ones, which may have come
    /// back; in the end the configured ones.
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

    /// One of the candidates, the node `by`, has answered with its view and where the members are reached.
    ///
    /// A view before the known one counts only if `by` is no member of that one, which is asked only when the members are
    /// silent, or if members answer so for two periods: a group that has begun anew numbers its views from 0.
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

    /// None of the candidates has answered.
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

/// Former members that a client remembers: one group of the largest size.
pub const FORMER_MAX: usize = crate::membership::MEMBERS_MAX;
/// How many times as often a client asks whose answers name later views than it knows.
pub const EAGER: u32 = 16;
/// Periods that no run lasts.
const NEVER: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Member;

    const PERIOD: Duration = Duration::from_millis(16);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// The view `id` with these nodes, each reached at its number.
    fn group(id: u64, nodes: &[u32]) -> (View, BTreeMap<NodeId, u32>) {
        let member = |node: &u32| Member { node: NodeId(*node), tag: 0 };
        let view = View { id, ..View::first(nodes.iter().map(member).collect()) };
        (view, nodes.iter().map(|node| (NodeId(*node), *node)).collect())
    }

    fn learn(contacts: &mut Contacts<u32>, millis: u64, by: u32, id: u64, nodes: &[u32]) {
        let (view, members) = group(id, nodes);
        contacts.handle_members(at(millis), NodeId(by), view, members);
    }

    /// An idle client asks once in a period, and one that hears of a later view soon, but not more often than is stated.
    #[test]
    fn it_asks_now_and_then_and_when_there_is_news() {
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
    }

    /// Members first, each in its turn; then former ones; in the end the configured ones, each once.
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
        assert_eq!(contacts.candidates(), [3, 0, 2, 1, 9], "who comes back is a former one no longer");
    }

    /// Among known members an earlier view is no news; another group is, and so is one that has begun anew.
    #[test]
    fn a_group_that_began_anew_counts() {
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
        assert_eq!(contacts.view().id, 7, "a member that knows no addresses says nothing");
        learn(&mut contacts, 72, 1, 1, &[0, 1]);
        learn(&mut contacts, 104, 1, 1, &[0, 1]);
        assert_eq!(contacts.view().id, 1, "nobody is behind for so long");
    }

    /// However many members come and go, few are remembered.
    #[test]
    fn what_is_kept_is_bounded() {
        let mut contacts = Contacts::new(vec![0], PERIOD);
        for node in 0..1000 {
            learn(&mut contacts, 0, node, node.into(), &[node, node + 1]);
        }
        assert_eq!(contacts.candidates().len(), 2 + FORMER_MAX + 1);
    }
}
