//! The control path: what the sockets bring, and peers that are lost.

use rustix::fd::{BorrowedFd, OwnedFd};
use squall_fabric::{BreakReason, Channel, Event, Grant, MirrorKey, NodeId, RegionId};

use super::ShmFabric;
use super::connection::Drained;
use super::link::Life;
use super::placing::Going;
use super::ring::Incoming;
use super::socket::{Fill, Gone};
use super::wire::{Message, Violation};

impl ShmFabric {
    /// Looks at the sockets and at what only time resolves; returns how many messages came.
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

    /// Takes the messages of one peer; returns how many came.
    pub(super) fn read_link(&mut self, link: usize) -> usize {
        let mut messages = 0;
        for _ in 0..READS_MAX {
            match self.read_once(link, &mut messages) {
                Ok(Fill::Some) => {}
                Ok(Fill::Empty) => break,
                Ok(Fill::End) => {
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

    fn read_once(&mut self, link: usize, messages: &mut usize) -> Result<Fill, Violation> {
        if !self.links[link].is_up() {
            return Ok(Fill::Empty);
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
        message: Message,
        file: Option<OwnedFd>,
    ) -> Result<(), Violation> {
        let greeting = self.links[link].life == Life::Greeting;
        match (message, file) {
            (Message::Hello { node, witness }, Some(file)) if greeting => {
                self.on_hello(link, NodeId(node), &file)?;
                self.on_witness(link, &witness);
                return Ok(());
            }
            _ if greeting => return Err(Violation("something before its greeting")),
            (Message::Doorbell, _) => self.parking.on_doorbell(),
            (Message::Open { channel, index }, Some(file)) => {
                self.on_open(link, Channel(channel), index, Incoming::new(&file)?)?;
            }
            (Message::Close { channel, index, reason }, _) => {
                self.on_close(link, Channel(channel), index, reason)?;
            }
            (Message::Mirror { key, words }, Some(file)) => {
                self.on_mirror(link, MirrorKey(key), words, file)?;
            }
            (Message::Refused { channel, index }, _) => self.on_refused(link, channel, index)?,
            (Message::Attached { key }, _) => self.on_attached(link, MirrorKey(key))?,
            (Message::Retire { key }, _) => self.on_retire(link, MirrorKey(key)),
            (Message::Retired { key }, _) => self.on_retired(link, MirrorKey(key))?,
            (Message::Granted { key, region, first, words, moves }, Some(file)) => {
                let (owner, peer, region) = (self.links[link].peer, self.node, RegionId(region));
                let grant = Grant { owner, peer, region, first, words, key };
                self.links[link].taken.on_granted(grant, moves, &file)?;
            }
            (Message::Withdrawn { key }, _) => self.links[link].taken.on_withdrawn(key),
            _ => return Err(Violation("a greeting in the middle")),
        }
        Ok(())
    }

    fn on_hello(&mut self, link: usize, node: NodeId, file: &OwnedFd) -> Result<(), Violation> {
        if node != self.links[link].peer {
            return Err(Violation("the name of another node"));
        }
        self.links[link].on_greeting(file)
    }

    /// Takes what the peer has posted on all connections of a link; returns how much was done. What is left for the next poll
    /// counts, too.
    #[inline]
    pub(super) fn drain_link(&mut self, link: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut work = 0;
        for turn in (0..self.links[link].connections.len()).rev() {
            let Some(&slot) = self.links[link].connections.get(turn) else { continue };
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

    /// As [`ShmFabric::drain_link`], of one connection.
    #[inline]
    fn drain_slot(&mut self, slot: usize, sink: &mut impl FnMut(Event)) -> Result<bool, Violation> {
        while let Some(connection) = self.connections.at(slot) {
            match connection.drain(&mut *sink)? {
                Drained::All => break,
                Drained::TooLong => self.break_connection(slot, BreakReason::Protocol),
                Drained::UntilPlace => match self.serve_requests(slot, sink)? {
                    Going::On => {}
                    Going::Over => break,
                    Going::Later => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    /// Takes what the peer has posted before it ended the connection, up to the first write that this node would have to
    /// place: its words are the peer's own again.
    pub(super) fn drain_connection(&mut self, slot: usize) -> Result<(), Violation> {
        let Some(connection) = self.connections.at(slot) else { return Ok(()) };
        if connection.drain(|event| self.events.push(event))? == Drained::TooLong {
            self.break_connection(slot, BreakReason::Protocol);
        }
        Ok(())
    }

    /// Sends a control message, or keeps it until the peer has room.
    pub(super) fn tell(&mut self, link: usize, message: Message, file: Option<BorrowedFd<'_>>) {
        if self.links[link].is_up() {
            let sent = self.links[link].socket.send(message, file);
            self.on_sent(link, sent);
        }
    }

    /// A peer that takes no messages is lost, but only in the next poll: what it has sent is read before.
    fn on_sent(&mut self, link: usize, sent: Result<(), Gone>) {
        if sent == Err(Gone) {
            self.unheard.push((link, BreakReason::Unreachable));
            self.pace.hurry();
        }
    }

    /// Parts with a peer that broke the protocol.
    pub(super) fn disconnect(&mut self, link: usize, violation: Violation) {
        let peer = self.links[link].peer;
        tracing::warn!(%peer, "disconnected, it broke the protocol of shared memory: {violation}");
        self.lose(link, BreakReason::Protocol);
    }

    /// A peer is lost: its connections break, its views stay.
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
        self.links[link].life = if gone { Life::Gone } else { Life::Lost };
        for slot in std::mem::take(&mut self.links[link].connections) {
            if let Some(conn) = self.connections.at(slot).map(|connection| connection.id) {
                self.end(slot, Event::Broken { conn, reason });
            }
        }
        let peer = self.links[link].peer;
        self.events.push(Event::PeerLost { peer, reason });
        self.links[link].offers.clear();
        self.links[link].published.clear();
        self.parking.forget(&self.links[link].socket);
        self.links[link].socket.shut_down();
    }
}

/// Reads of one socket in one turn, so that a flood from one peer does not hold up the others.
const READS_MAX: usize = 16;
