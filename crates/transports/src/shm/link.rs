//! A link: everything that connects this node with one peer of the same host.
//!
//! Two page ranges carry the state that must be visible without a system call: each end writes one and reads
//! the other. They contain the mark of a parked reader, the number of posts, the life mark of the process, the
//! write in progress, and the table of the valid grants. A socket carries the rest.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use squall_fabric::region::Access;
use squall_fabric::{Channel, MirrorKey, NodeId, Region};

use super::death_watch::WatchedMark;
use super::fetching::PeerMemory;
use super::grants::{IssuedGrants, ReceivedGrants};
use super::life::{self, LifeMark};
use super::memory::{INTERNAL, ShmSegment, map_peer_file};
use super::mirrors::ShmAttachment;
use super::park::TIMER;
use super::ring::IncomingRing;
use super::socket::UnixSocket;
use super::wire::ShmViolation;
use crate::Waker;

/// Everything that connects this node with one peer.
#[derive(Debug)]
pub(super) struct ShmLink {
    pub(super) peer: NodeId,
    pub(super) socket: UnixSocket,
    pub(super) life: PeerLiveness,
    /// In the own pages, if the kernel allows it.
    _life_mark: Option<LifeMark>,
    dying: Dying,
    /// Wakes this node when the peer begins to die.
    watched: Option<WatchedMark>,
    /// Whether this node has removed the peer while one of its writes may be in progress: only grants remain.
    pub(super) removed: bool,
    own_segment: Arc<ShmSegment>,
    /// The page range that this node writes for the peer.
    own: Region,
    /// The page range that the peer writes for this node; `None` before its greeting.
    theirs: Option<Region>,
    /// Posts in total, on all connections.
    posts: u64,
    /// The peer's count of posts when it was last read.
    posts_seen: u64,
    /// Whether to look at all connections, whatever the count of posts.
    pub(super) look_again: bool,
    /// The peer's memory, if this node may read it.
    pub(super) memory: Option<PeerMemory>,
    /// Writes begun in total.
    writes: Cell<u64>,
    /// The peer's last mark of parking for which it was rung.
    rung: u64,
    /// Connections that are open here, connected or not.
    pub(super) connections: Vec<usize>,
    pub(super) channels: BTreeMap<Channel, ChannelOpenings>,
    /// Grants that this node has issued to the peer.
    pub(super) issued: IssuedGrants,
    /// Grants that the peer has issued to this node.
    pub(super) received: ReceivedGrants,
    /// Mirrors that this node has published for the peer and the peer has not attached.
    pub(super) published: BTreeMap<MirrorKey, PublicationState>,
    /// Mirrors of the peer that this node has attached and still uses.
    pub(super) attachments: BTreeMap<MirrorKey, Weak<ShmAttachment>>,
    /// Mirrors that the peer has published and this node has not attached.
    pub(super) offers: BTreeMap<MirrorKey, MirrorOffer>,
}

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLiveness {
    /// It has sent no greeting yet.
    AwaitingHello,
    /// It has sent its greeting.
    Up,
    /// It was disconnected, but may be alive and store.
    Lost,
    /// It was removed while the kernel was ending its process, which may store for some microseconds more.
    Dying,
    /// Its end of the socket is closed: it stores nothing more.
    Gone,
}

/// What this node has seen of the peer's death.
#[derive(Clone, Copy, Debug)]
enum Dying {
    Unseen,
    Since(Instant),
    Reported,
}

/// How often a channel was opened. The k-th opening of one end pairs with the k-th of the other, so both
/// agree on which incarnations belong together, whichever messages cross.
#[derive(Debug, Default)]
pub(super) struct ChannelOpenings {
    /// Openings of this end.
    pub(super) here: u64,
    /// The connection of the last one, while it is open.
    pub(super) connection: Option<usize>,
    /// Openings of the peer.
    pub(super) there: u64,
    /// The ring of its last one, until this end has opened as often or the peer has closed.
    pub(super) ring: Option<IncomingRing>,
}

/// The state of a mirror that the peer has not attached, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublicationState {
    Offered,
    /// The peer knows, or will. Until it confirms that, it may have attached the mirror before it knew.
    Retired,
}

/// A mirror that is published for this node.
#[derive(Debug)]
pub(super) struct MirrorOffer {
    pub(super) words: u64,
    pub(super) file: OwnedFd,
}

impl ShmLink {
    pub(super) fn new(peer: NodeId, stream: UnixStream) -> io::Result<Self> {
        let own_segment = ShmSegment::new(PAGE_WORDS)?;
        own_segment.seal_for_readers()?;
        Ok(Self {
            peer,
            _life_mark: LifeMark::set(&own_segment, LIFE),
            socket: UnixSocket::new(stream)?,
            life: PeerLiveness::AwaitingHello,
            dying: Dying::Unseen,
            watched: None,
            removed: false,
            own: own_segment.region(INTERNAL, PAGE_WORDS),
            own_segment,
            theirs: None,
            posts: 0,
            posts_seen: 0,
            look_again: false,
            memory: None,
            writes: Cell::new(0),
            rung: 0,
            connections: Vec::new(),
            channels: BTreeMap::new(),
            issued: IssuedGrants::default(),
            received: ReceivedGrants::default(),
            published: BTreeMap::new(),
            attachments: BTreeMap::new(),
            offers: BTreeMap::new(),
        })
    }

    pub(super) fn segment(&self) -> &Arc<ShmSegment> {
        &self.own_segment
    }

