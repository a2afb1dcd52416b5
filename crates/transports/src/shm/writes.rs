//! One-sided writes: stores directly into the owner's memory, by the writer's own processor [F1–F6, F12].

use squall_fabric::atomics::{Ordering, compiler_fence, fence};
use squall_fabric::copy::CopyStrategies;
use squall_fabric::{ConnId, Grant, PostError, Region, SEND_BYTES_MAX, Token, Write, WriteSource};

use super::ShmFabric;
use super::connection::{RemoteCopy, WaitingPost, WaitingWrite};
use super::grants::{ReceivedGrant, serial, slot_of};
use super::link::ShmLink;
use super::remote_copy::is_adopted;
use super::ring::RingPost;
use super::wire::ShmViolation;
use crate::clock::Clock;

/// The outcome of an attempt to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostAttempt {
    Posted,
    /// Only this many words, the first ones, are posted.
    Part(usize),
    /// Earlier writes that the peer must copy come first.
    Behind,
    /// It consumes a receive, and the peer has posted none.
    NoReceive,
    Full,
    /// The post ended its connection.
    Ended,
}

/// The outcome of storing the words of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreOutcome {
    Stored,
    /// There is no such grant, or no longer.
    Refused,
    /// The grant is valid, but its pages have not arrived yet.
    PagesUnderWay,
}

impl ShmFabric {
    pub(super) fn post_write(&mut self, conn: ConnId, write: &Write<'_>) -> Result<(), PostError> {
        match &write.source {
            WriteSource::Region(region, range) => region.check(range),
            WriteSource::Value(words) => assert!(
                words.len() <= WriteSource::VALUE_WORDS_MAX,
                "{} words by value, but at most {} are allowed",
                words.len(),
                WriteSource::VALUE_WORDS_MAX
            ),
        }
        let (index, is_free) = self.connected(conn)?;
        if is_free {
            match self.try_write(index, write) {
                PostAttempt::Posted | PostAttempt::Ended => return Ok(()),
                PostAttempt::Full => return Err(PostError::Full),
                PostAttempt::NoReceive | PostAttempt::Behind => {}
                PostAttempt::Part(words) => {
                    return self.wait(index, || {
                        let mut rest = WaitingWrite::new(write);
                        rest.advance(words);
                        WaitingPost::Write(rest)
                    });
                }
            }
        }
        self.wait(index, || WaitingPost::Write(WaitingWrite::new(write)))
    }

    pub(super) fn post_send(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        signal: Option<Token>,
    ) -> Result<(), PostError> {
        assert!(
            bytes.len() <= SEND_BYTES_MAX,
            "a send of {} bytes, but at most {SEND_BYTES_MAX} are allowed",
            bytes.len()
        );
        let (index, is_free) = self.connected(conn)?;
        if is_free {
            match self.try_send(index, bytes, signal) {
                PostAttempt::Posted | PostAttempt::Ended => return Ok(()),
                PostAttempt::Full => return Err(PostError::Full),
                PostAttempt::NoReceive | PostAttempt::Behind | PostAttempt::Part(_) => {}
            }
        }
        self.wait(index, || WaitingPost::Send { bytes: bytes.into(), signal })
    }

    /// Posts what waited for receives that are available now.
    pub(super) fn retry_waiting(&mut self) {
        for index in std::mem::take(&mut self.waiting) {
            if self.retry_connection(index) {
                self.waiting.push(index);
            }
        }
    }

    /// Posts what waits on one connection, in order; returns whether some is left.
    fn retry_connection(&mut self, index: usize) -> bool {
        loop {
            let Some(connection) = self.connections.at(index) else { return false };
            let Some(mut post) = connection.waiting.pop_front() else { return false };
            let attempt = match &post {
                WaitingPost::Write(write) => self.try_write(index, &write.as_write()),
                WaitingPost::Send { bytes, signal } => self.try_send(index, bytes, *signal),
            };
            match attempt {
                PostAttempt::Posted => {
                    let now_ns = self.now_ns();
                    let Some(connection) = self.connections.at(index) else { return false };
                    connection.waiting_since = now_ns;
                }
                PostAttempt::Ended => return false,
                PostAttempt::Part(_) | PostAttempt::Full | PostAttempt::NoReceive | PostAttempt::Behind => {
                    if let (PostAttempt::Part(words), WaitingPost::Write(write)) = (attempt, &mut post) {
                        write.advance(words);
                    }
                    let Some(connection) = self.connections.at(index) else { return false };
                    connection.waiting.push_front(post);
                    return true;
                }
            }
        }
    }

