//! The cluster of a run: nodes with their cores and applications, and the checks at its end (RDMC §2, §3).

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Channel, Core, Duration, Fabric, Instant, NodeId};

use super::application::{RdmcApp, RdmcFindings, RdmcMember};
use super::contents;
use super::plan::{RdmcGroupPlan, RdmcPlan};
use squall_protocols::rdmc::{ObjectMemory, Rdmc, RdmcObject, RdmcSendError, UnfinishedObject};

/// The virtual time after the last fault within which everything must be done.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// The whole cluster.
pub(super) struct RdmcCluster {
    pub(super) world: SimWorld,
    pub(super) nodes: Vec<RdmcNode>,
    pub(super) watch: RdmcFindings,
}

pub(super) struct RdmcNode {
    pub(super) fabric: SimFabric,
    pub(super) core: Rdmc<RdmcApp>,
    /// The actions that the application will take, with their times by its own clock.
    agenda: Vec<(Instant, Task)>,
    prng: Prng,
    /// The received objects, with their times by the node's own clock.
    pub(super) received: Vec<(RdmcObject, Instant)>,
}

#[derive(Clone)]
enum Task {
    /// Creates a group and, at its root, sends all objects.
    Create(RdmcGroupPlan, Vec<UnfinishedObject>, bool),
    /// Provides memory that was promised.
    Supply(RdmcObject),
}

impl RdmcCluster {
    pub(super) fn new(seed: u64, config: SimConfig, nodes: u32) -> Self {
        let world = SimWorld::new(seed, config, nodes);
        let watch: RdmcFindings = Rc::new(RefCell::new(None));
        let node = |i: u32| RdmcNode {
            fabric: world.fabric(i),
            core: Rdmc::new(NodeId(i), Channel(3), RdmcApp::new(i, &watch, seed)),
            agenda: Vec::new(),
            prng: Prng::new(seed ^ u64::from(i) << 40),
            received: Vec::new(),
        };
        let nodes = (0..nodes).map(node).collect();
        Self { world, nodes, watch }
    }

    /// Returns a cluster that is ready to run a plan.
    pub(super) fn of(plan: &RdmcPlan, trace_records_max: usize) -> Self {
        let rules = plan.rules.clone();
        let config = SimConfig { rules, trace_records_max, ..SimConfig::adversarial(plan.seed) };
        let mut cluster = Self::new(plan.seed, config, plan.nodes);
        for group in &plan.groups {
            for member in &group.members {
                let node = &mut cluster.nodes[*member as usize];
                let app = node.core.application_mut();
                (app.later_per_mille, app.offers_per_mille) = (plan.later_per_mille, plan.offers_per_mille);
                let delay = node.prng.below(1 + plan.create_within.as_nanos() as u64);
                let at = node.fabric.now() + Duration::from_nanos(delay);
                node.agenda.push((at, Task::Create(group.clone(), Vec::new(), plan.keeps)));
            }
        }
        cluster
    }

    /// All members create the group now, each with the blocks of its objects that it has left.
    pub(super) fn create(&mut self, group: &RdmcGroupPlan, left: impl Fn(u32) -> Vec<UnfinishedObject>) {
        for member in &group.members {
            self.create_at(*member, group, left(*member));
        }
    }

    /// One member creates the group now.
    pub(super) fn create_at(&mut self, member: u32, group: &RdmcGroupPlan, left: Vec<UnfinishedObject>) {
        let node = &mut self.nodes[member as usize];
        node.agenda.push((node.fabric.now(), Task::Create(group.clone(), left, true)));
        self.world.wake(member);
    }

    /// The root sends the first objects of the group now. Returns the time, which is the same by all clocks.
    pub(super) fn send(&mut self, group: &RdmcGroupPlan, sizes: &[u64]) -> Instant {
        let root = group.members[0];
        let node = &mut self.nodes[root as usize];
        let now = node.fabric.now();
        node.send(group, group.first, sizes);
        self.world.wake(root);
        now
    }

