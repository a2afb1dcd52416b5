//! A node on its way into its group: admitted and linked, and not yet in a view (Derecho §3.3).

use squall_fabric::{Core, Duration, Event, Fabric as _, Instant, NodeId};
use squall_protocols::group::Group;
use squall_transports::runner::{Driven, Idle, Runner};

use crate::application::Handles;
use crate::transport::AnyFabric;

/// A node on its way into its group.
pub(crate) struct Arrival<'a> {
    fabric: &'a mut AnyFabric,
    group: &'a mut Group<Handles>,
    leader: NodeId,
    /// When it gives up.
    deadline: Instant,
    events: Vec<Event>,
}

impl<'a> Arrival<'a> {
    /// A node that `leader` has admitted, which waits no longer than `patience`.
    pub(crate) fn new(
        fabric: &'a mut AnyFabric,
        group: &'a mut Group<Handles>,
        leader: NodeId,
        patience: Duration,
    ) -> Self {
        let deadline = fabric.now() + patience;
        Self { fabric, group, leader, deadline, events: Vec::new() }
    }

    /// Waits until this node is in a view; false if whoever has admitted it can no longer let it in, or the time is over.
    pub(crate) fn come_in(mut self, idle: Idle) -> bool {
        let (mut runner, mut is_led) = (Runner::new(idle), true);
        while self.group.membership().is_none() {
            runner.step(&mut self);
            if is_led && self.group.has_lost(self.leader) {
                // The others may let it in yet, if the leader has told them.
                is_led = false;
                self.deadline = self.deadline.min(self.fabric.now() + ORPHAN_PATIENCE);
            }
            if self.group.ended().is_some() || self.fabric.now() >= self.deadline {
                return false;
            }
        }
        true
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

/// How long who has lost the leader that has admitted it waits for the others.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(1);
