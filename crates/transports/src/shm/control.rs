//! The control path: messages from the sockets, and lost peers.

use rustix::fd::{BorrowedFd, OwnedFd};
use squall_fabric::{BreakReason, Channel, FabricEvent, Grant, MirrorKey, NodeId, RegionId};

use super::ShmFabric;
use super::connection::DrainOutcome;
use super::link::PeerLiveness;
use super::remote_copy::ServeOutcome;
use super::ring::IncomingRing;
use super::socket::{PeerGone, ReadOutcome};
use super::wire::{ShmMessage, ShmViolation};

impl ShmFabric {
    /// Reads the sockets and handles timeouts; returns the number of messages.
    pub(super) fn poll_control(&mut self) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        self.parking.wait(Some(std::time::Duration::ZERO), &mut ready);
        let messages = ready.iter().map(|link| self.read_link(*link)).sum();
        self.ready = ready;
        for link in self.links.numbers() {
            if self.links[link].socket.is_full() && self.links[link].is_up() {
                let flushed = self.links[link].socket.flush();
                self.on_sent(link, flushed);
            }
        }
        for (link, reason) in std::mem::take(&mut self.unheard) {
            self.lose(link, reason);
        }
        if self.is_revoking() {
            self.poll_revocations();
        }
        self.break_impatient();
        messages
    }

    /// Reports peers whose processes the kernel has begun to end.
    #[inline]
    pub(super) fn look_for_dying(&mut self) {
        for link in 0..self.links.bound() {
            if self.links.is_dying(link) && self.links[link].has_stopped() {
                let peer = self.links[link].peer;
                self.events.push(FabricEvent::PeerDying { peer });
            }
        }
    }

    /// Takes note of the end of a peer that was removed while it was dying, if the end has come.
    fn bury(&mut self, link: usize) {
        let link = &mut self.links[link];
        for _ in 0..READS_MAX {
            match link.socket.fill() {
                // What it sent last is for a node that had not removed it.
                Ok(ReadOutcome::Some) => while matches!(link.socket.next(), Ok(Some(_))) {},
                Ok(ReadOutcome::Empty) => return,
                Ok(ReadOutcome::End) | Err(_) => {
                    link.life = PeerLiveness::Gone;
                    self.parking.forget(&link.socket);
                    return;
                }
            }
        }
    }

    /// Reads the messages of one peer; returns their number.
    pub(super) fn read_link(&mut self, link: usize) -> usize {
        if self.links[link].life == PeerLiveness::Dying {
            self.bury(link);
            return 0;
        }
        let mut messages = 0;
        for _ in 0..READS_MAX {
            match self.read_once(link, &mut messages) {
                Ok(ReadOutcome::Some) => {}
                Ok(ReadOutcome::Empty) => break,
                Ok(ReadOutcome::End) => {
                    self.lose(link, BreakReason::PeerClosed);
                    break;
                }
                Err(violation) => {
                    self.disconnect(link, violation);
                    break;
                }
            }
        }
        messages
    }

    fn read_once(&mut self, link: usize, messages: &mut usize) -> Result<ReadOutcome, ShmViolation> {
        if !self.links[link].is_up() {
            return Ok(ReadOutcome::Empty);
        }
        let fill = self.links[link].socket.fill()?;
        while let Some((message, file)) = self.links[link].socket.next()? {
            *messages += 1;
            self.handle_message(link, message, file)?;
        }
        Ok(fill)
    }

    fn handle_message(
        &mut self,
        link: usize,
        message: ShmMessage,
        file: Option<OwnedFd>,
    ) -> Result<(), ShmViolation> {
        let hello = self.links[link].life == PeerLiveness::AwaitingHello;
        match (message, file) {
            (ShmMessage::Hello { node, witness }, Some(file)) if hello => {
                self.on_hello(link, NodeId(node), &file)?;
                self.on_witness(link, &witness);
                return Ok(());
            }
            _ if hello => return Err(ShmViolation("a message before its greeting")),
            (ShmMessage::Doorbell, _) => self.parking.on_doorbell(),
            (ShmMessage::Open { channel, index }, Some(file)) => {
                self.on_open(link, Channel(channel), index, IncomingRing::new(&file)?)?;
            }
            (ShmMessage::Close { channel, index, reason }, _) => {
                self.on_close(link, Channel(channel), index, reason)?;
            }
            (ShmMessage::Mirror { key, words }, Some(file)) => {
                self.on_mirror(link, MirrorKey(key), words, file)?;
            }
            (ShmMessage::Refused { channel, index }, _) => self.on_refused(link, channel, index)?,
            (ShmMessage::Attached { key }, _) => self.on_attached(link, MirrorKey(key))?,
            (ShmMessage::Retire { key }, _) => self.on_retire(link, MirrorKey(key)),
            (ShmMessage::Retired { key }, _) => self.on_retired(link, MirrorKey(key))?,
            (ShmMessage::Granted { key, region, first, words, moves }, Some(file)) => {
                let (owner, peer, region) = (self.links[link].peer, self.node, RegionId(region));
                let grant = Grant { owner, peer, region, first, words, key };
                self.links[link].received.on_granted(grant, moves, &file)?;
            }
            (ShmMessage::Withdrawn { key }, _) => self.links[link].received.on_withdrawn(key),
            _ => return Err(ShmViolation("a second greeting")),
        }
        Ok(())
    }

    fn on_hello(&mut self, link: usize, node: NodeId, file: &OwnedFd) -> Result<(), ShmViolation> {
        if node != self.links[link].peer {
            return Err(ShmViolation("the number of another node"));
        }
        self.links[link].on_hello(file, self.parking.waker())
    }

    /// Takes the peer's posts on all connections of a link; returns the amount of work done. Work that is
    /// left for the next poll counts, too.
    #[inline]
    pub(super) fn drain_link(&mut self, link: usize, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        let mut work = 0;
        for place in (0..self.links[link].connections.len()).rev() {
            let Some(&slot) = self.links[link].connections.get(place) else { continue };
            let drained = self.drain_slot(slot, &mut |event| {
                work += 1;
                sink(event);
            });
            match drained {
                Ok(is_done) => work += usize::from(!is_done),
                Err(violation) => {
                    self.disconnect(link, violation);
                    break;
                }
            }
        }
        work
    }

    /// Same as [`ShmFabric::drain_link`], for one connection; returns whether nothing is left for the next
    /// poll.
    #[inline]
    fn drain_slot(&mut self, slot: usize, sink: &mut impl FnMut(FabricEvent)) -> Result<bool, ShmViolation> {
        while let Some(connection) = self.connections.at(slot) {
            match connection.drain(&mut *sink)? {
                DrainOutcome::All => break,
                DrainOutcome::TooLong => self.break_connection(slot, BreakReason::Protocol),
                DrainOutcome::UntilRemoteCopy => match self.serve_requests(slot, sink)? {
                    ServeOutcome::On => {}
                    ServeOutcome::Over => break,
                    ServeOutcome::Later => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    /// Takes what the peer has posted before it ended the connection, up to the first write that this node
    /// would have to copy: its source words belong to the peer again.
    pub(super) fn drain_connection(&mut self, slot: usize) -> Result<(), ShmViolation> {
        let Some(connection) = self.connections.at(slot) else { return Ok(()) };
        if connection.drain(|event| self.events.push(event))? == DrainOutcome::TooLong {
            self.break_connection(slot, BreakReason::Protocol);
        }
        Ok(())
    }

    /// Sends a control message, or buffers it until the peer has space.
    pub(super) fn send_message(&mut self, link: usize, message: ShmMessage, file: Option<BorrowedFd<'_>>) {
        if self.links[link].is_up() {
            let sent = self.links[link].socket.send(message, file);
            self.on_sent(link, sent);
        }
    }

    /// Handles a peer that takes no messages: it is lost, but only in the next poll, since what it has sent
    /// is read first.
    fn on_sent(&mut self, link: usize, sent: Result<(), PeerGone>) {
        if sent == Err(PeerGone) {
            self.unheard.push((link, BreakReason::Unreachable));
            self.pace.hurry();
        }
    }

    /// Disconnects a peer that violated the protocol.
    pub(super) fn disconnect(&mut self, link: usize, violation: ShmViolation) {
        let peer = self.links[link].peer;
        crate::log::warn!(%peer, "disconnected a peer that violated the shared-memory protocol: it sent {violation}");
        self.lose(link, BreakReason::Protocol);
    }

    /// Handles the loss of a peer: its connections break, its attachments remain.
    fn lose(&mut self, link: usize, reason: BreakReason) {
        if !self.links[link].is_up() {
            return;
        }
        if reason == BreakReason::PeerClosed {
            // What it posted before it died has arrived.
            for slot in self.links[link].connections.clone() {
                let _ = self.drain_connection(slot);
            }
        }
        let gone = reason == BreakReason::PeerClosed;
        self.links[link].life = if gone { PeerLiveness::Gone } else { PeerLiveness::Lost };
        for slot in std::mem::take(&mut self.links[link].connections) {
            if let Some(conn) = self.connections.at(slot).map(|connection| connection.id) {
                self.end(slot, FabricEvent::Broken { conn, reason });
            }
        }
        let peer = self.links[link].peer;
        self.events.push(FabricEvent::PeerLost { peer, reason });
        self.links[link].offers.clear();
        self.links[link].published.clear();
        self.parking.forget(&self.links[link].socket);
        self.links[link].socket.shut_down();
    }
}

/// The most reads of one socket in one poll, so that a flood from one peer does not delay the others.
const READS_MAX: usize = 16;
