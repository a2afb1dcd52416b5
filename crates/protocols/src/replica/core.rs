//! The replica's core: applies updates, takes and gives the state (Derecho app. A, §3.4).

use std::collections::VecDeque;

use squall_fabric::NodeId;

use super::message::{ShardPosition, UpdateOrigin, items};
use super::mutation;
use super::search::Search;
use super::sessions::{SessionAnswer, Sessions};
use crate::coverage::{Point, reach};

/// The object that is replicated. What it does is a function of its state and the update alone.
pub trait Machine {
    /// What an update is answered with.
    type Reply;
    /// A consistent copy of the state, cheap to take: it is sent while updates go on.
    type Snapshot;

    /// Applies an update.
    fn apply(&mut self, update: &[u8]) -> Self::Reply;

    /// A reply as bytes, as clients get it and sessions keep it.
    fn encode(reply: &Self::Reply) -> Vec<u8>;

    /// Answers a query, as [`Machine::encode`] writes replies.
    fn query(&self, query: &[u8]) -> Vec<u8>;

    /// The state as it is now.
    fn snapshot(&self) -> Self::Snapshot;
}

/// Limits of a replica, the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// Sessions of clients in one shard; above that, the one used least recently is forgotten.
    pub sessions_max: usize,
    /// The longest reply in bytes that a session keeps; an update of a client whose reply is longer is applied, and the
    /// client is told only how long it was.
    pub reply_bytes_max: usize,
    /// Bytes of all replies that sessions keep; above that, the sessions used least recently are forgotten.
    pub replies_bytes_max: usize,
}

impl Default for ReplicaSettings {
    /// A thousand clients that are active at a time, and replies that take no more than 64 MiB together.
    fn default() -> Self {
        Self { sessions_max: 1024, reply_bytes_max: 64 << 10, replies_bytes_max: 64 << 20 }
    }
}

/// A view, as far as a shard is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardView {
    /// The view's number.
    pub id: u64,
    /// The members of the group.
    pub group: Vec<NodeId>,
    /// The members of the shard, by rank in it.
    pub members: Vec<NodeId>,
    /// The members of the group that held the shard's state when the view before ended; if there are any, some of them are
    /// members of the shard \[A8\]. In view 0 all members have the first state.
    pub holders: Vec<NodeId>,
}

/// A message of the shard's subgroup.
#[derive(Clone, Copy, Debug)]
pub struct ShardDelivery<'a> {
    /// The view in which it is delivered.
    pub view: u64,
    /// The sender's rank in the shard.
    pub sender: usize,
    /// Its place in the view.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// What an own update is answered with, when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedReply<R> {
    /// The reply to an own update.
    Reply(R),
    /// What to tell the client.
    Session(SessionAnswer),
    /// The answer to an own query.
    Query(Vec<u8>),
}

/// A state with all that belongs to it.
#[derive(Clone, Debug)]
pub struct ShardSnapshot<S> {
    /// All up to here is in it, and nothing else.
    pub position: ShardPosition,
    /// The clients' sessions.
    pub sessions: Vec<u8>,
    /// The object's state.
    pub snapshot: S,
}

/// The answer to a joiner.
#[derive(Clone, Debug)]
pub enum StateReply<S> {
    /// Here it is.
    State(ShardSnapshot<S>),
    /// This member does not hold it, or has not come so far: ask again, or another.
    NotYet,
}

/// What has become of a state that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// This member holds the state now.
    Taken,
    /// It waits for none (any more), or for a later one.
    NotWanted,
}

/// Whether a question can be answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Now.
    Ready,
    /// When this member has moved on.
    NotYet,
    /// Not by this member: it is not in the shard.
    Elsewhere,
    /// By no member: all that held the state are gone.
    Lost,
}

/// One member's part in one shard. The module's doc states its law.
#[derive(Debug)]
pub struct Replica<M: Machine> {
    node: NodeId,
    settings: ReplicaSettings,
    /// None before the first view.
    view: Option<ShardView>,
    standing: Standing<M>,
    /// The members that held the state last, by the views that this member has seen.
    last_holders: Vec<NodeId>,
    /// Up to here messages have come.
    seen: ShardPosition,
    /// In which view this member has come into the shard.
    since: u64,
}

/// A state and how far it has come.
#[derive(Debug)]
struct Held<M> {
    machine: M,
    sessions: Sessions,
    /// All up to here is applied. It may lie behind what was seen, when the state has just been taken over.
    position: ShardPosition,
}

#[derive(Debug)]
enum Standing<M> {
    /// Not in the shard.
    Absent,
    /// Waits for the state; keeps what is delivered meanwhile.
    Waiting { search: Search, delivered: VecDeque<(ShardPosition, Box<[u8]>)>, bytes: usize },
    /// Holds it.
    Holding(Held<M>),
    /// All that held it are gone.
    Lost,
}

