//! Opening, pairing and ending connections with one peer.
//!
//! Both ends number their incarnations; a number is never reused. An end that has opened a channel announces
//! that (`Open`). An end that has an unpaired incarnation and knows an unpaired one of the peer on the same
//! channel pairs them and announces that (`Accept`). It is connected once the peer has accepted the same
//! pair. The end of an incarnation, for whatever reason, is always announced (`Close`), so that a pair with
//! one dead half is dissolved on the other side, or broken if it was connected there.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{BreakReason, Channel, FabricEvent, Instant, NodeId};

use super::connection::{StalledPost, TcpConnection, TcpPost, conn_id};
use super::frame::{TcpCloseReason, TcpFrame, TcpViolation};
use super::output::OutputQueue;

/// The connections with one peer.
#[derive(Debug)]
pub(super) struct TcpConnections {
    /// The peer's index and node.
    peer: usize,
    node: NodeId,
    live: BTreeMap<u32, TcpConnection>,
    /// The live connection of each channel.
    by_channel: BTreeMap<Channel, u32>,
    /// What the peer has opened and is not paired.
    offers: BTreeMap<Channel, u32>,
    /// All lower numbers are used.
    next: u32,
    /// Connections that owe the peer an acknowledgement.
    acks_due: Vec<u32>,
    /// Connections with posts that wait for a receive, and the memory that all of these take.
    pub(super) stalled: Vec<u32>,
    pub(super) stalled_words: usize,
}

impl TcpConnections {
    /// Creates an empty set whose next connections are numbered from `next` on.
    pub(super) fn new(peer: usize, node: NodeId, next: u32) -> Self {
        Self {
            peer,
            node,
            live: BTreeMap::new(),
            by_channel: BTreeMap::new(),
            offers: BTreeMap::new(),
            next,
            acks_due: Vec::new(),
            stalled: Vec::new(),
            stalled_words: 0,
        }
    }

    /// Returns an empty set whose numbers follow those of this one.
    pub(super) fn successors(&self, node: NodeId) -> Self {
        Self::new(self.peer, node, self.next)
    }

    /// Returns the number of the next connection.
    pub(super) fn next_number(&self) -> u32 {
        self.next
    }

