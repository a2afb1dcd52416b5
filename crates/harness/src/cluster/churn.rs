//! Members that join and leave: started, halted and killed one by one, while the others continue; and clients of their object.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::process::MemberProcess;
use super::{Notice, check_locations, lab_locations, random_secret, unique_name};
use crate::control::{
    ChurnJob, ClientJob, EncryptionName, GroupJob, IdleName, MemberEvent, MemberJob, MemberLocation,
    MemberReport, MemberWork, ParentCommand, StoreJob, TransportName, ViewNews,
};
use crate::operations::recorder::{OUTSIDE, OperationRecorder};
use crate::terminal::{Interrupted, Interrupts};

/// What the members do.
#[derive(Clone, Debug)]
pub(crate) struct ChurnPlan {
    pub(crate) transport: TransportName,
    /// The number of members with which the group starts.
    pub(crate) members: usize,
    /// How each waits for work.
    pub(crate) idle: IdleName,
    /// Where processes run, in turn.
    pub(crate) locations: Vec<MemberLocation>,
    /// In a lab, so many of its hosts, the last ones, are for clients.
    pub(crate) clients: usize,
    /// What each does; accounts go into the folder.
    pub(crate) job: ChurnJob,
    pub(crate) folder: Option<PathBuf>,
}

/// All processes that were ever started, by number. Dropping it kills and reaps those that run.
pub(crate) struct ProcessPool {
    plan: ChurnPlan,
    name: String,
    secret: String,
    pub(crate) lives: Vec<PoolProcess>,
    /// All clients that were ever started, by number.
    pub(crate) clients: Vec<PoolClient>,
    client_locations: Vec<MemberLocation>,
    /// Takes the operations that members and clients report.
    pub(crate) recorder: OperationRecorder,
    pub(crate) updates: UpdateProgress,
    /// A location that is kept for a process.
    reserved: Option<usize>,
    notices: Receiver<Notice>,
    sender: Sender<Notice>,
}

/// One process.
pub(crate) struct PoolProcess {
    pub(crate) rank: usize,
    pub(crate) state: ProcessState,
    pub(crate) account: Option<PathBuf>,
    /// The views in which it has delivered.
    pub(crate) views: Vec<ViewNews>,
    pub(crate) report: Option<MemberReport>,
    /// How much it has delivered, and since when no more than that.
    pub(crate) delivered: (u64, Instant),
    /// The longest time without a delivery, except while it was halted.
    pub(crate) outage: Duration,
    /// It has joined, and the group has admitted it.
    pub(crate) is_admitted: bool,
    /// It has begun its first view.
    is_ready: bool,
    /// Why it was not admitted when it last asked.
    waits: String,
    /// It has the states of all objects that it should have.
    pub(crate) has_states: bool,
    /// The place of its location in the plan's.
    pub(crate) place: usize,
    /// The number of the process that has made its log.
    log_of: u32,
    process: MemberProcess,
    address: Option<String>,
}

/// A client in a process of its own.
pub(crate) struct PoolClient {
    pub(crate) state: ProcessState,
    place: usize,
    process: MemberProcess,
}

/// How the clients' updates fare.
#[derive(Debug)]
pub(crate) struct UpdateProgress {
    /// The longest time from one acknowledgement to the next, and since when there was none.
    pub(crate) outage: Duration,
    pub(crate) last: Instant,
    /// Why the last operation that failed did.
    pub(crate) trouble: String,
}

impl UpdateProgress {
    /// Begins anew: clients begin.
    pub(crate) fn begin() -> Self {
        Self { outage: Duration::ZERO, last: Instant::now(), trouble: "there was none".into() }
    }

    fn note_acknowledged(&mut self) {
        self.outage = self.outage.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

/// What a process is doing, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Starting,
    Running,
    /// Stopped by a signal, to continue later.
    Halted,
    /// It has been asked to leave.
    Leaving,
    /// It has left in order.
    Left,
    /// Killed by us.
    Killed,
    /// It has reported that it cannot continue, and why.
    Failed(String),
}

impl ProcessState {
    /// Whether it may still do something.
    pub(crate) const fn is_present(&self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Halted | Self::Leaving)
    }
}

