//! How processes join in a run: both sides of [`squall_protocols::admission`], as they ship, and what is around them
//! (Derecho §3.3).
//!
//! A process is a machine of the world, its *home*. Each attempt to join is a further node there, without links: members link with
//! it as they take its connection. What goes from process to process beside the group travels on a `JoinBus`. A scenario says
//! what its processes are (`JoinHost`), when they start, and what the end must look like.

mod bus;
mod drive;
mod exchange;
mod numbers;
mod process;
mod story;
mod words;

use squall_fabric::sim::SimWorld;
use squall_fabric::{Duration, Fabric as _, NodeId};
use squall_protocols::admission::{AdmissionService, AdmissionSettings, JoinFailure, Joiner, JoinerSettings};
use squall_protocols::group::{GroupApplication, GroupCore, GroupSettings, SubgroupLayout};
use squall_protocols::membership::{Member, View};

pub use bus::BusPlan;
pub(crate) use bus::{BusBody, BusMessage, JoinBus};
pub(crate) use numbers::ProcessNumbers;
pub(crate) use process::JoinProcess;

use crate::run::Violation;
use numbers::unlink;

/// What a scenario's processes are. They are numbered by their places in its plan.
pub(crate) trait JoinHost {
    type Application: GroupApplication;

    fn group_settings(&self) -> (Box<dyn SubgroupLayout + Send>, GroupSettings);

    fn admission_settings(&self) -> AdmissionSettings;

    /// The rank that a process asks for.
    fn rank(&self, _place: u32) -> Option<u64> {
        None
    }

    /// The application of a process that comes to the group as `node`; `left` is what a failed attempt has left of it.
    fn application(&mut self, place: u32, node: NodeId, left: Option<Self::Application>)
    -> Self::Application;
}

/// All processes of a run.
pub(crate) struct SimAdmission<H: JoinHost> {
    pub(crate) host: H,
    pub(crate) world: SimWorld,
    pub(crate) processes: Vec<JoinProcess<H::Application>>,
    pub(crate) bus: JoinBus,
    pub(crate) numbers: ProcessNumbers,
    pub(crate) violation: Option<Violation>,
    /// The processes that have given up joining, and why, until the scenario takes them.
    pub(crate) given_up: Vec<(u32, JoinFailure)>,
    /// How many attempts to join have had a number.
    pub(crate) attempts: usize,
}

impl<H: JoinHost> SimAdmission<H> {
    /// `processes` processes at the first nodes of the world, of which the first `members` are in the view `first_view`.
    pub(crate) fn new(
        host: H,
        world: SimWorld,
        bus: JoinBus,
        processes: u32,
        members: u32,
        first_view: u64,
    ) -> Self {
        let (violation, given_up, attempts) = (None, Vec::new(), 0);
        let (numbers, all) = (ProcessNumbers::default(), Vec::new());
        let mut cluster = Self { host, world, processes: all, bus, numbers, violation, given_up, attempts };
        for place in 0..processes {
            cluster.numbers.add(place, place, (place < members).then_some(NodeId(place)));
            let fabric = || cluster.world.fabric(place);
            let process = JoinProcess::new(place, fabric(), fabric());
            cluster.processes.push(process);
        }
        // Before a member can die, which a machine without links does not notice.
        (members..processes).for_each(|home| unlink(&cluster.world, home));
        (0..members).for_each(|place| cluster.begin(place, members, first_view));
        cluster
    }

    /// A process begins as a member of the first view.
    fn begin(&mut self, place: u32, members: u32, first_view: u64) {
        let member = |node: u32| Member { node: NodeId(node), tag: u64::from(node) };
        let view = View { id: first_view, ..View::first((0..members).map(member).collect()) };
        let application = self.host.application(place, NodeId(place), None);
        let process = &mut self.processes[place as usize];
        let (layout, settings) = self.host.group_settings();
        process.group = Some(GroupCore::begin(&mut process.fabric, view, layout, settings, application));
        let roster = (0..members).map(|node| (NodeId(node), node)).collect();
        process.service = Some(AdmissionService::new(self.host.admission_settings(), NodeId(place), roster));
        process.peers = (0..members).filter(|other| *other != place).map(NodeId).collect();
        process.is_up = true;
    }

    /// The process starts, and joins.
    pub(crate) fn start(&mut self, place: u32, contacts: Vec<u32>) {
        let process = &mut self.processes[place as usize];
        (process.is_up, process.started) = (true, self.world.now());
        process.joiner = Some(Joiner::new(joiner_settings(), contacts, process.now()));
        self.wake(place);
    }

