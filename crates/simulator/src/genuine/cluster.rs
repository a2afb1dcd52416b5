//! The cluster of a run: nodes with their groups, and what the end must look like.

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, NodeId};
use squall_protocols::genuine::{DeliveredMarks, GenuineEnd, GenuineGroup, GenuineGroupSettings};
use squall_protocols::membership::{Membership, MembershipSettings, MembershipState, StopReason, View};

use super::checks::{Delivered, GenuineHistory};
use super::plan::GenuinePlan;
use super::program::{GenuineApp, Workload, member};
use crate::group::UNREACHABLE_AFTER;
use crate::run::{RunOutcome, Violation};

/// After the last fault all is delivered, and all nodes that live and are wanted are in one view, within this virtual time.
const SETTLE: Duration = Duration::from_millis(200);

/// The nodes do their work in fewer turns.
const STEPS_MAX: u32 = 400_000;

/// Whether a run with heartbeats is over is checked once in this number of turns.
const LOOK_EVERY: u32 = 64;

/// How often a joiner asks again, to be admitted or for the state.
const ASK_EVERY: Duration = Duration::from_micros(700);

pub(super) struct GenuineCluster {
    plan: GenuinePlan,
    world: SimWorld,
    nodes: Vec<ClusterNode>,
    history: Rc<RefCell<GenuineHistory>>,
    prng: Prng,
}

struct ClusterNode {
    id: NodeId,
    fabric: SimFabric,
    events: Vec<FabricEvent>,
    group: Option<GenuineGroup<GenuineApp>>,
    work: Workload,
    /// The members of the latest view.
    members: Vec<NodeId>,
    /// How many nodes there are.
    nodes: u32,
    has_parted: bool,
    /// When it begins, or asks again, to join; by its own clock.
    asks_at: Option<Instant>,
    leaves_at: Option<Instant>,
    /// When it asks for the state of its shard, and the one that is on its way.
    wants_state_at: Option<Instant>,
    state: Option<(Instant, DeliveredMarks, Delivered)>,
}