    /// Returns the index of the connection, and whether nothing waits there.
    #[inline]
    fn connected(&mut self, conn: ConnId) -> Result<(usize, bool), PostError> {
        let index = self.connections.find(conn).ok_or(PostError::NotConnected)?;
        let connection = self.connections.at(index).filter(|connection| connection.incoming.is_some());
        let connection = connection.ok_or(PostError::NotConnected)?;
        Ok((index, connection.waiting.is_empty()))
    }

    fn wait(&mut self, index: usize, post: impl FnOnce() -> WaitingPost) -> Result<(), PostError> {
        let now_ns = self.now_ns();
        let connection = self.connections.at(index).expect("connected");
        let first = connection.waiting.is_empty();
        connection.wait(post(), now_ns)?;
        if first {
            self.waiting.push(index);
        }
        Ok(())
    }

    #[inline]
    fn try_write(&mut self, index: usize, write: &Write<'_>) -> PostAttempt {
        if is_adopted(write.grant) {
            return self.try_remote_copy(index, write);
        }
        if !self.connections.at(index).expect("connected").remote_copies.is_empty() {
            return PostAttempt::Behind;
        }
        if write.signal.is_some() && self.events.is_full() {
            return PostAttempt::Full;
        }
        let post = write.immediate.map(RingPost::Immediate);
        match post.map_or(Ok(PostAttempt::Posted), |post| self.space_for(index, post)) {
            Ok(PostAttempt::Posted) => {}
            Ok(other) => return other,
            Err(violation) => return self.end_by_violation(index, violation),
        }
        let connection = self.connections.at(index).expect("connected");
        let (link, conn) = (connection.link, connection.id);
        let outcome = self.store_words(link, write);
        // A notice of its end may have arrived with the pages of the grant.
        let Some(connection) = self.connections.at(index) else { return PostAttempt::Ended };
        match outcome {
            StoreOutcome::Stored => {}
            StoreOutcome::PagesUnderWay => return PostAttempt::Full,
            StoreOutcome::Refused => {
                self.refuse(index);
                return PostAttempt::Ended;
            }
        }
        if let Some(post) = post {
            connection.outgoing.post(post, &[]);
            self.links[link].announce_post();
        }
        self.to_ring.insert(link);
        if let Some(token) = write.signal {
            self.events.push_done(conn, token);
        }
        PostAttempt::Posted
    }

    fn try_send(&mut self, index: usize, bytes: &[u8], signal: Option<Token>) -> PostAttempt {
        if signal.is_some() && self.events.is_full() {
            return PostAttempt::Full;
        }
        let post = RingPost::Send { bytes: bytes.len() };
        match self.space_for(index, post) {
            Ok(PostAttempt::Posted) => {}
            Ok(other) => return other,
            Err(violation) => return self.end_by_violation(index, violation),
        }
        let connection = self.connections.at(index).expect("connected");
        let (link, conn) = (connection.link, connection.id);
        connection.outgoing.post(post, bytes);
        let behind = connection.remote_copies.back().map(|last| last.end);
        match (signal, behind) {
            (Some(token), None) => self.events.push_done(conn, token),
            (Some(_), Some(end)) => {
                connection.remote_copies.push_back(RemoteCopy { end, signal, _source: None })
            }
            (None, _) => {}
        }
        self.links[link].announce_post();
        self.to_ring.insert(link);
        PostAttempt::Posted
    }

    /// Returns whether the peer has a receive and space for `post`; `Posted` means that it has both.
    #[inline]
    pub(super) fn space_for(&mut self, index: usize, post: RingPost) -> Result<PostAttempt, ShmViolation> {
        let connection = self.connections.at(index).expect("connected");
        let incoming = connection.incoming.as_ref().expect("connected");
        if !connection.outgoing.has_receive(incoming) {
            return Ok(PostAttempt::NoReceive);
        }
        self.ring_space_for(index, post)
    }

