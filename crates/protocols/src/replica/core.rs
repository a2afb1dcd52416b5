//! The replica's core: it applies updates, and takes over and provides the state (Derecho app. A, §3.4).

use std::collections::VecDeque;

use squall_fabric::NodeId;

use super::message::{ShardPosition, UpdateOrigin, items};
use super::mutation;
use super::search::Search;
use super::sessions::{SessionAnswer, Sessions};
use crate::coverage::{Point, reach};

mod recovery;

pub use recovery::StateRecovery;

/// The replicated object, whose behaviour is a function of its state and the update alone.
pub trait Machine {
    /// The reply to an update.
    type Reply;
    /// A consistent copy of the state that is cheap to take: it is sent while updates continue.
    type Snapshot;

    /// Applies an update.
    fn apply(&mut self, update: &[u8]) -> Self::Reply;

    /// Encodes a reply as clients get it and sessions keep it.
    fn encode(reply: &Self::Reply) -> Vec<u8>;

    /// Answers a query, with a reply as [`Machine::encode`] encodes it.
    fn query(&self, query: &[u8]) -> Vec<u8>;

    /// Returns the state as it is now.
    fn snapshot(&self) -> Self::Snapshot;
}

/// The limits of a replica, the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// The largest number of clients' sessions in one shard; above that, the least recently used one is forgotten.
    pub sessions_max: usize,
    /// The length of the longest reply in bytes that a session keeps; a client's update with a longer reply is
    /// applied, but the client learns only the reply's length.
    pub reply_bytes_max: usize,
    /// The bytes of all replies that sessions keep; above that, the least recently used sessions are forgotten.
    pub replies_bytes_max: usize,
}

impl ReplicaSettings {
    /// Limits for a thousand active clients, and replies that take no more than 64 MiB together.
    pub const DEFAULT: Self =
        Self { sessions_max: 1024, reply_bytes_max: 64 << 10, replies_bytes_max: 64 << 20 };
}

impl Default for ReplicaSettings {
    /// Returns [`ReplicaSettings::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
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
    /// The members of the group that held the shard's state when the previous view ended; if there are any, some of
    /// them are members of the shard \[A8\].
    pub holders: Vec<NodeId>,
    /// Whether the shard begins with this view, with its initial state at all members: the group begins, or it begins again after all its
    /// processes had ended, and the shard is in memory \[A18\].
    pub is_first: bool,
}

/// A message of the shard's subgroup.
#[derive(Clone, Copy, Debug)]
pub struct ShardDelivery<'a> {
    /// The view in which it is delivered.
    pub view: u64,
    /// The sender's rank in the shard.
    pub sender: usize,
    /// Its sequence number in the view.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The answer to one of this member's updates, when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedReply<R> {
    /// The reply to an update of this member.
    Reply(R),
    /// The answer to a client.
    Session(SessionAnswer),
    /// The answer to a query of this member.
    Query(Vec<u8>),
}

/// A state with all that belongs to it.
#[derive(Clone, Debug)]
pub struct ShardSnapshot<S> {
    /// It contains everything up to this position, and nothing else.
    pub position: ShardPosition,
    /// The clients' sessions.
    pub sessions: Vec<u8>,
    /// The object's state.
    pub snapshot: S,
}

/// The answer to a joiner.
#[derive(Clone, Debug)]
pub enum StateReply<S> {
    /// The state.
    State(ShardSnapshot<S>),
    /// This member does not hold it, or has not applied enough yet: ask again, or ask another.
    NotYet,
}

/// The outcome of taking over a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// This member holds the state now.
    Taken,
    /// This member does not wait for a state (any more), or waits for a later one.
    NotWanted,
}

/// Whether a request can be answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can be answered now.
    Ready,
    /// It can be answered when this member has made progress.
    NotYet,
    /// This member cannot answer it, because it is not in the shard.
    Elsewhere,
    /// No member can answer it, because all that held the state are gone.
    Lost,
}