impl GenuineCluster {
    pub(super) fn new(plan: &GenuinePlan, trace_records_max: usize) -> Self {
        let config = SimConfig {
            adversary: Some(plan.group.adversary.clone()),
            cost: CostModel::FREE,
            early_sight: plan.group.early_sight,
            one_sided_progress: plan.group.one_sided_progress,
            unreachable_after: UNREACHABLE_AFTER,
            loss_noticed_after: Duration::from_millis(1),
            rules: plan.group.rules.clone(),
            trace_records_max: if plan.counts_words { usize::MAX } else { trace_records_max },
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(plan.group.seed, config, plan.group.nodes());
        let history = Rc::new(RefCell::new(GenuineHistory::new(plan)));
        let nodes = (0..plan.group.nodes()).map(|i| ClusterNode::new(plan, &world, i, &history)).collect();
        Self { plan: plan.clone(), world, nodes, history, prng: Prng::new(plan.group.seed ^ 0x6e0) }
    }

    pub(super) fn run(mut self) -> RunOutcome {
        let mut last_fault = Instant::from_nanos(0) + self.plan.group.last_fault();
        let (mut steps, mut deaths) = (0, 0);
        while let Some(i) = self.world.next_poll(last_fault + SETTLE) {
            steps += 1;
            if std::mem::replace(&mut deaths, self.world.deaths()) != deaths {
                last_fault = last_fault.max(self.world.now());
            }
            let worked = self.step(i as usize);
            self.world.rest(i, worked, self.nodes[i as usize].next_deadline());
            if steps > STEPS_MAX && self.plan.group.suspicion_after.is_none() {
                let text = format!("[N4] the members are still busy after {STEPS_MAX} steps");
                self.history.borrow_mut().take(Err(Violation { checker: "quiescence", text }));
            }
            if self.history.borrow().violation.is_some() {
                break;
            }
            // Heartbeats never end. To look at everything takes longer than many turns.
            let may_be_over = self.plan.group.suspicion_after.is_some() && steps.is_multiple_of(LOOK_EVERY);
            if may_be_over && self.world.now() > last_fault && self.is_settled() {
                break;
            }
        }
        let found = self.history.borrow_mut().violation.take();
        let violation = found.or_else(|| self.check_end().err());
        let keeps = !self.plan.counts_words;
        RunOutcome {
            violation,
            elapsed: self.world.now().since(Instant::from_nanos(0)),
            delivered: self.history.borrow().total,
            trace_hash: self.world.trace_hash(),
            trace: if keeps { self.world.trace() } else { Vec::new() },
        }
    }

    fn step(&mut self, i: usize) -> bool {
        let mut worked = self.nodes[i].start(&self.plan, &self.history);
        worked |= self.ask(i) | self.ask_for_state(i);
        let node = &mut self.nodes[i];
        worked |= node.fabric.poll(&mut |event| node.events.push(event)) > 0;
        let Some(group) = &mut node.group else { return worked };
        let now = node.fabric.now();
        if node.leaves_at.is_some_and(|at| now >= at) {
            node.leaves_at = None;
            group.leave();
        }
        if node.state.as_ref().is_some_and(|(at, ..)| now >= *at) && group.member().is_some() {
            let (_, marks, delivered) = node.state.take().expect("it is there");
            self.history.borrow_mut().on_state(node.id, delivered);
            group.take_state(&marks);
            worked = true;
        }
        worked |= node.work.send(&self.plan, group, &node.fabric, &mut self.prng);
        node.events.drain(..).for_each(|event| group.handle_event(&mut node.fabric, &event));
        worked |= group.poll(&mut node.fabric) > 0;
        node.part_with_the_departed();
        if let Some(GenuineEnd::Failed(failure)) = node.group.as_ref().and_then(GenuineGroup::ended) {
            let text = format!("[G12] {} has stopped: {failure}", node.id);
            self.history.borrow_mut().take(Err(Violation { checker: "failure", text }));
        }
        worked
    }

    /// A joiner asks the member that leads, if its shard has a member that holds its state \[G14\].
    fn ask(&mut self, i: usize) -> bool {
        let node = &self.nodes[i];
        let is_joining =
            node.group.as_ref().is_some_and(|group| group.membership().is_none() && group.ended().is_none());
        if !is_joining || node.asks_at.is_none_or(|at| node.fabric.now() < at) {
            return false;
        }
        let joiner = member(&self.plan, node.id.0);
        let next = node.fabric.now() + ASK_EVERY;
        self.nodes[i].asks_at = Some(next);
        let leads = |node: &&mut ClusterNode| {
            let membership = node.group.as_ref().and_then(GenuineGroup::membership);
            self.world.lives(node.id.0) && membership.is_some_and(Membership::leads)
        };
        let leader = self.nodes.iter_mut().filter(leads).max_by_key(|node| node.view_id());
        let Some(leader) = leader else { return true };
        let (id, group) = (leader.id, leader.group.as_mut().expect("it leads"));
        let is_held = |shard| group.membership().expect("it leads").is_held(shard);
        if self.plan.homes[i].is_none_or(is_held) {
            group.admit(joiner);
            self.world.wake(id.0);
        }
        true
    }

    /// A joiner that is in a view asks a member of its shard that holds the state. What that member has delivered by the time at
    /// which it is asked is in the state.
    fn ask_for_state(&mut self, i: usize) -> bool {
        let node = &self.nodes[i];
        let Some(id) = node.lacks_state().map(|view| view.id) else { return false };
        let (now, asked) = (node.fabric.now(), node.wants_state_at);
        let at = asked.unwrap_or_else(|| now + draw_up_to(self.plan.request_max, &mut self.prng));
        self.nodes[i].wants_state_at = Some(at);
        if now < at {
            return false;
        }
        let home = self.plan.homes[i];
        let gives = |node: &&ClusterNode| {
            self.plan.homes[node.id.0 as usize] == home
                && node.holds_state()
                && self.world.lives(node.id.0)
                && node.view_id() >= Some(id)
        };
        let providers: Vec<&ClusterNode> = self.nodes.iter().filter(gives).collect();
        let state = (!providers.is_empty()).then(|| {
            let provider = providers[self.prng.index(providers.len())];
            let marks =
                provider.group.as_ref().and_then(GenuineGroup::member).and_then(|member| member.marks());
            let delay = draw_up_to(self.plan.transfer_max, &mut self.prng);
            let delivered = self.history.borrow().delivered(provider.id).clone();
            (now + delay, marks.expect("a member of a shard").clone(), delivered)
        });
        let node = &mut self.nodes[i];
        node.wants_state_at = Some(now + ASK_EVERY);
        if node.state.is_none() {
            node.state = state;
        }
        true
    }

    /// Nodes that live and have not stopped.
    fn going(&self) -> impl Iterator<Item = &ClusterNode> {
        let is_going = |node: &&ClusterNode| {
            self.world.lives(node.id.0) && node.group.as_ref().is_none_or(|group| group.ended().is_none())
        };
        self.nodes.iter().filter(is_going)
    }

    fn is_settled(&self) -> bool {
        self.check_one_view().is_ok()
            && self.check_leavers().is_ok()
            && self.check_complete().is_ok()
            && self.going().all(|node| node.work.is_done() || node.view_id().is_none())
    }

    fn check_end(&self) -> Result<(), Violation> {
        let history = self.history.borrow();
        history.check_prefixes()?;
        history.check_acyclic()?;
        if self.plan.counts_words {
            history.check_words(&self.world.trace())?;
        }
        drop(history);
        self.check_stops()?;
        self.check_one_view()?;
        self.check_leavers()?;
        self.check_complete()?;
        self.check_healthy()
    }

    /// All that members of the last view have sent is delivered, if each shard has a member with its state.
    fn check_complete(&self) -> Result<(), Violation> {
        let present: Vec<NodeId> =
            self.going().filter(|node| node.view_id().is_some()).map(|node| node.id).collect();
        if self.has_lost_a_state() {
            return Ok(());
        }
        if let Some(node) = self.going().find(|node| node.lacks_state().is_some()) {
            let text = format!("[G14] {} still waits for the state of its shard", node.id);
            return Err(Violation { checker: "liveness", text });
        }
        self.history.borrow().check_complete(&present)
    }

    /// Whether all members that held the state of a shard are gone, though it has members.
    fn has_lost_a_state(&self) -> bool {
        self.going().any(|node| node.lacks_state().is_some() && !self.is_held_elsewhere(node))
    }

    /// \[V10\] The healthy members are in the last view, and have sent all.
    fn check_healthy(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "availability", text });
        for node in self.plan.group.healthy(|node| !self.world.lives(node)) {
            let node = &self.nodes[node as usize];
            let may_join = node.id.0 < self.plan.group.members || self.is_held_elsewhere(node);
            if node.view_id().is_none() && may_join {
                return fail(format!("[V10] {} is healthy and is not in the last view", node.id));
            }
            if node.view_id().is_some() && !node.work.is_done() && !self.has_lost_a_state() {
                return fail(format!("[V10] {} is healthy and cannot send", node.id));
            }
        }
        Ok(())
    }

    /// Whether another member of a node's shard holds its state: else no joiner may come into the shard, even if it has
    /// members, which have joined and then lost all that held the state \[G14\].
    fn is_held_elsewhere(&self, node: &ClusterNode) -> bool {
        let home = |node: &ClusterNode| self.plan.homes[node.id.0 as usize];
        let holds = |other: &ClusterNode| {
            other.id != node.id
                && home(other) == home(node)
                && other.view_id().is_some()
                && other.holds_state()
        };
        self.going().any(holds)
    }

    /// \[V13\] Nodes that wished to leave have left.
    fn check_leavers(&self) -> Result<(), Violation> {
        let wished = |node: &&ClusterNode| {
            let leaves = self.plan.group.leaves.iter().any(|(leaver, _)| *leaver == node.id.0);
            // A member that alone holds a state stays.
            let is_needed = node.holds_state()
                && self.plan.homes[node.id.0 as usize].is_some()
                && !self.is_held_elsewhere(node);
            leaves && node.leaves_at.is_none() && node.view_id().is_some() && !is_needed
        };
        match self.going().find(wished) {
            Some(node) => {
                let text = format!("[V13] {} wished to leave, and is in view {:?}", node.id, node.view_id());
                Err(Violation { checker: "liveness", text })
            }
            None => Ok(()),
        }
    }

    /// \[V8\] All nodes that live and have not stopped are in one view, of just them, in which messages flow.
    fn check_one_view(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let Some(last) = self.going().filter_map(ClusterNode::view_id).max() else { return Ok(()) };
        for node in self.going() {
            let Some(membership) = node.group.as_ref().and_then(GenuineGroup::membership) else {
                let is_cut_off = self
                    .going()
                    .any(|other| node.group.as_ref().is_some_and(|group| group.has_lost(other.id)));
                if is_cut_off || !self.is_held_elsewhere(node) {
                    continue;
                }
                return fail(format!("[V8] {} still waits to join view {last}", node.id));
            };
            let (view, state) = (membership.view(), membership.state());
            if view.id != last || state != MembershipState::Normal {
                return fail(format!("[V8] {} is in {view}, {state:?}; the last view is {last}", node.id));
            }
            let is_going = |node: NodeId| self.going().any(|other| other.id == node);
            if let Some(gone) = view.nodes().into_iter().find(|node| !is_going(*node)) {
                return fail(format!("[V8] {} is in {view}, although {gone} has stopped", node.id));
            }
        }
        Ok(())
    }

    /// Nodes that have stopped had a reason.
    fn check_stops(&self) -> Result<(), Violation> {
        let is_sure = !self.plan.group.has_false_suspicion();
        let healthy = self.plan.group.healthy(|node| !self.world.lives(node));
        for node in &self.nodes {
            let ended = node.group.as_ref().and_then(GenuineGroup::ended);
            let Some(ended) = ended.filter(|_| self.world.lives(node.id.0)) else { continue };
            let leaves = self.plan.group.leaves.iter().any(|(leaver, _)| *leaver == node.id.0);
            let is_fine = match ended {
                GenuineEnd::Stopped(StopReason::Left) => leaves,
                GenuineEnd::Stopped(StopReason::Minority { .. }) => !is_sure || self.plan.group.crashes() > 0,
                GenuineEnd::Stopped(StopReason::Excluded) => !is_sure,
                GenuineEnd::Stopped(StopReason::LogsGone { .. }) => false,
                GenuineEnd::Deserted => true,
                GenuineEnd::Failed(_) | GenuineEnd::Unfollowed => false,
            };
            if !is_fine {
                let text = format!("[V5] {} has stopped without a reason: {ended}", node.id);
                return Err(Violation { checker: "liveness", text });
            }
            if healthy.contains(&node.id.0) && ended != GenuineEnd::Deserted {
                let text = format!("[V10] {} has stopped, one of the healthy {healthy:?}: {ended}", node.id);
                return Err(Violation { checker: "availability", text });
            }
        }
        Ok(())
    }
}

