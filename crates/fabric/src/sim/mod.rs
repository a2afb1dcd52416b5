//! The simulated fabric: a whole cluster in one thread, in virtual time, from one seed.
//!
//! It serves two purposes. With an [`Adversary`] it does everything that the axioms of [`crate::model`]
//! allow, so that a protocol that survives it rests on the axioms alone. With a [`CostModel`] and no
//! adversary it predicts what hardware would do. Faults are data: [`Rule`]s.
//!
//! **Contract.** Time passes only in [`SimWorld::step`], [`SimWorld::advance_to`] and
//! [`SimWorld::next_poll`]; calls of a [`SimFabric`] happen at the current time and make its own node busy.
//! The same seed, the same configuration and the same calls give the same run, which [`SimWorld::trace_hash`]
//! verifies.

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
pub use self::trace::{Happening, NodeRemark, RemarkKind, TraceRecord};

use crate::{Duration, Instant};

/// The configuration of a simulated world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The adversary of the protocols, if there is one.
    pub adversary: Option<Adversary>,
    /// The cost of each step.
    pub cost: CostModel,
    /// Whether readers of a mirror share its owner's memory (as on one host) instead of holding copies [M2].
    pub early_sight: bool,
    /// Whether writes land while their target does not poll [F12].
    pub one_sided_progress: bool,
    /// The number of posts that one direction of a connection holds before it returns `Full`.
    pub queue_posts_max: usize,
    /// The number of receives that one end of a connection holds.
    pub queue_receives_max: usize,
    /// The time for which a send or an immediate waits for a receive before the connection breaks [F7].
    pub receiver_not_ready_after: Duration,
    /// The time after which nodes that a partition separates lose each other.
    pub unreachable_after: Duration,
    /// The time until the death of a node is detected; with an adversary, the maximum of that time.
    pub loss_noticed_after: Duration,
    /// Whether nodes see that another one is dying before they lose it, as on one host.
    pub dies_visibly: bool,
    /// The number of trace records that are kept, the latest ones; the hash covers all.
    pub trace_records_max: usize,
    /// The faults.
    pub rules: Vec<Rule>,
}

impl SimConfig {
    /// Returns a configuration without an adversary, with the costs of [`CostModel::SPINDLE`].
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
            dies_visibly: false,
            trace_records_max: 0,
            rules: Vec::new(),
        }
    }

    /// Returns the worst that the axioms allow, of a character that depends on the seed: see
    /// [`Adversary::drawn`]. Steps cost no time except for the adversary's delays, and queues are short, so
    /// that `Full` occurs.
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

/// A whole cluster. Cheap to clone: all clones refer to the same world.
#[derive(Clone, Debug)]
pub struct SimWorld {
    world: Rc<RefCell<WorldState>>,
}

impl SimWorld {
    /// Creates a world of `nodes` nodes, numbered from 0, each of which can reach every other.
    #[must_use]
    pub fn new(seed: u64, config: SimConfig, nodes: u32) -> Self {
        Self { world: Rc::new(RefCell::new(WorldState::new(seed, config, nodes))) }
    }

    /// Returns node `i`'s access to the network.
    ///
    /// # Panics
    /// Panics if there is no such node.
    #[must_use]
    pub fn fabric(&self, i: u32) -> SimFabric {
        assert!(i < self.nodes(), "there is no node {i}");
        SimFabric::new(Rc::clone(&self.world), i)
    }

    /// Adds a node (a process that starts or restarts: each incarnation is a node of its own).
    pub fn add_node(&self) -> u32 {
        self.world.borrow_mut().add_node()
    }

    /// Adds a node on the machine of node `host`: a process that joins a group once more, as another node. Rules that
    /// name `host` apply to both.
    pub fn add_node_at(&self, host: u32) -> u32 {
        self.world.borrow_mut().add_node_at(host)
    }