/// One member's part in one shard. The module's documentation states its law.
#[derive(Debug)]
pub struct Replica<M: Machine> {
    node: NodeId,
    settings: ReplicaSettings,
    /// None before the first view.
    view: Option<ShardView>,
    standing: Standing<M>,
    /// The members that held the state last, by the views that this member has seen.
    last_holders: Vec<NodeId>,
    /// Messages have arrived up to this position.
    seen: ShardPosition,
    /// The view in which this member has entered the shard.
    since: u64,
}

/// A state and its position.
#[derive(Debug)]
struct Held<M> {
    machine: M,
    sessions: Sessions,
    /// Everything up to this position is applied. It may be before `seen`, when the state has just been taken over.
    position: ShardPosition,
}

#[derive(Debug)]
enum Standing<M> {
    /// It is not in the shard.
    Absent,
    /// It has made the state again from its log, and has not begun a view yet.
    Recovered(Held<M>),
    /// It waits for the state, and keeps what is delivered meanwhile.
    Waiting { search: Search, delivered: VecDeque<(ShardPosition, Box<[u8]>)>, bytes: usize },
    /// It holds the state.
    Holding(Held<M>),
    /// All members that held the state are gone.
    Lost,
}

impl<M: Machine> Held<M> {
    /// Applies a message; passes the origin of each update and its answer to `on_applied`, if the message is this
    /// member's. Bytes that are not an update are skipped, by all members alike. Queries are answered only by their
    /// sender.
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
    /// Returns the part of `node`, before the first view.
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

