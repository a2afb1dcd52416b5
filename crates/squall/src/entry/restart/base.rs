//! A member gets what its log lacks of earlier views while its group runs (Derecho §3.4, persistent mode) \[T3\].
//!
//! A joiner's log begins with its first view, and a member that was away has a gap. A thread asks the other members for what is missing,
//! one piece after the other, until the log is whole, and ends. Which member is asked when, the core decides ([`BaseTransfer`]); each
//! question has a thread of its own, so that a member that hangs delays no other one. The joiner takes part in its group meanwhile: what
//! is delivered there does not wait for this.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use squall_fabric::{Instant, NodeId};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{
    BaseStep, BaseTransfer, FetchAnswer, FetchRequest, LogStart, LogState, Register, RestartMessage,
    RestartSettings, TransferSettings, ViewChain,
};
use squall_transports::bootstrap::{Asker, BootstrapPlan};

use super::fetch::{self, Fetched};
use crate::durable::{LogBorrower, LogLender, LogRange, StoredRecord};
use crate::operate::calls::FetchCall;
use crate::operate::inquiry;
use crate::status::GroupStatus;

/// The thread of a member that fetches what its log lacks. It ends by itself, also when the member has ended.
pub(crate) struct BaseFetcher {
    log: LogBorrower,
    status: Arc<GroupStatus>,
    plan: BootstrapPlan,
    shards: Vec<SubgroupId>,
    /// What the log holds, with the view in which it was looked at: that reads a whole segment.
    state: Option<(u64, LogState)>,
    transfer: BaseTransfer,
    /// When the core's clock began.
    begun: std::time::Instant,
    sender: Sender<FetchedPart>,
    parts: Receiver<FetchedPart>,
}

/// What has come of a request, or has not.
struct FetchedPart {
    from: NodeId,
    request: FetchRequest,
    /// None if more of it is to come.
    fetched: Option<Fetched>,
}

impl BaseFetcher {
    /// Starts the thread.
    pub(crate) fn start(
        log: &LogLender,
        status: &Arc<GroupStatus>,
        plan: BootstrapPlan,
        shards: Vec<SubgroupId>,
    ) -> std::io::Result<()> {
        let (log, status) = (log.borrower(), Arc::clone(status));
        let RestartSettings { fetch: answer, avoid, .. } = RestartSettings::DEFAULT;
        let transfer = BaseTransfer::new(TransferSettings { answer, pause: PAUSE, avoid }, REGISTER_TIMEOUT);
        let (begun, (sender, parts)) = (std::time::Instant::now(), channel());
        let mut fetcher = Self { log, status, plan, shards, state: None, transfer, begun, sender, parts };
        Builder::new().name("squall base".into()).spawn(move || while fetcher.step().is_some() {}).map(drop)
    }

    fn now(&self) -> Instant {
        Instant::default() + self.begun.elapsed()
    }

    /// Does what is next, and waits for what comes; none when the log is whole, or the member has ended.
    fn step(&mut self) -> Option<()> {
        let log = self.log.borrow().filter(|_| self.status.failure().is_none())?;
        // A joiner is in no view that is on its disk yet.
        let register = log.present().filter(|register| !register.view().members.is_empty());
        let mut wait = LOOK;
        if let Some(register) = register {
            let number = register.view().number;
            let (_, mut state) = self.state.take().filter(|(view, _)| *view == number).unwrap_or_else(|| {
                log.look();
                (number, log.state(&self.shards))
            });
            // The own checkpoints make earlier records superfluous.
            let begins = self.shards.iter().map(|subgroup| log.begin_of(*subgroup));
            begins.enumerate().for_each(|(shard, begin)| state.cover(shard, begin));
            state.cut(&register.record.chain);
            log.note_missing(state.lacking(&register.record.chain));
            let others = self.others(&register);
            let now = self.now();
            let step = self.transfer.poll(now, &register, &state, &others);
            self.state = Some((number, state));
            if step == BaseStep::Whole {
                log.note_whole();
            }
            drop(log);
            match step {
                BaseStep::Whole => return None,
                BaseStep::Fetch { from, request } => self.ask(from, &register, request),
                BaseStep::Wait(until) => wait = wait.min(until.since(now)).max(LEAST_WAIT),
            }
        } else {
            drop(log);
        }
        match self.parts.recv_timeout(wait) {
            Ok(part) => self.take(part),
            Err(_) => Some(()),
        }
    }

    /// The other members of the view, as far as it is known where they listen.
    fn others(&self, register: &Register) -> Vec<NodeId> {
        let roster = self.status.roster();
        let others = register.view().members.iter().copied().filter(|node| *node != register.node);
        let mut others: Vec<NodeId> = others.filter(|node| roster.contains_key(node)).collect();
        others.sort_unstable();
        others
    }

