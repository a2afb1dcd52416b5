//! A member gets what its log lacks of earlier views while its group runs (Derecho §3.4, persistent mode) \[T3\].
//!
//! A joiner's log begins with its first view, and a member that was away has a gap. A thread asks the other members for what is
//! missing, one piece after the other, until the log is whole, and ends. The joiner takes part in its group meanwhile: what is delivered there
//! does not wait for this.

use std::sync::Arc;
use std::time::Duration;

use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{FetchRequest, LogState, Register, RestartMessage};
use squall_transports::bootstrap::{Address, Asker, BootstrapPlan};

use super::fetch::{self, Fetched};
use super::wire::FetchCall;
use crate::durable::{BorrowedLog, LogBorrower, LogLender, LogRange, ProcessLog};
use crate::inquiry;
use crate::status::GroupStatus;

/// The thread of a member that fetches what its log lacks. It ends by itself, also when the member has ended.
pub(crate) struct BaseFetcher {
    log: LogBorrower,
    status: Arc<GroupStatus>,
    plan: BootstrapPlan,
    shards: Vec<SubgroupId>,
    /// What the log holds, with the view in which it was looked at: that reads a whole segment.
    state: Option<(u64, LogState)>,
    /// How many members have been asked in vain.
    in_vain: usize,
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
        let mut fetcher = Self { log, status, plan, shards, state: None, in_vain: 0 };
        let run = move || while fetcher.step() {};
        std::thread::Builder::new().name("squall base".into()).spawn(run).map(drop)
    }

    /// Fetches one piece; returns whether more is missing.
    fn step(&mut self) -> bool {
        let Some(log) = self.log.borrow().filter(|_| self.status.failure().is_none()) else { return false };
        // A joiner is in no view that is on its disk yet.
        let Some(register) = log.present().filter(|register| !register.view().members.is_empty()) else {
            drop(log);
            std::thread::sleep(PAUSE);
            return true;
        };
        let Some(request) = self.missing(&log, &register) else { return false };
        drop(log);
        let providers = self.providers(&register);
        let fetched = match providers.get(self.in_vain % providers.len().max(1)) {
            Some(address) => fetch::fetch(&self.plan, address, fetch::call_of(register.group, request)),
            None => Fetched::Nothing,
        };
        let Some(log) = self.log.borrow() else { return false };
        if self.take(log, request, fetched) {
            self.in_vain = 0;
        } else {
            self.in_vain += 1;
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// What the log lacks first of the views before the present one.
    fn missing(&mut self, log: &ProcessLog, register: &Register) -> Option<FetchRequest> {
        let number = register.view().number;
        let mut state = match self.state.take() {
            Some((view, state)) if view == number => state,
            _ => {
                log.look();
                log.state(&self.shards)
            }
        };
        state.cut(&register.record.chain);
        let mut own = register.view().shards_of(register.node);
        let missing = own.find_map(|shard| state.missing_base(shard, &register.record));
        self.state = Some((number, state));
        missing
    }

    /// Where the other members of the view listen.
    fn providers(&self, register: &Register) -> Vec<Address> {
        let roster = self.status.roster();
        let others = register.view().members.iter().filter(|node| **node != register.node);
        others.filter_map(|node| roster.get(node).cloned()).collect()
    }

    /// Appends what has come; returns whether it is of use.
    fn take(&mut self, log: BorrowedLog, request: FetchRequest, fetched: Fetched) -> bool {
        match (request, fetched) {
            (FetchRequest::Records { shard, view, from, .. }, Fetched::Records(count, records)) => {
                let range = LogRange { subgroup: self.shards[shard], view, from, to: count };
                // If the log has failed, the member leaves and says why.
                let is_appended = log.append_fetched(range, &records).is_ok();
                if let Some((_, state)) = self.state.as_mut().filter(|_| is_appended) {
                    state.raise(shard, view, count);
                }
                is_appended
            }
            (_, Fetched::Views(message)) => match RestartMessage::decode(&message, self.shards.len()) {
                Ok(RestartMessage::Views(record)) => {
                    let first =
                        |log: &ProcessLog| log.present().map(|register| register.record.chain.first());
                    let before = first(&log);
                    log.offer_earlier(record.chain);
                    drop(log);
                    // The polling thread puts it into the register, which is written then.
                    (0..LOOKS_MAX).any(|_| {
                        std::thread::sleep(LOOK);
                        self.log.borrow().is_none_or(|log| first(&log) != before)
                    })
                }
                _ => false,
            },
            _ => false,
        }
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
/// Before the next member is asked.
const PAUSE: Duration = Duration::from_millis(200);
/// Between looks whether the register is on the disk, and how many.
const LOOK: Duration = Duration::from_millis(5);
const LOOKS_MAX: u32 = 400;
