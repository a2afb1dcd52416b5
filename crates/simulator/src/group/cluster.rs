//! The cluster of a run: nodes with their groups, and what the end must look like.

use std::cell::{Ref, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimWorld, Verdict};
use squall_fabric::{Core as _, Duration, Fabric as _, Instant, NodeId};
use squall_protocols::admission::{JoinFailure, VIEWS_WITH_NUMBERS};
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::{Member, MembershipState, StopReason};
use squall_protocols::multicast::Carrier;

use super::host::GroupHost;
use super::plan::{FOR_EVER, GroupPlan, SubgroupPlan};
use super::program::{GroupScene, NodeProgram, RunChecks, is_done, view_id, waits};
use crate::admission::{JoinBus, JoinProcess, SimAdmission};
use crate::run::{RunOutcome, Violation};

/// Within this virtual time after the last fault all is delivered, and all nodes that live and are to stay are in one view; where blocks
/// are relayed one by one over a slow path and nodes do not ask to join without end, within `time_of_relays` more.
const SETTLE: Duration = Duration::from_millis(200);

/// How long all large messages take if a path that is slow for good carries each block, and its acknowledgement, after the one before.
fn time_of_relays(plan: &GroupPlan) -> Duration {
    let extras = plan.rules.iter().filter_map(|rule| match rule.what {
        Verdict::Slow { extra, .. } if extra < FOR_EVER => Some(extra),
        _ => None,
    });
    let blocks = |subgroup: &SubgroupPlan| {
        let large = subgroup.settings.large.filter(|large| large.carrier == Carrier::Relayed);
        large.map_or(0, |large| (large.message_max as u64).div_ceil(plan.relays.block_bytes))
    };
    let bodies = plan.messages * u64::from(plan.nodes());
    let round_trips = bodies * plan.subgroups.iter().map(blocks).sum::<u64>();
    extras.sum::<Duration>() * u32::try_from(round_trips).unwrap_or(u32::MAX)
}

/// How long a partition lasts before the nodes lose each other, in most plans.
pub const UNREACHABLE_AFTER: Duration = Duration::from_millis(3);

/// The nodes do their work in fewer turns: most runs in a few thousand, those that relay large messages in the smallest
/// blocks in up to 150,000.
const STEPS_MAX: u32 = 400_000;

/// Whether a run with heartbeats is over is checked once in this number of turns.
const LOOK_EVERY: u32 = 64;

/// The most members that a simulated group takes: fewer than a group may have, so that a full one is soon formed.
pub(crate) const MEMBERS_MAX: usize = 64;

/// Subgroups that may have a state, at most: those of the scenario `replica`.
pub(crate) const STATES: usize = 8;

/// The processes of a plan are called its nodes, by their places in it; a joiner is a node of the fabric of its own in each
/// attempt to join.
pub(crate) struct GroupCluster<S: GroupScene> {
    plan: GroupPlan,
    pub(super) all: SimAdmission<GroupHost<S>>,
    nodes: Vec<NodePlan>,
    watch: Rc<RefCell<RunChecks>>,
    /// The views in which a member has waited for a majority.
    waited: BTreeSet<u64>,
    prng: Prng,
}

/// What a node is to do, by its own clock.
struct NodePlan {
    joins_at: Option<Instant>,
    leaves_at: Option<Instant>,
    /// Its group has ended, and it has closed all its connections.
    has_parted: bool,
}

