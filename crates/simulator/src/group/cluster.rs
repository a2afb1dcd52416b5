//! The cluster of a run: nodes with their groups, and what the end must look like.

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, NodeId};
use squall_protocols::group::{GroupCore, GroupEnd, GroupSettings};
use squall_protocols::membership::{self, MEMBERS_MAX, Member, MembershipState, StopReason, View};

use super::plan::GroupPlan;
use super::program::{GroupScene, NodeProgram, RunChecks};
use crate::run::{RunOutcome, Violation};

/// After the last fault all is delivered, and all who live and are wanted are in one view, within this virtual time.
const SETTLE: Duration = Duration::from_millis(200);

/// How long a partition lasts before the nodes lose each other.
pub const UNREACHABLE_AFTER: Duration = Duration::from_millis(3);

/// The nodes do their work in fewer turns: most runs in a few thousand, those that relay large messages in the smallest
/// blocks in up to 150,000.
const STEPS_MAX: u32 = 400_000;

/// Whether a run with heartbeats is over is looked at once in so many turns.
const LOOK_EVERY: u32 = 64;

/// Subgroups that may have a state, at most: those of the scenario `replica`.
pub(crate) const STATES: usize = 8;

/// How often a joiner asks again.
const ASK_EVERY: Duration = Duration::from_micros(700);

pub(crate) struct GroupCluster<S: GroupScene> {
    plan: GroupPlan,
    scene: S,
    world: SimWorld,
    nodes: Vec<Node<S::Program>>,
    watch: Rc<RefCell<RunChecks>>,
    prng: Prng,
}

/// What has become of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFate {
    /// It has crashed.
    Dead,
    /// It waits for its first view.
    Waiting,
    /// It is in this view.
    Member(View),
    /// Its group has ended.
    Ended(GroupEnd),
}

impl NodeFate {
    /// Whether `nodes`, in ascending order, are in one view of just them.
    ///
    /// # Errors
    /// The first of `nodes` that is not.
    pub fn expect_together(fates: &[Self], nodes: &[u32]) -> Result<(), u32> {
        let is_in = |node: &u32| match &fates[*node as usize] {
            Self::Member(view) => {
                let mut members: Vec<u32> = view.members.iter().map(|member| member.node.0).collect();
                members.sort_unstable();
                members == nodes
            }
            _ => false,
        };
        nodes.iter().find(|node| !is_in(node)).map_or(Ok(()), |missing| Err(*missing))
    }
}

struct Node<P: NodeProgram> {
    id: NodeId,
    fabric: SimFabric,
    /// Events that the group has not seen.
    events: Vec<FabricEvent>,
    group: Option<GroupCore<P>>,
    /// The members of the latest view.
    members: Vec<NodeId>,
    /// How many nodes there are.
    nodes: u32,
    /// It has closed all its connections.
    has_parted: bool,
    /// When it begins, or asks again, to join; by its own clock.
    asks_at: Option<Instant>,
    leaves_at: Option<Instant>,
}

