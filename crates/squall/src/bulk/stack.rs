//! What the runner drives in a session between hosts: the transport, RDMC, and the control connections (RDMC §2, fig. 1).

use squall_fabric::{BreakReason, Core, Event, Fabric, Instant, NodeId};
use squall_protocols::rdmc::{
    Answer, Application, Failure, GroupId, Memory, Object, Rdmc, Settings, Unfinished,
};
use squall_transports::runner::Driven;

use super::control::{Control, Message};
use super::{BulkError, rank};
use crate::transport::AnyFabric;

/// What the runner drives.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) fabric: AnyFabric,
    pub(super) core: Rdmc<Upcalls>,
    pub(super) control: Control,
    events: Vec<Event>,
    root: NodeId,
    /// By rank.
    pub(super) lost: Vec<bool>,
    /// When the runner has to come back at the latest.
    pub(super) alarm: Option<Instant>,
}

/// What RDMC has told.
#[derive(Default)]
pub(super) struct Upcalls {
    pub(super) asked: Option<Object>,
    pub(super) received: Option<(Object, Memory)>,
    /// Its number, until the root is told.
    untold: Option<u64>,
    /// When that was.
    pub(super) received_at: Option<std::time::Instant>,
    pub(super) released: Option<u64>,
    pub(super) failed: Option<Failure>,
    pub(super) blocks: u64,
    pub(super) on_block: Option<BoxedBlocks>,
}

/// Hears of blocks as they arrive.
pub(super) type BoxedBlocks = Box<dyn FnMut(u64) + Send>;

impl std::fmt::Debug for Upcalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upcalls")
            .field("asked", &self.asked)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Application<AnyFabric> for Upcalls {
    fn memory(&mut self, _: &mut AnyFabric, object: &Object) -> Answer {
        self.asked = Some(*object);
        Answer::Later
    }
    fn on_block(&mut self, _: &Object, block: u64) {
        self.blocks += 1;
        if let Some(on_block) = &mut self.on_block {
            on_block(block);
        }
    }
    fn on_received(&mut self, object: &Object, memory: &Memory) {
        self.received = Some((*object, memory.clone()));
        self.untold = Some(object.number);
        self.received_at = Some(std::time::Instant::now());
    }
    fn on_released(&mut self, object: &Object, _: Memory) {
        self.released = Some(object.number);
    }
    fn on_failed(&mut self, failure: Failure) {
        self.failed = Some(failure);
    }
}

impl Stack {
    pub(super) fn new(fabric: AnyFabric, core: Rdmc<Upcalls>, control: Control, members: &[NodeId]) -> Self {
        let lost = vec![false; members.len()];
        Self { fabric, core, control, events: Vec::new(), root: members[0], lost, alarm: None }
    }

    /// Whether nothing that was said waits in this process.
    pub(super) fn has_sent_all(&self) -> bool {
        self.core.has_said_all() && self.control.has_said_all() && self.fabric.is_flushed()
    }

    pub(super) const fn upcalls(&mut self) -> &mut Upcalls {
        self.core.application_mut()
    }

    /// Goes on from a group that has failed to the next one.
    pub(super) fn begin(
        &mut self,
        old: GroupId,
        group: GroupId,
        members: &[NodeId],
        settings: &Settings,
        first: u64,
        left: Vec<Unfinished>,
    ) -> Result<(), BulkError> {
        self.core.destroy(old).map_err(|_| BulkError::Scattered)?;
        let resumed = self.core.resume(&mut self.fabric, group, members, settings.clone(), first, left);
        resumed.map_err(|_| BulkError::Scattered)
    }
}

impl Driven for Stack {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    fn poll(&mut self) -> usize {
        let work = self.fabric.poll(&mut |event| self.events.push(event));
        for event in std::mem::take(&mut self.events) {
            if let Event::PeerLost { peer, reason } = event {
                debug_assert!(reason != BreakReason::Refused, "{peer} is lost by refusal");
                self.lost[rank(peer)] = true;
            }
            self.control.handle_event(&mut self.fabric, &event);
            self.core.handle_event(&mut self.fabric, &event);
        }
        let work = work + self.core.poll(&mut self.fabric);
        // In the same breath as the transport acknowledges the last block.
        if let Some(number) = self.upcalls().untold.take() {
            self.control.say(self.root, Message::Received { number });
        }
        work + self.control.poll(&mut self.fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.alarm.into_iter().chain(Core::<AnyFabric>::next_deadline(&self.core)).min()
    }
}
