//! Remote copies: writes into memory that its owner has adopted, which the owner executes [F13].
//!
//! Such memory cannot be mapped by others, and the kernel's write into another process (`process_vm_writev`) is no way to
//! it: a writer that is stopped between its look at the grant and the write would write after the revocation [F9], and
//! the owner could not move the memory away from it as it does with shared pages (see `revocation`). So the owner
//! fetches: the writer posts a *request* into the ring of the connection, and the owner, in its poll,
//! 1. looks whether its own grant is valid: a revocation holds from the call on [F9];
//! 2. copies: short writes come with the request, the words of long ones are read from the writer's memory
//!    (`fetching`), as many in one poll as take about the time of a system call that others wait for;
//! 3. looks whether the writer lives and has not ended the connection, since else its memory holds anything [F11];
//! 4. consumes the request, which tells the writer that it is done [F6], and shows the immediate's event [F7].
//!
//! Requests of one connection follow each other in its ring, like sends [F1]. A write that the writer's own processor
//! would store waits until all requests before it are placed. Where the kernel lets the owner not read the writer, long
//! writes come with their requests too, in pieces: two copies instead of one.

use std::collections::BTreeMap;
use std::ops::Range;

use squall_fabric::{BreakReason, FabricEvent, Grant, NodeId, Region, Write, WriteSource};

use super::ShmFabric;
use super::connection::{RemoteCopy, ShmConnection};
use super::fetching::PeerMemory;
use super::link::GRANTS_MAX;
use super::ring::{INLINE_WORDS_MAX, RemoteCopyRequest, RingPost};
use super::wire::{ProbeWord, ShmMessage, ShmViolation};
use super::writes::PostAttempt;

/// Grants over adopted memory that this node gave to one peer, by key. There is nothing to hand over: they are plain
/// data, and the owner alone checks them.
pub(super) type AdoptedGrants = BTreeMap<u64, (Grant, Region)>;

/// Bytes that this node has placed for its peers, in memory that it has adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCopyCounters {
    /// Read from the writer's memory: one copy.
    pub fetched_bytes: u64,
    /// Through the ring of the connection, because they were few or the kernel lets this process not read the writer:
    /// two copies.
    pub relayed_bytes: u64,
}

/// What to do about a connection whose requests were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeOutcome {
    /// Other posts may be there.
    On,
    /// There is more to fetch, in the next poll.
    Later,
    /// The connection has ended.
    Over,
}

/// What became of the peer's request.
enum Served {
    Copied(Option<FabricEvent>),
    /// There is more to fetch, in the next poll.
    Unfinished,
    /// It ended the connection.
    Ended,
}

/// Whether a grant is over adopted memory.
#[inline]
pub(super) const fn is_adopted(grant: &Grant) -> bool {
    grant.key & ADOPTED != 0
}

// The writer.
impl ShmFabric {
    /// Posts a request to place the words of a write, or as many of them as there is space for.
    #[cold]
    pub(super) fn try_remote_copy(&mut self, index: usize, write: &Write<'_>) -> PostAttempt {
        if write.signal.is_some() && self.events.is_full() {
            return PostAttempt::Full;
        }
        let words = write.source.words();
        let link = self.connections.at(index).expect("connected").link;
        let is_fetched = words >= self.fetched_words_min && self.links[link].peer_fetches();
        let piece_max = if is_fetched { words } else { INLINE_WORDS_MAX };
        let mut posted = 0;
        loop {
            let piece = (words - posted).min(piece_max);
            let is_last = posted + piece == words;
            let immediate = write.immediate.filter(|_| is_last);
            let inline = if is_fetched { 0 } else { piece };
            let post = RingPost::RemoteCopy { inline, immediate };
            let space = match immediate {
                Some(_) => self.space_for(index, post),
                None => self.ring_space_for(index, post),
            };
            match space {
                Ok(PostAttempt::Posted) => {}
                Ok(_) if posted > 0 => return PostAttempt::Part(posted),
                Ok(other) => return other,
                Err(violation) => return self.end_by_violation(index, violation),
            }
            let connection = self.connections.at(index).expect("connected");
            let request = request(write, posted, piece);
            let end = connection.outgoing.post_request(post, &request, &write.source, posted);
            let source = match &write.source {
                WriteSource::Region(region, _) if is_fetched => Some((*region).clone()),
                _ => None,
            };
            let signal = write.signal.filter(|_| is_last);
            if connection.remote_copies.is_empty() {
                self.remote_copies.push(index);
            }
            connection.remote_copies.push_back(RemoteCopy { end, signal, _source: source });
            self.links[link].announce_post();
            self.to_ring.insert(link);
            posted += piece;
            if is_last {
                return PostAttempt::Posted;
            }
        }
    }

    /// Yields what peers have placed by now.
    pub(super) fn collect_copied(&mut self) {
        for index in std::mem::take(&mut self.remote_copies) {
            match self.collect_copied_on(index) {
                Ok(true) => {}
                Ok(false) => self.remote_copies.push(index),
                Err(violation) => _ = self.end_by_violation(index, violation),
            }
        }
    }

