//! Scenario: replicated objects on a group whose members crash, pause, part, join and leave, with clients outside it
//! (Derecho §3.3, app. A).
//!
//! Checked: \[V6\] \[A1\]–\[A4\] \[A11\] \[A12\] by `history`, which knows from all deliveries what every state, reply and answer has to
//! be; \[A5\] where questions are answered; \[A7\] when a member takes a state for lost, \[A8\] \[A9\] in the end: every member
//! that had it last has died or was cut off; \[A6\] by the core's assertions; \[V1\] \[D6\] \[V5\] \[V8\] \[V13\] as in
//! [`crate::group`], and that in the end all members of a shard hold its state, or all know that it is lost, and no
//! member waits for anything.

mod bus;
mod client;
mod history;
mod list;
mod member;
mod part;
mod plan;
mod shared;
mod tally;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use squall_fabric::sim::{Prng, SimWorld};
use squall_fabric::{Instant, NodeId};
use squall_protocols::group::SubgroupLayout;
use squall_protocols::membership::View;

pub use plan::{ReplicaPlan, ShardLayout};
pub use tally::ReplicaTally;

use bus::MessageBus;
use client::SimClient;
use history::UpdateHistory;
use member::ReplicaMember;
use shared::SharedRun;

use crate::group::{GroupCluster, GroupScene, RunChecks};
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<ReplicaPlan> = PlannedScenario {
    name: "replica",
    about: "replicated objects in shards, with clients; members crash, part, join with the state, leave, hang",
    draw: ReplicaPlan::draw,
    run,
    faults: ReplicaPlan::faults,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &ReplicaPlan, trace_records_max: usize) -> RunOutcome {
    run_and_count(plan, trace_records_max).0
}

/// Runs a plan, like [`run`], and says what has happened in it.
#[must_use]
pub fn run_and_count(plan: &ReplicaPlan, trace_records_max: usize) -> (RunOutcome, ReplicaTally) {
    let tally = Rc::new(Cell::new(ReplicaTally::default()));
    let objects = |world: &SimWorld, watch: &Rc<RefCell<RunChecks>>| Objects::new(plan, world, watch, &tally);
    let outcome = GroupCluster::new(&plan.group, trace_records_max, objects).drive();
    (outcome, tally.get())
}

/// The object's shards at all members, and the clients.
struct Objects {
    shared: SharedRun,
    clients: Vec<SimClient>,
    tally: Rc<Cell<ReplicaTally>>,
}

impl Objects {
    fn new(
        plan: &ReplicaPlan,
        world: &SimWorld,
        watch: &Rc<RefCell<RunChecks>>,
        tally: &Rc<Cell<ReplicaTally>>,
    ) -> Self {
        let bus = MessageBus::new(world, plan.group.seed, plan.datagram_max);
        let client_nodes: Vec<u32> = (0..plan.clients).map(|_| bus.add_node()).collect();
        let history = UpdateHistory::new(plan.sessions_max);
        let shared = SharedRun {
            plan: Rc::new(plan.clone()),
            watch: Rc::clone(watch),
            history: Rc::new(RefCell::new(history)),
            bus: Rc::new(RefCell::new(bus)),
        };
        let client = |node| SimClient::new(node, world.fabric(node), &shared);
        Self { clients: client_nodes.into_iter().map(client).collect(), shared, tally: Rc::clone(tally) }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.tally.set(self.shared.history.borrow().tally);
    }
}

impl GroupScene for Objects {
    type Program = ReplicaMember;

    fn program(&mut self, place: u32, node: NodeId) -> ReplicaMember {
        ReplicaMember::new(place, node, &self.shared)
    }

    fn layout(&self) -> Box<dyn SubgroupLayout + Send> {
        let plan = ReplicaPlan::clone(&self.shared.plan);
        Box::new(move |view: &View| plan.place(view))
    }

    fn client_step(&mut self, client_node: u32, prng: &mut Prng) -> (bool, Option<Instant>) {
        let client = self.clients.iter_mut().find(|client| client.node == client_node);
        client.expect("the nodes outside the group are clients").step(prng)
    }

    fn is_done(&self) -> bool {
        let bus = self.shared.bus.borrow();
        self.clients.iter().all(|client| client.is_done() || !bus.lives(client.node))
    }

    fn delivered(&self) -> u64 {
        self.shared.history.borrow().tally.delivered
    }

    /// A member that lives and never gives a state may stay forever, if no other can give it.
    fn lets_go(&self, node: NodeId) -> bool {
        self.shared.plan.hanging != Some(node.0)
    }

    fn owes_work(&self, _node: NodeId) -> bool {
        self.shared.plan.hanging.is_none()
    }

    /// \[V8\] No member waits for anything, \[A7\] all members of a shard have its state, or none of them, and \[A8\] what is
    /// lost has died with those that had it. But no member gets a state from one that never gives it.
    fn check_complete(&self, present: &[(NodeId, &ReplicaMember)]) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let hanging = self.shared.plan.hanging;
        let is_stuck = |shard: u32| {
            let holders = present.iter().filter(|(_, member)| member.holds(shard) == Some(true));
            hanging.is_some() && holders.map(|(_, member)| member.place).eq(hanging)
        };
        for (node, member) in present {
            if let Some(why) = member.is_waiting_for(is_stuck) {
                return fail(format!("[V8] {node} still waits: {why}"));
            }
        }
        for shard in (0..self.shared.plan.shards).filter(|shard| !is_stuck(*shard)) {
            let part = |(node, member): &(NodeId, &ReplicaMember)| Some((*node, member.holds(shard)?));
            let standings: Vec<(NodeId, bool)> = present.iter().filter_map(part).collect();
            if standings.iter().any(|(_, holds)| *holds) && standings.iter().any(|(_, holds)| !*holds) {
                return fail(format!("[A7] some hold shard {shard}, for others it is lost: {standings:?}"));
            }
        }
        let bus = self.shared.bus.borrow();
        self.shared.history.borrow().check_losses(|node| bus.lives(node))?;
        self.shared.history.borrow().check_linearizable()?;
        if self.is_done() { Ok(()) } else { fail("[V8] a client still waits".into()) }
    }
}
