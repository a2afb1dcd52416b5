//! When messages flow (Derecho §3.3, invariant J5), what fits in one view change, when a leader may propose (§3.4), and
//! which of the members that do not hear each other are removed.

use std::ops::DerefMut;

use crate::group::{
    FlightEvent, GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet,
    Succession, Unplaced,
};
use crate::membership::{Member, MembershipSettings, MembershipState, View, ViewChangeStep};
use crate::multicast::{Message, Pull};
use crate::mutation::{GroupMutation, with};
use squall_fabric::sim::{SimConfig, SimFabric, SimWorld, Verdict};
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

/// Returns the member at node `i` of a first view, which begins.
fn member(world: &SimWorld, i: u32, first: &[Member]) -> Node {
    let mut fabric = world.fabric(i);
    let (view, settings) = (View::first(first.to_vec()), settings());
    let group = GroupCore::begin(&mut fabric, view, Box::new(no_subgroups), settings, Nothing::default());
    (fabric, group)
}

fn no_subgroups(_: &View) -> (Vec<Placement>, Vec<Unplaced>) {
    (Vec::new(), Vec::new())
}

fn members(nodes: impl IntoIterator<Item = u32>) -> Vec<Member> {
    nodes.into_iter().map(|i| Member { node: NodeId(i), tag: 0 }).collect()
}

/// Returns `members` members of a first view, and other nodes that wait to be admitted.
/// The most members of these groups.
const FULL: u32 = 8;

fn settings() -> GroupSettings {
    let membership = MembershipSettings { members_max: FULL as usize, ..MembershipSettings::default() };
    GroupSettings { membership, ..GroupSettings::default() }
}

fn cluster(world: &SimWorld, members: u32) -> Vec<Node> {
    let first = self::members(0..members);
    let contacts: Vec<NodeId> = first.iter().map(|member| member.node).collect();
    let joiner = |i: u32| {
        let mut fabric = world.fabric(i);
        let (layout, settings) = (Box::new(no_subgroups), settings());
        let group = GroupCore::join(&mut fabric, &contacts, layout, settings, Nothing::default());
        (fabric, group)
    };
    let node = |i: u32| if i < members { member(world, i, &first) } else { joiner(i) };
    (0..world.nodes()).map(node).collect()
}

fn settle(world: &SimWorld, nodes: &mut [Node]) {
    run_until(world, nodes, |_| false);
}

/// Runs until `is_over`, or until nothing happens any more.
fn run_until(world: &SimWorld, nodes: &mut [Node], is_over: impl Fn(&[Node]) -> bool) {
    let until = world.now() + Duration::from_millis(20);
    while !is_over(nodes) {
        let Some(i) = world.next_poll(until) else { return };
        let worked = step(&mut nodes[i as usize]) > 0;
        world.rest(i, worked, None);
    }
}

/// Runs until nothing happens any more, after something has happened to some nodes.
fn settle_anew(world: &SimWorld, nodes: &mut [Node]) {
    (0..world.nodes()).for_each(|i| world.wake(i));
    settle(world, nodes);
}

fn view(node: &Node) -> View {
    node.1.membership().expect("it stays").view().clone()
}

fn lose(node: &mut Node, peer: u32) {
    let lost = FabricEvent::PeerLost { peer: NodeId(peer), reason: BreakReason::PeerClosed };
    node.1.handle_event(&mut node.0, &lost);
}

fn has_proposed(node: &Node) -> bool {
    node.1.membership().is_some_and(|membership| membership.steps().at(ViewChangeStep::Proposed).is_some())
}

/// Nodes 1 to 3 of a group of five lose node 0, which node 4 hears; returns the number of the view in which node 1 is then.
fn settled_without_first(world: &SimWorld, nodes: &mut [Node]) -> u64 {
    (1..4).for_each(|i| lose(&mut nodes[i], 0));
    settle_anew(world, nodes);
    view(&nodes[1]).id
}

/// Three members whose view has begun; the first one then loses the third.
fn member_that_loses_another() -> Node {
    let world = SimWorld::new(1, SimConfig::hardware(), 3);
    let mut nodes = cluster(&world, 3);
    settle(&world, &mut nodes);
    let mut first = nodes.swap_remove(0);
    assert!(first.1.is_ready());
    lose(&mut first, 2);
    step(&mut first);
    let state = first.1.membership().map(|membership| membership.state());
    assert!(state.is_some_and(|state| state != MembershipState::Normal), "its view ends: {state:?}");
    first
}