    /// As [`ShmFabric::collect_copied`], of one connection; returns whether nothing is left.
    fn collect_copied_on(&mut self, index: usize) -> Result<bool, ShmViolation> {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.at(index) else { return Ok(true) };
        let Some(incoming) = &connection.incoming else { return Ok(true) };
        let consumed = connection.outgoing.consumed(incoming)?;
        let conn = connection.id;
        while let Some(copied) = connection.remote_copies.pop_front_if(|copy| copy.end <= consumed) {
            copied.signal.into_iter().for_each(|token| self.events.push_done(conn, token));
        }
        // What waits for these could not go before.
        connection.waiting_since = now_ns;
        Ok(connection.remote_copies.is_empty())
    }

    /// The peer has refused a write that it should have placed [F10].
    pub(super) fn on_refused(&mut self, link: usize, channel: u32, index: u64) -> Result<(), ShmViolation> {
        let Some(slot) = self.end_of_peer(link, channel, index)? else { return Ok(()) };
        self.collect_copied_on(slot)?;
        let Some(conn) = self.connections.at(slot).map(|connection| connection.id) else { return Ok(()) };
        self.end(slot, FabricEvent::Refused { conn });
        Ok(())
    }
}

fn request(write: &Write<'_>, posted: usize, words: usize) -> RemoteCopyRequest {
    let Grant { key, region, first, words: granted, .. } = *write.grant;
    let address = match &write.source {
        WriteSource::Region(region, range) => region.pointer(range.start + posted).as_ptr().addr() as u64,
        WriteSource::Value(_) => 0,
    };
    let offset = (write.offset as u64).saturating_add(posted as u64);
    RemoteCopyRequest { grant: [key, region.0, first, granted], offset, words: words as u64, address }
}

// The owner.
impl ShmFabric {
    /// Gives `peer` the right to have words placed in `range` of an adopted region.
    pub(super) fn issue_adopted(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        region.check(&range);
        let link = self.link_to(peer);
        self.grants_issued += 1;
        let (first, words) = (range.start as u64, range.len() as u64);
        let (owner, key) = (self.node, ADOPTED | self.grants_issued);
        let grant = Grant { owner, peer, region: region.id(), first, words, key };
        let issued = &mut self.links[link].issued.adopted;
        assert!(issued.len() < GRANTS_MAX, "at most {GRANTS_MAX} grants to one peer: revoke some");
        issued.insert(key, (grant, region.clone()));
        grant
    }

    /// Takes a grant over adopted memory back: nothing is placed under it any more.
    pub(super) fn take_back_adopted(&mut self, grant: &Grant) {
        // With a peer that was removed its grants went, too.
        if let Some(link) = self.links.find(grant.peer) {
            let issued = self.links[link].issued.adopted.remove(&grant.key);
            let is_it = issued.is_some_and(|(issued, _)| issued == *grant);
            assert!(is_it, "{grant:?} was not given, or was revoked before");
        }
        self.events.push(FabricEvent::Revoked { grant: *grant });
    }

    /// Whether this node reads its peers' memory, where the kernel lets it, when it places their writes. It does unless it
    /// is told not to; then these words take the way of two copies.
    pub fn set_fetching(&mut self, fetches: bool) {
        self.fetches = fetches;
        for link in self.links.numbers() {
            let link = &self.links[link];
            link.announce_fetching(fetches && link.memory.is_some());
        }
    }

    /// From how many words on a write of this node is left in its memory for the owner to fetch. For tests.
    #[doc(hidden)]
    pub const fn set_fetched_words_min(&mut self, words: usize) {
        self.fetched_words_min = words;
    }

    /// Tries whether this node may read the peer's memory.
    pub(super) fn on_witness(&mut self, link: usize, witness: &ProbeWord) {
        match PeerMemory::of(witness) {
            Ok(memory) => {
                self.links[link].memory = Some(memory);
                self.links[link].announce_fetching(self.fetches);
            }
            Err(error) => {
                let peer = self.links[link].peer;
                tracing::debug!(%peer, %error, "its memory cannot be read: writes into adopted memory take two copies");
            }
        }
    }

    /// What this node has placed for its peers so far.
    #[must_use]
    pub const fn remote_copies(&self) -> RemoteCopyCounters {
        self.copied
    }

