//! A subgroup that carries topics which keep nothing: one topic that has it for itself, or those that share it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::{
    Deliveries, DeliveryEvent, GroupError, PolledBy, ReceiveError, SendError, Sender, SharedPoller,
};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::lock;

use crate::attended::Attended;
use crate::error::WriteError;
use crate::gate::OrderGate;
use crate::outbound::{Outbound, OutboundPace};
use crate::outlet::pause;
use crate::port::{TakingAttempt, TopicPort};
use crate::reader_core::ArrivedChange;
use crate::sample::{EndpointId, Position};
use crate::signal::Signal;
use crate::taking::TakingPace;
use crate::wire::{EndpointAnnouncement, SetChange, TopicFrame, TopicRole, read_set};

/// A subgroup that carries topics. Its thread hands what comes to the topic's port, if this participant uses the topic; it remembers what
/// endpoints of other topics say of themselves, since the participant may use these later.
///
/// The thread waits while a reliable reader is full, so topics that share a lane wait for each other's readers. A thread that polls the node
/// ([`SharedPoller`]) takes what needs no waiting, nor an upcall, itself ([`TopicLane::serve`]).
///
/// **Invariant.** What has come and was not taken, since a reader has no space for it, is looked at again by the thread that makes space
/// ([`TopicLane::note_taken`]), and by the lane's thread when a reader goes ([`TopicLane::wake`]).
#[derive(Debug)]
pub(crate) struct TopicLane {
    pub(crate) outbound: Mutex<Outbound>,
    pub(crate) poller: SharedPoller,
    routes: Mutex<LaneRoutes>,
    deliveries: Attended<Deliveries>,
    /// Rung when there may be something for the lane's thread.
    bell: Signal,
    /// Whether a reader's upcalls are made: the lane's thread polls the node while it waits.
    has_upcalls: AtomicBool,
    /// Whether a reader was full when something was to be taken: then the thread that makes space takes that.
    lacks_space: AtomicBool,
    taking: TakingPace,
}

#[derive(Debug, Default)]
struct LaneRoutes {
    ports: BTreeMap<u32, Arc<TopicPort>>,
    /// The endpoints of each topic that have been announced and not gone.
    peers: BTreeMap<u32, BTreeMap<EndpointId, EndpointAnnouncement>>,
    /// The members of the present view.
    nodes: BTreeSet<u32>,
    /// Whether nothing more comes, and why.
    end: Option<Option<GroupError>>,
}

impl TopicLane {
    /// `nodes`: the members of the present view.
    pub(crate) fn new(
        sender: Sender,
        deliveries: Deliveries,
        poller: SharedPoller,
        nodes: BTreeSet<u32>,
    ) -> Self {
        let outbound = Outbound::new(sender);
        let routes = LaneRoutes { nodes, ..LaneRoutes::default() };
        Self {
            outbound: Mutex::new(outbound),
            poller,
            routes: Mutex::new(routes),
            deliveries: Attended::new(deliveries),
            bell: Signal::default(),
            has_upcalls: AtomicBool::new(false),
            lacks_space: AtomicBool::new(false),
            taking: TakingPace::default(),
        }
    }

