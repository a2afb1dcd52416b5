//! Tests of registers, decisions and what is taken over (Derecho §3.4).

use std::collections::BTreeMap;

use super::*;
use crate::ends::mutation::{EndMutation, with};
use crate::ends::{
    EndAnswers, EndRegister, LiveTally, RankedVotes, decided, echo_taken_over, has_content, is_decided,
    live_tally, taken_over,
};

fn nowhere(_: &[Member]) -> Vec<RankSet> {
    Vec::new()
}

/// [H7] [H14]
#[test]
fn a_promise_is_kept() {
    let view = view(3, &[]);
    let proposal = proposal(&value(&view, 0b111, &[]), &[]);
    let accepts_lower = || {
        let mut register = EndRegister::default();
        assert!(register.follow(ballot(2, 1)) && !register.follow(ballot(1, 7)));
        register.vote_for(ballot(1, 7), proposal.clone(), false)
    };
    assert!(!accepts_lower());
    assert!(with(EndMutation::BreakPromise, accepts_lower));
    let mut register = EndRegister::default();
    assert!(register.vote_for(ballot(1, 0), proposal.clone(), false));
    assert!(!register.vote_for(ballot(1, 0), proposal, false), "one vote in a ballot");
    assert_eq!(register.promise(), Some(ballot(1, 0)));
}

/// [H2]
#[test]
fn a_member_that_waits_echoes_no_live_leader() {
    let view = view(3, &[]);
    let proposal = proposal(&value(&view, 0b111, &[]), &[]);
    let echoes = || {
        let mut register = EndRegister::default();
        register.wait();
        register.vote_for(Ballot::live(2), proposal.clone(), false)
    };
    assert!(!echoes());
    assert!(with(EndMutation::WaitWithoutPromise, echoes));
    assert!(with(EndMutation::EchoThoughWaiting, echoes));
    let mut register = EndRegister::default();
    register.wait();
    assert!(register.vote_for(ballot(1, 0), proposal, false), "it follows ballots");
}

/// [H10]
#[test]
fn a_vote_carries_the_least_need_of_its_value() {
    let view = view(3, &[(MAJORITY, 0b111)]);
    let (one, other) = (value(&view, 0b111, &[5]), value(&view, 0b111, &[6]));
    let mut register = EndRegister::default();
    for (round, value, need, carry) in [(1, &one, 1, 1), (2, &one, 2, 1), (3, &other, 2, 2)] {
        assert!(register.vote_for(ballot(round, 0), proposal(value, &[need]), false));
        assert_eq!(register.vote().map(|vote| vote.proposal.carry.clone()), Some(vec![carry]));
    }
}

/// [H13]
#[test]
fn a_majority_of_votes_of_one_ballot_decides() {
    let view = view(4, &[]);
    let proposal = proposal(&value(&view, 0b1111, &[]), &[]);
    let (low, high) = (vote(ballot(1, 0), &proposal), vote(ballot(2, 1), &proposal));
    let is_decided = |low_ranks: &[usize], high_ranks: &[usize]| {
        let low = low_ranks.iter().map(|rank| (*rank, &low));
        let votes: RankedVotes<'_> = low.chain(high_ranks.iter().map(|rank| (*rank, &high))).collect();
        decided(&view, &votes).is_some()
    };
    assert!(is_decided(&[0, 1, 2], &[]) && is_decided(&[0], &[1, 2, 3]));
    assert!(!is_decided(&[0, 1], &[2, 3]), "half are no majority, and ballots do not add up");
    assert!(with(EndMutation::EndWithHalf, || is_decided(&[0, 1], &[])));
    assert!(with(EndMutation::DecideByOneVote, || is_decided(&[0], &[])));
}

/// Echoes of members that the end removes count for the majority and are no copies: with one copy among those that it keeps, two deaths
/// would be too many.
#[test]
fn copies_are_counted_among_those_that_are_kept() {
    let view = view(5, &[(MAJORITY, 0b1_1111)]);
    let proposal = proposal(&value(&view, 0b0_0011, &[5]), &[2]);
    let echo = vote(Ballot::live(0), &proposal);
    let tally = |ranks: &[usize], expected| {
        let echoes: BTreeMap<usize, &EndVote> = ranks.iter().map(|rank| (*rank, &echo)).collect();
        live_tally(&view, &echo, &echoes, set(expected))
    };
    assert_eq!(tally(&[0, 2, 3], 0b00001), LiveTally::CopiesMissing);
    assert_eq!(with(EndMutation::CountCopiesOfAll, || tally(&[0, 2, 3], 0b00001)), LiveTally::Decided);
    assert_eq!(tally(&[0, 1, 3], 0b00011), LiveTally::Decided);
    assert_eq!(tally(&[0, 1, 3], 0b10011), LiveTally::Awaited, "another may still echo");
    assert_eq!(with(EndMutation::DecideByOneLiveEcho, || tally(&[0], 0b00011)), LiveTally::Decided);
    // A member that has restarted is no copy of what is in memory.
    let lost = EndVote { is_restarted: true, ..echo.clone() };
    let votes: RankedVotes<'_> = [(0, &echo), (1, &lost), (3, &echo)].into();
    assert!(!is_decided(&view, &echo, &votes));
}

