//! What a merge takes, and from where (Derecho §3.4, "Total failures").

use squall_fabric::NodeId;
use squall_fabric::sim::Prng;

use super::super::view_end::DurableView;
use super::*;
use crate::membership::RankSet;

/// The register of a member of three, in the view behind those that have ended with these trims.
fn register(node: u32, trims: &[u64]) -> Register {
    let (number, members) = (trims.len() as u64, [0, 1, 2].map(NodeId).to_vec());
    let view = DurableView { number, members, shards: vec![RankSet::all(3)] };
    let mut register = Register::new(7, NodeId(node), view);
    let mut chain = ViewChain::new(0);
    trims.iter().for_each(|trim| chain.push(&[*trim]));
    register.record.chain = chain;
    register
}

fn pieces(ranges: &[(u64, u64, u64)]) -> ShardPieces {
    let mut pieces = ShardPieces::default();
    for (view, from, to) in ranges {
        pieces.views.entry(*view).or_default().add(*from, *to);
    }
    pieces
}

fn log(node: u32, trims: &[u64], ranges: &[(u64, u64, u64)]) -> LogPieces {
    LogPieces { register: register(node, trims), shards: vec![pieces(ranges)] }
}

/// A damaged target: its log leads to the first of these ranges alone.
fn target(node: u32, trims: &[u64], ranges: &[(u64, u64, u64)]) -> MergeTarget {
    MergeTarget {
        pieces: log(node, trims, ranges),
        chained: vec![pieces(&ranges[..1])],
        begins: vec![ShardBegin::default()],
        is_damaged: true,
        is_end_known: true,
    }
}

const fn records(source: usize, view: u64, from: u64, to: u64) -> MergeStep {
    MergeStep::Records { source, shard: 0, view, from, to }
}

#[test]
fn ranges_are_joined_where_they_meet() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let (mut ranges, mut is_in) = (SequenceRanges::default(), [false; 40]);
        for _ in 0..prng.below(8) {
            let from = prng.below(36);
            let to = from + prng.below(5);
            ranges.add(from, to);
            is_in[from as usize..to as usize].fill(true);
        }
        for from in 0..39_u64 {
            let reach = (from..39).find(|at| !is_in[*at as usize]).unwrap_or(39);
            assert_eq!(ranges.reach(from), reach.max(from), "seed {seed}");
            assert_eq!(ranges.next(from), (from..39).find(|at| is_in[*at as usize]), "seed {seed}");
        }
        assert_eq!(ranges.end(), (0..40).rev().find(|at| is_in[*at]).map_or(0, |at| at as u64 + 1));
    }
}

/// What is there of views with these lengths: records one behind the other, of which a log has some.
fn in_pieces(lengths: &[u64], has: &[bool]) -> ShardPieces {
    let (mut found, mut at) = (ShardPieces::default(), 0);
    for (view, length) in lengths.iter().enumerate() {
        for sequence in 0..*length {
            if has.get(at).copied().unwrap_or(false) {
                found.views.entry(view as u64).or_default().add(sequence, sequence + 1);
            }
            at += 1;
        }
    }
    found
}

