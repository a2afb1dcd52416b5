//! Faults done to a group of real processes under load, and what must hold all the time: the healthy majority continues,
//! in one view, within a bound; no healthy member is excluded; nothing acknowledged is lost.

mod disks;
pub(crate) mod fault;
mod load;
mod perform;
mod strangers;
pub(crate) mod witness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use squall_fabric::sim::Prng;

use crate::accounts::Accounts;
use crate::cluster::churn::{ProcessPool, ProcessState, START_TIMEOUT};
use crate::control::{ParentCommand, StoreJob, TransportName};
use crate::member::churn::EXCLUDED;
use crate::terminal::output;
use disks::BrokenDisk;
use fault::{Fault, FaultKind};
use load::ProcessorLoad;
use strangers::StrangerCounters;

/// What happened, and whether all held.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChaosOutcome {
    pub(crate) transport: Option<TransportName>,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// Each kind of fault that there was.
    pub(crate) happened: BTreeMap<FaultKind, FaultTally>,
    /// Faults that could not be done here, and why.
    pub(crate) left_out: Vec<String>,
    pub(crate) killed: u64,
    pub(crate) halted: u64,
    /// Members that found themselves excluded, each of which was halted or cut off before.
    pub(crate) excluded: u64,
    pub(crate) joined: u64,
    /// Members that have ended by their disks and said so; each has come back.
    pub(crate) ended_by_disk: u64,
    pub(crate) views: u64,
    /// Messages of which some member knows that all have received them.
    pub(crate) messages: u64,
    /// Updates of the replicated object that were acknowledged; all are there.
    pub(crate) acknowledged: u64,
    /// The longest time in which a healthy member has delivered nothing.
    pub(crate) outage_ms: u64,
    /// The longest time in which no update was acknowledged.
    pub(crate) update_outage_ms: u64,
    /// Connections of strangers.
    pub(crate) strangers: u64,
    pub(crate) agree: bool,
    /// All violations.
    pub(crate) faults: Vec<String>,
}

/// What faults of one kind have done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct FaultTally {
    pub(crate) times: u64,
    /// The longest time in which a healthy member has delivered nothing, from such a fault to the next of any kind.
    pub(crate) outage_ms: u64,
}

/// What is to be done to a group.
pub(crate) struct ChaosPlan {
    pub(crate) kinds: Vec<FaultKind>,
    pub(crate) members: usize,
    pub(crate) suspicion: Duration,
    pub(crate) store: Option<StoreJob>,
    /// Prints nothing on the way.
    pub(crate) is_quiet: bool,
}

/// The group, and what is done to it.
pub(crate) struct ChaosRun {
    pool: ProcessPool,
    plan: ChaosPlan,
    dice: Prng,
    begun: Instant,
    /// The processes that are halted, and when each continues.
    halted: Vec<(usize, Instant)>,
    /// The processes that may be excluded, since they were halted or cut off, and until when.
    excuses: BTreeMap<usize, Instant>,
    loads: Vec<ProcessorLoad>,
    /// Until when all links have faults.
    spoilt_until: Option<Instant>,
    /// The host whose disk is slow, and until when.
    slow_disk: Option<(usize, Instant)>,
    /// The disk with which something else is wrong.
    broken_disk: Option<BrokenDisk>,
    /// A process that has ended by its disk, whose member is to come back when the group has continued without it.
    returning: Option<usize>,
    reached: Arc<StrangerCounters>,
    /// The last fault.
    last: Option<FaultKind>,
    outcome: ChaosOutcome,
}

impl ChaosRun {
    pub(crate) fn new(pool: ProcessPool, plan: ChaosPlan, outcome: ChaosOutcome) -> Result<Self> {
        let mut run = Self {
            pool,
            dice: Prng::new(outcome.seed ^ 0x5eed),
            begun: Instant::now(),
            halted: Vec::new(),
            excuses: BTreeMap::new(),
            loads: Vec::new(),
            spoilt_until: None,
            slow_disk: None,
            broken_disk: None,
            returning: None,
            reached: Arc::default(),
            last: None,
            plan,
            outcome,
        };
        run.start_clients()?;
        Ok(run)
    }