/// Returns the view of the leader of `members` members after it was asked to admit `joiners` others, while the last
/// member leaves.
fn view_after_joins(members: u32, joiners: u32, leaves: bool) -> View {
    let world = SimWorld::new(1, SimConfig::hardware(), members + joiners);
    let mut nodes = cluster(&world, members);
    settle(&world, &mut nodes);
    (members..members + joiners).for_each(|i| nodes[0].1.admit(Member { node: NodeId(i), tag: 0 }));
    if leaves {
        nodes[members as usize - 1].1.leave();
    }
    settle_anew(&world, &mut nodes);
    view(&nodes[0])
}

/// \[V9\] Admission never asks for this: it admits one joiner at a time.
#[test]
fn joins_and_departures_fit_in_one_view_change() {
    let is_one_change = || {
        let view = view_after_joins(3, 2, true);
        (view.id, view.nodes()) == (1, [0, 1, 3, 4].map(NodeId).to_vec())
    };
    assert!(is_one_change());
    assert!(!with(GroupMutation::OneJoinPerView, is_one_change), "the mutation is not caught any more");
}

/// \[V12\] Admission refuses a joiner before it comes to that.
#[test]
fn a_full_view_does_not_end_for_a_joiner() {
    let stays = || view_after_joins(FULL, 1, false).id == 0;
    assert!(stays());
    assert!(!with(GroupMutation::EndFullView, stays), "the mutation is not caught any more");
}

/// A leader has proposed when most members report that they do not hear it; the one that still follows it keeps the next
/// leader from proposing, so it has to resign.
#[test]
fn a_leader_that_most_do_not_hear_resigns_after_its_proposal() {
    let last_view = || {
        let world = SimWorld::new(1, SimConfig::hardware(), 5);
        let mut nodes = cluster(&world, 5);
        settle(&world, &mut nodes);
        lose(&mut nodes[0], 4);
        world.wake(0);
        run_until(&world, &mut nodes, |nodes| has_proposed(&nodes[0]));
        assert!(has_proposed(&nodes[0]));
        settled_without_first(&world, &mut nodes)
    };
    assert!(last_view() > 0, "the view ends");
    assert_eq!(with(GroupMutation::LeadForEver, last_view), 0, "the mutation is not caught any more");
}

/// \[D1\] Otherwise that member may echo what the earlier leader has proposed, so that both proposals are decided.
#[test]
fn a_leader_does_not_propose_while_a_member_that_stays_follows_an_earlier_one() {
    let proposes = || {
        let world = SimWorld::new(1, SimConfig::hardware(), 5);
        let mut nodes = cluster(&world, 5);
        settle(&world, &mut nodes);
        world.pause(0);
        let view = settled_without_first(&world, &mut nodes);
        let state = nodes[4].1.membership().map(|membership| membership.state());
        assert_eq!((view, state), (0, Some(MembershipState::Wedged)), "it follows a leader that rests");
        has_proposed(&nodes[1])
    };
    assert!(!proposes());
    assert!(with(GroupMutation::ProposeUnaccepted, proposes), "the mutation is not caught any more");
}

/// \[V11\] Two members do not hear a third one, and find that one after the other. If the members that have not heard the third
/// one vouched for it, the member that reported first would be removed, and then the other one, too.
#[test]
fn no_member_vouches_for_one_that_it_does_not_hear() {
    let last_members = || {
        let world = SimWorld::new(1, SimConfig::hardware(), 5);
        let mut nodes = cluster(&world, 5);
        settle(&world, &mut nodes);
        world.strike(&Verdict::Slow { from: 1, to: 3, extra: Duration::from_secs(3600) });
        for accuser in [2, 3] {
            lose(&mut nodes[accuser], 1);
            settle_anew(&world, &mut nodes);
        }
        view(&nodes[0]).nodes()
    };
    assert_eq!(last_members(), [0, 2, 3, 4].map(NodeId));
    let mutated = with(GroupMutation::VouchUnheard, last_members);
    assert_eq!(mutated, [0, 1, 4].map(NodeId), "the mutation is not caught any more");
}

