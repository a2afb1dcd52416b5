//! What is read of a member that dies, and votes of a group with durable subgroups (Derecho §3.4, "Total failures") \[T6\]: an echo is shown when the vote is on the disk, and no suspicion of the leader for
//! which a member votes before that.

use std::cell::Cell;
use std::rc::Rc;

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{BreakReason, Duration, Fabric as _, FabricEvent, NodeId};

use super::{
    Member, Membership, MembershipRow, MembershipSettings, Proposal, SenderSegment, StopReason, Subgroups,
    View,
};
use crate::mutation::{GroupMutation, with};

const MEMBERS: u32 = 3;

/// A disk that takes a vote when the test says so.
#[derive(Clone, Default)]
struct SlowDisk(Rc<Cell<bool>>);

impl Subgroups<SimFabric> for SlowDisk {
    fn freeze(&mut self, _fabric: &mut SimFabric, _member: NodeId) {}

    fn wedge(&mut self, _counts: &mut [u64], _states: &mut [u64]) -> bool {
        true
    }

    fn vote(&mut self, _: &View, _: &[SenderSegment], _: crate::ends::Ballot, _: &Proposal) -> bool {
        self.0.get()
    }

    fn hold(&mut self, _states: &mut [u64]) -> bool {
        false
    }
}

/// Three members; node 1 has a slow disk.
struct Scene {
    world: SimWorld,
    members: Vec<(SimFabric, Membership, SlowDisk)>,
}

impl Scene {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(suspicion_after: Option<Duration>) -> Self {
        let world = SimWorld::new(1, SimConfig::hardware(), MEMBERS);
        let view = View::first((0..MEMBERS).map(|i| Member { node: NodeId(i), tag: 0 }).collect());
        let settings = MembershipSettings { suspicion_after, ..MembershipSettings::default() };
        let member = |i: u32| {
            let mut fabric = world.fabric(i);
            let membership = Membership::new(&mut fabric, view.clone(), Vec::new(), settings.clone(), []);
            (fabric, membership, SlowDisk(Rc::new(Cell::new(i != 1))))
        };
        let members = (0..MEMBERS).map(member).collect();
        let mut scene = Self { world, members };
        scene.run();
        scene
    }

    /// Lets all members work until nothing happens any more.
    fn run(&mut self) {
        (0..MEMBERS).for_each(|i| self.world.wake(i));
        let until = self.world.now() + Duration::from_millis(5);
        while let Some(i) = self.world.next_poll(until) {
            let (fabric, membership, disk) = &mut self.members[i as usize];
            let mut events: Vec<FabricEvent> = Vec::new();
            fabric.poll(&mut |event| events.push(event));
            events.iter().for_each(|event| membership.handle_event(event));
            let work = membership.poll(fabric, disk) + events.len();
            self.world.rest(i, work > 0, None);
        }
    }

    /// What node 1 shows: the leader that it has echoed, and whether it suspects node 0.
    fn shown(&self) -> (u64, bool) {
        let membership = &self.members[1].1;
        let (row, own) = (MembershipRow::new(MEMBERS as usize, &[], 0), membership.table().own());
        (row.echoed.load(own), row.suspected.contains(own, 0))
    }
}

/// Returns what node 1 shows when it has voted for node 0 and then suspects it, before and after the vote is on its disk.
fn shown_before_and_after() -> [(u64, bool); 2] {
    let mut scene = Scene::new();
    scene.members[0].1.renew();
    scene.run();
    assert_eq!(scene.shown(), (0, false), "the vote is on its way");
    assert!(scene.members.iter().all(|(_, membership, _)| membership.decision().is_none()));
    let lost = FabricEvent::PeerLost { peer: NodeId(0), reason: BreakReason::PeerClosed };
    scene.members[1].1.handle_event(&lost);
    scene.run();
    let before = scene.shown();
    scene.members[1].2.0.set(true);
    scene.run();
    [before, scene.shown()]
}

#[test]
fn a_vote_is_shown_before_the_suspicion_of_its_leader() {
    assert_eq!(shown_before_and_after(), [(0, false), (1, true)]);
    // Otherwise the others decide without the vote, which a restart may find.
    let mutated = with(GroupMutation::SuspectBeforeVote, shown_before_and_after);
    assert_ne!(mutated[0], (0, false));
}

/// Returns whether node 1 knows that node 2 accuses node 0, of which only the accusation has arrived when node 2 is lost, and no heartbeat.
fn knows_last_words() -> bool {
    let mut scene = Scene::new();
    let row = MembershipRow::new(MEMBERS as usize, &[], 0);
    let (fabric, membership, _) = &mut scene.members[2];
    membership.table().own().store(row.accused.range().start, 0b001);
    fabric.push(membership.table().mirror(), row.accused.range());
    scene.world.advance_to(scene.world.now() + Duration::from_millis(1));
    let (fabric, membership, disk) = &mut scene.members[1];
    fabric.poll(&mut |event| membership.handle_event(&event));
    membership.poll(fabric, disk);
    assert!(!row.disputed.contains(membership.table().own(), 0), "the row is not read before there is news");
    membership.handle_event(&FabricEvent::PeerLost { peer: NodeId(2), reason: BreakReason::PeerClosed });
    membership.poll(fabric, disk);
    row.disputed.contains(membership.table().own(), 0)
}

#[test]
fn what_a_member_wrote_last_is_read_when_its_row_is_frozen() {
    assert!(knows_last_words());
    assert!(!with(GroupMutation::ForgetLastWords, knows_last_words));
}

/// Returns whether node 0 gives a sign of life when a member attaches late, long before one is due.
fn signs_for_a_late_reader() -> bool {
    let mut scene = Scene::with(Some(Duration::from_secs(10)));
    let (fabric, membership, disk) = &mut scene.members[0];
    let row = MembershipRow::new(MEMBERS as usize, &[], 0);
    let before = row.heartbeat.load(membership.table().own());
    let key = membership.view().key(0);
    membership.handle_event(&FabricEvent::Attached { reader: NodeId(2), key });
    membership.poll(fabric, disk);
    row.heartbeat.load(membership.table().own()) > before
}

/// A joiner opens its first view late, with a slow clock, and a member with a fast one waits for it.
#[test]
fn a_reader_that_attaches_late_gets_a_sign_of_life() {
    assert!(signs_for_a_late_reader());
    assert!(!with(GroupMutation::MuteUntilDue, signs_for_a_late_reader));
}

/// A member without a majority knows why: the others are dead, or one of them has said that it has removed this one.
#[test]
fn a_removed_member_says_that_it_is_excluded() {
    for (reason, stop) in [
        (BreakReason::Removed, StopReason::Excluded),
        (BreakReason::PeerClosed, StopReason::Minority { lost: 2, members: 3 }),
    ] {
        let mut scene = Scene::new();
        let (fabric, membership, disk) = &mut scene.members[2];
        for peer in [0, 1].map(NodeId) {
            membership.handle_event(&FabricEvent::PeerLost { peer, reason });
        }
        membership.poll(fabric, disk);
        assert_eq!(membership.stopped(), Some(stop), "{reason:?}");
    }
}
