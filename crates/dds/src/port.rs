//! A topic at a participant: its endpoints, and the outlet that they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use squall::GroupError;
use squall_fabric::mutex::lock;

use crate::error::EntityError;
use crate::gate::OrderGate;
use crate::in_place::ReaderUpcall;
use crate::outlet::Outlet;
use crate::peers::PeerTable;
use crate::presence::EndpointNumbers;
use crate::qos::{Profile, Qos};
use crate::reader_core::{ArrivedChange, Offer, ReaderCore};
use crate::sample::{EndpointId, Position, now_ns};
use crate::signal::Signal;
use crate::wire::{EndpointAnnouncement, TopicRole};

/// A topic at a participant. Its thread hands it what comes; applications' threads read and write.
#[derive(Debug)]
pub(crate) struct TopicPort {
    pub(crate) name: String,
    pub(crate) profile: Profile,
    /// This participant's node in the group.
    pub(crate) node: u32,
    /// The numbers of the participant's endpoints, in all topics.
    pub(crate) endpoints: Arc<Mutex<EndpointNumbers>>,
    pub(crate) outlet: Outlet,
    /// Of a topic that is in one order with others: what is held while something comes to their readers.
    pub(crate) gate: Option<Arc<OrderGate>>,
    pub(crate) state: Mutex<PortState>,
    /// Rung when samples or statuses have changed; one for all topics of the participant.
    pub(crate) changed: Arc<Signal>,
    /// Rung when the topic's thread may have to continue: samples were taken, an endpoint was created.
    pub(crate) bell: Arc<Signal>,
}

#[derive(Debug, Default)]
pub(crate) struct PortState {
    type_name: Option<String>,
    pub(crate) readers: BTreeMap<u16, ReaderCore>,
    pub(crate) writers: BTreeMap<u16, PeerTable>,
    /// The endpoints that have been announced and not gone.
    peers: BTreeMap<EndpointId, EndpointAnnouncement>,
    /// The number of the next announcement of the topic's history that is to be recorded.
    pub(crate) next_announcement: u64,
    /// How many endpoints the topic's history had forgotten when that was looked at last.
    pub(crate) forgotten: u64,
    /// Whether the participant leaves: no reader holds up the topic's thread any more.
    pub(crate) is_closed: bool,
    /// Whether nothing more comes, and why.
    pub(crate) end: Option<Option<GroupError>>,
}

