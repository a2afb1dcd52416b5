//! Opening, pairing and ending connections: one queue pair for each incarnation of a channel.
//!
//! An end that opens a channel creates a queue pair and announces that (`Open`). An end that has an unpaired
//! queue pair and knows an unpaired one of the peer on the same channel connects its own to it and announces
//! that (`Accept`). It may post once the peer has accepted the same pair. The end of an incarnation, for
//! whatever reason, is announced (`Close`). A queue pair that was connected to one that ended before both had
//! accepted is replaced by a new one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use squall_fabric::{BreakReason, Channel, ConnId, FabricEvent, NodeId, PostError};

use super::VerbsFabric;
use super::endpoint::{EndpointRole, EndpointState};
use super::frame::{VerbsCloseReason, VerbsFrame, VerbsViolation};
use super::peer::OpenedChannel;
use super::queue_pair::QueueDepth;
use crate::slot_map::SlotMap;

/// This node's ends of connections.
#[derive(Debug, Default)]
pub(super) struct VerbsConnections {
    /// Those that have not ended, by the number in their [`ConnId`].
    ends: SlotMap<End>,
    by_channel: BTreeMap<(usize, Channel), u32>,
}

/// One end of a connection.
///
/// `accepted` implies `partner`.
#[derive(Debug)]
struct End {
    peer: usize,
    channel: Channel,
    endpoint: u32,
    /// The peer's endpoint to which this one is connected.
    partner: Option<u32>,
    /// Whether the peer has connected its endpoint to this one.
    accepted: bool,
}

impl VerbsConnections {
    /// Returns the endpoint and the peer of a connection that takes posts.
    #[inline]
    pub(super) fn connected(&self, conn: ConnId) -> Result<(u32, usize), PostError> {
        match self.find(conn) {
            Some(end) if end.accepted => Ok((end.endpoint, end.peer)),
            _ => Err(PostError::NotConnected),
        }
    }

    /// Returns the endpoint and the peer of a connection that has not ended.
    pub(super) fn live(&self, conn: ConnId) -> Result<(u32, usize), PostError> {
        self.find(conn).map(|end| (end.endpoint, end.peer)).ok_or(PostError::NotConnected)
    }

    /// Returns the end of a connection, unless it has ended.
    ///
    /// # Panics
    /// Panics if the connection was never opened.
    #[inline]
    fn find(&self, conn: ConnId) -> Option<&End> {
        let number = u32::try_from(conn.0).unwrap_or(u32::MAX);
        let end = self.ends.at(number);
        assert!(end.is_some() || self.ends.was_used(number), "{conn:?} was never opened here");
        end
    }

    fn end(&mut self, number: u32) -> &mut End {
        self.ends.at_mut(number).expect("it is live")
    }

    /// Returns the live connections with a peer.
    fn with(&self, peer: usize) -> impl Iterator<Item = u32> {
        let all = (peer, Channel(0))..=(peer, Channel(u32::MAX));
        self.by_channel.range(all).map(|(_, number)| *number)
    }

    /// Returns the numbers of all live connections, with their endpoints.
    pub(super) fn all_live(&self) -> Vec<(u32, u32)> {
        let endpoint = |number: &u32| Some((*number, self.ends.at(*number)?.endpoint));
        self.by_channel.values().filter_map(endpoint).collect()
    }

    /// Returns the endpoints of a peer's connections that are connected at this end.
    fn endpoints_of(&self, peer: usize) -> Vec<u32> {
        let ends = self.with(peer).filter_map(|number| self.ends.at(number));
        ends.filter(|end| end.partner.is_some()).map(|end| end.endpoint).collect()
    }
}

/// Returns the id of the connection with this number.
pub(super) fn conn_id(number: u32) -> ConnId {
    ConnId(u64::from(number))
}

impl VerbsFabric {
    /// Opens a channel. If the device cannot create a queue pair for it, it breaks at once.
    ///
    /// # Panics
    /// Panics if it is open.
    pub(super) fn open_channel(&mut self, node: NodeId, channel: Channel) -> ConnId {
        let peer = self.place_of(node);
        let end = End { peer, channel, endpoint: u32::MAX, partner: None, accepted: false };
        let number = self.connections.ends.insert(end);
        let before = self.connections.by_channel.insert((peer, channel), number);
        assert!(before.is_none(), "{channel:?} to {node} is open already");
        if let Some(reason) = self.peers[peer].lost {
            self.forget(number, reason);
        } else if self.offer(number) {
            self.pair_with_offer(number);
        }
        conn_id(number)
    }

