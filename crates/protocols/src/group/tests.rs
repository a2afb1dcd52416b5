//! When messages flow (Derecho §3.3, invariant J5).

use std::ops::DerefMut;

use crate::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use crate::membership::{Member, MembershipState, View};
use crate::multicast::{Message, Pull};
use crate::mutation::{GroupMutation, with};
use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{BreakReason, Core, Duration, Fabric, FabricEvent, NodeId};

/// An application without subgroups.
#[derive(Default)]
struct Nothing(Succession);

impl GroupApplication for Nothing {
    type Deliver = fn(Message<'_>);

    fn outlet(&mut self, _: SubgroupId) -> SubgroupOutlet<Self::Deliver> {
        SubgroupOutlet::Pull
    }

    fn install(&mut self, _: &View, _: &[Placement], _: &[Unplaced]) {}

    fn succession(&mut self, _: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.0
    }

    fn take_pull(&mut self, _: SubgroupId, _: Pull) {}

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Self::Deliver>) {}
}

type Node = (SimFabric, GroupCore<Nothing>);

fn step((fabric, group): &mut Node) -> usize {
    let mut events: Vec<FabricEvent> = Vec::new();
    let work = fabric.poll(&mut |event| events.push(event));
    events.iter().for_each(|event| group.handle_event(fabric, event));
    work + group.poll(fabric)
}

/// Returns the first of three members whose view has begun; it then loses the third.
fn member_that_loses_another() -> Node {
    let world = SimWorld::new(1, SimConfig::hardware(), 3);
    let members: Vec<Member> = (0..3).map(|i| Member { node: NodeId(i), tag: 0 }).collect();
    let node = |i: u32| {
        let mut fabric = world.fabric(i);
        let layout = Box::new(|_: &View| (Vec::new(), Vec::new()));
        let view = View::first(members.clone());
        let group = GroupCore::begin(&mut fabric, view, layout, GroupSettings::default(), Nothing::default());
        (fabric, group)
    };
    let mut nodes: Vec<Node> = (0..3).map(node).collect();
    let until = world.now() + Duration::from_millis(20);
    while let Some(i) = world.next_poll(until) {
        let worked = step(&mut nodes[i as usize]) > 0;
        world.rest(i, worked, None);
    }
    let mut first = nodes.swap_remove(0);
    assert!(first.1.is_ready());
    let lost = FabricEvent::PeerLost { peer: NodeId(2), reason: BreakReason::PeerClosed };
    first.1.handle_event(&mut first.0, &lost);
    step(&mut first);
    let state = first.1.membership().map(|membership| membership.state());
    assert!(state.is_some_and(|state| state != MembershipState::Normal), "its view ends: {state:?}");
    first
}

/// Otherwise a process that joins would learn that it is a member, and its group would end at once.
#[test]
fn a_view_that_ends_is_not_ready() {
    assert!(!member_that_loses_another().1.is_ready());
    with(GroupMutation::ReadyWhileEnding, || {
        assert!(member_that_loses_another().1.is_ready(), "the mutation is not caught any more");
    });
}
