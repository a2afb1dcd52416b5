//! Remote copies: writes into memory that its owner has adopted, which the owner executes [F13].
//!
//! Other processes cannot map such memory, and the kernel's write into another process (`process_vm_writev`)
//! is not safe: a writer that is stopped between its check of the grant and the write would write after the
//! revocation [F9], and the owner could not move the memory away from it as it does with shared pages (see
//! `revocation`). So the owner fetches: the writer posts a *request* into the ring of the connection, and the
//! owner, in its poll,
//! 1. checks that its own grant is valid: a revocation takes effect with the call [F9];
//! 2. copies: short writes come with the request, the words of long ones are read from the writer's memory
//!    (`fetching`), in one poll only as many as take about the time of a system call for which others wait;
//! 3. checks that the writer is alive and has not ended the connection, since otherwise its memory may hold
//!    anything [F11];
//! 4. consumes the request, which shows the writer that it is done [F6], and yields the immediate's event
//!    [F7].
//!
//! Requests of one connection follow each other in its ring, like sends [F1]. A write that the writer's own
//! processor would store waits until all earlier requests are done. If the kernel does not let the owner read
//! the writer, long writes also come with their requests, in pieces: two copies instead of one.
//!
//! `Deviation:` (EXS §II.B) the sender's device writes into the receiver's memory there; here the receiver's process copies.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Once;

use squall_fabric::{BreakReason, FabricEvent, Grant, NodeId, Region, Write, WriteSource};

use super::ShmFabric;
use super::connection::{RemoteCopy, ShmConnection};
use super::fetching::PeerMemory;
use super::link::GRANTS_MAX;
use super::ring::{INLINE_WORDS_MAX, RemoteCopyRequest, RingPost};
use super::wire::{ProbeWord, ShmMessage, ShmViolation};
use super::writes::PostAttempt;

/// Grants of adopted memory that this node has issued to one peer, by key. There is no file to send: they are
/// plain data, and only the owner checks them.
pub(super) type AdoptedGrants = BTreeMap<u64, (Grant, Region)>;

/// Bytes that this node has copied for its peers, into memory that it has adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCopyCounters {
    /// Bytes read from the writer's memory: one copy.
    pub fetched_bytes: u64,
    /// Bytes through the ring of the connection, because they were few or the kernel does not let this
    /// process read the writer: two copies.
    pub relayed_bytes: u64,
}

/// That a peer's memory cannot be read is reported once.
static REPORTED: Once = Once::new();

/// What to do about a connection whose requests were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeOutcome {
    /// Continue: other posts may follow.
    On,
    /// More words must be fetched, in the next poll.
    Later,
    /// The connection has ended.
    Over,
}

/// How far the peer's request was served.
enum Served {
    Copied(Option<FabricEvent>),
    /// More words must be fetched, in the next poll.
    Unfinished,
    /// It ended the connection.
    Ended,
}

/// Returns whether a grant is over adopted memory.
#[inline]
pub(super) const fn is_adopted(grant: &Grant) -> bool {
    grant.key & ADOPTED != 0
}

// The writer's side.
impl ShmFabric {
    /// Posts requests to copy the words of a write, or as many of them as there is space for.
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

    /// Reports the writes that peers have copied by now.
    pub(super) fn collect_copied(&mut self) {
        for index in std::mem::take(&mut self.remote_copies) {
            match self.collect_copied_on(index) {
                Ok(true) => {}
                Ok(false) => self.remote_copies.push(index),
                Err(violation) => _ = self.end_by_violation(index, violation),
            }
        }
    }

    /// Same as [`ShmFabric::collect_copied`], for one connection; returns whether nothing is left.
    fn collect_copied_on(&mut self, index: usize) -> Result<bool, ShmViolation> {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.at(index) else { return Ok(true) };
        let Some(incoming) = &connection.incoming else { return Ok(true) };
        let consumed = connection.outgoing.consumed(incoming)?;
        let conn = connection.id;
        while let Some(copied) = connection.remote_copies.pop_front_if(|copy| copy.end <= consumed) {
            copied.signal.into_iter().for_each(|token| self.events.push_done(conn, token));
        }
        // Posts that wait for these could not be tried earlier.
        connection.waiting_since = now_ns;
        Ok(connection.remote_copies.is_empty())
    }

