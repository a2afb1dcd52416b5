//! Tests with a member that writes arbitrary words to its row: the others never panic, and where the fault is
//! detectable they report the right member (Derecho §3.4, beyond its model of fail-stop members).

use squall_fabric::layout::LINE_WORDS;
use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Fabric, FabricEvent, MirrorId, NodeId, Region};
use squall_protocols::membership::{
    JOINS_MAX, Member, Membership, MembershipRow, MembershipSettings, PartitionSafety, SenderSegment,
    Subgroups, View,
};

const MEMBERS: u32 = 4;
const SENDERS: usize = 2;
/// The numbers of messages that each member has from the senders when it wedges.
const COUNT: u64 = 10;

/// A stage that has the same number of messages from each sender.
struct Counts;

impl Subgroups<SimFabric> for Counts {
    fn freeze(&mut self, _fabric: &mut SimFabric, _member: NodeId) {}

    fn wedge(&mut self, counts: &mut [u64], _states: &mut [u64]) -> bool {
        counts.fill(COUNT);
        true
    }

    fn hold(&mut self, _states: &mut [u64]) -> bool {
        false
    }
}

/// Honest members, and one whose row the test writes.
struct Scene {
    world: SimWorld,
    members: Vec<(SimFabric, Membership)>,
    puppet: Puppet,
}

struct Puppet {
    node: u32,
    fabric: SimFabric,
    row: Region,
    mirror: MirrorId,
    columns: MembershipRow,
    /// Regions that are kept alive, as a reader of them would.
    _views: Vec<Region>,
}

fn segments() -> Vec<SenderSegment> {
    vec![SenderSegment {
        counts: 0,
        trims: 0,
        senders: SENDERS,
        ranks: (0..MEMBERS as usize).collect(),
        durable: None,
        quorum: MEMBERS as usize,
    }]
}

impl Scene {
    fn new(seed: u64, puppet: u32) -> Self {
        let world = SimWorld::new(seed, SimConfig::adversarial(seed), MEMBERS);
        let members = (0..MEMBERS).map(|i| Member { node: NodeId(i), tag: 0 }).collect();
        let view = View::first(members);
        let settings = MembershipSettings {
            suspicion_after: None,
            partition_safety: PartitionSafety::Off,
            ..MembershipSettings::default()
        };
        let honest = (0..MEMBERS).filter(|i| *i != puppet).map(|i| {
            let mut fabric = world.fabric(i);
            let membership = Membership::new(&mut fabric, view.clone(), segments(), settings.clone(), []);
            (fabric, membership)
        });
        let members: Vec<_> = honest.collect();
        let mut fabric = world.fabric(puppet);
        let columns = MembershipRow::new(MEMBERS as usize, &segments(), 0);
        let row = fabric.register(columns.words);
        let others: Vec<_> = (0..MEMBERS).filter(|i| *i != puppet).map(NodeId).collect();
        let mirror = fabric.publish(view.key(0), &row, &others);
        let attach = |other: NodeId| fabric.attach(other, view.key(0), columns.words);
        let views = others.into_iter().map(attach).collect();
        let puppet = Puppet { node: puppet, fabric, row, mirror, columns, _views: views };
        Self { world, members, puppet }
    }

    /// Lets all members work for a while.
    fn run(&mut self) {
        let until = self.world.now() + std::time::Duration::from_millis(20);
        while let Some(i) = self.world.next_poll(until) {
            let mut events: Vec<FabricEvent> = Vec::new();
            if i == self.puppet.node {
                self.puppet.fabric.poll(&mut |event| events.push(event));
                self.world.rest(i, !events.is_empty(), None);
                continue;
            }
            let place = self.members.iter().position(|(fabric, _)| fabric.node() == NodeId(i)).unwrap();
            let (fabric, membership) = &mut self.members[place];
            fabric.poll(&mut |event| events.push(event));
            events.iter().for_each(|event| membership.handle_event(event));
            let work = membership.poll(fabric, &mut Counts) + events.len();
            let deadline = membership.next_deadline();
            self.world.rest(i, work > 0, deadline);
        }
    }

    /// Returns whether an honest member may distrust `node`. This holds for the puppet, and for an honest member that
    /// has decided what the puppet claimed was decided, before others could know better. Then each ends with a view
    /// of its own; the model has no such member.
    fn may_distrust(&self, node: NodeId) -> bool {
        let has_decided = |(fabric, membership): &(SimFabric, Membership)| {
            fabric.node() == node && membership.decision().is_some()
        };
        node == NodeId(self.puppet.node) || self.members.iter().any(has_decided)
    }

    fn accused(&self) -> Vec<(NodeId, &'static str)> {
        self.members.iter().flat_map(|(_, membership)| membership.distrusted().iter().copied()).collect()
    }
}

