//! A member: a process that the parent has started, which does its work and reports to the parent.

pub(crate) mod churn;
mod dds;
mod demo;
mod genuine;
#[cfg(test)]
mod loopback;
mod multicast;
mod object_client;
pub(crate) mod outside_client;
pub(crate) mod parent_watchdog;
mod rdmc;
mod resident;
mod restart;
mod sst;
pub(crate) mod store;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use squall::config::{Address, Batching, Config, DeliveryMode, Secret, Transport};
use squall::{
    BootstrapProgress, Builder, Deliver, Group, Member, Message, MessageBatch, Node, Payload, SendError,
    Sender, View,
};
use squall_fabric::NodeId;
use squall_fabric::mutex::lock;
use squall_transports::composite::PeerTransport;

use crate::clock::now_ns;
use crate::control::{
    ChangeReport, GroupJob, MemberEvent, MemberJob, MemberReport, MemberWork, ModeName, TransportName,
};
use crate::lines::{read_line, write_line};
use crate::terminal::error_text;
pub(crate) use genuine::HEADER_BYTES as GENUINE_HEADER_BYTES;
pub(crate) use multicast::subgroup;
use parent_watchdog::ParentWatchdog;

/// The time for all members to come together; they start at once, so this is for a very busy machine.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a member that has failed waits for the parent to end it.
const LINGER: Duration = Duration::from_secs(5);

/// The one subgroup of the command's groups, or the first of them.
const SUBGROUP: &str = "all";

/// The name of the subgroup with this number; the names are in the order of the numbers.
fn subgroup_name(number: usize) -> String {
    if number == 0 { SUBGROUP.into() } else { format!("{SUBGROUP}-{number:04}") }
}

/// Runs this process as a member of the parent `parent`. Failures are reported to the parent; the result is
/// the exit status of the process.
pub(crate) fn run(parent: u32) -> i32 {
    parent_watchdog::die_with(parent);
    // Not inside `match`, which would keep standard input locked against the parent watchdog.
    let job = read_line::<MemberJob>(&mut std::io::stdin().lock());
    match job {
        Ok(Some(job)) => match perform(&job, &ParentWatchdog::watch()) {
            Ok(Ended::Well) => 0,
            Ok(Ended::Badly) => 1,
            Err(error) => {
                say(&MemberEvent::Failed { message: error_text(&error) });
                1
            }
        },
        // The parent has gone already.
        Ok(None) => 1,
        Err(error) => {
            say(&MemberEvent::Failed { message: error_text(&error) });
            1
        }
    }
}

fn perform(job: &MemberJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    // A participant has threads of its own, which would wait for each other on one core.
    if let Some(core) = job.group.core.filter(|_| !matches!(job.work, MemberWork::Dds(_))) {
        squall_transports::runner::pin(core);
    }
    match &job.work {
        MemberWork::Demo(work) => demo::perform(&job.group, work, watchdog),
        MemberWork::Multicast(work) => multicast::perform(&job.group, work, watchdog),
        MemberWork::Dds(work) => dds::perform(&job.group, work, watchdog),
        MemberWork::Genuine(work) => genuine::perform(&job.group, work, watchdog),
        MemberWork::Sst(work) => sst::perform(&job.group, work, watchdog),
        MemberWork::Churn(work) => churn::perform(&job.group, work, watchdog),
        MemberWork::Client(work) => outside_client::perform(&job.group, work, watchdog),
        MemberWork::Rdmc(work) => rdmc::perform(&job.group, work, watchdog),
        MemberWork::Restart(work) => restart::perform(&job.group, work, watchdog),
    }
}

/// Reports to the parent. If the parent has gone, the parent watchdog ends this process.
pub(crate) fn say(event: &MemberEvent) {
    let _ = write_line(&mut std::io::stdout().lock(), event);
}

/// Takes what a subgroup delivers, on the thread that polls.
pub(crate) trait MemberInbox: Send + 'static {
    fn on_message(&mut self, message: Message<'_>);

    /// After a run of messages that were delivered together.
    fn on_batch_end(&mut self);

    /// A view begins: from now on senders are indexes into these members, which are named by their ranks.
    fn on_view(&mut self, _view: u64, _members: &[usize]) {}
}

