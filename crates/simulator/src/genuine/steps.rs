//! Write delays of one message without faults: every write takes the same time, processors take none (RamCast §3.4, §5.4).

use std::cell::RefCell;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Happening, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, NodeId};
use squall_protocols::genuine::{GenuineMessage, GenuineSettings, QuorumRule, is_genuine_mirror};
use squall_protocols::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{Member, MembershipSettings, View};
use squall_protocols::multicast::{Message, Pull};

use super::program::GenuineLayout;

/// The time that a write takes.
const DELAY: Duration = Duration::from_micros(1);

/// The sender of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSender {
    /// The leader of the first destination shard.
    Leader,
    /// Another member of it.
    Follower,
    /// A member of a further shard.
    Outsider,
}

/// How a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSteps {
    /// Write delays until the first member delivers.
    pub first: u64,
    /// Write delays until the last one does.
    pub last: u64,
    /// Writes up to then and after that, reports among them.
    pub writes: usize,
}

struct StepApp {
    world: SimWorld,
    delivered: Rc<RefCell<Vec<Instant>>>,
    succession: Succession,
}

impl GroupApplication for StepApp {
    type Deliver = fn(Message<'_>);

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<fn(Message<'_>)> {
        unreachable!("{id}: there are shards only")
    }

    fn install(&mut self, _view: &View, _placements: &[Placement], _unplaced: &[Unplaced]) {}

    fn succession(&mut self, _id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.succession
    }

    fn take_pull(&mut self, id: SubgroupId, _pull: Pull) {
        unreachable!("{id}: there are shards only")
    }

    fn leave_subgroup(&mut self, id: SubgroupId, _deliver: Option<fn(Message<'_>)>) {
        unreachable!("{id}: there are shards only")
    }

    fn deliver_genuine(&mut self, _message: GenuineMessage<'_>) {
        self.delivered.borrow_mut().push(self.world.now());
    }
}

/// Counts the write delays of a message to `shards` shards of `members` members each; there is one shard more.
///
/// # Panics
/// If it is not delivered by all.
#[must_use]
pub fn count(shards: usize, members: usize, quorum: QuorumRule, sender: StepSender) -> WriteSteps {
    let cost = CostModel { wire_byte_ns: 1_000, wire_4_kib_ns: 1_000, ..CostModel::FREE };
    let config = SimConfig { cost, trace_records_max: usize::MAX, ..SimConfig::hardware() };
    let count = u32::try_from((shards + 1) * members).expect("few");
    let world = SimWorld::new(1, config, count);
    let delivered = Rc::new(RefCell::new(Vec::new()));
    let homes: Vec<Option<usize>> = (0..count as usize).map(|node| Some(node / members)).collect();
    let member = |node: u32| Member { node: NodeId(node), tag: u64::from(node) };
    let view = View::first((0..count).map(member).collect());
    let membership = MembershipSettings { suspicion_after: None, states: 0, ..MembershipSettings::default() };
    let genuine = Some(GenuineSettings { quorum, ..GenuineSettings::new(4, 64) });
    let settings = GroupSettings { membership, genuine, ..GroupSettings::default() };
    let node = |i: u32| {
        let mut fabric = world.fabric(i);
        let layout = Box::new(GenuineLayout { shards: shards + 1, homes: homes.clone() });
        let (world, delivered) = (world.clone(), Rc::clone(&delivered));
        let app = StepApp { world, delivered, succession: Succession::default() };
        let group = GroupCore::begin(&mut fabric, view.clone(), layout, settings.clone(), app);
        (fabric, group)
    };
    let mut nodes: Vec<(SimFabric, GroupCore<StepApp>)> = (0..count).map(node).collect();
    settle(&world, &mut nodes);
    let (begin, before) = (world.now() + DELAY, world.trace().len());
    world.advance_to(begin);
    let sender = match sender {
        StepSender::Leader => 0,
        StepSender::Follower => 1,
        StepSender::Outsider => shards * members,
    };
    nodes[sender].1.multicast((1 << shards) - 1, b"message").expect("an empty window");
    world.wake(u32::try_from(sender).expect("few"));
    settle(&world, &mut nodes);
    let delays: Vec<u64> = delivered
        .borrow()
        .iter()
        .map(|at| u64::try_from(at.since(begin).as_nanos() / DELAY.as_nanos()).expect("few"))
        .collect();
    assert_eq!(delays.len(), shards * members, "all members of the shards deliver");
    let is_write = |what: &Happening| matches!(what, Happening::Posted { mirror: Some((key, _)), .. } if is_genuine_mirror(*key));
    let writes = world.trace()[before..].iter().filter(|record| is_write(&record.what)).count();
    let (first, last) = (delays.iter().min(), delays.iter().max());
    WriteSteps { first: *first.expect("some"), last: *last.expect("some"), writes }
}

/// Lets the cluster work until nothing is under way.
fn settle(world: &SimWorld, nodes: &mut [(SimFabric, GroupCore<StepApp>)]) {
    while let Some(i) = world.next_poll(world.now() + 100 * DELAY) {
        let (fabric, group) = &mut nodes[i as usize];
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut worked = fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| group.handle_event(fabric, event));
        worked |= group.poll(fabric) > 0;
        world.rest(i, worked, None);
    }
}
