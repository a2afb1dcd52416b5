//! What goes from process to process beside the group, each over a connection of its own: requests, answers, ends of connections.
//!
//! A message waits at a partition until the network heals, as TCP sends again what was not acknowledged.

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::admission::JoinAnswer;

/// How messages beside the group travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusPlan {
    /// Most messages take at most as long.
    pub delay_max: Duration,
    /// How often a connection breaks with a message.
    pub loss_per_mille: u32,
    /// How often a message takes up to `late_max`.
    pub late_per_mille: u32,
    /// Longer than a joiner waits for an answer.
    pub late_max: Duration,
}

impl BusPlan {
    /// Nothing is lost or late; as fast as a group, or far slower.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0xb1);
        let most = [2, 20, 200][prng.index(3)];
        Self::calm(Duration::from_micros(1 + prng.below(most)))
    }

    /// Nothing is lost or late.
    #[must_use]
    pub const fn calm(delay_max: Duration) -> Self {
        Self { delay_max, loss_per_mille: 0, late_per_mille: 0, late_max: delay_max }
    }
}

/// What is said. Processes are reached at their places in the plan.
#[derive(Clone, Debug)]
pub(crate) enum BusBody {
    Ask {
        rank: Option<u64>,
    },
    Link {
        number: NodeId,
    },
    /// The member has what it has agreed to: within its process.
    Stream {
        number: NodeId,
    },
    Report {
        number: NodeId,
    },
    /// The process has closed the connection over which it was admitted.
    Gone {
        number: NodeId,
    },
    Answer(JoinAnswer<u32>),
    Linked,
    /// No process listens there, or it takes no such requests.
    Unheard(&'static str),
    /// The connection has ended, or is turned away.
    Broken(&'static str),
}

/// A message from one incarnation of a process.
#[derive(Clone, Debug)]
pub(crate) struct BusMessage {
    pub(crate) from: u32,
    /// Which call of the asker it belongs to.
    pub(crate) call: u64,
    pub(crate) body: BusBody,
}

/// All messages on their way.
pub(crate) struct JoinBus {
    plan: BusPlan,
    prng: Prng,
    /// By receiver.
    boxes: Vec<BTreeMap<(Instant, u64), BusMessage>>,
    posted: u64,
}

impl JoinBus {
    pub(crate) fn new(plan: BusPlan, seed: u64, processes: usize) -> Self {
        let boxes = vec![BTreeMap::new(); processes];
        Self { plan, prng: Prng::new(seed ^ 0xb05), boxes, posted: 0 }
    }

    /// Posts a message; a connection that breaks says so at the caller's end, whether the message has arrived or not.
    pub(crate) fn post(&mut self, now: Instant, to: u32, message: BusMessage) {
        let is_lost = self.prng.chance(self.plan.loss_per_mille);
        if is_lost {
            let (from, call) = (message.from, message.call);
            let is_answer = matches!(message.body, BusBody::Answer(_) | BusBody::Linked | BusBody::Broken(_));
            let caller = if is_answer { to } else { from };
            let broken = BusMessage { from: to, call, body: BusBody::Broken("the connection has broken") };
            self.put(now, caller, broken);
            if is_answer || self.prng.chance(500) {
                return;
            }
        }
        self.put(now, to, message);
    }

    /// As [`JoinBus::post`], within a process: nothing is lost, or late.
    pub(crate) fn hand_over(&mut self, now: Instant, within: u32, body: BusBody) {
        self.put_within(self.plan.delay_max, now, within, BusMessage { from: within, call: 0, body });
    }

    fn put(&mut self, now: Instant, to: u32, message: BusMessage) {
        let is_late = self.prng.chance(self.plan.late_per_mille);
        let most = if is_late { self.plan.late_max } else { self.plan.delay_max };
        self.put_within(most, now, to, message);
    }

    fn put_within(&mut self, most: Duration, now: Instant, to: u32, message: BusMessage) {
        let at = now + Duration::from_nanos(1 + self.prng.below(most.as_nanos() as u64 + 1));
        self.posted += 1;
        self.boxes[to as usize].insert((at, self.posted), message);
    }

    /// The next message that has come; `reaches` says whether the network brings anything from a process.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        to: u32,
        reaches: impl Fn(u32) -> bool,
    ) -> Option<BusMessage> {
        let messages = &mut self.boxes[to as usize];
        let mut due = messages.range(..=(now, u64::MAX));
        let key = *due.find(|(_, message)| reaches(message.from))?.0;
        messages.remove(&key)
    }

    /// When to look for the next message.
    pub(crate) fn next_at(&self, now: Instant, to: u32) -> Option<Instant> {
        let messages = &self.boxes[to as usize];
        // What has come and is not taken waits for the network to heal.
        let look = messages.first_key_value().filter(|((at, _), _)| *at <= now).map(|_| now + LOOK_EVERY);
        let next = messages.range((now, u64::MAX)..).next().map(|((at, _), _)| *at);
        look.into_iter().chain(next).min()
    }

    /// The process has died: what was on its way to it is lost. Returns the joiners whose connections it has not taken yet.
    pub(crate) fn clear(&mut self, of: u32) -> Vec<NodeId> {
        let lost = std::mem::take(&mut self.boxes[of as usize]).into_values();
        let untaken = |message: BusMessage| match message.body {
            BusBody::Stream { number } => Some(number),
            _ => None,
        };
        lost.filter_map(untaken).collect()
    }
}

/// How often a message looks whether a partition has ended.
const LOOK_EVERY: Duration = Duration::from_micros(200);
