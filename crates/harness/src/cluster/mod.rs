//! The parent's side: starts members as processes of this program, brings them together, watches them, ends them.
//!
//! Member 0 is started first and reports its address; then the others start. Each has a process group of its own, so
//! that Ctrl-C reaches the parent alone, which ends them all; if the parent is killed, they end themselves. Whatever
//! happens, every member is reaped before the command returns.

pub(crate) mod churn;
mod death;
mod process;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::config::VerbsSettings;
use squall_transports::verbs;

use crate::clock::now_ns;
use crate::control::{
    EncryptionName, GroupJob, IdleName, MemberEvent, MemberJob, MemberLocation, MemberReport, MemberWork,
    ParentCommand, TransportName,
};
use crate::cores;
use crate::lab::LabMap;
use crate::terminal::{Interrupted, Interrupts};
pub(crate) use death::MemberDeaths;
use process::MemberProcess;
pub(crate) use process::launcher;

/// The time for members to come together, a little more than their own.
const READY_TIMEOUT: Duration = Duration::from_secs(40);

/// The time for members that have come together to make progress, on a busy machine.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The time for members to end when they are asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which the others notice that a member has died and report it.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(3);

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    pub(crate) transport: TransportName,
    pub(crate) encryption: EncryptionName,
    pub(crate) members: usize,
    pub(crate) idle: IdleName,
    /// The members take these in turn; without any they are here.
    pub(crate) locations: Vec<MemberLocation>,
    pub(crate) work: MemberWork,
    /// The work continues when members die, as long as the group does.
    pub(crate) survives: bool,
    /// One of the members is killed.
    pub(crate) kill: Option<PlannedKill>,
    /// When it has been killed, another process joins with the next rank.
    pub(crate) join: bool,
}

/// Which member is killed, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedKill {
    pub(crate) rank: usize,
    /// It has done this much.
    pub(crate) after: u64,
}

/// By which a group and its members are known.
#[derive(Clone, Debug)]
pub(crate) struct ClusterIdentity {
    name: String,
    secret: String,
}

impl ClusterIdentity {
    /// One that no other run on this host has.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { name: unique_name(), secret: random_secret()? })
    }
}

/// How the work has ended.
#[derive(Debug)]
pub(crate) struct ClusterEnding {
    /// What each member has done; `None` for those that died.
    pub(crate) reports: Vec<Option<MemberReport>>,
    /// Which members died, and how.
    pub(crate) deaths: Option<MemberDeaths>,
    /// When the plan's member was killed, in nanoseconds of the clock that the processes of a host share.
    pub(crate) killed_ns: Option<u64>,
}

/// The life of members that were all killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterLife {
    /// How long they took to come together.
    pub(crate) started: Duration,
    /// The greatest progress of a member when they came together.
    pub(crate) found: u64,
    /// The greatest progress that a member had reported when they were killed: `found <= done`.
    pub(crate) done: u64,
}

/// Is informed of what happens.
pub(crate) trait ClusterObserver {
    /// Member `rank` runs as process `pid`.
    fn on_started(&mut self, rank: usize, pid: u32);
    /// This number of members have joined.
    fn on_joined(&mut self, joined: usize);
    /// Member `rank` has done this much.
    fn on_progress(&mut self, rank: usize, done: u64);
    /// Member `rank` continues without `member`.
    fn on_gone(&mut self, _rank: usize, _member: usize) {}
}

/// What a member's pipe brings.
enum Notice {
    Event(usize, MemberEvent),
    /// The pipe has closed, or brought nonsense.
    Closed(usize, Option<String>),
    Interrupted,
}

/// Members that run. Dropping it kills and reaps them.
pub(crate) struct ProcessCluster<'o> {
    processes: Vec<MemberProcess>,
    notices: Receiver<Notice>,
    sender: Sender<Notice>,
    observer: &'o mut dyn ClusterObserver,
    /// From now on members may die.
    survives: bool,
    /// Where each member listens.
    addresses: Vec<Option<String>>,
    /// The latest view that was sent to the joiner.
    announced_view: Option<u64>,
    /// The greatest progress that a member has reported.
    done: u64,
}

