//! Opening, pairing and ending connections: one queue pair for each incarnation of a channel.
//!
//! An end that opens a channel makes a queue pair and says so (`Open`). An end that has an unpaired queue pair and
//! knows an unpaired one of the peer on the same channel connects its own to it and says so (`Accept`). It may post
//! once the peer has accepted the same pair. The end of an incarnation, for whatever reason, is announced (`Close`).
//! A queue pair that was connected to one that ended before both had accepted is replaced by a new one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use squall_fabric::{BreakReason, Channel, ConnId, Event, NodeId, PostError};

use super::VerbsFabric;
use super::endpoint::{Role, State};
use super::frame::{CloseReason, Frame, Violation};
use super::peer::Offer;
use super::queue_pair::Depth;

/// This node's ends of connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// By the number in their [`ConnId`].
    ends: Vec<End>,
    /// The live connection of each channel.
    by_channel: BTreeMap<(usize, Channel), usize>,
}

/// One end of a connection.
///
/// `accepted` implies `partner`.
#[derive(Debug)]
struct End {
    peer: usize,
    channel: Channel,
    /// None once it has ended.
    endpoint: Option<u32>,
    /// The peer's endpoint to which this one is connected.
    partner: Option<u32>,
    /// The peer has connected its endpoint to this one.
    accepted: bool,
}

impl Connections {
    /// The endpoint and the peer of a connection that takes posts.
    #[inline]
    pub(super) fn connected(&self, conn: ConnId) -> Result<(u32, usize), PostError> {
        let end = &self.ends[self.place(conn)];
        let endpoint = end.endpoint.filter(|_| end.accepted).ok_or(PostError::NotConnected)?;
        Ok((endpoint, end.peer))
    }

    /// The endpoint and the peer of a connection that has not ended.
    pub(super) fn live(&self, conn: ConnId) -> Result<(u32, usize), PostError> {
        let end = &self.ends[self.place(conn)];
        Ok((end.endpoint.ok_or(PostError::NotConnected)?, end.peer))
    }

    /// # Panics
    /// If the connection was never opened.
    fn place(&self, conn: ConnId) -> usize {
        let place = usize::try_from(conn.0).unwrap_or(usize::MAX);
        assert!(place < self.ends.len(), "{conn:?} was never opened here");
        place
    }

    /// The live connections with a peer.
    fn with(&self, peer: usize) -> impl Iterator<Item = usize> {
        let all = (peer, Channel(0))..=(peer, Channel(u32::MAX));
        self.by_channel.range(all).map(|(_, place)| *place)
    }

    /// The places of all live connections.
    pub(super) fn all_live(&self) -> Vec<usize> {
        self.by_channel.values().copied().collect()
    }

    /// The endpoint of the connection at `place`, unless it has ended.
    pub(super) fn endpoint_at(&self, place: usize) -> Option<u32> {
        self.ends[place].endpoint
    }

    /// The endpoints of a peer's connections that are connected at this end.
    fn endpoints_of(&self, peer: usize) -> Vec<u32> {
        let ends = self.with(peer).map(|place| &self.ends[place]);
        ends.filter(|end| end.partner.is_some()).filter_map(|end| end.endpoint).collect()
    }
}

impl VerbsFabric {
    /// Opens a channel.
    ///
    /// # Panics
    /// If it is open, or the device makes no queue pair.
    pub(super) fn open_channel(&mut self, node: NodeId, channel: Channel) -> ConnId {
        let peer = self.place_of(node);
        let place = self.connections.ends.len();
        let conn = ConnId(place as u64);
        let mut end = End { peer, channel, endpoint: None, partner: None, accepted: false };
        if let Some(reason) = self.peers[peer].lost {
            self.connections.ends.push(end);
            self.events.push_back(Event::Broken { conn, reason });
            return conn;
        }
        let before = self.connections.by_channel.insert((peer, channel), place);
        assert!(before.is_none(), "{channel:?} to {node} is open already");
        end.endpoint = Some(self.offer(peer, place, channel));
        self.connections.ends.push(end);
        self.pair_with_offer(place);
        conn
    }

