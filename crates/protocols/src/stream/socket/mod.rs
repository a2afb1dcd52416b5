//! Sockets: one end of a connection on a fabric, with registered buffers and a queue of completions (EXS §II.B).

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

/// One end of a connection.
///
/// **Law.** The driver is that of every [`squall_fabric::Core`]. The user posts sends and receives with memory of regions that this
/// node's fabric has registered, leaves that memory alone until [`SocketCore::poll_completion`] names it, and asks for
/// completions after each `poll`. Sends may be posted before the peer is there.
///
/// **Memory** is named by bytes of a region, and begins at a word. The words of a receive belong to it whole: bytes
/// behind its last one, up to the next word, may become zeros. The first receive in a region grants the peer the
/// right to write all of that region, until the socket is closed: keep apart what the peer must not touch. The socket
/// holds the region of the last send and of the last receive that are done, until others are done.
#[derive(Debug)]
pub struct SocketCore {
    peer: NodeId,
    conn: ConnId,
    state: State,
    end: StreamEnd,
    /// Memory for the peer's messages: one slot for each credit, always posted.
    slots: Region,
    /// Slots that are used up and not yet posted again.
    spent: Vec<usize>,
    ring: Region,
    /// Rights of the peer on memory of this node; the first is the ring.
    grants: Vec<Grant>,
    /// Adopted memory that is given back when the peer's right on it is revoked.
    releasing: Vec<(Grant, Region)>,
    /// The peer's ring, once it has introduced itself.
    peer_ring: Option<Grant>,
    /// When this end gives up if the peer has not introduced itself.
    connect_by: Option<Instant>,
    /// Memory of outstanding sends and receives, in order.
    sends: Pieces<SendId>,
    receives: Pieces<ReceiveId>,
    out: SendPath,
    /// The last time that the sender had to know.
    now: Instant,
    /// A completion of the socket itself.
    closed: Option<Completion>,
    /// How the peer broke the protocol, found by [`SocketCore::absorb`]; the next poll gives up.
    violation: Option<StreamViolation>,
    /// A poll has nothing to do until the user posts something or an event comes.
    rests: bool,
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected.
    Opening,
    /// Connected; what is posted may travel once the peer has introduced itself.
    Open,
    /// The connection is given up; so many grants are not yet revoked.
    Closing(usize),
    Closed,
}

impl SocketCore {
    /// Opens `channel` to `peer`, which does the same with settings of the same kind and policy.
    ///
    /// # Errors
    /// If the settings make no sense.
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

    /// The other end's node.
    #[must_use]
    pub fn peer(&self) -> NodeId {
        self.peer
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        self.end.statistics()
    }

    /// Whether the connection is over and all memory belongs to the user again.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether all that was posted to be sent is posted on the connection.
    #[must_use]
    pub fn has_posted_all(&self) -> bool {
        self.is_over() || self.out.is_empty() && self.end.has_transferred_all()
    }

    /// Whether [`SocketCore::poll_completion`] has something.
    #[inline]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        self.end.has_completion() || self.closed.is_some()
    }

    /// Whether the peer has all that was sent and knows that it is all.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.end.is_sent()
    }

    /// Why the connection has failed, if it has.
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

    /// Receives into `bytes` of `memory`: from 1 byte up to all, or all of them if `wait_all`; one packet, if packets
    /// are sent.
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

    /// The peer's right to write `memory`; given when it is first needed.
    fn grant<F: Fabric>(&mut self, fabric: &mut F, memory: &Region) -> Grant {
        let known = |id: RegionId| self.grants.iter().find(|grant| grant.region == id).copied();
        if let Some(grant) = known(memory.id()) {
            return grant;
        }
        if self.is_over() {
            // What has arrived can still be received; nobody else writes any more.
            return self.grants[0];
        }
        let grant = fabric.grant(memory, 0..memory.words(), self.peer);
        self.grants.push(grant);
        grant
    }

    /// Gives adopted memory back: takes the peer's right on it, if it has one, and lets the fabric release it then, which
    /// [`SocketCore::is_releasing`] tells. False, and nothing has changed, while an outstanding operation names the memory.
    pub fn release<F: Fabric>(&mut self, fabric: &mut F, memory: &Region) -> bool {
        if self.sends.name(memory) || self.receives.name(memory) {
            return false;
        }
        self.sends.forget(memory);
        self.receives.forget(memory);
        let granted = self.grants.iter().position(|grant| grant.region == memory.id());
        match granted.filter(|_| self.state != State::Closed) {
            None => fabric.release(memory),
            // On the way to its end it revokes all.
            Some(at) if self.is_over() => self.releasing.push((self.grants[at], memory.clone())),
            Some(at) => {
                let grant = self.grants.remove(at);
                fabric.revoke(&grant);
                self.releasing.push((grant, memory.clone()));
            }
        }
        true
    }

    /// Whether released memory may still be written.
    #[must_use]
    pub fn is_releasing(&self) -> bool {
        !self.releasing.is_empty()
    }

    /// Takes back a send of which nothing has been sent; false if it is too late.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.rests = false;
        self.end.cancel_send(id)
    }

    /// Takes back a receive. It completes when the peer can no longer write to it, perhaps with data that came before.
    /// False if there is none of that number.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.rests = false;
        self.end.cancel_receive(id)
    }

    /// Sends nothing more after what is posted. When both ends have done so and all is delivered, the connection
    /// closes.
    pub fn shut_down(&mut self) {
        self.rests = false;
        self.end.end_stream();
    }

    /// Gives the connection up at once; the peer sees it break.
    pub fn abort<F: Fabric>(&mut self, fabric: &mut F) {
        self.rests = false;
        self.give_up(fabric, SocketFailure::Aborted);
    }

    /// The next thing that is done.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        // Looked at in place: what was just written field by field waits for its stores when it is moved.
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
            // A connection that is over tells by an event.
            Ok(()) | Err(PostError::NotConnected) => {}
            Err(PostError::Full) => panic!("the fabric holds fewer receives than the socket's credits"),
        }
    }
}

fn check_memory(memory: &Region, bytes: &Range<usize>) -> Result<(), PostRefused> {
    let fits = bytes.start <= bytes.end && bytes.end.div_ceil(8) <= memory.words();
    if fits && bytes.start.is_multiple_of(8) { Ok(()) } else { Err(PostRefused::Memory) }
}

/// Offsets in memory fit the address space.
fn bytes(count: u64) -> usize {
    usize::try_from(count).expect("it lies in memory")
}

/// Words of one slot for messages.
const SLOT_WORDS: usize = MESSAGE_BYTES_MAX.div_ceil(8);
const _: () = assert!(HELLO_BYTES <= MESSAGE_BYTES_MAX);
