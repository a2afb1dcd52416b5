//! A group in memory, which guarantees views and order, and nothing else (Derecho §3.4).
//!
//! Each view has a log of the messages that its members deliver; each member reaches its end at its own pace. A
//! sender's messages in flight continue in the next view if the sender is still in the shard, else they are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use squall_fabric::NodeId;
use squall_fabric::sim::Prng;

use crate::membership::{Member as GroupMember, View};
use crate::replica::{
    AppliedReply, HoldDecision, Holding, Machine, Replica, ReplicaSettings, Sessions, ShardDelivery,
    ShardPosition, ShardSnapshot, ShardView, SnapshotOutcome, StateRecovery, UpdateOrigin, UpdateOutcome,
    place,
};
use crate::replica::{SessionAnswer, UnderWay};

pub(super) type WorldFault = String;

/// Returns a fault unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}
pub(super) use ensure;

/// The object: the list of all updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UpdateList(pub(super) Vec<u64>);

impl Machine for UpdateList {
    type Reply = u64;
    type Snapshot = Self;

    fn apply(&mut self, update: &[u8]) -> u64 {
        self.0.push(u64::from_le_bytes(update.try_into().expect("an update is a word")));
        self.0.len() as u64
    }

    fn encode(reply: &u64) -> Vec<u8> {
        reply.to_le_bytes().to_vec()
    }

    fn query(&self, _query: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    fn snapshot(&self) -> Self {
        self.clone()
    }
}

/// The waiter of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldWaiter {
    /// A member, for its own update.
    Own(u64),
    /// A client, for a session or for an update.
    Client(usize),
}

/// One process.
pub(super) struct WorldMember {
    pub(super) lives: bool,
    pub(super) replica: Replica<UpdateList>,
    pub(super) under_way: UnderWay<WorldWaiter>,
    /// The view that it is in, and how much of its log it has delivered.
    at: Option<usize>,
    next: usize,
    /// Messages that are committed, and in no log yet.
    window: VecDeque<(UpdateOrigin, u64)>,
    /// The view since which it has been in the shard, as the group knows.
    window_since: Option<u64>,
    /// What counts when a view ends.
    holding: Holding,
    /// The view is about to change: it has wedged.
    has_wedged: bool,
    /// It reported at its wedge that it holds the state.
    counted: bool,
    /// Whether it has had the state.
    had: bool,
}

/// A message in a view's log.
#[derive(Clone, Copy)]
struct Entry {
    sender: usize,
    sequence: u64,
    origin: UpdateOrigin,
    id: u64,
}

impl Entry {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.origin.append(&self.id.to_le_bytes(), &mut bytes);
        bytes
    }
}

/// A state that a provider has sent and the joiner has not taken yet.
pub(super) struct SentSnapshot {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) snapshot: ShardSnapshot<UpdateList>,
}

pub(super) struct ReplicaWorld {
    pub(super) members: BTreeMap<NodeId, WorldMember>,
    views: Vec<(ShardView, Vec<Entry>)>,
    pub(super) in_flight: Vec<SentSnapshot>,
    /// The view in which the state has begun; and the sessions that were used before it, or that were announced to clients as open.
    origin: u64,
    former: BTreeSet<u64>,
    known_sessions: BTreeSet<u64>,
    /// Updates that were reported as applied, and their positions then.
    pub(super) acknowledged: BTreeMap<u64, ShardPosition>,
    /// Updates that were reported to their senders as not delivered.
    pub(super) denied: BTreeSet<u64>,
    /// Answers that clients have not got yet.
    pub(super) answers: Vec<(usize, SessionAnswer)>,
    updates: u64,
}

impl ReplicaWorld {
    pub(super) fn new(group: u32, choose: impl FnOnce(&[NodeId]) -> Vec<NodeId>) -> Self {
        let mut world = Self {
            members: BTreeMap::new(),
            views: Vec::new(),
            in_flight: Vec::new(),
            origin: 0,
            former: BTreeSet::new(),
            known_sessions: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            denied: BTreeSet::new(),
            answers: Vec::new(),
            updates: 0,
        };
        world.begin_view((0..group).map(NodeId).collect(), choose);
        world
    }

    pub(super) fn view(&self) -> &ShardView {
        &self.views.last().expect("there is a view").0
    }

    pub(super) fn living(&self) -> Vec<NodeId> {
        self.members.iter().filter(|(_, member)| member.lives).map(|(node, _)| *node).collect()
    }

    pub(super) fn member(&mut self, node: NodeId) -> &mut WorldMember {
        self.members.get_mut(&node).expect("a node")
    }

    /// Lets all live members stop sending, and report which states they hold.
    pub(super) fn wedge(&mut self) {
        for member in self.members.values_mut().filter(|member| member.lives) {
            member.has_wedged = true;
            member.counted = member.holding.seal();
        }
    }

