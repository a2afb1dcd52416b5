//! Posting: turns a transfer into writes of words (EXS §II.B, write with immediate).
//!
//! RDMA writes bytes, but the fabric writes words. A piece whose source and target have the same alignment is written
//! in place: whole words by reference, and a partial last word by value, so that no byte beyond the piece leaves this
//! process. Any other piece is shifted through a staging buffer. `Deviation:` the word that holds the end of a piece
//! is written completely: bytes of the receive's memory after the received ones, up to the next word, become zeros.

use std::borrow::Borrow;
use std::collections::VecDeque;

use squall_fabric::{ConnId, Duration, Fabric, Grant, Instant, PostError, Region, Token, Write, WriteSource};

use super::SendId;
use super::copy::{copy_bytes, read};

/// A transfer that is being posted to the connection's queue. It borrows the send's memory unless it has to wait,
/// because a reference count costs as much as a write of a few words.
#[derive(Debug)]
pub(super) struct Posting<R = Region> {
    /// The send's memory, and the first byte of the piece there.
    pub(super) source: R,
    pub(super) from_byte: usize,
    /// The right to write, and the first byte of the piece within the granted range.
    pub(super) grant: Grant,
    pub(super) to_byte: usize,
    pub(super) length: usize,
    /// The bytes before the piece in its first word; 0 if they are irrelevant.
    pub(super) before: u64,
    pub(super) immediate: u32,
    /// The send that this transfer completes, if any.
    pub(super) ends: Option<SendId>,
    /// The number of words posted; at most [`Posting::words`].
    pub(super) posted: usize,
}

/// The connection to post on, with its pending completions.
pub(super) struct PostContext<'a, F> {
    pub(super) fabric: &'a mut F,
    pub(super) conn: ConnId,
    pub(super) signals: &'a mut PostSignals,
    pub(super) staging: &'a mut ShiftBuffer,
}

impl Posting<&Region> {
    /// Converts it into a posting that owns its memory.
    pub(super) fn into_owned(self) -> Posting {
        let source = self.source.clone();
        let Self { from_byte, grant, to_byte, length, before, immediate, ends, posted, .. } = self;
        Posting { source, from_byte, grant, to_byte, length, before, immediate, ends, posted }
    }
}

impl<R: Borrow<Region>> Posting<R> {
    fn source(&self) -> &Region {
        self.source.borrow()
    }

    /// Returns the number of bytes before the piece in its first word.
    fn lead(&self) -> usize {
        self.to_byte % 8
    }

    /// Returns the total number of words that are written.
    fn words(&self) -> usize {
        if self.length == 0 { 0 } else { (self.lead() + self.length).div_ceil(8) }
    }

    /// Returns whether it consists of whole words at both ends.
    fn is_whole(&self) -> bool {
        (self.from_byte | self.to_byte | self.length).is_multiple_of(8)
    }

    /// Posts as much as there is space for; returns true when everything is posted.
    #[inline]
    pub(super) fn post<F: Fabric>(&mut self, wire: &mut PostContext<'_, F>) -> Result<bool, PostError> {
        loop {
            let left = self.words() - self.posted;
            if left <= WriteSource::VALUE_WORDS_MAX {
                self.post_last(wire, left)?;
                return Ok(true);
            }
            if self.from_byte % 8 == self.lead() {
                self.post_in_place(wire)?;
                if self.posted == self.words() {
                    return Ok(true);
                }
            } else if !self.post_staged(wire)? {
                return Ok(false);
            }
        }
    }

    /// Posts the last few words by value, with the immediate.
    #[inline]
    fn post_last<F: Fabric>(&mut self, wire: &mut PostContext<'_, F>, count: usize) -> Result<(), PostError> {
        let mut words = [0; WriteSource::VALUE_WORDS_MAX];
        if self.is_whole() {
            self.source().copy_out(self.from_byte / 8 + self.posted, &mut words[..count]);
        } else {
            words[..count].iter_mut().zip(self.posted..).for_each(|(word, at)| *word = self.word(at));
        }
        let signal = self.ends.map(|_| wire.signals.next_token());
        self.write(wire, WriteSource::Value(&words[..count]), true, signal)?;
        if let Some(send) = self.ends {
            let signal = PostSignal { placed: Some(send), ..PostSignal::default() };
            // After a large piece it would measure the time of that piece.
            match self.posted {
                0 => wire.signals.expect_small(wire.fabric, signal),
                _ => wire.signals.expect(signal),
            }
        }
        self.posted += count;
        Ok(())
    }

