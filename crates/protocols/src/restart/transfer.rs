//! Transfer of what a log lacks, from any process that has it (Derecho §3.4, "Total failures").

use std::collections::BTreeMap;

use squall_fabric::{Duration, Instant, NodeId};

use super::flushed_log::{FetchAnswer, FetchRequest};
use super::mutation;
use crate::coverage::{Point, reach};

/// Asks one process after the other for what is missing \[T17\].
///
/// **Law.** [`LogTransfer::poll`] says which process to ask for what is wanted; the driver hands in what has come of it
/// ([`LogTransfer::handle_answer`]), also if it comes late, and appends to its log only what that returns.
///
/// - One request is under way. Only its answer counts, and only until its time is over: a second answer to the same question would double
///   what is in the log.
/// - A process that gave nothing of use, or no answer in time, is left alone for a while, as long as there are others: else each round
///   would wait for it again.
/// - When none was of use, there is a pause, and then all are asked again.
#[derive(Clone, Debug)]
pub struct LogTransfer {
    settings: TransferSettings,
    under_way: Option<(NodeId, FetchRequest, Instant)>,
    /// The process that was asked last.
    last: Option<NodeId>,
    /// Processes that were of no use, and until when they are left alone.
    avoided: BTreeMap<NodeId, Instant>,
    not_before: Instant,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSettings {
    /// For an answer, or for the next part of one.
    pub answer: Duration,
    /// To wait when no process was of use.
    pub pause: Duration,
    /// To leave a process alone that was of no use, as long as there are others.
    pub avoid: Duration,
}

impl LogTransfer {
    /// A transfer that has asked no process yet.
    #[must_use]
    pub const fn new(settings: TransferSettings) -> Self {
        let not_before = Instant::from_nanos(0);
        Self { settings, under_way: None, last: None, avoided: BTreeMap::new(), not_before }
    }

    /// The process to ask for `wanted`, of `providers` in ascending order.
    pub fn poll(
        &mut self,
        now: Instant,
        wanted: FetchRequest,
        providers: &[NodeId],
    ) -> Option<(NodeId, FetchRequest)> {
        self.note_silence(now);
        if self.under_way.is_some() || now < self.not_before || providers.is_empty() {
            return None;
        }
        self.avoided.retain(|_, until| now < *until);
        let mut of_use: Vec<NodeId> =
            providers.iter().copied().filter(|node| !self.avoided.contains_key(node)).collect();
        mutant!(AskUselessAgain => of_use = providers.to_vec());
        mutant!(AskOneProvider => of_use.retain(|node| *node == providers[0]));
        if of_use.is_empty() {
            self.avoided.clear();
            self.not_before = now + self.settings.pause;
            return None;
        }
        let provider = *of_use.iter().find(|node| Some(**node) > self.last).unwrap_or(&of_use[0]);
        self.last = Some(provider);
        self.under_way = Some((provider, wanted, now + self.settings.answer));
        Some((provider, wanted))
    }

    /// A part of the answer of a process has come, which is not whole yet: it has as long again for the next one.
    pub fn handle_part(&mut self, now: Instant, from: NodeId, request: FetchRequest) {
        if let Some((asked, wanted, until)) = &mut self.under_way
            && (*asked, *wanted) == (from, request)
        {
            *until = now + self.settings.answer;
        }
    }

    /// A process has answered; returns what is to be appended, if the request is still under way.
    pub fn handle_answer(
        &mut self,
        now: Instant,
        from: NodeId,
        request: FetchRequest,
        answer: FetchAnswer,
    ) -> Option<(FetchRequest, FetchAnswer)> {
        self.note_silence(now);
        mutant!(TakeLateAnswer if answer != FetchAnswer::Nothing => return Some((request, answer)));
        if !self.take_under_way(from, request) {
            reach(Point::FetchedTooLate);
            return None;
        }
        if answer == FetchAnswer::Nothing {
            reach(Point::FetchedNothing);
            self.avoided.insert(from, now + self.settings.avoid);
            return None;
        }
        Some((request, answer))
    }

    /// Whether this request to this process is under way, which is over then.
    pub(super) fn take_under_way(&mut self, from: NodeId, request: FetchRequest) -> bool {
        let is_same =
            |(asked, wanted, _): &mut (NodeId, FetchRequest, Instant)| (*asked, *wanted) == (from, request);
        self.under_way.take_if(is_same).is_some()
    }

