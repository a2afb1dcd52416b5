//! Links: two connections to each peer, shared by all groups, with credits for receives (RDMC §3.2).
//!
//! One connection carries blocks and messages. A write with immediate and a send consume a receive of the peer [F7].
//! Each end posts [`RECEIVES`] of them before it connects, posts each again as soon as it is consumed, and from time
//! to time writes their total number into a word of the peer, by value. In the same way targets report how far a
//! source may go with the object of each slot. These words need no receive, so the two ends never wait for each
//! other's credits in a cycle; and they have a connection of their own, so that none waits behind a block [F1].

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::layout::LINE_WORDS;
use squall_fabric::{Channel, ConnId, Fabric, Grant, NodeId, PostError, Region, Token, Write, WriteSource};

use super::message::{MESSAGE_BYTES_MAX, MalformedMessage, RdmcMessage};
use super::mutation;
use super::settings::RECEIVES;
use super::slots::{ObjectSlot, SLOTS_MAX};

/// All links of this member.
#[derive(Debug)]
pub(super) struct RdmcLinks {
    node: NodeId,
    channel: Channel,
    by_peer: BTreeMap<NodeId, Link>,
    peers: BTreeMap<ConnId, NodeId>,
    /// A post was refused because a queue was full: it is to be tried again soon.
    pub(super) was_full: bool,
}

#[derive(Debug)]
struct Link {
    /// The connection for blocks and messages.
    conn: ConnId,
    is_connected: bool,
    /// The connection for words.
    words: ConnId,
    /// The memory of the receives, followed by the words that the peer writes: how many receives it has posted, and
    /// how far this member may go with the object of each slot.
    memory: Region,
    /// The peer's grant to those words.
    credits: Grant,
    /// This member's grant to the peer's words.
    peer_credits: Option<Grant>,
    /// The number of posts that consume a receive of the peer: `used <= allowed()`.
    used: u64,
    /// The number of receives posted here, and of those that the peer knows about: `reported <= posted`.
    posted: u64,
    reported: u64,
    /// The control messages that wait for a credit or for space.
    waiting: VecDeque<RdmcMessage>,
}

/// The outcome of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostOutcome {
    /// It is posted.
    Yes,
    /// There is no credit, no space, or no connection yet: try again later.
    Later,
}

impl RdmcLinks {
    pub(super) const fn new(node: NodeId, channel: Channel) -> Self {
        Self { node, channel, by_peer: BTreeMap::new(), peers: BTreeMap::new(), was_full: false }
    }

    /// This member.
    pub(super) const fn node(&self) -> NodeId {
        self.node
    }

    /// Opens a link to `peer` if there is none.
    pub(super) fn open<F: Fabric>(&mut self, fabric: &mut F, peer: NodeId) {
        if self.by_peer.contains_key(&peer) {
            return;
        }
        let link = Link::open(fabric, peer, self.channel);
        self.peers.insert(link.conn, peer);
        self.peers.insert(link.words, peer);
        self.by_peer.insert(peer, link);
    }

    /// Returns the peer of the link that `conn` belongs to; `None` if there is no such link any more.
    pub(super) fn peer(&self, conn: ConnId) -> Option<NodeId> {
        self.peers.get(&conn).copied()
    }

    /// Notes that both ends are connected, and sends the peer the grant for credits.
    pub(super) fn on_connected(&mut self, conn: ConnId) {
        let Some(link) = self.link_mut(conn).filter(|link| link.conn == conn) else { return };
        link.is_connected = true;
        let hello = RdmcMessage::Hello { credits: link.credits };
        link.waiting.push_front(hello);
    }

    /// Notes the peer's grant for credits; returns false if it has sent one before.
    pub(super) fn on_hello(&mut self, conn: ConnId, credits: Grant) -> bool {
        let Some(link) = self.link_mut(conn) else { return true };
        credits.words >= REPORTED_WORDS as u64 && link.peer_credits.replace(credits).is_none()
    }

