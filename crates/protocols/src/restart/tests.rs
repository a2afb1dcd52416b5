//! Rules that a simulation needs several rare events in a row to break, each in the one decision that it is about (Derecho §3.4,
//! "Total failures").

use squall_fabric::{Duration, Instant, NodeId};

use super::mutation::{RestartMutation, with};
use super::register::tests::view;
use super::{
    Ballot, DurablePlacement, DurableView, EndOrigin, FetchRequest, LogState, Register, RestartAction,
    RestartMessage, RestartReport, RestartSettings, Restarter, ShardChange, ViewEnd, ViewRecord, Vote,
};
use crate::membership::RankSet;

/// One process, whose disk is fast, and what it has done.
struct Bench {
    restarter: Restarter,
    now: Instant,
    written: Vec<Register>,
    reports: Vec<RestartReport>,
    fetched: Vec<FetchRequest>,
    /// The view that it has entered.
    entered: Option<ViewRecord>,
    /// Writes of the register take longer than the test.
    is_disk_slow: bool,
}

impl Bench {
    fn new(node: u32, view: DurableView, is_damaged: bool) -> Self {
        let log = LogState::new(view.shards.len());
        Self::with(Register::new(1, NodeId(node), view), log, is_damaged)
    }

    fn with(register: Register, log: LogState, is_damaged: bool) -> Self {
        Self::expecting(register, log, is_damaged, 0)
    }

    /// A process that expects to hear `others` others.
    fn expecting(register: Register, log: LogState, is_damaged: bool, others: usize) -> Self {
        let millis = Duration::from_millis;
        let settings = RestartSettings {
            report_every: millis(10),
            silence: millis(1_000),
            gather: millis(10),
            patience: millis(20),
            fetch: millis(10),
            avoid: millis(10),
            base: Duration::from_millis(1),
        };
        let shards = log.shards.len();
        let placement = DurablePlacement::new(move |members| vec![RankSet::all(members.len()); shards]);
        let now = Instant::from_nanos(0);
        let mut restarter = Restarter::new(settings, placement, register, log, is_damaged, now);
        restarter.expect_others(others);
        let (written, reports, fetched) = (Vec::new(), Vec::new(), Vec::new());
        let mut bench =
            Self { restarter, now, written, reports, fetched, entered: None, is_disk_slow: false };
        bench.drive();
        bench
    }

