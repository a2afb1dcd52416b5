//! Scenario: replicated objects on a group whose members crash, pause, part, join and leave, with clients outside it
//! (Derecho §3.3, app. A).
//!
//! Checked: \[V6\] \[A1\]–\[A4\] \[A11\] \[A12\] by `history`, which knows from all deliveries what every state, reply and answer has to
//! be; \[A5\] where questions are answered; \[A7\] when a member takes a state for lost, \[A8\] \[A9\] in the end: whoever
//! had it last has died or was cut off; \[A6\] by the core's assertions; \[V1\] \[D6\] \[V5\] \[V8\] \[V13\] as in
//! [`crate::group`], and that in the end all members of a shard hold its state, or all know that it is lost, and nobody
//! waits for anything.

mod client;
mod history;
mod list;
mod member;
mod office;
mod part;
mod plan;
mod tally;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use squall_fabric::sim::{Prng, SimWorld};
use squall_fabric::{Instant, NodeId};
use squall_protocols::group::Layout;
use squall_protocols::membership::View;

pub use plan::{Plan, ShardLayout};
pub use tally::Tally;

use client::Client;
use history::History;
use member::{Member, Shared};
use office::Office;

use crate::coverage;
use crate::group::{Cluster, Scene, Watch};
use crate::run::{Outcome, Planned, Violation};

/// The scenario.
pub const SCENARIO: Planned<Plan> = Planned {
    name: "replica",
    about: "replicated objects in shards, with clients; members crash, part, join with the state, leave, hang",
    draw: Plan::draw,
    run,
    faults: Plan::faults,
    promises: coverage::REPLICA,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &Plan, trace_records_max: usize) -> Outcome {
    run_and_count(plan, trace_records_max).0
}

/// Runs a plan, like [`run`], and says what has happened in it.
#[must_use]
pub fn run_and_count(plan: &Plan, trace_records_max: usize) -> (Outcome, Tally) {
    let tally = Rc::new(Cell::new(Tally::default()));
    let objects = |world: &SimWorld, watch: &Rc<RefCell<Watch>>| Objects::new(plan, world, watch, &tally);
    let outcome = Cluster::new(&plan.group, trace_records_max, objects).drive();
    (outcome, tally.get())
}

/// The object's shards at all members, and the clients.
struct Objects {
    shared: Shared,
    clients: Vec<Client>,
    tally: Rc<Cell<Tally>>,
}

impl Objects {
    fn new(plan: &Plan, world: &SimWorld, watch: &Rc<RefCell<Watch>>, tally: &Rc<Cell<Tally>>) -> Self {
        let mut office = Office::new(world, plan.group.seed, plan.letter_max);
        let guests: Vec<u32> = (0..plan.clients).map(|_| office.add_node()).collect();
        let history = History::new(plan.sessions_max);
        let shared = Shared {
            plan: Rc::new(plan.clone()),
            watch: Rc::clone(watch),
            history: Rc::new(RefCell::new(history)),
            office: Rc::new(RefCell::new(office)),
        };
        let client = |node| Client::new(node, world.fabric(node), &shared);
        Self { clients: guests.into_iter().map(client).collect(), shared, tally: Rc::clone(tally) }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.tally.set(self.shared.history.borrow().tally);
    }
}

impl Scene for Objects {
    type Program = Member;

    fn program(&mut self, node: NodeId) -> Member {
        Member::new(node, &self.shared)
    }

    fn layout(&self) -> Box<dyn Layout + Send> {
        let plan = Plan::clone(&self.shared.plan);
        Box::new(move |view: &View| plan.place(view))
    }

    fn guest_turn(&mut self, guest: u32, prng: &mut Prng) -> (bool, Option<Instant>) {
        let client = self.clients.iter_mut().find(|client| client.node == guest);
        client.expect("all guests are clients").turn(prng)
    }

    fn is_done(&self) -> bool {
        let office = self.shared.office.borrow();
        self.clients.iter().all(|client| client.is_done() || !office.lives(client.node))
    }

    fn delivered(&self) -> u64 {
        self.shared.history.borrow().tally.delivered
    }

    /// Who lives and never gives a state may stay for ever, if nobody else can give it.
    fn lets_go(&self, node: NodeId) -> bool {
        self.shared.plan.hanging != Some(node.0)
    }

    fn owes_work(&self, _node: NodeId) -> bool {
        self.shared.plan.hanging.is_none()
    }

    /// \[V8\] Nobody waits for anything, \[A7\] all members of a shard have its state, or none of them, and \[A8\] what is
    /// lost has died with those that had it. But nobody can get a state that one member has which never gives it.
    fn check_complete(&self, present: &[(NodeId, &Member)]) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let hanging = self.shared.plan.hanging;
        let is_stuck = |shard: u32| {
            let holders = present.iter().filter(|(_, member)| member.holds(shard) == Some(true));
            hanging.is_some() && holders.map(|(node, _)| node.0).eq(hanging)
        };
        for (node, member) in present {
            if let Some(why) = member.is_waiting_for(is_stuck) {
                return fail(format!("[V8] {node} still waits: {why}"));
            }
        }
        for shard in (0..self.shared.plan.shards).filter(|shard| !is_stuck(*shard)) {
            let part = |(node, member): &(NodeId, &Member)| Some((*node, member.holds(shard)?));
            let standings: Vec<(NodeId, bool)> = present.iter().filter_map(part).collect();
            if standings.iter().any(|(_, holds)| *holds) && standings.iter().any(|(_, holds)| !*holds) {
                return fail(format!("[A7] some hold shard {shard}, for others it is lost: {standings:?}"));
            }
        }
        let office = self.shared.office.borrow();
        self.shared.history.borrow().check_losses(|node| office.lives(node))?;
        self.shared.history.borrow().check_linearizable()?;
        if self.is_done() { Ok(()) } else { fail("[V8] a client still waits".into()) }
    }
}