    /// Lets time pass until `done`, until all members are quiet, or for `span`. Returns what a checker has found as
    /// an error.
    pub(super) fn run_until(
        &mut self,
        span: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let until = self.world.now() + span;
        while let Some(i) = self.world.next_poll(until) {
            let worked = self.nodes[i as usize].step();
            let deadline = self.nodes[i as usize].next_deadline();
            self.world.rest(i, worked, deadline);
            if let Some(violation) = self.watch.borrow().clone() {
                return Err(violation);
            }
            if done(self) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn run(&mut self) -> Result<(), String> {
        self.run_until(SETTLE, |_| false)
    }

    /// Runs a plan without deadly faults and checks all groups.
    pub(super) fn run_through(&mut self, plan: &RdmcPlan) -> Result<(), String> {
        self.run()?;
        plan.groups.iter().try_for_each(|group| self.check_all_received(group))
    }

    /// Returns the number of objects received, over all members and groups.
    pub(super) fn delivered(&self) -> u64 {
        let streams = self.nodes.iter().flat_map(|node| node.core.application().streams.values());
        streams.map(|stream| stream.next_received - stream.first).sum()
    }

    /// Checks that everything that was sent has been received and released at all members, in order, and that all
    /// members are quiet.
    pub(super) fn check_all_received(&self, group: &RdmcGroupPlan) -> Result<(), String> {
        for member in &group.members {
            let stream = self.nodes[*member as usize].core.application().stream(group.id);
            if let Some(failure) = &stream.failure {
                return Err(format!("node {member} reports that {} failed: {}", group.id, failure.cause));
            }
            let received = if *member == group.members[0] { group.end() } else { stream.next_received };
            if [received, stream.next_released] != [group.end(); 2] {
                let [next, end] = [stream.next_released, group.end()];
                return Err(format!(
                    "[B1] node {member} has received {received} and released {next} of {end} objects of {}",
                    group.id
                ));
            }
        }
        match self.world.next_event_at() {
            None => Ok(()),
            Some(_) => Err(format!("there is still traffic {SETTLE:?} after the last object")),
        }
    }

    /// Checks that every living member has reported the failure, with exactly the blocks that it holds.
    pub(super) fn check_all_failed(&self, group: &RdmcGroupPlan) -> Result<(), String> {
        for member in group.members.iter().filter(|member| self.world.lives(**member)) {
            let stream = self.nodes[*member as usize].core.application().stream(group.id);
            if stream.failure.is_none() {
                return Err(format!("[B7] node {member} was not notified that {} failed", group.id));
            }
            stream.check_at_rest().map_err(|text| format!("node {member}: {text}"))?;
        }
        Ok(())
    }
}

impl RdmcNode {
    pub(super) fn step(&mut self) -> bool {
        let mut events = Vec::new();
        let mut worked = self.fabric.poll(&mut |event| events.push(event)) > 0;
        worked |= self.run_agenda();
        for event in &events {
            self.core.handle_event(&mut self.fabric, event);
        }
        self.offer();
        worked |= self.core.poll(&mut self.fabric) > 0;
        let now = self.fabric.now();
        let received = std::mem::take(&mut self.core.application_mut().received);
        self.received.extend(received.into_iter().map(|object| (object, now)));
        for object in self.core.application_mut().take_asked() {
            let at = self.fabric.now() + Duration::from_nanos(self.prng.below(100_000));
            self.agenda.push((at, Task::Supply(object)));
        }
        worked
    }

    /// Offers memory for objects that have not been announced.
    fn offer(&mut self) {
        for (object, memory) in self.core.application_mut().draw_offers(&mut self.fabric) {
            if self.core.offer(object.group, object.number, memory.clone()) == Ok(true) {
                self.core.application_mut().on_offered(object, memory);
            }
        }
    }

    fn run_agenda(&mut self) -> bool {
        let now = self.fabric.now();
        let due: Vec<_> = self.agenda.extract_if(.., |(at, _)| *at <= now).collect();
        let worked = !due.is_empty();
        for (_, task) in due {
            match task {
                Task::Create(group, left, keeps) => self.create(&group, left, keeps),
                Task::Supply(object) => {
                    let memory = contents::empty(&mut self.fabric, object.words());
                    // The group may have failed meanwhile.
                    let _ = self.core.supply(object.group, object.number, memory);
                }
            }
        }
        worked
    }

    fn create(&mut self, group: &RdmcGroupPlan, left: Vec<UnfinishedObject>, keeps: bool) {
        let stream = RdmcMember::new(group.key, group.settings.block_bytes, group.first, keeps);
        self.core.application_mut().streams.insert(group.id, stream);
        let members: Vec<NodeId> = group.members.iter().copied().map(NodeId).collect();
        self.core
            .resume(&mut self.fabric, group.id, &members, group.settings.clone(), group.first, left)
            .expect("the plan is valid");
        if self.fabric.node() != members[0] {
            return;
        }
        self.send(group, group.first, &group.sizes);
    }

    /// Sends objects as the root; the first one has the given number.
    fn send(&mut self, group: &RdmcGroupPlan, first: u64, sizes: &[u64]) {
        for (number, bytes) in (first..).zip(sizes) {
            let memory: ObjectMemory = contents::full(&mut self.fabric, group.key, number, *bytes);
            match self.core.send(group.id, memory, *bytes) {
                Ok(sent) => assert_eq!(sent, number),
                // A member may be lost already.
                Err(error) => assert!(matches!(error, RdmcSendError::Failed(_)), "{error}"),
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let task = self.agenda.iter().map(|(at, _)| *at).min();
        [task, Core::<SimFabric>::next_deadline(&self.core)].into_iter().flatten().min()
    }
}

/// Runs a plan without deadly faults and checks all groups.
#[cfg(test)]
pub(super) fn run_plan(plan: &RdmcPlan) -> Result<(), String> {
    RdmcCluster::of(plan, 0).run_through(plan)
}