/// The counter-example of the mutation LA: a live decision with one copy, and a later leader that takes over what cannot have been decided,
/// whose content is at no member.
#[test]
fn a_live_leader_drops_what_cannot_have_been_decided() {
    let view = view(5, &[(MAJORITY, 0b1_1111)]);
    let dropped = proposal(&value(&view, 0b1_1110, &[9]), &[2]);
    let echo = vote(Ballot::live(0), &dropped);
    let context = context(&view, 1, 0, &nowhere);
    let answers: Vec<EndAnswer> = (0..4).map(|_| answer(&[5])).collect();
    let stay: EndAnswers<'_> = (1..5).zip(&answers).collect();
    // Only the first leader has echoed it; all others have answered, and follow it no more.
    let echoes: RankedVotes<'_> = [(0, &echo)].into();
    let taken = || echo_taken_over(&context, &stay, &echoes).is_some();
    assert!(!taken());
    assert!(with(EndMutation::TakeOverAnyEcho, taken));
    // With a majority among those that have echoed or are away it may have been decided.
    let echoes: RankedVotes<'_> = [(0, &echo), (1, &echo), (2, &echo)].into();
    let few: EndAnswers<'_> = (1..4).zip(&answers).collect();
    assert!(echo_taken_over(&context, &few, &echoes).is_some());
    assert!(!with(EndMutation::IgnoreEarlierEcho, || echo_taken_over(&context, &few, &echoes).is_some()));
}

fn voted(votes: &[Option<EndVote>]) -> Vec<EndAnswer> {
    votes.iter().map(|vote| EndAnswer { vote: vote.clone(), ..answer(&[5]) }).collect()
}

/// [H11]
#[test]
fn the_vote_of_the_highest_ballot_is_taken_over() {
    let view = view(3, &[(MAJORITY, 0b111)]);
    let (low, high) =
        (proposal(&value(&view, 0b111, &[5]), &[2]), proposal(&value(&view, 0b110, &[4]), &[2]));
    let answers = voted(&[Some(vote(ballot(1, 0), &low)), Some(vote(ballot(2, 1), &high)), None]);
    let context = context(&view, 1, 0, &nowhere);
    let taken = |ranks: &[usize]| {
        let answers: EndAnswers<'_> = ranks.iter().map(|rank| (*rank, &answers[*rank])).collect();
        taken_over(&context, &answers).map(|proposal| proposal.value)
    };
    assert_eq!(taken(&[0, 1]), Some(high.value.clone()));
    assert_eq!(with(EndMutation::TakeOverLowest, || taken(&[0, 1])), Some(low.value));
    assert_eq!(with(EndMutation::IgnoreBallotVotes, || taken(&[0, 1])), None);
    assert_eq!(taken(&[0, 1, 2]), None, "two of three have not voted for it: it is not decided");
    assert_eq!(with(EndMutation::TakeOverAny, || taken(&[0, 1, 2])), Some(high.value));
}

/// [H10]
#[test]
fn a_need_is_lowered_when_those_that_are_kept_are_dead() {
    let view = view(5, &[(MAJORITY, 0b0_0011), (MEMORY, 0b1_1111)]);
    let before = proposal(&value(&view, 0b1_1111, &[5, 0]), &[2, 0]);
    let vote = || Some(vote(ballot(1, 0), &before));
    let needed = |dead: u64, count: u64| {
        let mut answers = voted(&[None, vote(), vote(), vote(), None]);
        answers[1].counts = vec![vec![count], vec![0]];
        let answers: EndAnswers<'_> = (1..4).map(|rank| (rank, &answers[rank])).collect();
        let taken = taken_over(&context(&view, 2, dead, &nowhere), &answers).expect("it may be decided");
        (taken.need[0], taken.carry[0])
    };
    assert_eq!((needed(0, 5), needed(0b01, 5)), ((2, 2), (1, 1)));
    assert_eq!(needed(0b01, 4), (2, 2), "the only one left lacks a part");
    assert_eq!(needed(0b11, 5), (0, 0));
    assert_eq!(with(EndMutation::NeedTheDead, || needed(0b01, 5)), (2, 2));
}

