//! The node: a transport and the subgroups that use it, driven by one thread (Spindle §2.4: the polling thread).

mod answers;
mod entering;
mod figures;
mod flight;
pub(crate) mod polled_node;
mod shared;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use squall_fabric::{Core, Fabric as _, FabricEvent, Instant, NodeId, Shortage};
use squall_protocols::group::{ConsumerStandstill, GroupCore, GroupEnd, SubgroupId, ViewChange};
use squall_protocols::membership::{Membership, StopReason};
use squall_protocols::multicast::MulticastCounters;
use squall_transports::TransportFabric as _;
use squall_transports::log;
use squall_transports::runner::{Driven, IdleLimits, Runner};

use crate::application::GroupHandles;
use crate::config::{IdlePolicy, IdleRule};
use crate::durable::{LogLender, ProcessLog};
use crate::entry::admission::MemberAdmission;
use crate::error::GroupError;
use crate::handle::genuine::MulticastOutlet;
use crate::handle::node_handle::{MemberClock, NodeHandle};
use crate::slot::FeedPoller;
use crate::status::GroupStatus;
use crate::transport::AnyFabric;
pub(crate) use entering::EntryOptions;
use figures::FiguresWriter;
use flight::{FlightCopied, HoldUpsLogged};

/// A group's polling side. [`crate::Group::join`] gives it a thread of its own; an application that asked for
/// [`crate::Builder::join_polled`] calls [`Node::poll`] or [`Node::step`] itself, from any one thread.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-node-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let (mut group, mut node) = Group::builder(config).join_polled()?;
/// while !node.is_ready() {
///     node.step();
/// }
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// while deliveries.try_next()?.is_none() {
///     node.poll(); // never waits; `step` does
/// }
/// assert_eq!(node.counters("log").map(|counters| counters.messages_sent), Some(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Node {
    stack: Stack,
    runner: Runner,
}

/// What the runner drives: the transport and the group that uses it.
#[derive(Debug)]
struct Stack {
    fabric: AnyFabric,
    group: GroupCore<GroupHandles>,
    /// What the application sends to shards, if there are any.
    outlet: Option<MulticastOutlet>,
    /// What passes to the object in the shards, if there is one.
    feed: Option<FeedPoller>,
    /// The subgroups' names, by id.
    names: Vec<String>,
    /// The shards' names, by number.
    shards: Vec<String>,
    status: Arc<GroupStatus>,
    events: Vec<FabricEvent>,
    admission: MemberAdmission,
    /// The log of the durable subgroups.
    log: Option<Arc<ProcessLog>>,
    /// Lends it to other threads of this member.
    lender: Option<LogLender>,
    /// The durable subgroups, which are the shards of the register.
    durable: Vec<SubgroupId>,
    /// What this thread shows those who watch over the member.
    figures: Option<FiguresWriter>,
    flight_copied: FlightCopied,
    /// What was logged of the members that hold this one up, for each subgroup.
    hold_ups_logged: BTreeMap<SubgroupId, HoldUpsLogged>,
    /// Where the flight record is written when the group ends here.
    flight_file: Option<PathBuf>,
    /// The members that the fabric is connected to.
    peers: Vec<NodeId>,
    /// How long to spin, by the number of members.
    idle: IdleRule,
    /// The view that [`Stack::look_at_view`] saw last.
    seen: Option<u64>,
    /// Evaluations since the admission listener was polled, and since the state was checked for changes.
    skipped: u32,
    unchecked: u32,
    /// Looks whether there is something to measure or to show.
    looks: u32,
    /// The member that was distrusted last.
    distrusted: Option<NodeId>,
    /// It waited for a majority when this was looked at last.
    lacked_majority: bool,
    ended: bool,
    /// The group stopped in the middle of a step because an allocation failed: it is not polled any more.
    is_short: bool,
}

impl Node {
    pub(crate) fn handle(&self) -> NodeHandle {
        let Stack { status, fabric, lender, .. } = &self.stack;
        let log = lender.as_ref().map(LogLender::borrower);
        let clock = MemberClock::showing(fabric.now());
        NodeHandle { node: fabric.node(), status: Arc::clone(status), waker: fabric.waker(), log, clock }
    }

