//! The core that drives all groups of a process over one link to each peer (RDMC §2, fig. 1; §3.2).
//!
//! See the module above for state, step order and invariants.

use std::collections::BTreeMap;
use std::fmt;

use squall_fabric::{Channel, ConnId, Core, Duration, Fabric, FabricEvent, Instant, NodeId, Token};

use super::control::{self, EarlyMessages};
use super::group::RdmcGroup;
use super::link::{PostOutcome, RdmcLinks};
use super::message::RdmcMessage;
use super::settings::BLOCKS_MAX;
use super::slots::{self, ObjectSlots};
use super::{
    FailureCause, GroupId, HeldBlocks, ObjectMemory, RdmcApplication, RdmcObject, RdmcSettings,
    RdmcSettingsError, UnfinishedObject,
};

/// RDMC at one member.
///
/// **Law.** [`Rdmc::create`], [`Rdmc::send`] and similar methods are called between evaluations; [`Core::poll`]
/// carries them out. It reports everything to the application through [`RdmcApplication`].
#[derive(Debug)]
pub struct Rdmc<A> {
    links: RdmcLinks,
    groups: BTreeMap<GroupId, RdmcGroup>,
    slots: ObjectSlots,
    early: EarlyMessages,
    application: A,
    counters: RdmcCounters,
    /// The slot that posts first in the next evaluation.
    first_slot: usize,
    retry_at: Option<Instant>,
}

/// Counters of a member's work, in all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmcCounters {
    /// The number of blocks posted to others.
    pub blocks_posted: u64,
    /// The number of blocks that have arrived.
    pub blocks_received: u64,
}

/// Why a group was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmcCreateError {
    /// The settings are not valid for the group.
    Settings(RdmcSettingsError),
    /// This node is not in the list, or a node is in it twice.
    Members,
    /// A group of that number exists here.
    Exists,
    /// What is left of this object does not fit the group: its number is too low, or its blocks have another size.
    Unfinished(u64),
}

impl fmt::Display for RdmcCreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => write!(f, "{error}"),
            Self::Members => f.write_str(
                "the list of members does not name this node, or names a node twice: name each node once",
            ),
            Self::Exists => f.write_str("a group of this number exists here: choose another number"),
            Self::Unfinished(number) => {
                write!(
                    f,
                    "object {number} cannot be resumed: keep the block size and the numbers of the old group"
                )
            }
        }
    }
}

impl std::error::Error for RdmcCreateError {}

/// Why a call about an object was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmcSendError {
    /// There is no such group here.
    NoGroup,
    /// Only rank 0 sends.
    NotRoot,
    /// The group has failed.
    Failed(FailureCause),
    /// The object has more than [`BLOCKS_MAX`] blocks.
    TooManyBlocks(u64),
    /// The memory is shorter than the object.
    Memory,
    /// No object of that number waits for memory.
    NotAsked,
    /// There are unfinished objects.
    Unfinished,
}

impl fmt::Display for RdmcSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGroup => f.write_str("there is no such group here: create it first"),
            Self::NotRoot => f.write_str("only the root sends: create another group for another sender"),
            Self::Failed(cause) => write!(f, "the group has failed: {cause}"),
            Self::TooManyBlocks(blocks) => {
                write!(f, "{blocks} blocks, at most {BLOCKS_MAX}: choose larger blocks")
            }
            Self::Memory => {
                f.write_str("the memory is shorter than the object: provide memory of the object's size")
            }
            Self::NotAsked => f.write_str("no object of this number waits for memory"),
            Self::Unfinished => {
                f.write_str("objects are unfinished: wait for their release, or wedge the group")
            }
        }
    }
}

impl std::error::Error for RdmcSendError {}

impl<A> Rdmc<A> {
    /// Returns the RDMC of `node`, which uses `channel` and the next one to all peers; they use the same channels.
    pub const fn new(node: NodeId, channel: Channel, application: A) -> Self {
        Self {
            links: RdmcLinks::new(node, channel),
            groups: BTreeMap::new(),
            slots: ObjectSlots::new(),
            early: EarlyMessages::new(),
            application,
            counters: RdmcCounters { blocks_posted: 0, blocks_received: 0 },
            first_slot: 0,
            retry_at: None,
        }
    }

    /// Creates a group; all members do so with the same list, the root first, and the same settings.
    ///
    /// # Errors
    /// [`RdmcCreateError`]. Differences between members are found later, and fail the group.
    pub fn create<F: Fabric>(
        &mut self,
        fabric: &mut F,
        group: GroupId,
        members: &[NodeId],
        settings: RdmcSettings,
    ) -> Result<(), RdmcCreateError> {
        self.resume(fabric, group, members, settings, 0, Vec::new())
    }