    /// Breaks a connection that has no endpoint.
    fn forget(&mut self, number: u32, reason: BreakReason) {
        let end = self.connections.ends.remove(number).expect("it is live");
        self.connections.by_channel.remove(&(end.peer, end.channel));
        self.events.push_back(FabricEvent::Broken { conn: conn_id(number), reason });
    }

    /// Creates a queue pair for a connection and announces it to the peer; returns false if that fails, and
    /// then the connection breaks.
    fn offer(&mut self, number: u32) -> bool {
        let End { peer, channel, .. } = *self.connections.end(number);
        let domain = self.peers[peer].domain.clone();
        let endpoint = match self.endpoints.make(EndpointRole::Channel(number), peer, &domain, DEPTH) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                let node = self.peers[peer].node;
                crate::log::error!(%error, "failed to create a queue pair for a connection with {node}");
                self.forget(number, BreakReason::Unreachable);
                return false;
            }
        };
        self.connections.end(number).endpoint = endpoint;
        let pair = self.endpoints.live(endpoint).expect("just made").pair.name();
        self.peers[peer].send(VerbsFrame::Open { number: endpoint, channel: channel.0, pair });
        true
    }

    /// Connects an unpaired end, if the peer has one as well.
    fn pair_with_offer(&mut self, number: u32) {
        let End { peer, channel, .. } = *self.connections.end(number);
        if let Some(offer) = self.peers[peer].offers.remove(&channel) {
            self.pair(number, offer);
        }
    }

    fn pair(&mut self, conn: u32, offer: OpenedChannel) {
        let end = self.connections.end(conn);
        end.partner = Some(offer.number);
        let (number, peer) = (end.endpoint, end.peer);
        let address = self.peers[peer].address.expect("a peer sends it before it opens anything");
        let writable = self.grants.count(peer, None) > 0;
        let endpoint = self.endpoints.live(number).expect("it is live");
        match endpoint.pair.connect(&address, offer.pair, writable) {
            Ok(()) => self.peers[peer].send(VerbsFrame::Accept { number, partner: offer.number }),
            Err(error) => {
                crate::log::warn!(%error, "failed to connect a queue pair with {}", self.peers[peer].node);
                self.break_connection(conn, VerbsCloseReason::Unreachable);
            }
        }
    }

    /// Closes a connection, if it has not ended.
    pub(super) fn close_connection(&mut self, conn: ConnId) {
        if self.connections.find(conn).is_some() {
            self.end_connection(u32::try_from(conn.0).expect("found"), Some(VerbsCloseReason::Closed));
        }
    }

    /// Ends a live connection; returns false if there is none. The peer gets the reason, if there is one.
    fn end_connection(&mut self, number: u32, reason: Option<VerbsCloseReason>) -> bool {
        let Some(end) = self.connections.ends.remove(number) else { return false };
        self.connections.by_channel.remove(&(end.peer, end.channel));
        self.end_endpoint(end.endpoint);
        if let Some(reason) = reason {
            self.peers[end.peer].send(VerbsFrame::Close { number: end.endpoint, reason });
        }
        true
    }

    /// Ends a live connection, and notifies the peer and this node.
    pub(super) fn break_connection(&mut self, number: u32, reason: VerbsCloseReason) {
        if self.end_connection(number, Some(reason)) {
            let (conn, reason) = (conn_id(number), reason.into());
            self.events.push_back(FabricEvent::Broken { conn, reason });
        }
    }

    /// Handles a peer's refusal of a write of this node [F10].
    pub(super) fn on_refused(&mut self, number: u32) {
        self.events.push_back(FabricEvent::Refused { conn: conn_id(number) });
        self.break_connection(number, VerbsCloseReason::Refused);
    }

    /// Breaks all connections with a peer that is lost.
    pub(super) fn break_all(&mut self, peer: usize, reason: BreakReason) {
        for number in self.connections.with(peer).collect::<Vec<_>>() {
            self.end_connection(number, None);
            self.events.push_back(FabricEvent::Broken { conn: conn_id(number), reason });
        }
    }

    /// Ends all connections with a peer that is removed.
    pub(super) fn end_all(&mut self, peer: usize) {
        for number in self.connections.with(peer).collect::<Vec<_>>() {
            self.end_connection(number, None);
        }
    }

    /// Allows a peer to write on its connections, or forbids it. If the device fails to forbid it, no harm is
    /// done: the keys of the grants are revoked as well.
    pub(super) fn set_writable(&mut self, peer: usize, writable: bool) {
        for number in self.connections.endpoints_of(peer) {
            let endpoint = self.endpoints.live(number).expect("of a live connection");
            if let Err(error) = endpoint.pair.set_writable(writable) {
                // A pair that has failed cannot be changed, and need not be.
                crate::log::debug!(%error, writable, "the access of {} is unchanged", self.peers[peer].node);
            }
        }
    }

    /// Ends all connections through which a peer could write, because the device failed to revoke a key.
    pub(super) fn fence_off(&mut self, peer: usize) {
        for number in self.connections.with(peer).collect::<Vec<_>>() {
            let endpoint = self.connections.end(number).endpoint;
            let endpoint = self.endpoints.live(endpoint);
            if let Some(Err(error)) = endpoint.map(|endpoint| endpoint.pair.fail()) {
                crate::log::error!(%error, "failed to move a queue pair to the error state");
            }
            self.break_connection(number, VerbsCloseReason::Refused);
        }
    }

    /// Handles the peer's opening of a channel.
    pub(super) fn on_open(
        &mut self,
        peer: usize,
        channel: Channel,
        offer: OpenedChannel,
    ) -> Result<(), VerbsViolation> {
        if let Some(&number) = self.connections.by_channel.get(&(peer, channel)) {
            if self.connections.end(number).partner.is_some() {
                return Err(VerbsViolation("a channel opened twice"));
            }
            self.pair(number, offer);
            return Ok(());
        }
        let offers = &mut self.peers[peer].offers;
        if offers.len() >= OFFERS_MAX {
            return Err(VerbsViolation("too many channels opened"));
        }
        match offers.entry(channel) {
            Entry::Occupied(_) => Err(VerbsViolation("a channel opened twice")),
            Entry::Vacant(vacant) => {
                vacant.insert(offer);
                Ok(())
            }
        }
    }

    /// Handles the connection of the peer's endpoint `theirs` to `number`.
    pub(super) fn on_accept(&mut self, peer: usize, theirs: u32, number: u32) -> Result<(), VerbsViolation> {
        if !self.endpoints.was_made(number) {
            return Err(VerbsViolation("a connection accepted that was never opened"));
        }
        let Some(endpoint) = self.endpoints.live(number) else { return Ok(()) };
        let EndpointRole::Channel(conn) = endpoint.role else {
            return Err(VerbsViolation("an endpoint accepted that is not a connection"));
        };
        let end = self.connections.end(conn);
        if end.peer != peer || end.partner != Some(theirs) || end.accepted {
            return Err(VerbsViolation("a connection accepted that was not offered"));
        }
        end.accepted = true;
        endpoint.state = EndpointState::Connected;
        let node = self.peers[peer].node;
        self.events.push_back(FabricEvent::Connected { conn: conn_id(conn), peer: node });
        Ok(())
    }

    /// Handles the end of the peer's endpoint `theirs`.
    pub(super) fn on_close(&mut self, peer: usize, theirs: u32, reason: VerbsCloseReason) {
        self.peers[peer].offers.retain(|_, offer| offer.number != theirs);
        // What arrived before its end must be reported first.
        self.poll_completions();
        let paired =
            |number: &u32| self.connections.ends.at(*number).is_some_and(|end| end.partner == Some(theirs));
        let Some(number) = self.connections.with(peer).find(paired) else { return };
        if self.connections.end(number).accepted {
            self.end_connection(number, Some(VerbsCloseReason::Closed));
            self.events.push_back(FabricEvent::Broken { conn: conn_id(number), reason: reason.into() });
        } else {
            self.renew(number);
        }
    }

    /// Replaces the queue pair of an end that was not connected yet and whose partner has ended.
    fn renew(&mut self, conn: u32) {
        let end = self.connections.end(conn);
        let (peer, before) = (end.peer, end.endpoint);
        end.partner = None;
        let receives = self.end_endpoint(before);
        self.peers[peer].send(VerbsFrame::Close { number: before, reason: VerbsCloseReason::Closed });
        if !self.offer(conn) {
            return;
        }
        let number = self.connections.end(conn).endpoint;
        let endpoint = self.endpoints.live(number).expect("just made");
        for receive in receives {
            endpoint.post_receive(number, receive).expect("as many as before");
        }
        self.pair_with_offer(conn);
    }
}

/// The queue depth of a connection.
const DEPTH: QueueDepth = QueueDepth { posts: 256, receives: 1024 };

/// The most channels that a peer has opened and this node has not.
const OFFERS_MAX: usize = 1 << 16;