    /// Posts all whole words by reference, with the immediate if no partial word is left.
    fn post_in_place<F: Fabric>(&mut self, wire: &mut PostContext<'_, F>) -> Result<(), PostError> {
        let whole = (self.lead() + self.length) / 8;
        let is_all = whole == self.words();
        let first = self.from_byte / 8;
        let signal = self.ends.filter(|_| is_all).map(|_| wire.signals.next_token());
        let source = WriteSource::Region(self.source(), first + self.posted..first + whole);
        self.write(wire, source, is_all, signal)?;
        if let Some(send) = self.ends.filter(|_| is_all) {
            wire.signals.expect(PostSignal { placed: Some(send), ..PostSignal::default() });
        }
        self.posted = whole;
        Ok(())
    }

    /// Shifts some words into the staging buffer and posts them from there; returns false if the buffer is full.
    fn post_staged<F: Fabric>(&mut self, wire: &mut PostContext<'_, F>) -> Result<bool, PostError> {
        let staging = wire.staging.region(wire.fabric).clone();
        let space = wire.staging.free_space();
        // The last word may be partial, so `post_last` posts it.
        let count = space.min(self.words() - self.posted - 1);
        if count == 0 {
            return Ok(false);
        }
        let first = wire.staging.next();
        staging.store_relaxed(first, self.word(self.posted));
        let from = self.from_byte + 8 * (self.posted + 1) - self.lead();
        copy_bytes(&staging, 8 * (first + 1), self.source(), from, 8 * (count - 1));
        let token = wire.signals.next_token();
        self.write(wire, WriteSource::Region(&staging, first..first + count), false, Some(token))?;
        wire.signals.expect(PostSignal { staged: count, ..PostSignal::default() });
        wire.staging.take(count);
        self.posted += count;
        Ok(true)
    }

    /// Returns word number `at` of the written words.
    fn word(&self, at: usize) -> u64 {
        let lead = self.lead();
        if at == 0 {
            return self.before
                | read(self.source(), self.from_byte, self.length.min(8 - lead)) << (8 * lead);
        }
        let skipped = 8 * at - lead;
        read(self.source(), self.from_byte + skipped, (self.length - skipped).min(8))
    }

    #[inline]
    fn write<F: Fabric>(
        &self,
        wire: &mut PostContext<'_, F>,
        source: WriteSource<'_>,
        is_last: bool,
        signal: Option<Token>,
    ) -> Result<(), PostError> {
        let offset = self.to_byte / 8 + self.posted;
        let immediate = is_last.then_some(self.immediate);
        wire.fabric.write(wire.conn, Write { source, grant: &self.grant, offset, immediate, signal })
    }
}

/// The posts whose completion is awaited, in order [F6].
#[derive(Debug, Default)]
pub(super) struct PostSignals {
    waiting: VecDeque<PostSignal>,
    /// The token of the first of them.
    first: u64,
    /// The post whose round trip is measured, and the time at which it was made.
    probe: Option<(Token, Instant)>,
}

/// The interval of measured small posts; the first post is measured.
const PROBE_INTERVAL: u64 = 64;

/// The effects of the completion of a post.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PostSignal {
    /// This send, and all before it, are in the peer's memory.
    pub(super) placed: Option<SendId>,
    /// The number of words of the staging buffer that become free.
    pub(super) staged: usize,
    /// The peer knows that this end has received the end of its stream.
    pub(super) has_answered_end: bool,
}

impl PostSignals {
    /// Returns the token of the next signalled post.
    pub(super) fn next_token(&self) -> Token {
        Token(self.first + self.waiting.len() as u64)
    }

    /// Records that the post with [`PostSignals::next_token`] was accepted and is small, so that its round trip may
    /// be measured.
    #[inline]
    pub(super) fn expect_small<F: Fabric>(&mut self, fabric: &F, signal: PostSignal) {
        if self.probe.is_none() && self.next_token().0.is_multiple_of(PROBE_INTERVAL) {
            self.probe = Some((self.next_token(), fabric.now()));
        }
        self.expect(signal);
    }

