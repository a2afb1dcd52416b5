//! A process of the run: it joins, is a member, and ends.

use std::cell::Cell;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::{SimFabric, SimWorld};
use squall_fabric::{Duration, FabricEvent};
use squall_fabric::{Instant, NodeId};
use squall_protocols::admission::{AdmissionService, AdmissionSettings, Joiner, JoinerSettings};
use squall_protocols::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{self, Member, PartitionSafety, View};
use squall_protocols::multicast::{self, Message, Pull};

use super::plan::JoinPlan;

/// An application that sends a message in each view, and notes the views that it has not shown yet.
#[derive(Default)]
pub(super) struct ViewRecorder {
    pub(super) views: Vec<View>,
    succession: Succession,
    /// It has yet to send in the present view.
    has_message: bool,
    /// Messages that it was given.
    pub(super) delivered: Rc<Cell<u64>>,
}

impl ViewRecorder {
    /// Sends what it has; whether that worked.
    pub(super) fn send(&mut self) -> bool {
        let writer = if self.has_message { self.succession.take_writer() } else { None };
        let Some(mut writer) = writer else { return false };
        self.has_message = false;
        writer.send(8, |bytes| bytes.fill(1)).is_ok()
    }
}

type Upcall = Box<dyn FnMut(Message<'_>)>;

impl GroupApplication for ViewRecorder {
    type Deliver = Upcall;

    fn outlet(&mut self, _: SubgroupId) -> SubgroupOutlet<Upcall> {
        let delivered = Rc::clone(&self.delivered);
        SubgroupOutlet::Upcall(Box::new(move |_: Message<'_>| delivered.set(delivered.get() + 1)))
    }

    fn install(&mut self, view: &View, _: &[Placement], _: &[Unplaced]) {
        self.views.push(view.clone());
        self.has_message = true;
    }

    fn succession(&mut self, _: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.succession
    }

    fn take_pull(&mut self, _: SubgroupId, _: Pull) {}

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Upcall>) {}
}

/// A call that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) number: u64,
    pub(super) to: u32,
    /// By the clock of the process.
    pub(super) until: Instant,
    pub(super) is_report: bool,
}

/// What a joiner has of the group: a number, and a node of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinAttempt {
    pub(super) number: NodeId,
    /// The process that has admitted it.
    pub(super) leader: u32,
    pub(super) leader_node: NodeId,
}

pub(super) struct JoinProcess {
    pub(super) place: u32,
    /// Its processor, and the clock of its joiner.
    pub(super) home: SimFabric,
    pub(super) is_up: bool,
    pub(super) joiner: Option<Joiner<u32, String>>,
    /// When it has begun to join, by the world's clock.
    pub(super) started: Instant,
    pub(super) call: Option<PendingCall>,
    pub(super) calls: u64,
    pub(super) attempt: Option<JoinAttempt>,
    /// Its node in the group.
    pub(super) fabric: SimFabric,
    pub(super) events: Vec<FabricEvent>,
    pub(super) group: Option<GroupCore<ViewRecorder>>,
    pub(super) service: Option<AdmissionService<u32>>,
    /// The nodes with which it has links as a member.
    pub(super) peers: Vec<NodeId>,
    /// How often its link with the leader has broken as it reported: the others go on without it then.
    pub(super) links_broken: u32,
    /// The latest view that was ready.
    pub(super) seen: Option<u64>,
    pub(super) leaves: bool,
}

impl JoinProcess {
    /// A process that has not started.
    pub(super) fn new(place: u32, home: SimFabric, fabric: SimFabric) -> Self {
        let started = Instant::from_nanos(0);
        Self {
            place,
            home,
            is_up: false,
            joiner: None,
            started,
            call: None,
            calls: 0,
            attempt: None,
            fabric,
            events: Vec::new(),
            group: None,
            service: None,
            peers: Vec::new(),
            links_broken: 0,
            seen: None,
            leaves: false,
        }
    }

    /// A member of the first view.
    pub(super) fn first(place: u32, world: &SimWorld, plan: &JoinPlan) -> Self {
        use squall_fabric::Fabric as _;
        let mut process = Self::new(place, world.fabric(place), world.fabric(place));
        let member = |node: u32| Member { node: NodeId(node), tag: u64::from(node) };
        let members = (0..plan.members).map(member).collect();
        let view = View { id: plan.first_view, ..View::first(members) };
        let group =
            GroupCore::begin(&mut process.fabric, view, layout(), settings(plan), ViewRecorder::default());
        let roster = (0..plan.members).map(|node| (NodeId(node), node)).collect();
        process.service = Some(AdmissionService::new(service_settings(plan), process.fabric.node(), roster));
        process.peers = (0..plan.members).filter(|other| *other != place).map(NodeId).collect();
        (process.group, process.is_up) = (Some(group), true);
        process
    }
}

pub(super) fn layout() -> Box<dyn squall_protocols::group::SubgroupLayout + Send> {
    Box::new(|view: &View| {
        let members = view.nodes();
        let settings =
            multicast::SubgroupSettings { window: 4, ..multicast::SubgroupSettings::new(members.len(), 8) };
        (vec![Placement { id: SubgroupId(0), members, settings }], Vec::new())
    })
}

pub(super) fn settings(plan: &JoinPlan) -> GroupSettings {
    let (suspicion_after, partition_safety) = (Some(plan.suspicion_after), PartitionSafety::Majority);
    let membership = membership::MembershipSettings { suspicion_after, partition_safety, states: 0 };
    GroupSettings { membership, ..GroupSettings::default() }
}

pub(super) fn service_settings(plan: &JoinPlan) -> AdmissionSettings {
    AdmissionSettings {
        candidate_life: Duration::from_millis(12),
        link_life: plan.link_life,
        admissions_max: plan.admissions_max,
    }
}

pub(super) fn joiner_settings() -> JoinerSettings {
    JoinerSettings {
        timeout: JOIN_TIMEOUT,
        handshake: Duration::from_millis(3),
        answer: Duration::from_millis(5),
        orphan: Duration::from_millis(5),
        link: Duration::from_millis(2),
        pauses: [Duration::from_micros(200), Duration::from_millis(2)],
        patience_min: Duration::from_millis(1),
    }
}

/// How long a process tries to join.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_millis(500);
