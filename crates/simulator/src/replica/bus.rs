//! What goes from process to process beside the group, as over streams: questions, answers, states (Derecho app. A: external
//! clients, §3.3: state transfer).
//!
//! Datagrams of one connection arrive in their order. Each takes its time, waits at a partition until the network heals, and is
//! lost with its sender or receiver.

use std::collections::BTreeMap;

use squall_fabric::sim::{Prng, SimWorld};
use squall_fabric::{Duration, Instant};
use squall_protocols::membership::View;
use squall_protocols::replica::{ShardAnswer, ShardPosition, ShardRequest, ShardSnapshot};

use super::list::AppendList;

#[derive(Clone, Debug)]
pub(super) enum DatagramBody {
    Ask(u32, ShardRequest),
    Answer {
        /// The view that the member is in.
        view: u64,
        answer: ShardAnswer,
        /// How far the member had come, for the checker.
        at: Option<ShardPosition>,
        /// The state that follows the answer.
        snapshot: Option<ShardSnapshot<AppendList>>,
    },
}

/// Which question: whose, over which of its connections, and which of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId {
    pub(super) asker: u32,
    pub(super) connection: u64,
    pub(super) number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: u32,
    pub(super) call: CallId,
    pub(super) body: DatagramBody,
}

/// All datagrams on their way, and what everybody can find out about the group.
pub(super) struct MessageBus {
    world: SimWorld,
    prng: Prng,
    /// By receiver.
    boxes: BTreeMap<u32, BTreeMap<(Instant, u64), Datagram>>,
    posted: u64,
    /// When the last datagram of a connection arrives, by sender, receiver and connection.
    last: BTreeMap<(u32, u32, u64), Instant>,
    delay_max: Duration,
    /// The view that each node is in.
    views: BTreeMap<u32, View>,
}

impl MessageBus {
    pub(super) fn new(world: &SimWorld, seed: u64, delay_max: Duration) -> Self {
        let (boxes, prng, views) = (BTreeMap::new(), Prng::new(seed ^ 0x0ff1ce), BTreeMap::new());
        Self { world: world.clone(), prng, boxes, posted: 0, last: BTreeMap::new(), delay_max, views }
    }

    /// The world's time.
    pub(super) fn now(&self) -> Instant {
        self.world.now()
    }

    /// A further node, which is in no group: it has no links.
    pub(super) fn add_node(&self) -> u32 {
        let node = self.world.add_node();
        (0..node).for_each(|other| self.world.set_linked(other, node, false));
        node
    }

    pub(super) fn lives(&self, node: u32) -> bool {
        self.world.lives(node)
    }

    /// A span of at most `most`.
    pub(super) fn pause(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(1 + self.prng.below(most.as_nanos() as u64))
    }

    pub(super) fn post(&mut self, from: u32, to: u32, call: CallId, body: DatagramBody) {
        // A rule may have killed the sender in the middle of its turn.
        if self.lives(from) {
            let at = self.now() + self.pause(self.delay_max);
            let last = self.last.entry((from, to, call.connection)).or_insert(at);
            *last = at.max(*last);
            self.posted += 1;
            self.boxes.entry(to).or_default().insert((*last, self.posted), Datagram { from, call, body });
            self.world.wake(to);
        }
    }

    /// The next datagram that has come.
    pub(super) fn take(&mut self, node: u32) -> Option<Datagram> {
        let (now, world) = (self.world.now(), &self.world);
        let datagrams = self.boxes.get_mut(&node)?;
        let mut due = datagrams.range(..=(now, u64::MAX));
        let (key, _) = due.find(|(_, datagram)| world.can_reach(datagram.from, node))?;
        let key = *key;
        datagrams.remove(&key)
    }

    /// When to look for the next datagram.
    pub(super) fn next_at(&self, node: u32) -> Option<Instant> {
        let ((at, _), _) = self.boxes.get(&node)?.first_key_value()?;
        // What has come and is not taken waits for the network to heal.
        Some(if *at > self.now() { *at } else { self.now() + LOOK_EVERY })
    }

    /// `node` is in this view.
    pub(super) fn announce(&mut self, node: u32, view: &View) {
        self.views.insert(node, view.clone());
    }

    /// `node` is no member any more.
    pub(super) fn withdraw(&mut self, node: u32) {
        self.views.remove(&node);
    }

    /// The view of the member `other`, if `node` can reach it.
    pub(super) fn inquire(&self, node: u32, other: u32) -> Option<&View> {
        let answers = self.world.lives(other) && self.world.can_reach(node, other);
        self.views.get(&other).filter(|_| answers)
    }

    /// Whether there is a member that `node` can reach.
    pub(super) fn has_members(&self, node: u32) -> bool {
        self.views.keys().any(|other| self.inquire(node, *other).is_some())
    }
}

/// How often a datagram looks whether a partition has ended.
const LOOK_EVERY: Duration = Duration::from_micros(200);