impl ProcessPool {
    /// Starts the first members and waits until all are ready; messages flow then. The recorder takes what members ask of their object.
    pub(crate) fn start(
        plan: ChurnPlan,
        recorder: OperationRecorder,
        interrupts: &Interrupts,
    ) -> Result<Self> {
        let mut locations = lab_locations(&plan.locations)?;
        let of_members = locations.len().saturating_sub(plan.clients);
        let client_locations =
            if plan.locations.is_empty() { locations.split_off(of_members) } else { Vec::new() };
        let plan = ChurnPlan { locations, ..plan };
        check_locations(plan.transport, &plan.locations)?;
        let (sender, notices) = channel();
        let to_pool = sender.clone();
        interrupts.set(move || drop(to_pool.send(Notice::Interrupted)));
        let (name, secret) = (unique_name(), random_secret()?);
        let mut pool = Self {
            plan,
            name,
            secret,
            lives: Vec::new(),
            clients: Vec::new(),
            client_locations,
            recorder,
            updates: UpdateProgress::begin(),
            reserved: None,
            notices,
            sender,
        };
        for rank in 0..pool.plan.members {
            pool.add(rank, Vec::new(), None)?;
            if rank == 0 {
                pool.wait("member 0 listens", START_TIMEOUT, |pool| pool.lives[0].address.is_some())?;
            }
        }
        pool.wait("all members are ready", START_TIMEOUT, |pool| {
            pool.lives.iter().all(|life| life.state == ProcessState::Running)
        })?;
        pool.lives.iter_mut().for_each(|life| life.process.send(&ParentCommand::Go));
        Ok(pool)
    }

    /// Starts a further process, which joins; returns its number.
    pub(crate) fn join(&mut self, rank: usize) -> Result<usize> {
        let joins = self.addresses();
        self.add(rank, joins, None)
    }

    /// Starts a process in the place of one that has ended, with its rank and its log; returns its number.
    pub(crate) fn bring_back(&mut self, number: usize) -> Result<usize> {
        let joins = self.addresses();
        self.add(self.lives[number].rank, joins, Some(number))
    }

    /// Keeps a location for a process of [`ProcessPool::bring_back`].
    pub(crate) const fn reserve(&mut self, place: Option<usize>) {
        self.reserved = place;
    }

    /// Where the members that run listen.
    fn addresses(&self) -> Vec<String> {
        let running = self.lives.iter().filter(|life| life.state == ProcessState::Running);
        running.filter_map(|life| life.address.clone()).collect()
    }

    fn group(&self, rank: usize, joins: Vec<String>) -> GroupJob {
        GroupJob {
            name: self.name.clone(),
            secret: self.secret.clone(),
            transport: self.plan.transport,
            encryption: EncryptionName::On,
            members: self.plan.members,
            rank,
            contact: self.lives.first().and_then(|life| life.address.clone()),
            joins,
            core: None,
            idle: self.plan.idle,
            location: MemberLocation::default(),
        }
    }

    /// Starts a process, perhaps in the place of an earlier one.
    fn add(&mut self, rank: usize, joins: Vec<String>, before: Option<usize>) -> Result<usize> {
        let number = self.lives.len();
        let account = self.plan.folder.as_ref().map(|folder| folder.join(format!("{number}.account")));
        let place = before.map_or_else(|| self.free_place(), |before| self.lives[before].place);
        let location = self.plan.locations.get(place).cloned().unwrap_or_default();
        let group = GroupJob { location, ..self.group(rank, joins) };
        let process = u32::try_from(number).expect("few processes") + 1;
        let log_of = before.map_or(process, |before| self.lives[before].log_of);
        let job = ChurnJob { process, log_of, account: account.clone(), ..self.plan.job.clone() };
        let work = MemberWork::Churn(job);
        let process = MemberProcess::start(&MemberJob { group, work }, number, &self.sender)?;
        self.lives.push(PoolProcess {
            rank,
            state: ProcessState::Starting,
            account,
            views: Vec::new(),
            report: None,
            delivered: (0, Instant::now()),
            outage: Duration::ZERO,
            is_admitted: false,
            is_ready: false,
            waits: String::new(),
            has_states: false,
            place,
            log_of,
            process,
            address: None,
        });
        Ok(number)
    }