impl<M: Machine> Held<M> {
    /// Applies a message; hands out whose each update was, and the answer. What is no update all find alike. Queries are
    /// answered by their sender alone.
    fn apply(
        &mut self,
        position: ShardPosition,
        bytes: &[u8],
        settings: ReplicaSettings,
        is_own: bool,
        mut on_applied: impl FnMut(UpdateOrigin, AppliedReply<M::Reply>),
    ) {
        self.position = position;
        for (origin, update) in items(bytes) {
            let answer = match origin {
                UpdateOrigin::Member(_) => AppliedReply::Reply(self.machine.apply(update)),
                UpdateOrigin::Open(_) => AppliedReply::Session(self.sessions.open(settings)),
                UpdateOrigin::Query(_) if is_own => AppliedReply::Query(self.machine.query(update)),
                UpdateOrigin::Query(_) => continue,
                UpdateOrigin::Session { id, number, open } => {
                    let machine = &mut self.machine;
                    let apply = || M::encode(&machine.apply(update));
                    AppliedReply::Session(self.sessions.update((id, number, open), settings, apply))
                }
            };
            if is_own {
                on_applied(origin, answer);
            }
        }
    }

    fn shard_snapshot(&self) -> ShardSnapshot<M::Snapshot> {
        let sessions =
            if mutant!(LeaveSessionsBehind) { Sessions::default().encode() } else { self.sessions.encode() };
        let later = ShardPosition::start_of(self.position.view + 1);
        let position = if mutant!(TagWithNextView) { later } else { self.position };
        ShardSnapshot { position, sessions, snapshot: self.machine.snapshot() }
    }
}

impl<M: Machine> Replica<M> {
    /// The part of `node`, before the first view.
    #[must_use]
    pub fn new(node: NodeId, settings: ReplicaSettings) -> Self {
        Self {
            node,
            settings,
            view: None,
            standing: Standing::Absent,
            last_holders: Vec::new(),
            seen: ShardPosition::default(),
            since: 0,
        }
    }

    /// The next view begins; all messages of the one before have been delivered. Views in which this member is not in the
    /// shard may be passed over, but not all that lie between two stays ([`ShardEvents`](super::ShardEvents)). `first` makes
    /// the state with which the shard begins in view 0.
    ///
    /// # Panics
    /// If views go back.
    pub fn begin_view(&mut self, view: ShardView, first: impl FnOnce() -> M) {
        let before = self.view.as_ref().map(|view| view.id);
        assert!(before.is_none_or(|before| before < view.id), "[V1] view {} after {before:?}", view.id);
        let start = ShardPosition::start_of(view.id);
        self.seen = start;
        self.standing = match std::mem::replace(&mut self.standing, Standing::Absent) {
            // Enough members of the shard hold the state [A8].
            _ if !view.members.contains(&self.node) => Standing::Absent,
            Standing::Absent => {
                self.since = view.id;
                self.enter(view.id, first)
            }
            Standing::Holding(mut held) => {
                held.position = held.position.max(start);
                Standing::Holding(held)
            }
            standing => standing,
        };
        if view.id == 0 {
            self.last_holders.clone_from(&view.members);
        } else if !view.holders.is_empty() {
            self.last_holders.clone_from(&view.holders);
        }
        // Nobody can give it, so in later views there will be no holder either.
        let is_lost = view.holders.len() <= usize::from(mutant!(LoseTooSoon));
        if self.is_waiting() && is_lost {
            reach(Point::StateLost);
            self.standing = Standing::Lost;
        }
        self.view = Some(view);
    }

    fn enter(&self, view: u64, first: impl FnOnce() -> M) -> Standing<M> {
        if view > 0 {
            return Standing::Waiting { search: Search::default(), delivered: VecDeque::new(), bytes: 0 };
        }
        Standing::Holding(Held { machine: first(), sessions: Sessions::default(), position: self.seen })
    }

    /// Takes the next message. If it is an own one, hands out whose each of its updates was, and the answer.
    ///
    /// # Panics
    /// If messages go back, or come in another view: the group promises order.
    pub fn deliver(
        &mut self,
        message: ShardDelivery<'_>,
        on_own: impl FnMut(UpdateOrigin, AppliedReply<M::Reply>),
    ) {
        let position = ShardPosition { view: message.view, sequence: message.sequence + 1 };
        let view = self.view.as_ref().expect("messages come in views");
        assert!(view.id == message.view && self.seen < position, "[O1] {position:?} after {:?}", self.seen);
        self.seen = position;
        let is_own = view.members.get(message.sender) == Some(&self.node);
        match &mut self.standing {
            Standing::Holding(held) if held.position < position => {
                held.apply(position, message.bytes, self.settings, is_own, on_own);
            }
            Standing::Holding(_) => {
                assert!(!is_own, "[A6] an own update was sent before the state was held");
            }
            Standing::Waiting { delivered, bytes, .. } => {
                delivered.push_back((position, message.bytes.into()));
                *bytes += message.bytes.len();
            }
            Standing::Absent | Standing::Lost => {}
        }
    }

