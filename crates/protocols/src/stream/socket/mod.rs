//! Sockets: an end of a connection on a fabric, with registered buffers and a queue of completions (EXS §II.B).

mod drive;
mod pieces;

use std::ops::Range;

use squall_fabric::{Channel, ConnId, Fabric, Grant, Instant, NodeId, PostError, Region, RegionId, Token};

use self::pieces::Pieces;
use super::hello::HELLO_BYTES;
use super::send_path::SendPath;
use super::{
    Completion, MESSAGE_BYTES_MAX, PostRefused, ReceiveId, ReceiveMemory, SendId, SocketFailure, Statistics,
    StreamEnd, StreamSettings, StreamSettingsError, StreamViolation,
};

/// An end of a connection on a fabric.
///
/// **Law.** The driver is that of every [`squall_fabric::Core`]. The user posts sends and receives with memory of
/// regions that this node's fabric has registered, does not touch that memory until [`SocketCore::poll_completion`]
/// returns the operation, and asks for completions after each `poll`. Sends may be posted before the peer is
/// connected.
///
/// **Memory** is a range of bytes of a region, and begins at a word. The words of a receive belong to it completely:
/// the bytes after its last one, up to the next word, may become zeros. The first receive in a region grants the peer
/// the right to write all of that region until the socket is closed, so memory that the peer must not touch has to be
/// in another region. The socket keeps references to the regions of the latest completed send and the latest
/// completed receive until others complete.
#[derive(Debug)]
pub struct SocketCore {
    peer: NodeId,
    conn: ConnId,
    state: State,
    end: StreamEnd,
    /// Memory for the peer's messages: one slot for each credit, always posted.
    slots: Region,
    /// Slots that are used up and not posted again yet.
    spent: Vec<usize>,
    ring: Region,
    /// The peer's rights to memory of this node; the first is for the ring.
    grants: Vec<Grant>,
    /// Adopted memory that is released once the peer's right to it is revoked.
    releasing: Vec<(Grant, Region)>,
    /// The peer's ring, once it has introduced itself.
    peer_ring: Option<Grant>,
    /// When this end gives up if the peer has not introduced itself.
    connect_by: Option<Instant>,
    /// Memory of outstanding sends and receives, in order.
    sends: Pieces<SendId>,
    receives: Pieces<ReceiveId>,
    out: SendPath,
    /// The latest time that the sender needed.
    now: Instant,
    /// A completion of the socket itself.
    closed: Option<Completion>,
    /// A violation by the peer that [`SocketCore::absorb`] found; the next poll gives up the connection.
    violation: Option<StreamViolation>,
    /// Whether a poll has nothing to do until the user posts something or an event comes.
    rests: bool,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected.
    Opening,
    /// Connected; data may travel once the peer has introduced itself.
    Open,
    /// The connection is given up; this number of grants is not revoked yet.
    Closing(usize),
    Closed,
}

