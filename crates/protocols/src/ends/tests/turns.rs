//! Tests of which member waits, follows, leads and proposes, and when (Derecho §3.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::{Duration, Instant};

use super::*;
use crate::ends::mutation::{EndMutation, with};
use crate::ends::{
    ClubGathering, EndReport, EndReports, EndSettings, Following, LeadDue, LeadTimer, RankedReports,
    RequestStage, WaitingInput, WaitingMember, WaitingStep, acknowledged, apart, club, first_suspects,
    hears_too_few, joins_ballots, may_receive, may_reply, may_wait, resigned,
};

const UNIT: Duration = Duration::from_millis(10);

const SETTINGS: EndSettings =
    EndSettings { silence: UNIT, gather: UNIT, patience: UNIT, lost_shard_after: None };

fn at(units: u64) -> Instant {
    Instant::from_nanos(units * 10_000_000)
}

/// [H1] [H3]
#[test]
fn members_that_wait_do_not_count_for_a_live_majority() {
    let view = view(5, &[]);
    assert!(!hears_too_few(&view, set(0b00111), set(0)) && hears_too_few(&view, set(0b00011), set(0)));
    let counts = || !hears_too_few(&view, set(0b01111), set(0b00011));
    assert!(!counts() && with(EndMutation::CountThoseThatWait, counts));
    assert_eq!(resigned(set(0b1), set(0b10)), set(0b11));
    assert_eq!(with(EndMutation::FollowWaitingLeader, || resigned(set(0b1), set(0b10))), set(0b1));
    assert!(joins_ballots(Some(ballot(1, 0))) && !joins_ballots(Some(Ballot::WAITS)) && !joins_ballots(None));
    let stays = || !joins_ballots(Some(ballot(1, 0)));
    assert!(with(EndMutation::FollowWaitingLeader, stays) && with(EndMutation::CountThoseThatWait, stays));
    assert!(may_wait(true) && !may_wait(false) && with(EndMutation::PromiseUnwedged, || may_wait(false)));
}

/// [D1] [H3]
#[test]
fn a_leader_proposes_when_all_that_stay_follow_it() {
    let following = |is_wedged, suspected, waits| Following { is_wedged, suspected: set(suspected), waits };
    assert!(following(true, 0b011, false).follows(2) && following(true, 0, true).follows(2));
    let early = following(true, 0b001, false);
    assert!(!early.follows(2) && !following(false, 0b011, false).follows(2));
    assert!(with(EndMutation::ProposeUnfollowed, || early.follows(2)));
    assert!(early.can_echo(1) && !early.can_echo(0) && !following(true, 0, true).can_echo(0));
}

/// [H6]
#[test]
fn a_club_hears_each_other() {
    let members = 5;
    let hears = |rank: usize| match rank {
        0 => set(0b01011),
        2 => set(0b11100),
        _ => RankSet::all(members),
    };
    // 0 does not hear 2 and 4; 2 does not hear 0 and 1: without 0 and 2 all hear each other, without 0 alone 1 and 2 do not.
    assert_eq!(apart(RankSet::all(members), hears).len(), 2);
    assert_eq!(with(EndMutation::KeepApart, || apart(RankSet::all(members), hears)), RankSet::EMPTY);
    let report = |rank| EndReport {
        answer: Arc::new(EndAnswer { hears: hears(rank), ..EndAnswer::default() }),
        ..EndReport::default()
    };
    let reports: Vec<EndReport> = (0..members).map(report).collect();
    let ranked: RankedReports<'_> = reports.iter().enumerate().collect();
    assert_eq!(club(&ranked, set(0b11010)), set(0b11010), "those that are silent are not in it");
    for graph in 0..1_u64 << 12 {
        // Four members: by member, the others that it hears.
        let hears =
            |rank: usize| set(graph >> (3 * rank) & 7).iter().map(|i| i + usize::from(i >= rank)).collect();
        let all = RankSet::all(4);
        let is_cover = |cover: RankSet| {
            (all - cover).iter().all(|rank| (all - cover).without(rank).is_subset(&hears(rank)))
        };
        let least = (0..16).map(set).filter(|cover| is_cover(*cover)).map(|cover| cover.len()).min();
        let found = apart(all, hears);
        assert!(is_cover(found) && Some(found.len()) == least, "{graph:b}");
    }
}