    /// Makes a queue pair for a connection and tells the peer.
    fn offer(&mut self, peer: usize, place: usize, channel: Channel) -> u32 {
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(Role::Channel(place), peer, &domain, DEPTH);
        let number = made.unwrap_or_else(|error| panic!("the device makes no queue pair: {error}"));
        let pair = self.endpoints.live(number).expect("just made").pair.name();
        self.peers[peer].tell(Frame::Open { number, channel: channel.0, pair });
        number
    }

    /// Connects an unpaired end, if the peer has one as well.
    fn pair_with_offer(&mut self, place: usize) {
        let End { peer, channel, .. } = self.connections.ends[place];
        if let Some(offer) = self.peers[peer].offers.remove(&channel) {
            self.pair(place, offer);
        }
    }

    fn pair(&mut self, place: usize, offer: Offer) {
        let end = &mut self.connections.ends[place];
        let number = end.endpoint.expect("it is live");
        end.partner = Some(offer.number);
        let peer = end.peer;
        let address = self.peers[peer].address.expect("a peer says it before it opens anything");
        let writable = self.grants.count(peer, None) > 0;
        let endpoint = self.endpoints.live(number).expect("it is live");
        match endpoint.pair.connect(&address, offer.pair, writable) {
            Ok(()) => self.peers[peer].tell(Frame::Accept { number, partner: offer.number }),
            Err(error) => {
                tracing::warn!(%error, "no path to {}", self.peers[peer].node);
                self.break_connection(place, CloseReason::Unreachable);
            }
        }
    }

    /// Closes a connection, if it has not ended.
    pub(super) fn close_connection(&mut self, conn: ConnId) {
        let place = self.connections.place(conn);
        self.end_connection(place, Some(CloseReason::Closed));
    }

    /// Ends a live connection. The peer is told the reason, if there is one.
    fn end_connection(&mut self, place: usize, reason: Option<CloseReason>) {
        let end = &mut self.connections.ends[place];
        let Some(number) = end.endpoint.take() else { return };
        let (peer, channel) = (end.peer, end.channel);
        (end.partner, end.accepted) = (None, false);
        self.connections.by_channel.remove(&(peer, channel));
        self.end_endpoint(number);
        if let Some(reason) = reason {
            self.peers[peer].tell(Frame::Close { number, reason });
        }
    }

    /// Ends a live connection, tells the peer and this node.
    pub(super) fn break_connection(&mut self, place: usize, reason: CloseReason) {
        if self.connections.ends[place].endpoint.is_none() {
            return;
        }
        self.end_connection(place, Some(reason));
        let (conn, reason) = (ConnId(place as u64), reason.into());
        self.events.push_back(Event::Broken { conn, reason });
    }

    /// A peer refused a write of this node [F10].
    pub(super) fn on_refused(&mut self, place: usize) {
        self.events.push_back(Event::Refused { conn: ConnId(place as u64) });
        self.break_connection(place, CloseReason::Refused);
    }

    /// Breaks all connections with a peer that is lost.
    pub(super) fn break_all(&mut self, peer: usize, reason: BreakReason) {
        for place in self.connections.with(peer).collect::<Vec<_>>() {
            self.end_connection(place, None);
            self.events.push_back(Event::Broken { conn: ConnId(place as u64), reason });
        }
    }

    /// Lets a peer write on its connections, or not any more. A device that fails to forbid it does not matter: the
    /// keys of the grants are taken back all the same.
    pub(super) fn set_writable(&mut self, peer: usize, writable: bool) {
        for number in self.connections.endpoints_of(peer) {
            let endpoint = self.endpoints.live(number).expect("of a live connection");
            if let Err(error) = endpoint.pair.set_writable(writable) {
                // A pair that has failed cannot be changed, and need not be.
                tracing::debug!(%error, writable, "access of {} stays", self.peers[peer].node);
            }
        }
    }