/// The counter-example of the mutation Y: a ballot drops a value, since a member whose copy it needs has not voted for it. When that member
/// dies the votes stay what they are, so the value is not decided later: decisions know nothing of the dead.
#[test]
fn what_was_dropped_is_not_decided_later() {
    let view = view(5, &[(MAJORITY, 0b0_0011)]);
    let first = proposal(&value(&view, 0b1_1111, &[5]), &[2]);
    let votes = [
        Some(vote(ballot(1, 0), &first)),
        None,
        Some(vote(ballot(1, 0), &first)),
        Some(vote(ballot(1, 0), &first)),
        None,
    ];
    let answers = voted(&votes);
    let promised: EndAnswers<'_> = [1, 2, 3].into_iter().map(|rank| (rank, &answers[rank])).collect();
    assert_eq!(taken_over(&context(&view, 2, 0, &nowhere), &promised), None);
    let cast: RankedVotes<'_> =
        votes.iter().enumerate().filter_map(|(rank, vote)| Some((rank, vote.as_ref()?))).collect();
    assert_eq!(decided(&view, &cast), None, "three of five, and one copy of two");
}

/// [H14]
#[test]
fn a_member_votes_when_it_has_what_it_keeps() {
    let view = view(3, &[(MEMORY, 0b111), (MAJORITY, 0b111), (DURABLE, 0b011)]);
    let value = value(&view, 0b101, &[3, 5, 7]);
    let has = |own, counts: [u64; 3], is_restarted| {
        has_content(&view, &value, own, &counts.map(|count| vec![count]), is_restarted)
    };
    assert!(has(0, [0, 5, 7], false) && !has(0, [9, 4, 7], false) && !has(0, [9, 5, 6], false));
    assert!(has(1, [0, 0, 0], false), "it is not kept");
    assert!(has(2, [0, 5, 0], false), "it is not in the durable shard");
    assert!(has(0, [0, 0, 7], true) && !has(0, [0, 0, 0], true), "a restarted member needs its logs alone");
    assert!(with(EndMutation::VoteWithoutContent, || has(0, [0, 0, 0], false)));
}

/// A value that is decided is taken over by every later leader: whichever majority answers, whatever the others have voted for before.
#[test]
fn no_majority_misses_a_decision() {
    let broken = |mutation| with(mutation, || missed(4000));
    assert_eq!(missed(4000), 0);
    let rules = [
        EndMutation::IgnoreLiveVotes,
        EndMutation::IgnoreBallotVotes,
        EndMutation::TakeOverLowest,
        EndMutation::EndWithHalf,
    ];
    for mutation in rules {
        assert!(broken(mutation) > 0, "{mutation:?}");
    }
}

/// Returns in how many random cases a decision is missed by a majority of answers.
fn missed(cases: usize) -> usize {
    let mut state = 9_u64;
    let mut below = move |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let mut missed = 0;
    for _ in 0..cases {
        let members = 3 + below(3);
        let all = (1 << members) - 1;
        let kinds = [MEMORY, MAJORITY, DURABLE, DURABLE_MAJORITY];
        let any = |bits: usize| (bits as u64).max(1);
        let shards =
            [(kinds[below(4)], any(below(1 << members))), (kinds[below(4)], any(below(1 << members)))];
        let view = view(u32::try_from(members).unwrap_or(3), &shards);
        let stay = any(below(1 << members)) | 1 << below(members);
        let (chosen, other) = (value(&view, stay, &[5, 5]), value(&view, all, &[4, 4]));
        let need: Vec<usize> =
            (0..2).map(|shard| below(view.kept(&chosen, shard).len().min(2) + 1)).collect();
        let at = ballot(below(2) as u64, 2);
        let lower = [None, Some(vote(ballot(0, 1), &proposal(&other, &[0, 0])))];
        let cast: Vec<Option<EndVote>> = (0..members)
            .map(|_| {
                if below(3) > 0 { Some(vote(at, &proposal(&chosen, &need))) } else { lower[below(2)].clone() }
            })
            .collect();
        let votes: RankedVotes<'_> =
            cast.iter().enumerate().filter_map(|(rank, vote)| Some((rank, vote.as_ref()?))).collect();
        let is_decided = decided(&view, &votes).is_some_and(|vote| vote.ballot == at);
        let answers = voted(&cast);
        let enough = crate::ends::club::least_majority(&view);
        let promised: EndAnswers<'_> =
            (0..members).filter(|_| below(4) > 0).map(|rank| (rank, &answers[rank])).collect();
        if !is_decided || promised.len() < enough {
            continue;
        }
        let dead = set(below(1 << members) as u64);
        let context = EndContext { dead, ..context(&view, 0, 0, &nowhere) };
        let taken = taken_over(&context, &promised);
        missed += usize::from(taken.is_none_or(|taken| *taken.value != chosen));
    }
    missed
}
