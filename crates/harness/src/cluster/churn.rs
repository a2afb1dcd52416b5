//! Members that join and leave: started, halted and killed one by one, while the others continue.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::process::MemberProcess;
use super::{Notice, check_locations, lab_locations, random_secret, unique_name};
use crate::control::{
    ChurnJob, EncryptionName, GroupJob, IdleName, MemberEvent, MemberJob, MemberLocation, MemberReport,
    MemberWork, ParentCommand, TransportName, ViewNews,
};
use crate::operations::recorder::OperationRecorder;
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
    /// Takes the operations that members report.
    pub(crate) recorder: Arc<Mutex<OperationRecorder>>,
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
    process: MemberProcess,
    address: Option<String>,
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

impl ProcessPool {
    /// Starts the first members and waits until all are ready; messages flow then. The recorder takes what members ask of their object.
    pub(crate) fn start(
        plan: ChurnPlan,
        recorder: OperationRecorder,
        interrupts: &Interrupts,
    ) -> Result<Self> {
        let plan = ChurnPlan { locations: lab_locations(&plan.locations)?, ..plan };
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
            recorder: Arc::new(Mutex::new(recorder)),
            notices,
            sender,
        };
        for rank in 0..pool.plan.members {
            pool.add(rank, Vec::new())?;
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
        let running = self.lives.iter().filter(|life| life.state == ProcessState::Running);
        let joins = running.filter_map(|life| life.address.clone()).collect();
        self.add(rank, joins)
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

    fn add(&mut self, rank: usize, joins: Vec<String>) -> Result<usize> {
        let number = self.lives.len();
        let account = self.plan.folder.as_ref().map(|folder| folder.join(format!("{number}.account")));
        let place = self.free_place();
        let location = self.plan.locations.get(place).cloned().unwrap_or_default();
        let group = GroupJob { location, ..self.group(rank, joins) };
        let process = u32::try_from(number).expect("few processes") + 1;
        let job = ChurnJob { process, account: account.clone(), ..self.plan.job.clone() };
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
            process,
            address: None,
        });
        Ok(number)
    }

    /// The index of the first location without a process, or else of the next in turn.
    fn free_place(&self) -> usize {
        let is_here = |life: &&PoolProcess| {
            !matches!(life.state, ProcessState::Killed | ProcessState::Left | ProcessState::Failed(_))
        };
        let taken: Vec<usize> = self.lives.iter().filter(is_here).map(|life| life.place).collect();
        let count = self.plan.locations.len().max(1);
        (0..count).find(|place| !taken.contains(place)).unwrap_or(self.lives.len() % count)
    }

    /// The configuration of a client, with the addresses at which members listen now.
    pub(crate) fn contact(&self) -> GroupJob {
        let running = self.lives.iter().filter(|life| life.state == ProcessState::Running);
        self.group(0, running.filter_map(|life| life.address.clone()).collect())
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
            Notice::Event(number, MemberEvent::Operation(event)) => {
                self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take(number, &event);
            }
            Notice::Event(number, event) => self.lives[number].handle(event),
            Notice::Closed(number, nonsense) => {
                let life = &mut self.lives[number];
                life.process.close(nonsense.clone());
                if matches!(
                    life.state,
                    ProcessState::Starting
                        | ProcessState::Running
                        | ProcessState::Halted
                        | ProcessState::Leaving
                ) && life.report.is_none()
                {
                    life.state =
                        ProcessState::Failed(nonsense.unwrap_or_else(|| "it ended without a report".into()));
                }
            }
        }
        Ok(true)
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

/// The time for a process to join the group, on a very busy machine.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(40);
