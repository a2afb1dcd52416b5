//! Drives the core of a restart ([`Restarter`]) in a process that starts (Derecho §3.4, "Total failures").
//!
//! One thread, that of the caller, does everything but wait for others: it also writes the register and the log, since nothing can
//! continue before these are on the disk. A disk that hangs makes the process silent, and the others continue without it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use squall_fabric::mutex::lock;
use squall_fabric::{Instant, NodeId, Reminders};
use squall_protocols::group::{SubgroupId, SubgroupLayout, durable_view};
use squall_protocols::membership::{Member, View};
use squall_protocols::restart::{
    DurablePlacement, FetchAnswer, FetchRequest, LogState, Register, RestartAction, RestartMessage,
    RestartSettings, Restarter, ViewRecord,
};
use squall_transports::bootstrap::{Address, Asker, BootstrapError, BootstrapProgress, QUESTION_BYTES_MAX};
use squall_transports::log;

use super::exchange::{Exchange, ExchangeEvent, RESTARTS};
use super::fetch::{self, Fetched};
use crate::durable::{LogRange, ProcessLog};
use crate::error::{JoinError, LogFolderError};
use crate::operate::calls::{RestartAnswer, RestartCall, RestartProcess, is_heard};
use crate::operate::inquiry::{self, StatusQuestion};

/// How a restart ends for a process.
#[derive(Debug)]
pub(super) enum RestartEnd {
    /// It is a member of a view that begins.
    Enter(Box<ViewRecord>),
    /// Its group runs, and it is no member any more.
    Join,
}

/// The contacts without this process.
pub(super) struct OtherContacts {
    pub(super) addresses: Vec<Address>,
    /// Whether they are a quorum of all contacts.
    pub(super) are_quorum: bool,
}

/// The ranks in the configuration of the processes that are known.
type KnownRanks = Arc<Mutex<BTreeMap<NodeId, u64>>>;

/// The driver.
pub(super) struct RestartDriver<'a> {
    log: &'a ProcessLog,
    shards: &'a [SubgroupId],
    restarter: Restarter,
    exchange: Exchange,
    contacts: OtherContacts,
    own: RestartProcess,
    group: u64,
    layout: u64,
    /// The other processes that are known, the latest start of each.
    known: BTreeMap<NodeId, RestartProcess>,
    ranks: KnownRanks,
    /// The own report, encoded; empty before the first one.
    report: Vec<u8>,
    /// Messages for single processes.
    mail: BTreeMap<NodeId, Vec<u8>>,
    /// Processes that have not got the latest report or mail.
    due: Vec<Address>,
    /// When the core's clock began.
    begun: std::time::Instant,
    end: Option<RestartEnd>,
    /// What a process that cannot take part has said.
    obstacle: Option<&'static str>,
    /// Why the latest call to an address has failed.
    failures: BTreeMap<Address, BootstrapError>,
    /// How many members were reported last as present.
    shown: usize,
    /// Which failures of calls are reported.
    reminders: Reminders<(Address, String)>,
}

impl<'a> RestartDriver<'a> {
    /// A process with this log, which listens at `own`.
    pub(super) fn new(
        log: &'a ProcessLog,
        shards: &'a [SubgroupId],
        layout: Box<dyn SubgroupLayout + Send>,
        exchange: Exchange,
        contacts: OtherContacts,
        own: &Address,
    ) -> Self {
        let register = log.found_register().expect("a process that restarts has been in a view");
        let own = RestartProcess {
            node: register.node.0,
            starts: register.starts + 1,
            rank: register.tag,
            address: if is_usable(own) { own.to_string() } else { String::new() },
        };
        let ranks: KnownRanks = Arc::new(Mutex::new([(register.node, register.tag)].into()));
        let (group, digest) = (register.group, register.layout);
        let placement = placement(shards.to_vec(), layout, Arc::clone(&ranks));
        let (state, is_damaged) = (log.state(shards), log.is_damaged() && register.is_damaged());
        let settings = RestartSettings::DEFAULT;
        let now = Instant::default();
        let mut restarter = Restarter::new(settings, placement, register, state, is_damaged, now);
        restarter.add_shards(&log.added_shards());
        restarter.expect_others(contacts.addresses.len());
        Self {
            log,
            shards,
            restarter,
            exchange,
            contacts,
            own,
            group,
            layout: digest,
            known: BTreeMap::new(),
            ranks,
            report: Vec::new(),
            mail: BTreeMap::new(),
            due: Vec::new(),
            begun: std::time::Instant::now(),
            end: None,
            obstacle: None,
            failures: BTreeMap::new(),
            shown: 0,
            reminders: Reminders::default(),
        }
    }