/// Three copies of one history, each damaged at random: the merge has exactly what at least one of them has, up to the first gap of each view, each
/// part from a log that has it; and all that is said to be missing is in none.
#[test]
fn a_merge_has_what_any_copy_has() {
    let mut whole = 0;
    for seed in 0..2000 {
        let mut prng = Prng::new(seed);
        let lengths: Vec<u64> = (0..1 + prng.below(4)).map(|_| prng.below(30)).collect();
        let (present, ended) = lengths.split_last().expect("one at least");
        // Where each record would be in one log of all views, and which copies lack it.
        let total: u64 = lengths.iter().sum();
        let mut copy = |_| {
            let mut has = vec![true; total as usize];
            for _ in 0..prng.below(4) {
                let from = prng.index(total as usize + 1);
                let to = (from + prng.index(8)).min(has.len());
                has[from..to].fill(false);
            }
            has
        };
        let copies: Vec<Vec<bool>> = (0..3).map(&mut copy).collect();
        let log = |node: usize| LogPieces {
            register: register(node as u32, ended),
            shards: vec![in_pieces(&lengths, &copies[node])],
        };
        let first_gap = copies[0].iter().position(|has| !has).unwrap_or(total as usize);
        let target = MergeTarget {
            chained: vec![in_pieces(&lengths, &copies[0][..first_gap])],
            pieces: log(0),
            begins: vec![ShardBegin::default()],
            is_damaged: first_gap < total as usize,
            is_end_known: true,
        };
        let others = [log(1), log(2)];
        let plan = plan_merge(&target, &others).expect("it is one history");
        let mut held: Vec<u64> =
            (0..lengths.len() as u64).map(|view| target.chained[0].reach(view, 0)).collect();
        for step in &plan.steps {
            let MergeStep::Records { source, view, from, to, .. } = *step else {
                panic!("no checkpoints: {step:?}")
            };
            let has = if source == 0 { &target.pieces } else { &others[source - 1] };
            assert!(held[view as usize] == from && to > from, "seed {seed}: {step:?} behind {held:?}");
            assert!(has.shards[0].reach(view, from) >= to, "seed {seed}: {step:?}");
            held[view as usize] = to;
        }
        let mut at = 0;
        for (view, length) in lengths.iter().enumerate() {
            let is_anywhere = |sequence: u64| copies.iter().any(|has| has[at + sequence as usize]);
            let expected = (0..*length).find(|sequence| !is_anywhere(*sequence)).unwrap_or(*length);
            assert_eq!(held[view], expected, "seed {seed}: view {view} of {lengths:?}");
            for part in plan.missing.iter().filter(|part| part.from.view == view as u64) {
                assert!((part.from.sequence..part.to.sequence).all(|sequence| !is_anywhere(sequence)));
            }
            at += *length as usize;
        }
        let has_ended = held.iter().zip(ended).all(|(held, trim)| held == trim);
        let own = target.pieces.shards[0].end(ended.len() as u64);
        let has_present = held[ended.len()] >= own;
        assert_eq!(plan.is_whole, has_ended && has_present, "seed {seed}: {held:?} of {lengths:?}");
        assert_eq!(plan.missing.is_empty(), plan.is_whole);
        assert_eq!(plan.register.is_damaged(), target.is_damaged && !has_present);
        whole += u32::from(plan.is_whole && target.is_damaged && *present > 0);
    }
    assert!(whole > 500, "{whole}");
}

/// What is behind the trim of an ended view does not count, and is not taken. Of the present view everything is, also what the target never had.
#[test]
fn trims_limit_what_is_taken() {
    let target = target(0, &[5], &[(0, 0, 2), (1, 3, 4)]);
    let others = [log(1, &[5], &[(0, 1, 9), (1, 0, 6)]), log(2, &[5], &[(1, 4, 8), (1, 10, 12)])];
    let plan = plan_merge(&target, &others).expect("it is one history");
    assert_eq!(plan.steps, [records(1, 0, 2, 5), records(1, 1, 0, 6), records(2, 1, 6, 8)]);
    assert!(plan.is_whole && plan.missing.is_empty(), "the target has never had what is behind: {plan:?}");
    assert_eq!(plan.register.damaged_in, None);
}

/// A log whose own end is not known may have had more than any other: it stays damaged.
#[test]
fn an_unknown_end_stays_damaged() {
    let mut target = target(0, &[], &[(0, 0, 2), (0, 3, 4)]);
    let others = [log(1, &[], &[(0, 0, 6), (0, 8, 9)])];
    target.is_end_known = false;
    let plan = plan_merge(&target, &others).expect("it is one history");
    assert_eq!(plan.steps, [records(1, 0, 2, 6)]);
    let [from, to] = [6, 8].map(|sequence| LogStart { view: 0, sequence });
    assert_eq!(plan.missing, [MissingPart { shard: 0, from, to }]);
    assert!(plan.register.is_damaged() && !plan.is_whole);
    // Nothing is missing as far as is known, and yet.
    let plan = plan_merge(&target, &[log(1, &[], &[(0, 0, 6)])]).expect("it is one history");
    assert!(plan.missing.is_empty() && plan.register.is_damaged() && !plan.is_whole);
}