impl<'o> ProcessCluster<'o> {
    /// Starts the members, lets them do their work, and returns what each has done.
    ///
    /// # Errors
    /// If a member fails, or dies and the plan does not survive that: which, how, and what the others report. All have
    /// ended then.
    pub(crate) fn run(
        plan: &ClusterPlan,
        interrupts: &Interrupts,
        observer: &'o mut dyn ClusterObserver,
    ) -> Result<ClusterEnding> {
        Self::run_as(plan, &ClusterIdentity::new()?, interrupts, observer)
    }

    /// As [`ProcessCluster::run`], for a group that has this name.
    ///
    /// # Errors
    /// The errors of [`ProcessCluster::run`].
    pub(crate) fn run_as(
        plan: &ClusterPlan,
        identity: &ClusterIdentity,
        interrupts: &Interrupts,
        observer: &'o mut dyn ClusterObserver,
    ) -> Result<ClusterEnding> {
        let mut cluster = Self::begin(plan, identity, interrupts, observer)?;
        cluster.survives = plan.survives;
        cluster.send_all(&ParentCommand::Go);
        let (reports, killed_ns) = cluster.await_reports(plan, identity)?;
        cluster.stop();
        let deaths = reports.iter().any(Option::is_none).then(|| MemberDeaths::of(&mut cluster.processes));
        Ok(ClusterEnding { reports, deaths, killed_ns })
    }