    /// Ends the link to `peer`; returns whether there was one. The caller notifies the groups.
    pub(super) fn remove<F: Fabric>(&mut self, fabric: &mut F, peer: NodeId) -> bool {
        let Some(link) = self.by_peer.remove(&peer) else { return false };
        for conn in [link.conn, link.words] {
            self.peers.remove(&conn);
            fabric.close(conn);
        }
        fabric.revoke(&link.credits);
        true
    }

    /// Reads the message of a consumed receive, and posts the receive again.
    pub(super) fn take_message<F: Fabric>(
        &mut self,
        fabric: &mut F,
        conn: ConnId,
        token: Token,
        length: usize,
    ) -> Result<RdmcMessage, MalformedMessage> {
        let link = self.link_mut(conn).ok_or(MalformedMessage)?;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let message = match bytes.get_mut(..length) {
            Some(bytes) => {
                link.memory.copy_bytes_out(receive_words(token.0).start, bytes);
                RdmcMessage::decode(bytes)
            }
            None => Err(MalformedMessage),
        };
        link.post_receive(fabric, token.0);
        message
    }

    /// Posts a receive again that was consumed by a block.
    pub(super) fn post_receive<F: Fabric>(&mut self, fabric: &mut F, conn: ConnId, token: Token) {
        if let Some(link) = self.link_mut(conn) {
            link.post_receive(fabric, token.0);
        }
    }

    /// Sends a message to a peer, as soon as there is a credit. Without a link the message is dropped, and the groups
    /// are notified of the loss elsewhere.
    pub(super) fn say(&mut self, peer: NodeId, message: RdmcMessage) {
        if let Some(link) = self.by_peer.get_mut(&peer) {
            link.waiting.push_back(message);
        }
    }

    pub(super) fn contains(&self, peer: NodeId) -> bool {
        self.by_peer.contains_key(&peer)
    }

    /// Posts a block, if the peer has a receive to spare.
    pub(super) fn post_block<F: Fabric>(
        &mut self,
        fabric: &mut F,
        peer: NodeId,
        write: Write<'_>,
    ) -> PostOutcome {
        let Some(link) = self.by_peer.get_mut(&peer) else { return PostOutcome::Later };
        // Waiting messages go first: a control message must not be overtaken forever.
        if !link.is_connected || !link.waiting.is_empty() || !link.has_credit(CREDITS_RESERVED) {
            return PostOutcome::Later;
        }
        let posted = fabric.write(link.conn, write);
        link.count(posted, &mut self.was_full)
    }

    /// Returns how far `peer` lets this member go with the object of `slot`.
    pub(super) fn bound(&self, peer: NodeId, slot: ObjectSlot) -> u64 {
        let word = |link: &Link| link.memory.load(CREDIT_WORD + reported_word(slot));
        self.by_peer.get(&peer).map_or(0, |link| slot.bound(word(link)))
    }

    /// Reports to `peer` how far it may go with the object of its `slot`.
    pub(super) fn report_bound<F: Fabric>(
        &mut self,
        fabric: &mut F,
        peer: NodeId,
        slot: ObjectSlot,
        bound: u64,
    ) -> PostOutcome {
        let Some(link) = self.by_peer.get_mut(&peer) else { return PostOutcome::Later };
        link.write(fabric, reported_word(slot), slot.word(bound), &mut self.was_full)
    }

    /// Sends waiting messages and reports new receives to peers; returns the number of posts.
    pub(super) fn flush<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let mut work = 0;
        for link in self.by_peer.values_mut().filter(|link| link.is_connected) {
            work += link.flush(fabric, &mut self.was_full);
        }
        work
    }

    /// Returns whether no message waits.
    pub(super) fn are_idle(&self) -> bool {
        !self.was_full && self.by_peer.values().all(|link| link.waiting.is_empty())
    }

    fn link_mut(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.by_peer.get_mut(self.peers.get(&conn)?)
    }
}

