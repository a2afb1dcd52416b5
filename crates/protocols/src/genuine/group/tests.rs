//! Which processes a group takes (beside RamCast §3.5).

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{Duration, Fabric as _};

use super::*;

/// Tags are numbers of shards.
struct ByTag;

impl GenuineApplication for ByTag {
    fn place(&self, view: &View) -> ShardPlacement {
        let of = |shard: u64| {
            let ranks = view.members.iter().enumerate().filter(move |(_, member)| member.tag == shard);
            ranks.map(|(rank, _)| rank).collect()
        };
        ShardPlacement::new((0..2).map(of).collect())
    }

    fn install(&mut self, _view: &View, _placement: &ShardPlacement) {}

    fn deliver(&mut self, _message: GenuineMessage<'_>) {}
}

type Node = (SimFabric, GenuineGroup<ByTag>);

/// Two members of shard 0, in a view in which messages flow.
fn members(quorum: QuorumRule) -> (SimWorld, Vec<Node>) {
    let world = SimWorld::new(1, SimConfig::hardware(), 2);
    let view = View::first((0..2).map(|node| Member { node: NodeId(node), tag: 0 }).collect());
    let membership = MembershipSettings { suspicion_after: None, states: 2, ..MembershipSettings::default() };
    let multicast = GenuineSettings { quorum, ..GenuineSettings::new(2, 8) };
    let settings = GenuineGroupSettings { membership, multicast };
    let begin = |node: u32| {
        let mut fabric = world.fabric(node);
        let group = GenuineGroup::begin(&mut fabric, &view, settings.clone(), ByTag);
        (fabric, group)
    };
    let mut nodes: Vec<Node> = (0..2).map(begin).collect();
    while let Some(node) = world.next_poll(world.now() + Duration::from_millis(1)) {
        let (fabric, group) = &mut nodes[node as usize];
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut worked = fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| group.handle_event(fabric, event));
        worked |= group.poll(fabric) > 0;
        world.rest(node, worked, None);
    }
    assert!(nodes.iter().all(|(_, group)| group.is_ready()), "messages flow");
    (world, nodes)
}

/// \[G14\] A shard without members has no state that a process could take over. A process that is in no shard needs none.
#[test]
fn a_process_is_taken_where_a_member_has_the_state() {
    let (_world, nodes) = members(QuorumRule::All);
    let takes = |tag| nodes.iter().all(|(_, group)| group.takes(tag));
    assert!(takes(0) && !takes(1) && takes(2));
}

/// A process that joins ends the view, after which a group with a majority for quorum has none.
#[test]
fn a_group_without_a_further_view_takes_no_process() {
    let (_world, nodes) = members(QuorumRule::Majority);
    assert!((0..3).all(|tag| nodes.iter().all(|(_, group)| !group.takes(tag))));
}
