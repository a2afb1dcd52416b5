//! How a member of a running view gets what its log lacks of earlier views (Derecho §3.4, "Total failures") \[T3\] \[T17\].
//!
//! A joiner's log begins with its first view, and a member that was away has a gap. Other members have what is missing, but any of them
//! may die while it is asked, answer late or never, or have a log that it cannot read.

use squall_fabric::{Duration, Instant, NodeId};

use super::flushed_log::{FetchAnswer, FetchRequest, LogState};
use super::register::Register;
use super::transfer::{LogTransfer, TransferSettings};

/// The choice of the members that a member asks for what its log lacks \[T3\].
///
/// **Law.** The driver calls [`BaseTransfer::poll`] when something has changed, and when the time has come that it names. It sends the
/// request, or waits, or ends. It hands in what has come ([`BaseTransfer::handle_answer`], [`BaseTransfer::handle_trims`]), also when it
/// has come late, and appends to its log only what that returns. The processes are chosen as [`LogTransfer`] says.
#[derive(Clone, Debug)]
pub struct BaseTransfer {
    transfer: LogTransfer,
    /// How long the register may take to come to the disk.
    register: Duration,
    /// The first view of the list of ended views that does not go far enough, and until when a longer one may come to the disk.
    trims: Option<(u64, Instant)>,
    /// The present view.
    view: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseStep {
    /// To ask a process.
    Fetch {
        /// The process.
        from: NodeId,
        /// For what.
        request: FetchRequest,
    },
    /// To wait for an answer or for another register, until this time at most.
    Wait(Instant),
    /// Nothing is missing.
    Whole,
}

impl BaseTransfer {
    /// A transfer that has asked no process yet; a register may take `register` to come to the disk.
    #[must_use]
    pub const fn new(settings: TransferSettings, register: Duration) -> Self {
        Self { transfer: LogTransfer::new(settings), register, trims: None, view: 0 }
    }

    /// What to do next for a log that is `log`, with this register and these other processes, in ascending order.
    pub fn poll(&mut self, now: Instant, register: &Register, log: &LogState, others: &[NodeId]) -> BaseStep {
        self.view = register.view().number;
        let mut own = register.view().shards_of(register.node);
        let Some(wanted) = own.find_map(|shard| log.missing_base(shard, &register.record)) else {
            return BaseStep::Whole;
        };
        let first = register.record.chain.first();
        self.trims = self.trims.filter(|(shorter, until)| *shorter == first && now < *until);
        if let Some((_, until)) = self.trims {
            return BaseStep::Wait(until);
        }
        match self.transfer.poll(now, wanted, others) {
            Some((from, request)) => BaseStep::Fetch { from, request },
            None => BaseStep::Wait(self.transfer.next_deadline()),
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
        self.transfer.handle_answer(now, from, request, request.checked(answer, self.view))
    }

    /// A part of an answer has come, which is not whole yet.
    pub fn handle_part(&mut self, now: Instant, from: NodeId, request: FetchRequest) {
        self.transfer.handle_part(now, from, request);
    }

    /// A process has answered how earlier views have ended, which has to be in the register before its records count.
    pub fn handle_trims(&mut self, now: Instant, from: NodeId, request: FetchRequest, register: &Register) {
        if self.transfer.take_under_way(from, request) {
            self.trims = Some((register.record.chain.first(), now + self.register));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::register::ViewRecord;
    use super::super::register::tests::{end, view};
    use super::super::view_chain::ViewChain;
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// A member of view 2, before which five messages of view 0 count.
    fn register() -> Register {
        let first = ViewRecord { view: view(0, &[0, 1]), chain: ViewChain::default() };
        let record = first.next(&end(5, view(1, &[0, 1]))).next(&end(0, view(2, &[0, 1])));
        Register { record, ..Register::new(1, NodeId(0), view(2, &[0, 1])) }
    }

    fn transfer() -> BaseTransfer {
        let [answer, pause, avoid, register] = [10, 20, 200, 50].map(Duration::from_millis);
        BaseTransfer::new(TransferSettings { answer, pause, avoid }, register)
    }

    const OTHERS: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn a_member_asks_until_its_log_is_whole() {
        let (mut transfer, register, mut log) = (transfer(), register(), LogState::new(1));
        for count in 1..=5 {
            assert_eq!(log.lacking(&register.record.chain), 6 - count);
            let step = transfer.poll(at(0), &register, &log, &OTHERS);
            let BaseStep::Fetch { from, request } = step else { panic!("{step:?}") };
            assert_eq!(request, FetchRequest::Records { shard: 0, view: 0, from: count - 1, to: 5 });
            let answer = FetchAnswer::Records(count);
            assert_eq!(transfer.handle_answer(at(0), from, request, answer), Some((request, answer)));
            log.raise(0, 0, count);
        }
        assert_eq!(transfer.poll(at(0), &register, &log, &OTHERS), BaseStep::Whole);
        assert_eq!(log.lacking(&register.record.chain), 0);
    }

    /// A process that does not know how earlier views have ended waits until that is on its disk, and not for longer.
    #[test]
    fn trims_come_to_the_disk_first() {
        let (mut transfer, mut register, log) = (transfer(), register(), LogState::new(1));
        let longer = register.clone();
        register.record.chain.forget_before(1);
        let step = transfer.poll(at(0), &register, &log, &OTHERS);
        let BaseStep::Fetch { from, request } = step else { panic!("{step:?}") };
        transfer.handle_trims(at(1), from, request, &register);
        assert_eq!(transfer.poll(at(2), &register, &log, &OTHERS), BaseStep::Wait(at(51)));
        let mut again = transfer.clone();
        assert!(
            matches!(transfer.poll(at(3), &longer, &log, &OTHERS), BaseStep::Fetch { .. }),
            "it is there"
        );
        assert!(
            matches!(again.poll(at(51), &register, &log, &OTHERS), BaseStep::Fetch { .. }),
            "it does not come"
        );
    }
}
