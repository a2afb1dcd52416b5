//! The simulated fabric: a whole cluster in one thread, in virtual time, from one seed.
//!
//! It serves two ends. With an [`Adversary`] it does all that the axioms of [`crate::model`] allow, so that a
//! protocol that survives it rests on the axioms and on nothing else. With a [`CostModel`] and no adversary it
//! predicts what hardware would do. Faults are data: [`Rule`]s.
//!
//! **Law of the world.** Time passes in [`SimWorld::step`], [`SimWorld::advance_to`] and [`SimWorld::next_poll`]
//! only; calls of a [`SimFabric`] happen at the present time and make its own node busy. The same seed, the same
//! configuration and the same calls give the same run: [`SimWorld::trace_hash`] tells.

mod adversary;
mod agenda;
mod clock;
mod connection;
mod cost;
mod fault;
mod grants;
mod landing;
mod link;
mod mirror;
mod node;
mod polling;
mod prng;
mod retirement;
mod rule;
mod trace;
mod world;

use std::cell::RefCell;
use std::rc::Rc;

use world::{SimMemory, WorldState};

pub use self::adversary::Adversary;
pub use self::cost::CostModel;
pub use self::node::{NodeCounters, SimFabric};
pub use self::prng::Prng;
pub use self::rule::{Rule, RuleTrigger, Verdict};
pub use self::trace::{Happening, TraceRecord};

use crate::{Duration, Instant};

/// What kind of world to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Who plays against the protocols, if anybody.
    pub adversary: Option<Adversary>,
    /// What each step costs.
    pub cost: CostModel,
    /// Whether readers of a mirror share its owner's memory (as on one host) instead of holding copies [M2].
    pub early_sight: bool,
    /// Whether writes land while their target does not poll [F12].
    pub one_sided_progress: bool,
    /// How many posts one direction of a connection holds before it says `Full`.
    pub queue_posts_max: usize,
    /// How many receives one end of a connection holds.
    pub queue_receives_max: usize,
    /// How long a send or an immediate waits for a receive before the connection breaks [F7].
    pub receiver_not_ready_after: Duration,
    /// How long a partition lasts before the nodes lose each other.
    pub unreachable_after: Duration,
    /// How long the death of a node stays unnoticed; at most that long with an adversary.
    pub loss_noticed_after: Duration,
    /// How many of the latest happenings the trace keeps; its hash covers all.
    pub trace_records_max: usize,
    /// The faults.
    pub rules: Vec<Rule>,
}

impl SimConfig {
    /// Hardware as it is: no adversary, the costs of [`CostModel::SPINDLE`].
    #[must_use]
    pub fn hardware() -> Self {
        Self {
            adversary: None,
            cost: CostModel::SPINDLE,
            early_sight: false,
            one_sided_progress: true,
            queue_posts_max: 4096,
            queue_receives_max: 4096,
            receiver_not_ready_after: Duration::from_millis(10),
            unreachable_after: Duration::from_millis(50),
            loss_noticed_after: Duration::from_millis(5),
            trace_records_max: 0,
            rules: Vec::new(),
        }
    }

    /// The worst that the axioms allow, of a kind that depends on the seed: see [`Adversary::drawn`]. Costs
    /// nothing but what the adversary delays, and has short queues, so that `Full` is met.
    #[must_use]
    pub fn adversarial(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0xad7e);
        Self {
            adversary: Some(Adversary::drawn(&mut prng)),
            cost: CostModel::FREE,
            early_sight: prng.chance(500),
            one_sided_progress: prng.chance(750),
            queue_posts_max: 8 + prng.index(56),
            queue_receives_max: 64,
            ..Self::hardware()
        }
    }
}

/// A whole cluster. Cheap to clone: all clones are the same world.
#[derive(Clone, Debug)]
pub struct SimWorld {
    world: Rc<RefCell<WorldState>>,
}

impl SimWorld {
    /// `nodes` nodes, numbered from 0, each of which can reach every other.
    #[must_use]
    pub fn new(seed: u64, config: SimConfig, nodes: u32) -> Self {
        Self { world: Rc::new(RefCell::new(WorldState::new(seed, config, nodes))) }
    }