    /// Starts a further client of the members' object.
    pub(crate) fn add_client(&mut self, store: &StoreJob) -> Result<()> {
        let number = CLIENTS_FROM + self.clients.len();
        let taken: Vec<usize> = self
            .clients
            .iter()
            .filter(|client| client.state.is_present())
            .map(|client| client.place)
            .collect();
        let count = self.client_locations.len();
        let place = (0..count).find(|place| !taken.contains(place)).unwrap_or(0);
        let location = self.client_locations.get(place).cloned().unwrap_or_default();
        let group = GroupJob { location, ..self.contact() };
        let process = u32::try_from(number).expect("few processes");
        let work = MemberWork::Client(ClientJob { process, store: store.clone() });
        let process = MemberProcess::start(&MemberJob { group, work }, number, &self.sender)?;
        self.clients.push(PoolClient { state: ProcessState::Starting, place, process });
        Ok(())
    }

    /// Kills a client, as `kill -9` does.
    pub(crate) fn kill_client(&mut self, client: usize) {
        self.clients[client].state = ProcessState::Killed;
        self.clients[client].process.kill();
    }

    /// Lets all clients end when they have their answers, and waits for that.
    pub(crate) fn stop_clients(&mut self, timeout: Duration) -> Result<()> {
        self.clients.iter_mut().for_each(|client| client.process.send(&ParentCommand::Drain));
        self.wait("the clients have ended", timeout, |pool| {
            !pool.clients.iter().any(|client| client.state.is_present())
        })
    }

    /// The index of the first location without a process, or else of the next in turn.
    fn free_place(&self) -> usize {
        let is_here = |life: &&PoolProcess| life.state.is_present();
        let taken = self.lives.iter().filter(is_here).map(|life| life.place).chain(self.reserved);
        let taken: Vec<usize> = taken.collect();
        let count = self.plan.locations.len().max(1);
        (0..count).find(|place| !taken.contains(place)).unwrap_or(self.lives.len() % count)
    }

    /// The configuration of a client, with the addresses at which members listen now.
    pub(crate) fn contact(&self) -> GroupJob {
        self.group(0, self.addresses())
    }

    /// The name that no other group on this machine has.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Kills a process, as `kill -9` does.
    pub(crate) fn kill(&mut self, number: usize) {
        self.lives[number].state = ProcessState::Killed;
        self.lives[number].process.kill();
    }

    /// Stops a process, as `kill -STOP` does.
    pub(crate) fn halt(&mut self, number: usize) {
        self.lives[number].state = ProcessState::Halted;
        self.lives[number].process.halt(true);
    }

    /// Lets a halted process continue. One that was halted while it joined is a member when it reports so.
    pub(crate) fn resume(&mut self, number: usize) {
        let life = &mut self.lives[number];
        life.delivered.1 = Instant::now();
        life.state = if life.is_ready { ProcessState::Running } else { ProcessState::Starting };
        life.process.halt(false);
    }

    /// Asks a member to leave in order.
    pub(crate) fn leave(&mut self, number: usize) {
        self.lives[number].state = ProcessState::Leaving;
        self.send(number, ParentCommand::Leave);
    }

    /// Sends a process a command.
    pub(crate) fn send(&mut self, number: usize, command: ParentCommand) {
        self.lives[number].process.send(&command);
    }