    /// Returns whether the peer takes messages.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.life, PeerLiveness::AwaitingHello | PeerLiveness::Up)
    }

    /// Drops everything but the grants, under which a write may be in progress.
    pub(super) fn remove(&mut self) {
        self.removed = true;
        self.watched = None;
        self.channels.clear();
        self.received = ReceivedGrants::default();
        self.issued.adopted.clear();
        self.published.clear();
        self.attachments.clear();
        self.offers.clear();
    }

    /// Handles the peer's greeting.
    pub(super) fn on_hello(&mut self, file: &OwnedFd, waker: &Waker) -> Result<(), ShmViolation> {
        let theirs = map_peer_file(file, 0, PAGE_WORDS as u64, Access::ReadOnly)?;
        self.watched = Some(WatchedMark::new(&theirs, LIFE, waker));
        self.theirs = Some(theirs);
        self.life = PeerLiveness::Up;
        Ok(())
    }

    /// Returns whether the peer has posted something since the last call.
    #[inline]
    pub(super) fn take_posts(&mut self) -> bool {
        let Some(theirs) = &self.theirs else { return false };
        let posts = theirs.load(POSTS);
        let found = posts != self.posts_seen || self.look_again;
        self.posts_seen = posts;
        self.look_again = false;
        found && self.life == PeerLiveness::Up
    }

    /// Returns whether the kernel has begun to end the peer's process, and its socket is still open.
    #[inline]
    pub(super) fn is_dying(&self) -> bool {
        self.life == PeerLiveness::Up
            && self.theirs.as_ref().is_some_and(|theirs| life::is_dying(theirs.load(LIFE)))
    }

    /// Returns true once, when the peer has been dying for so long that it does not run any more.
    pub(super) fn has_stopped(&mut self) -> bool {
        match self.dying {
            Dying::Unseen => {
                self.dying = Dying::Since(Instant::now());
                false
            }
            Dying::Since(begin) if begin.elapsed() >= life::GRACE => {
                self.dying = Dying::Reported;
                true
            }
            _ => false,
        }
    }

    /// Returns when to look again at a peer that is dying.
    pub(super) fn dying_timer(&self) -> Option<Duration> {
        match self.dying {
            _ if !self.is_dying() => None,
            Dying::Unseen => Some(Duration::ZERO),
            Dying::Since(begin) => Some(life::GRACE.saturating_sub(begin.elapsed())),
            Dying::Reported => Some(TIMER),
        }
    }

    /// Announces to the peer that something was posted.
    pub(super) fn announce_post(&mut self) {
        self.posts += 1;
        self.own.store(POSTS, self.posts);
    }

    /// Announces to the peer that this node is parked for the `parking`-th time, or awake again.
    pub(super) fn mark_parked(&self, parking: u64, parked: bool) {
        self.own.store_relaxed(PARKED, parking * 2 + u64::from(parked));
    }

    /// Announces to the peer whether this node fetches words from its memory.
    pub(super) fn announce_fetching(&self, fetches: bool) {
        self.own.store(FETCHES, u64::from(fetches));
    }

    /// Returns whether the peer fetches words from this node's memory.
    #[inline]
    pub(super) fn peer_fetches(&self) -> bool {
        self.theirs.as_ref().is_some_and(|theirs| theirs.load(FETCHES) != 0)
    }

    /// Rings the peer if it is parked and has not been rung since it parked.
    pub(super) fn ring_if_parked(&mut self) {
        let Some(theirs) = &self.theirs else { return };
        let mark = theirs.load_relaxed(PARKED);
        if !mark.is_multiple_of(2) && mark != self.rung {
            self.rung = mark;
            self.socket.ring();
        }
    }

    /// Announces to the peer that a write under its grant `slot` begins. The caller must check afterwards
    /// that the grant is valid.
    #[inline]
    pub(super) fn begin_write(&self, slot: usize) {
        self.writes.set(self.writes.get() + 1);
        self.own.store_relaxed(WRITING, self.writes.get() << 16 | (slot as u64 + 1));
    }

    /// Announces to the peer that the write has ended: the peer then sees all that was stored.
    #[inline]
    pub(super) fn end_write(&self) {
        self.own.store(WRITING, self.writes.get() << 16);
    }

    /// Returns the mark of the peer's write under grant `slot` that is in progress, if there is one, to
    /// compare with later ones.
    pub(super) fn write_under_way(&self, slot: usize) -> Option<u64> {
        let writing = self.theirs.as_ref()?.load(WRITING);
        (self.life != PeerLiveness::Gone && writing & 0xffff == slot as u64 + 1).then_some(writing)
    }

    /// Sets the validity word of grant `slot`.
    pub(super) fn set_validity(&self, slot: usize, word: u64) {
        self.own.store(GRANTS + slot, word);
    }

    /// Returns the validity word of the peer's grant `slot`.
    #[inline]
    pub(super) fn validity(&self, slot: usize) -> u64 {
        self.theirs.as_ref().map_or(0, |theirs| theirs.load(GRANTS + slot))
    }
}

// The page range: words of different purpose are in separate cache lines.
/// Odd while parked; each parking has its own value.
const PARKED: usize = 0;
/// Not 0 if the node may read the peer's memory, and does so where that is the shortest path.
const FETCHES: usize = 8;
/// Posts in total, over all connections of the link.
const POSTS: usize = 16;
/// The life mark, and the entry of the list that it is on.
const LIFE: usize = 24;
/// Writes begun in total << 16 | slot of the grant + 1 while one is in progress, 0 between them.
const WRITING: usize = 32;
/// By slot: the validity word of the grant, 0 if there is none.
const GRANTS: usize = 48;
/// The most valid grants from one node to one peer. The slot must fit 16 bits, less one.
pub(super) const GRANTS_MAX: usize = 4096;
pub(super) const PAGE_WORDS: usize = GRANTS + GRANTS_MAX;
const _: () = assert!(GRANTS_MAX < 0xffff, "slot + 1 fits 16 bits");