    /// Decides the group's next view, in which `choose` chooses the shard's members; live members that are not in it
    /// learn that at once.
    pub(super) fn begin_view(&mut self, group: Vec<NodeId>, choose: impl FnOnce(&[NodeId]) -> Vec<NodeId>) {
        let id = self.views.len() as u64;
        for node in &group {
            self.members.entry(*node).or_insert_with(|| WorldMember::new(*node));
        }
        let holds = |node: &NodeId| self.members[node].lives && self.members[node].counted;
        let ranks = group.iter().enumerate().filter(|(_, node)| holds(node));
        let holders = ranks.map(|(rank, _)| rank).collect();
        let members = group.iter().map(|node| GroupMember { node: *node, tag: 0 }).collect();
        let view = View { id, holders: vec![holders], ..View::first(members) };
        let (shard, holders) = (place(&view, 0, &group, choose), view.holders(0));
        for (node, member) in &mut self.members {
            if !shard.contains(node) {
                member.window.clear();
                member.window_since = None;
            } else if member.window_since.is_none() {
                member.window_since = Some(id);
            }
            (member.has_wedged, member.counted) = (false, false);
            member.holding.begin_view(id, member.window_since, !holders.is_empty());
        }
        let gone: Vec<_> = self.living().into_iter().filter(|node| !group.contains(node)).collect();
        let view = ShardView { id, group, members: shard, holders, is_first: id == 0 };
        self.views.push((view, Vec::new()));
        gone.into_iter().for_each(|node| self.stop(node));
    }

    /// All members die at once, and `back` begin the next view, those that `choose` takes with a shard in memory \[A18\].
    pub(super) fn begin_again(&mut self, back: Vec<NodeId>, choose: impl FnOnce(&[NodeId]) -> Vec<NodeId>) {
        let (id, last) = (self.views.len() as u64, self.views.len() - 1);
        for member in self.members.values_mut() {
            // No process is left to be notified.
            (member.lives, member.under_way) = (false, UnderWay::default());
            member.window.clear();
        }
        self.in_flight.clear();
        self.acknowledged.clear();
        self.origin = id;
        self.former.append(&mut self.known_sessions);
        let members = choose(&back);
        for node in &back {
            let mut member = WorldMember { at: Some(last), next: usize::MAX, ..WorldMember::new(*node) };
            member.window_since = members.contains(node).then_some(id);
            member.holding.begin_view(id, member.window_since, true);
            member.holding.recover();
            self.members.insert(*node, member);
        }
        let view = ShardView { id, group: back, holders: members.clone(), members, is_first: true };
        self.views.push((view, Vec::new()));
    }

    /// All members die at once, and `back` begin the next view of the shard with what their logs have: of the last view, in addition to
    /// what was delivered anywhere, a part of the rest \[A13\].
    pub(super) fn restart(&mut self, back: Vec<NodeId>, prng: &mut Prng) {
        let last = self.views.len() - 1;
        let in_last = self.members.values().filter(|member| member.at == Some(last));
        let delivered = in_last.map(|member| member.next).max().unwrap_or(0);
        let rest = self.views[last].1.len() - delivered;
        self.views[last].1.truncate(delivered + prng.index(rest + 1));
        let mut checkpoints: BTreeMap<NodeId, ShardSnapshot<UpdateList>> = BTreeMap::new();
        for (node, member) in &mut self.members {
            checkpoints
                .extend(member.replica.snapshot().filter(|_| prng.chance(500)).map(|taken| (*node, taken)));
            // No process is left to be notified.
            (member.lives, member.under_way) = (false, UnderWay::default());
            member.window.clear();
        }
        self.in_flight.clear();
        let id = self.views.len() as u64;
        let members: Vec<_> =
            self.view().members.iter().copied().filter(|node| back.contains(node)).collect();
        for node in &back {
            let mut member = WorldMember { at: Some(last), next: usize::MAX, ..WorldMember::new(*node) };
            let is_in = members.contains(node);
            member.window_since = is_in.then_some(id);
            member.holding.begin_view(id, member.window_since, true);
            if is_in {
                member.replica.recover(self.recovery(checkpoints.remove(node)));
                member.holding.recover();
            }
            self.members.insert(*node, member);
        }
        let view = ShardView { id, group: back, holders: members.clone(), members, is_first: false };
        self.views.push((view, Vec::new()));
    }