    /// Returns whether a measured post is in flight.
    pub(super) fn awaits_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Returns the round trip of the measured post, if `token` is its completion.
    pub(super) fn round_trip<F: Fabric>(&mut self, fabric: &F, token: Token) -> Option<Duration> {
        let (probe, begin) = self.probe.filter(|(probe, _)| probe.0 <= token.0)?;
        self.probe = None;
        // A later completion that covers it does not give its own time.
        (probe == token).then(|| fabric.now().since(begin))
    }

    /// Records that the post with [`PostSignals::next_token`] was accepted.
    pub(super) fn expect(&mut self, signal: PostSignal) {
        self.waiting.push_back(signal);
    }

    /// Takes the effects of the next post that the completion of `token` covers. A completion covers all earlier
    /// posts, so the caller repeats this until `None`.
    pub(super) fn take(&mut self, token: Token) -> Option<PostSignal> {
        if self.first > token.0 {
            return None;
        }
        let signal = self.waiting.pop_front()?;
        self.first += 1;
        Some(signal)
    }
}

/// A ring of words from which shifted pieces are written. It is allocated when it is first needed.
#[derive(Debug, Default)]
pub(super) struct ShiftBuffer {
    region: Option<Region>,
    /// The words taken and freed since the beginning; `freed <= taken <= freed + STAGING_WORDS`.
    taken: usize,
    freed: usize,
}

/// The size of the buffer, which keeps the network busy while the next words are shifted.
const STAGING_WORDS: usize = 1 << 13;

impl ShiftBuffer {
    fn region<F: Fabric>(&mut self, fabric: &mut F) -> &Region {
        self.region.get_or_insert_with(|| fabric.register(STAGING_WORDS))
    }

    /// Returns the number of contiguous free words, at most half the buffer, so that shifting and writing overlap.
    fn free_space(&self) -> usize {
        let free = STAGING_WORDS - (self.taken - self.freed);
        free.min(STAGING_WORDS - self.next()).min(STAGING_WORDS / 2)
    }

    fn next(&self) -> usize {
        self.taken % STAGING_WORDS
    }

    fn take(&mut self, words: usize) {
        self.taken += words;
    }

    /// Frees the oldest words, which have been written.
    pub(super) fn free(&mut self, words: usize) {
        self.freed += words;
    }
}

/// The last bytes of the stream, for pieces that begin within a word of their target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentBytes {
    /// The last bytes of the stream; the most significant byte is the last one.
    last: u64,
}

impl RecentBytes {
    /// Returns the last `count` bytes, fewer than 8, with the oldest as the least significant.
    pub(super) fn last(self, count: usize) -> u64 {
        if count == 0 { 0 } else { self.last >> (64 - 8 * count) }
    }

    /// Records sent bytes.
    pub(super) fn add(&mut self, source: &Region, from_byte: usize, length: usize) {
        let count = length.min(8);
        if count == 0 {
            return;
        }
        let bytes = read(source, from_byte + length - count, count);
        self.last = if count == 8 { bytes } else { self.last >> (8 * count) | bytes << (64 - 8 * count) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    #[test]
    fn history_holds_the_last_bytes() {
        let region = Region::heap(RegionId(1), 4);
        region.copy_bytes_in(0, &(0..32).collect::<Vec<u8>>());
        let (mut history, mut sent) = (RecentBytes::default(), 0_usize);
        for length in [3, 1, 8, 2, 7, 9, 0, 1] {
            history.add(&region, sent, length);
            sent += length;
            for count in 0..8.min(sent + 1) {
                let mut expected = [0; 8];
                (0..count).for_each(|i| expected[i] = (sent - count + i) as u8);
                assert_eq!(history.last(count).to_le_bytes(), expected, "{count} of {sent}");
            }
        }
    }

    #[test]
    fn a_completion_covers_all_earlier_posts() {
        let mut signals = PostSignals::default();
        for send in 0..3 {
            assert_eq!(signals.next_token(), Token(send));
            signals.expect(PostSignal { placed: Some(SendId(send)), ..PostSignal::default() });
        }
        let mut taken = Vec::new();
        while let Some(signal) = signals.take(Token(1)) {
            taken.extend(signal.placed);
        }
        assert_eq!(taken, [SendId(0), SendId(1)]);
        assert_eq!(signals.next_token(), Token(3));
    }
}