    /// A process that has not answered in time is of no use.
    fn note_silence(&mut self, now: Instant) {
        mutant!(WaitForProvider => return);
        if let Some((from, ..)) = self.under_way.take_if(|(.., until)| now >= *until) {
            reach(Point::FetchUnanswered);
            self.avoided.insert(from, now + self.settings.avoid);
        }
    }

    /// When to poll again, while something is wanted.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.under_way.map_or(self.not_before, |(.., until)| until)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::super::mutation::{RestartMutation, with};
    use super::*;

    const WANTED: FetchRequest = FetchRequest::Records { shard: 0, view: 3, from: 1, to: 4 };
    const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(5)];
    const ANSWER: FetchAnswer = FetchAnswer::Records(4);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn transfer() -> LogTransfer {
        let [answer, pause, avoid] = [10, 20, 200].map(Duration::from_millis);
        LogTransfer::new(TransferSettings { answer, pause, avoid })
    }

    /// Node 1 does not answer, node 2 has nothing, node 5 has all: from then on only that one is asked, until the others have had their
    /// time.
    fn useless_ones_are_left_alone() {
        let mut transfer = transfer();
        let asks = |node: u32| Some((NodeId(node), WANTED));
        assert_eq!(transfer.poll(at(0), WANTED, &NODES), asks(1));
        assert_eq!((transfer.poll(at(9), WANTED, &NODES), transfer.next_deadline()), (None, at(10)));
        assert_eq!(transfer.poll(at(10), WANTED, &NODES), asks(2));
        assert_eq!(transfer.handle_answer(at(11), NodeId(2), WANTED, FetchAnswer::Nothing), None);
        for now in [11, 12, 205].map(at) {
            assert_eq!(transfer.poll(now, WANTED, &NODES), asks(5));
            assert_eq!(transfer.handle_answer(now, NodeId(5), WANTED, ANSWER), Some((WANTED, ANSWER)));
        }
        assert_eq!(transfer.poll(at(210), WANTED, &NODES), asks(1));
    }

    /// If none is of use, there is a pause, and then all are asked again.
    fn all_are_asked_again_after_a_pause() {
        let mut transfer = transfer();
        for node in NODES {
            assert_eq!(transfer.poll(at(1), WANTED, &NODES), Some((node, WANTED)));
            assert_eq!(transfer.handle_answer(at(1), node, WANTED, FetchAnswer::Nothing), None);
        }
        assert_eq!((transfer.poll(at(1), WANTED, &NODES), transfer.next_deadline()), (None, at(21)));
        assert_eq!(transfer.poll(at(21), WANTED, &NODES), Some((NodeId(1), WANTED)));
    }

    /// An answer that comes when its time is over does not count, and neither does a second one.
    fn late_answers_do_not_count() {
        let mut transfer = transfer();
        assert_eq!(transfer.poll(at(0), WANTED, &NODES), Some((NodeId(1), WANTED)));
        assert_eq!(transfer.handle_answer(at(10), NodeId(1), WANTED, ANSWER), None, "too late");
        assert_eq!(transfer.poll(at(10), WANTED, &NODES), Some((NodeId(2), WANTED)));
        assert_eq!(transfer.handle_answer(at(11), NodeId(1), WANTED, ANSWER), None, "of another");
        assert!(transfer.handle_answer(at(11), NodeId(2), WANTED, ANSWER).is_some());
        assert_eq!(transfer.handle_answer(at(11), NodeId(2), WANTED, ANSWER), None, "twice");
    }

    #[test]
    fn processes_are_asked_as_the_law_says() {
        useless_ones_are_left_alone();
        all_are_asked_again_after_a_pause();
        late_answers_do_not_count();
        let cases: [(RestartMutation, fn()); 4] = [
            (RestartMutation::AskUselessAgain, useless_ones_are_left_alone),
            (RestartMutation::AskOneProvider, useless_ones_are_left_alone),
            (RestartMutation::WaitForProvider, useless_ones_are_left_alone),
            (RestartMutation::TakeLateAnswer, late_answers_do_not_count),
        ];
        for (mutation, case) in cases {
            assert!(catch_unwind(|| with(mutation, case)).is_err(), "{mutation:?} is not caught");
        }
    }
}
