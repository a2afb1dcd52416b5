//! The paper's two examples of monotone logic over the table, a 2-phase commit and the K1 knowledge protocol (Derecho
//! §3.2–3.3), under the simulated adversary and over many seeds.

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{Column, Fabric, Instant, MirrorKey, NodeId, Region, RowLayout};
use squall_protocols::sst::StateTable;

/// A table at each member of one simulated world, and the rule by which a member reads all rows and stores to its
/// own.
struct Cluster<R> {
    world: SimWorld,
    nodes: Vec<(SimFabric, StateTable)>,
    rule: R,
}

impl<R: Fn(&mut StateTable)> Cluster<R> {
    fn new(seed: u64, members: u32, layout: &RowLayout, rule: R) -> Self {
        let world = SimWorld::new(seed, SimConfig::adversarial(seed), members);
        let members: Vec<NodeId> = (0..members).map(NodeId).collect();
        let node = |member: &NodeId| {
            let mut fabric = world.fabric(member.0);
            let table = StateTable::new(&mut fabric, MirrorKey(1), &members, layout.words());
            (fabric, table)
        };
        let nodes = members.iter().map(node).collect();
        Self { world, nodes, rule }
    }

    /// Runs until nothing moves any more.
    fn settle(&mut self) {
        let until = self.world.now() + std::time::Duration::from_secs(1);
        while let Some(i) = self.world.next_poll(until) {
            let (fabric, table) = &mut self.nodes[i as usize];
            let mut work = fabric.poll(&mut |event| table.handle_event(&event));
            if table.is_ready() {
                (self.rule)(table);
                work += table.flush(fabric);
            }
            self.world.rest(i, work > 0, None::<Instant>);
        }
    }
}

/// Sets a column of this member's row, once.
fn raise(table: &mut StateTable, column: Column<u64>, value: u64) {
    if column.load(table.own()) == 0 {
        table.raise(column, value);
    }
}

fn is_set(column: Column<u64>) -> impl Fn(&Region) -> bool {
    move |row| column.load(row) > 0
}

const NO: u64 = 1;
const YES: u64 = 2;

/// Derecho §3.2: the leader writes a request to its row, and each member votes when it sees the request. Once it has
/// all votes, the leader aggregates them and reports the outcome. Returns the outcome that each member learns.
fn two_phase_commit(seed: u64, members: u32, veto: Option<usize>) -> Vec<u64> {
    let mut layout = RowLayout::new();
    let (request, vote): (Column<u64>, Column<u64>) = (layout.column(), layout.column());
    let (voted, outcome): (Column<u64>, Column<u64>) = (layout.column(), layout.column());
    let rule = |table: &mut StateTable| {
        if table.rank() == 0 {
            raise(table, request, 1);
            if table.rows().iter().all(is_set(voted)) {
                let agreed = table.rows().iter().map(|row| vote.load(row)).min();
                raise(table, outcome, agreed.expect("a table has rows"));
            }
        }
        if table.rows().iter().any(is_set(request)) {
            raise(table, vote, if Some(table.rank()) == veto { NO } else { YES });
            raise(table, voted, 1);
        }
    };
    let mut cluster = Cluster::new(seed, members, &layout, rule);
    cluster.settle();
    cluster.nodes.iter().map(|(_, table)| outcome.load(table.row(0))).collect()
}

#[test]
fn two_phase_commit_commits_when_all_agree_and_aborts_on_a_veto() {
    for seed in 0..100 {
        let members = 2 + u32::try_from(seed % 4).unwrap();
        assert_eq!(two_phase_commit(seed, members, None), vec![YES; members as usize], "seed {seed}");
        assert_eq!(two_phase_commit(seed, members, Some(1)), vec![NO; members as usize], "seed {seed}");
    }
}

/// Derecho §3.3: `knows` says "I know the fact", `everyone` says "I know that everyone knows it" (K1). A member
/// reports K1 before it acts, so survivors can learn it from its row even if they can no longer deduce it.
#[test]
fn k1_is_learned_by_all_or_deduced_by_nobody() {
    for seed in 0..100u64 {
        let mut layout = RowLayout::new();
        let (knows, everyone): (Column<u64>, Column<u64>) = (layout.column(), layout.column());
        let members = 3 + u32::try_from(seed % 3).unwrap();
        let rule = |table: &mut StateTable| {
            raise(table, knows, 1);
            // Another member's deduction is as safe as this member's own, because the predicate is monotone.
            if table.rows().iter().all(is_set(knows)) || table.rows().iter().any(is_set(everyone)) {
                raise(table, everyone, 1);
            }
        };
        let mut cluster = Cluster::new(seed, members, &layout, rule);
        if seed % 2 == 0 {
            // One member dies at some step.
            for _ in 0..seed {
                cluster.world.step();
            }
            cluster.world.crash(members - 1);
        }
        cluster.settle();
        let survivors = &cluster.nodes[..members as usize - usize::from(seed % 2 == 0)];
        let known: Vec<bool> = survivors.iter().map(|(_, table)| is_set(everyone)(table.own())).collect();
        // A member that knows K1 is right: every survivor knows the fact.
        let all_know = survivors.iter().all(|(_, table)| is_set(knows)(table.own()));
        assert!(all_know || !known.contains(&true), "seed {seed}");
        // Without a death all members learn it, and whatever one survivor knows, all survivors learn.
        assert!(known.iter().all(|one| *one == known[0]), "seed {seed}: {known:?}");
        assert!(seed % 2 == 0 || known[0], "seed {seed}");
    }
}
