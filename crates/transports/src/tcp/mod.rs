//! The fabric over TCP: one stream per peer carries all connections and mirrors (Derecho §3.1, Spindle §2.2).
//!
//! The target's own process applies what arrives, while it polls [F12]: so grants are checked and revoked in
//! one place [F9, F10], and a peer can never store outside its grants.
//!
//! # Wire format
//! A stream is a sequence of frames. A frame is a header and a payload, both whole 8-byte words; all numbers
//! are little-endian, and payload words are sent as they are in memory. The first two words of a header:
//!
//! | bytes | | |
//! |---|---|---|
//! | 0 | kind | |
//! | 1 | flags | 1: acknowledge when it has landed [F6]; 2: has an immediate value [F7] |
//! | 2–3 | reserved | zero |
//! | 4–7 | id | identifies what the frame is about |
//! | 8–11 | a | |
//! | 12–15 | b | zero where not listed |
//!
//! | kind | frame | flags | id | a | b | more header words | payload |
//! |---|---|---|---|---|---|---|---|
//! | 1 | mirror | | the receiver's attachment | first word | words | | b words |
//! | 2 | write | 1, 2 | the receiver's connection | immediate value | words | grant key, region, first word | b words |
//! | 3 | send | 1 | the receiver's connection | length in bytes | | | ⌈a / 8⌉ words |
//! | 4 | acknowledge | | the receiver's connection | a + 2³² b: signalled posts that have landed since it was connected | | | |
//! | 5 | open | | the sender's connection | channel | | | |
//! | 6 | accept | | the receiver's connection | the sender's connection | | | |
//! | 7 | close | | the sender's connection | reason: 1 closed, 2 refused, 3 receiver not ready, 4 protocol | | | |
//! | 8 | attach | | the sender's attachment | | | mirror key, words | |
//! | 9 | goodbye | | | | | | |
//! | 10 | detach | | the sender's attachment | a + 2³² b: mirror key | | | |
//! | 11 | detached | | the receiver's attachment | | | | |
//! | 12 | handled | | | a + 2³² b: how many words of the receiver's stream are handled | | | |
//! | 13 | farewell | | | | | | |
//!
//! * *Order* [F1, M1] is the stream's. A receiver stores the words of a frame in any order, each whole, and
//!   all after those of earlier frames.
//! * *Attachments and connections* are numbered by the end that owns them. A reader numbers an attachment
//!   when it attaches; from the owner's `Attached` event on, pushes use that number. A reader that has
//!   dropped the attachment announces that (`detach`); pushes that cross this are dropped, and after the
//!   confirmation (`detached`) the number is reused. A connection's number never is.
//! * *Connections* are paired by `open` and `accept`, ended by `close`; see `connections`. Frames for an
//!   ended connection are dropped, because they crossed its `close`.
//! * A write whose key, region or range its target has not granted to this peer, or has revoked, is
//!   *refused*: nothing more of it lands, and the target closes the connection with reason 2 [F10].
//! * A send, or a write with immediate, that finds no posted receive *stalls* its connection [F7]: the target
//!   keeps it and everything after it (up to 16 MiB for all connections of a peer) and closes the connection
//!   with reason 3 after one second, or when there is no space. Other connections and mirrors continue.
//! * A peer that violates the format is *disconnected*: a frame or flag that is not in the table, an
//!   attachment or connection that never existed, a push beyond its mirror, a mirror attached with a size
//!   that differs from the published one, an acknowledgement of posts that were not signalled. The log says
//!   how; the peer gets a goodbye and then the end of the stream.
//!
//! # Encryption
//! On a sealed stream ([`PeerStream::is_sealed`]) the frames travel in records (`session::record`) of whole
//! words. Records are decrypted and verified into a buffer, and only then are the frames in them handled; so
//! no word that was altered in transit is ever stored, above all no guard. Long payloads are then not read
//! directly into their regions, nor sent directly from them, and the kernel splits no words. A record that
//! does not verify breaks the connection.
//!
//! # Links that are opened again
//! Between members ([`TcpFabric::with_relinking`]) a connection that breaks is opened again, and the streams continue where they were (`pair`,
//! `reopening`): above the fabric that is a pause. A peer is lost when it has ended deliberately, its process is dead, it has lost this node, it
//! violates the format, or is overrun. Everywhere else the end of the connection is the loss of the peer.
//!
//! # Memory
//! Payloads are stored word by word with relaxed atomic stores after a release fence, so a reader that
//! acquires any word of a frame sees all earlier frames [F4], and no word is torn [F3]. The kernel, like
//! another process, does two of the transfers itself: it reads payloads of 1 KiB and more from the source
//! region when the socket takes them [F5], and it stores long payloads (of 16 KiB and more) into the target
//! region. Between calls of `poll` words are whole nevertheless: the rest of a word that the kernel has split
//! is kept by value, and only whole words are requested from it. Regions that are files (`file_region`) the kernel
//! sends from, and receives into, by the file's descriptor (`file_pages`). `Deviation:` of F3: a *thread other
//! than the polling one* that stores into a range that is being sent, or reads a long range that is landing,
//! without waiting for its guard, could see half of a word. M2 requires it to wait in any case.
//!
//! # Bounds
//! Posts on connections are rejected as *full* beyond 4 MiB or 1024 references of output that waits for the socket, 48 MiB that the peer
//! has not handled, 16,384 signalled posts or 16,384 posted receives. Pushes never fail; a reader for which 96 MiB of copied output
//! or 262,144 references are kept is disconnected as unreachable. One poll reads at most 256 KiB per peer,
//! and 1 MiB more of a long payload, and makes one `sendmsg` call per peer, for posts and for
//! acknowledgements of what arrived in the last poll, and one `sendfile` call where the pages of a file follow.