    /// Whom to ask for the state next, and the earliest position that will do. `None` if this member waits for none.
    pub fn ask(&mut self) -> Option<(NodeId, ShardPosition)> {
        let (Standing::Waiting { search, .. }, Some(view)) = (&mut self.standing, &self.view) else {
            return None;
        };
        Some((search.next(view, self.node)?, ShardPosition::start_of(self.since)))
    }

    /// The answer to a joiner that asks for a state at `since` or later.
    pub fn provide_state(&self, since: ShardPosition) -> StateReply<M::Snapshot> {
        match &self.standing {
            Standing::Holding(held) if held.position >= since || mutant!(TakeOlderState) => {
                StateReply::State(held.shard_snapshot())
            }
            _ => {
                reach(Point::StateRefused);
                StateReply::NotYet
            }
        }
    }

    /// Whether a state at `position` is of use here: if so, since which view this member is in the shard, for
    /// [`Holding::hold`](super::Holding::hold).
    #[must_use]
    pub fn wants(&self, position: ShardPosition) -> Option<u64> {
        let reaches = position >= ShardPosition::start_of(self.since) || mutant!(TakeOlderState);
        if !self.is_waiting() || !reaches {
            reach(Point::StateUnwanted);
        }
        (self.is_waiting() && reaches).then_some(self.since)
    }

    /// Takes a state that was given, restored as `machine`: skips what is in it of all that was delivered, applies the
    /// rest. [`Holding::hold`](super::Holding::hold) comes first.
    pub fn take_over(&mut self, position: ShardPosition, sessions: Sessions, machine: M) -> SnapshotOutcome {
        let is_wanted = self.wants(position).is_some();
        let Standing::Waiting { delivered, .. } = &mut self.standing else {
            return SnapshotOutcome::NotWanted;
        };
        if !is_wanted {
            return SnapshotOutcome::NotWanted;
        }
        let mut held = Held { machine, sessions, position };
        for (position, bytes) in delivered.drain(..).filter(|_| !mutant!(ForgetKept)) {
            let is_in = position <= held.position;
            reach(if is_in { Point::KeptSkipped } else { Point::KeptApplied });
            if !is_in || mutant!(ApplyAllKept) {
                held.apply(position, &bytes, self.settings, false, |_, _| ());
            }
        }
        held.position = held.position.max(self.seen);
        self.standing = Standing::Holding(held);
        SnapshotOutcome::Taken
    }

    /// Whether a question that was asked in `view` can be answered here [A5].
    #[must_use]
    pub fn readiness(&self, view: u64) -> Readiness {
        match &self.standing {
            Standing::Holding(held) if held.position.view >= view => Readiness::Ready,
            Standing::Holding(_) if mutant!(AnswerFromEarlierView) => Readiness::Ready,
            Standing::Holding(_) | Standing::Waiting { .. } => Readiness::NotYet,
            Standing::Absent if self.view_id().is_none_or(|present| present < view) => Readiness::NotYet,
            Standing::Absent => Readiness::Elsewhere,
            Standing::Lost => Readiness::Lost,
        }
    }

    /// The state, if it is held here.
    #[must_use]
    pub const fn machine(&self) -> Option<&M> {
        match &self.standing {
            Standing::Holding(held) => Some(&held.machine),
            _ => None,
        }
    }

    /// How far the state here has come, if it is held.
    #[must_use]
    pub const fn position(&self) -> Option<ShardPosition> {
        match &self.standing {
            Standing::Holding(held) => Some(held.position),
            _ => None,
        }
    }

    /// The members that held the state last, by the views that this member has seen: if it is lost, they have all gone.
    #[must_use]
    pub fn last_holders(&self) -> &[NodeId] {
        &self.last_holders
    }

    /// The present view's number, once there is one.
    #[must_use]
    pub fn view_id(&self) -> Option<u64> {
        self.view.as_ref().map(|view| view.id)
    }

    /// The present view.
    #[must_use]
    pub const fn view(&self) -> Option<&ShardView> {
        self.view.as_ref()
    }

    /// Since which view this member is in the shard, if it holds the state: see
    /// [`UnderWay::begin`](super::UnderWay::begin).
    #[must_use]
    pub const fn may_send_since(&self) -> Option<u64> {
        match &self.standing {
            Standing::Holding(_) => Some(self.since),
            _ => None,
        }
    }

    /// Whether this member waits for the state.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.standing, Standing::Waiting { .. })
    }

    /// Bytes of messages kept until the state comes.
    #[must_use]
    pub const fn bytes_waiting(&self) -> usize {
        match &self.standing {
            Standing::Waiting { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}