impl SocketCore {
    /// Opens `channel` to `peer`, which does the same with settings of the same kind and policy.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn new<F: Fabric>(
        fabric: &mut F,
        peer: NodeId,
        channel: Channel,
        settings: StreamSettings,
    ) -> Result<Self, StreamSettingsError> {
        settings.check()?;
        let count = settings.credits as usize;
        let slots = fabric.register(count * SLOT_WORDS);
        let ring_words = if settings.has_ring() { settings.ring_words } else { 0 };
        let ring = fabric.register(usize::try_from(ring_words).expect("the ring fits the address space"));
        let grant = fabric.grant(&ring, 0..ring.words(), peer);
        let conn = fabric.open(peer, channel);
        let connect_by = settings.connect_within.map(|span| fabric.now() + span);
        let socket = Self {
            peer,
            conn,
            state: State::Opening,
            end: StreamEnd::new(settings),
            slots,
            spent: Vec::with_capacity(count),
            ring,
            grants: vec![grant],
            releasing: Vec::new(),
            peer_ring: None,
            connect_by,
            sends: Pieces::default(),
            receives: Pieces::default(),
            out: SendPath::new(),
            now: fabric.now(),
            closed: None,
            violation: None,
            rests: false,
        };
        (0..count).for_each(|slot| socket.post_slot(fabric, slot));
        Ok(socket)
    }

    /// Returns the node of the other end.
    #[must_use]
    pub fn peer(&self) -> NodeId {
        self.peer
    }

    /// Returns the counters of this end.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        self.end.statistics()
    }

    /// Returns whether the connection is over and all memory belongs to the user again.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns whether all posted sends have been posted on the connection.
    #[must_use]
    pub fn has_posted_all(&self) -> bool {
        self.is_over() || self.out.is_empty() && self.end.has_transferred_all()
    }

    /// Returns whether [`SocketCore::poll_completion`] would return a completion.
    #[inline]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        self.end.has_completion() || self.closed.is_some()
    }

    /// Returns whether the peer has everything that this end sent, and its end.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.end.is_sent()
    }

    /// Returns why the connection failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<SocketFailure> {
        self.end.failure()
    }

    /// Sends `bytes` of `memory`, which must not change until the send completes.
    ///
    /// # Errors
    /// [`PostRefused`]; nothing has been posted then.
    #[inline]
    pub fn post_send(&mut self, memory: &Region, bytes: Range<usize>) -> Result<SendId, PostRefused> {
        check_memory(memory, &bytes)?;
        if self.is_over() {
            return Err(PostRefused::Closed);
        }
        let id = self.end.post_send(bytes.len() as u64)?;
        self.rests = false;
        self.sends.add(id, memory, bytes.start);
        Ok(id)
    }

    /// Receives into `bytes` of `memory`: at least 1 byte, or all of them if `wait_all`; one packet if the socket
    /// carries packets.
    ///
    /// # Errors
    /// [`PostRefused`]; nothing has been posted then.
    pub fn post_receive<F: Fabric>(
        &mut self,
        fabric: &mut F,
        memory: &Region,
        bytes: Range<usize>,
        wait_all: bool,
    ) -> Result<ReceiveId, PostRefused> {
        check_memory(memory, &bytes)?;
        let grant = self.grant(fabric, memory);
        let (start, length) = (bytes.start as u64, bytes.len() as u64);
        let id = self.end.post_receive(ReceiveMemory { grant, start, length }, wait_all)?;
        self.rests = false;
        self.receives.add(id, memory, bytes.start);
        Ok(id)
    }

    /// Returns the peer's right to write `memory`, and grants it when it is first needed.
    fn grant<F: Fabric>(&mut self, fabric: &mut F, memory: &Region) -> Grant {
        let known = |id: RegionId| self.grants.iter().find(|grant| grant.region == id).copied();
        if let Some(grant) = known(memory.id()) {
            return grant;
        }
        if self.is_over() {
            // Data that has arrived can still be received, and the peer can no longer write.
            return self.grants[0];
        }
        let grant = fabric.grant(memory, 0..memory.words(), self.peer);
        self.grants.push(grant);
        grant
    }

    /// Releases adopted memory: revokes the peer's right to it, if there is one, and then lets the fabric release it;
    /// [`SocketCore::is_releasing`] returns whether that is pending. Returns false, without any effect, while an
    /// outstanding operation uses the memory.
    pub fn release<F: Fabric>(&mut self, fabric: &mut F, memory: &Region) -> bool {
        if self.sends.name(memory) || self.receives.name(memory) {
            return false;
        }
        self.sends.forget(memory);
        self.receives.forget(memory);
        let granted = self.grants.iter().position(|grant| grant.region == memory.id());
        match granted.filter(|_| self.state != State::Closed) {
            None => fabric.release(memory),
            // A closing socket revokes all grants.
            Some(at) if self.is_over() => self.releasing.push((self.grants[at], memory.clone())),
            Some(at) => {
                let grant = self.grants.remove(at);
                fabric.revoke(&grant);
                self.releasing.push((grant, memory.clone()));
            }
        }
        true
    }

    /// Returns whether released memory may still be written.
    #[must_use]
    pub fn is_releasing(&self) -> bool {
        !self.releasing.is_empty()
    }

    /// Cancels a send of which nothing has been sent; returns false if it is too late.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.rests = false;
        self.end.cancel_send(id)
    }

    /// Cancels a receive. It completes once the peer can no longer write to it, perhaps with data that came before.
    /// Returns false if there is no such receive.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.rests = false;
        self.end.cancel_receive(id)
    }

    /// Ends the stream after the posted sends. The connection closes once both ends have done so and all data is
    /// delivered.
    pub fn shut_down(&mut self) {
        self.rests = false;
        self.end.end_stream();
    }

    /// Aborts the connection at once; the peer sees it break.
    pub fn abort<F: Fabric>(&mut self, fabric: &mut F) {
        self.rests = false;
        self.give_up(fabric, SocketFailure::Aborted);
    }

    /// Returns the next completion.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        // The completion is inspected in place: a move of a value that was just written field by field waits for its
        // stores.
        match self.end.next_completion() {
            None => return self.closed.take(),
            Some(&Completion::Send { id, .. }) => self.sends.remove(id),
            Some(&Completion::Receive { id, .. }) => self.receives.remove(id),
            Some(Completion::Connected | Completion::Closed { .. }) => {}
        }
        self.end.poll_completion()
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Closing(_) | State::Closed)
    }

    fn post_slot<F: Fabric>(&self, fabric: &mut F, slot: usize) {
        let words = slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS;
        match fabric.post_receive(self.conn, &self.slots, words, Token(slot as u64)) {
            // The end of a connection is reported by an event.
            Ok(()) | Err(PostError::NotConnected) => {}
            Err(PostError::Full) => panic!("the fabric holds fewer receives than the socket's credits"),
        }
    }
}

fn check_memory(memory: &Region, bytes: &Range<usize>) -> Result<(), PostRefused> {
    let fits = bytes.start <= bytes.end && bytes.end.div_ceil(8) <= memory.words();
    if fits && bytes.start.is_multiple_of(8) { Ok(()) } else { Err(PostRefused::Memory) }
}

/// Converts an offset in memory, which fits the address space.
fn bytes(count: u64) -> usize {
    usize::try_from(count).expect("an offset in memory")
}

/// The size of a message slot in words.
const SLOT_WORDS: usize = MESSAGE_BYTES_MAX.div_ceil(8);
const _: () = assert!(HELLO_BYTES <= MESSAGE_BYTES_MAX);
