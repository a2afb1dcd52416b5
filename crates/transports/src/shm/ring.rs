//! The ring of posts: the posts from one end of a connection to the other, which consume receives [F7].
//!
//! Each end of a connection owns one page range that only it writes and the other reads: the ring of its
//! posts, how far it has consumed the other's ring, and how many receives it has posted. An end posts nothing
//! for which no receive is waiting at the other, so a ring never stalls; posts that must wait, wait at their
//! sender. A write that its reader must copy (`remote_copy`) needs a receive only if it has an immediate.
//!
//! **Announcement.** A post's header, which is never 0, announces it: the word after a post is cleared before
//! its header is stored with release, so a reader that finds a header finds either 0 or the next header after
//! the post. So a waiting reader polls one word, and a short post costs one cache line; no counter must be
//! fetched first.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use squall_fabric::atomics::{Ordering, fence};
use squall_fabric::region::Access;
use squall_fabric::{Region, SEND_BYTES_MAX, WriteSource};

use super::memory::{INTERNAL, ShmSegment, map_peer_file};
use super::wire::ShmViolation;

/// A post in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingPost {
    /// A two-sided send of this many bytes.
    Send { bytes: usize },
    /// The immediate value of a write that has landed.
    Immediate(u32),
    /// A write that the reader must copy: a request, and this many words of it, unless the reader fetches
    /// them.
    RemoteCopy { inline: usize, immediate: Option<u32> },
}

/// The request of a [`RingPost::RemoteCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteCopyRequest {
    /// The grant's key, region, first word and words.
    pub(super) grant: [u64; 4],
    /// Where to write, counted from the beginning of the granted range.
    pub(super) offset: u64,
    pub(super) words: u64,
    /// Where the words are in the writer's memory; meaningless if they come with the request.
    pub(super) address: u64,
}

/// An end's own page range and its posts.
#[derive(Debug)]
pub(super) struct OutgoingRing {
    segment: Arc<ShmSegment>,
    page: Region,
    /// Words posted in total: head_seen <= tail < head_seen + RING_WORDS. The word at `tail` is 0.
    tail: u64,
    /// Words that the peer had consumed at the last check.
    head_seen: u64,
    /// Posts in total that consume a receive: posts <= receives_seen.
    posts: u64,
    /// Receives that the peer had posted at the last check.
    receives_seen: u64,
}

/// The peer's page range and how far its ring has been consumed.
#[derive(Debug)]
pub(super) struct IncomingRing {
    page: Region,
    /// Words consumed in total: head <= tail of the peer.
    head: u64,
}

impl OutgoingRing {
    pub(super) fn new() -> std::io::Result<Self> {
        let segment = ShmSegment::new(PAGE_WORDS)?;
        segment.seal_for_readers()?;
        let page = segment.region(INTERNAL, PAGE_WORDS);
        Ok(Self { segment, page, tail: 0, head_seen: 0, posts: 0, receives_seen: 0 })
    }

    /// Returns the segment whose file is sent to the peer.
    pub(super) fn segment(&self) -> &Arc<ShmSegment> {
        &self.segment
    }

    /// Returns whether a receive is waiting at the peer for one more post.
    #[inline]
    pub(super) fn has_receive(&mut self, peer: &IncomingRing) -> bool {
        if self.posts == self.receives_seen {
            self.receives_seen = peer.page.load(RECEIVES).max(self.receives_seen);
        }
        self.posts < self.receives_seen
    }

    /// Returns whether there is space for `post`.
    #[inline]
    pub(super) fn has_space(&mut self, peer: &IncomingRing, post: RingPost) -> Result<bool, ShmViolation> {
        // One more for the cleared word after it.
        let needed = self.tail + post.words() + 1;
        if needed > self.head_seen + RING_WORDS {
            let head = peer.page.load(HEAD);
            if head < self.head_seen || head > self.tail {
                return Err(ShmViolation("a count of consumed posts that were never made"));
            }
            self.head_seen = head;
        }
        Ok(needed <= self.head_seen + RING_WORDS)
    }

    /// Posts, after `has_receive` and `has_space`; `bytes` are those of a send, otherwise empty.
    #[inline]
    pub(super) fn post(&mut self, post: RingPost, bytes: &[u8]) {
        let begin = RING + place(self.tail);
        self.page.store_relaxed(RING + place(self.tail + post.words()), 0);
        if !bytes.is_empty() {
            let (first, rest) = bytes.split_at(bytes.len().min((RING_SIZE - place(self.tail + 1)) * 8));
            self.page.copy_bytes_in(RING + place(self.tail + 1), first);
            self.page.copy_bytes_in(RING, rest);
        }
        self.tail += post.words();
        self.posts += u64::from(post.needs_receive());
        // SYNC: pairs with the acquire load in `IncomingRing::front`.
        self.page.store(begin, post.header());
    }

