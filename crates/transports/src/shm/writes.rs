//! One-sided writes: straight into the owner's memory, by the writer's own processor [F1–F6, F12].

use squall_fabric::atomics::{Ordering, compiler_fence, fence};
use squall_fabric::copy::Strategies;
use squall_fabric::{ConnId, Grant, PostError, Region, SEND_BYTES_MAX, Source, Token, Write};

use super::ShmFabric;
use super::connection::{Placing, Waiting, WaitingWrite};
use super::grants::{TakenGrant, serial, slot_of};
use super::link::Link;
use super::placing::is_adopted;
use super::ring::Post;
use super::wire::Violation;
use crate::clock::Clock;

/// What became of an attempt to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Posted,
    /// The first so many words are.
    Part(usize),
    /// Writes that the peer has to place come first.
    Behind,
    /// It consumes a receive, and the peer has posted none.
    NoReceive,
    Full,
    /// The post ended its connection.
    Ended,
}

/// What became of the words of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Placed,
    /// There is no such grant, or not any more.
    Refused,
    /// The grant is valid, but its pages have not arrived yet.
    PagesUnderWay,
}

impl ShmFabric {
    pub(super) fn post_write(&mut self, conn: ConnId, write: &Write<'_>) -> Result<(), PostError> {
        match &write.source {
            Source::Region(region, range) => region.check(range),
            Source::Value(words) => assert!(
                words.len() <= Source::VALUE_WORDS_MAX,
                "{} words by value, at most {}",
                words.len(),
                Source::VALUE_WORDS_MAX
            ),
        }
        let (index, is_free) = self.connected(conn)?;
        if is_free {
            match self.try_write(index, write) {
                Attempt::Posted | Attempt::Ended => return Ok(()),
                Attempt::Full => return Err(PostError::Full),
                Attempt::NoReceive | Attempt::Behind => {}
                Attempt::Part(words) => {
                    return self.wait(index, || {
                        let mut rest = WaitingWrite::new(write);
                        rest.advance(words);
                        Waiting::Write(rest)
                    });
                }
            }
        }
        self.wait(index, || Waiting::Write(WaitingWrite::new(write)))
    }

    pub(super) fn post_send(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        signal: Option<Token>,
    ) -> Result<(), PostError> {
        assert!(bytes.len() <= SEND_BYTES_MAX, "a send of {} bytes, at most {SEND_BYTES_MAX}", bytes.len());
        let (index, is_free) = self.connected(conn)?;
        if is_free {
            match self.try_send(index, bytes, signal) {
                Attempt::Posted | Attempt::Ended => return Ok(()),
                Attempt::Full => return Err(PostError::Full),
                Attempt::NoReceive | Attempt::Behind | Attempt::Part(_) => {}
            }
        }
        self.wait(index, || Waiting::Send { bytes: bytes.into(), signal })
    }