    /// What a member makes of its log, with a checkpoint that it has taken in its last run, if it has \[A16\].
    fn recovery(&self, checkpoint: Option<ShardSnapshot<UpdateList>>) -> StateRecovery<UpdateList> {
        let settings = ReplicaSettings::default();
        let mut recovery = StateRecovery::new(UpdateList::default(), settings);
        if let Some(ShardSnapshot { position, sessions, snapshot }) = checkpoint {
            let sessions = Sessions::decode(&sessions).expect("just encoded");
            recovery = StateRecovery::resume(position, sessions, snapshot, settings);
        }
        let begin = recovery.position();
        for (view, log) in &self.views {
            let message = |entry: &Entry| ShardPosition { view: view.id, sequence: entry.sequence };
            for entry in log.iter().filter(|entry| message(entry) >= begin) {
                recovery.apply(view.id, entry.sequence, &entry.bytes());
            }
        }
        recovery
    }

    /// Takes over a state that has arrived at `node`, or keeps it to be taken later, in which case it returns `None`.
    pub(super) fn take_over(
        &mut self,
        node: NodeId,
        snapshot: &ShardSnapshot<UpdateList>,
    ) -> Result<Option<SnapshotOutcome>, WorldFault> {
        let sessions = Sessions::decode(&snapshot.sessions).map_err(|error| error.to_string())?;
        let member = self.member(node);
        let Some(since) = member.replica.wants(snapshot.position) else {
            return Ok(Some(SnapshotOutcome::NotWanted));
        };
        match member.holding.hold(since) {
            HoldDecision::Later => return Ok(None),
            HoldDecision::NotWanted => return Ok(Some(SnapshotOutcome::NotWanted)),
            HoldDecision::Counted => {}
        }
        let taken = member.replica.take_over(snapshot.position, sessions, snapshot.snapshot.clone());
        self.permit(node);
        Ok(Some(taken))
    }

    /// Ends a member that dies, or learns that it was removed: only in the latter case are there waiters to be
    /// notified.
    pub(super) fn stop(&mut self, node: NodeId) {
        let member = self.member(node);
        member.lives = false;
        member.window.clear();
        for (waiting, outcome) in member.under_way.stop::<()>() {
            self.settle(waiting, &outcome);
        }
    }

    fn settle(&mut self, waiting: WorldWaiter, outcome: &UpdateOutcome<()>) {
        if let (WorldWaiter::Own(id), UpdateOutcome::NotDelivered) = (waiting, outcome) {
            self.denied.insert(id);
        }
    }

    /// Returns a new update's number.
    pub(super) const fn update(&mut self) -> u64 {
        self.updates += 1;
        self.updates
    }

    /// Sends an update, if `node` may.
    pub(super) fn send(
        &mut self,
        node: NodeId,
        origin: Option<UpdateOrigin>,
        id: u64,
        waiting: WorldWaiter,
    ) -> bool {
        let member = self.member(node);
        let may = !member.has_wedged
            && member.under_way.since().is_some()
            && member.under_way.since() == member.window_since;
        if !may || !member.lives {
            return false;
        }
        let number = member.under_way.number();
        let origin = match origin {
            None => UpdateOrigin::Member(number),
            Some(UpdateOrigin::Open(_)) => UpdateOrigin::Open(number),
            Some(origin) => origin,
        };
        member.under_way.send(origin, waiting);
        member.window.push_back((origin, id));
        true
    }

    /// Puts the oldest message of `node`'s window into the order, after `nulls`.
    pub(super) fn order(&mut self, node: NodeId, nulls: u64) {
        let (view, log) = self.views.last_mut().expect("there is a view");
        let Some(sender) = view.members.iter().position(|member| *member == node) else { return };
        let Some((origin, id)) = self.members.get_mut(&node).and_then(|member| member.window.pop_front())
        else {
            return;
        };
        let sequence = log.last().map_or(0, |last| last.sequence + 1) + nulls;
        log.push(Entry { sender, sequence, origin, id });
    }

    /// Lets `node` deliver its next message, or begin the next view; returns whether there was one.
    pub(super) fn advance(&mut self, node: NodeId) -> bool {
        let last = self.views.len() - 1;
        let views = &self.views;
        let member = self.members.get_mut(&node).expect("a node");
        let entry = member.at.and_then(|at| {
            let is_member = views[at].0.members.contains(&node);
            is_member.then(|| views[at].1.get(member.next).copied()).flatten()
        });
        if let (Some(entry), Some(at)) = (entry, member.at) {
            member.next += 1;
            self.deliver(node, at as u64, entry);
            return true;
        }
        if member.at == Some(last) {
            return false;
        }
        let first = views.iter().position(|(view, _)| view.group.contains(&node));
        let next = member.at.map_or_else(|| first.expect("it is in a view"), |at| at + 1);
        (member.at, member.next) = (Some(next), 0);
        let was_in = member.under_way.since().is_some();
        member.replica.begin_view(views[next].0.clone(), UpdateList::default);
        if was_in && !views[next].0.members.contains(&node) {
            for (waiting, outcome) in member.under_way.leave::<()>() {
                self.settle(waiting, &outcome);
            }
        }
        self.permit(node);
        true
    }

