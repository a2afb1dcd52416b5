//! A session between hosts: blocks are relayed by a schedule, and after a death the others continue (RDMC §2;
//! \[B7\]).
//!
//! **State.** There is one RDMC group at a time, of the root and the remaining receivers, and one object at a time in
//! it.
//! **The end of an object.** A receiver that has the object reports that. When all have it, the root sends
//! *complete*, and only then does a receiver release the memory: until then it may be a source for others that
//! resume. A single receiver releases the memory at once, and waits for *complete* only before it leaves.
//! **Memory in advance.** A single receiver offers the buffer with which it waits for the next object, so the root
//! need not wait for an answer to its announcement. Several receivers do not: that was slower for three on one host
//! (docs/results/rdmc.md).
//! **After a death** the group fails at all members. Each reports when its memory is no longer accessed (*stopped*).
//! The root excludes the member that is the cause and members that do not stop in time, and orders the others to
//! *regroup*: a new group continues with the same object, from the blocks that each member holds.
//! `Deviation:` (RDMC §2) an object is finished for a receiver when all members have it, one round trip after its own
//! last block if there are other receivers.

use squall_fabric::bulk::BulkBuffer;
use squall_fabric::{Channel, Duration, Fabric, Instant, NodeId, trusted};
use squall_protocols::rdmc::{
    BLOCKS_MAX, GroupId, HeldBlocks, ObjectMemory, Rdmc, RdmcObject, RdmcSettings, UnfinishedObject,
};
use squall_transports::runner::{Driven as _, IdleLimits, Runner};

use super::Incoming;
use super::control::{ControlConnections, ControlMessage};
use super::error::BulkError;
use super::stack::{BoxedBlocks, BulkStack, BulkUpcalls, rank};
use crate::transport::AnyFabric;

#[derive(Debug)]
pub(super) struct NetworkSession {
    stack: BulkStack,
    runner: Runner,
    settings: RdmcSettings,
    root: NodeId,
    /// The current group, and its members, the root first.
    group: GroupId,
    members: Vec<NodeId>,
    /// At the root: the number of the object that is being sent, or the next one.
    number: u64,
    /// At the root: the members that have the object that is being sent, by rank.
    has_it: Vec<bool>,
    complete: u64,
    /// At a receiver: the root has sent *complete* for the objects below this number. A single receiver waits for
    /// that only before it leaves.
    confirmed: u64,
    /// At the root: the group that has stopped at each receiver, by rank.
    stopped: Vec<u64>,
    /// At a receiver: the object that has been received but is not finished, and the unfinished objects of a failed
    /// group until the next one begins.
    receiving: Option<(RdmcObject, ObjectMemory)>,
    left: Option<Vec<UnfinishedObject>>,
    last_progress: Option<Instant>,
    /// How long the latest receive has waited after its object had arrived.
    lag: std::time::Duration,
}

impl NetworkSession {
    pub(super) fn new(
        mut fabric: AnyFabric,
        members: Vec<NodeId>,
        settings: RdmcSettings,
        idle: IdleLimits,
    ) -> Self {
        let (own, root) = (fabric.node(), members[0]);
        let mut core = Rdmc::new(own, OBJECTS, BulkUpcalls::default());
        let peers = if own == root { members[1..].to_vec() } else { vec![root] };
        let control = ControlConnections::new(&mut fabric, CONTROL, &peers);
        let group = GroupId(1);
        core.create(&mut fabric, group, &members, settings.clone()).expect("the options were checked");
        let count = members.len();
        Self {
            stack: BulkStack::new(fabric, core, control, &members),
            runner: Runner::new(idle),
            settings,
            root,
            group,
            members,
            number: 0,
            has_it: vec![false; count],
            complete: 0,
            confirmed: 0,
            stopped: vec![0; count],
            receiving: None,
            left: None,
            last_progress: None,
            lag: std::time::Duration::ZERO,
        }
    }

    pub(super) const fn fabric(&mut self) -> &mut AnyFabric {
        &mut self.stack.fabric
    }

    pub(super) const fn block_bytes(&self) -> u64 {
        self.settings.block_bytes
    }

    /// Returns how long the latest receive has waited for the others.
    pub(super) const fn lag(&self) -> std::time::Duration {
        self.lag
    }

    pub(super) fn lost(&self) -> Vec<usize> {
        (0..self.stack.lost.len()).filter(|rank| self.stack.lost[*rank]).collect()
    }

