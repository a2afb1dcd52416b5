//! What goes from process to process beside the group, as over a stream: questions, answers, states (Derecho app. A:
//! external clients, §3.3: state transfer).
//!
//! A letter takes its time, waits at a partition until the network heals, and is lost with its sender or receiver.

use std::collections::BTreeMap;

use squall_fabric::sim::{Prng, SimWorld};
use squall_fabric::{Duration, Instant};
use squall_protocols::membership::View;
use squall_protocols::replica::{Gift, Position};

use super::list::List;

/// What is asked of a member about a shard.
#[derive(Clone, Debug)]
pub(super) enum What {
    Open,
    Update {
        session: u64,
        number: u64,
        id: u64,
    },
    /// From a state of this view or later.
    Query {
        view: u64,
    },
    /// For a state that reaches to here.
    State {
        since: Position,
    },
}

/// What a member answers.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Opened(u64),
    /// The place of the update in the list, and how far the member has come.
    Applied(u64, Position),
    List(List, Position),
    State(Gift<List>),
    Overtaken,
    Forgotten,
    NotYet,
    Elsewhere,
    Lost,
    Failed,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Ask(u32, What),
    /// With the number of the view that the member is in.
    Answer(u64, Answer),
}

#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) from: u32,
    /// The question, among those of the asker.
    pub(super) call: u64,
    pub(super) body: Body,
}

/// All letters on their way, and what everybody can find out about the group.
pub(super) struct Office {
    world: SimWorld,
    prng: Prng,
    /// By receiver.
    boxes: Vec<BTreeMap<(Instant, u64), Letter>>,
    posted: u64,
    delay_max: Duration,
    /// The view that each node is in.
    views: BTreeMap<u32, View>,
}

impl Office {
    pub(super) fn new(world: &SimWorld, seed: u64, delay_max: Duration) -> Self {
        let boxes = vec![BTreeMap::new(); world.nodes() as usize];
        let (prng, views) = (Prng::new(seed ^ 0x0ff1ce), BTreeMap::new());
        Self { world: world.clone(), prng, boxes, posted: 0, delay_max, views }
    }

    /// The world's time.
    pub(super) fn now(&self) -> Instant {
        self.world.now()
    }

    /// A further node, which is in no group.
    pub(super) fn add_node(&mut self) -> u32 {
        self.boxes.push(BTreeMap::new());
        self.world.add_node()
    }

    pub(super) fn lives(&self, node: u32) -> bool {
        self.world.lives(node)
    }

    /// A span of at most `most`.
    pub(super) fn pause(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(1 + self.prng.below(most.as_nanos() as u64))
    }

    pub(super) fn post(&mut self, from: u32, to: u32, call: u64, body: Body) {
        // A rule may have killed the sender in the middle of its turn.
        if self.lives(from) {
            let at = self.now() + self.pause(self.delay_max);
            self.put(to, at, Letter { from, call, body });
            self.world.wake(to);
        }
    }

    fn put(&mut self, to: u32, at: Instant, letter: Letter) {
        self.posted += 1;
        self.boxes[to as usize].insert((at, self.posted), letter);
    }

    /// The next letter that has come.
    pub(super) fn take(&mut self, node: u32) -> Option<Letter> {
        loop {
            let first = self.boxes[node as usize].first_entry()?;
            if first.key().0 > self.world.now() {
                return None;
            }
            let letter = first.remove();
            if self.world.can_reach(letter.from, node) {
                return Some(letter);
            }
            let later = self.now() + LOOK_EVERY;
            self.put(node, later, letter);
        }
    }

    /// When the next letter comes.
    pub(super) fn next_at(&self, node: u32) -> Option<Instant> {
        Some(self.boxes[node as usize].first_key_value()?.0.0)
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

/// How often a letter looks whether a partition has ended.
const LOOK_EVERY: Duration = Duration::from_micros(200);