    /// Posts what waited for receives that are there now. Breaks the connections whose patience is over.
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
                Waiting::Write(write) => self.try_write(index, &write.as_write()),
                Waiting::Send { bytes, signal } => self.try_send(index, bytes, *signal),
            };
            match attempt {
                Attempt::Posted => {
                    let now_ns = self.now_ns();
                    let Some(connection) = self.connections.at(index) else { return false };
                    connection.waiting_since = now_ns;
                }
                Attempt::Ended => return false,
                Attempt::Part(_) | Attempt::Full | Attempt::NoReceive | Attempt::Behind => {
                    if let (Attempt::Part(words), Waiting::Write(write)) = (attempt, &mut post) {
                        write.advance(words);
                    }
                    let Some(connection) = self.connections.at(index) else { return false };
                    connection.waiting.push_front(post);
                    return true;
                }
            }
        }
    }

    /// Where the connection is, and whether nothing waits there.
    #[inline]
    fn connected(&mut self, conn: ConnId) -> Result<(usize, bool), PostError> {
        let index = self.connections.find(conn).ok_or(PostError::NotConnected)?;
        let connection = self.connections.at(index).filter(|connection| connection.incoming.is_some());
        let connection = connection.ok_or(PostError::NotConnected)?;
        Ok((index, connection.waiting.is_empty()))
    }

    fn wait(&mut self, index: usize, post: impl FnOnce() -> Waiting) -> Result<(), PostError> {
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
    fn try_write(&mut self, index: usize, write: &Write<'_>) -> Attempt {
        if is_adopted(write.grant) {
            return self.try_place(index, write);
        }
        if !self.connections.at(index).expect("connected").placing.is_empty() {
            return Attempt::Behind;
        }
        if write.signal.is_some() && self.events.is_full() {
            return Attempt::Full;
        }
        let post = write.immediate.map(Post::Immediate);
        match post.map_or(Ok(Attempt::Posted), |post| self.room_for(index, post)) {
            Ok(Attempt::Posted) => {}
            Ok(other) => return other,
            Err(violation) => return self.end_by_violation(index, violation),
        }
        let connection = self.connections.at(index).expect("connected");
        let (link, conn) = (connection.link, connection.id);
        let placement = self.place(link, write);
        // News of its end may have come with the pages of the grant.
        let Some(connection) = self.connections.at(index) else { return Attempt::Ended };
        match placement {
            Placement::Placed => {}
            Placement::PagesUnderWay => return Attempt::Full,
            Placement::Refused => {
                self.refuse(index);
                return Attempt::Ended;
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
        Attempt::Posted
    }

    fn try_send(&mut self, index: usize, bytes: &[u8], signal: Option<Token>) -> Attempt {
        if signal.is_some() && self.events.is_full() {
            return Attempt::Full;
        }
        let post = Post::Send { bytes: bytes.len() };
        match self.room_for(index, post) {
            Ok(Attempt::Posted) => {}
            Ok(other) => return other,
            Err(violation) => return self.end_by_violation(index, violation),
        }
        let connection = self.connections.at(index).expect("connected");
        let (link, conn) = (connection.link, connection.id);
        connection.outgoing.post(post, bytes);
        let behind = connection.placing.back().map(|last| last.end);
        match (signal, behind) {
            (Some(token), None) => self.events.push_done(conn, token),
            (Some(_), Some(end)) => connection.placing.push_back(Placing { end, signal, _source: None }),
            (None, _) => {}
        }
        self.links[link].announce_post();
        self.to_ring.insert(link);
        Attempt::Posted
    }

    /// Whether the peer has a receive and room for `post`: `Posted` stands for yes.
    #[inline]
    pub(super) fn room_for(&mut self, index: usize, post: Post) -> Result<Attempt, Violation> {
        let connection = self.connections.at(index).expect("connected");
        let incoming = connection.incoming.as_ref().expect("connected");
        if !connection.outgoing.has_receive(incoming) {
            return Ok(Attempt::NoReceive);
        }
        self.ring_room_for(index, post)
    }

    /// As [`ShmFabric::room_for`], for a post that needs no receive.
    pub(super) fn ring_room_for(&mut self, index: usize, post: Post) -> Result<Attempt, Violation> {
        let connection = self.connections.at(index).expect("connected");
        let incoming = connection.incoming.as_ref().expect("connected");
        Ok(if connection.outgoing.has_room(incoming, post)? { Attempt::Posted } else { Attempt::Full })
    }

    pub(super) fn end_by_violation(&mut self, index: usize, violation: Violation) -> Attempt {
        let link = self.connections.at(index).expect("connected").link;
        self.disconnect(link, violation);
        Attempt::Ended
    }

    /// Stores the words of a write where its grant says, if the grant is valid.
    #[inline]
    fn place(&mut self, link: usize, write: &Write<'_>) -> Placement {
        match store_words(&self.links[link], write, &mut self.strategies, self.clock) {
            Placement::PagesUnderWay => self.place_again(link, write),
            placement => placement,
        }
    }

    #[cold]
    fn place_again(&mut self, link: usize, write: &Write<'_>) -> Placement {
        // The pages were handed over before the grant was told to anybody: they wait in the socket.
        self.read_link(link);
        store_words(&self.links[link], write, &mut self.strategies, self.clock)
    }
}

/// Stores the words between two looks at the validity of the grant. The first keeps a writer whose grant is
/// revoked from storing; the second makes `Done` mean that the words were placed before the revocation [F10].
fn store_words(link: &Link, write: &Write<'_>, strategies: &mut Strategies, clock: Clock) -> Placement {
    let grant = write.grant;
    let slot = slot_of(grant.key);
    let Some(TakenGrant { target, validity, .. }) = link.taken.find(grant) else {
        return not_taken(link, grant);
    };
    let words = target.words();
    let fits = write.offset <= words && write.source.words() <= words - write.offset;
    if !fits {
        return Placement::Refused;
    }
    link.begin_write(slot);
    // SYNC: the mark of this write before the look: either we see the revocation, or the owner sees the mark, since it waits
    // before it looks.
    compiler_fence(Ordering::SeqCst);
    let found = link.validity(slot);
    if found != *validity {
        link.end_write();
        let moved = serial(found) == serial(*validity);
        return if moved { Placement::PagesUnderWay } else { Placement::Refused };
    }
    // SYNC: pairs with the acquiring loads of the owner: who sees a word of this write sees all earlier writes
    // of this connection [F1, F4]. On x86-64 it costs nothing.
    fence(Ordering::Release);
    copy_source(&write.source, target, write.offset, strategies, clock);
    if matches!(write.source, Source::Value(_)) {
        // Who writes few words mostly goes on behind them: then the line is here before the next write.
        target.prefetch_to_store(write.offset + write.source.words());
    }
    // SYNC: the words before the second look: either we see the revocation, or the owner sees the words.
    compiler_fence(Ordering::SeqCst);
    let placed = serial(link.validity(slot)) == serial(*validity);
    link.end_write();
    if placed { Placement::Placed } else { Placement::Refused }
}

/// A grant of which no page has come: it may be under way, else it does not exist.
#[cold]
fn not_taken(link: &Link, grant: &Grant) -> Placement {
    let slot = slot_of(grant.key);
    let exists = slot < super::link::GRANTS_MAX
        && serial(grant.key) != 0
        && serial(link.validity(slot)) == serial(grant.key)
        && !link.taken.has_key(grant.key);
    if exists { Placement::PagesUnderWay } else { Placement::Refused }
}

#[inline]
fn copy_source(
    source: &Source<'_>,
    target: &Region,
    offset: usize,
    strategies: &mut Strategies,
    clock: Clock,
) {
    match source {
        Source::Region(region, range) => {
            strategies.copy_words(target, offset, region, range.clone(), || clock.now());
        }
        Source::Value(words) => target.copy_in(offset, words),
    }
}