    /// Creates a group that continues where a failed one ended \[B7\]: its objects have the numbers of the old one,
    /// from `first` on, and `unfinished` is what *this* member holds of them, as [`RdmcApplication::on_failed`] has
    /// reported, or, if it had finished an object, that complete object. The root sends the objects again (it must
    /// have them completely); members get the blocks that they lack, and a member that has nothing of an object is
    /// asked for memory as usual. All members pass the same `first`.
    ///
    /// # Errors
    /// [`RdmcCreateError`].
    pub fn resume<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: GroupId,
        members: &[NodeId],
        settings: RdmcSettings,
        first: u64,
        unfinished: Vec<UnfinishedObject>,
    ) -> Result<(), RdmcCreateError> {
        settings.check(members.len()).map_err(RdmcCreateError::Settings)?;
        if self.groups.contains_key(&id) {
            return Err(RdmcCreateError::Exists);
        }
        let fits = |unfinished: &UnfinishedObject| {
            let UnfinishedObject { object, memory, held } = unfinished;
            let has_space = memory.as_ref().is_none_or(|memory| memory.holds(object.words()));
            object.number >= first && held.blocks() == settings.blocks(object.bytes) && has_space
        };
        if let Some(unfit) = unfinished.iter().find(|unfinished| !fits(unfinished)) {
            return Err(RdmcCreateError::Unfinished(unfit.object.number));
        }
        let mut nodes = members.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        let group = RdmcGroup::new(id, fabric.node(), members, settings, first);
        let mut group = group.filter(|_| nodes.len() == members.len()).ok_or(RdmcCreateError::Members)?;
        if group.rank > 0 {
            group.resumed = unfinished.into_iter().map(|left| (left.object.number, left)).collect();
        }
        self.join(fabric, group);
        Ok(())
    }

    fn join<F: Fabric>(&mut self, fabric: &mut F, mut group: RdmcGroup) {
        let (id, digest) = (group.id, group.digest);
        let peers: Vec<_> = group.neighbours.iter().map(|neighbour| neighbour.node).collect();
        for peer in peers {
            self.links.open(fabric, peer);
            self.links.say(peer, RdmcMessage::Join { group: id, digest });
            if let Some(heard) = self.early.take(id, peer) {
                group.on_heard(&mut self.links, peer, heard);
            }
        }
        self.groups.insert(id, group);
    }

    /// Sends an object of `bytes` bytes in `memory`, which must not change before [`RdmcApplication::on_released`].
    /// Returns its number.
    ///
    /// # Errors
    /// [`RdmcSendError`].
    pub fn send(&mut self, group: GroupId, memory: ObjectMemory, bytes: u64) -> Result<u64, RdmcSendError> {
        let group = self.running(group)?;
        let blocks = group.settings.blocks(bytes);
        let words = RdmcObject { group: group.id, number: 0, bytes }.words();
        match () {
            () if group.rank > 0 => Err(RdmcSendError::NotRoot),
            () if blocks > BLOCKS_MAX => Err(RdmcSendError::TooManyBlocks(blocks)),
            () if !memory.holds(words) => Err(RdmcSendError::Memory),
            () => Ok(group.send(memory, bytes)),
        }
    }

    /// Offers memory for object `number`, the next that will be announced, from [`ObjectMemory::first`] to the end of
    /// its region: the object's first block need not wait for the answer to its announcement. Returns whether the
    /// offer is accepted. Then the object is received into the memory without an upcall for memory, if it fits; if it
    /// does not fit, the application is asked, and gets the memory back, as it does when the group fails. If the
    /// offer is not accepted, nothing has changed: the object is already announced or resumed, the previous one is
    /// not open yet, or another offer is pending.
    ///
    /// # Errors
    /// [`RdmcSendError`].
    pub fn offer(
        &mut self,
        group: GroupId,
        number: u64,
        memory: ObjectMemory,
    ) -> Result<bool, RdmcSendError> {
        Ok(self.running(group)?.offer(number, memory))
    }

    /// Provides memory for an object for which the application has answered [`super::ObjectAnswer::Later`].
    ///
    /// # Errors
    /// [`RdmcSendError`].
    pub fn supply(&mut self, group: GroupId, number: u64, memory: ObjectMemory) -> Result<(), RdmcSendError> {
        let group = self.running(group)?;
        let multicast = group.multicasts.get_mut(&number).filter(|multicast| multicast.awaits_memory());
        let multicast = multicast.ok_or(RdmcSendError::NotAsked)?;
        if !memory.holds(multicast.object.words()) {
            return Err(RdmcSendError::Memory);
        }
        multicast.supply_empty(memory);
        Ok(())
    }

    /// Provides memory like [`Rdmc::supply`], if `memory` already has some blocks of the object from an earlier
    /// attempt \[B7\]. Blocks that a summary cannot describe are sent again.
    ///
    /// # Errors
    /// [`RdmcSendError`]; [`RdmcSendError::Memory`] also if `held` is about another number of blocks.
    pub fn supply_held(
        &mut self,
        group: GroupId,
        number: u64,
        memory: ObjectMemory,
        mut held: HeldBlocks,
    ) -> Result<(), RdmcSendError> {
        let group = self.running(group)?;
        let multicast = group.multicasts.get_mut(&number).filter(|multicast| multicast.awaits_memory());
        let multicast = multicast.ok_or(RdmcSendError::NotAsked)?;
        if !memory.holds(multicast.object.words()) || held.blocks() != multicast.held.blocks() {
            return Err(RdmcSendError::Memory);
        }
        held.cut_to_summary();
        multicast.supply(memory, held);
        Ok(())
    }

    /// Stops a group at all members; each member's application is notified by [`RdmcApplication::on_failed`].
    ///
    /// # Errors
    /// If there is no such group or it has already failed.
    pub fn wedge(&mut self, group: GroupId) -> Result<(), RdmcSendError> {
        self.running(group)?;
        let cause = FailureCause::Wedged(self.links.node());
        self.groups.get_mut(&group).expect("just found").wedge(&mut self.links, cause);
        Ok(())
    }

    /// Forgets a group that is idle and has no pending offer, or whose failure has been reported.
    ///
    /// # Errors
    /// [`RdmcSendError::Unfinished`] or [`RdmcSendError::NoGroup`].
    pub fn destroy(&mut self, group: GroupId) -> Result<(), RdmcSendError> {
        let found = self.groups.get(&group).ok_or(RdmcSendError::NoGroup)?;
        if !found.is_idle() {
            return Err(RdmcSendError::Unfinished);
        }
        self.groups.remove(&group);
        Ok(())
    }

    /// Ends the link to `peer`, as if it were lost: groups that it belongs to fail.
    pub fn part_with<F: Fabric>(&mut self, fabric: &mut F, peer: NodeId) {
        self.on_link_lost(fabric, peer, FailureCause::Lost(peer));
    }

    /// Returns whether nothing is in progress: until the next event or call, evaluating does nothing.
    pub fn is_idle(&self) -> bool {
        self.groups.values().all(RdmcGroup::is_idle) && self.links.are_idle()
    }

    /// Returns whether all messages of this member have been posted.
    pub fn has_sent_all(&self) -> bool {
        self.links.are_idle()
    }

    /// Returns counters of what this member has done so far.
    pub const fn counters(&self) -> &RdmcCounters {
        &self.counters
    }

    /// The application.
    pub const fn application(&self) -> &A {
        &self.application
    }

    /// The application.
    pub const fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }

    fn running(&mut self, group: GroupId) -> Result<&mut RdmcGroup, RdmcSendError> {
        let group = self.groups.get_mut(&group).ok_or(RdmcSendError::NoGroup)?;
        match group.cause() {
            Some(cause) => Err(RdmcSendError::Failed(cause)),
            None => Ok(group),
        }
    }

    fn on_message<F: Fabric>(&mut self, fabric: &mut F, conn: ConnId, token: Token, length: usize) {
        let Some(peer) = self.links.peer(conn) else { return };
        let message = self.links.take_message(fabric, conn, token, length);
        let is_sound = match message {
            Ok(RdmcMessage::Hello { credits }) => self.links.on_hello(conn, credits),
            Ok(message) => {
                control::on_group_message(&mut self.groups, &mut self.early, &mut self.links, peer, message)
            }
            Err(_) => false,
        };
        if !is_sound {
            self.on_link_lost(fabric, peer, FailureCause::Breached(peer));
        }
    }

    fn on_block<F: Fabric>(&mut self, fabric: &mut F, conn: ConnId, token: Token, immediate: u32)
    where
        A: RdmcApplication<F>,
    {
        let Some(peer) = self.links.peer(conn) else { return };
        self.links.post_receive(fabric, conn, token);
        let (slot, block) = slots::slot_and_block(immediate);
        let is_sound = self.slots.object(slot).is_some_and(|(group, number)| {
            let group = self.groups.get_mut(&group).expect("slots are of objects of groups");
            group.multicasts.get_mut(&number).is_some_and(|multicast| {
                let is_sound = multicast.on_block(peer, block);
                if is_sound {
                    self.application.on_block(&multicast.object, block);
                }
                is_sound
            })
        });
        self.counters.blocks_received += u64::from(is_sound);
        if !is_sound {
            self.on_link_lost(fabric, peer, FailureCause::Breached(peer));
        }
    }

    fn on_done(&mut self, conn: ConnId, token: Token) {
        let (slot, target) = slots::slot_and_target(token);
        let (Some(_), Some((group, number))) = (self.links.peer(conn), self.slots.object(slot)) else {
            return;
        };
        let group = self.groups.get_mut(&group).expect("slots are of objects of groups");
        group
            .multicasts
            .get_mut(&number)
            .expect("a slot is free when nothing is in flight")
            .outgoing
            .on_done(target);
    }

    /// Ends the link to `peer`, which is broken or must be closed.
    fn on_link_lost<F: Fabric>(&mut self, fabric: &mut F, peer: NodeId, cause: FailureCause) {
        if !self.links.remove(fabric, peer) {
            return;
        }
        self.early.forget(peer);
        for group in self.groups.values_mut() {
            group.on_lost(fabric, &mut self.links, peer, cause);
        }
    }
}