    /// Begins the next view; all messages of the previous one have been delivered. Views in which this member is not
    /// in the shard may be skipped, but not all views between two stays ([`ShardEvents`](super::ShardEvents)).
    /// `first` makes the initial state of the shard, in its first view.
    ///
    /// # Panics
    /// If the view is not later than the previous one.
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
                self.enter(&view, first)
            }
            Standing::Holding(mut held) => {
                held.position = held.position.max(start);
                Standing::Holding(held)
            }
            Standing::Recovered(mut held) => {
                self.since = view.id;
                held.position = start;
                Standing::Holding(held)
            }
            standing => standing,
        };
        if view.is_first {
            self.last_holders.clone_from(&view.members);
        } else if !view.holders.is_empty() {
            self.last_holders.clone_from(&view.holders);
        }
        // No member can provide it, so in later views there will be no holder either.
        let is_lost = view.holders.len() <= usize::from(mutant!(LoseTooSoon));
        if self.is_waiting() && is_lost {
            reach(Point::StateLost);
            self.standing = Standing::Lost;
        }
        self.view = Some(view);
    }

    /// Takes a state that was made again from the log, before the first view of this run: that in which the members of a group that had
    /// ended begin again \[A13\]. All of them do this, so that each holds the state in that view
    /// ([`Holding::recover`](super::Holding::recover)).
    ///
    /// # Panics
    /// If a view has begun.
    pub fn recover(&mut self, recovery: StateRecovery<M>) {
        assert!(self.view.is_none(), "a state is recovered before the first view");
        self.standing = Standing::Recovered(recovery.held);
    }

    fn enter(&self, view: &ShardView, first: impl FnOnce() -> M) -> Standing<M> {
        if !view.is_first {
            return Standing::Waiting { search: Search::default(), delivered: VecDeque::new(), bytes: 0 };
        }
        let sessions = Sessions::beginning_in(if mutant!(NumberSessionsAnew) { 0 } else { view.id });
        Standing::Holding(Held { machine: first(), sessions, position: self.seen })
    }

    /// Takes the next message. If it is this member's, passes the origin of each of its updates and the answer to
    /// `on_own`.
    ///
    /// # Panics
    /// If the message is not later than the previous one, or is of another view: the group guarantees order.
    pub fn deliver(
        &mut self,
        message: ShardDelivery<'_>,
        on_own: impl FnMut(UpdateOrigin, AppliedReply<M::Reply>),
    ) {
        let position = ShardPosition { view: message.view, sequence: message.sequence + 1 };
        let view = self.view.as_ref().expect("messages are delivered in views");
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
            Standing::Absent | Standing::Recovered(_) | Standing::Lost => {}
        }
    }

    /// Returns the member to ask for the state next, and the earliest position that suffices; `None` if this member
    /// waits for no state.
    pub fn ask(&mut self) -> Option<(NodeId, ShardPosition)> {
        let (Standing::Waiting { search, .. }, Some(view)) = (&mut self.standing, &self.view) else {
            return None;
        };
        Some((search.next(view, self.node)?, ShardPosition::start_of(self.since)))
    }

    /// Returns the answer to a joiner that asks for a state at `since` or later.
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

    /// Returns the state for a checkpoint, if it is held.
    pub fn snapshot(&self) -> Option<ShardSnapshot<M::Snapshot>> {
        match &self.standing {
            Standing::Holding(held) => Some(held.shard_snapshot()),
            _ => None,
        }
    }

    /// Returns, if a state at `position` is useful here, the view since which this member has been in the shard, for
    /// [`Holding::hold`](super::Holding::hold).
    #[must_use]
    pub fn wants(&self, position: ShardPosition) -> Option<u64> {
        let reaches = position >= ShardPosition::start_of(self.since) || mutant!(TakeOlderState);
        if !self.is_waiting() || !reaches {
            reach(Point::StateUnwanted);
        }
        (self.is_waiting() && reaches).then_some(self.since)
    }

    /// Takes over a state that was received, restored as `machine`: skips the delivered messages that it contains,
    /// and applies the rest. [`Holding::hold`](super::Holding::hold) is called before.
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

    /// Returns whether a request that was made in `view` can be answered here [A5].
    #[must_use]
    pub fn readiness(&self, view: u64) -> Readiness {
        match &self.standing {
            Standing::Holding(held) if held.position.view >= view => Readiness::Ready,
            Standing::Holding(_) if mutant!(AnswerFromEarlierView) => Readiness::Ready,
            Standing::Holding(_) | Standing::Waiting { .. } | Standing::Recovered(_) => Readiness::NotYet,
            Standing::Absent if self.view_id().is_none_or(|present| present < view) => Readiness::NotYet,
            Standing::Absent => Readiness::Elsewhere,
            Standing::Lost => Readiness::Lost,
        }
    }

    /// Returns the state, if it is held here.
    #[must_use]
    pub const fn machine(&self) -> Option<&M> {
        match &self.standing {
            Standing::Holding(held) => Some(&held.machine),
            _ => None,
        }
    }

    /// Returns the position of the state here, if it is held.
    #[must_use]
    pub const fn position(&self) -> Option<ShardPosition> {
        match &self.standing {
            Standing::Holding(held) => Some(held.position),
            _ => None,
        }
    }

    /// Returns the members that held the state last, according to the views that this member has seen: if the state
    /// is lost, all of them are gone.
    #[must_use]
    pub fn last_holders(&self) -> &[NodeId] {
        &self.last_holders
    }

    /// Returns the current view's number, once there is one.
    #[must_use]
    pub fn view_id(&self) -> Option<u64> {
        self.view.as_ref().map(|view| view.id)
    }

    /// Returns the current view.
    #[must_use]
    pub const fn view(&self) -> Option<&ShardView> {
        self.view.as_ref()
    }

    /// Returns the view since which this member has been in the shard, if it holds the state: see
    /// [`UnderWay::begin`](super::UnderWay::begin).
    #[must_use]
    pub const fn may_send_since(&self) -> Option<u64> {
        match &self.standing {
            Standing::Holding(_) => Some(self.since),
            _ => None,
        }
    }

    /// Returns whether this member waits for the state.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.standing, Standing::Waiting { .. })
    }

    /// Returns the bytes of messages kept until the state arrives.
    #[must_use]
    pub const fn bytes_waiting(&self) -> usize {
        match &self.standing {
            Standing::Waiting { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}