pub(super) type NodeProcess<S> = JoinProcess<<S as GroupScene>::Program>;

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
            unreachable_after: plan.unreachable_after,
            loss_noticed_after: Duration::from_millis(1),
            dies_visibly: plan.dies_visibly,
            rules: plan.rules.clone(),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(plan.seed, config, plan.nodes());
        let watch = Rc::new(RefCell::new(RunChecks::new(plan.seed)));
        let scene = scene(&world, &watch);
        let host = GroupHost { plan: plan.clone(), scene };
        let bus = JoinBus::new(plan.bus.clone(), plan.seed, plan.nodes() as usize);
        let mut all = SimAdmission::new(host, world, bus, plan.nodes(), plan.members, plan.limits.first_view);
        let node = |process: &NodeProcess<S>| {
            let (place, now) = (process.place, process.now());
            let joins_at = place.checked_sub(plan.members).map(|nth| now + plan.joins[nth as usize]);
            let leaves_at = plan.leaves.iter().find(|(leaver, _)| *leaver == place).map(|(_, at)| now + *at);
            NodePlan { joins_at, leaves_at, has_parted: false }
        };
        let nodes = all.processes.iter().map(node).collect();
        all.processes.iter_mut().filter_map(|process| process.group.as_mut()).for_each(|group| {
            group.application().arrive();
        });
        let prng = Prng::new(plan.seed ^ 0x6e0);
        Self { plan: plan.clone(), all, nodes, watch, waited: BTreeSet::new(), prng }
    }

    /// Runs to the end, and checks that all is as it has to be there.
    pub(crate) fn drive(&mut self) -> RunOutcome {
        self.pass(None);
        let found = self.watch.borrow_mut().violation.take();
        let violation = found.or_else(|| self.check_end().err());
        self.outcome(violation)
    }

    /// Runs until `end` at most, whatever is under way then.
    pub(crate) fn drive_until(&mut self, end: Instant) -> RunOutcome {
        self.pass(Some(end));
        let found = self.watch.borrow_mut().violation.take();
        self.outcome(found)
    }

    /// The programs of processes that are or were in a group, or join one.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &S::Program> {
        self.all.processes.iter().filter_map(|process| process.group.as_ref()).map(GroupCore::application_ref)
    }

    pub(crate) fn checks(&self) -> Ref<'_, RunChecks> {
        self.watch.borrow()
    }

    fn pass(&mut self, end: Option<Instant>) {
        let mut last_fault = Instant::from_nanos(0) + self.plan.last_fault();
        let (mut steps, mut deaths) = (0, 0);
        let relays = if self.plan.joins.is_empty() { time_of_relays(&self.plan) } else { Duration::ZERO };
        let settle = SETTLE + relays;
        while let Some(node) = self.all.world.next_poll(last_fault + settle) {
            steps += 1;
            if std::mem::replace(&mut deaths, self.all.world.deaths()) != deaths && self.all.bury() {
                last_fault = last_fault.max(self.all.world.now());
            }
            match self.all.numbers.owner_of(node) {
                Some(place) => self.poll_node(place, node),
                None => {
                    let (worked, deadline) = self.all.host.scene.client_step(node, &mut self.prng);
                    self.all.world.rest(node, worked, deadline);
                }
            }
            self.check_step(steps);
            let is_over = end.is_some_and(|end| self.all.world.now() >= end);
            if is_over || self.watch.borrow().violation.is_some() {
                break;
            }
            // Heartbeats continue forever. Checking everything takes longer than many turns.
            let may_be_over = self.plan.suspicion_after.is_some() && steps.is_multiple_of(LOOK_EVERY);
            if may_be_over && self.all.world.now() > last_fault && self.is_settled() {
                break;
            }
        }
    }

    fn outcome(&self, violation: Option<Violation>) -> RunOutcome {
        RunOutcome {
            violation,
            elapsed: self.all.world.now().since(Instant::from_nanos(0)),
            delivered: self.all.host.scene.delivered(),
            trace_hash: self.all.world.trace_hash(),
            trace: self.all.world.trace(),
        }
    }

    fn check_step(&mut self, steps: u32) {
        let mut watch = self.watch.borrow_mut();
        watch.take(self.all.violation.take().map_or(Ok(()), Err));
        let is_busy = steps > STEPS_MAX && self.plan.suspicion_after.is_none();
        if is_busy {
            let text = format!("[N4] the members are still busy after {STEPS_MAX} steps");
            watch.take(Err(Violation { checker: "quiescence", text }));
        }
        // A view may end for an attempt to join that fails.
        // Members that have waited may all be in the next view.
        let unchanged_max = self.plan.unchanged_views_max() + self.all.attempts + self.waited.len();
        if watch.views.unchanged() > unchanged_max {
            let text = format!("[V12] more than {unchanged_max} views ended without a change");
            watch.take(Err(Violation { checker: "useless views", text }));
        }
    }

    /// How many messages of total order each node has delivered.
    pub(crate) fn deliveries(&self) -> Vec<usize> {
        let watch = self.watch.borrow();
        self.all.processes.iter().map(|process| watch.views.delivered_by(process.node())).collect()
    }

    fn poll_node(&mut self, place: u32, node: u32) {
        let i = place as usize;
        if !self.all.processes[i].nodes().contains(&node) {
            return self.all.world.rest(node, false, None);
        }
        let worked = self.step(place);
        let (process, plan) = (&self.all.processes[i], &self.nodes[i]);
        let home = [plan.joins_at, plan.leaves_at.filter(|_| process.member().is_some())];
        let home = home.into_iter().flatten().min();
        let member = process.member().and_then(|program| program.next_deadline(process.member_now()));
        let flush = process.group.as_ref().and_then(|group| group.application_ref().next_flush());
        let member = member.into_iter().chain(flush).min();
        // Events of nodes with which a process has no links are not for it.
        match process.nodes()[..] {
            [home, _] => self.all.world.drop_events(home),
            [home] if process.group.is_none() => self.all.world.drop_events(home),
            _ => {}
        }
        for (node, deadline) in process.deadlines(self.all.next_message(place), home, member) {
            self.all.world.rest(node, worked, deadline);
        }
    }

    fn step(&mut self, place: u32) -> bool {
        let mut worked = self.start(place);
        while let Some(message) = self.all.take_next(place) {
            worked = true;
            self.all.handle_message(place, message);
        }
        worked |= self.poll_group(place);
        let was_joining = self.all.processes[place as usize].joiner.is_some();
        worked |= self.all.poll_joiner(place, !worked);
        let process = &mut self.all.processes[place as usize];
        if was_joining && process.joiner.is_none() {
            process.group.iter_mut().for_each(|group| group.application().arrive());
        }
        if process.is_up {
            self.all.poll_service(place);
        }
        self.all.tell(place, |process| self.watch.borrow().views.delivered_by(process.node()));
        self.check_failure(place);
        worked
    }

    /// A joiner begins when it is time. It knows where all nodes are reached.
    fn start(&mut self, place: u32) -> bool {
        let now = self.all.processes[place as usize].now();
        if self.nodes[place as usize].joins_at.take_if(|at| now >= *at).is_none() {
            return false;
        }
        let mut contacts: Vec<u32> = (0..self.plan.nodes()).filter(|other| *other != place).collect();
        self.prng.shuffle(&mut contacts);
        self.all.start(place, contacts);
        true
    }

    /// A turn of the process in its group; a program acts once it is a member.
    fn poll_group(&mut self, place: u32) -> bool {
        let mut worked = self.all.poll_fabric(place) > 0;
        let process = &mut self.all.processes[place as usize];
        let (is_member, home_now) = (process.joiner.is_none(), process.now());
        let Some(group) = &mut process.group else { return worked };
        if is_member {
            if self.nodes[place as usize].leaves_at.take_if(|at| home_now >= *at).is_some() {
                group.leave();
            }
            worked |= group.application().send(process.fabric.now(), &mut self.prng);
        }
        self.all.handle_events(place);
        let process = &mut self.all.processes[place as usize];
        let Some(group) = &mut process.group else { return worked };
        worked |= group.poll(&mut process.fabric) > 0;
        let waits = group.membership().filter(|membership| membership.waits().is_some());
        self.waited.extend(waits.map(|membership| membership.view().id));
        let now = process.fabric.now();
        worked |= group.application().flush(now, &mut self.prng);
        if is_member {
            if group.ended().is_some() {
                group.application().end();
            }
            worked |= group.application().consume(process.fabric.now(), &mut self.prng);
        }
        worked
    }

    /// The process ends with its group: processes that are joining lose this node, too.
    fn check_failure(&mut self, place: u32) {
        let process = &self.all.processes[place as usize];
        let Some(group) = process.group.as_ref().filter(|_| process.joiner.is_none()) else { return };
        let distrusted = group.membership().map_or(&[][..], |membership| membership.distrusted());
        assert!(distrusted.is_empty(), "[V1], [V2] no node here violates the protocol: {distrusted:?}");
        let Some(ended) = group.ended() else { return };
        if let GroupEnd::Failed(id, failure) = ended {
            let text = format!("[O6] node {place} has stopped: {id}: {failure}");
            self.watch.borrow_mut().take(Err(Violation { checker: "failure", text }));
        }
        if !std::mem::replace(&mut self.nodes[place as usize].has_parted, true) {
            self.all.part_with_all(place);
        }
    }

    /// Nodes that live, and have neither stopped nor given up to join, nor wait for a majority that may never come.
    fn going(&self) -> impl Iterator<Item = &NodeProcess<S>> {
        let has_given_up = |process: &NodeProcess<S>| self.given_up(process.place).is_some();
        let has_ended = move |process: &NodeProcess<S>| {
            self.ended(process).is_some() || waits(process) || has_given_up(process)
        };
        self.all.processes.iter().filter(move |process| self.all.lives(process) && !has_ended(process))
    }

    /// How the group has ended at a node that was a member.
    fn ended(&self, process: &NodeProcess<S>) -> Option<GroupEnd> {
        process.group.as_ref().filter(|_| process.joiner.is_none())?.ended()
    }

    fn given_up(&self, place: u32) -> Option<&JoinFailure> {
        self.all.given_up.iter().find(|(other, _)| *other == place).map(|(_, failure)| failure)
    }

    fn is_settled(&self) -> bool {
        !self.all.processes.iter().any(|process| self.all.lives(process) && waits(process))
            && self.check_one_view().is_ok()
            && self.check_leavers().is_ok()
            && self.check_complete().is_ok()
            && self.going().all(is_done)
            && self.all.host.scene.is_done()
    }

    fn check_end(&self) -> Result<(), Violation> {
        self.check_stops()?;
        if !self.plan.may_waver(&self.newest_members()) {
            self.check_one_view()?;
            self.check_leavers()?;
            self.check_complete()?;
        }
        self.check_healthy()
    }

    /// Returns the places of the members of the newest view, whether they wait in it or not, that live.
    fn newest_members(&self) -> Vec<u32> {
        let alive = || self.all.processes.iter().filter(|process| self.all.lives(process));
        let newest = alive().filter_map(|process| process.view()).max_by_key(|view| view.id);
        let is_in = |node| newest.is_some_and(|view| view.rank(node).is_some());
        alive().filter(|process| is_in(process.node())).map(|process| process.place).collect()
    }

    /// \[V10\] The healthy members are in the last view, and have nothing more to do.
    fn check_healthy(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "availability", text });
        for place in self.healthy() {
            let process = &self.all.processes[place as usize];
            if waits(process) {
                return fail(format!("[V17] node {place} is healthy and waits for a majority"));
            }
            if view_id(process).is_none() {
                return fail(format!("[V10] node {place} is healthy and is not in the last view"));
            }
            if self.all.host.scene.owes_work(NodeId(place)) && !is_done(process) {
                return fail(format!("[V10] node {place} is healthy and cannot continue its work"));
            }
        }
        Ok(())
    }

    /// The nodes that have to end in one view together.
    fn healthy(&self) -> Vec<u32> {
        let excluded = GroupEnd::Stopped(StopReason::Excluded);
        let excuses = |node| self.all.host.scene.excuses(NodeId(node), excluded);
        let has_fallen = |node: u32| {
            let process = &self.all.processes[node as usize];
            !self.all.lives(process) || self.all.is_dying(process) || excuses(node)
        };
        let mut healthy = self.plan.healthy(has_fallen);
        healthy.retain(|node| !self.is_shut_out(&self.all.processes[*node as usize]));
        if self.plan.may_lose_logs(&healthy) { Vec::new() } else { healthy }
    }

    /// \[V13\] Every node that wished to leave has left.
    fn check_leavers(&self) -> Result<(), Violation> {
        let wished = |process: &&NodeProcess<S>| {
            let place = process.place;
            let leaves = self.plan.leaves.iter().any(|(leaver, _)| *leaver == place);
            let has_wished = leaves && self.nodes[place as usize].leaves_at.is_none();
            has_wished && view_id(process).is_some() && self.all.host.scene.lets_go(NodeId(place))
        };
        match self.going().find(wished) {
            Some(process) => {
                let text = format!(
                    "[V13] node {} wished to leave, and is a member of view {:?}",
                    process.place,
                    view_id(process)
                );
                Err(Violation { checker: "liveness", text })
            }
            None => Ok(()),
        }
    }

    /// \[V8\] All nodes that live and have not stopped are in one view, of exactly these, in which messages flow.
    fn check_one_view(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let last = self.going().filter_map(view_id).max();
        let Some(last) = last else { return Ok(()) };
        let waiting = || self.all.processes.iter().filter(|other| self.all.lives(other) && waits(other));
        for process in self.going().filter(|process| !self.is_shut_out(process)) {
            let membership = process.group.as_ref().filter(|_| process.joiner.is_none());
            let Some(membership) = membership.and_then(GroupCore::membership) else {
                // No process is admitted to a view that ends.
                if waiting().next().is_some() {
                    continue;
                }
                return fail(format!("[V8] node {} still waits to join view {last}", process.place));
            };
            let (view, state) = (membership.view(), membership.state());
            if view.id != last || state != MembershipState::Normal {
                return fail(format!(
                    "[V8] node {} is in {view}, {state:?}; the last view is {last}",
                    process.place
                ));
            }
            let is_going =
                |member: &Member| self.going().chain(waiting()).any(|other| other.node() == member.node);
            if let Some(gone) = view.members.iter().find(|member| !is_going(member)) {
                return fail(format!(
                    "[V8] node {} is in {view}, although {} has stopped",
                    process.place, gone.node
                ));
            }
        }
        Ok(())
    }

    /// A joiner that cannot reach a member, that there is no place for, or no number, cannot join.
    fn is_shut_out(&self, process: &NodeProcess<S>) -> bool {
        let is_cut_off = |member: &NodeProcess<S>| self.all.are_cut_off(process, member);
        let is_full =
            |member: &NodeProcess<S>| member.view().is_some_and(|view| view.members.len() == MEMBERS_MAX);
        // It may have been refused by a member that has left since.
        let has_no_number =
            || self.watch.borrow().views.last().is_some_and(|last| last + 1 >= VIEWS_WITH_NUMBERS);
        let mut members = self.going().filter(|member| view_id(member).is_some());
        let is_kept_out = members.any(|member| is_cut_off(member) || is_full(member)) || has_no_number();
        view_id(process).is_none() && is_kept_out
    }

    /// Every node that has stopped had a reason.
    fn check_stops(&self) -> Result<(), Violation> {
        let is_sure = !self.plan.has_false_suspicion();
        let healthy = self.healthy();
        for process in self.all.processes.iter().filter(|process| self.all.lives(process)) {
            let place = process.place;
            let leaves = self.plan.leaves.iter().any(|(leaver, _)| *leaver == place);
            if let Some(failure) = self.given_up(place) {
                let is_fine = match failure {
                    JoinFailure::Removed(_) => !is_sure && !healthy.contains(&place),
                    JoinFailure::Hopeless(_) => self.is_shut_out(process),
                    _ => false,
                };
                if !is_fine {
                    let text = format!("[J5] node {place} has given up to join: {failure:?}");
                    return Err(Violation { checker: "liveness", text });
                }
            }
            if waits(process) && is_sure && self.plan.crashes() == 0 {
                let text = format!("[V17] node {place} waits for a majority, and all members are heard");
                return Err(Violation { checker: "availability", text });
            }
            let Some(ended) = self.ended(process) else { continue };
            let is_fine = match ended {
                GroupEnd::Stopped(StopReason::Left) => leaves,
                GroupEnd::Stopped(StopReason::Minority { .. }) => !is_sure || self.plan.crashes() > 0,
                GroupEnd::Stopped(StopReason::QuorumLost { .. }) => false,
                GroupEnd::Stopped(StopReason::LogsGone { .. }) => !is_sure || self.plan.crashes() > 0,
                GroupEnd::Stopped(StopReason::Excluded) => !is_sure,
                GroupEnd::NobodyLeft => true,
                GroupEnd::Failed(..) | GroupEnd::ShardsFailed(_) => false,
            };
            if !is_fine && !self.all.host.scene.excuses(NodeId(place), ended) {
                let text = format!("[V5] node {place} has stopped without a reason: {ended}");
                return Err(Violation { checker: "liveness", text });
            }
            if healthy.contains(&place) {
                let text = format!("[V10] node {place} has stopped, one of the healthy {healthy:?}: {ended}");
                return Err(Violation { checker: "availability", text });
            }
        }
        Ok(())
    }

    /// What the scene checks of the nodes that are in a view.
    fn check_complete(&self) -> Result<(), Violation> {
        let present: Vec<(NodeId, &S::Program)> = self
            .going()
            .filter(|process| view_id(process).is_some())
            .filter_map(|process| Some((process.node(), process.member()?)))
            .collect();
        self.all.host.scene.check_complete(&present)
    }
}