    pub(super) fn send_buffer(&mut self, object: &BulkBuffer) -> Result<(), BulkError> {
        let memory = ObjectMemory { region: trusted::object_memory(object).clone(), first: 0 };
        self.send(&memory, object.len() as u64, &mut |_, _| ())
    }

    /// Sends an object; returns when all remaining members have it.
    pub(super) fn send(
        &mut self,
        memory: &ObjectMemory,
        bytes: u64,
        on_progress: &mut dyn FnMut(usize, u64),
    ) -> Result<(), BulkError> {
        if self.settings.blocks(bytes) > BLOCKS_MAX {
            return Err(BulkError::TooLarge { bytes });
        }
        if self.members.len() == 1 && self.has_it.len() > 1 {
            return Err(BulkError::Alone);
        }
        self.has_it.fill(false);
        while !self.send_in_group(memory, bytes, on_progress) {
            self.regroup(on_progress)?;
        }
        let number = self.number;
        for receiver in self.members[1..].iter().copied() {
            self.stack.control.send(receiver, ControlMessage::Complete { number });
        }
        self.send_messages();
        self.number += 1;
        Ok(())
    }

    /// Sends the object in the current group; returns false if the group fails.
    fn send_in_group(
        &mut self,
        memory: &ObjectMemory,
        bytes: u64,
        on_progress: &mut dyn FnMut(usize, u64),
    ) -> bool {
        self.stack.upcalls().released = None;
        if self.stack.core.send(self.group, memory.clone(), bytes).is_err() {
            return false;
        }
        loop {
            self.receive_reports(on_progress);
            if self.stack.upcalls().failed.is_some() {
                return false;
            }
            let all_have_it = self.members[1..].iter().all(|member| self.has_it[rank(*member)]);
            if all_have_it && self.stack.upcalls().released == Some(self.number) {
                return true;
            }
            self.step();
        }
    }

    /// At the root: the group has failed or is about to; forms a new one of the remaining members.
    fn regroup(&mut self, on_progress: &mut dyn FnMut(usize, u64)) -> Result<(), BulkError> {
        let failure = loop {
            if let Some(failure) = self.stack.upcalls().failed.take() {
                break failure;
            }
            self.step();
        };
        let culprit = failure.cause.member();
        if culprit != self.root {
            self.stack.lost[rank(culprit)] = true;
        }
        self.await_stopped(on_progress);
        self.members.retain(|member| !self.stack.lost[rank(*member)]);
        let (old, next) = (self.group, GroupId(self.group.0 + 1));
        self.group = next;
        let (group, first) = (self.group.0, self.number);
        for peer in
            (0..self.stack.lost.len()).map(|rank| NodeId(rank as u32)).filter(|peer| *peer != self.root)
        {
            let members = self.members.clone();
            self.stack.control.send(peer, ControlMessage::Regroup { group, first, members });
        }
        if self.members.len() == 1 {
            return Err(BulkError::Alone);
        }
        self.has_it.fill(false);
        self.stack.begin(old, self.group, &self.members, &self.settings, first, Vec::new())
    }

    /// Waits until the group has stopped at all remaining receivers; a receiver that takes too long is excluded.
    fn await_stopped(&mut self, on_progress: &mut dyn FnMut(usize, u64)) {
        let deadline = self.stack.fabric.now() + STOP_PATIENCE;
        self.stack.alarm = Some(deadline);
        loop {
            self.receive_reports(on_progress);
            let running = self.members[1..].iter().copied().map(rank);
            let running: Vec<_> = running
                .filter(|rank| !self.stack.lost[*rank] && self.stopped[*rank] != self.group.0)
                .collect();
            let is_over = self.stack.fabric.now() >= deadline;
            if is_over {
                running.iter().for_each(|rank| self.stack.lost[*rank] = true);
            }
            if is_over || running.is_empty() {
                break;
            }
            self.step();
        }
        self.stack.alarm = None;
    }

    fn receive_reports(&mut self, on_progress: &mut dyn FnMut(usize, u64)) {
        while let Some((peer, message)) = self.stack.control.received.pop_front() {
            let rank = rank(peer);
            match message {
                ControlMessage::Progress { number, blocks } if number == self.number => {
                    on_progress(rank, blocks)
                }
                ControlMessage::Received { number } if number == self.number => self.has_it[rank] = true,
                ControlMessage::Stopped { group } => self.stopped[rank] = group,
                // The message is about an object that is finished.
                _ => {}
            }
        }
    }

