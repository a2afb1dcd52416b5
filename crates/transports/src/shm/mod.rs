//! Shared memory: the fabric of nodes on one host, where a write is a store and a push moves no data.
//!
//! Each pair of nodes is connected by a Unix socket, which the bootstrap has created and authenticated. It
//! carries file descriptors of anonymous memory, rare control messages and doorbells, but never data. Nothing
//! has a name in a file system, so nothing remains, however a process ends. Every shared page has one writer,
//! except granted regions.
//!
//! | what | how | file |
//! |---|---|---|
//! | mirrors | readers map the owner's pages read-only | `mirrors`, `freeze` |
//! | one-sided writes | stores into the owner's pages, between two checks of the grant | `writes`, `grants` |
//! | revocation | a cleared word and a wait; other pages if the writer is stopped | `revocation` |
//! | writes into the user's own memory | its owner fetches and copies them | `remote_copy`, `fetching` |
//! | sends, immediates | a ring per direction, only for posts that have a receive | `ring`, `connection` |
//! | wake-ups | a mark in shared memory, a byte on the socket | `park` |
//! | peers that join and are removed | awaited mirrors, revoked grants, reused numbers | `joining`, `links` |
//! | control | fixed messages, parsed with bounds; an end of file means death | `wire`, `socket`, `control`, `opening` |
//! | deaths | a word that the kernel changes when a process begins to die | `life`, `death_watch` |
//!
//! **Cost.** An awake node makes no system call, takes no lock and allocates nothing on the data path. A poll
//! loads one word per peer: the next post of their only connection, or the count of posts on all; one in eight
//! loads their life marks as well, and every 250 µs it reads the sockets.

mod connection;
mod control;
mod death_watch;
mod event_queue;
mod fetching;
mod freeze;
mod grants;
#[cfg(test)]
mod intruder_tests;
mod joining;
mod life;
mod link;
mod links;
mod memory;
mod mirrors;
mod opening;
mod park;
mod peers;
mod remote_copy;
mod revocation;
mod ring;
mod socket;
mod support;
mod wire;
mod writes;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;

use squall_fabric::copy::CopyStrategies;
use squall_fabric::{
    BreakReason, Capabilities, Channel, ConnId, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey,
    NodeId, PostError, Region, RegionId, Shortage, Token, Write,
};

use self::connection::ShmConnections;
use self::grants::assert_own;
pub use self::remote_copy::RemoteCopyCounters;
pub use self::support::{ShmUnavailable, can_read_processes, check, check_or_warn};

use self::event_queue::EventQueue;
use self::fetching::OwnProbeWord;
use self::joining::AwaitedAttachments;
use self::links::ShmLinks;
use self::memory::ShmSegment;
use self::mirrors::ShmMirror;
use self::park::{PollPace, ShmParking};
use self::peers::PeerSet;
use self::remote_copy::FETCHED_WORDS_MIN;
use self::revocation::{RegionMove, Revocation};
use crate::Waker;
use crate::adopted::{self, AdoptedMemory};
use crate::clock::Clock;
use crate::shortage;
use crate::slot_map::SlotMap;

/// One node's access to the nodes of the same host.
///
/// **Contract.** That of [`Fabric`] and [`crate::TransportFabric`]. In particular, after stores that peers
/// must see, the same thread calls `poll` (or `prepare_park`) before it sleeps: only then are parked peers
/// rung.
pub struct ShmFabric {
    node: NodeId,
    clock: Clock,
    links: ShmLinks,
    connections: ShmConnections,
    mirrors: SlotMap<ShmMirror>,
    awaited_attachments: AwaitedAttachments,
    /// The events that the next poll yields.
    events: EventQueue,
    /// Peers for which something was stored since their marks were last checked.
    to_ring: PeerSet,
    /// Peers whose marks were checked since the last fence.
    doubtful: PeerSet,
    /// The number of checks of marks since then.
    looks: u32,
    /// Connections with posts that wait for a receive, or for earlier writes that their peer must copy.
    waiting: Vec<usize>,
    /// Connections with writes that their peer must copy.
    remote_copies: Vec<usize>,
    copied: RemoteCopyCounters,
    /// The copy strategies for long writes.
    strategies: CopyStrategies,
    /// Whether peers' memory is read where the kernel allows it.
    fetches: bool,
    /// The size in words from which on peers fetch this node's words.
    fetched_words_min: usize,
    witness: OwnProbeWord,
    revocations: Vec<Revocation>,
    moves: Vec<RegionMove>,
    /// Whether moves wait for [`ShmFabric::release_moves`], because a device writes the regions, too.
    holds_moves: bool,
    parking: ShmParking,
    pace: PollPace,
    /// Polls until the next look at the life marks.
    until_life: u32,
    /// Peers that take no more messages.
    unheard: Vec<(usize, BreakReason)>,
    /// Scratch space of `poll_control`.
    ready: Vec<usize>,
    regions: u64,
    grants_issued: u64,
}

impl ShmFabric {
    /// Creates the fabric of `node`, connected with each of `peers` by a stream socket whose other end is the
    /// peer's process. Both ends have authenticated each other. Does not wait for the peers.
    ///
    /// # Errors
    /// Returns an error if a peer runs as another user, if there are too many peers, or if memory or file
    /// descriptors run out.
    pub fn new(node: NodeId, peers: Vec<(NodeId, UnixStream)>) -> io::Result<Self> {
        Self::with_waker(node, peers, Waker::new()?)
    }

