//! Which processes a group with shards takes, and how a joiner comes into a shard without states (beside RamCast §3.5).

use std::ops::DerefMut;

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core as _, Duration, Fabric as _, FabricEvent};

use super::*;
use crate::group::{
    GroupSettings, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use crate::membership::MembershipSettings;
use crate::multicast::{Message, Pull};

/// Tags are numbers of shards.
struct ByTag;

impl SubgroupLayout for ByTag {
    fn place(&self, _view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        (Vec::new(), Vec::new())
    }

    fn shards(&self, view: &View) -> ShardPlacement {
        let of = |shard: u64| {
            let ranks = view.members.iter().enumerate().filter(move |(_, member)| member.tag == shard);
            ranks.map(|(rank, _)| rank).collect()
        };
        ShardPlacement::new((0..2).map(of).collect())
    }
}

#[derive(Default)]
struct Recorder {
    delivered: Vec<u64>,
    succession: Succession,
}

impl GroupApplication for Recorder {
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

    fn deliver_genuine(&mut self, message: GenuineMessage<'_>) {
        self.delivered.push(message.number);
    }

    fn leave_subgroup(&mut self, id: SubgroupId, _deliver: Option<fn(Message<'_>)>) {
        unreachable!("{id}: there are shards only")
    }
}

type Node = (SimFabric, GroupCore<Recorder>);

fn settings(multicast: GenuineSettings) -> GroupSettings {
    let states = if multicast.has_states { 2 } else { 0 };
    let membership = MembershipSettings { suspicion_after: None, states, ..MembershipSettings::default() };
    GroupSettings { membership, genuine: Some(multicast), ..GroupSettings::default() }
}

/// Members of shard 0, in a view in which messages flow.
fn members(count: u32, multicast: &GenuineSettings) -> (SimWorld, Vec<Node>) {
    let world = SimWorld::new(1, SimConfig::hardware(), count);
    let view = View::first((0..count).map(|node| Member { node: NodeId(node), tag: 0 }).collect());
    let begin = |node: u32| {
        let (mut fabric, settings) = (world.fabric(node), settings(multicast.clone()));
        let group =
            GroupCore::begin(&mut fabric, view.clone(), Box::new(ByTag), settings, Recorder::default());
        (fabric, group)
    };
    let mut nodes: Vec<Node> = (0..count).map(begin).collect();
    settle(&world, &mut nodes);
    assert!(nodes.iter().all(|(_, group)| group.is_ready()), "messages flow");
    (world, nodes)
}

fn settle(world: &SimWorld, nodes: &mut [Node]) {
    while let Some(node) = world.next_poll(world.now() + Duration::from_millis(1)) {
        let (fabric, group) = &mut nodes[node as usize];
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut worked = fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| group.handle_event(fabric, event));
        worked |= group.poll(fabric) > 0;
        world.rest(node, worked, None);
    }
}

fn with_states(quorum: QuorumRule) -> GenuineSettings {
    GenuineSettings { quorum, has_states: true, ..GenuineSettings::new(2, 8) }
}

/// \[G14\] A shard without members has no state that a process could take over. A process that is in no shard needs none.
#[test]
fn a_process_is_taken_where_a_member_has_the_state() {
    let (_world, nodes) = members(2, &with_states(QuorumRule::All));
    let takes = |tag| nodes.iter().all(|(_, group)| group.takes(tag));
    assert!(takes(0) && !takes(1) && takes(2));
    let (_world, nodes) = members(2, &GenuineSettings::new(2, 8));
    assert!(
        (0..3).all(|tag| nodes.iter().all(|(_, group)| group.takes(tag))),
        "[G17] there is nothing to take over"
    );
}

/// Numbers follow each other, in all views, and a sender learns when all have delivered.
#[test]
fn a_sender_learns_what_is_delivered() {
    let (world, mut nodes) = members(3, &GenuineSettings::new(2, 8));
    for number in 0..2 {
        assert_eq!(nodes[1].1.multicast(0b01, b"message"), Ok(number));
    }
    assert_eq!(nodes[1].1.multicast(0b01, b"message"), Err(GenuineSendError::Full));
    assert_eq!(nodes[1].1.multicast(0b10, b"message"), Err(GenuineSendError::NoDestination));
    assert_eq!(nodes[1].1.genuine_member().map(GenuineMember::settled), Some(0));
    world.wake(1);
    settle(&world, &mut nodes);
    assert_eq!(nodes[1].1.genuine_member().map(GenuineMember::settled), Some(2));
    nodes[1].1.renew();
    world.wake(1);
    settle(&world, &mut nodes);
    assert_eq!(nodes[1].1.multicast(0b01, b"message"), Ok(2));
    world.wake(1);
    settle(&world, &mut nodes);
    assert!(nodes.iter().all(|(_, group)| group.application_ref().delivered == [0, 1, 2]));
}
