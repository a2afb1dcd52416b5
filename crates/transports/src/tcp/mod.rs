//! The fabric over TCP: one stream per peer carries all connections and mirrors (Derecho §3.1, Spindle §2.2).
//!
//! The target's own process applies what arrives, while it polls [F12]: so grants are checked and revoked in
//! one place [F9, F10], and a peer can never store where it may not.
//!
//! # Wire format
//! A stream is a sequence of frames. A frame is a header and a payload, both whole 8-byte words; all numbers
//! are little-endian, and payload words travel as they lie in memory. The first two words of a header:
//!
//! | bytes | | |
//! |---|---|---|
//! | 0 | kind | |
//! | 1 | flags | 1: acknowledge when placed [F6]; 2: has an immediate value [F7] |
//! | 2–3 | reserved | zero |
//! | 4–7 | id | names what the frame is about |
//! | 8–11 | a | |
//! | 12–15 | b | zero where not listed |
//!
//! | kind | frame | flags | id | a | b | more header words | payload |
//! |---|---|---|---|---|---|---|---|
//! | 1 | mirror | | the receiver's attachment | first word | words | | b words |
//! | 2 | write | 1, 2 | the receiver's connection | immediate value | words | grant key, region, first word | b words |
//! | 3 | send | 1 | the receiver's connection | length in bytes | | | ⌈a / 8⌉ words |
//! | 4 | acknowledge | | the receiver's connection | a + 2³² b: signalled posts placed since it was connected | | | |
//! | 5 | open | | the sender's connection | channel | | | |
//! | 6 | accept | | the receiver's connection | the sender's connection | | | |
//! | 7 | close | | the sender's connection | reason: 1 closed, 2 refused, 3 receiver not ready, 4 protocol | | | |
//! | 8 | attach | | the sender's attachment | | | mirror key, words | |
//! | 9 | goodbye | | | | | | |
//! | 10 | detach | | the sender's attachment | a + 2³² b: mirror key | | | |
//! | 11 | detached | | the receiver's attachment | | | | |
//!
//! * *Order* [F1, M1] is the stream's. A receiver stores the words of a frame in any order, each whole, and all
//!   after those of earlier frames.
//! * *Attachments and connections* are numbered by the end whose they are. A reader numbers an attachment when it attaches;
//!   from the owner's `Attached` event on, pushes go there. When the reader has dropped the attachment it says so (`detach`);
//!   pushes that cross this are dropped, and after the answer (`detached`) the number is used again. A connection's number
//!   never is.
//! * *Connections* are paired by `open` and `accept`, ended by `close`; see `connections`. Frames for an
//!   ended connection are dropped, because they crossed its `close`.
//! * A write whose key, region or range its target has not granted to this peer, or has revoked, is *refused*:
//!   nothing of it lands any more, and the target closes the connection with reason 2 [F10].
//! * A send, or a write with immediate, that finds no posted receive *stalls* its connection [F7]: the target
//!   keeps it and what follows (up to 16 MiB for all connections of a peer) and closes the connection with
//!   reason 3 after one second, or when there is no space. Other connections and mirrors go on.
//! * A peer that breaks the format is *disconnected*: a frame or flag that is not in the table, an attachment or
//!   connection that never was, a push beyond its mirror, a mirror attached with another size than published,
//!   an acknowledgement of what was not signalled. The log says how; the peer gets a goodbye and then the end.
//!
//! # Encryption
//! On a stream that is sealed ([`PeerStream::is_sealed`]) the frames travel in records (`session::record`) of whole words. They
//! are decrypted and verified into a buffer, and only then do the frames in them begin to mean anything; so of what somebody
//! on the way has altered no word is ever stored, above all no guard. Long payloads are not read straight into their regions
//! then, nor sent straight from them, and words that the kernel splits do not occur. A record that does not verify ends the
//! stream as broken format does.
//!
//! # Memory
//! Payloads are stored word by word with relaxed atomic stores after a release fence, so whoever acquires any
//! word of a frame sees all earlier frames [F4], and no word is torn [F3]. The kernel, as another process would, does
//! two things itself: it reads payloads of 1 KiB and more from the source region when the socket takes them
//! [F5], and it stores long payloads (of 16 KiB and more) into the target region. Between calls of
//! `poll` words are whole all the same: the rest of a word that the kernel has split is kept by value, and it is
//! asked for whole words only. `Deviation:` of F3: a *thread other than the polling one* that stores into a
//! range that is being sent, or reads a long range that is landing, without waiting for its guard, could
//! see half of a word. M2 asks it to wait in any case.
//!
//! # Bounds
//! Posts on connections are refused as *full* beyond 4 MiB or 1024 references of queued output, 16,384 signalled
//! posts or 16,384 posted receives. Pushes never fail; a reader that lets 64 MiB of copied output or 262,144
//! references queue up is disconnected as unreachable. One poll reads at most 256 KiB per peer, and 1 MiB more of a
//! long payload, and makes one `sendmsg` call per peer, for posts and for answers to what came with the last poll.