    fn drive(&mut self) {
        while let Some(action) = self.restarter.poll_action(self.now) {
            match action {
                RestartAction::WriteRegister(register) => {
                    self.written.push(*register);
                    if !self.is_disk_slow {
                        self.restarter.handle_register_written();
                    }
                }
                RestartAction::FlushLog => self.restarter.handle_log_flushed(),
                RestartAction::Broadcast(report) => self.reports.push(*report),
                RestartAction::Fetch { request, .. } => self.fetched.push(request),
                RestartAction::Enter(record) => self.entered = Some(*record),
                _ => {}
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.drive();
    }

    fn hear(&mut self, from: u32, report: &RestartReport) {
        let message = RestartMessage::Report(Box::new(report.clone()));
        self.restarter.handle_message(self.now, NodeId(from), message);
        self.drive();
    }

    fn lead(&self) -> Option<Ballot> {
        self.reports.last().and_then(|report| report.lead)
    }

    /// What node 0 proposes when these have answered, each with a vote; the other members are away.
    fn proposal(view: DurableView, answers: &[(u32, Option<Vote>)]) -> ViewEnd {
        Self::new(0, view.clone(), false).proposes(&view, answers)
    }

    fn proposes(self, view: &DurableView, answers: &[(u32, Option<Vote>)]) -> ViewEnd {
        let mut bench = self;
        answers.iter().for_each(|(node, _)| bench.hear(*node, &report(view, 1)));
        bench.pass(10);
        let promise = bench.lead();
        assert!(promise.is_some(), "a quorum is here");
        for (node, vote) in answers {
            let answer = RestartReport { promise, vote: vote.clone(), ..report(view, 2) };
            bench.hear(*node, &answer);
        }
        bench.reports.last().and_then(|report| report.proposal.clone()).expect("all have answered")
    }
}

/// A member of `view` that has nothing in its log.
fn report(view: &DurableView, order: u64) -> RestartReport {
    let mut register = Register::new(1, NodeId(0), view.clone());
    register.start(false);
    let shards = view.shards.len();
    RestartReport {
        counts: vec![0; shards],
        whole: vec![true; shards],
        ..RestartReport::of(order, &register)
    }
}

fn vote(ballot: Ballot, next: &[u32], shards: usize, origin: EndOrigin) -> Vote {
    let next = DurableView { shards: vec![RankSet::of(0); shards], ..view(1, next) };
    Vote { ballot, end: ViewEnd { trims: vec![0; shards], next, origin } }
}

/// Five members, two of them away: each of two votes may have been decided \[T14\].
#[test]
fn the_vote_of_the_highest_ballot_is_adopted() {
    let earlier = vote(Ballot::live(0), &[0, 1, 2, 3, 4], 1, EndOrigin::Live);
    let later = vote(Ballot { round: 1, place: 3 }, &[2, 3, 4], 1, EndOrigin::Restart);
    let answers = [(1, Some(earlier.clone())), (2, Some(later.clone()))];
    let proposal = || Bench::proposal(view(0, &[0, 1, 2, 3, 4]), &answers);
    assert_eq!(proposal(), later.end);
    assert_eq!(with(RestartMutation::AdoptLowest, proposal), earlier.end);
}

/// Both members of shard 1 have answered without the vote, and the end keeps them. A live leader suspects them, and decides with the
/// two that are away; a restart would have needed their acceptances \[T14\].
#[test]
fn a_live_decision_needs_no_copies() {
    let present = DurableView {
        shards: [0b11111, 0b00011].map(RankSet::from_bits).to_vec(),
        ..view(0, &[0, 1, 2, 3, 4])
    };
    let proposal = |origin| {
        let vote = vote(Ballot::live(2), &[0, 1, 2, 3, 4], 2, origin);
        (Bench::proposal(present.clone(), &[(1, None), (2, Some(vote.clone()))]), vote.end)
    };
    let adopts = |origin| {
        let (proposed, voted) = proposal(origin);
        proposed == voted
    };
    assert!(adopts(EndOrigin::Live));
    assert!(!adopts(EndOrigin::Restart));
    assert!(!with(RestartMutation::PresumeCopies, || adopts(EndOrigin::Live)));
    assert!(with(RestartMutation::AdoptAny, || adopts(EndOrigin::Restart)));
}

/// Two of four may end the view at the same time as the two others \[T13\].
#[test]
fn half_of_the_members_are_no_quorum() {
    let leads = || {
        let present = view(0, &[0, 1, 2, 3]);
        let mut bench = Bench::new(0, present.clone(), false);
        bench.hear(1, &report(&present, 1));
        bench.pass(500);
        bench.lead().is_some()
    };
    assert!(!leads());
    assert!(with(RestartMutation::RestartWithHalf, leads));
}

/// Where all logs of a shard that are here are damaged, none says what was delivered \[T13\].
#[test]
fn damaged_logs_alone_do_not_restart() {
    let leads = |damaged: [bool; 2]| {
        let present = view(0, &[0, 1]);
        let mut bench = Bench::new(0, present.clone(), damaged[0]);
        bench.hear(1, &RestartReport { is_damaged: damaged[1], ..report(&present, 1) });
        bench.pass(500);
        bench.lead().is_some()
    };
    assert!(leads([true, false]) && leads([false, true]));
    assert!(!leads([true, true]));
    assert!(with(RestartMutation::TrustDamaged, || leads([true, true])));
}

/// What is shown as promised is what is found after a crash \[T12\].
#[test]
fn a_promise_that_is_shown_is_on_the_disk() {
    let is_kept = || {
        let present = view(0, &[0, 1, 2]);
        let mut bench = Bench::new(1, present.clone(), false);
        let ballot = Ballot { round: 4, place: 0 };
        let lead = RestartReport { promise: Some(ballot), lead: Some(ballot), ..report(&present, 1) };
        bench.hear(0, &lead);
        assert_eq!(bench.reports.last().and_then(|report| report.promise), Some(ballot));
        bench.written.last().and_then(|register| register.promise) == Some(ballot)
    };
    assert!(is_kept());
    assert!(!with(RestartMutation::ForgetPromise, is_kept));
}

/// A leader that has died behind its own promise leads again, and with a higher ballot \[T11\].
#[test]
fn a_promise_without_a_leader_is_led_over() {
    let leads = || {
        let present = view(0, &[0, 1, 2]);
        let mut bench = Bench::new(1, present.clone(), false);
        let promise = Some(Ballot { round: 7, place: 0 });
        bench.hear(2, &RestartReport { promise, ..report(&present, 1) });
        bench.pass(500);
        bench.lead()
    };
    assert_eq!(leads(), Some(Ballot { round: 8, place: 1 }));
    assert_eq!(with(RestartMutation::WaitForDeadLeader, leads), None);
}

/// Members that are no members of the view do not make a quorum \[T13\].
#[test]
fn outsiders_do_not_count() {
    let leads = || {
        let present = view(0, &[0, 1, 2, 3, 4]);
        let mut bench = Bench::new(0, present.clone(), false);
        [1, 8, 9].iter().for_each(|node| bench.hear(*node, &report(&present, 1)));
        bench.pass(500);
        bench.lead().is_some()
    };
    assert!(!leads());
    assert!(with(RestartMutation::CountOutsiders, leads));
    assert!(with(RestartMutation::RestartWithTwo, leads));
}

/// The lowest member is here and never leads, perhaps because it does not hear enough of the others \[T11\].
#[test]
fn another_member_leads_after_a_time() {
    let leads = || {
        let present = view(0, &[0, 1, 2]);
        let mut bench = Bench::new(1, present.clone(), false);
        bench.hear(0, &report(&present, 1));
        bench.hear(2, &report(&present, 1));
        bench.pass(15);
        assert_eq!(bench.lead(), None, "it is the turn of node 0");
        bench.pass(500);
        bench.lead().is_some()
    };
    assert!(leads());
    assert!(!with(RestartMutation::LeadByLowestOnly, leads));
}

/// The members that are absent have no turn, however many they are: of two that are present, the second one leads after its own \[T11\].
#[test]
fn absent_members_have_no_turn() {
    let nodes: Vec<u32> = (0..300).collect();
    let present = view(0, &nodes);
    let mut bench = Bench::new(150, present.clone(), false);
    (149..300).filter(|node| *node != 150).for_each(|node| bench.hear(node, &report(&present, 1)));
    bench.pass(45);
    assert_eq!(bench.lead(), None, "it is the turn of node 149");
    bench.pass(10);
    assert!(bench.lead().is_some());
}

/// A member accepts what its disk has; what it lacks, it fetches first \[T15\] \[T17\].
#[test]
fn nothing_is_accepted_that_is_not_here() {
    let accepts = || {
        let present = view(0, &[0, 1, 2]);
        let mut bench = Bench::new(1, present.clone(), false);
        let ballot = Ballot { round: 1, place: 0 };
        let mut end = vote(ballot, &[0, 1, 2], 1, EndOrigin::Restart).end;
        end.trims = vec![3];
        let lead = RestartReport { promise: Some(ballot), lead: Some(ballot), ..report(&present, 1) };
        bench.hear(0, &RestartReport { proposal: Some(end), ..lead });
        (bench.fetched.clone(), bench.written.last().is_some_and(|register| register.vote.is_some()))
    };
    let missing = FetchRequest::Records { shard: 0, view: 0, from: 0, to: 3 };
    assert_eq!(accepts(), (vec![missing], false));
    assert!(with(RestartMutation::AcceptBeforeTransfer, accepts).1);
}

/// An acceptance is written before it is shown \[T15\], and found after a crash \[T18\].
#[test]
fn an_acceptance_that_is_shown_is_on_the_disk() {
    let run = |is_written: bool| {
        let present = view(0, &[0, 1, 2]);
        let mut bench = Bench::new(1, present.clone(), false);
        let ballot = Ballot { round: 1, place: 0 };
        let end = vote(ballot, &[0, 1, 2], 1, EndOrigin::Restart).end;
        bench.is_disk_slow = !is_written;
        let lead = RestartReport { promise: Some(ballot), lead: Some(ballot), ..report(&present, 1) };
        bench.hear(0, &RestartReport { proposal: Some(end), ..lead });
        bench.pass(20);
        let is_shown = bench.reports.last().is_some_and(|report| report.vote.is_some());
        (is_shown, bench.written.last().is_some_and(|register| register.vote.is_some()))
    };
    assert_eq!((run(false).0, run(true)), (false, (true, true)));
    assert!(with(RestartMutation::ShowAcceptanceEarly, || run(false).0));
    assert!(!with(RestartMutation::ForgetAcceptance, || run(true).1));
}

/// A leader decides with a majority, and with two logs of each shard \[T16\].
#[test]
fn a_restart_is_decided_by_a_majority_with_two_logs_of_each_shard() {
    let decides_in = |present: &DurableView, accepting: &[u32]| {
        let mut bench = Bench::new(0, present.clone(), false);
        let all = [1, 2, 3, 4];
        all.iter().for_each(|node| bench.hear(*node, &report(present, 1)));
        let promise = bench.lead();
        all.iter().for_each(|node| bench.hear(*node, &RestartReport { promise, ..report(present, 2) }));
        let end = bench.reports.last().and_then(|report| report.proposal.clone()).expect("all have answered");
        let vote = promise.map(|ballot| Vote { ballot, end });
        let answer = RestartReport { promise, vote, ..report(present, 3) };
        accepting.iter().for_each(|node| bench.hear(*node, &answer));
        bench.written.last().is_some_and(|register| register.view().number == 1)
    };
    let present = DurableView {
        shards: [0b11111, 0b11000].map(RankSet::from_bits).to_vec(),
        ..view(0, &[0, 1, 2, 3, 4])
    };
    let decides = |accepting: &[u32]| decides_in(&present, accepting);
    assert!(decides(&[1, 2, 3, 4]) && decides(&[3, 4]));
    assert!(!decides(&[1, 2, 3]), "one log of shard 1");
    assert!(with(RestartMutation::DecideWithoutCopies, || decides(&[1, 2, 3])));
    assert!(!decides(&[3]) && !decides(&[]));
    // Two logs of shard 0, the only one of shard 1, and no majority.
    let few = || {
        let present = DurableView {
            shards: [0b11111, 0b10000].map(RankSet::from_bits).to_vec(),
            ..view(0, &[0, 1, 2, 3, 4])
        };
        decides_in(&present, &[4])
    };
    assert!(!few());
    assert!(with(RestartMutation::DecideByOneAcceptance, few));
}

/// A group that runs is joined, and nothing is restarted beside it \[T10\].
#[test]
fn no_restart_begins_beside_a_group_that_runs() {
    let present = view(0, &[0, 1, 2]);
    let mut bench = Bench::new(0, present.clone(), false);
    bench.hear(1, &report(&present, 1));
    bench.hear(2, &RestartReport { is_live: true, ..report(&present, 1) });
    bench.pass(500);
    assert_eq!(bench.lead(), None);
    bench.hear(1, &report(&present, 2));
    bench.pass(600);
    bench.pass(50);
    assert!(bench.lead().is_some(), "the member that was live is silent");
}

/// \[T21\] Two of three folders are older copies, from which the group has continued: it is not restarted with the third, nor joined by it.
#[test]
fn a_process_that_meets_another_history_goes_no_further() {
    let present = view(1, &[0, 1, 2]);
    let other = view(1, &[1, 2]);
    for is_live in [false, true] {
        let mut bench = Bench::new(0, present.clone(), false);
        bench.hear(1, &report(&present, 1));
        assert_eq!(bench.restarter.contradiction(), None);
        bench.hear(2, &RestartReport { is_live, ..report(&other, 1) });
        bench.pass(500);
        assert_eq!((bench.restarter.contradiction(), bench.lead()), (Some(NodeId(2)), None));
        assert_eq!(bench.entered, None);
    }
    // A later view does not make up for an earlier one that has ended otherwise.
    let ended = |count: u64, next: DurableView| {
        let mut register = Register::new(1, NodeId(0), view(0, &[0, 1, 2]));
        register.end_view(&ViewEnd { trims: vec![count], next, origin: EndOrigin::Restart });
        register
    };
    let mut later = ended(7, view(1, &[0, 1, 2]));
    later.end_view(&ViewEnd { trims: vec![0], next: view(2, &[0, 1, 2]), origin: EndOrigin::Restart });
    for (count, is_other) in [(7, false), (9, true)] {
        let mut bench = Bench::expecting(ended(count, view(1, &[0])), LogState::new(1), false, 1);
        bench.restarter.handle_message(
            bench.now,
            NodeId(1),
            RestartMessage::Views(Box::new(later.record.clone())),
        );
        bench.drive();
        assert_eq!(bench.restarter.contradiction().is_some(), is_other);
        assert_eq!(bench.entered.map(|record| record.view.number), (!is_other).then_some(2));
    }
}

/// \[T21\] A process that needs no other one to end its view waits for those that may know a later one.
#[test]
fn a_lone_member_waits_for_others_that_it_expects() {
    let alone = view(1, &[0]);
    let entered = |others: usize, after: u64| {
        let register = Register::new(1, NodeId(0), alone.clone());
        let mut bench = Bench::expecting(register, LogState::new(1), false, others);
        bench.pass(after);
        bench.pass(0);
        bench.entered.is_some()
    };
    assert!(entered(0, 0));
    assert!(!entered(2, 0) && entered(2, 10));
}

/// Two of three logs are lost, and a person accepts that.
#[test]
fn a_salvaged_log_restarts_alone() {
    let register = Register { tag: 5, ..Register::new(1, NodeId(1), view(0, &[0, 1, 2])) };
    let mut log = LogState::new(1);
    log.raise(0, 0, 40);
    let entered = |register: &Register| {
        let mut bench = Bench::with(register.clone(), log.clone(), false);
        bench.pass(500);
        bench.entered
    };
    assert_eq!(entered(&register), None);
    let salvaged = register.salvage(&log, 2, false).expect("it is a member").register;
    let record = entered(&salvaged).expect("it is a majority");
    assert_eq!(record.view.members, [NodeId(1)]);
    assert_eq!(record.chain.trim_of(0, 0), Some(40));
}

/// \[T22\] A shard that was added in the view that ends begins in the next one: nothing counts of what a log may have of it.
#[test]
fn an_added_shard_begins_in_the_next_view() {
    let present = DurableView { shards: vec![RankSet::all(3), RankSet::EMPTY], ..view(4, &[0, 1, 2]) };
    let mut log = LogState::new(2);
    (0..2).for_each(|shard| log.raise(shard, 4, 7));
    let register = Register::new(1, NodeId(0), present.clone());
    let mut bench = Bench::with(register.clone(), log.clone(), false);
    bench.restarter.add_shards(&[1]);
    let end = bench.proposes(&present, &[(1, None), (2, None)]);
    assert_eq!(end.next.shards, [RankSet::all(3); 2]);
    let next = register.record.next(&end);
    assert_eq!([0, 1].map(|shard| next.chain.trim_of(4, shard)), [Some(7), Some(0)]);
    assert_eq!([0, 1].map(|shard| next.chain.begun_again(shard)), [0, 5]);
    log.cut(&next.chain);
    assert_eq!([0, 1].map(|shard| log.shards[shard].count(4)), [7, 0]);
    // It is whole although its checkpoint of before does not count, and the list does not reach back.
    log.cover(1, super::LogStart::of_view(3));
    log.cut(&next.chain);
    assert!(log.is_whole(1, &next));
}

/// \[T22\] An end that was proposed with the set before may have been decided. The view that follows has no members of the added shard, which
/// would lose what is sent there: it is ended, and the next one is entered.
#[test]
fn a_view_without_the_members_of_a_shard_is_not_entered() {
    let mut before = Register::new(1, NodeId(0), view(0, &[0]));
    assert!(before.vote(vote(Ballot::live(0), &[0], 1, EndOrigin::Live)));
    let change = ShardChange::new(&["orders"], &["audit", "orders"]);
    let register = before.with_shards(&change, 2);
    let mut bench = Bench::with(register, LogState::new(2), false);
    bench.restarter.add_shards(&[0]);
    (0..20).for_each(|_| bench.pass(10));
    let numbers: Vec<u64> = bench.written.iter().map(|register| register.view().number).collect();
    assert!(numbers.contains(&1), "{numbers:?}");
    let ViewRecord { view, chain } = bench.entered.expect("it is alone");
    assert_eq!((view.number, view.shards), (2, vec![RankSet::of(0); 2]));
    assert_eq!([0, 1].map(|shard| chain.begun_again(shard)), [1, 0]);
    // A group that runs has begun the view: its layout is what counts.
    let waits = Register::new(
        1,
        NodeId(0),
        DurableView { shards: vec![RankSet::EMPTY; 2], ..DurableView::default() },
    );
    let mut joins = Bench::with(waits, LogState::new(2), false);
    let unplaced = DurableView { shards: vec![RankSet::EMPTY, RankSet::all(2)], ..self::view(3, &[0, 1]) };
    let live = RestartReport { is_live: true, counts: Vec::new(), whole: Vec::new(), ..report(&unplaced, 1) };
    joins.hear(1, &live);
    let record = ViewRecord { chain: super::ViewChain::new(3), view: unplaced };
    joins.restarter.handle_message(joins.now, NodeId(1), RestartMessage::Views(Box::new(record.clone())));
    joins.drive();
    assert_eq!(joins.entered, Some(record));
}