/// [H6]
#[test]
fn the_lowest_of_a_club_leads_first_and_the_others_after_it() {
    let view = view(4, &[]);
    let all = view.ranks();
    let due_of = |timer: &mut LeadTimer, now, living, own, club, seen| {
        timer.due(at(now), &SETTINGS, &ClubGathering { view: &view, living, own, club }, seen)
    };
    let due = |timer: &mut LeadTimer, now, own, club, seen| due_of(timer, now, all, own, club, seen);
    assert_eq!(due(&mut LeadTimer::default(), 0, 0, all, None), LeadDue::Now);
    assert_eq!(
        due(&mut LeadTimer::default(), 0, 0, all, Some(ballot(1, 2))),
        LeadDue::Now,
        "after others in vain"
    );
    let living = set(0b0111);
    assert_eq!(due_of(&mut LeadTimer::default(), 0, living, 0, living, None), LeadDue::Now, "one is dead");
    let mut timer = LeadTimer::default();
    assert_eq!(due(&mut timer, 0, 0, set(0b0011), None), LeadDue::Never);
    assert_eq!(due(&mut timer, 5, 0, set(0b0111), None), LeadDue::At(at(6)));
    assert_eq!(
        due(&mut timer, 6, 0, set(0b0111), Some(Ballot::WAITS)),
        LeadDue::At(at(7)),
        "a promise above what it has seen"
    );
    assert_eq!(due(&mut timer, 7, 0, set(0b0111), Some(Ballot::WAITS)), LeadDue::Now);
    let mut timer = LeadTimer::default();
    assert_eq!(due(&mut timer, 5, 0, set(0b0111), None), LeadDue::At(at(6)));
    assert_eq!(due(&mut timer, 6, 0, set(0b1011), None), LeadDue::At(at(7)), "another has come");
    let mut timer = LeadTimer::default();
    assert_eq!(due(&mut timer, 0, 2, all, Some(ballot(1, 0))), LeadDue::At(at(4)));
    timer.lead();
    assert_eq!(due(&mut timer, 0, 2, all, Some(ballot(1, 0))), LeadDue::At(at(7)), "patience doubles");
    assert_eq!(due(&mut timer, 0, 2, set(0b1011), None), LeadDue::Never, "it is not in the club");
    let half = || due(&mut LeadTimer::default(), 9, 0, set(0b0011), None) != LeadDue::Never;
    assert!(with(EndMutation::EndWithHalf, half));
}

/// [H4]
#[test]
fn an_older_report_replaces_no_newer_one() {
    let view = view(3, &[]);
    let mut reports = EndReports::default();
    let report = |order, view| Arc::new(EndReport { order, view, ..EndReport::default() });
    assert!(reports.take(at(0), NodeId(1), report((1, 4), Some(4))));
    assert!(!reports.take(at(1), NodeId(1), report((1, 3), Some(4))));
    assert!(reports.take(at(1), NodeId(1), report((2, 0), Some(4))), "a later start");
    assert!(reports.take(at(1), NodeId(2), report((1, 0), Some(3))));
    assert!(reports.take(at(1), NodeId(9), report((1, 0), Some(4))));
    let ranks = |reports: &EndReports| reports.in_view(&view).keys().copied().collect::<Vec<_>>();
    assert_eq!(ranks(&reports), [1], "another is in an earlier view, and one is no member");
    assert_eq!(with(EndMutation::CountOtherViews, || ranks(&reports)), [1, 2]);
    assert_eq!(with(EndMutation::CountStrangers, || ranks(&reports)), [1, 3]);
    assert_eq!(reports.heard(&view, at(1), UNIT), set(0b110));
    reports.hear(at(2), NodeId(2));
    assert_eq!(reports.heard(&view, at(2), UNIT), set(0b100));
    reports.forget(NodeId(2));
    assert!(reports.of(NodeId(2)).is_none() && reports.of(NodeId(9)).is_some());
}

/// [H2] [H5] [H15] [H21]
#[test]
fn nothing_of_another_view_and_nothing_after_the_wedge_counts() {
    assert!(may_receive(false, false) && !may_receive(true, false) && !may_receive(false, true));
    assert!(with(EndMutation::ReceiveAfterWedge, || may_receive(true, false)));
    assert!(with(EndMutation::UseLostPair, || may_receive(false, true)));
    assert_eq!((acknowledged(4, 4, 9), acknowledged(4, 3, 9)), (9, 0));
    assert_eq!(with(EndMutation::CountOldAcknowledgements, || acknowledged(4, 3, 9)), 9);
    assert_eq!(first_suspects(set(0b10)), RankSet::EMPTY);
    assert_eq!(with(EndMutation::KeepSuspects, || first_suspects(set(0b10))), set(0b10));
    assert!(may_reply(RequestStage::Delivered) && !may_reply(RequestStage::Received));
    assert!(with(EndMutation::ReplyAtReception, || may_reply(RequestStage::Received)));
}

/// Members that wait, with what the others can see of each.
struct Circle {
    view: EndingView,
    members: BTreeMap<usize, WaitingMember>,
    answers: BTreeMap<usize, EndAnswer>,
}