    fn ask(&self, from: NodeId, register: &Register, request: FetchRequest) {
        let (plan, sender) = (self.plan.clone(), self.sender.clone());
        let (address, call) =
            (self.status.roster().get(&from).cloned(), fetch::call_of(register.group, request));
        let run = move || {
            let part = |fetched| FetchedPart { from, request, fetched };
            let mut on_part = || sender.send(part(None)).is_ok();
            let fetch = |address| fetch::fetch(&plan, &address, call, &mut on_part);
            let fetched = address.map_or(Fetched::Nothing, fetch);
            // A member that has ended needs it no more.
            let _ = sender.send(part(Some(fetched)));
        };
        if Builder::new().name("squall fetches".into()).spawn(run).is_err() {
            let _ = self.sender.send(FetchedPart { from, request, fetched: Some(Fetched::Nothing) });
        }
    }

    /// Takes what has come; none if the member has ended, or its log has failed.
    fn take(&mut self, FetchedPart { from, request, fetched }: FetchedPart) -> Option<()> {
        let now = self.now();
        let nothing = FetchAnswer::Nothing;
        let Some(fetched) = fetched else {
            self.transfer.handle_part(now, from, request);
            return Some(());
        };
        match fetched {
            Fetched::Records(count, records) => {
                let answer = FetchAnswer::Records(count);
                let taken = self.transfer.handle_answer(now, from, request, answer);
                taken.map_or(Some(()), |_| self.append(request, count, &records))
            }
            Fetched::Checkpoint(start, blocks) => {
                let answer = FetchAnswer::Checkpoint(start);
                let taken = self.transfer.handle_answer(now, from, request, answer);
                taken.map_or(Some(()), |_| self.take_checkpoint(request.shard(), start, &blocks))
            }
            Fetched::Views(message) => {
                let log = self.log.borrow()?;
                let register = log.present()?;
                match self.earlier(&message, &register) {
                    Some(chain) => {
                        // The polling thread puts it into the register, which is written then.
                        log.offer_earlier(chain);
                        self.transfer.handle_trims(now, from, request, &register);
                    }
                    None => drop(self.transfer.handle_answer(now, from, request, nothing)),
                }
                Some(())
            }
            Fetched::Nothing => {
                self.transfer.handle_answer(now, from, request, nothing);
                Some(())
            }
        }
    }

    /// How views have ended that the register does not know.
    fn earlier(&self, message: &[u8], register: &Register) -> Option<ViewChain> {
        let Ok(RestartMessage::Views(record)) = RestartMessage::decode(message, self.shards.len()) else {
            return None;
        };
        (record.chain.first() < register.record.chain.first()).then_some(record.chain)
    }

    fn append(&mut self, request: FetchRequest, count: u64, records: &[StoredRecord]) -> Option<()> {
        let FetchRequest::Records { shard, view, from, .. } = request else { return Some(()) };
        let range = LogRange { subgroup: self.shards[shard], view, from, to: count };
        // If the log has failed, the member leaves and says why.
        self.log.borrow()?.append_fetched(range, records).ok()?;
        self.state.iter_mut().for_each(|(_, state)| state.raise(shard, view, count));
        Some(())
    }

    fn take_checkpoint(&mut self, shard: usize, start: LogStart, blocks: &[Vec<u8>]) -> Option<()> {
        self.log.borrow()?.take_checkpoint(self.shards[shard], start, blocks).ok()?;
        self.state.iter_mut().for_each(|(_, state)| state.cover(shard, start));
        Some(())
    }
}
/// Answers a process that lacks a part of the log, as a member of a view that runs.
pub(crate) fn answer_fetch(
    log: &LogLender,
    shards: &[SubgroupId],
    register: &Register,
    asker: Asker,
    call: FetchCall,
) {
    if log.loans() >= LOANS_MAX {
        return asker.wait("this member reads its log for others");
    }
    let (log, shards, register) = (log.borrower(), shards.to_vec(), register.clone());
    let run = move || {
        let Some(log) = log.borrow() else { return };
        if let Some(subgroup) = shards.get(call.shard as usize) {
            log.look_for(*subgroup, call.view, call.to);
        }
        let mut state = log.state(&shards);
        state.cut(&register.record.chain);
        let reply = fetch::answer(&log, &shards, &register, &state, call);
        drop(log);
        asker.answer(inquiry::write(&reply));
    };
    // An asker that was dropped with the thread's work asks again.
    let _ = std::thread::Builder::new().name("squall fetched".into()).spawn(run);
}

/// How many threads may use the log of a member: each reads 256 KiB at a time, and one may fetch what this member lacks.
const LOANS_MAX: usize = 4;
/// Before all members are asked again, if none was of use.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the register may take to come to the disk.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);
/// Between looks at the register, and at whether the member has ended.
const LOOK: Duration = Duration::from_millis(50);
/// A wait that is over has been seen.
const LEAST_WAIT: Duration = Duration::from_millis(1);
