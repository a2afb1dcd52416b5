//! Opening and ending connections: both ends open a channel, either may close it, and a break ends it for
//! both.

use rustix::fd::AsFd;
use squall_fabric::{BreakReason, Channel, ConnId, FabricEvent, NodeId};

use super::ShmFabric;
use super::connection::ShmConnection;
use super::ring::IncomingRing;
use super::wire::{ShmMessage, ShmViolation};
use crate::shortage;

impl ShmFabric {
    pub(super) fn open_channel(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        let link = self.link_to(peer);
        let id = self.connections.reserve();
        let opened = self.links[link].channels.entry(channel).or_default();
        assert!(opened.connection.is_none(), "{channel:?} to {peer} is open already");
        opened.here += 1;
        let index = opened.here;
        let ring = if opened.there == index { opened.ring.take() } else { None };
        let ended = opened.there >= index && ring.is_none();
        if !self.links[link].is_up() {
            self.connections.release(id);
            self.events.push(FabricEvent::Broken { conn: id, reason: BreakReason::PeerClosed });
            return id;
        }
        let connection = ShmConnection::new(id, link, channel, index);
        let connection =
            connection.unwrap_or_else(|error| shortage::shortage("memory for a connection", &error).unwind());
        let slot = self.connections.insert(connection);
        self.links[link].connections.push(slot);
        self.links[link].channels.entry(channel).or_default().connection = Some(slot);
        let connection = self.connections.at(slot).expect("inserted");
        let segment = connection.outgoing.segment().clone();
        let file = segment.file();
        self.send_message(link, ShmMessage::Open { channel: channel.0, index }, Some(file.as_fd()));
        if ended {
            self.end(slot, FabricEvent::Broken { conn: id, reason: BreakReason::PeerClosed });
        } else if let Some(ring) = ring {
            self.connect(slot, ring);
        }
        id
    }

    pub(super) fn on_open(
        &mut self,
        link: usize,
        channel: Channel,
        index: u64,
        ring: IncomingRing,
    ) -> Result<(), ShmViolation> {
        let channels = &mut self.links[link].channels;
        if channels.len() >= CHANNELS_MAX && !channels.contains_key(&channel) {
            return Err(ShmViolation("more channels than allowed"));
        }
        let opened = channels.entry(channel).or_default();
        if opened.there.checked_add(1) != Some(index) {
            return Err(ShmViolation("an opening out of order"));
        }
        opened.there = index;
        if opened.here < index {
            opened.ring = Some(ring);
        } else if let Some(slot) = opened.connection.filter(|_| opened.here == index) {
            self.connect(slot, ring);
        }
        Ok(())
    }

    fn connect(&mut self, slot: usize, ring: IncomingRing) {
        let connection = self.connections.at(slot).expect("it is open");
        connection.incoming = Some(ring);
        let (conn, link) = (connection.id, connection.link);
        // The peer may have posted already.
        self.links[link].look_again = true;
        self.events.push(FabricEvent::Connected { conn, peer: self.links[link].peer });
    }

    pub(super) fn on_close(
        &mut self,
        link: usize,
        channel: Channel,
        index: u64,
        reason: BreakReason,
    ) -> Result<(), ShmViolation> {
        let Some(slot) = self.end_of_peer(link, channel.0, index)? else { return Ok(()) };
        // What the peer posted before it closed has arrived.
        self.drain_connection(slot)?;
        if let Some(connection) = self.connections.at(slot) {
            let event = FabricEvent::Broken { conn: connection.id, reason };
            self.end(slot, event);
        }
        Ok(())
    }

    /// Notes that the peer's opening has ended; returns the connection here that belongs to it, if it is
    /// still open.
    pub(super) fn end_of_peer(
        &mut self,
        link: usize,
        channel: u32,
        index: u64,
    ) -> Result<Option<usize>, ShmViolation> {
        let opened = self.links[link].channels.get_mut(&Channel(channel));
        let opened =
            opened.filter(|opened| opened.there == index).ok_or(ShmViolation("a close out of order"))?;
        opened.ring = None;
        Ok(opened.connection.filter(|_| opened.here == index))
    }

    /// Ends a connection from this side and notifies the peer.
    pub(super) fn close_connection(&mut self, conn: ConnId) {
        if let Some(slot) = self.connections.find(conn) {
            self.send_closed(slot, BreakReason::PeerClosed);
            self.remove(slot);
        }
    }

    /// Handles the refusal of a write on the connection [F10].
    pub(super) fn refuse(&mut self, slot: usize) {
        let Some(conn) = self.connections.at(slot).map(|connection| connection.id) else { return };
        self.send_closed(slot, BreakReason::Refused);
        self.end(slot, FabricEvent::Refused { conn });
    }

    /// Breaks a connection from this side, for both ends.
    pub(super) fn break_connection(&mut self, slot: usize, reason: BreakReason) {
        let Some(conn) = self.connections.at(slot).map(|connection| connection.id) else { return };
        self.send_closed(slot, reason);
        self.end(slot, FabricEvent::Broken { conn, reason });
    }

    /// Breaks the connections whose posts have waited too long for a receive [F7].
    pub(super) fn break_impatient(&mut self) {
        let now_ns = self.now_ns();
        for slot in self.waiting.clone() {
            // Writes that the peer must copy first wait for its poll, however long that takes [F12].
            let connection =
                self.connections.at(slot).filter(|connection| connection.remote_copies.is_empty());
            if connection.is_some_and(|waiting| now_ns - waiting.waiting_since > RECEIVER_NOT_READY_NS) {
                self.break_connection(slot, BreakReason::ReceiverNotReady);
            }
        }
    }

    fn send_closed(&mut self, slot: usize, reason: BreakReason) {
        let Some(connection) = self.connections.at(slot) else { return };
        let ShmConnection { link, channel, index, .. } = *connection;
        self.send_message(link, ShmMessage::Close { channel: channel.0, index, reason }, None);
    }

    pub(super) fn end(&mut self, slot: usize, event: FabricEvent) {
        self.events.push(event);
        self.remove(slot);
    }

    /// Ends a connection without any event or message.
    pub(super) fn end_silently(&mut self, slot: usize) {
        self.remove(slot);
    }

    fn remove(&mut self, slot: usize) {
        let Some(connection) = self.connections.remove(slot) else { return };
        let link = &mut self.links[connection.link];
        link.connections.retain(|other| *other != slot);
        if let Some(opened) = link.channels.get_mut(&connection.channel) {
            opened.connection = None;
        }
        self.waiting.retain(|other| *other != slot);
        self.remote_copies.retain(|other| *other != slot);
    }
}

/// The most channels that one peer can have opened in total.
const CHANNELS_MAX: usize = 4096;
/// How long a post waits for a receive.
const RECEIVER_NOT_READY_NS: u64 = 500_000_000;