    /// Ends all that a peer could write by, because the device did not take a key back.
    pub(super) fn fence_off(&mut self, peer: usize) {
        for place in self.connections.with(peer).collect::<Vec<_>>() {
            let endpoint =
                self.connections.ends[place].endpoint.and_then(|number| self.endpoints.live(number));
            if let Some(Err(error)) = endpoint.map(|endpoint| endpoint.pair.fail()) {
                tracing::error!(%error, "a queue pair does not fail");
            }
            self.break_connection(place, CloseReason::Refused);
        }
    }

    /// The peer has opened a channel.
    pub(super) fn on_open(&mut self, peer: usize, channel: Channel, offer: Offer) -> Result<(), Violation> {
        if let Some(&place) = self.connections.by_channel.get(&(peer, channel)) {
            if self.connections.ends[place].partner.is_some() {
                return Err(Violation("a channel opened twice"));
            }
            self.pair(place, offer);
            return Ok(());
        }
        let offers = &mut self.peers[peer].offers;
        if offers.len() >= OFFERS_MAX {
            return Err(Violation("too many channels opened"));
        }
        match offers.entry(channel) {
            Entry::Occupied(_) => Err(Violation("a channel opened twice")),
            Entry::Vacant(vacant) => {
                vacant.insert(offer);
                Ok(())
            }
        }
    }

    /// The peer has connected its endpoint `theirs` to `number`.
    pub(super) fn on_accept(&mut self, peer: usize, theirs: u32, number: u32) -> Result<(), Violation> {
        if !self.endpoints.was_made(number) {
            return Err(Violation("a connection accepted that was never opened"));
        }
        let Some(endpoint) = self.endpoints.live(number) else { return Ok(()) };
        let Role::Channel(place) = endpoint.role else {
            return Err(Violation("a connection accepted that is none"));
        };
        let end = &mut self.connections.ends[place];
        if end.peer != peer || end.partner != Some(theirs) || end.accepted {
            return Err(Violation("a connection accepted that was not offered"));
        }
        end.accepted = true;
        endpoint.state = State::Connected;
        let node = self.peers[peer].node;
        self.events.push_back(Event::Connected { conn: ConnId(place as u64), peer: node });
        Ok(())
    }

    /// The peer's endpoint `theirs` has ended.
    pub(super) fn on_close(&mut self, peer: usize, theirs: u32, reason: CloseReason) {
        self.peers[peer].offers.retain(|_, offer| offer.number != theirs);
        // What arrived before its end is still to be told.
        self.poll_completions();
        let paired = |place: &usize| self.connections.ends[*place].partner == Some(theirs);
        let Some(place) = self.connections.with(peer).find(paired) else { return };
        if self.connections.ends[place].accepted {
            let conn = ConnId(place as u64);
            self.end_connection(place, Some(CloseReason::Closed));
            self.events.push_back(Event::Broken { conn, reason: reason.into() });
        } else {
            self.renew(place);
        }
    }

    /// Replaces the queue pair of an end that was not connected yet and whose partner has ended.
    fn renew(&mut self, place: usize) {
        let end = &mut self.connections.ends[place];
        let (peer, channel) = (end.peer, end.channel);
        end.partner = None;
        let number = end.endpoint.take().expect("it is live");
        let receives = self.end_endpoint(number);
        self.peers[peer].tell(Frame::Close { number, reason: CloseReason::Closed });
        let number = self.offer(peer, place, channel);
        self.connections.ends[place].endpoint = Some(number);
        let endpoint = self.endpoints.live(number).expect("just made");
        for receive in receives {
            endpoint.post_receive(number, receive).expect("as many as before");
        }
        self.pair_with_offer(place);
    }
}

/// What a connection's queue pair holds.
const DEPTH: Depth = Depth { posts: 256, receives: 1024 };

/// Channels that a peer has opened and this node has not.
const OFFERS_MAX: usize = 1 << 16;