    /// Notes that a reader's upcalls are to be made.
    pub(crate) fn begin_upcalls(&self) {
        self.has_upcalls.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Connects a topic's port: it gets what comes from now on, and knows the endpoints that were announced before.
    pub(crate) fn connect(&self, topic: u32, port: &Arc<TopicPort>) {
        let mut routes = lock(&self.routes);
        let peers = routes.peers.get(&topic).cloned().unwrap_or_default();
        port.begin(peers);
        match routes.end.clone() {
            Some(end) => port.finish(end),
            None => drop(routes.ports.insert(topic, Arc::clone(port))),
        }
    }

    /// Returns the endpoints of a topic.
    pub(crate) fn endpoints(&self, topic: u32) -> Vec<(EndpointId, TopicRole)> {
        let routes = lock(&self.routes);
        let peers = routes.peers.get(&topic).into_iter().flatten();
        peers.map(|(id, peer)| (*id, peer.role)).collect()
    }

    /// Sends a message of `length` bytes by `send`, which is called again after it had no space. `now`: in nanoseconds since 1970.
    pub(crate) fn send(
        &self,
        length: usize,
        now: u64,
        patience: Duration,
        mut send: impl FnMut(&mut Outbound) -> Result<(), SendError>,
    ) -> Result<(), WriteError> {
        // Mostly there is space, and the clock costs as much as the rest.
        let (mut begun, mut attempt) = (None, 0);
        loop {
            let mut outbound = lock(&self.outbound);
            match send(&mut outbound) {
                Ok(()) => {
                    let pace = outbound.pace(now);
                    drop(outbound);
                    match pace {
                        OutboundPace::Single => self.poller.assist(|| ()),
                        OutboundPace::Stream { passes_on } if passes_on => self.poller.visit(),
                        OutboundPace::Stream { .. } => {}
                    }
                    return Ok(());
                }
                Err(error) if error.is_passing() => {
                    outbound.begin_stream();
                    drop(outbound);
                    let waited = begun.get_or_insert_with(Instant::now).elapsed();
                    let left = patience.checked_sub(waited).filter(|left| !left.is_zero());
                    let Some(left) = left else { return Err(WriteError::from_send(error, patience)) };
                    if self.poller.is_polled() {
                        // That thread should not have to wake this one after each poll.
                        pause(attempt);
                        attempt += 1;
                    } else {
                        self.poller.wait_until(left.min(LOOK), || self.has_space(length).then_some(()));
                    }
                }
                Err(error) => return Err(WriteError::from_send(error, patience)),
            }
        }
    }

    /// Returns whether it is worth trying to send a message of `length` bytes.
    fn has_space(&self, length: usize) -> bool {
        // While another thread writes, there is a poll to come that shows that.
        let outbound = self.outbound.try_lock();
        outbound.is_ok_and(|mut outbound| {
            outbound.check_space(length).map_or_else(|error| !error.is_passing(), |()| true)
        })
    }

    /// Notes that an application's thread has taken samples, of `bytes` together: every so often it polls the node, since it waits for
    /// nothing as long as there are more of them.
    pub(crate) fn note_taken(&self, samples: usize, bytes: usize) {
        if self.taking.is_due(samples, bytes) {
            self.poller.visit();
        }
        // It was set before the readers were given back, or there was space already.
        if self.lacks_space.swap(false, Ordering::Relaxed) {
            self.serve(PolledBy::Waiting);
        }
    }

    /// Lets the lane's thread look again.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    /// Hands on what the group delivers, until it ends.
    pub(crate) fn run(&self) {
        loop {
            let is_announcing = {
                let mut outbound = lock(&self.outbound);
                // What has no space now is tried again below; an error of the group comes from the deliveries, too.
                let _ = outbound.flush();
                outbound.has_pending()
            };
            let seen = self.bell.count();
            let handled = self.handle_events(&mut self.deliveries.lock());
            match handled {
                Ok(true) => {}
                Ok(false) if self.deliveries.take_missed() => {}
                Ok(false) if is_announcing => thread::sleep(NAP),
                Ok(false) => self.await_event(seen),
                Err(ReceiveError::Group(error)) => return self.finish(Some(&error)),
                Err(_) => return self.finish(None),
            }
        }
    }

    /// Waits for an event. Without upcalls, another thread has to find it: the bell has rung `seen` times.
    fn await_event(&self, seen: u64) {
        if self.has_upcalls.load(Ordering::Relaxed) {
            self.poller.wait_until_notified(LONG, || {
                let has_event = self.deliveries.lock().has_event();
                (has_event || self.deliveries.take_missed()).then_some(())
            });
        } else {
            // The threads that poll take what comes, and this one would only be in their way.
            self.bell.wait(seen, LONG);
        }
    }

    /// Ensures that what has come is taken, after a poll: here, or by the lane's thread.
    pub(crate) fn serve(&self, by: PolledBy) {
        self.deliveries.attend(|deliveries| {
            if self.serve_with(by, deliveries) {
                self.bell.ring();
                if self.has_upcalls.load(Ordering::Relaxed) {
                    self.poller.notify();
                }
            }
        });
    }

    /// Takes what needs neither waiting nor an upcall; returns whether there is something for the lane's thread.
    fn serve_with(&self, by: PolledBy, deliveries: &mut Deliveries) -> bool {
        match by {
            PolledBy::Waiting | PolledBy::Standby if !self.has_upcalls.load(Ordering::Relaxed) => {
                self.take_at_once(deliveries)
            }
            PolledBy::Waiting | PolledBy::Standby => deliveries.has_event(),
            _ => true,
        }
    }

    /// Takes what needs no waiting; returns whether something is left for the lane's thread. What a reader has no space for is left to
    /// the thread that takes samples from there.
    fn take_at_once(&self, deliveries: &mut Deliveries) -> bool {
        for _ in 0..ROUNDS_MAX {
            let mut next = None;
            let look = |message: squall::Message<'_>| {
                next = match TopicFrame::decode(message.bytes) {
                    Some(TopicFrame::Change(header, _)) => self.port(header.topic),
                    _ => None,
                };
                false
            };
            match deliveries.try_batch_while(look) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(_) => return true,
            }
            let Some(port) = next.filter(|port| port.gate.is_none()) else { return true };
            let (mut batch, mut has_taken, mut is_full) = (port.begin_batch(), false, false);
            let take = |message: squall::Message<'_>| {
                let position = Position { view: message.view, sequence: message.sequence };
                let attempt = match TopicFrame::decode(message.bytes) {
                    Some(TopicFrame::Change(header, data)) if header.topic == port.outlet.topic() => {
                        batch.try_change(&ArrivedChange::new(header, data, 0), position)
                    }
                    _ => TakingAttempt::Upcall,
                };
                has_taken |= attempt == TakingAttempt::Taken;
                if attempt == TakingAttempt::NoSpace {
                    // While the readers are locked: a thread that makes space later sees it.
                    self.lacks_space.store(true, Ordering::Relaxed);
                    is_full = true;
                }
                attempt == TakingAttempt::Taken
            };
            match deliveries.try_batch_while(take) {
                Ok(false) => return false,
                Ok(true) if is_full => return false,
                Ok(true) if has_taken => {}
                _ => return true,
            }
        }
        true
    }

    /// Takes what is there, up to a change of a topic and those that follow it; returns whether there was anything.
    fn handle_events(&self, deliveries: &mut Deliveries) -> Result<bool, ReceiveError> {
        for handled in 0..BATCH_MAX {
            let Some(present) = deliveries.try_next_event()? else { return Ok(handled > 0) };
            if let Some((topic, port)) = self.handle_event(&present) {
                self.handle_batch(topic, &port, deliveries)?;
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Takes an event. If it is a change of a topic that is in no order with others, returns that topic and its port.
    fn handle_event(&self, event: &DeliveryEvent<'_>) -> Option<(u32, Arc<TopicPort>)> {
        match event {
            DeliveryEvent::Message(message) => self
                .handle_message(message.bytes, Position { view: message.view, sequence: message.sequence }),
            DeliveryEvent::View(view) => {
                let nodes = view.members.iter().map(|member| member.node.0).collect();
                self.handle_view(&nodes, Position { view: view.id, sequence: 0 });
                None
            }
            _ => None,
        }
    }

    /// Hands changes to the port of their topic, as long as they are there already.
    fn handle_batch(
        &self,
        topic: u32,
        port: &TopicPort,
        deliveries: &mut Deliveries,
    ) -> Result<(), ReceiveError> {
        let mut batch = port.begin_batch();
        deliveries.try_batch(|message| {
            let position = Position { view: message.view, sequence: message.sequence };
            match TopicFrame::decode(message.bytes) {
                Some(TopicFrame::Change(header, data)) if header.topic == topic => {
                    batch.handle_change(&ArrivedChange::new(header, data, 0), position);
                }
                _ => {
                    batch.pause();
                    self.handle_message(message.bytes, position);
                }
            }
        })?;
        Ok(())
    }

    /// Takes a message. If it is a change of a topic that is in no order with others, returns that topic and its port.
    fn handle_message(&self, bytes: &[u8], position: Position) -> Option<(u32, Arc<TopicPort>)> {
        match TopicFrame::decode(bytes) {
            Some(TopicFrame::Announcement(topic, body)) => match EndpointAnnouncement::decode(body) {
                Some(peer) => {
                    if let Some(port) = self.record(topic, &peer) {
                        port.handle_announcement(&peer, position);
                    }
                }
                None => self.port(topic).into_iter().for_each(|port| port.lose()),
            },
            Some(TopicFrame::Change(header, data)) => {
                let port = self.port(header.topic)?;
                let change = ArrivedChange::new(header, data, 0);
                port.handle_change(&change, position, |_| true);
                return port.gate.is_none().then_some((header.topic, port));
            }
            Some(TopicFrame::Set(body)) => match read_set(body) {
                Some(changes) => self.handle_set(&changes, position),
                None => self.ports().iter().for_each(|port| port.lose()),
            },
            // The others are updates of histories.
            Some(_) | None => {
                self.ports().iter().for_each(|port| port.lose());
            }
        }
        None
    }

    /// Hands a coherent set to the readers of its topics: at once to those that take it as a whole.
    fn handle_set(&self, changes: &[SetChange<'_>], position: Position) {
        let mut of_topics = BTreeMap::<u32, Vec<ArrivedChange<'_>>>::new();
        for (place, SetChange { header, data, .. }) in (0..).zip(changes) {
            let change = ArrivedChange::new(*header, data, place);
            of_topics.entry(header.topic).or_default().push(change);
        }
        let with_port = |(topic, set)| self.port(topic).map(|port| (port, set));
        let parts: Vec<_> = of_topics.into_iter().filter_map(with_port).collect();
        loop {
            let hold = parts.iter().find_map(|(port, _)| port.gate.as_ref()).map(OrderGate::hold);
            let Some((full, set)) = parts.iter().find(|(port, set)| !port.has_space_for(set)) else {
                parts.iter().for_each(|(port, set)| port.handle_set(set, position));
                break;
            };
            drop(hold);
            full.insist(|| full.has_space_for(set));
        }
        for (port, set) in &parts {
            set.iter().for_each(|change| port.handle_change(change, position, |reader| !reader.is_coherent));
        }
    }

    /// Remembers what an endpoint says of itself; returns the topic's port.
    fn record(&self, topic: u32, peer: &EndpointAnnouncement) -> Option<Arc<TopicPort>> {
        let mut routes = lock(&self.routes);
        let peers = routes.peers.entry(topic).or_default();
        if peer.role == TopicRole::Gone {
            peers.remove(&peer.id);
        } else {
            peers.insert(peer.id, peer.clone());
        }
        routes.ports.get(&topic).cloned()
    }

    fn handle_view(&self, nodes: &BTreeSet<u32>, position: Position) {
        let mut routes = lock(&self.routes);
        let has_new = !nodes.is_subset(&routes.nodes);
        routes.nodes.clone_from(nodes);
        for peers in routes.peers.values_mut() {
            peers.retain(|id, _| nodes.contains(&id.node));
        }
        drop(routes);
        self.ports().iter().for_each(|port| port.handle_view(nodes, position));
        if has_new {
            lock(&self.outbound).announce_again();
        }
    }

    fn finish(&self, error: Option<&GroupError>) {
        let mut routes = lock(&self.routes);
        routes.end = Some(error.cloned());
        // A port has the lane for its outlet.
        let ports = std::mem::take(&mut routes.ports);
        drop(routes);
        ports.values().for_each(|port| port.finish(error.cloned()));
    }

    fn port(&self, topic: u32) -> Option<Arc<TopicPort>> {
        lock(&self.routes).ports.get(&topic).cloned()
    }

    fn ports(&self) -> Vec<Arc<TopicPort>> {
        lock(&self.routes).ports.values().cloned().collect()
    }
}

/// After as many events the thread looks for what is to be announced.
const BATCH_MAX: usize = 256;
/// How many batches a thread that polls the node takes at a time.
const ROUNDS_MAX: usize = 64;
/// How long a thread that waits for space does so before it tries again in any case.
const LOOK: Duration = Duration::from_millis(10);
/// What a wait without end waits at a time.
const LONG: Duration = Duration::from_secs(60);
/// How long a thread with announcements that have no space sleeps.
const NAP: Duration = Duration::from_micros(200);