    /// Runs until the process enters a view or is to join, at most until `deadline`.
    pub(super) fn run(
        &mut self,
        deadline: std::time::Instant,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Result<RestartEnd, JoinError> {
        let begun = std::time::Instant::now();
        loop {
            self.act()?;
            if let Some(node) = self.restarter.contradiction() {
                return Err(self.other_history(node));
            }
            if let Some(end) = self.end.take() {
                return Ok(end);
            }
            self.show(on_progress);
            if let Some(error) = self.refused() {
                return Err(error.into());
            }
            let now = std::time::Instant::now();
            if now >= deadline {
                return Err(self.explain(now - begun));
            }
            let due = self.restarter.next_deadline().map(|at| self.begun + at.since(Instant::default()));
            let until = due.map_or(deadline, |due| due.min(deadline));
            if let Some(event) = self.exchange.wait(until.saturating_duration_since(now)) {
                self.on_event(event)?;
            }
        }
    }

    /// Closes all connections; returns the register and the log as they are on the disk, and the processes that are known.
    pub(super) fn end(self) -> (Register, LogState, Vec<RestartProcess>) {
        let (register, log) = self.restarter.into_parts();
        (register.durable().clone(), log.durable().clone(), self.known.into_values().collect())
    }

    fn now(&self) -> Instant {
        Instant::default() + self.begun.elapsed()
    }

    /// Carries out the core's actions.
    fn act(&mut self) -> Result<(), JoinError> {
        while let Some(action) = self.restarter.poll_action(self.now()) {
            log::debug!(?action, "restart");
            match action {
                RestartAction::WriteRegister(register) => {
                    self.log.store_register(&register)?;
                    self.restarter.handle_register_written();
                }
                // What was fetched is flushed as it is appended.
                RestartAction::FlushLog => self.restarter.handle_log_flushed(),
                RestartAction::Fetch { from, request } => self.fetch(from, request)?,
                RestartAction::Broadcast(report) => {
                    self.report = RestartMessage::Report(report).encode(self.shards.len());
                    self.due = self.addresses();
                }
                RestartAction::Send(to, message) => {
                    // A later message says all that an earlier one did.
                    self.mail.insert(to, message.encode(self.shards.len()));
                    self.due.extend(self.address_of(to));
                }
                RestartAction::Join(_) => self.end = Some(RestartEnd::Join),
                RestartAction::Enter(record) => {
                    self.tell(&record);
                    self.end = Some(RestartEnd::Enter(record));
                }
            }
        }
        self.call()
    }

    /// Sends a view that begins to its other members, which would ask for it only with their next report.
    fn tell(&mut self, record: &ViewRecord) {
        let message = RestartMessage::Views(Box::new(record.clone())).encode(self.shards.len());
        let own = NodeId(self.own.node);
        for node in record.view.members.iter().copied().filter(|node| *node != own) {
            self.mail.insert(node, message.clone());
            self.due.extend(self.address_of(node));
        }
    }

    /// Calls the processes for which there is something.
    fn call(&mut self) -> Result<(), JoinError> {
        let mut waiting = Vec::new();
        for address in std::mem::take(&mut self.due) {
            let node = self.known.values().find(|known| known.address == address.to_string());
            let node = node.map(|known| NodeId(known.node));
            let call = self.own_call(node, MAIL_BYTES_MAX);
            if self.exchange.call(&address, || call)? {
                // What is longer goes with an answer: a process that lacks it asks.
                self.mail.retain(|to, mail| Some(*to) != node || mail.len() > MAIL_BYTES_MAX);
            } else if !waiting.contains(&address) {
                waiting.push(address);
            }
        }
        self.due = waiting;
        Ok(())
    }

    /// What this process has for another one, with mail up to a length.
    fn own_call(&self, to: Option<NodeId>, mail_bytes_max: usize) -> RestartCall {
        let mail = to.and_then(|to| self.mail.get(&to)).filter(|mail| mail.len() <= mail_bytes_max);
        let report = Some(&self.report).filter(|report| !report.is_empty());
        RestartCall {
            group: self.group,
            layout: self.layout,
            sender: self.own.clone(),
            others: self.known.values().cloned().collect(),
            messages: report.into_iter().chain(mail).cloned().collect(),
        }
    }

    /// The addresses of all other processes: of the contacts, and of those that are known.
    fn addresses(&self) -> Vec<Address> {
        let known = self.known.values().filter_map(|known| known.address.parse().ok());
        let mut all: Vec<Address> = self.contacts.addresses.iter().cloned().chain(known).collect();
        all.sort();
        all.dedup();
        all.retain(|address| address.to_string() != self.own.address);
        all
    }

    fn address_of(&self, node: NodeId) -> Option<Address> {
        self.known.get(&node)?.address.parse().ok()
    }

    fn on_event(&mut self, event: ExchangeEvent) -> Result<(), JoinError> {
        match event {
            ExchangeEvent::Asked(asker, question) => self.on_question(asker, &question)?,
            ExchangeEvent::Answered(address, answer) => {
                self.exchange.end_call(&address);
                self.failures.remove(&address);
                match answer {
                    Ok(RestartAnswer::Heard(call)) => self.on_call(*call, Some(&address)),
                    Ok(RestartAnswer::OtherGroup(true)) => {
                        let folder = self.log.folder().to_path_buf();
                        return Err(LogFolderError::OtherGroup { folder, records: self.log.records() }.into());
                    }
                    Ok(RestartAnswer::OtherGroup(false)) => self.obstacle = Some(OTHER_GROUP),
                    Ok(RestartAnswer::OtherSubgroups) => self.obstacle = Some(OTHER_SUBGROUPS),
                    Err(error) => drop(self.failures.insert(address, error)),
                }
            }
            ExchangeEvent::FetchedPart(from, request) => {
                self.restarter.handle_part(self.now(), from, request)
            }
            ExchangeEvent::Fetched(from, request, fetched) => self.on_fetched(from, request, fetched)?,
        }
        Ok(())
    }

    fn on_question(&mut self, asker: Asker, question: &[u8]) -> Result<(), JoinError> {
        match inquiry::read_question(question) {
            Some(StatusQuestion::Restart(call)) => {
                let answer = match refusal(self.group, self.layout, false, &call) {
                    Some(refusal) => refusal,
                    None => {
                        let sender = NodeId(call.sender.node);
                        self.on_call(*call, None);
                        // The answer has what this process knows after it.
                        self.act()?;
                        let answer = RestartAnswer::Heard(Box::new(self.own_call(Some(sender), usize::MAX)));
                        self.mail.remove(&sender);
                        answer
                    }
                };
                asker.answer(inquiry::write(&answer));
            }
            Some(StatusQuestion::Fetch(call)) => {
                let (register, state) = (self.restarter.register(), self.restarter.log().durable());
                let reply = fetch::answer(self.log, self.shards, register, state, call);
                asker.answer(inquiry::write(&reply));
            }
            Some(_) => asker.wait(RESTARTS),
            None => asker.answer(Vec::new()),
        }
        Ok(())
    }

    /// Takes what another process says, that was called at `address` or has called.
    fn on_call(&mut self, call: RestartCall, address: Option<&Address>) {
        let RestartCall { sender, others, messages, .. } = call;
        let from = NodeId(sender.node);
        let mut sender = sender;
        if let Some(address) = address.filter(|_| sender.address.is_empty()) {
            sender.address = address.to_string();
        }
        [sender].into_iter().chain(others).for_each(|process| self.note(process));
        for message in messages {
            match RestartMessage::decode(&message, self.shards.len()) {
                Ok(message) => self.restarter.handle_message(self.now(), from, message),
                Err(error) => log::warn!(%from, %error, "a message of a process that restarts is no use"),
            }
        }
    }

    fn note(&mut self, process: RestartProcess) {
        let node = NodeId(process.node);
        let is_usable = process.address.parse().is_ok_and(|address| is_usable(&address));
        let is_news = self.known.get(&node).is_none_or(|known| known.starts <= process.starts);
        if process.node != self.own.node && is_usable && is_news {
            let mut ranks = lock(&self.ranks);
            ranks.insert(node, process.rank);
            self.known.insert(node, process);
        }
    }

    fn fetch(&mut self, from: NodeId, request: FetchRequest) -> Result<(), JoinError> {
        match self.address_of(from) {
            Some(address) => self.exchange.fetch(from, address, request, fetch::call_of(self.group, request)),
            None => self.on_fetched(from, request, Fetched::Nothing),
        }
    }

    fn on_fetched(&mut self, from: NodeId, request: FetchRequest, fetched: Fetched) -> Result<(), JoinError> {
        let now = self.now();
        match (request, fetched) {
            (FetchRequest::Records { shard, view, from: begin, .. }, Fetched::Records(count, records)) => {
                if self.restarter.handle_fetched(now, from, request, FetchAnswer::Records(count)) {
                    let range = LogRange { subgroup: self.shards[shard], view, from: begin, to: count };
                    self.log.append_fetched(range, &records)?;
                }
            }
            (request, Fetched::Checkpoint(start, blocks)) => {
                if self.restarter.handle_fetched(now, from, request, FetchAnswer::Checkpoint(start)) {
                    self.log.take_checkpoint(self.shards[request.shard()], start, &blocks)?;
                }
            }
            (_, fetched) => {
                self.restarter.handle_fetched(now, from, request, FetchAnswer::Nothing);
                if let Fetched::Views(message) = fetched
                    && let Ok(message) = RestartMessage::decode(&message, self.shards.len())
                {
                    self.restarter.handle_message(now, from, message);
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, on_progress: &mut dyn FnMut(BootstrapProgress)) {
        let standing = self.restarter.standing();
        if self.shown != standing.present.len() {
            self.shown = standing.present.len();
            on_progress(BootstrapProgress::Restarting {
                view: standing.view,
                present: self.shown,
                members: self.shown + standing.absent.len(),
                needed: standing.needed,
            });
        }
        for (contact, error) in &self.failures {
            let cause = match error {
                BootstrapError::NoAnswer { cause, .. } => cause.clone(),
                error => error.to_string(),
            };
            let contact = contact.clone();
            if self.reminders.note((contact.clone(), cause.clone()), self.begun.elapsed()).is_some() {
                on_progress(BootstrapProgress::Calling { contact, cause });
            }
        }
    }

    /// Returns the error of one of the contacts if all of them refuse this process, and could begin without it: another attempt
    /// does not remove that.
    fn refused(&mut self) -> Option<BootstrapError> {
        let OtherContacts { addresses, are_quorum } = &self.contacts;
        let refuses = |address| self.failures.get(address).is_some_and(BootstrapError::is_refusal);
        let is_over = *are_quorum && self.known.is_empty() && addresses.iter().all(refuses);
        is_over.then(|| self.failures.pop_first()).flatten().map(|(_, error)| error)
    }

    fn other_history(&self, node: NodeId) -> JoinError {
        let other = self.known.get(&node).map(|known| known.address.clone());
        let (folder, view) = (self.log.folder().to_path_buf(), self.restarter.standing().view);
        LogFolderError::OtherHistory {
            folder,
            view,
            other: other.unwrap_or_else(|| "another address".into()),
        }
        .into()
    }

    fn explain(&self, waited: std::time::Duration) -> JoinError {
        let standing = self.restarter.standing();
        let causes: Vec<String> = self.failures.values().map(ToString::to_string).collect();
        let silent = if causes.is_empty() {
            String::new()
        } else {
            format!(". Not all contacts take part: {}", causes.join("; "))
        };
        let are_enough = standing.present.len() >= standing.needed;
        let advice = match () {
            // A member that is advised to give up the others' logs, while they run, would begin a group beside them.
            () if self.failures.values().any(is_heard) => HEARD,
            () if are_enough => DAMAGED,
            () => ABSENT,
        };
        JoinError::Restart {
            seconds: (waited + std::time::Duration::from_millis(500)).as_secs(),
            view: standing.view,
            present: standing.present.len(),
            members: standing.present.len() + standing.absent.len(),
            needed: standing.needed,
            silent,
            obstacle: self.obstacle.unwrap_or_default(),
            advice,
        }
    }

    /// The members of a view, if the ranks and the addresses of all are known.
    pub(super) fn members(&self, record: &ViewRecord) -> Option<Vec<(Member, Address)>> {
        let member = |node: &NodeId| {
            let process = if node.0 == self.own.node { &self.own } else { self.known.get(node)? };
            let address = process.address.parse().ok()?;
            Some((Member { node: *node, tag: process.rank }, address))
        };
        record.view.members.iter().map(member).collect()
    }
}

/// Returns the answer to a process that is of no use here.
pub(super) fn refusal(group: u64, layout: u64, runs: bool, call: &RestartCall) -> Option<RestartAnswer> {
    match call {
        _ if call.group != group => Some(RestartAnswer::OtherGroup(runs)),
        _ if call.layout != layout => Some(RestartAnswer::OtherSubgroups),
        _ => None,
    }
}

/// Which durable subgroups the members of a view are in, by the configuration.
fn placement(
    shards: Vec<SubgroupId>,
    layout: Box<dyn SubgroupLayout + Send>,
    ranks: KnownRanks,
) -> DurablePlacement {
    DurablePlacement::new(move |members| {
        let ranks = lock(&ranks);
        let member = |node: &NodeId| Member { node: *node, tag: ranks.get(node).copied().unwrap_or(0) };
        let view = View::first(members.iter().map(member).collect());
        durable_view(&shards, &view, &layout.place(&view).0).shards
    })
}

/// Whether other processes can connect to an address.
fn is_usable(address: &Address) -> bool {
    match address {
        Address::Tcp { host, .. } => {
            !host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_unspecified())
        }
        Address::Abstract(_) | Address::Path(_) => true,
    }
}

const HEARD: &str = "Mend that first, and start this member again: its group may run";
const DAMAGED: &str = "Enough members are here, but of some durable subgroup all their logs are damaged, or there is only one: what one \
                       of them lacks may be in another one, and `squall recover --from` takes it from there; `squall log verify` says what is \
                       wrong with each";
const ABSENT: &str = "Start the missing members with their folders, all within `timeouts.join`; if these are lost forever, see \
                      `squall recover --help`";
const OTHER_GROUP: &str = "; a process has the log of another group of this cluster: to join that one, move this member's folder away";
const OTHER_SUBGROUPS: &str =
    "; a process has other durable subgroups in its configuration: give all members the same ones";
/// The longest mail that goes with a question, whose rest are a report and the addresses of all processes.
const MAIL_BYTES_MAX: usize = QUESTION_BYTES_MAX / 2;
