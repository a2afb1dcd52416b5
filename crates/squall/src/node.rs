//! The node: a transport with the subgroups on it, driven by one thread (Spindle §2.4: the polling thread).

use std::sync::Arc;

use squall_fabric::{BreakReason, Core, Duration, Event, Fabric, Instant, MirrorKey, NodeId};
use squall_protocols::multicast::{Counters, Deliver, NoUpcall, Subgroup};
use squall_transports::Transport as _;
use squall_transports::runner::{Driven, Idle, Runner};

use crate::error::GroupError;
use crate::status::Status;
use crate::transport::AnyFabric;

/// A group's polling side. [`crate::Group::join`] gives it a thread of its own; an application that asked for
/// [`crate::Builder::join_polled`] calls [`Node::poll`] or [`Node::step`] itself, from any one thread.
#[derive(Debug)]
pub struct Node {
    stack: Stack,
    runner: Runner,
}

/// What the runner drives: the transport and the subgroups on it.
#[derive(Debug)]
struct Stack {
    fabric: AnyFabric,
    subgroups: Vec<Member>,
    status: Arc<Status>,
    events: Vec<Event>,
    ready: bool,
    /// A peer that is gone, and since when; the group ends when nothing more can be delivered.
    lost: Option<(NodeId, BreakReason, Instant)>,
    ended: bool,
}

/// One subgroup of this node.
#[derive(Debug)]
struct Member {
    name: String,
    core: AnySubgroup,
}

pub(crate) type BoxedUpcall = Box<dyn Deliver + Send>;

pub(crate) enum AnySubgroup {
    Upcall(Subgroup<BoxedUpcall>),
    Pulled(Subgroup<NoUpcall>),
}

impl std::fmt::Debug for AnySubgroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Upcall(core) => write!(f, "Upcall({:?})", core.counters()),
            Self::Pulled(core) => write!(f, "Pulled({:?})", core.counters()),
        }
    }
}

/// Calls the same method of whichever subgroup it is.
macro_rules! either {
    ($self:expr, $core:ident => $call:expr) => {
        match $self {
            AnySubgroup::Upcall($core) => $call,
            AnySubgroup::Pulled($core) => $call,
        }
    };
}

impl Node {
    pub(crate) fn new(fabric: AnyFabric, status: Arc<Status>, idle: Idle) -> Self {
        let stack = Stack {
            fabric,
            subgroups: Vec::new(),
            status,
            events: Vec::new(),
            ready: false,
            lost: None,
            ended: false,
        };
        Self { stack, runner: Runner::new(idle) }
    }

    pub(crate) const fn fabric(&mut self) -> &mut AnyFabric {
        &mut self.stack.fabric
    }

    pub(crate) fn add(&mut self, name: &str, core: AnySubgroup) {
        self.stack.subgroups.push(Member { name: name.into(), core });
    }

    /// The key under which subgroup number `index` publishes its rows.
    pub(crate) const fn key(index: usize) -> MirrorKey {
        MirrorKey(index as u64 + 1)
    }

    /// Whether all members have attached: messages flow from now on.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.stack.ready
    }

    /// Why the group has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        if self.stack.ended { self.stack.status.failure() } else { None }
    }

    /// What subgroup `name` has done so far.
    #[must_use]
    pub fn counters(&self, name: &str) -> Option<Counters> {
        let member = self.stack.subgroups.iter().find(|member| member.name == name)?;
        Some(either!(&member.core, core => *core.counters()))
    }

    /// How often the polling thread has parked.
    #[must_use]
    pub const fn parks(&self) -> u64 {
        self.runner.parks()
    }

    /// How many frames and bytes went through system calls, if the transport makes any.
    #[must_use]
    pub fn tcp_counters(&self) -> Option<squall_transports::tcp::TcpCounters> {
        match &self.stack.fabric {
            AnyFabric::Tcp(fabric) => Some(fabric.counters()),
            AnyFabric::Shm(_) | AnyFabric::Verbs(_) | AnyFabric::Auto(_) => None,
        }
    }

    /// How each other member is reached, and why so, if that was left to the members (`transport = "auto"`).
    #[must_use]
    pub fn ways(&self) -> Option<&[squall_transports::composite::Choice]> {
        match &self.stack.fabric {
            AnyFabric::Auto(fabric) => Some(fabric.choices()),
            AnyFabric::Shm(_) | AnyFabric::Tcp(_) | AnyFabric::Verbs(_) => None,
        }
    }

    /// How many posts and completions there were, if the transport is RDMA.
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
        self.stack.poll()
    }

    /// Polls once, and waits as the configuration's idle strategy says if there was nothing to do.
    pub fn step(&mut self) -> usize {
        self.runner.step(&mut self.stack)
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
        for member in &mut self.subgroups {
            work += either!(&mut member.core, core => core.poll(&mut self.fabric));
        }
        if work > 0 {
            self.status.room.notify();
            self.status.messages.notify();
        }
        if (work == 0 || self.lost.is_some()) && !self.ended {
            self.check(work == 0);
        }
        work
    }
}

impl Stack {
    #[cold]
    fn handle_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            if let Event::PeerLost { peer, reason } = event {
                self.lost.get_or_insert((peer, reason, self.fabric.now()));
            }
            for member in &mut self.subgroups {
                either!(&mut member.core, core => core.handle_event(&mut self.fabric, &event));
            }
        }
    }

    /// Looks for changes of state. A lost member ends the group when there is nothing else to do, so that what its
    /// last writes made deliverable is delivered first; but it ends it soon, whatever the others do.
    fn check(&mut self, idle: bool) {
        if !self.ready && self.subgroups.iter().all(|member| either!(&member.core, core => core.is_ready())) {
            self.ready = true;
            self.status.set_ready();
        }
        let failed = self.subgroups.iter().find_map(|member| {
            let failure = either!(&member.core, core => core.failure())?;
            Some(GroupError::Subgroup { subgroup: member.name.clone(), failure })
        });
        if let Some(error) = failed {
            self.end(error);
        } else if let Some((peer, reason, since)) = self.lost
            && (idle || self.fabric.now().since(since) > LOST_MEMBER_GRACE)
        {
            self.end(GroupError::MemberLost { member: peer.0 as usize, reason });
        }
    }

    fn end(&mut self, error: GroupError) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.status.fail(error);
        for member in &mut self.subgroups {
            either!(&mut member.core, core => core.close());
        }
        // Once more, now that all is closed: whoever looks again finds the end.
        self.status.room.notify();
        self.status.messages.notify();
    }
}

/// How long a group goes on delivering what a lost member's last writes made deliverable.
const LOST_MEMBER_GRACE: Duration = Duration::from_millis(100);

/// What the application's handles share with the node.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) status: Arc<Status>,
    pub(crate) waker: squall_transports::Waker,
}

impl Link {
    pub(crate) fn new(node: &Node) -> Self {
        Self { status: Arc::clone(&node.stack.status), waker: node.stack.fabric.waker() }
    }
}