mod attachments;
mod connection;
mod connections;
mod fabric;
mod frame;
mod grants;
mod inbound;
mod input;
mod joining;
mod memory;
mod mirror;
mod output;
mod peer;
mod poller;
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
use crate::Waker;
use crate::clock::Clock;
use crate::session::PeerStream;

/// A node's access to its peers over TCP.
///
/// Posts, and answers to what arrived, are queued and go out together: at the beginning of the next `poll`, in `flush` or
/// in `prepare_park`. Nothing waits for more to come.
#[derive(Debug)]
pub struct TcpFabric {
    /// A place without a peer holds a lost one, and is used again.
    peers: Vec<TcpPeer>,
    /// Where each peer is.
    places: BTreeMap<NodeId, usize>,
    /// Places without a peer.
    free_places: Vec<usize>,
    /// Attachments of mirrors whose owners are no peers yet.
    awaited_attachments: BTreeMap<NodeId, TcpAttachments>,
    /// Attachments that nobody holds any more, and how many of them have been let go.
    ended_attachments: EndedCount,
    swept_attachments: u64,
    local: LocalNode,
    buffer: ReceiveBuffer,
    poller: TcpPoller,
    waker: Waker,
    /// All region names below are used.
    next_region: u64,
}

/// What has been sent and received since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Frames queued for sending; a push counts once per reader.
    pub frames_sent: u64,
    /// Frames that have arrived in whole.
    pub frames_received: u64,
    /// Bytes that the sockets have taken.
    pub bytes_sent: u64,
    /// Bytes that the sockets have yielded.
    pub bytes_received: u64,
    /// System calls that send.
    pub send_calls: u64,
    /// System calls that receive, whether they yielded anything or not.
    pub receive_calls: u64,
    /// System calls that ask which sockets are ready, while polling.
    pub poll_calls: u64,
    /// Pushed words that replaced the same word in the queue and made no frame.
    pub words_coalesced: u64,
}

impl TcpFabric {
    /// A node with one connected stream to each peer. Whoever is at the other end has been authenticated, and
    /// nothing but this fabric uses the streams from now on. A [`PeerStream`] that is sealed stays so; a plain
    /// [`std::net::TcpStream`] is not encrypted.
    ///
    /// # Errors
    /// If a peer is named twice or is this node itself ([`io::ErrorKind::InvalidInput`]), or a system call fails.
    pub fn new(node: NodeId, streams: Vec<(NodeId, impl Into<PeerStream>)>) -> io::Result<Self> {
        let streams = streams.into_iter().map(|(peer, stream)| (peer, stream.into())).collect();
        Self::with_waker(node, streams, Waker::new()?)
    }

    /// As [`TcpFabric::new`], with a waker that other fabrics of the node share.
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
            poller: TcpPoller::new()?,
            waker,
            next_region: 0,
        };
        for (peer, stream) in streams {
            fabric.add_peer(peer, stream)?;
        }
        Ok(fabric)
    }

    /// What has been sent and received since the start.
    #[must_use]
    pub fn counters(&self) -> TcpCounters {
        self.local.counters
    }

    /// Whether something waits for space in a socket.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.peers.iter().any(TcpPeer::has_output)
    }

    /// The place of `node` among the peers.
    ///
    /// # Panics
    /// If it is not a peer.
    fn place(&self, node: NodeId) -> usize {
        let place = self.places.get(&node).copied();
        place.unwrap_or_else(|| panic!("{node} is not a peer of {}: add it first", self.local.grants.owner()))
    }

    /// Sends what waits for the peers, one call each. Returns the number of peers that took something.
    fn poll_output(&mut self) -> usize {
        let counters = &mut self.local.counters;
        self.peers
            .iter_mut()
            .filter_map(|peer| Some(peer.poll_output(counters)).filter(|sent| *sent > 0))
            .count()
    }

    fn region_id(&mut self) -> RegionId {
        self.next_region += 1;
        RegionId(self.next_region)
    }
}

/// A runner takes the fabric along to its thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<TcpFabric>();
};