/// Up to `max`; nothing is drawn for a plan without it.
fn draw_up_to(max: Duration, prng: &mut Prng) -> Duration {
    if max.is_zero() { max } else { Duration::from_nanos(prng.below(1 + max.as_nanos() as u64)) }
}

impl ClusterNode {
    fn new(plan: &GenuinePlan, world: &SimWorld, i: u32, history: &Rc<RefCell<GenuineHistory>>) -> Self {
        let mut fabric = world.fabric(i);
        let (id, now) = (NodeId(i), fabric.now());
        let leaves_at = plan.group.leaves.iter().find(|(leaver, _)| *leaver == i).map(|(_, at)| now + *at);
        let mut asks_at = None;
        let group = if i < plan.group.members {
            let members = (0..plan.group.members).map(|node| member(plan, node)).collect();
            let app = GenuineApp::new(id, plan, history);
            Some(GenuineGroup::begin(&mut fabric, &View::first(members), settings(plan), app))
        } else {
            asks_at = Some(now + plan.group.joins[(i - plan.group.members) as usize]);
            None
        };
        Self {
            id,
            fabric,
            events: Vec::new(),
            group,
            work: Workload::new(plan, i),
            members: Vec::new(),
            nodes: plan.group.nodes(),
            has_parted: false,
            asks_at,
            leaves_at,
            wants_state_at: None,
            state: None,
        }
    }