impl<A> Rdmc<A> {
    fn open<F: Fabric>(&mut self, fabric: &mut F) -> usize
    where
        A: RdmcApplication<F>,
    {
        let mut work = 0;
        for group in self.groups.values_mut().filter(|group| group.is_running()) {
            match group.open(fabric, &mut self.application, &mut self.links, &mut self.slots) {
                Ok(done) => work += done,
                Err(cause) => group.wedge(&mut self.links, cause),
            }
        }
        work
    }

    /// Posts blocks of the objects in turn, one block each, as long as any can be posted.
    fn post_blocks<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let count = self.slots.len();
        let mut work = 0;
        self.first_slot = (self.first_slot + 1) % count.max(1);
        loop {
            let mut posted = 0;
            for slot in (self.first_slot..count).chain(0..self.first_slot) {
                let Some((group, number)) = self.slots.object(slot) else { continue };
                let group = self.groups.get_mut(&group).expect("slots are of objects of groups");
                posted += usize::from(group.post_next(fabric, &mut self.links, number) == PostOutcome::Yes);
            }
            if posted == 0 {
                self.counters.blocks_posted += work as u64;
                return work;
            }
            work += posted;
        }
    }

    fn finish<F: Fabric>(&mut self, fabric: &mut F) -> usize
    where
        A: RdmcApplication<F>,
    {
        let mut work = 0;
        let mut silent = Vec::new();
        for group in self.groups.values_mut() {
            work += if group.is_running() {
                group.finish(fabric, &mut self.application, &mut self.slots)
            } else {
                silent.extend(group.silent_neighbours(fabric.now()));
                group.report(fabric, &mut self.application, &mut self.slots)
            };
        }
        for peer in silent {
            self.on_link_lost(fabric, peer, FailureCause::Lost(peer));
            work += 1;
        }
        work
    }
}