impl TopicPort {
    pub(crate) fn state(&self) -> MutexGuard<'_, PortState> {
        lock(&self.state)
    }

    /// Gives the topic its type in this process.
    pub(crate) fn set_type(&self, wanted: &str) -> Result<(), EntityError> {
        let mut state = self.state();
        let present = state.type_name.get_or_insert_with(|| wanted.into());
        if present == wanted {
            return Ok(());
        }
        let (topic, present) = (self.name.clone(), present.clone());
        Err(EntityError::TypeMismatch { topic, present, wanted: wanted.into() })
    }

    /// Returns the topic's type in this process, if it has been used.
    pub(crate) fn type_name(&self) -> Option<String> {
        self.state().type_name.clone()
    }

    /// Returns the endpoints that are open.
    pub(crate) fn endpoints(&self) -> Vec<(EndpointId, TopicRole)> {
        self.state().peers.iter().map(|(id, peer)| (*id, peer.role)).collect()
    }

    /// Creates an endpoint, and announces it. `upcall`: of a reader in place.
    pub(crate) fn open(
        &self,
        role: TopicRole,
        qos: &Qos,
        type_name: &str,
        upcall: Option<ReaderUpcall>,
    ) -> Result<EndpointAnnouncement, EntityError> {
        let number = lock(&self.endpoints).take().ok_or_else(|| EntityError::TooMany(self.name.clone()))?;
        if upcall.is_some() {
            self.outlet.begin_upcalls();
        }
        let mut state = self.state();
        let id = EndpointId { node: self.node, number };
        let announcement = EndpointAnnouncement { id, role, type_name: type_name.into(), qos: qos.clone() };
        if role == TopicRole::Writer {
            let mut peers = PeerTable::new(&announcement, false);
            for peer in state.peers.values() {
                peers.handle_announcement(peer);
            }
            state.writers.insert(number, peers);
        } else {
            let mut reader = ReaderCore::new(&announcement, self.outlet.keeps(), upcall);
            // The reader of a history reads all announcements there, before the samples.
            if !self.outlet.keeps() {
                for peer in state.peers.values() {
                    reader.handle_announcement(peer, Position::default(), 0);
                }
            }
            state.readers.insert(number, reader);
        }
        drop(state);
        if let Err(error) = self.outlet.announce(&announcement, ANNOUNCEMENT_PATIENCE) {
            // The announcement may still wait for space.
            self.close(&announcement);
            return Err(error.into());
        }
        self.bell.ring();
        Ok(announcement)
    }

    /// Ends an endpoint.
    pub(crate) fn close(&self, announcement: &EndpointAnnouncement) {
        let mut state = self.state();
        // An upcall may own other endpoints of the topic: it must end without the lock.
        let reader = state.readers.remove(&announcement.id.number);
        state.writers.remove(&announcement.id.number);
        let is_over = state.end.is_some();
        drop(state);
        drop(reader);
        self.bell.ring();
        self.outlet.wake();
        if !is_over {
            self.outlet.announce_end(&announcement.end());
        }
    }

    /// Lets the topic's thread run freely: the participant leaves.
    pub(crate) fn release(&self) {
        self.state().is_closed = true;
        self.bell.ring();
        self.outlet.wake();
    }

    /// Says that nothing more comes.
    pub(crate) fn finish(&self, error: Option<GroupError>) {
        self.state().end.get_or_insert(error);
        self.changed.ring();
    }

    /// Counts a message that no release of this crate has sent.
    pub(crate) fn lose(&self) {
        self.state().readers.values_mut().for_each(|reader| reader.lost.add(1));
        self.changed.ring();
    }

    /// Takes what was known of the topic before this participant used it.
    pub(crate) fn begin(&self, peers: BTreeMap<EndpointId, EndpointAnnouncement>) {
        self.state().peers = peers;
    }

    pub(crate) fn handle_announcement(&self, peer: &EndpointAnnouncement, position: Position) {
        let _hold = self.gate.as_ref().map(OrderGate::hold);
        let mut state = self.state();
        let now = now_ns();
        state.record(peer);
        for reader in state.readers.values_mut() {
            reader.handle_announcement(peer, position, now);
        }
        drop(state);
        self.changed.ring();
    }

    /// Takes a change for the readers that `is_for` names; waits while a reliable one has no space for it.
    pub(crate) fn handle_change(
        &self,
        change: &ArrivedChange<'_>,
        position: Position,
        is_for: impl Fn(&ReaderCore) -> bool,
    ) {
        let now = now_ns();
        let mut open = Unsettled::default();
        {
            let _hold = self.gate.as_ref().map(OrderGate::hold);
            self.state().offer(change, position, now, is_for, &mut open);
        }
        self.settle(change, position, now, &mut open);
        self.changed.ring();
    }

    /// Begins to take changes that came together, for all readers. The topic must not be in one order with others.
    pub(crate) fn begin_batch(&self) -> ChangeBatch<'_> {
        debug_assert!(self.gate.is_none(), "its gate is held for each change");
        ChangeBatch { port: self, state: Some(self.state()), now: now_ns(), open: Unsettled::default() }
    }

    /// Makes upcalls, and waits until readers that are full have space for a change.
    fn settle(&self, change: &ArrivedChange<'_>, position: Position, now: u64, open: &mut Unsettled) {
        open.upcalls.drain(..).for_each(|upcall| upcall.call(change, position));
        for number in open.full.drain(..) {
            self.insist(|| {
                let _hold = self.gate.as_ref().map(OrderGate::hold);
                let mut state = self.state();
                let is_closed = state.is_closed;
                let reader = state.readers.get_mut(&number);
                is_closed
                    || reader.is_none_or(|reader| reader.handle_change(change, position, now) == Offer::Done)
            });
        }
    }

    /// Returns whether all readers that take coherent sets as a whole have space for this one, or reject it.
    pub(crate) fn has_space_for(&self, set: &[ArrivedChange<'_>]) -> bool {
        let state = self.state();
        state.is_closed || !state.readers.values().any(|reader| reader.is_coherent && reader.waits_for(set))
    }

    /// Takes a coherent set for the readers that take it as a whole; they have space for it.
    pub(crate) fn handle_set(&self, set: &[ArrivedChange<'_>], position: Position) {
        let (mut state, now) = (self.state(), now_ns());
        for reader in state.readers.values_mut().filter(|reader| reader.is_coherent) {
            // Full only if the participant leaves.
            let _: Offer = reader.handle_set(set, position, now);
        }
        drop(state);
        self.changed.ring();
    }

    /// Tries until it is done. In between, applications have to see what fills their readers.
    pub(crate) fn insist(&self, mut attempt: impl FnMut() -> bool) {
        loop {
            let seen = self.bell.count();
            if attempt() {
                return;
            }
            self.changed.ring();
            self.bell.wait(seen, WAIT);
        }
    }

    /// Takes the members of a view, of a topic that has no history.
    pub(crate) fn handle_view(&self, nodes: &BTreeSet<u32>, position: Position) {
        let _hold = self.gate.as_ref().map(OrderGate::hold);
        let mut state = self.state();
        let now = now_ns();
        for reader in state.readers.values_mut() {
            reader.handle_members(nodes, position, now);
        }
        for writer in state.writers.values_mut() {
            writer.retain_nodes(nodes);
        }
        state.peers.retain(|id, _| nodes.contains(&id.node));
        drop(state);
        self.changed.ring();
    }
}

/// Changes that came together: the readers are locked once for all of them, and their threads are woken at the end.
pub(crate) struct ChangeBatch<'a> {
    port: &'a TopicPort,
    /// Given back while a reader is full.
    state: Option<MutexGuard<'a, PortState>>,
    now: u64,
    /// Empty between changes; it keeps its memory.
    open: Unsettled,
}