    /// Returns whether all members have attached, so that messages flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.stack.status.is_ready()
    }

    /// Returns why the group has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        if self.stack.ended { self.stack.status.failure() } else { None }
    }

    /// Returns whether this member has the state of its shard, or needs none.
    pub(crate) const fn has_shard_state(&self) -> bool {
        self.stack.group.has_shard_state()
    }

    /// Returns the latest view changes of this member, the oldest first, by the clock of [`Node::now`].
    pub fn timeline(&self) -> impl ExactSizeIterator<Item = &ViewChange> {
        self.stack.group.timeline()
    }

    /// Returns the current time by this member's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.stack.fabric.now()
    }

    /// Returns what subgroup `name` has done in the current view.
    #[must_use]
    pub fn counters(&self, name: &str) -> Option<MulticastCounters> {
        let id = self.stack.names.iter().position(|other| other == name)?;
        self.stack.group.counters(SubgroupId(u32::try_from(id).ok()?))
    }

    /// Returns how often the polling thread has parked.
    #[must_use]
    pub const fn parks(&self) -> u64 {
        self.runner.parks()
    }

    /// Returns the numbers of frames and bytes that went through system calls, if the transport makes any.
    #[must_use]
    pub fn tcp_counters(&self) -> Option<squall_transports::tcp::TcpCounters> {
        match &self.stack.fabric {
            AnyFabric::Tcp(fabric) => Some(fabric.counters()),
            AnyFabric::Shm(_) | AnyFabric::Verbs(_) | AnyFabric::Auto(_) => None,
        }
    }

    /// Returns how each other member is reached, and why, if the members chose that themselves (`transport =
    /// "auto"`).
    #[must_use]
    pub fn transports(&self) -> Option<&[squall_transports::composite::TransportChoice]> {
        match &self.stack.fabric {
            AnyFabric::Auto(fabric) => Some(fabric.choices()),
            AnyFabric::Shm(_) | AnyFabric::Tcp(_) | AnyFabric::Verbs(_) => None,
        }
    }

    /// Returns the numbers of posts and completions, if the transport is RDMA.
    #[must_use]
    pub fn verbs_counters(&self) -> Option<squall_transports::verbs::VerbsCounters> {
        match &self.stack.fabric {
            AnyFabric::Verbs(fabric) => Some(fabric.counters()),
            AnyFabric::Shm(_) | AnyFabric::Tcp(_) | AnyFabric::Auto(_) => None,
        }
    }

    /// Does all that can be done now, without waiting; returns the amount of work done.
    #[inline]
    pub fn poll(&mut self) -> usize {
        let Self { stack, .. } = self;
        if stack.is_short {
            return 0;
        }
        Shortage::catch(|| stack.poll()).unwrap_or_else(|shortage| stack.run_short(shortage))
    }

    /// Polls once; if there was nothing to do, waits as the configuration's idle policy says.
    pub fn step(&mut self) -> usize {
        let Self { stack, runner } = self;
        if stack.is_short {
            return 0;
        }
        let seen = stack.seen;
        let work =
            Shortage::catch(|| runner.step(stack)).unwrap_or_else(|shortage| stack.run_short(shortage));
        if runner.take_lack_of_processor() {
            stack.group.note_processor_wait(stack.fabric.now());
        }
        if stack.seen != seen {
            runner.set_limits(stack.idle_limits());
        }
        work
    }

    /// Runs until the group ends or its handle leaves.
    pub(crate) fn run(mut self) {
        while !self.stack.ended && !self.stack.status.is_stopping() {
            self.step();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stack.end(GroupError::Left);
    }
}