    /// Serves the peer's requests at the front of a connection's ring until another post is there, or none.
    #[cold]
    pub(super) fn serve_requests(
        &mut self,
        slot: usize,
        sink: &mut dyn FnMut(FabricEvent),
    ) -> Result<ServeOutcome, ShmViolation> {
        let mut budget = FETCHED_WORDS_PER_POLL;
        loop {
            let Some(connection) = self.connections.at(slot) else { return Ok(ServeOutcome::Over) };
            let link = connection.link;
            let Some(incoming) = &connection.incoming else { return Ok(ServeOutcome::Over) };
            let Some(post @ RingPost::RemoteCopy { .. }) = incoming.front()? else {
                return Ok(ServeOutcome::On);
            };
            match self.serve(slot, post, &mut budget)? {
                Served::Copied(event) => {
                    // It may have parked, waiting for this.
                    self.to_ring.insert(link);
                    event.into_iter().for_each(&mut *sink);
                }
                Served::Unfinished => {
                    self.links[link].look_again = true;
                    return Ok(ServeOutcome::Later);
                }
                Served::Ended => return Ok(ServeOutcome::Over),
            }
        }
    }

    fn serve(&mut self, slot: usize, post: RingPost, budget: &mut usize) -> Result<Served, ShmViolation> {
        let RingPost::RemoteCopy { inline, immediate } = post else { unreachable!("the caller has looked") };
        let connection = self.connections.at(slot).expect("the caller has looked");
        if immediate.is_some() && !connection.has_receive() {
            return Err(ShmViolation("a post for which there is no receive"));
        }
        let request = connection.incoming.as_ref().expect("the caller has looked").request();
        let link = connection.link;
        let Some((target, first)) = admit(&self.links[link].issued.adopted, &request) else {
            self.refuse_peer(slot);
            return Ok(Served::Ended);
        };
        let words = usize::try_from(request.words).expect("admitted");
        if inline == words {
            let incoming = connection.incoming.as_ref().expect("the caller has looked");
            incoming.copy_inline_to(inline, &target, first);
            self.copied.relayed_bytes += 8 * words as u64;
        } else if inline != 0 {
            return Err(ShmViolation("a request with some of its words"));
        } else if connection.fetched < words {
            let fetched = connection.fetched;
            let piece = (words - fetched).min(*budget);
            *budget -= piece;
            let address = request.address.wrapping_add(8 * fetched as u64);
            if !self.fetch(link, address, (&target, first + fetched), piece) {
                self.break_connection(slot, BreakReason::Unreachable);
                return Ok(Served::Ended);
            }
            let connection = self.connections.at(slot).expect("it was there");
            connection.fetched += piece;
            if connection.fetched < words {
                return Ok(Served::Unfinished);
            }
        }
        let is_good = inline == words || self.writer_stands(slot);
        let connection = self.connections.at(slot).expect("it was there");
        if !is_good {
            self.break_connection(slot, BreakReason::PeerClosed);
            return Ok(Served::Ended);
        }
        Ok(Served::Copied(connection.on_copied(post)))
    }

    fn fetch(&mut self, link: usize, address: u64, (target, first): (&Region, usize), words: usize) -> bool {
        let Some(memory) = &self.links[link].memory else { return false };
        match memory.fetch(address, target, first, words) {
            Ok(()) => {
                self.copied.fetched_bytes += 8 * words as u64;
                true
            }
            Err(error) => {
                let peer = self.links[link].peer;
                tracing::debug!(%peer, %error, "a write's words cannot be fetched: its connection breaks");
                false
            }
        }
    }

    /// Whether the writer's memory held its words when they were fetched.
    fn writer_stands(&mut self, slot: usize) -> bool {
        let Some(ShmConnection { link, incoming: Some(incoming), .. }) = self.connections.at(slot) else {
            return false;
        };
        !incoming.has_ended() && self.links[*link].memory.as_ref().is_some_and(|memory| memory.is_alive())
    }

    /// Refuses the peer's request at the front and ends the connection [F10].
    fn refuse_peer(&mut self, slot: usize) {
        let Some(connection) = self.connections.at(slot) else { return };
        let ShmConnection { id: conn, link, channel, index, .. } = *connection;
        self.send_message(link, ShmMessage::Refused { channel: channel.0, index }, None);
        self.end(slot, FabricEvent::Broken { conn, reason: BreakReason::Refused });
    }
}

/// The region and its word at which the request writes, if there is a valid grant for all of it.
fn admit(issued: &AdoptedGrants, request: &RemoteCopyRequest) -> Option<(Region, usize)> {
    let [key, region, first, words] = request.grant;
    let (grant, target) = issued.get(&key)?;
    let is_it = (grant.region.0, grant.first, grant.words) == (region, first, words);
    let end = request.offset.checked_add(request.words)?;
    let at = usize::try_from(first + request.offset.min(words)).ok()?;
    (is_it && end <= words).then(|| (target.clone(), at))
}

/// The bit of a key that says that its grant is over adopted memory.
const ADOPTED: u64 = 1 << 63;
/// From here on, 32 KiB, one copy by the kernel takes less time than two by two processors (measured: docs/results/stream.md).
pub(super) const FETCHED_WORDS_MIN: usize = 4096;
/// What one poll fetches for one connection, 2 MiB: some hundred microseconds.
const FETCHED_WORDS_PER_POLL: usize = 1 << 18;