impl Puppet {
    fn push(&mut self) {
        let heartbeat = self.columns.heartbeat.load(&self.row);
        self.columns.heartbeat.store(&self.row, heartbeat.wrapping_add(1));
        self.fabric.push(self.mirror, 0..self.columns.words);
    }

    /// Writes a proposal of the leader with this rank as `Proposal::store` would, to the first place for proposals, which begins at the
    /// cache line after `whole`.
    fn propose(&mut self, leader: usize, removed: u64, joins: &[u64], trims: &[u64]) {
        let first = self.columns.whole.word() + LINE_WORDS;
        self.row.store(first, removed);
        self.row.store(first + 1, (leader as u64 + 1) << 32 | (joins.len() as u64 + 1));
        for (i, node) in joins.iter().enumerate() {
            self.row.store(first + 3 + 2 * i, *node);
        }
        for (i, trim) in trims.iter().enumerate() {
            self.row.store(first + 3 + 2 * JOINS_MAX + i, *trim);
        }
    }
}

/// The puppet writes arbitrary values to arbitrary words, repeatedly.
#[test]
fn no_words_in_a_row_make_another_member_panic() {
    // The last two occur because others have decided what the puppet claims before they can know better.
    for seed in (0..3000).chain([6294, 12_288]) {
        let mut prng = Prng::new(seed);
        let mut scene = Scene::new(seed, u32::try_from(prng.index(MEMBERS as usize)).unwrap());
        scene.run();
        for _ in 0..6 {
            let words = scene.puppet.columns.words;
            for _ in 0..1 + prng.index(12) {
                let value = match prng.index(5) {
                    0 => prng.draw(),
                    1 => u64::MAX,
                    2 => 1 << prng.index(64),
                    _ => prng.index(6) as u64,
                };
                scene.puppet.row.store(prng.index(words), value);
            }
            scene.puppet.push();
            if prng.chance(300) {
                scene.members[0].1.admit(Member { node: NodeId(100), tag: 0 });
            }
            scene.run();
        }
        for (_, honest) in &scene.members {
            for (node, why) in honest.distrusted() {
                assert!(scene.may_distrust(*node), "seed {seed}: {node:?}: {why}");
            }
        }
    }
}

/// As the leader it makes impossible proposals: all members report it, each with the reason.
#[test]
fn a_leader_with_an_impossible_proposal_is_reported() {
    let proposals: [(u64, &[u64], &[u64], &str); 4] = [
        (1 << 40, &[], &[COUNT; SENDERS], "members that the view does not have"),
        (0, &[2], &[COUNT; SENDERS], "joins that is a member"),
        (0, &[9, 9], &[COUNT; SENDERS], "joins twice"),
        (0, &[], &[COUNT, COUNT + 1], "a trim beyond"),
    ];
    for (removed, joins, trims, why) in proposals {
        let mut scene = Scene::new(1, 0);
        scene.run();
        let Puppet { row, columns, .. } = &scene.puppet;
        row.store(columns.wedged.range().start, u64::MAX);
        scene.puppet.push();
        scene.run();
        scene.puppet.propose(0, removed, joins, trims);
        scene.puppet.columns.echoed.store(&scene.puppet.row, 1);
        scene.puppet.push();
        scene.run();
        let accused = scene.accused();
        assert_eq!(accused.len(), 3, "{why}: {accused:?}");
        assert!(accused.iter().all(|(node, text)| *node == NodeId(0) && text.contains(why)), "{accused:?}");
    }
}

/// The others have echoed their leader's proposal; it claims that another one is decided.
#[test]
fn a_member_that_decides_an_unproposed_view_is_reported() {
    let mut scene = Scene::new(2, 3);
    scene.run();
    scene.puppet.row.store(scene.puppet.columns.wedged.range().start, u64::MAX);
    scene.puppet.push();
    scene.run();
    scene.puppet.propose(0, 0, &[], &[1; SENDERS]);
    scene.puppet.columns.decided.store(&scene.puppet.row, 1);
    scene.puppet.push();
    scene.run();
    let accused = scene.accused();
    let noticed = accused.iter().all(|(node, why)| *node == NodeId(3) && why.contains("two decisions"));
    assert!(noticed && accused.len() == 3, "{accused:?}");
}

/// It claims that a proposal of another member is decided, but that member knows better.
#[test]
fn a_member_that_invents_the_proposal_of_another_is_reported() {
    let mut scene = Scene::new(3, 3);
    scene.run();
    scene.puppet.propose(1, 0, &[], &[COUNT; SENDERS]);
    scene.puppet.row.store(scene.puppet.columns.wedged.range().start, u64::MAX);
    scene.puppet.columns.decided.store(&scene.puppet.row, 2);
    scene.puppet.push();
    scene.run();
    let (_, leader) = &scene.members[1];
    let accused = leader.distrusted();
    assert!(
        accused.iter().any(|(node, why)| *node == NodeId(3) && why.contains("would have made")),
        "{accused:?}"
    );
}