mod attachments;
mod connection;
mod connections;
mod direct;
mod fabric;
mod file_pages;
mod frame;
mod grants;
mod inbound;
mod input;
mod joining;
pub(crate) mod memory;
mod mirror;
mod mutation;
mod output;
mod pair;
mod peer;
mod poller;
pub(crate) mod reopening;
mod sealed;
mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::io;

use squall_fabric::{NodeId, RegionId};

use self::attachments::{EndedCount, TcpAttachments};
use self::grants::TcpGrants;
use self::input::ReceiveBuffer;
use self::mirror::TcpMirrors;
use self::peer::{LocalNode, TcpPeer};
use self::poller::TcpPoller;
use self::reopening::PairCalls;
use crate::Waker;
use crate::bootstrap::Relinking;
use crate::clock::Clock;
use crate::session::PeerStream;

/// A node's access to its peers over TCP.
///
/// Posts, and acknowledgements of what arrived, are queued and sent together: at the beginning of the next
/// `poll`, in `flush` or in `prepare_park`. Nothing waits for more output, but as [`TcpFabric::gather_answers`] says.
#[derive(Debug)]
pub struct TcpFabric {
    /// By place; a place without a peer holds a lost one, and is reused.
    peers: Vec<TcpPeer>,
    /// The place of each peer.
    places: BTreeMap<NodeId, usize>,
    /// Places without a peer.
    free_places: Vec<usize>,
    /// Attachments of mirrors whose owners are not peers yet.
    awaited_attachments: BTreeMap<NodeId, TcpAttachments>,
    /// The number of attachments that are no longer held.
    ended_attachments: EndedCount,
    swept_attachments: u64,
    local: LocalNode,
    buffer: ReceiveBuffer,
    poller: TcpPoller,
    waker: Waker,
    /// If connections that break are opened again.
    calls: Option<PairCalls>,
    /// Something has happened to sentinels.
    has_sentinel_news: bool,
    /// See [`TcpFabric::gather_answers`].
    gathers: bool,
    /// All lower region ids are used.
    next_region: u64,
}

/// Statistics since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Frames queued for sending; a push counts once per reader.
    pub frames_sent: u64,
    /// Frames that have arrived completely.
    pub frames_received: u64,
    /// Bytes that the sockets have taken.
    pub bytes_sent: u64,
    /// Bytes that the sockets have yielded.
    pub bytes_received: u64,
    /// System calls that send.
    pub send_calls: u64,
    /// System calls that receive, whether they yielded anything or not.
    pub receive_calls: u64,
    /// System calls that query which sockets are ready, while polling.
    pub poll_calls: u64,
    /// Pushed words that replaced the same word in the queue without a new frame.
    pub words_coalesced: u64,
    /// Connections that were opened again.
    pub reopened: u64,
}

