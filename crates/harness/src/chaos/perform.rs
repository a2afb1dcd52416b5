//! How each fault is done to the group.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use squall::Config;

use super::fault::{Fault, FaultKind};
use super::load::ProcessorLoad;
use super::{ChaosRun, strangers};
use crate::cluster::churn::{ProcessState, START_TIMEOUT};
use crate::lab::{LinkConditions, Share, WireRequest, ask_from_inside};
use crate::member::{self, store};

impl ChaosRun {
    /// Does the fault if the group can bear it; returns whether it did.
    pub(super) fn perform(&mut self, fault: Fault) -> Result<bool> {
        if !self.can_spare(fault.kind.victims()) {
            return Ok(false);
        }
        if matches!(
            fault.kind,
            FaultKind::Cut | FaultKind::CutOneWay | FaultKind::Outage | FaultKind::Restart
        ) {
            self.mend_network()?;
            self.settle_disks()?;
            self.await_calm()?;
        }
        self.note_outage();
        self.last = Some(fault.kind);
        self.say(format_args!("{fault}"));
        let lasts = fault.lasts_ms.map(Duration::from_millis);
        let is_done = match fault.kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Halt => self.victim().is_some_and(|victim| self.halt(victim, lasts)),
            FaultKind::JoinHalt => self.join_and_halt(Duration::from_millis(fault.after_ms), lasts)?,
            FaultKind::KillHalt => self.kill_and_halt(Duration::from_millis(fault.after_ms), lasts),
            FaultKind::Cut => self.cut(true)?,
            FaultKind::CutOneWay => self.cut(false)?,
            FaultKind::Network => {
                self.spoil_network(lasts.unwrap_or(LASTS))?;
                true
            }
            FaultKind::Outage => {
                self.cut_all(lasts.unwrap_or(LASTS))?;
                true
            }
            FaultKind::SlowDisk => self.slow_disk(lasts.unwrap_or(LASTS))?,
            FaultKind::FullDisk | FaultKind::FrozenDisk | FaultKind::FailingDisk | FaultKind::GoneDisk => {
                self.break_disk(fault.kind, lasts.unwrap_or(LASTS))?
            }
            FaultKind::Busy => {
                self.loads.push(ProcessorLoad::busy(lasts.unwrap_or(LASTS)));
                true
            }
            FaultKind::KillClient => self.kill_client()?,
            FaultKind::Restart => self.restart()?,
            FaultKind::Strangers => {
                let seed = self.dice.below(1 << 32);
                let client = self.client()?;
                self.loads.push(strangers::start(lasts.unwrap_or(LASTS), &client, seed, &self.reached));
                true
            }
        };
        if is_done {
            self.outcome.happened.entry(fault.kind).or_default().times += 1;
        }
        Ok(is_done)
    }

    /// Whether the latest view keeps a healthy majority if `more` members are lost. While a view changes, no more members are
    /// harmed than its majority can bear: which of them have learnt of the next view makes no difference.
    fn can_spare(&self, count: usize) -> bool {
        let (_, ranks) = self.pool.view();
        let well = self.well();
        let is_well = |rank: &&usize| well.iter().any(|life| self.pool.lives[*life].rank == **rank);
        let lost = ranks.len() - ranks.iter().filter(is_well).count();
        // A joiner that was halted may be in a view in which no member has delivered yet, and may be excluded from that view
        // when it continues.
        let is_coming = |number: &usize| {
            let life = &self.pool.lives[*number];
            let is_back = matches!(life.state, ProcessState::Starting | ProcessState::Running)
                && self.is_excused(*number);
            (life.state == ProcessState::Halted || is_back) && !ranks.contains(&life.rank)
        };
        let coming = (0..self.pool.lives.len()).filter(is_coming).count();
        count == 0 || lost + coming + count <= (ranks.len() - 1) / 2
    }

    /// The processes that run and that the group has no reason to exclude: one that continues after a halt may be about to be excluded.
    fn well(&self) -> Vec<usize> {
        self.pool.running().into_iter().filter(|number| !self.is_excused(*number)).collect()
    }

    /// Whether the group may exclude this process because it was halted a short while ago.
    fn is_excused(&self, number: usize) -> bool {
        self.excuses.get(&number).is_some_and(|until| Instant::now() < *until)
    }

    /// A member of the latest view that runs, and is not one of the last two well ones that have all states.
    pub(super) fn victim(&mut self) -> Option<usize> {
        let (_, ranks) = self.pool.view();
        let running = self.pool.running();
        let has_states = |number: &usize| self.pool.lives[*number].has_states;
        let holders = self.well().into_iter().filter(has_states).count();
        // While fewer have all states, as in a rolling restart, any other may be the only one that has one of them.
        let needs_all = self.plan.store.is_some() && holders < HOLDERS_MIN;
        let is_spare = |number: &usize| {
            let life = &self.pool.lives[*number];
            let is_needed = self.plan.store.is_some() && life.has_states && holders <= HOLDERS_MIN;
            let is_hit = self.has_broken_disk(*number);
            ranks.contains(&life.rank)
                && !is_needed
                && !needs_all
                && !is_hit
                && !self.is_last_of_shard(*number)
        };
        let members: Vec<usize> = running.iter().copied().filter(is_spare).collect();
        let place = self.dice.below(members.len() as u64);
        members.get(usize::try_from(place).unwrap_or(0)).copied()
    }

    /// Whether no other well member has the state of its shard for transactions.
    fn is_last_of_shard(&self, number: usize) -> bool {
        let shard = |number: usize| self.pool.lives[number].rank % 2;
        let is_other = |other: &usize| {
            *other != number && shard(*other) == shard(number) && self.pool.lives[*other].has_states
        };
        let has_transactions = self.plan.store.as_ref().is_some_and(|store| store.has_transactions);
        has_transactions && !self.well().iter().any(is_other)
    }

    fn kill(&mut self) -> bool {
        let Some(victim) = self.victim() else { return false };
        self.pool.kill(victim);
        self.say(format_args!("  process {victim} of rank {} is killed", self.pool.lives[victim].rank));
        self.outcome.killed += 1;
        true
    }

    /// Halts a process, for good if `lasts` is none.
    fn halt(&mut self, victim: usize, lasts: Option<Duration>) -> bool {
        self.pool.halt(victim);
        self.say(format_args!("  process {victim} of rank {} is halted", self.pool.lives[victim].rank));
        let now = Instant::now();
        if let Some(lasts) = lasts {
            self.halted.push((victim, now + lasts));
        }
        // Half of the time may be used up already when it is halted, on a machine that is busy.
        if lasts.is_none_or(|lasts| lasts > self.plan.suspicion / 2) {
            self.excuses.insert(victim, now + Duration::from_secs(1 << 20));
        }
        self.outcome.halted += 1;
        true
    }

    /// Starts a process that joins; returns its number.
    pub(super) fn join(&mut self) -> Result<usize> {
        let taken = |rank: &usize| {
            let is_gone = |state: &ProcessState| {
                matches!(state, ProcessState::Killed | ProcessState::Left | ProcessState::Failed(_))
            };
            self.pool.lives.iter().any(|life| life.rank == *rank && !is_gone(&life.state))
                || self.pool.view().1.contains(rank)
                || self.returning.is_some_and(|number| self.pool.lives[number].rank == *rank)
        };
        let free = (0..).find(|rank| !taken(rank)).expect("there are more ranks than members");
        self.outcome.joined += 1;
        let joiner = self.pool.join(free)?;
        self.say(format_args!("  process {joiner} of rank {free} joins"));
        Ok(joiner)
    }

    /// Halts a process some time after the group has admitted it.
    fn join_and_halt(&mut self, after: Duration, lasts: Option<Duration>) -> Result<bool> {
        let joiner = self.join()?;
        self.pool.wait("the joiner is admitted", START_TIMEOUT, |pool| {
            pool.lives[joiner].is_admitted || pool.lives[joiner].state != ProcessState::Starting
        })?;
        std::thread::sleep(after);
        Ok(matches!(self.pool.lives[joiner].state, ProcessState::Starting | ProcessState::Running)
            && self.halt(joiner, lasts))
    }

    /// Kills a member, and halts another one some time later.
    fn kill_and_halt(&mut self, after: Duration, lasts: Option<Duration>) -> bool {
        if !self.kill() {
            return false;
        }
        std::thread::sleep(after);
        self.victim().is_some_and(|victim| self.halt(victim, lasts))
    }

    /// Cuts the link between two members until one of them is removed. Exactly one is, and the others stay with the other
    /// one \[V11\].
    fn cut(&mut self, both_ways: bool) -> Result<bool> {
        let Some(one) = self.victim() else { return Ok(false) };
        let others: Vec<usize> = self.pool.running().into_iter().filter(|number| *number != one).collect();
        let place = usize::try_from(self.dice.below(others.len() as u64))?;
        let other = others[place];
        let places = [one, other].map(|number| self.pool.lives[number].place);
        let ranks = [one, other].map(|number| self.pool.lives[number].rank);
        self.say(format_args!("  between the members {ranks:?}"));
        self.set_cut(places, both_ways, true)?;
        for number in [one, other] {
            self.excuses.insert(number, Instant::now() + Duration::from_secs(1 << 20));
        }
        let remaining = |run: &Self| {
            let present = run.pool.view().1;
            ranks.into_iter().filter(|rank| present.contains(rank)).count()
        };
        self.await_that("one end of the cut link is removed", self.outage_max(), |run| remaining(run) < 2)?;
        // No other member is removed while the link is cut.
        self.rest(self.plan.suspicion + self.plan.suspicion / 2)?;
        ensure!(remaining(self) == 1, "both ends of a cut link were removed: {}", self.pool.describe());
        self.set_cut(places, both_ways, false)?;
        let stays = if self.pool.view().1.contains(&ranks[0]) { one } else { other };
        self.excuses.remove(&stays);
        let gone = if stays == one { other } else { one };
        self.await_that("the removed end has noticed", self.outage_max(), |run| {
            run.pool.lives[gone].state == ProcessState::Killed
        })?;
        self.await_calm()?;
        Ok(true)
    }

    /// Gives all links between members one kind of fault, for some time.
    fn spoil_network(&mut self, lasts: Duration) -> Result<()> {
        let some = Share(0.01 + self.dice.below(10) as f64 / 100.0);
        let few = Share(some.0 / 10.0);
        let delay = Duration::from_millis(1 + self.dice.below(20));
        let none = LinkConditions::default();
        let conditions = match self.dice.below(6) {
            0 => LinkConditions { loss: some, ..none },
            1 => LinkConditions { delay, ..none },
            2 => LinkConditions { jitter: delay, duplicates: some, ..none },
            3 => LinkConditions { reordering: some, loss: few, ..none },
            // The end that receives that breaks the connection, and it is opened again.
            4 => LinkConditions { damage: Share(few.0 / 10.0), ..none },
            _ => LinkConditions { corruption: few, ..none },
        };
        self.say(format_args!("  {conditions:?}"));
        set_links(None, None, conditions)?;
        self.spoilt_until = Some(Instant::now() + lasts);
        Ok(())
    }

    /// Cuts all links for some time. No member ends by that, and all continue together \[V17\].
    fn cut_all(&mut self, lasts: Duration) -> Result<()> {
        // A member that was halted before may be about to be excluded.
        self.await_deliveries()?;
        self.rest(self.plan.suspicion / 2)?;
        let members = self.pool.view().1;
        set_links(None, None, LinkConditions { is_cut: true, ..LinkConditions::default() })?;
        self.rest(lasts)?;
        set_links(None, None, LinkConditions::default())?;
        self.await_deliveries()?;
        let kept = self.pool.view().1;
        ensure!(
            kept == members,
            "of the members {members:?} an outage has left {kept:?}: {}",
            self.pool.describe()
        );
        Ok(())
    }

    /// Takes the faults from all links.
    pub(super) fn mend_network(&mut self) -> Result<()> {
        match self.spoilt_until.take() {
            Some(_) => set_links(None, None, LinkConditions::default()),
            None => Ok(()),
        }
    }

    fn set_cut(&self, [one, other]: [usize; 2], both_ways: bool, is_cut: bool) -> Result<()> {
        let conditions = LinkConditions { is_cut, ..LinkConditions::default() };
        set_links(Some(one), Some(other), conditions)?;
        if both_ways { set_links(Some(other), Some(one), conditions) } else { Ok(()) }
    }

    /// Replaces each member: a process joins, and a member leaves in order as soon as that has joined.
    fn restart(&mut self) -> Result<bool> {
        for leaver in self.pool.running() {
            let joiner = self.join()?;
            self.await_that("the joiner has joined", START_TIMEOUT, |run| {
                run.pool.lives[joiner].state == ProcessState::Running
            })?;
            self.release(leaver)?;
        }
        Ok(true)
    }

    /// The configuration of a client.
    pub(super) fn client(&self) -> Result<Config> {
        let mut config = member::config(&self.pool.contact())?;
        if config.contacts.is_empty() {
            bail!("no member runs: {}", self.pool.describe());
        }
        if let Some(store) = &self.plan.store {
            config = config.subgroup(store::NAME, store::subgroup(store));
        }
        Ok(config)
    }
}

fn set_links(from: Option<usize>, to: Option<usize>, conditions: LinkConditions) -> Result<()> {
    ask_from_inside(&WireRequest::Set { from, to, conditions })
}

/// The number of members with all states that are left alone.
const HOLDERS_MIN: usize = 2;
/// How long a fault lasts that names no time.
const LASTS: Duration = Duration::from_secs(2);
