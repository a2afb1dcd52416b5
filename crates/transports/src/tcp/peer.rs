//! One peer: its socket, its output queue, and what this node shares with it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ptr::NonNull;

use squall_fabric::{BreakReason, FabricEvent, NodeId, Region};

use super::TcpCounters;
use super::attachments::TcpAttachments;
use super::connections::TcpConnections;
use super::file_pages::{self, FilePiece, FilePipe, expect_stores};
use super::frame::{TcpFrame, TcpViolation};
use super::grants::TcpGrants;
use super::input::{
    AHEAD_BYTES, LONG_BYTES_MIN, PayloadTarget, ReceiveBuffer, StreamInput, order_after_earlier_frames,
};
use super::mirror::TcpMirrors;
use super::output::{OutputQueue, PIECES_MAX};
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
}

/// A peer and the stream to it.
#[derive(Debug)]
pub(super) struct TcpPeer {
    pub(super) node: NodeId,
    /// Its place among the peers.
    pub(super) index: usize,
    /// Closed when the peer is lost.
    pub(super) socket: Option<TcpSocket>,
    /// The keys of the session, if the stream is encrypted.
    pub(super) records: Option<Box<Records>>,
    /// Set when the peer is lost; nothing is sent or received then.
    pub(super) lost: Option<BreakReason>,
    /// Whether there may be input.
    pub(super) readable: bool,
    /// Whether the socket may take more output.
    pub(super) writable: bool,
    /// Whether the kernel holds acknowledgements until more output follows.
    held: bool,
    /// Whether the peer has ended its half, or the stream failed: then input is read until its end.
    pub(super) ended: bool,
    /// Why sending failed, which says more than the end of the stream.
    failure: Option<io::Error>,
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
            Self::Overrun => f.write_str("it does not take what is sent to it"),
            Self::Io(error) => write!(f, "the stream failed: {error}"),
        }
    }
}