    /// Node `i`'s access to the network.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn fabric(&self, i: u32) -> SimFabric {
        assert!(i < self.nodes(), "there is no node {i}");
        SimFabric::new(Rc::clone(&self.world), i)
    }

    /// A further node (a process that starts, or starts again: an incarnation is a node of its own).
    pub fn add_node(&self) -> u32 {
        self.world.borrow_mut().add_node()
    }

    /// A further node on the machine of node `host`: a process that comes to a group once more, as another node. Rules that name
    /// `host` mean both.
    pub fn add_node_at(&self, host: u32) -> u32 {
        self.world.borrow_mut().add_node_at(host)
    }

    /// How many nodes there are, dead or alive.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.world.borrow().node_count()
    }

    /// Virtual time since the beginning. Clocks of nodes may differ from it.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.world.borrow().now)
    }

    /// When the fabric does something next; `None` if it is quiet.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Instant> {
        self.world.borrow().agenda.next_at().map(Instant::from_nanos)
    }

    /// Lets the next thing happen, wherever in time it is; false if the fabric is quiet.
    pub fn step(&self) -> bool {
        self.world.borrow_mut().act()
    }

    /// Lets time pass up to `at`, with all that happens on the way.
    pub fn advance_to(&self, at: Instant) {
        self.world.borrow_mut().advance_to(at.as_nanos());
    }

    /// Lets time pass up to the next turn of a node and returns it; `None` when `until` comes first. The caller
    /// polls that node's fabric and cores, then calls [`SimWorld::rest`]. Nodes that are paused or dead get no
    /// turn; every node gets one at the beginning.
    pub fn next_poll(&self, until: Instant) -> Option<u32> {
        self.world.borrow_mut().next_poll(until.as_nanos())
    }

    /// Ends the turn of node `i`. If it `worked` it gets another as soon as it is free; else when its memory
    /// changes, an event waits for it, or `deadline` (by its own clock) comes.
    pub fn rest(&self, i: u32, worked: bool, deadline: Option<Instant>) {
        self.world.borrow_mut().rest(i, worked, deadline);
    }

    /// Gives node `i` a turn soon, because its application did something.
    pub fn wake(&self, i: u32) {
        self.world.borrow_mut().touch(i);
    }

    /// Lets a fault strike now.
    pub fn strike(&self, fault: &Verdict) {
        self.world.borrow_mut().strike(fault);
    }

    /// Adds a fault to those of the configuration.
    pub fn add_rule(&self, rule: Rule) {
        self.world.borrow_mut().add_rule(rule);
    }

    /// Ends node `i`, as `kill -9` would.
    pub fn crash(&self, i: u32) {
        self.strike(&Verdict::Crash(i));
    }

    /// Stops the processor of node `i` until [`SimWorld::resume`]; its memory stays open to writes.
    pub fn pause(&self, i: u32) {
        self.note(i, "pauses");
        self.world.borrow_mut().pause(i, None);
    }

    /// Lets a paused node go on.
    pub fn resume(&self, i: u32) {
        self.note(i, "goes on");
        self.world.borrow_mut().resume(i);
    }

    /// Cuts all paths between different groups; nodes in none form a group of their own.
    pub fn partition(&self, groups: &[Vec<u32>]) {
        self.strike(&Verdict::Partition(groups.to_vec()));
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.strike(&Verdict::Heal);
    }

    /// Whether the nodes `a` and `b` have a link. All have, unless it is said otherwise: where nodes come and go, what is published
    /// for one without a link, or attached from it, waits for the link, and neither of them misses it.
    pub fn set_linked(&self, a: u32, b: u32, linked: bool) {
        self.world.borrow_mut().set_linked(a, b, linked);
    }

    /// Whether node `i` has not crashed (a rule may have killed it in the middle of its own poll).
    #[must_use]
    pub fn lives(&self, i: u32) -> bool {
        self.world.borrow().lives(i)
    }

    /// Whether no partition lies between two nodes.
    #[must_use]
    pub fn can_reach(&self, from: u32, to: u32) -> bool {
        !self.world.borrow().path(from, to).cut
    }

    /// How many nodes have crashed.
    #[must_use]
    pub fn deaths(&self) -> u32 {
        self.world.borrow().deaths
    }

    /// How many pieces of writes from one node have come to land at another.
    #[must_use]
    pub fn pieces(&self, from: u32, to: u32) -> u64 {
        self.world.borrow().path(from, to).pieces
    }

    /// Draws from the world's source of chance, for the driver's own decisions.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Prng) -> T) -> T {
        draw(&mut self.world.borrow_mut().prng)
    }

    /// Writes a remark into the trace.
    pub fn note(&self, i: u32, text: impl Into<String>) {
        let world = &mut *self.world.borrow_mut();
        world.trace.add(world.now, i, Happening::Note(text.into()));
    }

    /// The latest happenings, as many as the configuration keeps.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceRecord> {
        self.world.borrow().trace.records()
    }

    /// A hash of all that has happened: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.world.borrow().trace.hash()
    }
}