    /// The process at `place` has another machine from now on, as one that starts again.
    pub(crate) fn renew_home(&mut self, place: u32) {
        let home = self.world.add_node();
        self.numbers.add(home, place, None);
        unlink(&self.world, home);
        let calls = self.processes[place as usize].calls + 1;
        let process = JoinProcess::new(place, self.world.fabric(home), self.world.fabric(home));
        self.processes[place as usize] = JoinProcess { calls, ..process };
    }

    /// The process has ended, or takes no calls any more: what it had under way with others breaks.
    pub(crate) fn hang_up(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        process.is_up = false;
        let (own, now) = (process.node(), self.world.now());
        for untaken in self.bus.clear(place) {
            self.close_stream(own, untaken);
        }
        let process = &mut self.processes[place as usize];
        if let Some(attempt) = process.attempt.take().filter(|_| process.joiner.is_some()) {
            let body = BusBody::Gone { number: attempt.number };
            self.bus.post(now, attempt.leader, BusMessage { from: place, call: 0, body });
            self.wake(attempt.leader);
        }
        for other in 0..self.processes.len() {
            let caller = &self.processes[other];
            let is_admitted_here =
                caller.joiner.is_some() && caller.attempt.is_some_and(|attempt| attempt.leader == place);
            if let Some(call) = caller.call.filter(|call| call.to == place || is_admitted_here) {
                let (other, body) = (caller.place, BusBody::Broken("the process has ended"));
                self.bus.post(now, other, BusMessage { from: place, call: call.number, body });
                self.wake(other);
            }
        }
    }

    /// Notes which processes have died; whether there are any.
    pub(crate) fn bury(&mut self) -> bool {
        let has_died = |process: &&JoinProcess<H::Application>| process.is_up && !self.lives(process);
        let dead: Vec<u32> = self.processes.iter().filter(has_died).map(|process| process.place).collect();
        dead.iter().for_each(|place| self.hang_up(*place));
        !dead.is_empty()
    }

    /// The process ends with its group: all others lose it, processes that are joining, too.
    pub(crate) fn part_with_all(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        let own = process.node();
        let others = (0..self.world.nodes()).map(NodeId).filter(|node| *node != own);
        others.for_each(|node| process.fabric.remove_peer(node));
        process.service = None;
        self.hang_up(place);
    }

    /// Whether the machine of one process does not reach that of the other, or is not reached by it.
    pub(crate) fn are_cut_off(
        &self,
        process: &JoinProcess<H::Application>,
        other: &JoinProcess<H::Application>,
    ) -> bool {
        let (own, other) = (process.home.node().0, other.home.node().0);
        !self.world.can_reach(own, other) || !self.world.can_reach(other, own)
    }

    /// Whether the process has not crashed.
    pub(crate) fn lives(&self, process: &JoinProcess<H::Application>) -> bool {
        self.world.lives(process.home.node().0)
    }

    /// Whether a process continues only for a moment.
    pub(crate) fn is_dying(&self, process: &JoinProcess<H::Application>) -> bool {
        self.world.is_dying(process.home.node().0)
    }

    pub(crate) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    pub(crate) fn wake(&self, place: u32) {
        self.processes[place as usize].nodes().into_iter().for_each(|node| self.world.wake(node));
    }

    /// How long from now the next message comes to the process.
    pub(crate) fn next_message(&self, place: u32) -> Option<Duration> {
        let now = self.world.now();
        self.bus.next_at(now, place).map(|at| at.since(now))
    }

    /// \[J7\] A joiner is over in time.
    fn check_time(&mut self, place: u32) {
        let process = &self.processes[place as usize];
        if process.joiner.is_some() && self.world.now() > process.started + JOIN_TIMEOUT * 2 {
            self.fail("time", format!("[J7] process {place} joins for longer than it may"));
        }
    }
}

fn joiner_settings() -> JoinerSettings {
    JoinerSettings {
        timeout: JOIN_TIMEOUT,
        handshake: Duration::from_millis(3),
        answer: Duration::from_millis(5),
        orphan: Duration::from_millis(100),
        link: Duration::from_millis(2),
        pauses: [Duration::from_micros(200), Duration::from_millis(2)],
        patience_min: Duration::from_millis(1),
    }
}

/// How long a process tries to join.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);