impl TcpLoss {
    pub(super) fn reason(&self) -> BreakReason {
        match self {
            Self::Violation(_) | Self::Goodbye => BreakReason::Protocol,
            Self::Overrun => BreakReason::Unreachable,
            Self::End => BreakReason::PeerClosed,
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
        first_connection: u32,
    ) -> Self {
        Self {
            node,
            index,
            socket: Some(socket),
            records,
            lost: None,
            readable: true,
            writable: true,
            held: false,
            ended: false,
            failure: None,
            output: OutputQueue::default(),
            input: StreamInput::new(),
            attachments: TcpAttachments::default(),
            connections: TcpConnections::new(index, node, first_connection),
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Sends queued output, as far as the socket takes it in one call. Returns the number of bytes.
    pub(super) fn poll_output(&mut self, counters: &mut TcpCounters) -> usize {
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

    /// Returns whether any output waits for the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty() || self.records.as_ref().is_some_and(|records| !records.is_flushed())
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
                self.output.clear();
            }
        }
    }

    /// Passes queued output to the socket; returns how many bytes it took, and of how many.
    fn send(&self) -> io::Result<(usize, usize)> {
        if let Some(bytes) = self.output.plain() {
            return Ok((self.socket().send(bytes)?, bytes.len()));
        }
        if let Some(piece) = self.output.next_file() {
            // Less than the piece does not mean that the socket is full: the file may be shorter by now, which the next call reports.
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

    /// Reads the rest of a long payload directly into its region. Only bytes that have arrived are requested,
    /// and only whole words of them, so that no word is left half written [F3]. Bytes after the payload are
    /// read into the buffer, by the same call, as far as they may be a header. Returns the number of bytes;
    /// `None` if there is no such payload.
    fn receive_direct(
        &mut self,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<Option<usize>, TcpLoss> {
        let Some((region, first, words)) = self.direct_target(&local.grants) else { return Ok(None) };
        let available = self.socket().available().map_err(TcpLoss::Io)?;
        let missing = self.input.missing();
        let begun = usize::from(missing > 0);
        let file = file_pages::piece(&region, 8 * (first + begun)..8 * (first + words));
        if let Some(file) = file.filter(|_| missing == 0) {
            if available >= file.length.min(8) {
                return self.receive_into_file(file, available, buffer, local).map(Some);
            }
            if !self.ended {
                // What arrives meanwhile must not come by way of the buffer: that would touch the mapping.
                self.readable = false;
                return Ok(Some(0));
            }
        }
        let least = LONG_BYTES_MIN.min(8 * (words - begun));
        let Some(available) = available.checked_sub(missing).filter(|bytes| *bytes >= least) else {
            return Ok(None);
        };
        // What follows the missing part of a word goes to the file itself.
        let most = if file.is_some() { 0 } else { DIRECT_BYTES_MAX };
        let whole = (words - begun).min(available.min(most) / 8);
        let mut lead = [0; 8];
        let ahead = if whole == words - begun { AHEAD_BYTES } else { 0 };
        let pieces = [
            IoPiece::new(NonNull::from(&mut lead).cast(), missing),
            IoPiece::new(region.pointer(first + begun).cast(), 8 * whole),
            IoPiece::new(NonNull::from(&mut buffer.bytes_mut()[..ahead]).cast(), ahead),
        ];
        let wanted = missing + 8 * whole + ahead;
        expect_stores(&region, first + begun..first + begun + whole);
        order_after_earlier_frames();
        // SAFETY: the first and the last piece are at most `lead` and the buffer, neither of which is
        // borrowed now. The second is inside its region, as `direct_target` checked; its words are atomics,
        // to which no exclusive references exist, and the kernel stores into them as another process does
        // into shared memory.
        let read = |socket: &TcpSocket| unsafe { socket.receive_pieces(&pieces) };
        let received = self.receive_into(wanted, &mut local.counters, read)?;
        if whole < words - begun && available - 8 * whole < 8 {
            // Only a part of a word is left, which the next read takes: the poller reports when the rest has
            // arrived.
            self.readable = self.ended;
        }
        let lead = &lead[..received.min(missing)];
        if let Some(word) = self.input.on_missing(lead) {
            region.store_relaxed(first, word);
        }
        let placed = (received - lead.len()).min(8 * whole);
        let next = first + begun + placed / 8;
        let split = placed % 8;
        if split > 0 {
            // Fewer bytes than were available: urgent data are in between, which no fabric sends.
            self.input.keep_begun(&region.load_relaxed(next).to_le_bytes()[..split]);
        }
        if received >= missing {
            self.on_words_placed(next - first, local);
        }
        if self.input.payload.is_none() {
            self.take_buffered(buffer, received - lead.len() - placed, local)?;
        }
        Ok(Some(received))
    }

    /// Has the kernel copy the beginning of a payload, whole words of it if possible, from the socket into its file. Returns the number of
    /// bytes.
    fn receive_into_file(
        &mut self,
        file: FilePiece<'_>,
        available: usize,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<usize, TcpLoss> {
        let file = file.first(available.min(DIRECT_BYTES_MAX) / 8 * 8);
        let pipe = buffer.pipe.take().map_or_else(FilePipe::new, Ok).map_err(TcpLoss::Io)?;
        order_after_earlier_frames();
        let read = |socket: &TcpSocket| file.receive(socket.fd(), &pipe);
        let received = self.receive_into(file.length, &mut local.counters, read)?;
        buffer.pipe = Some(pipe);
        // The pipe takes a number of pieces, which may be fewer bytes than there are.
        self.readable |= received > 0;
        if received % 8 > 0 {
            self.input.keep_begun(&file.last_word(received)[..received % 8]);
        }
        self.on_words_placed(received / 8, local);
        if self.input.payload.is_none() {
            self.take_buffered(buffer, 0, local)?;
        }
        Ok(received)
    }

    /// Returns the memory of the arriving payload, if reading directly into it is worthwhile: its region, its
    /// next word and the number of words.
    fn direct_target(&self, grants: &TcpGrants) -> Option<(Region, usize, usize)> {
        let payload = self.input.payload.as_ref()?;
        if !self.input.expects_long || 8 * payload.words < ENDING_BYTES_MIN {
            return None;
        }
        match &payload.target {
            PayloadTarget::Attachment { attachment, next } => {
                let words = u32::try_from(payload.words).expect("a frame's words");
                let attachment =
                    self.attachments.target(*attachment, *next, words).expect("checked at the header");
                let attachment = attachment.filter(|attachment| !attachment.frozen)?;
                Some((attachment.region.clone(), *next as usize, payload.words))
            }
            PayloadTarget::Grant { frame } => {
                let (region, first) = grants.target(frame, self.node)?;
                Some((region.clone(), first, payload.words))
            }
            _ => None,
        }
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
        self.socket.as_ref().expect("nothing is sent to or received from a lost peer")
    }

    /// Loses the peer: its connections break, and this node gets an event.
    pub(super) fn lose(&mut self, loss: &TcpLoss, local: &mut LocalNode) {
        if self.lost.is_some() {
            return;
        }
        let reason = loss.reason();
        crate::log::warn!(node = local.grants.owner().0, peer = self.node.0, "lost a peer: {loss}");
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
        self.poll_output(&mut local.counters);
        self.lost = Some(BreakReason::PeerClosed);
        self.hang_up(local);
        self.attachments = TcpAttachments::default();
        self.connections = self.connections.successors(self.node);
    }

    fn hang_up(&mut self, local: &mut LocalNode) {
        (self.socket, self.records) = (None, None);
        self.output.clear();
        self.input = StreamInput::new();
        (self.readable, self.writable, self.held) = (false, false, false);
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

/// The end of a long payload is also read directly, if it has at least this many bytes.
const ENDING_BYTES_MIN: usize = 1 << 10;

/// One read takes no more than this, so that a poll stays short.
const DIRECT_BYTES_MAX: usize = 1 << 20;
