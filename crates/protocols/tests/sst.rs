//! The paper's two examples as monotone logic over the table: a 2-phase commit and the K1 knowledge protocol
//! (Derecho §3.2–3.3). They run under the simulated adversary, over many seeds.
#![expect(clippy::disallowed_types, reason = "triggers are Send, so what they report to is shared by a lock")]

use std::sync::{Arc, Mutex};

use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
use squall_fabric::{Column, Core, Fabric, Instant, Layout, MirrorKey, NodeId};
use squall_protocols::sst::{Predicates, Repeat, Sst, Table, all, any, max, min, row, sum};

/// A table at each of `members` members, with the same predicates, in one simulated world.
struct Cluster {
    world: SimWorld,
    nodes: Vec<(SimFabric, Sst)>,
}

impl Cluster {
    fn new(seed: u64, members: u32, words: usize, predicates: impl Fn(u32) -> Predicates) -> Self {
        let world = SimWorld::new(seed, SimConfig::adversarial(seed), members);
        let nodes: Vec<NodeId> = (0..members).map(NodeId).collect();
        let node = |i: u32| {
            let mut fabric = world.fabric(i);
            let table = Table::new(&mut fabric, MirrorKey(1), &nodes, words);
            (fabric, Sst { table, predicates: predicates(i) })
        };
        let nodes = (0..members).map(node).collect();
        Self { world, nodes }
    }

    /// Runs until nothing moves any more.
    fn settle(&mut self) {
        let until = self.world.now() + std::time::Duration::from_secs(1);
        while let Some(i) = self.world.next_turn(until) {
            let (fabric, sst) = &mut self.nodes[i as usize];
            let mut events = Vec::new();
            fabric.poll(&mut |event| events.push(event));
            events.iter().for_each(|event| sst.handle_event(fabric, event));
            let work = sst.poll(fabric) + events.len();
            self.world.rest(i, work > 0, None::<Instant>);
        }
    }

    fn crash(&mut self, i: u32) {
        self.world.crash(i);
    }
}

/// Columns of the 2-phase commit: the leader's request, each member's vote (1 no, 2 yes) with its guard, the
/// leader's outcome (1 abort, 2 commit).
#[derive(Clone, Copy)]
struct Commit {
    request: Column<u64>,
    vote: Column<u64>,
    voted: Column<bool>,
    outcome: Column<u64>,
}

/// Derecho §3.2: the leader puts a request into its row; each member votes when it sees it; the leader aggregates the
/// votes when all are there, and reports the outcome.
fn two_phase_commit(seed: u64, members: u32, veto: Option<u32>) -> Vec<u64> {
    let mut layout = Layout::new();
    let columns = Commit {
        request: layout.column(),
        vote: layout.column(),
        voted: layout.column(),
        outcome: layout.column(),
    };
    let outcomes = Arc::new(Mutex::new(vec![0; members as usize]));
    let predicates = |me: u32| {
        let Commit { request, vote, voted, outcome } = columns;
        let mut predicates = Predicates::new();
        if me == 0 {
            predicates.add("begin", Repeat::Once, Box::new(|_| true), move |table| table.raise(request, 1));
            let agreed = min(row(vote));
            predicates.add("decide", Repeat::Once, all(row(voted)), move |table| {
                let value = agreed(table);
                table.raise(outcome, value);
            });
        }
        predicates.add("vote", Repeat::Once, any(move |row| request.load(row) == 1), move |table| {
            table.raise(vote, if Some(me) == veto { 1 } else { 2 });
            table.raise(voted, true);
        });
        let outcomes = Arc::clone(&outcomes);
        let decided = max(row(outcome));
        predicates.add("learn", Repeat::Once, any(move |row| outcome.load(row) > 0), move |table| {
            outcomes.lock().unwrap()[me as usize] = decided(table);
        });
        predicates
    };
    let mut cluster = Cluster::new(seed, members, layout.words(), predicates);
    cluster.settle();
    drop(cluster);
    Arc::try_unwrap(outcomes).unwrap().into_inner().unwrap()
}

#[test]
fn two_phase_commit_commits_when_all_agree_and_aborts_on_a_veto() {
    for seed in 0..100 {
        let members = 2 + u32::try_from(seed % 4).unwrap();
        assert_eq!(two_phase_commit(seed, members, None), vec![2; members as usize], "seed {seed}");
        assert_eq!(two_phase_commit(seed, members, Some(1)), vec![1; members as usize], "seed {seed}");
    }
}

/// Derecho §3.3: `knows` says "I know the fact", `everyone` says "I know that everyone knows it" (K1). A member reports
/// K1 before it acts, so survivors can learn it from its row even when they could not deduce it any more.
#[test]
fn k1_is_learned_by_all_or_deduced_by_nobody() {
    for seed in 0..100u64 {
        let mut layout = Layout::new();
        let (knows, everyone): (Column<bool>, Column<bool>) = (layout.column(), layout.column());
        let members = 3 + u32::try_from(seed % 3).unwrap();
        let predicates = |_me: u32| {
            let mut predicates = Predicates::new();
            predicates.add("fact", Repeat::Once, Box::new(|_| true), move |table| table.raise(knows, true));
            predicates
                .add("deduce K1", Repeat::Once, all(row(knows)), move |table| table.raise(everyone, true));
            // Indirect discovery is as safe as direct evaluation: the predicate is monotone.
            predicates
                .add("learn K1", Repeat::Once, any(row(everyone)), move |table| table.raise(everyone, true));
            predicates
        };
        let mut cluster = Cluster::new(seed, members, layout.words(), predicates);
        if seed % 2 == 0 {
            // Somebody dies at some step of the way.
            for _ in 0..seed {
                cluster.world.step();
            }
            cluster.crash(members - 1);
        }
        cluster.settle();
        let survivors = &cluster.nodes[..members as usize - usize::from(seed % 2 == 0)];
        let known: Vec<bool> = survivors.iter().map(|(_, sst)| everyone.load(sst.table.own())).collect();
        for (_, sst) in survivors {
            // Who knows K1 is right: every survivor knows the fact.
            if everyone.load(sst.table.own()) {
                assert!(survivors.iter().all(|(_, other)| knows.load(other.table.own())), "seed {seed}");
            }
        }
        // With nobody dead all learn it; and whatever one survivor knows, all survivors learn.
        assert!(known.iter().all(|one| *one == known[0]), "seed {seed}: {known:?}");
        assert!(seed % 2 == 0 || known[0], "seed {seed}");
    }
}

/// Reducers summarise a row function over all rows; a transition fires once each time it begins to hold.
#[test]
fn reducers_and_repeats() {
    let mut layout = Layout::new();
    let count: Column<u64> = layout.column();
    let totals = Arc::new(Mutex::new(Vec::new()));
    let predicates = |me: u32| {
        let mut predicates = Predicates::new();
        predicates.add("set", Repeat::Once, Box::new(|_| true), move |table| {
            table.raise(count, u64::from(me) + 1);
        });
        let (totals, total, least) = (Arc::clone(&totals), sum(row(count)), min(row(count)));
        predicates.add(
            "all set",
            Repeat::OnTransition,
            Box::new(move |table| least(table) > 0),
            move |table| {
                totals.lock().unwrap().push(total(table));
            },
        );
        predicates
    };
    let mut cluster = Cluster::new(5, 3, layout.words(), predicates);
    cluster.settle();
    assert_eq!(*totals.lock().unwrap(), [6, 6, 6]);
    let names: Vec<_> = cluster.nodes[0].1.predicates.fired().collect();
    assert_eq!(names, [("all set", 1)]);
}