    /// Posts a request to copy a write, with `inline` words of `source` from its word `skip`; after
    /// `has_space`, and after `has_receive` if it has an immediate. Returns the count of words at which it
    /// ends.
    pub(super) fn post_request(
        &mut self,
        post: RingPost,
        request: &RemoteCopyRequest,
        source: &WriteSource<'_>,
        skip: usize,
    ) -> u64 {
        let RingPost::RemoteCopy { inline, .. } = post else { unreachable!("a request") };
        self.put(self.tail + 1, &WriteSource::Value(&request.to_words()), 0, REQUEST_WORDS);
        self.put(self.tail + 1 + REQUEST_WORDS as u64, source, skip, inline);
        self.post(post, &[]);
        self.tail
    }

    /// Stores words of `source` at the ring's word number `at`.
    fn put(&self, at: u64, source: &WriteSource<'_>, skip: usize, words: usize) {
        let begin = place(at);
        let until_wrap = words.min(RING_SIZE - begin);
        for (to, from, words) in
            [(RING + begin, skip, until_wrap), (RING, skip + until_wrap, words - until_wrap)]
        {
            match source {
                WriteSource::Region(region, range) => {
                    let from = range.start + from;
                    self.page.copy_words_wide(to, region, from..from + words);
                }
                WriteSource::Value(value) => self.page.copy_in(to, &value[from..from + words]),
            }
        }
    }

    /// Returns the count of words that the peer has consumed: the writes in them are copied.
    pub(super) fn consumed(&self, peer: &IncomingRing) -> Result<u64, ShmViolation> {
        // SYNC: pairs with the release store in `IncomingRing::consume`.
        let head = peer.page.load(HEAD);
        if head > self.tail {
            Err(ShmViolation("a count of consumed posts that were never made"))
        } else {
            Ok(head)
        }
    }

    /// Announces to the peer how many receives have been posted here.
    #[inline]
    pub(super) fn publish_receives(&self, count: u64) {
        self.page.store(RECEIVES, count);
    }
}

impl IncomingRing {
    /// Maps the peer's page range.
    pub(super) fn new(file: &OwnedFd) -> Result<Self, ShmViolation> {
        Ok(Self { page: map_peer_file(file, 0, PAGE_WORDS as u64, Access::ReadOnly)?, head: 0 })
    }

    /// Returns whether there is a post.
    #[inline]
    pub(super) fn has_post(&self) -> bool {
        self.page.load_relaxed(RING + place(self.head)) != 0
    }

    /// Returns the next post, if there is one. A peer that sends a wrong length exposes only its own words,
    /// at most as many as the longest send has.
    #[inline]
    pub(super) fn front(&self) -> Result<Option<RingPost>, ShmViolation> {
        // Loaded once, so that the checked value is the one used. SYNC: pairs with the release store in
        // `OutgoingRing::post`.
        let header = self.page.load(RING + place(self.head));
        if header == 0 { Ok(None) } else { RingPost::from_header(header).map(Some) }
    }

    /// Copies the words of the send at the front to `target`.
    pub(super) fn copy_to(&self, words: usize, target: &Region, first: usize) {
        self.copy_from(self.head + 1, words, target, first);
    }

    /// Returns the request at the front.
    pub(super) fn request(&self) -> RemoteCopyRequest {
        let word = |i: u64| self.page.load_relaxed(RING + place(self.head + 1 + i));
        RemoteCopyRequest::from_words([0, 1, 2, 3, 4, 5, 6].map(word))
    }

    /// Copies the words that came with the request at the front to `target`.
    pub(super) fn copy_inline_to(&self, words: usize, target: &Region, first: usize) {
        self.copy_from(self.head + 1 + REQUEST_WORDS as u64, words, target, first);
    }

    /// Returns whether the peer has ended the connection: its memory may then hold anything.
    pub(super) fn has_ended(&self) -> bool {
        // SYNC: pairs with the fence in `OutgoingRing::drop`: a reader that has read what its user stored
        // later sees this, too.
        fence(Ordering::Acquire);
        self.page.load(ENDED) != 0
    }

    fn copy_from(&self, at: u64, words: usize, target: &Region, first: usize) {
        let begin = place(at);
        let until_wrap = words.min(RING_SIZE - begin);
        target.copy_words_wide(first, &self.page, RING + begin..RING + begin + until_wrap);
        target.copy_words_wide(first + until_wrap, &self.page, RING..RING + words - until_wrap);
    }