    /// Draws faults for some time.
    pub(crate) fn rage(&mut self, time: Duration) -> Result<()> {
        self.report();
        let mut next_line = self.begun + LINE_PERIOD;
        while self.begun.elapsed() < time {
            let pause = Duration::from_millis(50 + self.dice.below(500));
            self.rest(pause)?;
            let missing = self.plan.members.saturating_sub(self.present());
            match self.dice.below(20) {
                0..=7 if missing > 0 => drop(self.join()?),
                8..=15 => {
                    let suspicion_ms = u64::try_from(self.plan.suspicion.as_millis())?;
                    let fault = Fault::draw(&mut self.dice, &self.plan.kinds, suspicion_ms);
                    self.perform(fault)?;
                }
                _ => {}
            }
            if Instant::now() >= next_line {
                next_line += LINE_PERIOD;
                self.report();
            }
        }
        self.outcome.seconds = self.begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Does one fault after another, each to a group that is whole and delivers.
    pub(crate) fn follow(&mut self, script: &[Fault]) -> Result<()> {
        for fault in script {
            self.settle_disks()?;
            self.await_calm()?;
            while self.present() < self.plan.members {
                self.join()?;
                self.await_calm()?;
            }
            self.release_surplus()?;
            self.await_deliveries()?;
            ensure!(self.perform(*fault)?, "{fault} needs more members: {}", self.pool.describe());
            // Long enough for every member that is suspected because of it.
            self.rest(self.plan.suspicion + self.plan.suspicion / 2)?;
            self.await_others()?;
        }
        self.outcome.seconds = self.begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Lets surplus members leave in order, the youngest first.
    fn release_surplus(&mut self) -> Result<()> {
        while self.present() > self.plan.members {
            let Some(leaver) = self.pool.running().pop() else { break };
            self.release(leaver)?;
        }
        Ok(())
    }

    /// Lets a member leave in order.
    fn release(&mut self, leaver: usize) -> Result<()> {
        self.pool.leave(leaver);
        let timeout = self.join_max() + START_TIMEOUT;
        self.await_that("the member has left", timeout, |run| {
            run.pool.lives[leaver].state == ProcessState::Left
        })?;
        self.await_calm()
    }

    /// The number of processes that run or will.
    fn present(&self) -> usize {
        let is_present = |state: &ProcessState| {
            matches!(state, ProcessState::Starting | ProcessState::Running | ProcessState::Halted)
        };
        let returning = usize::from(self.returning.is_some());
        self.pool.lives.iter().filter(|life| is_present(&life.state)).count() + returning
    }

    /// Lets time pass, and checks what the members report meanwhile.
    fn rest(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.pool.rest(left.min(LOOK_PERIOD))?;
            let now = Instant::now();
            self.resume_due(now);
            self.loads.retain(|load| !load.is_over(now));
            if self.spoilt_until.is_some_and(|until| now >= until) {
                self.mend_network()?;
            }
            self.look_at_disks(now)?;
            self.look_for_faults(now)?;
            if now >= deadline {
                return Ok(());
            }
        }
    }

    /// Waits until a condition holds, which is `what` in words.
    fn await_that(&mut self, what: &str, timeout: Duration, holds: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !holds(self) {
            ensure!(
                Instant::now() < deadline,
                "not within {timeout:?}: {what}; the members: {}",
                self.pool.describe()
            );
            self.rest(LOOK_PERIOD)?;
        }
        Ok(())
    }

    /// Waits until no process is halted, joins or leaves, and all that run are the members of one view.
    fn await_calm(&mut self) -> Result<()> {
        // A halted process continues after three suspicion times at most.
        let timeout = START_TIMEOUT + 3 * self.plan.suspicion + self.outage_max();
        self.await_that("all that run are in one view, alone", timeout, |run| {
            let is_passing = |state: &ProcessState| {
                matches!(state, ProcessState::Starting | ProcessState::Halted | ProcessState::Leaving)
            };
            !run.pool.lives.iter().any(|life| is_passing(&life.state)) && run.is_united()
        })
    }

    /// Waits until the healthy members are in one view without those that were halted for good, which are killed then.
    fn await_others(&mut self) -> Result<()> {
        let is_halted = |run: &Self, number: usize| run.halted.iter().all(|(other, _)| *other != number);
        self.await_that("the healthy members have continued in one view", self.outage_max(), |run| {
            let is_for_good = |number: &usize| {
                run.pool.lives[*number].state == ProcessState::Halted && is_halted(run, *number)
            };
            let any = (0..run.pool.lives.len()).any(|number| is_for_good(&number));
            !any || run.is_united()
        })?;
        self.await_deliveries()?;
        for number in 0..self.pool.lives.len() {
            if self.pool.lives[number].state == ProcessState::Halted && is_halted(self, number) {
                self.pool.kill(number);
            }
        }
        Ok(())
    }

    /// Whether all that run know one view, and it has no other members.
    fn is_united(&self) -> bool {
        let (view, mut ranks) = self.pool.view();
        let running = self.pool.running();
        let mut own: Vec<usize> = running.iter().map(|number| self.pool.lives[*number].rank).collect();
        ranks.sort_unstable();
        own.sort_unstable();
        let knows =
            |number: &usize| self.pool.lives[*number].views.last().is_some_and(|news| news.view == view);
        ranks == own && running.iter().all(knows)
    }

    /// Waits until all that run have delivered something from now on.
    fn await_deliveries(&mut self) -> Result<()> {
        let count = |run: &Self, number: usize| run.pool.lives[number].delivered.0;
        let before: Vec<(usize, u64)> =
            self.pool.running().into_iter().map(|number| (number, count(self, number))).collect();
        self.await_that("all that run deliver", self.outage_max(), |run| {
            let is_running = |number: usize| run.pool.lives[number].state == ProcessState::Running;
            before.iter().all(|(number, before)| !is_running(*number) || count(run, *number) > *before)
        })
    }

    /// The longest time in which a healthy member may deliver nothing: one suspicion time each for the victims that there
    /// can be at a time, and what a machine needs on which everything else wants to run, too.
    fn outage_max(&self) -> Duration {
        4 * self.plan.suspicion + Duration::from_secs(10)
    }

    /// The longest time in which a process comes or goes: a joiner that is halted may keep others waiting until its time to
    /// link is over.
    fn join_max(&self) -> Duration {
        Duration::from_secs(15) + self.outage_max()
    }

    fn resume_due(&mut self, now: Instant) {
        let (due, later) = self.halted.iter().partition(|(_, until)| now >= *until);
        self.halted = later;
        let due: Vec<(usize, Instant)> = due;
        for (number, _) in due {
            self.pool.resume(number);
            if let Some(excuse) = self.excuses.get_mut(&number) {
                // It notices soon that the others have continued without it.
                *excuse = now + 2 * self.plan.suspicion + Duration::from_secs(10);
            }
        }
    }

    /// A member that fails must have been halted or cut off, and no healthy member may stall for long.
    fn look_for_faults(&mut self, now: Instant) -> Result<()> {
        self.look_at_clients()?;
        let mut gone = Vec::new();
        for (number, life) in self.pool.lives.iter().enumerate() {
            let is_excused = self.excuses.get(&number).is_some_and(|until| now < *until);
            let still = life.delivered.1.elapsed();
            let which = || format!("process {number} of rank {}", life.rank);
            match &life.state {
                ProcessState::Failed(why) if is_excused && why.starts_with(EXCLUDED) => gone.push(number),
                ProcessState::Failed(why) => {
                    bail!("{} is healthy and has failed: {why}; {}", which(), self.pool.describe())
                }
                ProcessState::Running if !is_excused && still > self.outage_max() => {
                    bail!("{} has delivered nothing for {still:?}: {}", which(), self.pool.describe())
                }
                ProcessState::Starting | ProcessState::Leaving if still > self.join_max() => {
                    bail!("{} neither comes nor goes for {still:?}: {}", which(), self.pool.describe())
                }
                _ => {}
            }
        }
        // They wait for this command, and how they end is no longer of interest.
        for number in gone {
            self.outcome.excluded += 1;
            self.pool.send(number, ParentCommand::Stop);
            self.pool.lives[number].state = ProcessState::Killed;
        }
        Ok(())
    }

    /// Lets all continue: members deliver everything, and what was acknowledged to clients must be there.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.loads.clear();
        self.mend_network()?;
        self.settle_disks()?;
        self.resume_due(Instant::now() + Duration::from_secs(1 << 20));
        // Time for those that were excluded to notice.
        self.rest(2 * self.plan.suspicion + Duration::from_secs(1))?;
        self.await_calm()?;
        self.note_outage();
        self.outcome.update_outage_ms = u64::try_from(self.stop_clients()?.as_millis())?;
        for number in self.pool.running() {
            self.pool.send(number, ParentCommand::Drain);
        }
        let is_done = |pool: &ProcessPool| {
            let lives = pool.lives.iter().filter(|life| life.state == ProcessState::Running);
            lives.into_iter().all(|life| life.report.is_some())
        };
        self.pool.wait("all have delivered all of their own", self.outage_max() + START_TIMEOUT, is_done)?;
        self.judge_lists()?;
        self.outcome.acknowledged = self.pool.recorder.acknowledged();
        Ok(())
    }