/// An inbox behind the library's upcalls.
struct Inlet<I> {
    inbox: I,
    /// The rank of each member of the present view, which the group announces before.
    ranks: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

impl<I: MemberInbox> Deliver for Inlet<I> {
    fn deliver(&mut self, _message: Message<'_>) {
        unreachable!("batches are taken whole");
    }

    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        batch.for_each(|message| self.inbox.on_message(message));
        self.inbox.on_batch_end();
    }

    fn begin_view(&mut self, view: u64, members: &[NodeId]) {
        let ranks = lock(&self.ranks);
        let members: Vec<usize> = members.iter().map(|node| ranks[node]).collect();
        drop(ranks);
        self.inbox.on_view(view, &members);
    }
}

/// Makes progress when it is polled.
pub(crate) trait PolledMember {
    /// Makes progress, and waits a little if there was nothing to do.
    fn step(&mut self) -> Result<()>;

    /// Makes progress without waiting.
    fn poll(&mut self) -> Result<()>;

    /// How long a member that sends at a pace may sleep between two polls.
    fn pause(&self) -> Duration {
        Duration::from_micros(200)
    }
}

/// Polls a member until all have begun.
fn await_ready<M: PolledMember>(member: &mut M, is_ready: impl Fn(&M) -> bool) -> Result<()> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    while !is_ready(member) {
        member.poll()?;
        anyhow::ensure!(Instant::now() < deadline, "not all members have begun within {JOIN_TIMEOUT:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Says that this member is ready, and polls it until all are, unless it has joined a group that runs: a member that is ready may still
/// have something for the others.
fn await_all(member: &mut impl PolledMember, group: &GroupJob, watchdog: &ParentWatchdog) -> Result<()> {
    say(&MemberEvent::Ready);
    if group.joins.is_empty() { await_go(member, watchdog) } else { Ok(()) }
}

/// Polls a member until all are ready.
fn await_go(member: &mut impl PolledMember, watchdog: &ParentWatchdog) -> Result<()> {
    while !watchdog.may_go()? {
        member.poll()?;
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// What a member's work needs of a group; tests have one without a network.
pub(crate) trait MulticastMember: PolledMember {
    /// Sends a message to the subgroup with this number, which `write` writes in place; false if the window is full now.
    fn try_send_to(
        &mut self,
        subgroup: usize,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<bool>;

    /// Sends a message to the first subgroup.
    #[inline]
    fn try_send(&mut self, length: usize, write: impl FnOnce(&mut Payload<'_>)) -> Result<bool> {
        self.try_send_to(0, length, write)
    }

    /// Sends up to `count` messages to the first subgroup together; `length` and `write` also get the number of each. Returns how
    /// many found space.
    #[inline]
    fn try_send_burst(
        &mut self,
        count: u64,
        length: impl Fn(u64) -> usize,
        mut write: impl FnMut(u64, &mut Payload<'_>),
    ) -> Result<u64> {
        for number in 0..count {
            if !self.try_send(length(number), |payload| write(number, payload))? {
                return Ok(number);
            }
        }
        Ok(count)
    }
}

/// A member of a real group, polled by the thread that sends.
pub(crate) struct GroupMember {
    node: Node,
    /// For each subgroup, by number.
    senders: Vec<Option<Sender>>,
    /// Leaves the group when dropped.
    _group: Group,
}

impl GroupMember {
    /// Joins and waits until messages can flow.
    pub(crate) fn join(
        job: &GroupJob,
        subgroup: squall::config::SubgroupConfig,
        inbox: impl MemberInbox,
    ) -> Result<Self> {
        Self::join_with(config(job)?.subgroup(SUBGROUP, subgroup), inbox)
    }

    /// As [`GroupMember::join`], by a configuration that has the subgroup.
    fn join_with(config: Config, inbox: impl MemberInbox) -> Result<Self> {
        Self::join_all(config, vec![inbox])
    }

    /// As [`GroupMember::join_with`], with an inbox for each of the configuration's subgroups ([`subgroup_name`]).
    fn join_all(config: Config, inboxes: Vec<impl MemberInbox>) -> Result<Self> {
        let subgroups = inboxes.len();
        let (mut group, node) = builder(config, inboxes).join_polled()?;
        let mut senders = Vec::new();
        for number in 0..subgroups {
            senders.push(group.subgroup(&subgroup_name(number))?.sender().ok());
        }
        let mut member = Self { node, senders, _group: group };
        await_ready(&mut member, |member| member.node.is_ready())?;
        Ok(member)
    }

    /// The view changes of this member, by the clock that the processes of a host share.
    pub(crate) fn timeline(&self) -> Vec<ChangeReport> {
        let offset_ns = now_ns().saturating_sub(self.node.now().as_nanos());
        self.node.timeline().map(|change| ChangeReport::new(change, offset_ns)).collect()
    }

    /// What the protocol has done, by name.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters: Vec<(&str, u64)> = vec![("parks", self.node.parks())];
        let subgroups =
            (0..self.senders.len()).filter_map(|number| self.node.counters(&subgroup_name(number)));
        let named = |multicast: squall::MulticastCounters| {
            [
                ("polls", multicast.polls),
                ("send_batches", multicast.send_batches),
                ("messages_sent", multicast.messages_sent),
                ("express", multicast.express),
                ("nulls_sent", multicast.nulls_sent),
                ("receive_batches", multicast.receive_batches),
                ("delivery_batches", multicast.delivery_batches),
                ("posts", multicast.posts),
            ]
        };
        let sums = subgroups.map(named).reduce(|sums, more| {
            let mut more = more.into_iter();
            sums.map(|(name, sum)| (name, sum + more.next().map_or(0, |(_, count)| count)))
        });
        counters.extend(sums.into_iter().flatten());
        for choice in self.node.transports().into_iter().flatten() {
            let transport = match choice.transport {
                PeerTransport::Shm => "peers_by_shm",
                PeerTransport::Verbs => "peers_by_verbs",
                PeerTransport::Tcp => "peers_by_tcp",
            };
            match counters.iter_mut().find(|(name, _)| *name == transport) {
                Some((_, peers)) => *peers += 1,
                None => counters.push((transport, 1)),
            }
        }
        if let Some(verbs) = self.node.verbs_counters() {
            counters.extend([
                ("verbs_posts", verbs.posts),
                ("verbs_doorbells", verbs.doorbells),
                ("verbs_completions", verbs.completions),
                ("verbs_rings", verbs.rings),
            ]);
        }
        if let Some(tcp) = self.node.tcp_counters() {
            counters.extend([
                ("tcp_frames_sent", tcp.frames_sent),
                ("tcp_send_calls", tcp.send_calls),
                ("tcp_receive_calls", tcp.receive_calls),
                ("tcp_poll_calls", tcp.poll_calls),
            ]);
        }
        counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }
}

/// A group; the messages and views of each of its subgroups go to an inbox.
fn builder(config: Config, inboxes: Vec<impl MemberInbox>) -> Builder {
    let ranks = Arc::<Mutex<BTreeMap<NodeId, usize>>>::default();
    let inlets: Vec<_> =
        inboxes.into_iter().map(|inbox| Inlet { inbox, ranks: Arc::clone(&ranks) }).collect();
    let note_ranks = move |view: &View| {
        let rank = |member: &Member| (member.node, usize::try_from(member.tag).unwrap_or(usize::MAX));
        *lock(&ranks) = view.members.iter().map(rank).collect();
    };
    let builder = Group::builder(config).on_progress(report_progress).on_view(note_ranks);
    inlets
        .into_iter()
        .enumerate()
        .fold(builder, |builder, (number, inlet)| builder.on_deliver(&subgroup_name(number), inlet))
}

impl MulticastMember for GroupMember {
    #[inline]
    fn try_send_to(
        &mut self,
        subgroup: usize,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<bool> {
        let sender = self.senders[subgroup].as_mut().context("this member does not send")?;
        match sender.send_written(length, write) {
            Ok(()) => Ok(true),
            Err(SendError::DiskFull) => Ok(false),
            Err(error) if error.is_passing() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn try_send_burst(
        &mut self,
        count: u64,
        length: impl Fn(u64) -> usize,
        mut write: impl FnMut(u64, &mut Payload<'_>),
    ) -> Result<u64> {
        let mut burst = self.senders[0].as_mut().context("this member does not send")?.burst();
        for number in 0..count {
            match burst.send_written(length(number), |payload| write(number, payload)) {
                Ok(()) => {}
                Err(error) if error.is_passing() => return Ok(number),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }
}

impl PolledMember for GroupMember {
    #[inline]
    fn step(&mut self) -> Result<()> {
        self.node.step();
        self.node.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn poll(&mut self) -> Result<()> {
        self.node.poll();
        self.node.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Reports what was done, and keeps acknowledging for the others until all are done. If the work has failed, reports that,
/// and does not leave before the others have noticed by themselves: else they would take this member for the one that died.
fn finish(mut member: impl PolledMember, outcome: Result<MemberReport>, watchdog: &ParentWatchdog) -> Ended {
    match outcome {
        Ok(report) => {
            say(&MemberEvent::Done(Box::new(report)));
            while !watchdog.is_stopped() {
                // A failure now comes after the work; the parent handles it.
                let _ = member.poll();
                std::thread::sleep(Duration::from_millis(1));
            }
            Ended::Well
        }
        Err(error) => {
            say(&MemberEvent::Failed { message: error_text(&error) });
            let deadline = Instant::now() + LINGER;
            while !watchdog.is_stopped() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ended::Badly
        }
    }
}

/// How a member's work has ended; the parent has been informed.
enum Ended {
    Well,
    Badly,
}

/// The configuration of the group, without its subgroup.
pub(crate) fn config(job: &GroupJob) -> Result<Config> {
    let mut config = Config::local(&job.name, job.members).for_rank(job.rank);
    config.secret = Secret::new(&job.secret)?;
    let transport = job.transport.transport();
    if transport != Transport::Shm {
        config.transport = transport;
        if transport == Transport::Tcp {
            // What is called TCP is TCP, also within a host.
            config.streams = Transport::Tcp;
        }
        config.encryption = job.encryption.into();
        config.verbs.device.clone_from(&job.location.device);
        let host = job.location.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        config.listen = Address::Tcp { host: host.to_string(), port: 0 };
        let contact = job.contact.as_ref().map(|contact| contact.parse()).transpose()?;
        config.contacts = contact.into_iter().collect();
    }
    if !job.joins.is_empty() {
        if job.transport == TransportName::Shm {
            // The member that had the rank before may be there yet, halted.
            config.listen = Address::Abstract(format!("squall-{}-p{}", job.name, std::process::id()));
        }
        config.contacts = job.joins.iter().map(|contact| contact.parse()).collect::<Result<_, _>>()?;
    }
    config.idle = job.idle.into();
    config.timeout = JOIN_TIMEOUT;
    Ok(config)
}

impl From<ModeName> for DeliveryMode {
    fn from(mode: ModeName) -> Self {
        match mode {
            ModeName::Atomic => Self::Atomic,
            ModeName::Durable => Self::Durable,
            ModeName::Unordered => Self::Unordered,
            ModeName::Raw => Self::Raw,
        }
    }
}

/// Which stages take all that is there.
const fn batching(send: bool, receive: bool, delivery: bool) -> Batching {
    Batching { send, receive, delivery }
}

/// Reports to the parent what happens while the members find each other.
pub(crate) fn report_progress(progress: BootstrapProgress) {
    match progress {
        BootstrapProgress::Listening { address } => {
            say(&MemberEvent::Listening { address: address.to_string() })
        }
        BootstrapProgress::Joined { joined, .. } => say(&MemberEvent::Joined { joined: joined as usize }),
        BootstrapProgress::Restarting { present, .. } => say(&MemberEvent::Joined { joined: present }),
        BootstrapProgress::Admitted { .. } => say(&MemberEvent::Admitted),
        BootstrapProgress::Waiting { contact, reason } => {
            say(&MemberEvent::Waiting { reason: format!("{contact}: {reason}") })
        }
        BootstrapProgress::Calling { contact, cause } => {
            say(&MemberEvent::Waiting { reason: format!("{contact}: {cause}") })
        }
        _ => {}
    }
}

/// Reports the progress of the work, many times a second and at little cost.
pub(crate) struct ProgressTicker {
    steps: u32,
    next: Instant,
}

impl ProgressTicker {
    const PERIOD: Duration = Duration::from_millis(20);

    pub(crate) fn new() -> Self {
        Self { steps: 0, next: Instant::now() + Self::PERIOD }
    }

    /// To be called after each step.
    #[inline]
    pub(crate) fn tick(&mut self, done: u64) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(64) && Instant::now() >= self.next {
            self.next = Instant::now() + Self::PERIOD;
            say(&MemberEvent::Progress { done });
        }
    }
}