impl Driven for Stack {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    #[inline]
    fn poll(&mut self) -> usize {
        let mut work = self.fabric.poll(&mut |event| self.events.push(event));
        if !self.events.is_empty() {
            self.handle_events();
        }
        if let Some(outlet) = &mut self.outlet {
            work += outlet.poll(&mut self.group);
        }
        work += self.group.poll(&mut self.fabric);
        if let Some(feed) = &mut self.feed {
            work += feed.poll(&mut self.group);
        }
        if work > 0 {
            self.status.window_space.notify();
            self.status.messages.notify_watching();
            self.skipped += 1;
            // The state changes only by work: it is checked when there is no more work, but not between two messages of a view.
            let least = if self.has_new_view() { CHECK } else { CHECK - CHECK_SOON };
            self.unchecked = self.unchecked.max(least);
            if let Some(figures) = &mut self.figures {
                figures.has_news = true;
            }
        }
        // While messages flow, only one of `SKIP` evaluations polls the admission listener.
        if (work == 0 || self.skipped >= SKIP || self.has_new_view()) && !self.ended {
            self.skipped = 0;
            work += self.poll_admission();
            self.unchecked += 1;
            if self.unchecked > CHECK || self.status.is_leaving() || self.has_news() {
                self.unchecked = 0;
                self.check(work > 0);
                // A thread that has found the end does not park.
                work += usize::from(self.ended);
            }
        }
        work
    }

    fn look_at_all(&mut self) {
        Core::<AnyFabric>::look_at_all(&mut self.group);
        self.unchecked = CHECK;
    }

    fn next_deadline(&self) -> Option<Instant> {
        let group = Core::<AnyFabric>::next_deadline(&self.group);
        let figures = self.figures.as_ref().and_then(FiguresWriter::deadline);
        [group, self.admission.next_deadline(), figures].into_iter().flatten().min()
    }
}