/// \[V11\] The oldest member begins its view so late that all others but one accuse it. The last one hears it, and follows it
/// until it resigns, for which it has to learn of the accusations.
#[test]
fn a_member_that_was_accused_before_it_attached_learns_who_accuses_it() {
    let last_view = || {
        let world = SimWorld::new(1, SimConfig::hardware(), 5);
        let first = members([4, 0, 1, 2, 3]);
        world.pause(4);
        let mut nodes: Vec<Node> = (0..4).map(|i| member(&world, i, &first)).collect();
        (0..3).for_each(|i| lose(&mut nodes[i], 4));
        settle(&world, &mut nodes);
        nodes.push(member(&world, 4, &first));
        world.resume(4);
        settle_anew(&world, &mut nodes);
        view(&nodes[0])
    };
    let without_first = last_view();
    assert_eq!((without_first.id, without_first.nodes()), (1, [0, 1, 2, 3].map(NodeId).to_vec()));
    let mutated = with(GroupMutation::MissLateReader, last_view);
    assert_eq!(mutated.id, 0, "the mutation is not caught any more");
}

/// Otherwise a process that joins would learn that it is a member, and its group would end at once.
#[test]
fn a_view_that_ends_is_not_ready() {
    assert!(!member_that_loses_another().1.is_ready());
    with(GroupMutation::ReadyWhileEnding, || {
        assert!(member_that_loses_another().1.is_ready(), "the mutation is not caught any more");
    });
}

/// Returns what the first of four members has noticed after it has lost two others, one after the other. In the view in which each is
/// lost, it has the same rank.
fn noticed_deaths() -> Vec<FlightEvent> {
    let world = SimWorld::new(1, SimConfig::hardware(), 4);
    let mut nodes = cluster(&world, 4);
    settle(&world, &mut nodes);
    for dead in [1, 2] {
        (0..4).filter(|i| *i != dead).for_each(|i| lose(&mut nodes[i as usize], dead));
        settle_anew(&world, &mut nodes);
    }
    nodes[0].1.flight().events().map(|(_, event)| *event).collect()
}

/// The flight recorder has what has led to each view, once, and in order.
#[test]
fn the_flight_recorder_has_causes_and_views() {
    let member = |node| Member { node: NodeId(node), tag: 0 };
    let lost = |node| FlightEvent::Loses(NodeId(node), BreakReason::PeerClosed);
    let events = noticed_deaths();
    let mut expected = vec![FlightEvent::Begins { view: 0, members: 4 }, FlightEvent::Opens { view: 0 }];
    for (view, dead) in [(1, 1), (2, 2)] {
        expected.extend([
            lost(dead),
            FlightEvent::Accuses(member(dead)),
            FlightEvent::Wedges,
            FlightEvent::Follows(member(0)),
            FlightEvent::Decides { removed: 1, joined: 0 },
            FlightEvent::Begins { view, members: 4 - usize::try_from(view).unwrap() },
            FlightEvent::Opens { view },
        ]);
    }
    assert_eq!(events, expected);
    let again = with(GroupMutation::RecordAgain, noticed_deaths);
    assert!(again.len() > expected.len(), "an accusation is recorded again: {again:?}");
}

/// Returns a survivor, after one of three processes on a host was killed whose connections do not end for an hour.
fn survivor_of_a_slow_death() -> Node {
    let hour = Duration::from_secs(3600);
    let config = SimConfig { dies_visibly: true, loss_noticed_after: hour, ..SimConfig::hardware() };
    let world = SimWorld::new(1, config, 3);
    let mut nodes = cluster(&world, 3);
    settle(&world, &mut nodes);
    world.strike(&Verdict::Crash(1));
    settle_anew(&world, &mut nodes);
    nodes.swap_remove(0)
}

/// A member that is seen dying is accused at once: a process may need milliseconds until its connections end.
#[test]
fn the_others_continue_as_soon_as_they_see_a_member_dying() {
    let survivor = survivor_of_a_slow_death();
    assert_eq!(view(&survivor).members, members([0, 2]));
    let noticed: Vec<_> = survivor.1.flight().events().map(|(_, event)| *event).collect();
    assert!(noticed.contains(&FlightEvent::SeesDying(NodeId(1))), "{noticed:?}");
    with(GroupMutation::AwaitLoss, || {
        assert_eq!(view(&survivor_of_a_slow_death()).members.len(), 3, "the mutation is not caught any more");
    });
}
