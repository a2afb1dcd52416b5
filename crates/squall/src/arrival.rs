//! A node on its way into its group: admitted and linked, until messages can flow (Derecho §3.3).
//!
//! A process that stood still meanwhile finds that the others have gone on without it. Its application has no handle yet and has
//! sent nothing, so it may come once more, as another node. If the view had begun before the pause, upcalls may have had messages
//! of it; the next view's messages follow with a gap, as for any member that joins.

use squall_fabric::{Core, Duration, Event, Fabric as _, Instant, NodeId};
use squall_protocols::group::{Ended, Group};
use squall_protocols::membership::Stop;
use squall_transports::runner::{Driven, Idle, Runner};

use crate::application::Handles;
use crate::transport::AnyFabric;

/// A node on its way into its group.
pub(crate) struct Arrival<'a> {
    fabric: &'a mut AnyFabric,
    group: &'a mut Group<Handles>,
    leader: NodeId,
    /// When it gives up for good.
    timeout: Instant,
    /// When this attempt is over; no later than `timeout`.
    deadline: Instant,
    events: Vec<Event>,
}

/// How an attempt to come in ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Messages can flow, or the group has failed here, which its owner finds out.
    In,
    /// Whoever has admitted it can no longer let it in.
    Orphaned,
    /// It was in a view that has gone on without it.
    Removed(Stop),
    /// The time is over; no view has come.
    NoView,
    /// The time is over; not all members have begun the view.
    NotReady,
}

impl<'a> Arrival<'a> {
    /// A node that `leader` has admitted, which waits no longer than `patience`.
    pub(crate) fn new(
        fabric: &'a mut AnyFabric,
        group: &'a mut Group<Handles>,
        leader: NodeId,
        patience: Duration,
    ) -> Self {
        let timeout = fabric.now() + patience;
        Self { fabric, group, leader, timeout, deadline: timeout, events: Vec::new() }
    }

    /// Waits until messages can flow to this node and from it.
    pub(crate) fn come_in(mut self, idle: Idle) -> Arrived {
        let (mut runner, mut orphan_until) = (Runner::new(idle), None);
        while !(self.group.is_ready() && self.is_up_to_date()) {
            runner.step(&mut self);
            match self.group.ended() {
                Some(Ended::Stopped(stop)) => return Arrived::Removed(stop),
                Some(Ended::NobodyLeft) => return Arrived::Orphaned,
                Some(Ended::Failed(..)) => return Arrived::In,
                None => {}
            }
            let (now, is_waiting) = (self.fabric.now(), self.group.membership().is_none());
            if orphan_until.is_none() && self.group.has_lost(self.leader) {
                // The others may let it in yet, if the leader has told them.
                orphan_until = Some(now + ORPHAN_PATIENCE);
            }
            self.deadline = match orphan_until {
                Some(until) if is_waiting => self.deadline.min(until),
                _ => self.timeout,
            };
            if now >= self.timeout {
                return if is_waiting { Arrived::NoView } else { Arrived::NotReady };
            }
            if now >= self.deadline {
                return Arrived::Orphaned;
            }
        }
        Arrived::In
    }
}

impl Arrival<'_> {
    /// Looks at all that has come by now, and whether the view has begun all the same: after a pause the news that it has begun
    /// may lie before the news that it is over.
    fn is_up_to_date(&mut self) -> bool {
        let mut idle = 0;
        for _ in 0..LOOKS_MAX {
            idle = if self.poll() == 0 { idle + 1 } else { 0 };
            if idle == LOOKS_IDLE {
                break;
            }
        }
        self.group.is_ready()
    }
}

impl Driven for Arrival<'_> {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        self.fabric
    }

    fn poll(&mut self) -> usize {
        let work = self.fabric.poll(&mut |event| self.events.push(event));
        for event in self.events.drain(..) {
            self.group.handle_event(self.fabric, &event);
        }
        work + self.group.poll(self.fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let group = Core::<AnyFabric>::next_deadline(self.group);
        group.into_iter().chain([self.deadline]).min()
    }
}

/// So many evaluations in a row that find nothing have looked at all that was there.
const LOOKS_IDLE: u32 = 16;

/// Where messages flow, there is always something.
const LOOKS_MAX: u32 = 1000;

/// How long who has lost the leader that has admitted it waits for the others.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(1);