    /// A joiner begins when it is time.
    fn start(&mut self, plan: &GenuinePlan, history: &Rc<RefCell<GenuineHistory>>) -> bool {
        if self.group.is_some() || self.asks_at.is_some_and(|at| self.fabric.now() < at) {
            return false;
        }
        let contacts: Vec<NodeId> =
            (0..plan.group.nodes()).map(NodeId).filter(|node| *node != self.id).collect();
        let app = GenuineApp::new(self.id, plan, history);
        self.group = Some(GenuineGroup::join(&mut self.fabric, &contacts, settings(plan), app));
        true
    }

    /// The view in which the node waits for the state of its shard, if it does.
    fn lacks_state(&self) -> Option<&View> {
        let group = self.group.as_ref().filter(|group| !group.has_state())?;
        let marks = group.member()?.marks();
        marks.and_then(|_| group.membership()).map(Membership::view)
    }

    /// Whether it has the state of its shard; a joiner before its first view has none.
    fn holds_state(&self) -> bool {
        self.group.as_ref().is_some_and(GenuineGroup::has_state)
    }

    /// Closes the connections to those who are no longer members, and to all when the group has ended here.
    fn part_with_the_departed(&mut self) {
        let Some(group) = &self.group else { return };
        let distrusted = group.membership().map_or(&[][..], Membership::distrusted);
        assert!(distrusted.is_empty(), "[V1], [V2] no member here writes what cannot be: {distrusted:?}");
        let members = match (group.membership(), group.ended()) {
            // Not before all members know of the view: a member that departs might mislead those that do not.
            (Some(membership), _) if membership.is_ready() => membership.view().nodes(),
            (None, Some(_)) => return self.part_with_all(),
            _ => return,
        };
        let departed = self.members.extract_if(.., |node| *node != self.id && !members.contains(node));
        departed.for_each(|node| self.fabric.remove_peer(node));
        self.members = members;
    }