impl<S: GroupScene> GroupCluster<S> {
    pub(crate) fn new(
        plan: &GroupPlan,
        trace_records_max: usize,
        scene: impl FnOnce(&SimWorld, &Rc<RefCell<RunChecks>>) -> S,
    ) -> Self {
        let config = SimConfig {
            adversary: Some(plan.adversary.clone()),
            cost: CostModel::FREE,
            early_sight: plan.early_sight,
            one_sided_progress: plan.one_sided_progress,
            unreachable_after: UNREACHABLE_AFTER,
            loss_noticed_after: Duration::from_millis(1),
            rules: plan.rules.clone(),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(plan.seed, config, plan.nodes());
        let watch = Rc::new(RefCell::new(RunChecks::new(plan.seed)));
        let mut scene = scene(&world, &watch);
        let nodes = (0..plan.nodes()).map(|i| Node::new(plan, &world, i, &mut scene)).collect();
        let prng = Prng::new(plan.seed ^ 0x6e0);
        Self { plan: plan.clone(), scene, world, nodes, watch, prng }
    }

    pub(crate) fn drive(&mut self) -> RunOutcome {
        let mut last_fault = Instant::from_nanos(0) + self.plan.last_fault();
        let (mut steps, mut deaths) = (0, 0);
        let unchanged_max = self.plan.unchanged_views_max();
        while let Some(i) = self.world.next_poll(last_fault + SETTLE) {
            steps += 1;
            if std::mem::replace(&mut deaths, self.world.deaths()) != deaths {
                last_fault = last_fault.max(self.world.now());
            }
            let (worked, deadline) = match self.nodes.get(i as usize) {
                Some(_) => (self.step(i as usize), self.nodes[i as usize].next_deadline()),
                None => self.scene.client_step(i, &mut self.prng),
            };
            self.world.rest(i, worked, deadline);
            let is_busy = steps > STEPS_MAX && self.plan.suspicion_after.is_none();
            if is_busy {
                let text = format!("[N4] the members are still busy after {STEPS_MAX} steps");
                self.watch.borrow_mut().take(Err(Violation { checker: "quiescence", text }));
            }
            if self.watch.borrow().views.unchanged() > unchanged_max {
                let text = format!("[V12] more than {unchanged_max} views ended without a change");
                self.watch.borrow_mut().take(Err(Violation { checker: "useless views", text }));
            }
            if self.watch.borrow().violation.is_some() {
                break;
            }
            // Heartbeats go on forever. To look at everything takes longer than many turns.
            let may_be_over = self.plan.suspicion_after.is_some() && steps.is_multiple_of(LOOK_EVERY);
            if may_be_over && self.world.now() > last_fault && self.is_settled() {
                break;
            }
        }
        let found = self.watch.borrow_mut().violation.take();
        let violation = found.or_else(|| self.check_end().err());
        RunOutcome {
            violation,
            elapsed: self.world.now().since(Instant::from_nanos(0)),
            delivered: self.scene.delivered(),
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace(),
        }
    }

    /// What has become of each node.
    pub(crate) fn fates(&self) -> Vec<NodeFate> {
        let fate = |node: &Node<S::Program>| {
            let group = node.group.as_ref();
            match (group.and_then(GroupCore::ended), group.and_then(GroupCore::membership)) {
                _ if !self.world.lives(node.id.0) => NodeFate::Dead,
                (Some(ended), _) => NodeFate::Ended(ended),
                (None, Some(membership)) => NodeFate::Member(membership.view().clone()),
                (None, None) => NodeFate::Waiting,
            }
        };
        self.nodes.iter().map(fate).collect()
    }

    /// How many messages of total order each node has delivered.
    pub(crate) fn deliveries(&self) -> Vec<usize> {
        let watch = self.watch.borrow();
        self.nodes.iter().map(|node| watch.views.delivered_by(node.id)).collect()
    }

    fn step(&mut self, i: usize) -> bool {
        let mut worked = self.nodes[i].start(&self.plan, &mut self.scene);
        worked |= self.ask(i);
        let node = &mut self.nodes[i];
        worked |= node.fabric.poll(&mut |event| node.events.push(event)) > 0;
        let Some(group) = &mut node.group else { return worked };
        let now = node.fabric.now();
        if node.leaves_at.is_some_and(|at| now >= at) {
            node.leaves_at = None;
            group.leave();
        }
        worked |= group.application().send(now, &mut self.prng);
        node.events.drain(..).for_each(|event| group.handle_event(&mut node.fabric, &event));
        worked |= group.poll(&mut node.fabric) > 0;
        if group.ended().is_some() {
            group.application().end();
        }
        worked |= group.application().consume(node.fabric.now(), &mut self.prng);
        node.part_with_the_departed();
        let Some(group) = &node.group else { return worked };
        if let Some(GroupEnd::Failed(id, failure)) = group.ended() {
            let text = format!("[O6] {} has stopped: {id}: {failure}", node.id);
            self.watch.borrow_mut().take(Err(Violation { checker: "failure", text }));
        }
        worked
    }

    /// A joiner asks who leads, as far as it can tell: what the bootstrap does on real machines.
    fn ask(&mut self, i: usize) -> bool {
        let node = &self.nodes[i];
        let is_joining =
            node.group.as_ref().is_some_and(|group| group.membership().is_none() && group.ended().is_none());
        if self.watch.borrow().views.has_seen(node.id) {
            self.nodes[i].asks_at = None;
            return false;
        }
        if !is_joining || node.asks_at.is_none_or(|at| node.fabric.now() < at) {
            return false;
        }
        let joiner = Member { node: node.id, tag: u64::from(node.id.0) };
        let next = node.fabric.now() + ASK_EVERY;
        self.nodes[i].asks_at = Some(next);
        let leads = |node: &&mut Node<S::Program>| {
            let membership = node.group.as_ref().and_then(GroupCore::membership);
            self.world.lives(node.id.0) && membership.is_some_and(membership::Membership::leads)
        };
        let leader = self.nodes.iter_mut().filter(leads).max_by_key(|node| node.view_id());
        if let Some(leader) = leader {
            leader.group.as_mut().expect("it leads").admit(joiner);
            self.world.wake(leader.id.0);
        }
        true
    }

    /// Nodes that live and have not stopped.
    fn going(&self) -> impl Iterator<Item = &Node<S::Program>> {
        let lives = |node: &&Node<S::Program>| self.world.lives(node.id.0);
        self.nodes
            .iter()
            .filter(lives)
            .filter(|node| node.group.as_ref().is_none_or(|group| group.ended().is_none()))
    }

    fn is_settled(&self) -> bool {
        self.check_one_view().is_ok()
            && self.check_leavers().is_ok()
            && self.check_complete().is_ok()
            && self.going().all(Node::is_done)
            && self.scene.is_done()
    }

    fn check_end(&self) -> Result<(), Violation> {
        self.check_stops()?;
        self.check_one_view()?;
        self.check_leavers()?;
        self.check_complete()?;
        self.check_healthy()
    }

    /// \[V10\] The healthy members are in the last view, and have nothing more to do.
    fn check_healthy(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "availability", text });
        for node in self.healthy() {
            let node = &self.nodes[node as usize];
            if node.view_id().is_none() {
                return fail(format!("[V10] {} is healthy and is not in the last view", node.id));
            }
            if self.scene.owes_work(node.id) && !node.is_done() {
                return fail(format!("[V10] {} is healthy and cannot continue its work", node.id));
            }
        }
        Ok(())
    }

    /// The nodes that have to end in one view together.
    fn healthy(&self) -> Vec<u32> {
        let excluded = GroupEnd::Stopped(StopReason::Excluded);
        self.plan.healthy(|node| !self.world.lives(node) || self.scene.excuses(NodeId(node), excluded))
    }

    /// \[V13\] Whoever wished to leave has left.
    fn check_leavers(&self) -> Result<(), Violation> {
        let wished = |node: &&Node<S::Program>| {
            let leaves = self.plan.leaves.iter().any(|(leaver, _)| *leaver == node.id.0);
            leaves && node.leaves_at.is_none() && node.view_id().is_some() && self.scene.lets_go(node.id)
        };
        match self.going().find(wished) {
            Some(node) => {
                let text = format!(
                    "[V13] {} wished to leave, and is a member of view {:?}",
                    node.id,
                    node.view_id()
                );
                Err(Violation { checker: "liveness", text })
            }
            None => Ok(()),
        }
    }

    /// \[V8\] All who live and have not stopped are in one view, of just them, in which messages flow.
    fn check_one_view(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let last = self.going().filter_map(Node::view_id).max();
        let Some(last) = last else { return Ok(()) };
        for node in self.going().filter(|node| !self.is_cut_off(node)) {
            let Some(membership) = node.group.as_ref().and_then(GroupCore::membership) else {
                return fail(format!("[V8] {} still waits to join view {last}", node.id));
            };
            let (view, state) = (membership.view(), membership.state());
            if view.id != last || state != MembershipState::Normal {
                return fail(format!("[V8] {} is in {view}, {state:?}; the last view is {last}", node.id));
            }
            let is_going = |member: &Member| self.going().any(|other| other.id == member.node);
            if let Some(gone) = view.members.iter().find(|member| !is_going(member)) {
                return fail(format!("[V8] {} is in {view}, although {} has stopped", node.id, gone.node));
            }
        }
        Ok(())
    }

    /// A joiner that has lost a member, or that there is no place for, cannot join; it gives up when its time is over.
    fn is_cut_off(&self, node: &Node<S::Program>) -> bool {
        let members = |node: &Node<S::Program>| {
            let membership = node.group.as_ref().and_then(GroupCore::membership);
            membership.map_or(0, |membership| membership.view().members.len())
        };
        if node.view_id().is_none() && self.going().any(|other| members(other) == MEMBERS_MAX) {
            return true;
        }
        let lost =
            |other: &Node<S::Program>| node.group.as_ref().is_some_and(|group| group.has_lost(other.id));
        node.view_id().is_none() && self.going().any(lost)
    }

    /// Whoever has stopped had a reason.
    fn check_stops(&self) -> Result<(), Violation> {
        let is_sure = !self.plan.has_false_suspicion();
        let healthy = self.healthy();
        for node in &self.nodes {
            let ended = node.group.as_ref().and_then(GroupCore::ended);
            let Some(ended) = ended.filter(|_| self.world.lives(node.id.0)) else { continue };
            let leaves = self.plan.leaves.iter().any(|(leaver, _)| *leaver == node.id.0);
            let is_fine = match ended {
                GroupEnd::Stopped(StopReason::Left) => leaves,
                GroupEnd::Stopped(StopReason::Minority { .. }) => !is_sure || self.plan.crashes() > 0,
                GroupEnd::Stopped(StopReason::Excluded) => !is_sure,
                GroupEnd::NobodyLeft => true,
                GroupEnd::Failed(..) => false,
            };
            if !is_fine && !self.scene.excuses(node.id, ended) {
                let text = format!("[V5] {} has stopped without a reason: {ended}", node.id);
                return Err(Violation { checker: "liveness", text });
            }
            if healthy.contains(&node.id.0) {
                let text = format!("[V10] {} has stopped, one of the healthy {healthy:?}: {ended}", node.id);
                return Err(Violation { checker: "availability", text });
            }
        }
        Ok(())
    }

    /// What the scene says of those who are in a view.
    fn check_complete(&self) -> Result<(), Violation> {
        let present: Vec<(NodeId, &S::Program)> = self
            .going()
            .filter(|node| node.view_id().is_some())
            .filter_map(|node| Some((node.id, node.group.as_ref()?.application_ref())))
            .collect();
        self.scene.check_complete(&present)
    }
}

