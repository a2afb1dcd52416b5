//! Exhaustive tests of schedules: [B1]–[B6] for every group of up to 130 members (RDMC §3, app. A).

use super::{
    Algorithm, BlockTransfer, HybridSchedule, Schedule, Topology, TransferPlan, TransportProfile, choose,
};

const MEMBERS_MAX: usize = 130;
const BLOCKS_MAX: u64 = 64;
const ALL: [Algorithm; 4] = [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline];

/// The result of a run of a plan.
struct Run {
    /// The step after which each rank had all blocks.
    finished: Vec<u64>,
    /// The rank from which each rank got its first block.
    first_peer: Vec<Option<usize>>,
}

/// Runs all steps of a plan; panics at the first violation of [B1] or [B2].
fn run(plan: &TransferPlan, members: usize, blocks: u64) -> Run {
    let words = usize::try_from(blocks.div_ceil(64)).expect("few blocks");
    let mut held = vec![vec![0_u64; words]; members];
    held[0].fill(u64::MAX);
    let mut sends: Vec<(usize, BlockTransfer)> =
        (0..members).flat_map(|rank| plan.sends(rank).map(move |send| (rank, send))).collect();
    sends.sort_by_key(|(rank, send)| (send.step, *rank));
    let mut receives: Vec<_> = (0..members).map(|rank| plan.receives(rank)).collect();
    let mut result = Run { finished: vec![0; members], first_peer: vec![None; members] };
    for step in sends.chunk_by(|(_, a), (_, b)| a.step == b.step) {
        for (rank, BlockTransfer { peer, block, .. }) in step {
            assert!(*block < blocks && peer != rank, "{plan:?}: {rank} sends block {block} to {peer}");
            assert!(holds(&held[*rank], *block), "{plan:?}: {rank} sends block {block}, which it lacks [B1]");
        }
        for pair in step.windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "{plan:?}: two sends in step {} [B2]", pair[0].1.step);
        }
        for (rank, BlockTransfer { step, peer, block }) in step {
            let expected = receives[*peer].next();
            let sent = BlockTransfer { step: *step, peer: *rank, block: *block };
            assert_eq!(expected, Some(sent), "{plan:?}: {peer} expects something else [B1] [B2]");
            assert!(!holds(&held[*peer], *block), "{plan:?}: {peer} gets block {block} again [B1]");
            held[*peer][usize::try_from(block / 64).expect("small")] |= 1 << (block % 64);
            result.first_peer[*peer].get_or_insert(*rank);
            result.finished[*peer] = step + 1;
        }
    }
    for (rank, mut receives) in receives.into_iter().enumerate() {
        assert_eq!(receives.next(), None, "{plan:?}: {rank} waits for a block that no member sends [B1]");
        let count: u32 = held[rank].iter().map(|word| word.count_ones()).sum();
        assert!(rank == 0 || u64::from(count) == blocks, "{plan:?}: {rank} has {count} blocks [B1]");
    }
    assert_eq!(result.finished.iter().max(), Some(&plan.steps()), "{plan:?}: its number of steps");
    result
}

fn holds(held: &[u64], block: u64) -> bool {
    held[usize::try_from(block / 64).expect("small")] >> (block % 64) & 1 == 1
}

/// Checks what holds for every schedule.
fn check(schedule: &Schedule, members: usize, blocks: impl Iterator<Item = u64>) -> Vec<(u64, Run)> {
    let runs: Vec<_> = blocks
        .map(|blocks| (blocks, run(&TransferPlan::new(schedule, members, blocks), members, blocks)))
        .collect();
    let peers = |run: &Run| run.first_peer.clone();
    for (blocks, run) in runs.iter().filter(|(blocks, _)| *blocks > 0) {
        let (_, with_most) = runs.last().expect("not empty");
        assert_eq!(peers(run), peers(with_most), "{schedule:?} of {members} with {blocks} blocks [B6]");
    }
    runs
}

fn check_pipeline(members: usize, blocks: impl Iterator<Item = u64>) {
    let levels = u64::from(members.next_power_of_two().ilog2());
    for (blocks, run) in check(&Algorithm::Pipeline.into(), members, blocks) {
        if blocks == 0 || members == 1 {
            assert!(run.finished.iter().all(|step| *step == 0), "[B5]");
            continue;
        }
        let last = blocks + levels - 1;
        let skew = u64::from(blocks == 1);
        let others = &run.finished[1..];
        assert_eq!(others.iter().max(), Some(&last), "{members} members, {blocks} blocks [B3]");
        assert!(others.iter().all(|step| skew == 1 || step + 1 >= last), "{members}, {blocks} [B4]");
    }
}

/// The whole range of the invariants' statement.
#[test]
fn the_pipeline_keeps_its_invariants_for_all_groups() {
    for members in 1..=MEMBERS_MAX {
        check_pipeline(members, 0..=BLOCKS_MAX);
    }
}

/// With one block the pipeline is a binomial tree: in each step the number of holders doubles, up to the number of
/// members.
#[test]
fn one_block_makes_the_pipeline_a_tree() {
    for members in 2..=MEMBERS_MAX {
        let plan = TransferPlan::new(&Algorithm::Pipeline.into(), members, 1);
        let mut holders = 1;
        for step in 0..plan.steps() {
            holders += (0..members).filter(|rank| plan.send(*rank, step).is_some()).count();
            let cube = 1 << (step + 1).min(u64::from(members.ilog2()));
            let full = if step >= u64::from(members.ilog2()) { members } else { cube };
            assert_eq!(holders, full, "{members} members after step {step} [B3]");
        }
    }
}