impl Stack {
    #[cold]
    fn handle_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            self.group.handle_event(&mut self.fabric, &event);
            self.admission.handle_event(&event, &mut self.fabric, &mut self.group);
        }
    }

    /// Returns whether there is a view that has not been seen yet, because it is not ready; or the group has ended.
    #[inline]
    fn has_new_view(&self) -> bool {
        self.group.membership().map(|membership| membership.view().id) != self.seen
    }

    /// Returns whether the log of the durable subgroups has failed, or has something for the register, or the object in the
    /// shards has failed.
    #[inline]
    fn has_news(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.has_failed() || log.has_earlier())
            || self.feed.as_ref().is_some_and(FeedPoller::has_failed)
    }

    /// Serves the processes that connect to the admission listener; returns the amount of work done.
    #[inline]
    fn poll_admission(&mut self) -> usize {
        let mut work = 0;
        while let Some((asker, question)) = self.admission.poll(&mut self.fabric, &mut self.group) {
            self.answer(asker, &question);
            work += 1;
        }
        work
    }

    /// Checks the state for changes.
    fn check(&mut self, is_busy: bool) {
        self.admission.handle_timeout(&mut self.fabric, &mut self.group);
        self.report_distrust();
        if let Some(chain) = self.log.as_ref().and_then(|log| log.take_earlier()) {
            self.group.extend_register(&chain);
        }
        self.log.iter().for_each(|log| log.check_disk());
        // Before readiness is announced: a record that is read then has the view that has begun.
        self.copy_flight_news();
        if let Some(error) = self.log.as_ref().and_then(|log| log.failure()) {
            log::error!(%error, "this member ends");
            self.end(error);
        } else if let Some(cause) = self.feed.as_ref().and_then(FeedPoller::failure) {
            self.end(GroupError::Object { cause });
        } else if let Some(ended) = self.group.ended() {
            self.end(self.explain(ended));
        } else if self.group.is_ready() {
            self.status.set_ready();
            self.look_at_view();
        }
        self.report_majority();
        if self.status.is_leaving() {
            // What was sent to shards before is in no window that outlives this member's part in its view.
            if self.outlet.as_mut().is_none_or(MulticastOutlet::has_delivered_earlier) {
                self.group.leave();
            }
            let sole = self.group.membership().map_or_else(Vec::new, Membership::sole_states);
            let name = |state: u32| {
                let state = state as usize;
                self.names
                    .get(state)
                    .cloned()
                    .unwrap_or_else(|| format!("shard {}", state - self.names.len()))
            };
            *self.status.sole_states() = sole.into_iter().map(name).collect();
        }
        self.watch(is_busy);
    }

    /// Logs that this member has lost its majority, or that it has it again.
    fn report_majority(&mut self) {
        let lacks = self.group.lacks_majority();
        if std::mem::replace(&mut self.lacked_majority, lacks) == lacks {
            return;
        }
        let view = self.group.membership().map_or(0, |membership| membership.view().id);
        if lacks {
            log::warn!(
                view,
                "this member hears no majority of its view: it waits for one, keeps its state, and sends and delivers nothing meanwhile"
            );
        } else if self.group.ended().is_none() {
            log::info!(view, "the wait for a majority is over");
        }
    }

    /// Logs each member that this one accuses because of what it has written.
    fn report_distrust(&mut self) {
        let Some(membership) = self.group.membership() else { return };
        for (node, why) in membership.distrusted() {
            if self.distrusted != Some(*node) {
                self.distrusted = Some(*node);
                log::error!(%node, "this member asks the others to exclude a member that wrote {why}");
            }
        }
    }

    fn explain(&self, ended: GroupEnd) -> GroupError {
        match ended {
            GroupEnd::Stopped(StopReason::Left) => GroupError::Left,
            GroupEnd::Stopped(StopReason::Excluded) => {
                self.explain_slowness().unwrap_or(GroupError::Stopped(StopReason::Excluded))
            }
            GroupEnd::Stopped(stop) => GroupError::Stopped(stop),
            GroupEnd::Failed(id, failure) => {
                GroupError::Subgroup { subgroup: self.names[id.0 as usize].clone(), failure }
            }
            GroupEnd::ShardsFailed(failure) => GroupError::Genuine(failure),
            GroupEnd::NobodyLeft => GroupError::Stopped(StopReason::Excluded),
        }
    }

    /// Returns the error that this member was excluded because of its consumer, if it was. The others announce that
    /// it is gone, and not why, but its consumer has taken nothing for a long time. The others have waited for
    /// `slow_after`; on a busy machine this member may have noticed the standstill later than they did.
    fn explain_slowness(&self) -> Option<GroupError> {
        let ConsumerStandstill { subgroup, since, slow_after } = self.group.standstill()?;
        let (stood_still, slow_after) = (self.fabric.now().since(since), slow_after?);
        let subgroup = self.names[subgroup.0 as usize].clone();
        let is_cause = stood_still >= slow_after / 2;
        is_cause.then(|| GroupError::Slow { subgroup, stood_still: stood_still.max(slow_after), slow_after })
    }

    /// Returns how to wait while there is nothing to do, in a group of the present size.
    fn idle_limits(&self) -> IdleLimits {
        let limits = self.idle.limits(self.peers.len() + 1);
        if self.idle.policy == IdlePolicy::Auto { self.fabric.idle(limits) } else { limits }
    }

    /// Does what is due once in a view that all members have begun, and serves a joiner until it has entered the
    /// group.
    fn look_at_view(&mut self) {
        let Some(membership) = self.group.membership() else { return };
        if self.seen != Some(membership.view().id) {
            let view = membership.view().clone();
            self.seen = Some(view.id);
            let arrived = self.admission.begin_view(&view, &mut self.fabric, &mut self.group);
            self.peers.extend(arrived);
            // All others know by now that these are no longer members.
            for departed in self.peers.extract_if(.., |peer| view.rank(*peer).is_none()) {
                log::info!(view = view.id, node = %departed, "a member has left, or was found dead or silent");
                self.fabric.remove_peer(departed);
            }
        }
        self.admission.poll_view(&mut self.fabric, &mut self.group);
    }

    #[cold]
    fn run_short(&mut self, shortage: Shortage) -> usize {
        self.is_short = true;
        log::error!(%shortage, "this member ends");
        self.end(GroupError::Shortage(shortage));
        1
    }

    fn end(&mut self, error: GroupError) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.end_flight(&error);
        self.status.fail(error);
        self.group.close();
        // Notify again now that all is closed: a waiter that checks again finds the end.
        self.status.window_space.notify();
        self.status.messages.notify();
        // Its disk may hang, and no waiter is to wait for that.
        self.write_flight();
    }
}

/// While messages flow, the admission listener is polled in one of this many evaluations.
const SKIP: u32 = 64;

/// When idle, the state is checked in one of this many evaluations, in case it has changed without any work, and before a node sleeps.
const CHECK: u32 = 64;

/// After work it is checked in one of this many evaluations without work: more than there are between two messages that are sent one at a
/// time, each of which would wait for a check otherwise.
const CHECK_SOON: u32 = 32;
