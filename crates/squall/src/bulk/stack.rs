//! What the runner drives in a session between hosts: the transport, RDMC, and the control connections (RDMC §2, fig. 1).

use squall_fabric::{BreakReason, Core, Fabric, FabricEvent, Instant, NodeId, Region};
use squall_protocols::rdmc::{
    GroupId, ObjectAnswer, ObjectMemory, Rdmc, RdmcApplication, RdmcFailure, RdmcObject, RdmcSettings,
    UnfinishedObject,
};
use squall_transports::runner::Driven;

use super::control::{ControlConnections, ControlMessage};
use super::error::BulkError;
use crate::transport::AnyFabric;

/// What the runner drives.
#[derive(Debug)]
pub(super) struct BulkStack {
    pub(super) fabric: AnyFabric,
    pub(super) core: Rdmc<BulkUpcalls>,
    pub(super) control: ControlConnections,
    events: Vec<FabricEvent>,
    root: NodeId,
    /// The members that are lost, by rank.
    pub(super) lost: Vec<bool>,
    /// The latest time at which the runner has to return.
    pub(super) alarm: Option<Instant>,
    /// The file that is being received into.
    pub(super) file: Option<Region>,
    /// What has landed is not in the file.
    pub(super) file_failure: Option<std::io::Error>,
    has_failed: bool,
}

/// What RDMC has reported.
#[derive(Default)]
pub(super) struct BulkUpcalls {
    pub(super) asked: Option<RdmcObject>,
    pub(super) received: Option<(RdmcObject, ObjectMemory)>,
    /// The number of the object received, until it is reported to the root.
    unreported: Option<u64>,
    /// When the object was received.
    pub(super) received_at: Option<std::time::Instant>,
    pub(super) released: Option<u64>,
    pub(super) failed: Option<RdmcFailure>,
    pub(super) blocks: u64,
    pub(super) on_block: Option<BoxedBlocks>,
}

/// Called with each block as it arrives.
pub(super) type BoxedBlocks = Box<dyn FnMut(u64) + Send>;

impl std::fmt::Debug for BulkUpcalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upcalls")
            .field("asked", &self.asked)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl RdmcApplication<AnyFabric> for BulkUpcalls {
    fn memory(&mut self, _: &mut AnyFabric, object: &RdmcObject) -> ObjectAnswer {
        self.asked = Some(*object);
        ObjectAnswer::Later
    }
    fn on_block(&mut self, _: &RdmcObject, block: u64) {
        self.blocks += 1;
        if let Some(on_block) = &mut self.on_block {
            on_block(block);
        }
    }
    fn on_received(&mut self, object: &RdmcObject, memory: &ObjectMemory) {
        self.received = Some((*object, memory.clone()));
        self.unreported = Some(object.number);
        self.received_at = Some(std::time::Instant::now());
    }
    fn on_released(&mut self, object: &RdmcObject, _: ObjectMemory) {
        self.released = Some(object.number);
    }
    fn on_failed(&mut self, failure: RdmcFailure) {
        self.failed = Some(failure);
    }
}

impl BulkStack {
    pub(super) fn new(
        fabric: AnyFabric,
        core: Rdmc<BulkUpcalls>,
        control: ControlConnections,
        members: &[NodeId],
    ) -> Self {
        let lost = vec![false; members.len()];
        Self {
            fabric,
            core,
            control,
            events: Vec::new(),
            root: members[0],
            lost,
            alarm: None,
            file: None,
            file_failure: None,
            has_failed: false,
        }
    }

    /// Returns whether a block that has landed is not in its file. It must not be relayed, so this member does nothing more.
    fn has_failed(&mut self) -> bool {
        if let (Some(region), AnyFabric::Tcp(fabric)) = (&self.file, &self.fabric)
            && let Some(failure) = fabric.file_failure(region)
        {
            (self.file_failure, self.has_failed) = (Some(failure), true);
        }
        self.has_failed
    }

    /// Returns whether no message or block waits in this process any more.
    pub(super) fn has_sent_all(&self) -> bool {
        self.core.has_sent_all() && self.control.has_sent_all() && self.fabric.is_flushed()
    }

    pub(super) const fn upcalls(&mut self) -> &mut BulkUpcalls {
        self.core.application_mut()
    }

    /// Replaces a group that has failed by the next one.
    pub(super) fn begin(
        &mut self,
        old: GroupId,
        group: GroupId,
        members: &[NodeId],
        settings: &RdmcSettings,
        first: u64,
        left: Vec<UnfinishedObject>,
    ) -> Result<(), BulkError> {
        self.core.destroy(old).map_err(|_| BulkError::Scattered)?;
        let resumed = self.core.resume(&mut self.fabric, group, members, settings.clone(), first, left);
        resumed.map_err(|_| BulkError::Scattered)
    }
}

impl Driven for BulkStack {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    fn poll(&mut self) -> usize {
        let work = self.fabric.poll(&mut |event| self.events.push(event));
        if self.has_failed() {
            self.events.clear();
            return work;
        }
        for event in std::mem::take(&mut self.events) {
            if let FabricEvent::PeerLost { peer, reason } = event {
                debug_assert!(reason != BreakReason::Refused, "{peer} is lost by refusal");
                self.lost[rank(peer)] = true;
            }
            self.control.handle_event(&mut self.fabric, &event);
            self.core.handle_event(&mut self.fabric, &event);
        }
        let work = work + self.core.poll(&mut self.fabric);
        // In the same step in which the transport acknowledges the last block.
        if let Some(number) = self.upcalls().unreported.take() {
            self.control.send(self.root, ControlMessage::Received { number });
        }
        work + self.control.poll(&mut self.fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.alarm.into_iter().chain(Core::<AnyFabric>::next_deadline(&self.core)).min()
    }
}

/// Returns the rank of a node: the bootstrap numbers members from 0.
pub(super) fn rank(node: NodeId) -> usize {
    node.0 as usize
}