/// A checkpoint is taken where records are missing in all logs, or the own one is lost: the oldest that reaches behind the gap.
#[test]
fn checkpoints_fill_what_no_log_has() {
    let mut target = target(0, &[5, 9], &[(0, 0, 2), (1, 6, 9), (2, 0, 4)]);
    let mut other = log(1, &[5, 9], &[(0, 3, 5), (1, 0, 9)]);
    let at = |view, sequence| LogStart { view, sequence };
    other.shards[0].checkpoints.extend([at(0, 2), at(1, 4), at(2, 1)]);
    let checkpoint = |source, start| MergeStep::Checkpoint { source, shard: 0, start };
    let plan = plan_merge(&target, std::slice::from_ref(&other)).expect("it is one history");
    let behind = [records(1, 1, 4, 9), records(0, 2, 0, 4)];
    assert_eq!(plan.steps, [&[checkpoint(1, at(1, 4))], &behind[..]].concat());
    assert!(plan.is_whole);
    // The target's own checkpoint does, too.
    target.pieces.shards[0].checkpoints.insert(at(1, 3));
    let plan = plan_merge(&target, std::slice::from_ref(&other)).expect("it is one history");
    assert_eq!(plan.steps[0], checkpoint(0, at(1, 3)));
    // One that is lost is replaced by one that reaches as far, although all records behind are there.
    target.begins[0] = ShardBegin { start: at(1, 5), is_lost: true };
    let plan = plan_merge(&target, std::slice::from_ref(&other)).expect("it is one history");
    assert_eq!(plan.steps, [checkpoint(1, at(2, 1)), records(0, 2, 1, 4)]);
    other.shards[0].checkpoints.remove(&at(2, 1));
    let plan = plan_merge(&target, &[other]).expect("it is one history");
    assert_eq!(plan.missing, [MissingPart { shard: 0, from: at(0, 0), to: at(1, 5) }]);
    assert!(!plan.is_whole && plan.steps.is_empty());
}

/// A log that knows no trims of earlier views gets them from the others \[T19\].
#[test]
fn trims_come_from_the_others() {
    let mut target = target(0, &[5, 9], &[(0, 0, 5), (1, 0, 3), (2, 0, 1)]);
    target.pieces.register.record.chain.forget_before(1);
    let other = log(1, &[5, 9], &[(1, 0, 9)]);
    let plan = plan_merge(&target, &[other]).expect("it is one history");
    assert_eq!(plan.register.record.chain, register(0, &[5, 9]).record.chain);
    assert!(plan.is_whole);
    let plan = plan_merge(&target, &[]).expect("it is one history");
    let [from, to] = [0, 1].map(LogStart::of_view);
    assert_eq!(plan.missing, [MissingPart { shard: 0, from, to }]);
}

/// \[T21\] Only logs of one history are merged, and the target knows the latest view of all.
#[test]
fn other_histories_are_refused() {
    let own = target(0, &[5, 9], &[(0, 0, 2)]);
    let conflict = |target: &MergeTarget, others: &[LogPieces]| {
        plan_merge(target, others).expect_err("it is another one")
    };
    let other = || log(1, &[5, 9], &[(0, 0, 9)]);
    let mut group = other();
    group.register.group = 8;
    assert_eq!(conflict(&own, &[other(), group]), MergeConflict::OtherGroup { source: 2 });
    let mut layout = other();
    layout.register.layout = 1;
    assert_eq!(conflict(&own, &[layout]), MergeConflict::OtherShards { source: 1 });
    let end = log(1, &[5, 8], &[]);
    assert_eq!(
        conflict(&own, std::slice::from_ref(&end)),
        MergeConflict::OtherHistory { source: 1, other: 0 }
    );
    // Two of the others contradict each other, in views that the target does not know.
    let mut late = own.clone();
    late.pieces.register.record.chain.forget_before(2);
    assert_eq!(conflict(&late, &[other(), end]), MergeConflict::OtherHistory { source: 2, other: 1 });
    let mut view = other();
    view.register.record.view.members[2] = NodeId(9);
    assert_eq!(conflict(&own, &[view]), MergeConflict::OtherHistory { source: 1, other: 0 });
    let later = log(1, &[5, 9, 1], &[]);
    assert_eq!(conflict(&own, &[later]), MergeConflict::LaterView { source: 1, view: 3 });
    assert!(
        plan_merge(&own, &[log(1, &[5], &[(0, 0, 5)])]).is_ok(),
        "an earlier view is of the same history"
    );
    let removed = target(4, &[5, 9], &[(0, 0, 2)]);
    assert_eq!(conflict(&removed, &[]), MergeConflict::NoMember);
}