    /// Compares the accounts.
    pub(crate) fn judge(mut self) -> Result<ChaosOutcome> {
        let mut accounts = Accounts::default();
        let survivors = self.pool.running();
        for (number, life) in self.pool.lives.iter().enumerate() {
            // A process that was never admitted has none.
            let path = life.account.as_deref().filter(|path| path.exists());
            if let Some(path) = path {
                accounts.read(path, survivors.contains(&number))?;
            }
        }
        for number in survivors {
            self.pool.send(number, ParentCommand::Stop);
        }
        let mut outcome = self.outcome;
        outcome.faults = accounts.faults();
        (outcome.views, outcome.messages) = (accounts.views(), accounts.messages());
        outcome.strangers = self.reached.connections();
        if self.reached.answers() > 0 {
            outcome.faults.push(format!("{} strangers got an answer", self.reached.answers()));
        }
        if self.plan.store.is_some() && outcome.acknowledged == 0 {
            outcome.faults.push("no update was acknowledged".into());
        }
        let name = self.pool.name().to_owned();
        drop(self.pool);
        outcome.faults.extend(left_behind(&name));
        outcome.agree = outcome.faults.is_empty() && outcome.messages > 0;
        Ok(outcome)
    }

    /// Notes the longest outage since the last fault.
    fn note_outage(&mut self) {
        let outages = self.pool.lives.iter_mut().map(|life| std::mem::take(&mut life.outage));
        let outage = outages.max().unwrap_or_default();
        let outage_ms = u64::try_from(outage.as_millis()).unwrap_or(u64::MAX);
        self.outcome.outage_ms = self.outcome.outage_ms.max(outage_ms);
        if let Some(tally) = self.last.and_then(|kind| self.outcome.happened.get_mut(&kind)) {
            tally.outage_ms = tally.outage_ms.max(outage_ms);
        }
    }

    /// Prints what is done.
    fn say(&self, what: std::fmt::Arguments<'_>) {
        if !self.plan.is_quiet {
            output::note(format_args!("{:9.3} s: {what}", self.begun.elapsed().as_secs_f64()));
        }
    }

    fn report(&self) {
        let ChaosOutcome { killed, halted, excluded, joined, .. } = &self.outcome;
        let (view, ranks) = self.pool.view();
        let members = ranks.len();
        self.say(format_args!(
            "view {view} of {members} members; {killed} killed, {halted} halted, {excluded} excluded, {joined} joined"
        ));
    }
}

/// What a group of this name has left on this machine.
fn left_behind(name: &str) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let sockets = sockets.lines().filter(|line| line.contains(&format!("@squall-{name}-"))).count();
    let memory = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let memory: Vec<String> = memory.filter(|file| file.contains("squall") && file.contains(name)).collect();
    let mut left = Vec::new();
    if sockets > 0 {
        left.push(format!("{sockets} sockets are left"));
    }
    left.extend(memory.into_iter().map(|file| format!("/dev/shm/{file} is left")));
    left
}

/// The time between two lines of progress.
const LINE_PERIOD: Duration = Duration::from_secs(10);
/// The time between two checks of the members.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