    /// Returns the number of nodes, dead or alive.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.world.borrow().node_count()
    }

    /// Returns the virtual time since the beginning. Clocks of nodes may differ from it.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.world.borrow().now)
    }

    /// Returns the time of the fabric's next action; `None` if there is none.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Instant> {
        self.world.borrow().agenda.next_at().map(Instant::from_nanos)
    }

    /// Performs the next action, whenever it is due; returns false if there is none.
    pub fn step(&self) -> bool {
        self.world.borrow_mut().act()
    }

    /// Advances time to `at` and performs all actions on the way.
    pub fn advance_to(&self, at: Instant) {
        self.world.borrow_mut().advance_to(at.as_nanos());
    }

    /// Advances time until a node is due to poll and returns the node; `None` if `until` comes first. The
    /// caller polls that node's fabric and cores, then calls [`SimWorld::rest`]. Nodes that are paused or
    /// dead are never due; every node is due at the beginning.
    pub fn next_poll(&self, until: Instant) -> Option<u32> {
        self.world.borrow_mut().next_poll(until.as_nanos())
    }

    /// Ends the step of node `i`. If it `worked`, it is due again as soon as its processor is free; otherwise
    /// when its memory changes, an event is pending, or `deadline` (by its own clock) is reached.
    pub fn rest(&self, i: u32, worked: bool, deadline: Option<Instant>) {
        self.world.borrow_mut().rest(i, worked, deadline);
    }

    /// Drops the events of node `i`, which nothing polls: it is only the processor of a process that has another node.
    pub fn drop_events(&self, i: u32) {
        self.world.borrow_mut().nodes[i as usize].inbox.clear();
    }

    /// Makes node `i` due soon, because its application acted.
    pub fn wake(&self, i: u32) {
        self.world.borrow_mut().touch(i);
    }

    /// Applies a fault now.
    pub fn strike(&self, fault: &Verdict) {
        self.world.borrow_mut().strike(fault);
    }

    /// Adds a fault to those of the configuration.
    pub fn add_rule(&self, rule: Rule) {
        self.world.borrow_mut().add_rule(rule);
    }

    /// Kills node `i`, as `kill -9` would.
    pub fn crash(&self, i: u32) {
        self.strike(&Verdict::Crash(i));
    }

    /// Stops the processor of node `i` until [`SimWorld::resume`]; its memory remains open to writes.
    pub fn pause(&self, i: u32) {
        self.note(i, "pauses");
        self.world.borrow_mut().pause(i, None);
    }

    /// Resumes a paused node.
    pub fn resume(&self, i: u32) {
        self.note(i, "resumes");
        self.world.borrow_mut().resume(i);
    }

    /// Cuts all paths between different groups; nodes in no group form a group together.
    pub fn partition(&self, groups: &[Vec<u32>]) {
        self.strike(&Verdict::Partition(groups.to_vec()));
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.strike(&Verdict::Heal);
    }

    /// Sets whether the nodes `a` and `b` have a link; initially all have one. For tests in which nodes come
    /// and go: what is published for a node without a link, or attached from it, waits for the link, and
    /// neither node reports the other as lost.
    pub fn set_linked(&self, a: u32, b: u32, linked: bool) {
        self.world.borrow_mut().set_linked(a, b, linked);
    }

    /// Returns whether node `i` has not crashed (a rule may have crashed it in the middle of its own poll).
    #[must_use]
    pub fn lives(&self, i: u32) -> bool {
        self.world.borrow().lives(i)
    }

    /// Returns whether node `i` was killed, whether or not it continues for a moment.
    #[must_use]
    pub fn is_dying(&self, i: u32) -> bool {
        self.world.borrow().nodes[i as usize].dying
    }

    /// Returns whether no partition separates two nodes.
    #[must_use]
    pub fn can_reach(&self, from: u32, to: u32) -> bool {
        !self.world.borrow().path(from, to).cut
    }

    /// Returns the number of nodes that have crashed.
    #[must_use]
    pub fn deaths(&self) -> u32 {
        self.world.borrow().deaths
    }

    /// Returns the number of pieces of writes from one node that have arrived at another.
    #[must_use]
    pub fn pieces(&self, from: u32, to: u32) -> u64 {
        self.world.borrow().path(from, to).pieces
    }

    /// Draws from the world's random numbers, for the driver's own decisions.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Prng) -> T) -> T {
        draw(&mut self.world.borrow_mut().prng)
    }

    /// Adds a note to the trace.
    pub fn note(&self, i: u32, text: impl Into<String>) {
        let world = &mut *self.world.borrow_mut();
        world.trace.add(world.now, i, Happening::Note(text.into()));
    }

    /// Returns whether records of the trace are kept, so that remarks are worth their time.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.world.borrow().trace.keeps_records()
    }

    /// Adds a remark to the trace, which is no part of the run ([`Happening::Remark`]).
    pub fn remark(&self, i: u32, remark: NodeRemark) {
        let world = &mut *self.world.borrow_mut();
        world.trace.remark(world.now, i, remark);
    }

    /// Returns the latest records of the trace, as many as the configuration keeps.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceRecord> {
        self.world.borrow().trace.records()
    }

    /// Returns a hash of everything that has happened: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.world.borrow().trace.hash()
    }
}