impl TcpFabric {
    /// Creates a node with one connected stream to each peer. The other ends have been authenticated, and
    /// only this fabric uses the streams from now on. A sealed [`PeerStream`] remains sealed; a plain
    /// [`std::net::TcpStream`] is not encrypted.
    ///
    /// # Errors
    /// Returns an error if a peer is named twice or is this node itself ([`io::ErrorKind::InvalidInput`]), or
    /// a system call fails.
    pub fn new(node: NodeId, streams: Vec<(NodeId, impl Into<PeerStream>)>) -> io::Result<Self> {
        let streams = streams.into_iter().map(|(peer, stream)| (peer, stream.into())).collect();
        Self::with_waker(node, streams, Waker::new()?)
    }

    /// Same as [`TcpFabric::new`], for a member whose links are opened again when they break: above the fabric that is a pause. Silence is
    /// watched by others; a peer is lost for what proves that it is, such as its farewell.
    ///
    /// # Errors
    /// As [`TcpFabric::new`], or the system has no more threads.
    pub fn with_relinking(
        node: NodeId,
        streams: Vec<(NodeId, PeerStream)>,
        relinking: &Relinking,
    ) -> io::Result<Self> {
        let mut fabric = Self::with_waker(node, Vec::new(), Waker::new()?)?;
        fabric.relink_by(relinking)?;
        streams.into_iter().try_for_each(|(peer, stream)| fabric.add_peer(peer, stream))?;
        Ok(fabric)
    }

    /// From now on, links that break are opened again.
    pub(crate) fn relink_by(&mut self, relinking: &Relinking) -> io::Result<()> {
        let desk = self.reopen_by(relinking.caller(), Some(relinking.silence))?;
        relinking.links.set_desk(desk);
        Ok(())
    }

    /// Same as [`TcpFabric::new`], with a waker that other fabrics of the node share.
    pub(crate) fn with_waker(
        node: NodeId,
        streams: Vec<(NodeId, PeerStream)>,
        waker: Waker,
    ) -> io::Result<Self> {
        let local = LocalNode {
            clock: Clock::start(),
            grants: TcpGrants::new(node),
            mirrors: TcpMirrors::default(),
            events: VecDeque::new(),
            counters: TcpCounters::default(),
            silence: None,
        };
        let mut fabric = Self {
            peers: Vec::with_capacity(streams.len()),
            places: BTreeMap::new(),
            free_places: Vec::new(),
            awaited_attachments: BTreeMap::new(),
            ended_attachments: EndedCount::default(),
            swept_attachments: 0,
            local,
            buffer: ReceiveBuffer::new(),
            poller: TcpPoller::new(&waker)?,
            waker,
            calls: None,
            has_sentinel_news: false,
            gathers: false,
            next_region: 0,
        };
        for (peer, stream) in streams {
            fabric.add_peer(peer, stream)?;
        }
        Ok(fabric)
    }

    /// Returns the statistics since the start.
    #[must_use]
    pub fn counters(&self) -> TcpCounters {
        self.local.counters
    }

    /// Returns whether output waits for space in a socket.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.peers.iter().any(TcpPeer::has_output)
    }

    /// Returns the place of `node` among the peers.
    ///
    /// # Panics
    /// Panics if it is not a peer.
    fn place(&self, node: NodeId) -> usize {
        let place = self.places.get(&node).copied();
        place.unwrap_or_else(|| panic!("{node} is not a peer of {}: add it first", self.local.grants.owner()))
    }

    /// From now on acknowledgements alone wait for some polls, or for other output, `flush` or `prepare_park`: for a caller that does
    /// one of these soon. What arrives is then handled before it is acknowledged, and a reply takes the acknowledgement along.
    pub const fn gather_answers(&mut self) {
        self.gathers = true;
    }

    /// Sends pending output to the peers, with one call of `poll` each. Returns the number of peers that took
    /// something.
    fn poll_output(&mut self, poll: impl Fn(&mut TcpPeer, &mut TcpCounters) -> usize) -> usize {
        let counters = &mut self.local.counters;
        self.peers.iter_mut().filter_map(|peer| Some(poll(peer, counters)).filter(|sent| *sent > 0)).count()
    }

    fn region_id(&mut self) -> RegionId {
        self.next_region += 1;
        RegionId(self.next_region)
    }
}

/// Says to all peers that this node ends deliberately.
impl Drop for TcpFabric {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            peer.say_farewell(&mut self.local.counters);
        }
    }
}

/// A runner moves the fabric to its thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<TcpFabric>();
};
