//! A connection: posts in order to one peer, receives for the peer's posts, and posts that wait for a receive
//! [F7].

use std::collections::VecDeque;
use std::ops::Range;

use squall_fabric::{
    Channel, ConnId, FabricEvent, Grant, PostError, Region, RegionSlab, Token, Write, WriteSource,
};

use super::ring::{IncomingRing, OutgoingRing, RingPost};
use super::wire::ShmViolation;

/// One incarnation of a connection.
#[derive(Debug)]
pub(super) struct ShmConnection {
    pub(super) id: ConnId,
    pub(super) link: usize,
    pub(super) channel: Channel,
    /// The number of this opening among those of the channel.
    pub(super) index: u64,
    pub(super) outgoing: OutgoingRing,
    /// Writes that the peer must copy and has not finished, as far as this end knows, and posts that are done
    /// only after them. Declared after `outgoing`, whose drop keeps the peer from using these sources.
    pub(super) remote_copies: VecDeque<RemoteCopy>,
    /// The words copied so far of the peer's request at the front of its ring.
    pub(super) fetched: usize,
    /// The peer's ring; `None` until connected.
    pub(super) incoming: Option<IncomingRing>,
    receives: VecDeque<Receive>,
    /// The regions of the receives.
    regions: RegionSlab,
    /// Receives posted in total.
    receives_posted: u64,
    /// Posts that wait because the first of them found no receive; they keep their order [F1].
    pub(super) waiting: VecDeque<WaitingPost>,
    /// When the first of them began to wait, in nanoseconds.
    pub(super) waiting_since: u64,
}

/// Memory for one incoming send.
#[derive(Debug)]
struct Receive {
    /// The number of its region in `regions`.
    region: u32,
    range: Range<usize>,
    token: Token,
}

/// A post that waits.
#[derive(Debug)]
pub(super) enum WaitingPost {
    Write(WaitingWrite),
    Send { bytes: Box<[u8]>, signal: Option<Token> },
}

/// A write that waits: by reference as it was posted, by value as captured at post time [F5].
#[derive(Debug)]
pub(super) struct WaitingWrite {
    source: WaitingSource,
    grant: Grant,
    offset: usize,
    immediate: Option<u32>,
    signal: Option<Token>,
}

#[derive(Debug)]
enum WaitingSource {
    Region(Region, Range<usize>),
    Value(Box<[u64]>),
}

/// A write that the peer must copy, or a post after one.
#[derive(Debug)]
pub(super) struct RemoteCopy {
    /// It is done when the peer has consumed the ring up to here.
    pub(super) end: u64,
    pub(super) signal: Option<Token>,
    /// Held until then.
    pub(super) _source: Option<Region>,
}

/// How far the peer's posts were handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainOutcome {
    All,
    /// A send was longer than its receive: the connection breaks.
    TooLong,
    /// All posts before a write that this node must copy.
    UntilRemoteCopy,
}

impl ShmConnection {
    pub(super) fn new(id: ConnId, link: usize, channel: Channel, index: u64) -> std::io::Result<Self> {
        Ok(Self {
            id,
            link,
            channel,
            index,
            outgoing: OutgoingRing::new()?,
            remote_copies: VecDeque::new(),
            fetched: 0,
            incoming: None,
            receives: VecDeque::new(),
            regions: RegionSlab::default(),
            receives_posted: 0,
            waiting: VecDeque::new(),
            waiting_since: 0,
        })
    }

    /// Posts memory for one incoming post.
    pub(super) fn post_receive(
        &mut self,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        if self.receives.len() == RECEIVES_MAX {
            return Err(PostError::Full);
        }
        let region = self.regions.put(region);
        self.receives.push_back(Receive { region, range, token });
        self.receives_posted += 1;
        self.outgoing.publish_receives(self.receives_posted);
        Ok(())
    }

    /// Takes all the peer's posts, and yields an event for each.
    #[inline]
    pub(super) fn drain(&mut self, mut sink: impl FnMut(FabricEvent)) -> Result<DrainOutcome, ShmViolation> {
        let Some(incoming) = &mut self.incoming else { return Ok(DrainOutcome::All) };
        while let Some(post) = incoming.front()? {
            if matches!(post, RingPost::RemoteCopy { .. }) {
                return Ok(DrainOutcome::UntilRemoteCopy);
            }
            let Some(&Receive { region, ref range, token }) = self.receives.front() else {
                return Err(ShmViolation("a post for which there is no receive"));
            };
            let conn = self.id;
            let event = match post {
                RingPost::Send { bytes } if bytes > range.len() * 8 => return Ok(DrainOutcome::TooLong),
                RingPost::Send { bytes } => {
                    incoming.copy_to(bytes.div_ceil(8), self.regions.at(region), range.start);
                    FabricEvent::Received { conn, token, length: bytes }
                }
                RingPost::Immediate(immediate) => FabricEvent::Arrived { conn, token, immediate },
                RingPost::RemoteCopy { .. } => unreachable!("handled above"),
            };
            self.receives.pop_front();
            incoming.consume(post, &self.outgoing);
            self.regions.take(region);
            sink(event);
        }
        Ok(DrainOutcome::All)
    }

