//! The members of a large group, and what has to hold in the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::{Adversary, CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::window::{ReserveError, WindowWriter};
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, NodeId};
use squall_protocols::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{Member, MembershipSettings, View};
use squall_protocols::multicast::{Message, Pull, SubgroupSettings};

use super::{LATE, LargeCase, LossNotice, SETTLE};

/// The messages that a node has delivered in each subgroup: the rank of the sender in the first view, and its number.
type Deliveries = Rc<RefCell<BTreeMap<SubgroupId, Vec<(u32, u32)>>>>;

pub(super) struct LargeApp {
    delivered: Deliveries,
    successions: Vec<Succession>,
    writers: Vec<Option<WindowWriter>>,
    /// The number of messages that are to be sent and that are sent.
    pub(super) messages: u32,
    sent: u32,
}

impl LargeApp {
    /// Sends as much as there is space for, and as is due; returns whether it has sent anything.
    fn send(&mut self, now: Instant, own: u32) -> bool {
        let (before, last) = (self.sent, self.writers.len() - 1);
        while self.sent < self.messages {
            let is_late = self.is_late();
            if is_late && now < Instant::from_nanos(0) + LATE {
                break;
            }
            let place = if is_late { last } else { 0 };
            if self.writers[place].is_none() {
                self.writers[place] = self.successions[place].take_writer();
            }
            let Some(writer) = &mut self.writers[place] else { break };
            let bytes = [own.to_le_bytes(), self.sent.to_le_bytes()].concat();
            match writer.send(bytes.len(), |place| place.copy_from_slice(&bytes)) {
                Ok(()) => self.sent += 1,
                Err(ReserveError::Closed) => self.writers[place] = None,
                Err(ReserveError::Full) => break,
                Err(ReserveError::TooLong { .. }) => unreachable!("8 bytes fit"),
            }
        }
        self.sent > before
    }

    /// Whether the next message is of the second half.
    const fn is_late(&self) -> bool {
        self.sent >= self.messages.div_ceil(2)
    }
}

impl GroupApplication for LargeApp {
    type Deliver = Box<dyn FnMut(Message<'_>)>;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Self::Deliver> {
        let delivered = Rc::clone(&self.delivered);
        SubgroupOutlet::Upcall(Box::new(move |message: Message<'_>| {
            let word = |at: usize| {
                let bytes = message.bytes[at..at + 4].try_into().expect("8 bytes");
                u32::from_le_bytes(bytes)
            };
            delivered.borrow_mut().entry(id).or_default().push((word(0), word(4)));
        }))
    }

    fn install(&mut self, _: &View, _: &[Placement], _: &[Unplaced]) {}

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.successions[id.0 as usize]
    }

    fn take_pull(&mut self, _: SubgroupId, _: Pull) {}

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Self::Deliver>) {}
}

pub(super) struct LargeNode {
    pub(super) fabric: SimFabric,
    pub(super) group: GroupCore<LargeApp>,
    delivered: Deliveries,
}

impl LargeNode {
    pub(super) fn count(&self) -> u64 {
        self.delivered.borrow().values().map(|messages| messages.len() as u64).sum()
    }

    fn step(&mut self) -> bool {
        let own = self.fabric.node().0;
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut work = self.fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| self.group.handle_event(&mut self.fabric, event));
        let now = self.fabric.now();
        let sent = self.group.application().send(now, own);
        work += self.group.poll(&mut self.fabric);
        if work == 0 && Core::<SimFabric>::look_at_all(&mut self.group) {
            work += self.group.poll(&mut self.fabric);
        }
        work > 0 || sent || !events.is_empty()
    }
}

pub(super) struct LargeCluster<'a> {
    case: &'a LargeCase,
    pub(super) world: SimWorld,
    pub(super) nodes: Vec<LargeNode>,
    /// When all was as it has to be in the end.
    settled_at: Option<Instant>,
}