    /// At a receiver: waits for the next object.
    pub(super) fn next(&mut self) -> Result<Incoming, BulkError> {
        loop {
            if let Some(object) = self.stack.upcalls().asked {
                return Ok(Incoming { number: object.number, bytes: object.bytes });
            }
            self.receive_orders()?;
            self.step();
        }
    }

    /// Receives the next object into a buffer, which is replaced if it is too small.
    pub(super) fn receive_buffer(&mut self, buffer: &mut BulkBuffer) -> Result<(), BulkError> {
        let number = self.complete;
        let is_worth_it = !self.has_others() && !buffer.is_empty();
        if self.stack.upcalls().asked.is_none() && is_worth_it {
            let memory = ObjectMemory { region: trusted::object_memory(buffer).clone(), first: 0 };
            // If the group has failed, the next group will ask for memory.
            let _ = self.stack.core.offer(self.group, number, memory);
        }
        let block_bytes = self.settings.block_bytes;
        let bytes = self.receive_number(number, 0, None, |fabric, object| {
            let bytes = usize::try_from(object.bytes).expect("an object fits the address space");
            if buffer.capacity() < bytes {
                *buffer = BulkBuffer::register(fabric, bytes);
            }
            let memory = ObjectMemory { region: trusted::object_memory(buffer).clone(), first: 0 };
            (memory, HeldBlocks::none(object.bytes.div_ceil(block_bytes)))
        })?;
        buffer.set_len(usize::try_from(bytes).expect("it is in the buffer"));
        Ok(())
    }

    /// Receives the next object, which has been announced with this size, into memory that may already hold a part of
    /// it.
    pub(super) fn receive(
        &mut self,
        memory: &ObjectMemory,
        bytes: u64,
        held: &HeldBlocks,
        on_block: Option<BoxedBlocks>,
    ) -> Result<(), BulkError> {
        let (expected, found) = (self.settings.blocks(bytes), held.blocks());
        if expected != found {
            return Err(BulkError::Held { expected, found });
        }
        let number = self.stack.upcalls().asked.expect("the next object is there").number;
        let place = |_: &mut AnyFabric, _: &RdmcObject| (memory.clone(), held.clone());
        self.stack.file = Some(memory.region.clone());
        let received = self.receive_number(number, held.count(), on_block, place);
        self.stack.file = None;
        received.map(drop)
    }

    /// Receives an object of which `blocks` blocks are held, into the memory that `place` provides. Returns its size.
    fn receive_number(
        &mut self,
        number: u64,
        blocks: u64,
        on_block: Option<BoxedBlocks>,
        place: impl FnMut(&mut AnyFabric, &RdmcObject) -> (ObjectMemory, HeldBlocks),
    ) -> Result<u64, BulkError> {
        let upcalls = self.stack.upcalls();
        (upcalls.on_block, upcalls.blocks, upcalls.released) = (on_block, blocks, None);
        let outcome = self.await_object(number, place);
        self.send_messages();
        self.lag = self.stack.upcalls().received_at.take().map(|at| at.elapsed()).unwrap_or_default();
        self.receiving = None;
        self.stack.upcalls().on_block = None;
        outcome
    }

    fn await_object(
        &mut self,
        number: u64,
        mut place: impl FnMut(&mut AnyFabric, &RdmcObject) -> (ObjectMemory, HeldBlocks),
    ) -> Result<u64, BulkError> {
        loop {
            if let Some(failure) = self.stack.file_failure.take() {
                return Err(failure.into());
            }
            if let Some(object) = self.stack.upcalls().asked.take_if(|object| object.number == number) {
                let (memory, held) = place(&mut self.stack.fabric, &object);
                // If the group fails meanwhile, the next group will ask again.
                let _ = self.stack.core.supply_held(self.group, number, memory, held);
            }
            if let Some(received) =
                self.stack.upcalls().received.take_if(|(object, _)| object.number == number)
            {
                self.receiving = Some(received);
            }
            let orders = self.receive_orders();
            let at_rest = self.stack.upcalls().released >= Some(number) || self.left.is_some();
            let is_over = self.complete > number || !self.has_others();
            match &self.receiving {
                Some((object, _)) if is_over && at_rest => {
                    self.complete = number + 1;
                    return Ok(object.bytes);
                }
                // Whatever happens to the root now, the object has arrived.
                Some(_) if is_over => {}
                _ => orders?,
            }
            self.report_progress(number);
            self.step();
        }
    }