    /// Same as [`ShmFabric::new`], with a waker that other fabrics of the node share.
    pub(crate) fn with_waker(
        node: NodeId,
        peers: Vec<(NodeId, UnixStream)>,
        waker: Waker,
    ) -> io::Result<Self> {
        let mut fabric = Self {
            node,
            clock: Clock::start(),
            links: ShmLinks::default(),
            connections: ShmConnections::default(),
            mirrors: SlotMap::default(),
            awaited_attachments: AwaitedAttachments::default(),
            events: EventQueue::new(),
            to_ring: PeerSet::default(),
            doubtful: PeerSet::default(),
            looks: 0,
            waiting: Vec::new(),
            remote_copies: Vec::new(),
            copied: RemoteCopyCounters::default(),
            strategies: CopyStrategies::default(),
            fetches: true,
            fetched_words_min: FETCHED_WORDS_MIN,
            witness: OwnProbeWord::new(),
            revocations: Vec::new(),
            moves: Vec::new(),
            holds_moves: false,
            parking: ShmParking::new(waker)?,
            pace: PollPace::new(),
            until_life: 1,
            unheard: Vec::new(),
            ready: Vec::new(),
            regions: 0,
            grants_issued: 0,
        };
        for (peer, stream) in peers {
            fabric.add_peer(peer, stream)?;
        }
        Ok(fabric)
    }

    /// Returns whether posts wait here for a receive of their peer, or for their peer to copy them.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.remote_copies.is_empty()
    }

    /// Returns the number of the link to `peer`.
    fn link_to(&self, peer: NodeId) -> usize {
        self.links.find(peer).unwrap_or_else(|| panic!("{peer} is not a peer of {}: add it first", self.node))
    }

    pub(crate) fn next_region_id(&mut self) -> RegionId {
        self.regions += 1;
        RegionId(self.regions)
    }

    fn now_ns(&self) -> u64 {
        self.now().as_nanos()
    }

    /// Yields the pending events; returns their number.
    #[inline]
    fn yield_events(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        if self.events.is_empty() {
            return 0;
        }
        let mut count = 0;
        while let Some(event) = self.events.pop() {
            count += 1;
            sink(event);
        }
        count
    }

    fn is_revoking(&self) -> bool {
        !self.revocations.is_empty() || !self.moves.is_empty()
    }

    fn has_full_socket(&self) -> bool {
        self.links.iter().any(|link| link.is_up() && link.socket.is_full())
    }
}

impl Fabric for ShmFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { one_sided_progress: true, early_sight: true }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        let segment = ShmSegment::new(words).map_err(|error| shortage::of_memory(words, &error))?;
        Ok(segment.region(self.next_region_id(), words))
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        adopted::gather_pages(memory);
        let number = self.next_region_id();
        AdoptedMemory::region(memory, number.0)
    }

    fn release(&mut self, region: &Region) {
        // Grants and posts hold it, and so does the region slab of a connection after the last of its
        // receives.
        self.connections.forget(region);
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        self.open_channel(peer, channel)
    }

    fn close(&mut self, conn: ConnId) {
        self.close_connection(conn);
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        self.issue(region, range, peer)
    }

    fn revoke(&mut self, grant: &Grant) {
        self.take_back(grant);
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        self.post_write(conn, &write)
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        self.post_send(conn, bytes, signal)
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        region.check(&range);
        if !AdoptedMemory::is_behind(region) {
            assert_own(region);
        }
        let index = self.connections.find(conn).ok_or(PostError::NotConnected)?;
        let connection = self.connections.at(index).ok_or(PostError::NotConnected)?;
        connection.post_receive(region, range, token)?;
        // The peer may have parked with a post that waits for this.
        self.to_ring.insert(connection.link);
        Ok(())
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        self.publish_mirror(key, region, readers)
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.attach_mirror(owner, key, words)
    }

    #[inline]
    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        assert!(range.start <= range.end, "words {range:?}");
        self.push_words(mirror, range.end);
    }

    #[inline]
    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        self.push_words(mirror, word + 1);
    }

    #[inline]
    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        self.push_words(mirror, words.end);
    }

    fn freeze(&mut self, attachment: &Region) {
        self.freeze_attachment(attachment);
    }

    fn retire(&mut self, mirror: MirrorId) {
        self.retire_mirror(mirror);
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        // The events of this node's own actions come first.
        let mut work = self.yield_events(sink);
        for link in 0..self.links.bound() {
            let has_posts = match self.links.only_connection(link) {
                Some(slot) => self.connections.has_post(slot),
                None => self.links.take_posts(link),
            };
            if has_posts {
                work += self.drain_link(link, sink);
            }
        }
        if !self.remote_copies.is_empty() {
            self.collect_copied();
        }
        if !self.waiting.is_empty() {
            self.retry_waiting();
        }
        self.ring_peers();
        self.until_life -= 1;
        if self.until_life == 0 {
            self.until_life = LIFE_EVERY;
            self.look_for_dying();
        }
        if self.parking.is_marked() || self.pace.is_due() {
            work += self.poll_control();
        }
        work + self.yield_events(sink)
    }
}

/// One in this many polls looks at the life marks: a death is seen some microseconds later.
const LIFE_EVERY: u32 = 8;

impl fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmFabric")
            .field("node", &self.node)
            .field("links", &self.links)
            .field("parking", &self.parking)
            .finish_non_exhaustive()
    }
}