#[test]
fn simple_schedules_keep_their_invariants_for_all_groups() {
    for algorithm in [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree] {
        for members in 1..=MEMBERS_MAX {
            check(&algorithm.into(), members, [0, 1, 2, 3, 7, BLOCKS_MAX].into_iter());
        }
    }
}

/// The same for every number of blocks; CI runs it in release mode.
#[test]
#[ignore = "slow without optimisation"]
fn simple_schedules_keep_their_invariants_for_all_groups_and_blocks() {
    for algorithm in [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree] {
        for members in 1..=MEMBERS_MAX {
            check(&algorithm.into(), members, 0..=BLOCKS_MAX);
        }
    }
}

fn check_hybrids(members: usize, rack_of: impl Fn(u32) -> u32, blocks: &[u64]) {
    let racks: Vec<u32> = (0..u32::try_from(members).expect("few")).map(rack_of).collect();
    for between in ALL {
        for within in ALL {
            let hybrid = HybridSchedule::new(Topology::new(&racks), between, within);
            check(&Schedule::Hybrid(hybrid), members, blocks.iter().copied());
        }
    }
}

/// Racks of equal size, members assigned to racks in turn, one rack, racks of one member, and racks of 1, 2, 3, …
/// members.
#[test]
fn every_pair_of_schedules_makes_a_hybrid() {
    for members in (1..=17).chain([31, 32, 33, 64, 97, MEMBERS_MAX]) {
        let blocks: &[u64] = if members < 20 { &[0, 1, 2, 5, 9] } else { &[1, 6] };
        check_hybrids(members, |rank| rank / 4, blocks);
        check_hybrids(members, |rank| rank % 3, blocks);
        check_hybrids(members, |_| 7, blocks);
        check_hybrids(members, |rank| rank, blocks);
        check_hybrids(members, |rank| (8 * rank + 1).isqrt(), blocks);
    }
}

/// The same for all groups; CI runs it in release mode.
#[test]
#[ignore = "slow without optimisation"]
fn every_pair_of_schedules_makes_a_hybrid_for_all_groups() {
    for members in 1..=MEMBERS_MAX {
        check_hybrids(members, |rank| rank / 8, &[0, 1, 2, 3, 17, BLOCKS_MAX]);
        check_hybrids(members, |rank| rank % 5, &[0, 1, 2, 3, 17, BLOCKS_MAX]);
    }
}

/// A member computes its peers without a list of transfers for the simple schedules: they must be the same.
#[test]
fn peers_are_those_of_the_transfers() {
    let hybrid =
        HybridSchedule::new(Topology::new(&[0, 0, 1, 1, 1, 2, 2]), Algorithm::Chain, Algorithm::Pipeline);
    let mut schedules: Vec<(Schedule, usize)> = vec![(Schedule::Hybrid(hybrid), 7)];
    for members in [1, 2, 3, 6, 8, 13] {
        schedules.extend(ALL.map(|algorithm| (algorithm.into(), members)));
    }
    for (schedule, members) in schedules {
        for blocks in [0, 1, 2, 11] {
            let plan = TransferPlan::new(&schedule, members, blocks);
            for rank in 0..members {
                let peers = |transfers: Vec<BlockTransfer>| {
                    let mut peers: Vec<usize> = transfers.iter().map(|transfer| transfer.peer).collect();
                    peers.sort_unstable();
                    peers.dedup();
                    peers
                };
                assert_eq!(plan.targets(rank), peers(plan.sends(rank).collect()), "{plan:?} of {rank}");
                assert_eq!(plan.sources(rank), peers(plan.receives(rank).collect()), "{plan:?} of {rank}");
            }
        }
    }
}

/// Figure 3, middle and right: eight members, three blocks.
#[test]
fn the_figure_of_the_paper() {
    let plan = TransferPlan::new(&Algorithm::Pipeline.into(), 8, 3);
    let root: Vec<_> = plan.sends(0).map(|send| (send.peer, send.block)).collect();
    assert_eq!(root, [(1, 0), (2, 1), (4, 2), (1, 2), (2, 2)]);
    assert_eq!(plan.steps(), 5);
    assert_eq!((0..8).filter(|rank| plan.send(*rank, 2).is_some()).count(), 4, "the first stage doubles");
    let trading = |rank: usize, step| plan.send(rank, step).is_some() && plan.receive(rank, step).is_some();
    // All members but the root and its partner, which has nothing to send to the root.
    assert_eq!((1..8).filter(|rank| trading(*rank, 3)).count(), 6, "then all send and receive");
}

/// The chooser follows the model: trees for small objects, the pipeline for large ones, smaller blocks for more
/// members; on one host it does not relay what all members read from the same memory.
#[test]
fn the_chooser_follows_the_model() {
    let flat = |bytes, members, transport| match choose(bytes, members, transport).schedule {
        Schedule::Flat(algorithm) => algorithm,
        Schedule::Hybrid(hybrid) => panic!("{hybrid:?} without a topology"),
    };
    assert_eq!(flat(1 << 28, 2, TransportProfile::VERBS), Algorithm::Sequential);
    assert_eq!(flat(1 << 12, 16, TransportProfile::VERBS), Algorithm::Tree);
    assert_eq!(flat(1 << 28, 16, TransportProfile::VERBS), Algorithm::Pipeline);
    assert_eq!(flat(1 << 28, 512, TransportProfile::TCP), Algorithm::Pipeline);
    let block = |members| choose(1 << 28, members, TransportProfile::VERBS).block_bytes;
    assert!(block(512) < block(4), "{} and {}", block(512), block(4));
    assert!((1 << 14..=1 << 22).contains(&block(16)));
}
