//! Which member is asked for a log, and when none is left, in a view of more than 64 members (beside RamCast §3.5) \[G11\].

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{Duration, FabricEvent, NodeId};

use super::*;
use crate::genuine::{GenuineCarryover, GenuineSettings, ShardPlacement};
use crate::membership::{Member, View};

type Node = (SimFabric, GenuineMember);

/// A view of 70 members, one shard of which is these.
fn members(shard: &[usize]) -> (SimWorld, Vec<Node>) {
    let world = SimWorld::new(1, SimConfig::hardware(), 70);
    let view = View::first((0..70).map(|node| Member { node: NodeId(node), tag: 0 }).collect());
    let settings = GenuineSettings { quorum: QuorumRule::Majority, ..GenuineSettings::new(2, 8) };
    let begin = |node: u32| {
        let mut fabric = world.fabric(node);
        let placement = ShardPlacement::new(vec![shard.to_vec()]);
        let (settings, before) = (settings.clone(), GenuineCarryover::default());
        let member = GenuineMember::new(&mut fabric, &view, placement, settings, true, before);
        (fabric, member)
    };
    let mut nodes: Vec<Node> = (0..70).map(begin).collect();
    settle(&world, &mut nodes);
    assert!(nodes.iter().all(|(_, member)| member.is_ready()));
    (world, nodes)
}

fn settle(world: &SimWorld, nodes: &mut [Node]) {
    while let Some(node) = world.next_poll(world.now() + Duration::from_millis(1)) {
        let (fabric, member) = &mut nodes[node as usize];
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut worked = fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| member.handle_event(event));
        worked |= member.poll(fabric, usize::MAX, |_| ()) > 0;
        world.rest(node, worked, None);
    }
}

fn freeze(nodes: &mut [Node], at: usize, ranks: &[u32]) {
    let (fabric, member) = &mut nodes[at];
    ranks.iter().for_each(|rank| member.freeze(fabric, NodeId(*rank)));
}

/// The member that the one with rank `at` asks.
fn asked((_, member): &Node) -> Option<LogRequest> {
    LogRequest::from_word(member.row.asks.load(member.table.row(member.rank)))
}

/// Ranks 2 and 4 have the bits of ranks 66 and 68 in a set of one word.
#[test]
fn a_member_that_hears_the_others_of_its_shard_is_not_stranded() {
    let (_world, mut nodes) = members(&[1, 66, 68]);
    freeze(&mut nodes, 1, &[2, 4]);
    assert!(!nodes[1].1.has_log(&[9]), "nothing is in the log");
    assert!(!nodes[1].1.is_stranded(), "it hears 66 and 68");
    freeze(&mut nodes, 1, &[66]);
    assert!(!nodes[1].1.is_stranded(), "it hears 68");
    freeze(&mut nodes, 1, &[68]);
    assert!(nodes[1].1.is_stranded());
}

/// Whatever rank a member has, the first one is asked that is heard and has the log, and then the next one.
#[test]
fn each_member_that_has_the_log_is_asked_once() {
    let (world, mut nodes) = members(&[1, 3, 65, 67]);
    for rank in [3, 65, 67] {
        // As if they had acknowledged up to 8.
        let (fabric, member) = &mut nodes[rank];
        member.wedge();
        member.table.raise(0, member.row.closed, 9);
        member.table.flush(fabric);
    }
    freeze(&mut nodes, 1, &[0, 5]);
    assert!(!nodes[1].1.has_log(&[9]));
    settle(&world, &mut nodes);
    let request = |attempt, provider| Some(LogRequest { attempt, provider, taken: 0 });
    assert_eq!(asked(&nodes[1]), request(1, 3));
    for (attempt, gone, next) in [(2, 3, 65), (3, 65, 67)] {
        freeze(&mut nodes, 1, &[gone]);
        world.wake(1);
        settle(&world, &mut nodes);
        assert_eq!(asked(&nodes[1]), request(attempt, next), "without {gone}");
    }
    assert!(!nodes[1].1.is_stranded());
    freeze(&mut nodes, 1, &[67]);
    assert!(nodes[1].1.is_stranded());
}