    /// The numbers of those that run.
    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.lives.len()).filter(|number| self.lives[*number].state == ProcessState::Running).collect()
    }

    /// The latest view that a member has reported: its number and the ranks of its members.
    pub(crate) fn view(&self) -> (u64, Vec<usize>) {
        let news = self.lives.iter().filter_map(|life| life.views.last());
        let first = || (0, (0..self.plan.members).collect());
        news.max_by_key(|news| news.view).map_or_else(first, |news| (news.view, news.ranks.clone()))
    }

    /// Lets time pass, and takes what the members report meanwhile.
    pub(crate) fn rest(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        while self.take_notice(deadline)? {}
        // Processes that have ended meanwhile are reaped.
        for life in &mut self.lives {
            life.process.is_running();
        }
        for client in &mut self.clients {
            client.process.is_running();
        }
        Ok(())
    }

    /// Waits until a condition holds, which is `what` in words.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        timeout: Duration,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !is_so(self) {
            if !self.take_notice(deadline)? {
                bail!("not within {timeout:?}: {what}; the members: {}", self.describe());
            }
        }
        Ok(())
    }

    /// All processes that may still do something, in words.
    pub(crate) fn describe(&self) -> String {
        let is_gone = |state: &ProcessState| matches!(state, ProcessState::Killed | ProcessState::Left);
        let lives = self.lives.iter().enumerate().filter(|(_, life)| !is_gone(&life.state));
        let line = |(number, life): (usize, &PoolProcess)| {
            let view = life.views.last().map_or(0, |news| news.view);
            let (rank, delivered, state) = (life.rank, life.delivered.0, &life.state);
            let waits = if life.is_ready { "" } else { &life.waits };
            format!("process {number} of rank {rank}: {state:?}, view {view}, {delivered} delivered {waits}")
        };
        lives.map(line).collect::<Vec<_>>().join("; ")
    }

    /// Takes what a member reports; false when the time is over.
    fn take_notice(&mut self, deadline: Instant) -> Result<bool> {
        let notice = match self.notices.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(notice) => notice,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => unreachable!("this side holds a sender"),
        };
        match notice {
            Notice::Interrupted => return Err(Interrupted::ENDED.into()),
            Notice::Event(number, MemberEvent::Operation(event)) => match number.checked_sub(CLIENTS_FROM) {
                None => drop(self.recorder.take(&format!("member {number}"), number, &event)),
                Some(client) => {
                    if self.recorder.take(&format!("{OUTSIDE} {client}"), number, &event) {
                        self.updates.note_acknowledged();
                    }
                }
            },
            Notice::Event(number, event) => match number.checked_sub(CLIENTS_FROM) {
                None => self.lives[number].handle(event),
                Some(client) => self.handle_client(client, event),
            },
            Notice::Closed(number, nonsense) => {
                let (process, state, has_reported) = match number.checked_sub(CLIENTS_FROM) {
                    None => {
                        let PoolProcess { process, state, report, .. } = &mut self.lives[number];
                        (process, state, report.is_some())
                    }
                    Some(client) => {
                        let PoolClient { process, state, .. } = &mut self.clients[client];
                        (process, state, false)
                    }
                };
                process.close(nonsense.clone());
                if state.is_present() && !has_reported {
                    *state =
                        ProcessState::Failed(nonsense.unwrap_or_else(|| "it ended without a report".into()));
                }
            }
        }
        Ok(true)
    }

    fn handle_client(&mut self, client: usize, event: MemberEvent) {
        let state = &mut self.clients[client].state;
        match event {
            MemberEvent::Ready if *state == ProcessState::Starting => *state = ProcessState::Running,
            MemberEvent::Waiting { reason } => self.updates.trouble = reason,
            MemberEvent::Left if state.is_present() => *state = ProcessState::Left,
            MemberEvent::Failed { message } if state.is_present() => *state = ProcessState::Failed(message),
            _ => {}
        }
    }
}

impl PoolProcess {
    fn handle(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Listening { address } => self.address = Some(address),
            MemberEvent::Ready => {
                self.is_ready = true;
                if self.state == ProcessState::Starting {
                    self.state = ProcessState::Running;
                    self.delivered.1 = Instant::now();
                }
            }
            MemberEvent::Admitted => self.is_admitted = true,
            MemberEvent::Waiting { reason } => self.waits = reason,
            MemberEvent::Held => self.has_states = true,
            MemberEvent::Left if self.state == ProcessState::Leaving => self.state = ProcessState::Left,
            MemberEvent::Progress { done } if done != self.delivered.0 => {
                if self.state == ProcessState::Running {
                    self.outage = self.outage.max(self.delivered.1.elapsed());
                }
                self.delivered = (done, Instant::now());
            }
            MemberEvent::View(news) => self.views.push(news),
            MemberEvent::Done(report) => self.report = Some(*report),
            MemberEvent::Failed { message }
                if !matches!(self.state, ProcessState::Killed | ProcessState::Left) =>
            {
                self.state = ProcessState::Failed(message)
            }
            _ => {}
        }
    }
}

/// The number of the first client among the processes: there are not as many members.
const CLIENTS_FROM: usize = 1 << 20;
/// The time for a process to join the group, on a very busy machine.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(40);