    /// Notes that the peer's write at the front has been copied; returns the event for it, if it has an
    /// immediate.
    pub(super) fn on_copied(&mut self, post: RingPost) -> Option<FabricEvent> {
        let (Some(incoming), RingPost::RemoteCopy { immediate, .. }) = (&mut self.incoming, post) else {
            unreachable!("only a request is copied")
        };
        self.fetched = 0;
        incoming.consume(post, &self.outgoing);
        let immediate = immediate?;
        let Receive { region, token, .. } = self.receives.pop_front().expect("checked before it was copied");
        self.regions.take(region);
        Some(FabricEvent::Arrived { conn: self.id, token, immediate })
    }

    /// Returns whether a receive is posted here.
    pub(super) fn has_receive(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Queues a post after the others.
    pub(super) fn wait(&mut self, post: WaitingPost, now_ns: u64) -> Result<(), PostError> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(PostError::Full);
        }
        if self.waiting.is_empty() {
            self.waiting_since = now_ns;
        }
        self.waiting.push_back(post);
        Ok(())
    }
}

impl WaitingWrite {
    pub(super) fn new(write: &Write<'_>) -> Self {
        let source = match &write.source {
            WriteSource::Region(region, range) => WaitingSource::Region((*region).clone(), range.clone()),
            WriteSource::Value(words) => WaitingSource::Value((*words).into()),
        };
        let Write { grant, offset, immediate, signal, .. } = *write;
        Self { source, grant: *grant, offset, immediate, signal }
    }

    /// Notes that the first `words` words are on their way.
    pub(super) fn advance(&mut self, words: usize) {
        self.offset += words;
        match &mut self.source {
            WaitingSource::Region(_, range) => range.start += words,
            WaitingSource::Value(value) => *value = value[words..].into(),
        }
    }

    pub(super) fn as_write(&self) -> Write<'_> {
        let source = match &self.source {
            WaitingSource::Region(region, range) => WriteSource::Region(region, range.clone()),
            WaitingSource::Value(words) => WriteSource::Value(words),
        };
        let Self { grant, offset, immediate, signal, .. } = self;
        Write { source, grant, offset: *offset, immediate: *immediate, signal: *signal }
    }
}

/// All connections of a node, by the number in their id.
#[derive(Debug, Default)]
pub(super) struct ShmConnections {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The number of incarnations that this slot has had.
    generation: u32,
    connection: Option<ShmConnection>,
}

impl ShmConnections {
    /// Returns an id that no connection has had.
    pub(super) fn reserve(&mut self) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[index].generation += 1;
        ConnId(u64::from(self.slots[index].generation) << 32 | index as u64)
    }

    pub(super) fn insert(&mut self, connection: ShmConnection) -> usize {
        let index = Self::index(connection.id);
        self.slots[index].connection = Some(connection);
        index
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<ShmConnection> {
        let connection = self.slots[index].connection.take()?;
        self.free.push(index);
        Some(connection)
    }

    /// Returns a reserved id unused.
    pub(super) fn release(&mut self, id: ConnId) {
        self.free.push(Self::index(id));
    }

    /// Returns whether the peer has posted something on the connection at `index`.
    #[inline]
    pub(super) fn has_post(&self, index: usize) -> bool {
        let connection = self.slots.get(index).and_then(|slot| slot.connection.as_ref());
        connection.and_then(|connection| connection.incoming.as_ref()).is_some_and(IncomingRing::has_post)
    }

    /// Returns the connection at `index`, if it still exists.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> Option<&mut ShmConnection> {
        self.slots[index].connection.as_mut()
    }

    /// Drops a region that no receive names.
    pub(super) fn forget(&mut self, region: &Region) {
        let connections = self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut());
        connections.for_each(|connection| connection.regions.forget(region));
    }

    /// Returns the index of the connection `id`, if it has not ended.
    ///
    /// # Panics
    /// Panics if there never was such a connection.
    #[inline]
    pub(super) fn find(&self, id: ConnId) -> Option<usize> {
        let index = Self::index(id);
        let slot = self.slots.get(index).filter(|slot| id.0 >> 32 <= u64::from(slot.generation));
        let slot = slot.unwrap_or_else(|| panic!("{id:?} was never opened here"));
        slot.connection.as_ref().is_some_and(|connection| connection.id == id).then_some(index)
    }

    fn index(id: ConnId) -> usize {
        (id.0 & 0xffff_ffff) as usize
    }
}

/// The most receives that a peer can have posted on one connection.
pub(super) const RECEIVES_MAX: usize = 1024;
/// The most posts that wait for a receive; protocols keep credits, so that none has to wait.
const WAITING_MAX: usize = 64;