    /// Handles the peer's refusal of a write that it should have copied [F10].
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

// The owner's side.
impl ShmFabric {
    /// Issues a grant for `peer` to have words copied into `range` of an adopted region.
    pub(super) fn issue_adopted(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        region.check(&range);
        let link = self.link_to(peer);
        self.grants_issued += 1;
        let (first, words) = (range.start as u64, range.len() as u64);
        let (owner, key) = (self.node, ADOPTED | self.grants_issued);
        let grant = Grant { owner, peer, region: region.id(), first, words, key };
        let issued = &mut self.links[link].issued.adopted;
        assert!(issued.len() < GRANTS_MAX, "more than {GRANTS_MAX} grants to one peer (revoke some)");
        issued.insert(key, (grant, region.clone()));
        grant
    }

    /// Revokes a grant of adopted memory: nothing is copied under it any more.
    pub(super) fn take_back_adopted(&mut self, grant: &Grant) {
        // The grants of a removed peer went with it.
        if let Some(link) = self.links.find(grant.peer) {
            let issued = self.links[link].issued.adopted.remove(&grant.key);
            let is_it = issued.is_some_and(|(issued, _)| issued == *grant);
            assert!(is_it, "{grant:?} was not issued, or was revoked before");
        }
        self.events.push(FabricEvent::Revoked { grant: *grant });
    }

    /// Sets whether this node reads its peers' memory, where the kernel allows it, when it copies their
    /// writes; by default it does. Otherwise these words take two copies.
    pub fn set_fetching(&mut self, fetches: bool) {
        self.fetches = fetches;
        for link in self.links.numbers() {
            let link = &self.links[link];
            link.announce_fetching(fetches && link.memory.is_some());
        }
    }

    /// Sets the size in words from which on a write of this node remains in its memory for the owner to
    /// fetch. For tests.
    #[doc(hidden)]
    pub const fn set_fetched_words_min(&mut self, words: usize) {
        self.fetched_words_min = words;
    }

    /// Probes whether this node may read the peer's memory.
    pub(super) fn on_witness(&mut self, link: usize, witness: &ProbeWord) {
        match PeerMemory::of(witness) {
            Ok(memory) => {
                self.links[link].memory = Some(memory);
                self.links[link].announce_fetching(self.fetches);
            }
            Err(error) => {
                let peer = self.links[link].peer;
                REPORTED.call_once(|| {
                    crate::log::info!(%peer, %error, "a peer's memory cannot be read: writes into adopted memory take two copies");
                });
            }
        }
    }

    /// Returns what this node has copied for its peers so far.
    #[must_use]
    pub const fn remote_copies(&self) -> RemoteCopyCounters {
        self.copied
    }

    /// Serves the peer's requests at the front of a connection's ring until another post follows, or none.
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
                    // The writer may have parked, waiting for this.
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
        let RingPost::RemoteCopy { inline, immediate } = post else { unreachable!("checked by the caller") };
        let connection = self.connections.at(slot).expect("checked by the caller");
        if immediate.is_some() && !connection.has_receive() {
            return Err(ShmViolation("a post for which there is no receive"));
        }
        let request = connection.incoming.as_ref().expect("checked by the caller").request();
        let link = connection.link;
        let Some((target, first)) = admit(&self.links[link].issued.adopted, &request) else {
            self.refuse_peer(slot);
            return Ok(Served::Ended);
        };
        let words = usize::try_from(request.words).expect("admitted");
        if inline == words {
            let incoming = connection.incoming.as_ref().expect("checked by the caller");
            incoming.copy_inline_to(inline, &target, first);
            self.copied.relayed_bytes += 8 * words as u64;
        } else if inline != 0 {
            return Err(ShmViolation("a request with only some of its words"));
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
                crate::log::debug!(%peer, %error, "failed to fetch the words of a write: its connection breaks");
                false
            }
        }
    }

    /// Returns whether the writer's memory still held its words when they were fetched.
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

/// Returns the region and its word at which the request writes, if there is a valid grant for all of it.
fn admit(issued: &AdoptedGrants, request: &RemoteCopyRequest) -> Option<(Region, usize)> {
    let [key, region, first, words] = request.grant;
    let (grant, target) = issued.get(&key)?;
    let is_it = (grant.region.0, grant.first, grant.words) == (region, first, words);
    let end = request.offset.checked_add(request.words)?;
    let at = usize::try_from(first + request.offset.min(words)).ok()?;
    (is_it && end <= words).then(|| (target.clone(), at))
}

/// The bit of a key which shows that its grant is over adopted memory.
const ADOPTED: u64 = 1 << 63;
/// From this size on, 32 KiB, one copy by the kernel takes less time than two by two processors (measured:
/// docs/results/stream.md).
pub(super) const FETCHED_WORDS_MIN: usize = 4096;
/// The words that one poll fetches for one connection, 2 MiB: some hundred microseconds.
const FETCHED_WORDS_PER_POLL: usize = 1 << 18;