impl ChangeBatch<'_> {
    /// Takes a change; waits while a reliable reader has no space for it.
    pub(crate) fn handle_change(&mut self, change: &ArrivedChange<'_>, position: Position) {
        let state = self.state.get_or_insert_with(|| self.port.state());
        state.offer(change, position, self.now, |_| true, &mut self.open);
        if !(self.open.full.is_empty() && self.open.upcalls.is_empty()) {
            self.state = None;
            self.port.settle(change, position, self.now, &mut self.open);
        }
    }

    /// Takes a change, if no reader makes an upcall for it or has to wait for space.
    pub(crate) fn try_change(&mut self, change: &ArrivedChange<'_>, position: Position) -> TakingAttempt {
        let state = self.state.get_or_insert_with(|| self.port.state());
        if let Some(reader) = state.only_reader() {
            // It says itself that it is full, and has not taken the change.
            return match reader.upcall.is_none().then(|| reader.handle_alone(change, position, self.now)) {
                Some(Offer::Done) => TakingAttempt::Taken,
                Some(Offer::Full) => TakingAttempt::NoSpace,
                Some(Offer::Upcall) | None => TakingAttempt::Upcall,
            };
        }
        if state.readers.values().any(|reader| reader.upcall.is_some()) {
            return TakingAttempt::Upcall;
        }
        if state.readers.values().any(|reader| reader.waits_for(std::slice::from_ref(change))) {
            return TakingAttempt::NoSpace;
        }
        state.offer(change, position, self.now, |_| true, &mut self.open);
        debug_assert!(self.open.full.is_empty(), "each of them has space");
        TakingAttempt::Taken
    }

    /// Gives the readers back until the next change.
    pub(crate) fn pause(&mut self) {
        self.state = None;
    }
}

impl Drop for ChangeBatch<'_> {
    fn drop(&mut self) {
        self.state = None;
        self.port.changed.ring();
    }
}

/// What has become of a change that was taken only if that needs no waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakingAttempt {
    Taken,
    /// A reader has to make space first.
    NoSpace,
    /// A reader has to be called.
    Upcall,
}

/// What is left to do with a change when the readers are not locked any more.
#[derive(Default)]
struct Unsettled {
    /// The readers that have no space for it.
    full: Vec<u16>,
    upcalls: Vec<ReaderUpcall>,
}

impl PortState {
    /// Returns the reader, if there is exactly one.
    fn only_reader(&mut self) -> Option<&mut ReaderCore> {
        if self.readers.len() != 1 {
            return None;
        }
        self.readers.first_entry().map(std::collections::btree_map::OccupiedEntry::into_mut)
    }

    /// Hands a change to the readers that `is_for` names; adds what is left to do to `open`.
    fn offer(
        &mut self,
        change: &ArrivedChange<'_>,
        position: Position,
        now: u64,
        is_for: impl Fn(&ReaderCore) -> bool,
        open: &mut Unsettled,
    ) {
        let is_alone = self.readers.len() == 1;
        for reader in self.readers.values_mut().filter(|reader| is_for(reader)) {
            let offer = if is_alone {
                reader.handle_alone(change, position, now)
            } else {
                reader.handle_change(change, position, now)
            };
            match offer {
                Offer::Done => {}
                Offer::Full => open.full.push(reader.id.number),
                Offer::Upcall => open.upcalls.extend(reader.upcall.clone()),
            }
        }
    }

    /// Forgets the peers that have no announcements in the topic's history any more: they have gone.
    pub(crate) fn retain_announced(&mut self, is_announced: impl Fn(EndpointId) -> bool) {
        self.peers.retain(|id, _| is_announced(*id));
        for writer in self.writers.values_mut() {
            writer.retain_announced(&is_announced);
        }
    }

    /// Remembers what a peer says, and informs writers of it.
    pub(crate) fn record(&mut self, peer: &EndpointAnnouncement) {
        if peer.role == TopicRole::Gone {
            self.peers.remove(&peer.id);
        } else {
            self.peers.insert(peer.id, peer.clone());
        }
        for writer in self.writers.values_mut() {
            writer.handle_announcement(peer);
        }
    }
}

/// How long an endpoint waits for space to announce itself.
const ANNOUNCEMENT_PATIENCE: Duration = Duration::from_secs(10);
/// What a thread that waits for space sleeps at most, although a bell wakes it.
const WAIT: Duration = Duration::from_millis(100);