    /// Returns a new number, for a connection that is not live yet.
    pub(super) fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.checked_add(1).expect("fewer than 2^32 connections with one peer");
        number
    }

    /// Opens a channel.
    ///
    /// # Panics
    /// Panics if it is open.
    pub(super) fn open(&mut self, channel: Channel, output: &mut OutputQueue) -> u32 {
        let number = self.number();
        let before = self.by_channel.insert(channel, number);
        assert!(before.is_none(), "{channel:?} to {} is open already", self.node);
        self.live.insert(number, TcpConnection::new(channel));
        output.push_frame(TcpFrame::Open { number, channel: channel.0 });
        if let Some(partner) = self.offers.remove(&channel) {
            self.pair(number, partner, output);
        }
        number
    }

    /// Returns the live connection `number`; `None` if it has ended.
    ///
    /// # Panics
    /// Panics if there never was one.
    pub(super) fn live(&mut self, number: u32) -> Option<&mut TcpConnection> {
        assert!(number < self.next, "connection {number} to {} was never opened", self.node);
        self.live.get_mut(&number)
    }

    /// Returns the connection to which the peer addresses a frame; `None` if it has ended: the frame crossed
    /// its `Close` and is dropped.
    pub(super) fn addressed(&mut self, number: u32) -> Result<Option<&mut TcpConnection>, TcpViolation> {
        if number >= self.next {
            return Err(TcpViolation("a frame for a connection that was never opened"));
        }
        match self.live.get_mut(&number) {
            Some(connection) if !connection.accepted => {
                Err(TcpViolation("a frame for a connection that is not connected"))
            }
            connection => Ok(connection),
        }
    }

    /// Handles the peer's opening of a channel.
    pub(super) fn on_open(
        &mut self,
        theirs: u32,
        channel: Channel,
        output: &mut OutputQueue,
    ) -> Result<(), TcpViolation> {
        let ours = self.by_channel.get(&channel).copied();
        if let Some(number) = ours {
            if self.live[&number].partner.is_some() {
                return Err(TcpViolation("a channel opened twice"));
            }
            self.pair(number, theirs, output);
            return Ok(());
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(TcpViolation("too many channels opened"));
        }
        match self.offers.insert(channel, theirs) {
            None => Ok(()),
            Some(_) => Err(TcpViolation("a channel opened twice")),
        }
    }

    fn pair(&mut self, number: u32, partner: u32, output: &mut OutputQueue) {
        self.live.get_mut(&number).expect("open").partner = Some(partner);
        output.push_frame(TcpFrame::Accept { partner, number });
    }

    /// Handles the peer's pairing of its connection `theirs` with `number`.
    pub(super) fn on_accept(
        &mut self,
        number: u32,
        theirs: u32,
        events: &mut VecDeque<FabricEvent>,
    ) -> Result<(), TcpViolation> {
        if number >= self.next {
            return Err(TcpViolation("a connection accepted that was never opened"));
        }
        let Some(connection) = self.live.get_mut(&number) else { return Ok(()) };
        if connection.partner != Some(theirs) || connection.accepted {
            return Err(TcpViolation("a connection accepted that was not offered"));
        }
        connection.accepted = true;
        events.push_back(FabricEvent::Connected { conn: conn_id(self.peer, number), peer: self.node });
        Ok(())
    }

    /// Handles the end of the peer's connection `theirs`. Returns the connection of this end that ends with
    /// it.
    pub(super) fn on_close(
        &mut self,
        theirs: u32,
        reason: TcpCloseReason,
        output: &mut OutputQueue,
        events: &mut VecDeque<FabricEvent>,
    ) -> Option<u32> {
        self.offers.retain(|_, offer| *offer != theirs);
        let (&number, connection) =
            self.live.iter_mut().find(|(_, connection)| connection.partner == Some(theirs))?;
        if !connection.accepted {
            // Not connected yet: it waits for the next incarnation.
            connection.partner = None;
            return None;
        }
        let conn = conn_id(self.peer, number);
        if reason == TcpCloseReason::Refused {
            events.push_back(FabricEvent::Refused { conn });
        }
        events.push_back(FabricEvent::Broken { conn, reason: reason.into() });
        self.end(number, TcpCloseReason::Closed, output);
        Some(number)
    }

    /// Ends a live connection and notifies the peer.
    pub(super) fn end(&mut self, number: u32, reason: TcpCloseReason, output: &mut OutputQueue) {
        let Some(connection) = self.live.remove(&number) else { return };
        self.by_channel.remove(&connection.channel);
        self.acks_due.retain(|due| *due != number);
        self.stalled.retain(|stalled| *stalled != number);
        self.stalled_words -= connection.stalled_words();
        output.push_frame(TcpFrame::Close { number, reason });
    }

    /// Ends a live connection, and notifies the peer and this node.
    pub(super) fn break_off(
        &mut self,
        number: u32,
        reason: TcpCloseReason,
        output: &mut OutputQueue,
        events: &mut VecDeque<FabricEvent>,
    ) {
        events.push_back(FabricEvent::Broken { conn: conn_id(self.peer, number), reason: reason.into() });
        self.end(number, reason, output);
    }

    /// Handles the loss of the peer: every connection breaks.
    pub(super) fn lose(&mut self, reason: BreakReason, events: &mut VecDeque<FabricEvent>) {
        let numbers = std::mem::take(&mut self.live).into_keys();
        let peer = self.peer;
        events.extend(numbers.map(|number| FabricEvent::Broken { conn: conn_id(peer, number), reason }));
        self.by_channel.clear();
        self.offers.clear();
        self.acks_due.clear();
        self.stalled.clear();
        self.stalled_words = 0;
    }

    /// Notes that a signalled post has landed; the acknowledgement is sent with the others of this poll.
    pub(super) fn on_signalled_post_placed(&mut self, number: u32) {
        let connection = self.live.get_mut(&number).expect("posts land on live connections only");
        if connection.on_signalled_post_placed() {
            self.acks_due.push(number);
        }
    }

    /// Returns whether the connection has not ended.
    pub(super) fn is_live(&self, number: u32) -> bool {
        self.live.contains_key(&number)
    }

    /// Takes the oldest stalled post of a connection that can proceed now.
    pub(super) fn resume(&mut self, number: u32, now: Instant) -> Option<StalledPost> {
        let stalled = self.live.get_mut(&number)?.resume(now)?;
        self.stalled_words -= stalled.post.stalled_words();
        Some(stalled)
    }

    /// Returns until when the oldest stalled post of a connection waits.
    pub(super) fn stall_deadline(&self, number: u32) -> Option<Instant> {
        self.live.get(&number)?.stall_deadline()
    }

    /// Returns when the first of the stalled connections breaks.
    pub(super) fn stall_deadline_next(&self) -> Option<Instant> {
        self.stalled.iter().filter_map(|number| self.stall_deadline(*number)).min()
    }

    /// Queues the acknowledgements that are due.
    pub(super) fn flush_acks(&mut self, output: &mut OutputQueue) {
        for number in self.acks_due.drain(..) {
            if let Some(ack) = self.live.get_mut(&number).and_then(TcpConnection::take_ack) {
                output.push_answer(ack);
            }
        }
    }

    /// Lets a post wait for a receive; returns whether there is memory for it.
    #[must_use]
    pub(super) fn stall(&mut self, post: TcpPost, now: Instant) -> bool {
        let number = post.connection();
        if self.stalled_words + post.stalled_words() > STALLED_WORDS_MAX {
            return false;
        }
        self.stalled_words += post.stalled_words();
        self.live.get_mut(&number).expect("posts stall on live connections").stall(post, now);
        if !self.stalled.contains(&number) {
            self.stalled.push(number);
        }
        true
    }
}

/// The most channels that one peer may have opened while this node has not.
const OFFERS_MAX: usize = 1 << 16;

/// The memory for posts of one peer that wait for receives: 16 MiB. When it is full, the connection that
/// needs more breaks at once, without waiting for the receiver's patience to end.
const STALLED_WORDS_MAX: usize = 2 << 20;