impl<'a> LargeCluster<'a> {
    pub(super) fn new(case: &'a LargeCase, trace_records_max: usize) -> Self {
        let LossNotice { unreachable_after, late_max, .. } = case.notice;
        let mut adversary = Adversary::drawn(&mut Prng::new(case.seed ^ 0xad7e));
        adversary.late_notice_max = late_max.unwrap_or(adversary.late_notice_max);
        let config = SimConfig {
            adversary: case.is_adverse.then_some(adversary),
            cost: if case.is_adverse { CostModel::FREE } else { CostModel::SPINDLE },
            unreachable_after,
            loss_noticed_after: Duration::from_millis(1),
            rules: case.rules(),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(case.seed, config, case.members + u32::from(case.joins));
        let first: Vec<Member> =
            (0..case.members).map(|i| Member { node: NodeId(i), tag: u64::from(i) }).collect();
        let nodes = (0..world.nodes()).map(|i| node(case, &world, &first, i)).collect();
        let mut cluster = Self { case, world, nodes, settled_at: None };
        if case.joins {
            let joiner = Member { node: NodeId(case.members), tag: u64::from(case.members) };
            cluster.nodes[0].group.admit(joiner);
        }
        cluster
    }

    pub(super) fn run(&mut self) {
        let mut until = self.world.now() + SETTLE;
        let mut next_look = self.world.now() + LOOK_EVERY;
        while let Some(i) = self.world.next_poll(until) {
            let node = &mut self.nodes[i as usize];
            let worked = node.step();
            let late = Instant::from_nanos(0) + LATE;
            let waits = node.group.application().is_late() && node.fabric.now() < late;
            let signs = Core::<SimFabric>::next_deadline(&node.group);
            let wakes_at = signs.into_iter().chain(waits.then_some(late)).min();
            self.world.rest(i, worked, wakes_at);
            // Signs of life never end. Those that are healthy stay together for as long as members wait for signs.
            let Some(suspicion) = self.case.notice.suspicion_after.filter(|_| self.world.now() >= next_look)
            else {
                continue;
            };
            next_look = self.world.now() + LOOK_EVERY;
            if self.settled_at.is_none() && self.check().is_ok() {
                self.settled_at = Some(self.world.now());
                until = until.min(self.world.now() + suspicion + suspicion / 2);
            }
        }
    }

    /// Whether the group has not ended at a node, and the node does not wait for a majority.
    fn continues(&self, node: usize) -> bool {
        let group = &self.nodes[node].group;
        group.ended().is_none() && group.membership().is_none_or(|membership| membership.waits().is_none())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let case = self.case;
        let joiner = case.joins.then_some(case.members);
        let healthy: Vec<u32> = (0..case.members).filter(|i| case.is_healthy(*i)).chain(joiner).collect();
        let expected: Vec<NodeId> = healthy.iter().map(|i| NodeId(*i)).collect();
        let changes = usize::from(expected.len() != case.members as usize || case.joins);
        for i in &healthy {
            let node = &self.nodes[*i as usize];
            let Some(membership) = node.group.membership() else {
                return Err(format!("[V8] [V10] node {i} is in no view: {:?}", node.group.ended()));
            };
            let view = membership.view();
            if view.nodes() != expected || (view.id as usize) < changes {
                let count = expected.len();
                return Err(format!(
                    "[V8] [V10] node {i} is in {view}, not in a view of the {count} healthy ones"
                ));
            }
        }
        let alive = |i: &&u32| case.deaths.iter().all(|(other, _)| other != *i);
        if let Some(i) = case.parted.iter().filter(alive).find(|i| self.continues(**i as usize)) {
            return Err(format!("[V5] node {i} continues without a majority"));
        }
        self.check_deliveries(healthy[0])
    }

    /// Compares all deliveries with those of a healthy member of the first view.
    fn check_deliveries(&self, reference: u32) -> Result<(), String> {
        let case = self.case;
        let all = self.nodes[reference as usize].delivered.borrow();
        let mut next: BTreeMap<u32, u32> = BTreeMap::new();
        // The late messages are in the last subgroup.
        for (sender, number) in all.values().flatten() {
            let expected = next.entry(*sender).or_default();
            let first_late = case.messages.div_ceil(2);
            if number != expected && !(case.subgroups > 1 && *number == first_late) {
                return Err(format!("[V7] message {number} of {sender} comes where {expected} is due"));
            }
            *expected = number + 1;
        }
        for sender in case.senders.iter().filter(|sender| case.is_healthy(**sender)) {
            let here = all.values().flatten().filter(|(other, _)| other == sender).count();
            if here != case.messages as usize {
                return Err(format!("[V7] {here} of {} messages of {sender} are delivered", case.messages));
            }
        }
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| *i < case.members as usize) {
            let here = node.delivered.borrow();
            let nothing = Vec::new();
            let is_beginning = |(id, messages): (&SubgroupId, &Vec<(u32, u32)>)| {
                all.get(id).unwrap_or(&nothing).starts_with(messages)
            };
            let healthy = case.is_healthy(u32::try_from(i).expect("few"));
            if !here.iter().all(is_beginning) || healthy && *here != *all {
                let (here, all) = (node.count(), self.nodes[reference as usize].count());
                return Err(format!(
                    "[V1] node {i} has delivered {here} messages, others {all}, in another order or fewer"
                ));
            }
        }
        Ok(())
    }
}

fn node(case: &LargeCase, world: &SimWorld, first: &[Member], i: u32) -> LargeNode {
    let mut fabric = world.fabric(i);
    let delivered = Deliveries::default();
    let subgroups = case.subgroups;
    let application = LargeApp {
        delivered: Rc::clone(&delivered),
        successions: (0..subgroups).map(|_| Succession::default()).collect(),
        writers: (0..subgroups).map(|_| None).collect(),
        messages: if case.senders.contains(&i) { case.messages } else { 0 },
        sent: 0,
    };
    let membership = MembershipSettings {
        suspicion_after: case.notice.suspicion_after,
        states: 0,
        ..MembershipSettings::default()
    };
    let settings = GroupSettings { membership, ..GroupSettings::default() };
    let senders: Vec<u64> = case.senders.iter().map(|sender| u64::from(*sender)).collect();
    let layout = Box::new(move |view: &View| place(view, &senders, subgroups));
    let group = if i < case.members {
        GroupCore::begin(&mut fabric, View::first(first.to_vec()), layout, settings, application)
    } else {
        let contacts: Vec<NodeId> = first.iter().map(|member| member.node).collect();
        GroupCore::join(&mut fabric, &contacts, layout, settings, application)
    };
    LargeNode { fabric, group, delivered }
}

/// Subgroups of all members, in which those with these tags send, or the oldest one if none of them is left.
fn place(view: &View, senders: &[u64], subgroups: u32) -> (Vec<Placement>, Vec<Unplaced>) {
    let sends = |(rank, member): (usize, &Member)| senders.contains(&member.tag).then_some(rank);
    let mut senders: Vec<usize> = view.members.iter().enumerate().filter_map(sends).collect();
    if senders.is_empty() {
        senders.push(0);
    }
    let settings = SubgroupSettings { window: 4, senders, ..SubgroupSettings::new(view.members.len(), 8) };
    let place = |i| Placement { id: SubgroupId(i), members: view.nodes(), settings: settings.clone() };
    ((0..subgroups).map(place).collect(), Vec::new())
}

/// Between two looks at whether all is as it has to be in the end.
const LOOK_EVERY: Duration = Duration::from_millis(1);