impl<P: NodeProgram> Node<P> {
    fn new(plan: &GroupPlan, world: &SimWorld, i: u32, scene: &mut impl GroupScene<Program = P>) -> Self {
        let mut fabric = world.fabric(i);
        let (id, now) = (NodeId(i), fabric.now());
        let leaves_at = plan.leaves.iter().find(|(leaver, _)| *leaver == i).map(|(_, at)| now + *at);
        let mut asks_at = None;
        let group = if i < plan.members {
            let members = (0..plan.members).map(|n| Member { node: NodeId(n), tag: u64::from(n) }).collect();
            let view = View { id: plan.limits.first_view, ..View::first(members) };
            Some(GroupCore::begin(&mut fabric, view, scene.layout(), settings(plan), scene.program(id)))
        } else {
            asks_at = Some(now + plan.joins[(i - plan.members) as usize]);
            None
        };
        let (events, members, nodes) = (Vec::new(), Vec::new(), plan.nodes());
        Self { id, fabric, events, group, members, nodes, has_parted: false, asks_at, leaves_at }
    }

    /// A joiner begins when it is time.
    fn start(&mut self, plan: &GroupPlan, scene: &mut impl GroupScene<Program = P>) -> bool {
        if self.group.is_some() || self.asks_at.is_some_and(|at| self.fabric.now() < at) {
            return false;
        }
        let contacts: Vec<NodeId> = (0..plan.nodes()).map(NodeId).filter(|node| *node != self.id).collect();
        let (layout, program) = (scene.layout(), scene.program(self.id));
        self.group = Some(GroupCore::join(&mut self.fabric, &contacts, layout, settings(plan), program));
        true
    }

