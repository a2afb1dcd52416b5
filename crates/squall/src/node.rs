//! The node: a transport with the subgroups on it, driven by one thread (Spindle §2.4: the polling thread).

use std::sync::Arc;

use squall_fabric::{Core, Event, Fabric as _, Instant, NodeId};
use squall_protocols::group::{Ended, Group, Settings, SubgroupId};
use squall_protocols::membership::{self, Member, Stop, View};
use squall_protocols::multicast::Counters;
use squall_transports::Transport as _;
use squall_transports::runner::{Driven, Idle, Runner};

use crate::application::{Handles, layout};
use crate::config::Config;
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

/// What the runner drives: the transport and the group on it.
#[derive(Debug)]
struct Stack {
    fabric: AnyFabric,
    group: Group<Handles>,
    /// The subgroups' names, by id.
    names: Vec<String>,
    status: Arc<Status>,
    events: Vec<Event>,
    /// The members that the fabric is connected with.
    peers: Vec<NodeId>,
    ended: bool,
}

impl Node {
    pub(crate) fn new(
        mut fabric: AnyFabric,
        members: &[NodeId],
        config: &Config,
        application: Handles,
        status: Arc<Status>,
        idle: Idle,
    ) -> Self {
        let view = View::first(members.iter().map(|node| Member { node: *node, tag: 0 }).collect());
        let membership = membership::Settings {
            suspicion_after: config.suspicion_after,
            partition_safety: config.partition_safety,
        };
        let layout = layout(&config.subgroups);
        let group = Group::begin(&mut fabric, view, layout, Settings { membership }, application);
        let names = config.subgroups.keys().cloned().collect();
        let peers = members.iter().copied().filter(|node| *node != fabric.node()).collect();
        let stack = Stack { fabric, group, names, status, events: Vec::new(), peers, ended: false };
        Self { stack, runner: Runner::new(idle) }
    }

    /// Whether all members have attached: messages flow from now on.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.stack.status.is_ready()
    }

    /// Why the group has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        if self.stack.ended { self.stack.status.failure() } else { None }
    }

    /// What subgroup `name` has done in the present view.
    #[must_use]
    pub fn counters(&self, name: &str) -> Option<Counters> {
        let id = self.stack.names.iter().position(|other| other == name)?;
        self.stack.group.counters(SubgroupId(u32::try_from(id).ok()?))
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
        work += self.group.poll(&mut self.fabric);
        if work > 0 {
            self.status.room.notify();
            self.status.messages.notify();
        } else if !self.ended {
            self.check();
        }
        work
    }

    fn next_deadline(&self) -> Option<Instant> {
        Core::<AnyFabric>::next_deadline(&self.group)
    }
}

impl Stack {
    #[cold]
    fn handle_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            self.group.handle_event(&mut self.fabric, &event);
        }
    }

    /// Looks for changes of state.
    fn check(&mut self) {
        if let Some(ended) = self.group.ended() {
            self.end(self.explain(ended));
        } else if self.group.is_ready() {
            self.status.set_ready();
            self.part_with_the_departed();
        }
    }

    fn explain(&self, ended: Ended) -> GroupError {
        match ended {
            Ended::Stopped(Stop::Left) => GroupError::Left,
            Ended::Stopped(stop) => GroupError::Stopped(stop),
            Ended::Failed(id, failure) => {
                GroupError::Subgroup { subgroup: self.names[id.0 as usize].clone(), failure }
            }
            Ended::NobodyLeft => GroupError::Stopped(Stop::Excluded),
        }
    }

    /// Closes the connections to those who are no longer members, once all others know that.
    fn part_with_the_departed(&mut self) {
        let Some(membership) = self.group.membership().filter(|_| !self.peers.is_empty()) else { return };
        let view = membership.view();
        for departed in self.peers.extract_if(.., |peer| view.rank(*peer).is_none()) {
            self.fabric.remove_peer(departed);
        }
    }

    fn end(&mut self, error: GroupError) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.status.fail(error);
        self.group.close();
        // Once more, now that all is closed: whoever looks again finds the end.
        self.status.room.notify();
        self.status.messages.notify();
    }
}

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