impl Link {
    fn open<F: Fabric>(fabric: &mut F, peer: NodeId, channel: Channel) -> Self {
        let conn = fabric.open(peer, channel);
        let words = fabric.open(peer, Channel(channel.0 + 1));
        let memory = fabric.register((CREDIT_WORD + REPORTED_WORDS).next_multiple_of(LINE_WORDS));
        let credits = fabric.grant(&memory, CREDIT_WORD..CREDIT_WORD + REPORTED_WORDS, peer);
        let mut link = Self {
            conn,
            is_connected: false,
            words,
            memory,
            credits,
            peer_credits: None,
            used: 0,
            posted: 0,
            reported: RECEIVES,
            waiting: VecDeque::new(),
        };
        (0..RECEIVES).for_each(|receive| link.post_receive(fabric, receive));
        link
    }

    fn post_receive<F: Fabric>(&mut self, fabric: &mut F, receive: u64) {
        match fabric.post_receive(self.conn, &self.memory, receive_words(receive), Token(receive)) {
            Ok(()) => self.posted += 1,
            // The connection is broken; its event will follow.
            Err(PostError::NotConnected) => {}
            Err(PostError::Full) => unreachable!("a fabric has space for {RECEIVES} receives"),
        }
    }

    /// Returns the number of receives that the peer has posted, as far as it has reported.
    fn allowed(&self) -> u64 {
        self.memory.load(CREDIT_WORD).max(RECEIVES)
    }

    fn has_credit(&self, reserve: u64) -> bool {
        mutant!(NoCredits) || self.used + reserve < self.allowed()
    }

    fn count(&mut self, posted: Result<(), PostError>, was_full: &mut bool) -> PostOutcome {
        match posted {
            Ok(()) => {
                self.used += 1;
                return PostOutcome::Yes;
            }
            Err(PostError::Full) => *was_full = true,
            Err(PostError::NotConnected) => self.is_connected = false,
        }
        PostOutcome::Later
    }

    fn flush<F: Fabric>(&mut self, fabric: &mut F, was_full: &mut bool) -> usize {
        let mut work = 0;
        while let Some(message) = self.waiting.front().filter(|_| self.has_credit(0)) {
            let (bytes, length) = message.encode();
            let posted = fabric.send(self.conn, &bytes[..length], None);
            if self.count(posted, was_full) == PostOutcome::Later {
                return work;
            }
            self.waiting.pop_front();
            work += 1;
        }
        work + self.report(fabric, was_full)
    }

    fn report<F: Fabric>(&mut self, fabric: &mut F, was_full: &mut bool) -> usize {
        let posted = self.posted;
        if posted - self.reported < REPORT_EVERY
            || self.write(fabric, 0, posted, was_full) == PostOutcome::Later
        {
            return 0;
        }
        self.reported = posted;
        1
    }

    /// Writes one of the words that the peer has for this member, by value.
    fn write<F: Fabric>(
        &mut self,
        fabric: &mut F,
        word: usize,
        value: u64,
        was_full: &mut bool,
    ) -> PostOutcome {
        let Some(grant) = self.peer_credits else { return PostOutcome::Later };
        let source = [value];
        let write = Write {
            source: WriteSource::Value(&source),
            grant: &grant,
            offset: word,
            immediate: None,
            signal: None,
        };
        match fabric.write(self.words, write) {
            Ok(()) => return PostOutcome::Yes,
            Err(PostError::Full) => *was_full = true,
            // Its `Connected` or `Broken` event will follow.
            Err(PostError::NotConnected) => {}
        }
        PostOutcome::Later
    }
}

fn reported_word(slot: ObjectSlot) -> usize {
    1 + usize::from(slot.index)
}

fn receive_words(receive: u64) -> std::ops::Range<usize> {
    let first = usize::try_from(receive % RECEIVES).expect("small") * MESSAGE_WORDS;
    first..first + MESSAGE_WORDS
}

const MESSAGE_WORDS: usize = MESSAGE_BYTES_MAX.div_ceil(8).next_multiple_of(LINE_WORDS / 2);
const CREDIT_WORD: usize = RECEIVES as usize * MESSAGE_WORDS;
/// The number of receives, and a bound for each slot.
const REPORTED_WORDS: usize = 1 + SLOTS_MAX;
/// The number of credits that blocks leave to control messages.
const CREDITS_RESERVED: u64 = 4;
/// The number of new receives that are worth a report.
const REPORT_EVERY: u64 = RECEIVES / 4;