    /// Closes the connections to those who are no longer members, and to all when the group has ended here.
    fn part_with_the_departed(&mut self) {
        let Some(group) = &self.group else { return };
        let distrusted = group.membership().map_or(&[][..], |membership| membership.distrusted());
        assert!(distrusted.is_empty(), "[V1], [V2] nobody here writes what cannot be: {distrusted:?}");
        let members = match (group.membership(), group.ended()) {
            // Not before all members know of the view: who departs might mislead those who do not.
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

    fn is_done(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.application_ref().is_done())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let Some(group) = &self.group else { return self.asks_at };
        let asks = self.asks_at.filter(|_| group.membership().is_none() && group.ended().is_none());
        let leaves = self.leaves_at;
        let app = group.application_ref().next_deadline(self.fabric.now());
        let core = Core::<SimFabric>::next_deadline(group);
        [asks, leaves, app, core].into_iter().flatten().min()
    }
}

fn settings(plan: &GroupPlan) -> GroupSettings {
    let (suspicion_after, partition_safety) = (plan.suspicion_after, plan.partition_safety);
    GroupSettings {
        membership: membership::MembershipSettings { suspicion_after, partition_safety, states: STATES },
        relays: Some(plan.relays.clone()),
        view_indexes_max: plan.limits.view_indexes_max,
    }
}