    /// The process ends with its group: also those who were on their way into it lose this node.
    fn part_with_all(&mut self) {
        if !std::mem::replace(&mut self.has_parted, true) {
            let others = (0..self.nodes).map(NodeId).filter(|node| *node != self.id);
            others.for_each(|node| self.fabric.remove_peer(node));
        }
    }

    fn view_id(&self) -> Option<u64> {
        self.group.as_ref()?.membership().map(|membership| membership.view().id)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let Some(group) = &self.group else { return self.asks_at };
        let asks = self.asks_at.filter(|_| group.membership().is_none() && group.ended().is_none());
        let send = self.work.next_deadline().filter(|_| group.member().is_some());
        // At once in a view that it has just begun: to ask for the state.
        let wants = self.lacks_state().map(|_| self.wants_state_at.unwrap_or(Instant::from_nanos(0)));
        let state = self.state.as_ref().map(|(at, ..)| *at).filter(|_| group.member().is_some());
        let core = Core::<SimFabric>::next_deadline(group);
        [asks, self.leaves_at.filter(|_| group.ended().is_none()), send, wants, state, core]
            .into_iter()
            .flatten()
            .min()
    }
}

fn settings(plan: &GenuinePlan) -> GenuineGroupSettings {
    let membership = MembershipSettings {
        suspicion_after: plan.group.suspicion_after,
        partition_safety: plan.group.partition_safety,
        states: plan.shards,
    };
    GenuineGroupSettings { membership, multicast: plan.settings.clone() }
}