    /// Lets `node` send if it holds the state.
    pub(super) fn permit(&mut self, node: NodeId) {
        let member = self.member(node);
        if let Some(since) = member.replica.may_send_since() {
            member.under_way.begin(since);
        }
    }

    fn deliver(&mut self, node: NodeId, view: u64, entry: Entry) {
        let (Entry { sender, sequence, .. }, bytes) = (entry, entry.bytes());
        let member = self.member(node);
        let mut own = None;
        let message = ShardDelivery { view, sender, sequence, bytes: &bytes };
        member.replica.deliver(message, |origin, answer| own = Some((origin, answer)));
        let Some((origin, answer)) = own else { return };
        let waiting = member.under_way.deliver(origin);
        let position = member.replica.position().expect("it holds the state");
        match (waiting, answer) {
            (WorldWaiter::Own(id), _) => drop(self.acknowledged.insert(id, position)),
            (WorldWaiter::Client(client), AppliedReply::Session(answer)) => {
                if let SessionAnswer::Opened(id) = answer {
                    self.known_sessions.insert(id);
                }
                if matches!(answer, SessionAnswer::Reply(_)) {
                    self.acknowledged.entry(entry.id).or_insert(position);
                }
                self.answers.push((client, answer));
            }
            (WorldWaiter::Client(_), _) => unreachable!("a client has a session"),
        }
    }

    /// Returns all updates up to `position` as they have to be: those of each session once.
    fn list_at(&self, position: ShardPosition) -> UpdateList {
        let mut sessions = BTreeMap::new();
        let views = self.views.iter().filter(|(view, _)| view.id >= self.origin);
        let entries = views.flat_map(|(view, log)| log.iter().map(move |entry| (view.id, entry)));
        let before = entries
            .take_while(|(view, entry)| ShardPosition { view: *view, sequence: entry.sequence } < position);
        let counts = |(_, entry): &(u64, &Entry)| match entry.origin {
            UpdateOrigin::Member(_) => true,
            UpdateOrigin::Open(_) | UpdateOrigin::Query(_) => false,
            UpdateOrigin::Session { id, .. } if self.former.contains(&id) => false,
            UpdateOrigin::Session { id, number, .. } => {
                let last = sessions.entry(id).or_insert(0);
                number > std::mem::replace(last, number.max(*last))
            }
        };
        UpdateList(before.filter(counts).map(|(_, entry)| entry.id).collect())
    }

    /// Checks everything that must hold at any time.
    pub(super) fn check(&mut self) -> Result<(), WorldFault> {
        for (node, member) in &self.members {
            let (Some(list), Some(position)) = (member.replica.machine(), member.replica.position()) else {
                continue;
            };
            if position.view < self.origin {
                // It has died before the state began.
                continue;
            }
            let expected = self.list_at(position);
            ensure!(*list == expected, "[A1] {node:?} at {position:?} has {list:?}, not {expected:?}");
            let missing = self.acknowledged.iter().find(|(id, at)| **at <= position && !list.0.contains(id));
            ensure!(missing.is_none(), "[A2] {node:?} at {position:?} lacks {missing:?}");
            let wrong = list.0.iter().find(|id| self.denied.contains(id));
            ensure!(wrong.is_none(), "[A4] {node:?} has {wrong:?}, which was denied");
        }
        self.check_holders()
    }

    /// [A8] Checks that no member drops the state unless another member of its view had it, whether or not that one
    /// has died since.
    fn check_holders(&mut self) -> Result<(), WorldFault> {
        let has: BTreeSet<NodeId> = self
            .members
            .iter()
            .filter(|(_, member)| member.replica.machine().is_some())
            .map(|(node, _)| *node)
            .collect();
        for (node, member) in self.members.iter_mut().filter(|(_, member)| member.lives) {
            let lost = std::mem::replace(&mut member.had, has.contains(node)) && !member.had;
            let Some(view) = member.replica.view().filter(|_| lost) else { continue };
            let is_there = view.group.iter().any(|other| has.contains(other));
            ensure!(is_there, "[A8] {node:?} has dropped the state in {view:?}, which no other member has");
        }
        Ok(())
    }
}

impl WorldMember {
    fn new(node: NodeId) -> Self {
        Self {
            lives: true,
            replica: Replica::new(node, ReplicaSettings::default()),
            under_way: UnderWay::default(),
            at: None,
            next: 0,
            window: VecDeque::new(),
            window_since: None,
            holding: Holding::default(),
            has_wedged: false,
            counted: false,
            had: false,
        }
    }
}
