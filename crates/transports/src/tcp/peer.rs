//! One peer: its socket, its output queue, and what this node shares with it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};

use squall_fabric::{BreakReason, Duration, FabricEvent, NodeId};

use super::TcpCounters;
use super::attachments::TcpAttachments;
use super::connections::TcpConnections;
use super::frame::{TcpFrame, TcpViolation};
use super::grants::TcpGrants;
use super::input::{ReceiveBuffer, StreamInput};
use super::mirror::TcpMirrors;
use super::output::{OutputQueue, PIECES_MAX};
use super::reopening::Reopening;
use super::socket::{IoPiece, TcpSocket};
use crate::PeerTraffic;
use crate::clock::Clock;
use crate::composite::PeerTransport;
use crate::session::Records;

/// State of this node rather than of one peer.
#[derive(Debug)]
pub(super) struct LocalNode {
    pub(super) clock: Clock,
    pub(super) grants: TcpGrants,
    pub(super) mirrors: TcpMirrors,
    /// The events that the next poll yields.
    pub(super) events: VecDeque<FabricEvent>,
    pub(super) counters: TcpCounters,
    /// How long a connection that can be opened again may be silent.
    pub(super) silence: Option<Duration>,
}

/// A peer and the stream to it.
#[derive(Debug)]
pub(super) struct TcpPeer {
    pub(super) node: NodeId,
    /// Its place among the peers.
    pub(super) index: usize,
    /// None when the peer is lost, or its connection is being opened again.
    pub(super) socket: Option<TcpSocket>,
    /// The keys of the session, if the stream is encrypted.
    pub(super) records: Option<Box<Records>>,
    /// Set when the peer is lost; nothing is sent or received then.
    pub(super) lost: Option<BreakReason>,
    /// If a connection that breaks is opened again.
    pub(super) reopening: Option<Reopening>,
    /// Whether there may be input.
    pub(super) readable: bool,
    /// Whether the socket may take more output.
    pub(super) writable: bool,
    /// Whether the kernel holds acknowledgements until more output follows.
    pub(super) held: bool,
    /// In how many polls acknowledgements alone have waited for output that takes them along.
    gathered: u8,
    /// Whether the peer has ended its half, or the stream failed: then input is read until its end.
    pub(super) ended: bool,
    /// Why sending failed, which says more than the end of the stream.
    pub(super) failure: Option<io::Error>,
    pub(super) output: OutputQueue,
    pub(super) input: StreamInput,
    pub(super) attachments: TcpAttachments,
    pub(super) connections: TcpConnections,
    /// The bytes that the socket has taken, and those that it has yielded.
    pub(super) bytes_sent: u64,
    bytes_received: u64,
}

/// Why a peer is lost.
#[derive(Debug)]
pub(super) enum TcpLoss {
    /// It violated the transport protocol.
    Violation(TcpViolation),
    /// It reports that this node violated the transport protocol.
    Goodbye,
    /// It ended the stream.
    End,
    /// It ended deliberately.
    Farewell,
    /// A record does not verify.
    BadRecord,
    /// Its process lives, and has lost or removed this node.
    Gone,
    /// Its process has ended: its host ended the stream, and refuses connections.
    Dead,
    /// It does not take what is sent to it.
    Overrun,
    Io(io::Error),
}

impl From<TcpViolation> for TcpLoss {
    fn from(violation: TcpViolation) -> Self {
        Self::Violation(violation)
    }
}

impl fmt::Display for TcpLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(TcpViolation(how)) => write!(f, "it violated the transport protocol with {how}"),
            Self::Goodbye => f.write_str("it reports that this node violated the transport protocol"),
            Self::End => f.write_str("it ended the stream"),
            Self::Farewell => f.write_str("it has ended"),
            Self::BadRecord => f.write_str("a record does not verify: it was altered in transit"),
            Self::Gone => f.write_str("it has lost or removed this node"),
            Self::Dead => {
                f.write_str("its process has ended: its host ended the stream, and refuses connections")
            }
            Self::Overrun => f.write_str("it does not take what is sent to it"),
            Self::Io(error) => write!(f, "the stream failed: {error}"),
        }
    }
}

impl TcpLoss {
    /// Returns whether the connection has failed, and not the peer \[C8\].
    pub(super) const fn is_break(&self) -> bool {
        matches!(self, Self::End | Self::BadRecord | Self::Io(_))
    }

    pub(super) fn reason(&self) -> BreakReason {
        match self {
            Self::Violation(_) | Self::Goodbye | Self::BadRecord => BreakReason::Protocol,
            Self::Overrun => BreakReason::Unreachable,
            Self::Gone => BreakReason::Removed,
            Self::End | Self::Farewell | Self::Dead => BreakReason::PeerClosed,
            Self::Io(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                    BreakReason::PeerClosed
                }
                _ => BreakReason::Unreachable,
            },
        }
    }
}