    /// Same as [`ShmFabric::space_for`], for a post that needs no receive.
    pub(super) fn ring_space_for(
        &mut self,
        index: usize,
        post: RingPost,
    ) -> Result<PostAttempt, ShmViolation> {
        let connection = self.connections.at(index).expect("connected");
        let incoming = connection.incoming.as_ref().expect("connected");
        Ok(if connection.outgoing.has_space(incoming, post)? {
            PostAttempt::Posted
        } else {
            PostAttempt::Full
        })
    }

    pub(super) fn end_by_violation(&mut self, index: usize, violation: ShmViolation) -> PostAttempt {
        let link = self.connections.at(index).expect("connected").link;
        self.disconnect(link, violation);
        PostAttempt::Ended
    }

    /// Stores the words of a write where its grant says, if the grant is valid.
    #[inline]
    fn store_words(&mut self, link: usize, write: &Write<'_>) -> StoreOutcome {
        match store_words(&self.links[link], write, &mut self.strategies, self.clock) {
            StoreOutcome::PagesUnderWay => self.place_again(link, write),
            outcome => outcome,
        }
    }

    #[cold]
    fn place_again(&mut self, link: usize, write: &Write<'_>) -> StoreOutcome {
        // The owner sends the pages before it announces the grant: they are in the socket.
        self.read_link(link);
        store_words(&self.links[link], write, &mut self.strategies, self.clock)
    }
}

/// Stores the words between two checks of the grant's validity. The first keeps a writer whose grant is
/// revoked from storing; because of the second, `Done` means that the words landed before the revocation
/// [F10].
fn store_words(
    link: &ShmLink,
    write: &Write<'_>,
    strategies: &mut CopyStrategies,
    clock: Clock,
) -> StoreOutcome {
    let grant = write.grant;
    let slot = slot_of(grant.key);
    let Some(ReceivedGrant { target, validity, .. }) = link.received.find(grant) else {
        return not_taken(link, grant);
    };
    let words = target.words();
    let fits = write.offset <= words && write.source.words() <= words - write.offset;
    if !fits {
        return StoreOutcome::Refused;
    }
    link.begin_write(slot);
    // SYNC: orders the mark of this write before the check: either this node sees the revocation, or the
    // owner sees the mark, since it waits before it looks.
    compiler_fence(Ordering::SeqCst);
    let found = link.validity(slot);
    if found != *validity {
        link.end_write();
        let moved = serial(found) == serial(*validity);
        return if moved { StoreOutcome::PagesUnderWay } else { StoreOutcome::Refused };
    }
    // SYNC: pairs with the acquire loads of the owner: a reader that sees a word of this write sees all
    // earlier writes of this connection [F1, F4]. On x86-64 it costs nothing.
    fence(Ordering::Release);
    copy_source(&write.source, target, write.offset, strategies, clock);
    if matches!(write.source, WriteSource::Value(_)) {
        // A writer of few words usually continues after them: then the cache line is here before the next
        // write.
        target.prefetch_to_store(write.offset + write.source.words());
    }
    // SYNC: orders the words before the second check: either this node sees the revocation, or the owner sees
    // the words.
    compiler_fence(Ordering::SeqCst);
    let is_valid = serial(link.validity(slot)) == serial(*validity);
    link.end_write();
    if is_valid { StoreOutcome::Stored } else { StoreOutcome::Refused }
}

/// Handles a grant of which no pages have arrived: they may be in flight; otherwise the grant does not exist.
#[cold]
fn not_taken(link: &ShmLink, grant: &Grant) -> StoreOutcome {
    let slot = slot_of(grant.key);
    let exists = slot < super::link::GRANTS_MAX
        && serial(grant.key) != 0
        && serial(link.validity(slot)) == serial(grant.key)
        && !link.received.has_key(grant.key);
    if exists { StoreOutcome::PagesUnderWay } else { StoreOutcome::Refused }
}

#[inline]
fn copy_source(
    source: &WriteSource<'_>,
    target: &Region,
    offset: usize,
    strategies: &mut CopyStrategies,
    clock: Clock,
) {
    match source {
        WriteSource::Region(region, range) => {
            strategies.copy_words(target, offset, region, range.clone(), || clock.now());
        }
        WriteSource::Value(words) => target.copy_in(offset, words),
    }
}
