//! A session on one host: receivers copy objects from the root's pages (RDMC §2; `rdmc::local`).

use squall_fabric::bulk::{BulkBuffer, ObjectLease};
use squall_fabric::{Core, Fabric, FabricEvent, RegionId, trusted};
use squall_protocols::rdmc::local::{BUFFERS_MAX, BufferId, CopyProgress, LocalMulticast};
use squall_transports::runner::{Driven, IdleLimits, Runner};

use super::Incoming;
use super::error::BulkError;
use crate::transport::AnyFabric;

#[derive(Debug)]
pub(super) struct HostSession {
    stack: Stack,
    runner: Runner,
    /// The buffers that are shared with the receivers.
    shared: Vec<(RegionId, BufferId)>,
}

#[derive(Debug)]
struct Stack {
    fabric: AnyFabric,
    core: LocalMulticast,
    events: Vec<FabricEvent>,
}

impl HostSession {
    pub(super) fn new(fabric: AnyFabric, core: LocalMulticast, idle: IdleLimits) -> Self {
        let stack = Stack { fabric, core, events: Vec::new() };
        Self { stack, runner: Runner::new(idle), shared: Vec::new() }
    }

    pub(super) const fn fabric(&mut self) -> &mut AnyFabric {
        &mut self.stack.fabric
    }

    pub(super) fn lost(&self) -> Vec<usize> {
        self.stack.core.lost().collect()
    }

    pub(super) fn send(&mut self, object: &BulkBuffer) -> Result<(), BulkError> {
        let buffer = self.share(object)?;
        let number = loop {
            match self.stack.core.send(buffer, object.len() as u64) {
                Some(number) => break number,
                None => self.step(),
            }
        };
        while self.stack.core.finished() <= number {
            self.step();
        }
        let has_receivers = self.stack.core.receivers_of(number) > 0 || self.lost().is_empty();
        if has_receivers { Ok(()) } else { Err(BulkError::Alone) }
    }

    fn share(&mut self, object: &BulkBuffer) -> Result<BufferId, BulkError> {
        let id = trusted::object_memory(object).id();
        if let Some((_, buffer)) = self.shared.iter().find(|(known, _)| *known == id) {
            return Ok(*buffer);
        }
        if self.shared.len() == BUFFERS_MAX {
            return Err(BulkError::TooManyBuffers);
        }
        let buffer = self.stack.core.share(&mut self.stack.fabric, trusted::object_memory(object));
        self.shared.push((id, buffer));
        Ok(buffer)
    }

    pub(super) fn next(&mut self) -> Result<Incoming, BulkError> {
        loop {
            if let Some(offer) = self.stack.core.next() {
                return Ok(Incoming { number: offer.number, bytes: offer.bytes });
            }
            if let Some(failure) = self.stack.core.failure() {
                return Err(failure.into());
            }
            self.step();
        }
    }

    /// Copies the next object, which has been announced, into memory of its size.
    pub(super) fn receive_into(&mut self, target: &mut [u8]) -> Result<(), BulkError> {
        loop {
            match self.stack.core.copy(&mut self.stack.fabric, target) {
                CopyProgress::All => break,
                CopyProgress::Block => {}
                // The others are behind because this thread occupies their processor.
                CopyProgress::Later => {
                    std::thread::yield_now();
                    self.stack.poll();
                }
            }
        }
        self.give_back();
        Ok(())
    }

    /// Leases the next object, which has been announced, to be read in place.
    pub(super) fn lease(&mut self, bytes: usize) -> ObjectLease {
        trusted::lease(self.stack.core.lease(&mut self.stack.fabric), bytes)
    }

    /// Releases what was copied or leased.
    pub(super) fn give_back(&mut self) {
        self.stack.core.give_back(&mut self.stack.fabric);
        // A poll wakes members that are parked.
        self.stack.poll();
    }

    fn step(&mut self) {
        self.runner.step(&mut self.stack);
    }
}

impl Driven for Stack {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    fn poll(&mut self) -> usize {
        let work = self.fabric.poll(&mut |event| self.events.push(event));
        for event in self.events.drain(..) {
            self.core.handle_event(&mut self.fabric, &event);
        }
        work + self.core.poll(&mut self.fabric)
    }
}