impl TcpPeer {
    /// Numbers connections from `first_connection` on: earlier peers at this place have used the lower
    /// numbers.
    pub(super) fn new(
        node: NodeId,
        index: usize,
        socket: TcpSocket,
        records: Option<Box<Records>>,
        reopening: Option<Reopening>,
        first_connection: u32,
    ) -> Self {
        Self {
            node,
            index,
            socket: Some(socket),
            records,
            lost: None,
            output: OutputQueue::new(reopening.is_some()),
            reopening,
            readable: true,
            writable: true,
            held: false,
            gathered: 0,
            ended: false,
            failure: None,
            input: StreamInput::new(),
            attachments: TcpAttachments::default(),
            connections: TcpConnections::new(index, node, first_connection),
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Sends queued output, as far as the socket takes it in one call. Returns the number of bytes.
    pub(super) fn poll_output(&mut self, counters: &mut TcpCounters) -> usize {
        self.acknowledge();
        self.gathered = 0;
        if self.held {
            self.held = false;
            if !self.has_output() {
                self.socket().push();
            }
        }
        if self.records.is_some() {
            return self.transmit_sealed(counters, TcpSocket::send);
        }
        let sent = self.transmit(counters, Self::send);
        // What is before the pages of a file is sent by a call of its own.
        if self.output.next_file().is_some() { sent + self.transmit(counters, Self::send) } else { sent }
    }

    /// Acknowledges what was handled, if that is due \[C4\].
    fn acknowledge(&mut self) {
        if self.reopening.is_some()
            && let Some(position) = self.input.take_handled(!self.output.is_empty())
        {
            self.output.push_answer(TcpFrame::Handled { position });
        }
    }

    /// Returns whether any output waits for the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty() || self.records.as_ref().is_some_and(|records| !records.is_flushed())
    }

    /// Same as [`TcpPeer::poll_output`], but acknowledgements alone wait for some polls: what they acknowledge is handled first, and is often
    /// answered, so that one packet carries both.
    pub(super) fn poll_gathered(&mut self, counters: &mut TcpCounters) -> usize {
        let has_sealed = || self.records.as_ref().is_some_and(|records| !records.is_flushed());
        let has_answers_only = !self.output.is_empty() && !self.output.has_posts() && !has_sealed();
        if self.gathered < GATHERING_POLLS && has_answers_only {
            self.gathered += 1;
            return 0;
        }
        self.poll_output(counters)
    }

    /// Same as [`TcpPeer::poll_output`], but if only acknowledgements are queued, the kernel holds them for a
    /// moment.
    pub(super) fn poll_own_output(&mut self, counters: &mut TcpCounters) -> usize {
        if !self.has_output() {
            return 0;
        }
        if self.output.has_posts() {
            return self.poll_output(counters);
        }
        self.held = true;
        if self.records.is_some() {
            return self.transmit_sealed(counters, TcpSocket::send_with_more);
        }
        self.transmit(counters, |peer| match peer.output.plain() {
            Some(bytes) => Ok((peer.socket().send_with_more(bytes)?, bytes.len())),
            None => peer.send(),
        })
    }

    fn transmit(
        &mut self,
        counters: &mut TcpCounters,
        send: impl FnOnce(&Self) -> io::Result<(usize, usize)>,
    ) -> usize {
        if !self.writable || self.output.is_empty() {
            return 0;
        }
        counters.send_calls += 1;
        match send(self) {
            Ok((sent, wanted)) => {
                counters.bytes_sent += sent as u64;
                self.bytes_sent += sent as u64;
                self.writable = sent == wanted;
                self.output.advance(sent);
                sent
            }
            Err(error) => {
                self.on_send_error(error);
                0
            }
        }
    }

    pub(super) fn on_send_error(&mut self, error: io::Error) {
        match error.kind() {
            ErrorKind::WouldBlock => self.writable = false,
            ErrorKind::Interrupted => {}
            _ => {
                // What the peer sent before it died can still be received; the end of the stream follows. A peer that lives, and gets no
                // more because of this end, ends it when it learns of that.
                let _ = rustix::net::shutdown(self.socket().fd(), rustix::net::Shutdown::Write);
                self.failure = Some(error);
                (self.readable, self.writable, self.ended) = (true, false, true);
                if self.reopening.is_none() {
                    self.output.clear();
                }
            }
        }
    }

    /// Passes queued output to the socket; returns how many bytes it took, and of how many.
    fn send(&self) -> io::Result<(usize, usize)> {
        if let Some(bytes) = self.output.plain() {
            return Ok((self.socket().send(bytes)?, bytes.len()));
        }
        if let Some(piece) = self.output.next_file() {
            // Less than the piece does not mean that the socket is full: the piece may be sent in parts.
            let sent = piece.send(self.socket().fd())?;
            return Ok((sent, sent));
        }
        let mut pieces = [IoPiece::EMPTY; PIECES_MAX];
        let count = self.output.gather(&mut pieces);
        let pieces = &pieces[..count];
        // SAFETY: the pieces are memory of the queue and of regions that it keeps alive.
        let sent = unsafe { self.socket().send_pieces(pieces, self.output.has_file()) }?;
        Ok((sent, pieces.iter().map(IoPiece::length).sum()))
    }

    /// Receives with one read and handles the frames. Returns the number of bytes.
    pub(super) fn poll_input(
        &mut self,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<usize, TcpLoss> {
        if self.records.is_some() {
            return self.poll_sealed_input(buffer, local);
        }
        if let Some(received) = self.receive_direct(buffer, local)? {
            return Ok(received);
        }
        let restored = self.input.restore(buffer);
        let length = self.input.wanted(buffer.bytes_mut().len() - restored);
        let space = &mut buffer.bytes_mut()[restored..restored + length];
        let received = self.receive_into(length, &mut local.counters, |socket| socket.receive(space))?;
        if received > 0 {
            self.take_buffered(buffer, restored + received, local)?;
        }
        Ok(received)
    }

    /// Handles the first `end` bytes of the buffer.
    pub(super) fn take_buffered(
        &mut self,
        buffer: &mut ReceiveBuffer,
        end: usize,
        local: &mut LocalNode,
    ) -> Result<(), TcpLoss> {
        let used = self.handle_words(buffer.words(end / 8), local)?;
        self.input.keep(buffer, 8 * used, end);
        self.connections.flush_acks(&mut self.output);
        Ok(())
    }

    /// Performs one read of up to `wanted` bytes. Returns the number of bytes; 0 if none have arrived.
    pub(super) fn receive_into(
        &mut self,
        wanted: usize,
        counters: &mut TcpCounters,
        read: impl FnOnce(&TcpSocket) -> io::Result<usize>,
    ) -> Result<usize, TcpLoss> {
        counters.receive_calls += 1;
        match read(self.socket()) {
            Ok(0) => Err(self.failure.take().map_or(TcpLoss::End, TcpLoss::Io)),
            Ok(received) => {
                counters.bytes_received += received as u64;
                self.bytes_received += received as u64;
                // A short read has emptied the socket: the poller reports when more arrives.
                self.readable = received == wanted || self.ended;
                Ok(received)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(TcpLoss::Io(self.failure.take().unwrap_or(error))),
        }
    }

    /// Returns what the stream to this peer has carried.
    pub(super) fn traffic(&self) -> PeerTraffic {
        PeerTraffic {
            peer: self.node,
            transport: PeerTransport::Tcp,
            sent: self.bytes_sent,
            received: Some(self.bytes_received),
        }
    }

    pub(super) fn socket(&self) -> &TcpSocket {
        self.socket.as_ref().expect("nothing is sent or received without a connection")
    }

    /// Loses the peer: its connections break, and this node gets an event.
    pub(super) fn lose(&mut self, loss: &TcpLoss, local: &mut LocalNode) {
        if self.lost.is_some() {
            return;
        }
        let reason = loss.reason();
        match loss {
            TcpLoss::Farewell => crate::log::info!(
                node = local.grants.owner().0,
                peer = self.node.0,
                "a peer has left: {loss}"
            ),
            _ => crate::log::warn!(node = local.grants.owner().0, peer = self.node.0, "lost a peer: {loss}"),
        }
        self.lost = Some(reason);
        if let TcpLoss::Violation(_) = loss {
            // The peer's log then contains the cause, if the socket still takes it.
            self.output.push_frame(TcpFrame::Goodbye);
            self.poll_output(&mut local.counters);
        }
        self.hang_up(local);
        self.connections.lose(reason, &mut local.events);
        local.events.push_back(FabricEvent::PeerLost { peer: self.node, reason });
    }

    /// Removes the peer without an event, after a last attempt to send queued output. The place is free then.
    pub(super) fn remove(&mut self, local: &mut LocalNode) {
        self.say_farewell(&mut local.counters);
        self.poll_output(&mut local.counters);
        self.lost = Some(BreakReason::PeerClosed);
        self.hang_up(local);
        self.attachments = TcpAttachments::default();
        self.connections = self.connections.successors(self.node);
    }

    /// Says that this node has ended deliberately, as far as the socket takes it, to a peer that would call it otherwise.
    pub(super) fn say_farewell(&mut self, counters: &mut TcpCounters) {
        if self.reopening.is_some() && self.lost.is_none() {
            self.output.push_frame(TcpFrame::Farewell);
            self.poll_output(counters);
        }
    }

    fn hang_up(&mut self, local: &mut LocalNode) {
        self.drop_connection();
        self.output.clear();
        (self.input, self.reopening) = (StreamInput::new(), None);
        local.mirrors.unsubscribe(self.index);
    }

    /// Drops the attachments that are no longer held.
    pub(super) fn sweep_attachments(&mut self, counters: &mut TcpCounters) {
        let Self { attachments, output, lost, .. } = self;
        attachments.sweep(|attachment, key| {
            if lost.is_none() {
                output.push_frame(TcpFrame::Detach { attachment, key: key.0 });
                counters.frames_sent += 1;
            }
            lost.is_none()
        });
    }
}

/// What arrived is handled within these polls, even if the receiver reads all that there is before it begins.
const GATHERING_POLLS: u8 = 4;