    /// Starts the members, lets them work, and kills them all (-9): `work` after one of them has reported progress since they came
    /// together, or, without `under_load`, `work` after that.
    ///
    /// # Errors
    /// If a member fails before, or none makes progress within a minute.
    pub(crate) fn run_to_death(
        plan: &ClusterPlan,
        identity: &ClusterIdentity,
        work: Duration,
        under_load: bool,
        interrupts: &Interrupts,
        observer: &'o mut dyn ClusterObserver,
    ) -> Result<ClusterLife> {
        let begun = Instant::now();
        let mut cluster = Self::begin(plan, identity, interrupts, observer)?;
        let (started, found) = (begun.elapsed(), cluster.done);
        cluster.send_all(&ParentCommand::Go);
        let now = Instant::now();
        let mut deadline = now + if under_load { PROGRESS_TIMEOUT } else { work };
        let mut waits = under_load;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let Ok(notice) = cluster.notices.recv_timeout(left) else { break };
            cluster.handle(notice)?;
            if waits && cluster.done > found {
                (waits, deadline) = (false, Instant::now() + work);
            }
        }
        ensure!(!waits, "no member made progress within {PROGRESS_TIMEOUT:?}");
        cluster.processes.iter_mut().for_each(MemberProcess::kill);
        Ok(ClusterLife { started, found, done: cluster.done })
    }

    /// Starts the members, lets them do their work, and kills them all (-9) when it is done. Returns how long they took to come
    /// together.
    ///
    /// # Errors
    /// If a member fails or dies before.
    pub(crate) fn run_then_kill(
        plan: &ClusterPlan,
        identity: &ClusterIdentity,
        interrupts: &Interrupts,
        observer: &'o mut dyn ClusterObserver,
    ) -> Result<Duration> {
        let begun = Instant::now();
        let mut cluster = Self::begin(plan, identity, interrupts, observer)?;
        let started = begun.elapsed();
        cluster.send_all(&ParentCommand::Go);
        cluster.await_reports(plan, identity)?;
        cluster.processes.iter_mut().for_each(MemberProcess::kill);
        Ok(started)
    }

    /// Starts the members, and returns when messages can flow.
    fn begin(
        plan: &ClusterPlan,
        identity: &ClusterIdentity,
        interrupts: &Interrupts,
        observer: &'o mut dyn ClusterObserver,
    ) -> Result<Self> {
        check_locations(plan.transport, &lab_locations(&plan.locations)?)?;
        let (sender, notices) = channel();
        let to_cluster = sender.clone();
        // Fails if the cluster has gone, and then there is nothing to interrupt.
        interrupts.set(move || drop(to_cluster.send(Notice::Interrupted)));
        let (addresses, announced_view) = (Vec::new(), None);
        let processes = Vec::new();
        let mut cluster = Self {
            processes,
            notices,
            sender,
            observer,
            survives: false,
            addresses,
            announced_view,
            done: 0,
        };
        cluster.assemble(plan, identity)?;
        Ok(cluster)
    }

    fn assemble(&mut self, plan: &ClusterPlan, identity: &ClusterIdentity) -> Result<()> {
        for (rank, core) in cores::for_members(plan.members).into_iter().enumerate() {
            let contact = self.addresses.first().cloned().flatten();
            self.start(plan, identity, GroupJob { core, contact, ..blank(plan, rank) })?;
            if rank == 0 {
                self.await_address()?;
            }
        }
        self.await_ready()
    }

    /// Starts a member of this cluster.
    fn start(
        &mut self,
        plan: &ClusterPlan,
        ClusterIdentity { name, secret }: &ClusterIdentity,
        group: GroupJob,
    ) -> Result<()> {
        let number = self.processes.len();
        let group = GroupJob { name: name.clone(), secret: secret.clone(), ..group };
        let process =
            MemberProcess::start(&MemberJob { group, work: plan.work.clone() }, number, &self.sender)?;
        self.observer.on_started(number, process.pid());
        self.processes.push(process);
        self.addresses.push(None);
        Ok(())
    }

    /// Starts a process that joins.
    fn start_joiner(&mut self, plan: &ClusterPlan, identity: &ClusterIdentity) -> Result<()> {
        let others = self.addresses.iter().zip(&self.processes).filter(|(_, process)| !process.is_closed());
        let joins = others.filter_map(|(address, _)| address.clone()).collect();
        self.start(plan, identity, GroupJob { joins, ..blank(plan, plan.members) })
    }

    /// Waits until member 0 listens.
    fn await_address(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.addresses[0].is_none() {
            self.next_event(deadline)?;
        }
        Ok(())
    }

    fn await_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut ready = 0;
        while ready < self.processes.len() {
            match self.next_event(deadline)? {
                Some((0, MemberEvent::Joined { joined })) => self.observer.on_joined(joined),
                Some((_, MemberEvent::Ready)) => ready += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for all reports; returns them, and when a member was killed.
    fn await_reports(
        &mut self,
        plan: &ClusterPlan,
        identity: &ClusterIdentity,
    ) -> Result<(Vec<Option<MemberReport>>, Option<u64>)> {
        let (mut killed_ns, mut kill) = (None, plan.kill);
        let mut reports: Vec<Option<MemberReport>> = self.processes.iter().map(|_| None).collect();
        while (0..reports.len()).any(|rank| reports[rank].is_none() && !self.processes[rank].is_closed()) {
            match self.next_event(Instant::now() + Duration::from_secs(1 << 32))? {
                Some((rank, MemberEvent::Progress { done })) => {
                    self.observer.on_progress(rank, done);
                    if kill.take_if(|kill| rank == kill.rank && done >= kill.after).is_some() {
                        killed_ns = Some(now_ns());
                        self.processes[rank].kill();
                        if plan.join {
                            self.start_joiner(plan, identity)?;
                            reports.push(None);
                        }
                    }
                }
                // All members report the same.
                Some((_, MemberEvent::Arrived { view, missing })) if self.announced_view < Some(view) => {
                    self.announced_view = Some(view);
                    self.processes[plan.members].send(&ParentCommand::CatchUp { view, missing });
                }
                Some((rank, MemberEvent::Gone { member })) => self.observer.on_gone(rank, member),
                Some((rank, MemberEvent::Done(report))) => {
                    self.observer.on_progress(rank, report.delivered);
                    reports[rank] = Some(*report);
                    self.processes[rank].done = true;
                }
                _ => {}
            }
        }
        if reports.iter().all(Option::is_none) {
            return Err(self.await_last_words().into());
        }
        Ok((reports, killed_ns))
    }

    /// Waits for the next report of a member; a member that fails ends all.
    fn next_event(&mut self, deadline: Instant) -> Result<Option<(usize, MemberEvent)>> {
        let notice = match self.notices.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(notice) => notice,
            Err(RecvTimeoutError::Timeout) => {
                bail!("the members did not come together within {READY_TIMEOUT:?}")
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("this side holds a sender"),
        };
        self.handle(notice)
    }

    fn handle(&mut self, notice: Notice) -> Result<Option<(usize, MemberEvent)>> {
        match notice {
            Notice::Interrupted => Err(Interrupted::ENDED.into()),
            Notice::Event(rank, MemberEvent::Failed { message }) => {
                self.processes[rank].last_words = Some(message);
                Err(self.await_last_words().into())
            }
            Notice::Event(rank, event) => {
                match &event {
                    MemberEvent::Listening { address } => self.addresses[rank] = Some(address.clone()),
                    MemberEvent::Progress { done } => self.done = self.done.max(*done),
                    _ => {}
                }
                Ok(Some((rank, event)))
            }
            Notice::Closed(rank, None) if self.survives => {
                self.processes[rank].close(None);
                Ok(None)
            }
            Notice::Closed(rank, nonsense) => {
                self.processes[rank].close(nonsense);
                Err(self.await_last_words().into())
            }
        }
    }

    /// After a failure: collects how each member ends and what it reports, to distinguish the member that died from those that
    /// only noticed.
    fn await_last_words(&mut self) -> MemberDeaths {
        let deadline = Instant::now() + LAST_WORDS_TIMEOUT;
        while self.processes.iter_mut().any(MemberProcess::may_speak) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.notices.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok(Notice::Event(rank, MemberEvent::Failed { message })) => {
                    self.processes[rank].last_words = Some(message);
                }
                Ok(Notice::Closed(rank, nonsense)) => self.processes[rank].close(nonsense),
                Ok(Notice::Interrupted) => break,
                _ => {}
            }
        }
        MemberDeaths::of(&mut self.processes)
    }

    fn send_all(&mut self, command: &ParentCommand) {
        for process in &mut self.processes {
            process.send(command);
        }
    }

    /// Lets the members leave.
    fn stop(&mut self) {
        self.send_all(&ParentCommand::Stop);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.processes.iter_mut().any(MemberProcess::is_running) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The job of the member with this rank, except for what belongs to this one run.
fn blank(plan: &ClusterPlan, rank: usize) -> GroupJob {
    // It has been checked that they can be read.
    let locations = lab_locations(&plan.locations).unwrap_or_default();
    GroupJob {
        name: String::new(),
        secret: String::new(),
        transport: plan.transport,
        encryption: plan.encryption,
        members: plan.members,
        rank,
        contact: None,
        joins: Vec::new(),
        core: None,
        idle: plan.idle,
        location: locations.get(rank % locations.len().max(1)).cloned().unwrap_or_default(),
    }
}

/// Checks that members on this transport can run at these places, before any is started, so that one error says why not.
pub(crate) fn check_locations(transport: TransportName, locations: &[MemberLocation]) -> Result<()> {
    match transport {
        TransportName::Shm if !locations.is_empty() => bail!(
            "members on shared memory run here, not elsewhere: choose --transport tcp, auto or verbs, or omit --at"
        ),
        TransportName::Verbs => check_devices(locations),
        _ => Ok(()),
    }
}

/// These locations or, without any, the hosts of the lab in which this process runs.
pub(crate) fn lab_locations(locations: &[MemberLocation]) -> Result<Vec<MemberLocation>> {
    match LabMap::of_this_process()? {
        Some(map) if locations.is_empty() => {
            Ok((0..map.hosts.len()).map(|host| MemberLocation::on_host(&map, host)).collect())
        }
        _ => Ok(locations.to_vec()),
    }
}

fn check_devices(locations: &[MemberLocation]) -> Result<()> {
    let mut devices: Vec<_> = locations.iter().map(|location| location.device.clone()).collect();
    devices.push(None);
    // Without a location, any device will do.
    devices.truncate(locations.len().max(1));
    for device in devices {
        verbs::check(&VerbsSettings { device, ..VerbsSettings::default() }, &[])?;
    }
    Ok(())
}

fn random_secret() -> Result<String> {
    use std::io::Read as _;
    let mut bytes = [0; 32];
    let mut source = std::fs::File::open("/dev/urandom").context("cannot make a secret")?;
    source.read_exact(&mut bytes).context("cannot make a secret")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A name that no other run on this host has.
fn unique_name() -> String {
    use squall_fabric::atomics::{AtomicU64, Ordering};
    static RUNS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed))
}