impl<F: Fabric, A: RdmcApplication<F>> Core<F> for Rdmc<A> {
    fn handle_event(&mut self, fabric: &mut F, event: &FabricEvent) {
        match event {
            FabricEvent::Connected { conn, .. } => self.links.on_connected(*conn),
            FabricEvent::Received { conn, token, length } => self.on_message(fabric, *conn, *token, *length),
            FabricEvent::Arrived { conn, token, immediate } => {
                self.on_block(fabric, *conn, *token, *immediate)
            }
            FabricEvent::Done { conn, token } => self.on_done(*conn, *token),
            FabricEvent::Broken { conn, .. } | FabricEvent::Refused { conn } => {
                if let Some(peer) = self.links.peer(*conn) {
                    self.on_link_lost(fabric, peer, FailureCause::Lost(peer));
                }
            }
            FabricEvent::Revoked { grant } => {
                self.groups.values_mut().for_each(|group| group.on_revoked(grant))
            }
            // Connections to a lost peer break one by one, and this core uses no mirrors.
            FabricEvent::PeerDying { .. } | FabricEvent::PeerLost { .. } | FabricEvent::Attached { .. } => {}
        }
    }

    fn poll(&mut self, fabric: &mut F) -> usize {
        self.links.was_full = false;
        let mut work = self.open(fabric);
        work += self.links.flush(fabric);
        work += self.post_blocks(fabric);
        work += self.finish(fabric);
        work += self.links.flush(fabric);
        self.retry_at = self.links.was_full.then(|| fabric.now() + RETRY);
        work
    }

    fn next_deadline(&self) -> Option<Instant> {
        let patience = self.groups.values().filter_map(RdmcGroup::deadline);
        self.retry_at.into_iter().chain(patience).min()
    }
}

/// When to retry after a full queue, which gives no event when it has space again.
const RETRY: Duration = Duration::from_micros(10);