    /// Returns whether the root has not confirmed yet that it knows what this receiver has.
    fn is_unconfirmed(&mut self) -> bool {
        let is_alive = self.confirmed == self.complete || self.receive_orders().is_ok();
        is_alive && self.confirmed < self.complete
    }

    /// Returns whether there is a receiver that could need what another one has.
    const fn has_others(&self) -> bool {
        self.members.len() > 2
    }

    /// At a receiver: reports a failure, and processes the root's messages.
    fn receive_orders(&mut self) -> Result<(), BulkError> {
        if let Some(failure) = self.stack.upcalls().failed.take() {
            self.left = Some(failure.unfinished);
            self.stack.control.send(self.root, ControlMessage::Stopped { group: self.group.0 });
        }
        while let Some((_, message)) = self.stack.control.received.pop_front() {
            match message {
                ControlMessage::Complete { number } => {
                    self.confirmed = number + 1;
                    self.complete = self.complete.max(self.confirmed);
                }
                ControlMessage::Regroup { group, first, members } => {
                    self.follow(GroupId(group), first, members)?
                }
                _ => return Err(BulkError::Breached),
            }
        }
        match (self.stack.control.breached, self.stack.lost[rank(self.root)]) {
            (Some(_), _) => Err(BulkError::Breached),
            (None, true) => Err(BulkError::RootLost),
            (None, false) => Ok(()),
        }
    }

    /// At a receiver: begins the next group, with the unfinished objects of the old one, and with the object that was
    /// received completely and may still be a source for others.
    fn follow(&mut self, group: GroupId, first: u64, members: Vec<NodeId>) -> Result<(), BulkError> {
        if !members.contains(&self.stack.fabric.node()) {
            return Err(BulkError::LeftOut);
        }
        let mut left = self.left.take().ok_or(BulkError::Breached)?;
        if let Some((object, memory)) = &self.receiving
            && left.iter().all(|unfinished| unfinished.object.number != object.number)
        {
            let held = HeldBlocks::all(self.settings.blocks(object.bytes));
            left.push(UnfinishedObject { object: *object, memory: Some(memory.clone()), held });
        }
        left.retain(|unfinished| unfinished.object.number >= first);
        let upcalls = self.stack.upcalls();
        // The memory of the failed group is no longer accessed, and objects below `first` are finished.
        (upcalls.asked, upcalls.received, upcalls.released) = (None, None, first.checked_sub(1));
        let old = std::mem::replace(&mut self.group, group);
        self.members = members;
        self.stack.begin(old, group, &self.members, &self.settings, first, left)
    }

    fn report_progress(&mut self, number: u64) {
        let now = self.stack.fabric.now();
        let is_soon = self.last_progress.is_some_and(|last| now.since(last) < PROGRESS_PERIOD);
        if is_soon || self.stack.upcalls().blocks == 0 {
            return;
        }
        self.last_progress = Some(now);
        let blocks = self.stack.upcalls().blocks;
        self.stack.control.send(self.root, ControlMessage::Progress { number, blocks });
    }

    /// Sends what others wait for, because nothing polls until the next call.
    fn send_messages(&mut self) {
        let deadline = self.stack.fabric.now() + LINGER;
        self.stack.alarm = Some(deadline);
        self.stack.poll();
        while !self.stack.has_sent_all() && self.stack.fabric.now() < deadline {
            self.step();
        }
        self.stack.alarm = None;
    }

    fn step(&mut self) {
        self.runner.step(&mut self.stack);
    }
}

impl Drop for NetworkSession {
    /// Waits until the last messages have arrived: a receiver that leaves before the root knows that it has the
    /// object would look lost.
    fn drop(&mut self) {
        let deadline = self.stack.fabric.now() + LINGER;
        while (self.stack.control.is_sending() || self.is_unconfirmed()) && self.stack.fabric.now() < deadline
        {
            self.stack.alarm = Some(deadline);
            self.step();
        }
    }
}

/// RDMC uses this channel and the next one.
const OBJECTS: Channel = Channel(1);
const CONTROL: Channel = Channel(3);
/// Longer than RDMC waits for neighbours that do not answer.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a member that leaves waits for its last messages to arrive.
const LINGER: Duration = Duration::from_secs(1);
/// How often progress is reported to the root, which shows it to users.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