impl Circle {
    fn new(view: EndingView, present: u64, counts: &[u64]) -> Self {
        let members = set(present).iter().map(|rank| (rank, WaitingMember::default())).collect();
        let answer = |rank: usize| EndAnswer { hears: set(present), ..answer(&[counts[rank]]) };
        let answers = set(present).iter().map(|rank| (rank, answer(rank))).collect();
        let mut circle = Self { view, members, answers };
        circle.members.values_mut().for_each(|member| member.register.wait());
        circle
    }

    fn report(&self, rank: usize) -> EndReport {
        let member = &self.members[&rank];
        let vote = member.register.vote().cloned();
        EndReport {
            view: Some(self.view.number),
            waits: true,
            answer: Arc::new(EndAnswer { vote, ..self.answers[&rank].clone() }),
            promise: member.register.promise(),
            lead: member.lead().map(|lead| lead.ballot),
            proposal: member.lead().and_then(|lead| lead.proposal.clone()),
            ..EndReport::default()
        }
    }

    fn step(&mut self, rank: usize, now: u64, is_wedged: bool) -> WaitingStep {
        let reports: BTreeMap<usize, EndReport> =
            self.members.keys().map(|rank| (*rank, self.report(*rank))).collect();
        let ranked: RankedReports<'_> = reports.iter().map(|(rank, report)| (*rank, report)).collect();
        let everywhere = |members: &[Member]| vec![RankSet::all(members.len())];
        let input = WaitingInput {
            context: context(&self.view, rank, 0, &everywhere),
            now: at(now),
            settings: &SETTINGS,
            fresh: self.members.keys().copied().collect(),
            counts: &self.answers[&rank].counts,
            is_restarted: false,
            is_wedged,
        };
        self.members.get_mut(&rank).expect("it is there").step(&input, &ranked)
    }
}

/// Three of five members wait: the lowest leads when it has gathered, all promise and vote, and each that counts the votes finds the same.
#[test]
fn members_that_wait_end_their_view() {
    let mut circle = Circle::new(view(5, &[(MEMORY, 0b1_1111)]), 0b0_1110, &[9, 7, 6, 8, 9]);
    assert_eq!(circle.step(1, 0, true), WaitingStep::Nothing, "it gathers");
    assert_eq!(circle.step(2, 1, true), WaitingStep::Nothing, "it is not its turn");
    assert_eq!(circle.step(1, 1, false), WaitingStep::Nothing, "its counts are not final");
    let led = ballot(1, 1);
    assert_eq!(circle.step(1, 1, true), WaitingStep::Leads(led));
    assert_eq!(circle.step(1, 1, true), WaitingStep::Nothing, "no majority has promised");
    assert_eq!(circle.step(2, 1, false), WaitingStep::Nothing);
    assert_eq!(circle.step(2, 1, true), WaitingStep::Promised(led));
    assert_eq!(circle.step(3, 1, true), WaitingStep::Promised(led));
    assert_eq!(circle.step(1, 1, true), WaitingStep::Proposes);
    for rank in [1, 2, 3] {
        assert_eq!(circle.step(rank, 1, true), WaitingStep::Voted(led));
    }
    for rank in [1, 2, 3] {
        let WaitingStep::Decided(vote) = circle.step(rank, 1, true) else { panic!("it is decided") };
        let value = vote.proposal.value;
        assert_eq!((value.stay, &value.trims[..]), (set(0b0_1110), &[vec![6]][..]));
    }
}

/// A member that lacks what it would vote for fetches it first; one that knows of a later view votes no more.
#[test]
fn a_member_that_lacks_content_does_not_vote() {
    let mut circle = Circle::new(view(3, &[(MAJORITY, 0b111)]), 0b111, &[6, 6, 2]);
    assert!(matches!(circle.step(0, 0, true), WaitingStep::Leads(_)));
    for rank in [1, 2] {
        assert!(matches!(circle.step(rank, 0, true), WaitingStep::Promised(_)));
    }
    assert_eq!(circle.step(0, 0, true), WaitingStep::Proposes);
    let WaitingStep::Lacks(wanted) = circle.step(2, 0, true) else { panic!("it lacks a part") };
    assert_eq!(wanted.value.trims, [[6]]);
    circle.answers.get_mut(&2).expect("it is there").counts = vec![vec![6]];
    circle.members.get_mut(&1).expect("it is there").leave_behind();
    assert_eq!(circle.step(1, 0, true), WaitingStep::Nothing, "it is left behind [H17]");
    assert!(matches!(circle.step(2, 0, true), WaitingStep::Voted(_)));
    let votes = || {
        let mut member = WaitingMember::default();
        member.leave_behind();
        std::mem::swap(circle.members.get_mut(&1).expect("it is there"), &mut member);
        matches!(circle.step(1, 0, true), WaitingStep::Promised(_) | WaitingStep::Voted(_))
    };
    assert!(with(EndMutation::VoteLeftBehind, votes));
}