    /// Returns the space of the front post to the peer.
    #[inline]
    pub(super) fn consume(&mut self, post: RingPost, own: &OutgoingRing) {
        self.head += post.words();
        own.page.store(HEAD, self.head);
    }
}

impl Drop for OutgoingRing {
    /// Marks the connection as ended: the peer must not deliver what it still has to fetch, since this memory
    /// belongs to the user again.
    fn drop(&mut self) {
        self.page.store(ENDED, 1);
        fence(Ordering::SeqCst);
    }
}

impl RemoteCopyRequest {
    const fn to_words(self) -> [u64; REQUEST_WORDS] {
        let [key, region, first, words] = self.grant;
        [key, region, first, words, self.offset, self.words, self.address]
    }

    const fn from_words(words: [u64; REQUEST_WORDS]) -> Self {
        let [key, region, first, granted, offset, words, address] = words;
        Self { grant: [key, region, first, granted], offset, words, address }
    }
}

impl RingPost {
    /// Returns whether it consumes a receive.
    const fn needs_receive(self) -> bool {
        !matches!(self, Self::RemoteCopy { immediate: None, .. })
    }

    /// Returns the number of words that it takes in the ring.
    #[inline]
    const fn words(self) -> u64 {
        match self {
            Self::Send { bytes } => 1 + bytes.div_ceil(8) as u64,
            Self::Immediate(_) => 1,
            Self::RemoteCopy { inline, .. } => (1 + REQUEST_WORDS + inline) as u64,
        }
    }

    const fn header(self) -> u64 {
        match self {
            Self::Send { bytes } => (bytes as u64) << 8 | SEND,
            Self::Immediate(value) => (value as u64) << 8 | IMMEDIATE,
            Self::RemoteCopy { inline, immediate: None } => (inline as u64) << 40 | REMOTE_COPY,
            Self::RemoteCopy { inline, immediate: Some(value) } => {
                (inline as u64) << 40 | (value as u64) << 8 | REMOTE_COPY_WITH_IMMEDIATE
            }
        }
    }

    fn from_header(header: u64) -> Result<Self, ShmViolation> {
        let value = header >> 8;
        match header & 0xff {
            SEND if value <= SEND_BYTES_MAX as u64 => Ok(Self::Send { bytes: value as usize }),
            IMMEDIATE => match u32::try_from(value) {
                Ok(value) => Ok(Self::Immediate(value)),
                Err(_) => Err(ShmViolation("an immediate of more than 32 bits")),
            },
            kind @ (REMOTE_COPY | REMOTE_COPY_WITH_IMMEDIATE) => {
                let inline = (value >> 32) as usize;
                if inline > INLINE_WORDS_MAX {
                    return Err(ShmViolation("a request with more words than allowed"));
                }
                let immediate =
                    (kind == REMOTE_COPY_WITH_IMMEDIATE).then_some((value & u64::from(u32::MAX)) as u32);
                Ok(Self::RemoteCopy { inline, immediate })
            }
            _ => Err(ShmViolation("an unknown kind of post")),
        }
    }
}

/// Returns the place in the ring of word number `count` of all words posted.
const fn place(count: u64) -> usize {
    (count % RING_WORDS) as usize
}

// The page range: words of different purpose are in separate cache lines; the ring follows.
/// Words of the other's ring consumed in total.
pub(super) const HEAD: usize = 0;
/// Not 0 if this end of the connection has ended.
const ENDED: usize = 8;
/// Receives posted in total.
pub(super) const RECEIVES: usize = 16;
pub(super) const RING: usize = 32;
/// Space for the longest send, twice.
const RING_SIZE: usize = 2 * SEND_BYTES_MAX / 8;
const RING_WORDS: u64 = RING_SIZE as u64;
pub(super) const PAGE_WORDS: usize = RING + RING_SIZE;
const _: () = assert!(RING_SIZE > 2 + SEND_BYTES_MAX / 8, "the longest send fits");

pub(super) const SEND: u64 = 1;
pub(super) const IMMEDIATE: u64 = 2;
pub(super) const REMOTE_COPY: u64 = 3;
pub(super) const REMOTE_COPY_WITH_IMMEDIATE: u64 = 4;
const REQUEST_WORDS: usize = 7;
/// The most words that come with one request: several such requests fit the ring, so one is copied in while
/// another is copied out.
pub(super) const INLINE_WORDS_MAX: usize = RING_SIZE / 8;
