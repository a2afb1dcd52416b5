//! Transfer of what a log lacks, from any process that has it (Derecho §3.4, "Total failures").

use squall_fabric::{Duration, Instant, NodeId};

use super::flushed_log::{FetchAnswer, FetchRequest};

/// Asks one process after the other for what is missing \[T17\].
///
/// **Law.** [`LogTransfer::poll`] says which process to ask for what is wanted; the driver hands in what has come of it
/// ([`LogTransfer::handle_answer`]), or nothing at all, in which case the next process is asked after a time. One request is under
/// way.
#[derive(Clone, Debug)]
pub struct LogTransfer {
    /// How long an answer may take.
    answer: Duration,
    /// How long to wait when no process had anything.
    pause: Duration,
    under_way: Option<(NodeId, FetchRequest, Instant)>,
    /// The process that was asked last.
    last: Option<NodeId>,
    /// Processes that have answered in a row without anything.
    in_vain: usize,
    not_before: Instant,
}

impl LogTransfer {
    /// A transfer that waits for an answer for the first time, and pauses for the second when no process had anything.
    #[must_use]
    pub const fn new(answer: Duration, pause: Duration) -> Self {
        Self { answer, pause, under_way: None, last: None, in_vain: 0, not_before: Instant::from_nanos(0) }
    }

    /// The process to ask for `wanted`, of `providers` in ascending order.
    pub fn poll(
        &mut self,
        now: Instant,
        wanted: FetchRequest,
        providers: &[NodeId],
    ) -> Option<(NodeId, FetchRequest)> {
        if self.under_way.is_some_and(|(.., until)| now >= until) {
            self.under_way = None;
            self.in_vain += 1;
        }
        if self.under_way.is_some() || now < self.not_before || providers.is_empty() {
            return None;
        }
        if self.in_vain >= providers.len() {
            (self.in_vain, self.not_before) = (0, now + self.pause);
            return None;
        }
        let after = |node: &&NodeId| Some(**node) > self.last;
        let provider = *providers.iter().find(after).unwrap_or(&providers[0]);
        self.last = Some(provider);
        self.under_way = Some((provider, wanted, now + self.answer));
        Some((provider, wanted))
    }

    /// A process has answered; returns what is to be appended, if the request is still under way.
    pub fn handle_answer(
        &mut self,
        from: NodeId,
        request: FetchRequest,
        answer: FetchAnswer,
    ) -> Option<(FetchRequest, FetchAnswer)> {
        let (asked, wanted, _) = self.under_way?;
        if (asked, wanted) != (from, request) {
            return None;
        }
        self.under_way = None;
        if answer == FetchAnswer::Nothing {
            self.in_vain += 1;
            return None;
        }
        self.in_vain = 0;
        Some((request, answer))
    }

    /// When to poll again, while something is wanted.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.under_way.map_or(self.not_before, |(.., until)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_asked_in_turn_until_one_has_it() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut transfer = LogTransfer::new(Duration::from_millis(10), Duration::from_millis(10));
        let wanted = FetchRequest::Records { shard: 0, view: 3, from: 1, to: 4 };
        let nodes = [1, 5].map(NodeId);
        assert_eq!(transfer.poll(at(0), wanted, &nodes), Some((NodeId(1), wanted)));
        assert_eq!(transfer.poll(at(9), wanted, &nodes), None);
        assert_eq!(transfer.handle_answer(NodeId(1), wanted, FetchAnswer::Nothing), None);
        assert_eq!(transfer.poll(at(9), wanted, &nodes), Some((NodeId(5), wanted)));
        assert_eq!(transfer.poll(at(19), wanted, &nodes), None, "both in vain: a pause");
        assert_eq!(transfer.poll(at(29), wanted, &nodes), Some((NodeId(1), wanted)));
        let answer = FetchAnswer::Records(4);
        assert_eq!(transfer.handle_answer(NodeId(5), wanted, answer), None, "too late");
        assert_eq!(transfer.handle_answer(NodeId(1), wanted, answer), Some((wanted, answer)));
    }
}
