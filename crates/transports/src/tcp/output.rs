//! Output: the queue of what is to be sent to one peer, in post order, and of what it may need again.
//!
//! Headers and short payloads are copied when they are posted; long payloads are referenced and read when the
//! kernel takes them [F5]. One `sendmsg` gathers as much as it can of both.
//!
//! **Positions.** The words of a stream, headers and payloads, are numbered from 0, by both ends alike; no frame carries the number \[C1\].
//! The queue holds the words `kept..end` \[C2\]: those that the peer is not known to have *handled*. Which of them a socket has taken does not
//! matter: what a kernel has acknowledged can vanish unread. `next` is the first word that the present connection has not taken; only a
//! connection that is opened again moves it back, to what the peer says that it has handled \[C7, C15\]. A peer whose connection cannot be opened
//! again needs nothing twice: what its socket has taken is dropped.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;

use squall_fabric::{Region, mutant};

use super::file_pages::{self, FilePiece};
use super::frame::{HEADER_WORDS, TcpFrame, mirror_header};
use super::mutation;
use super::socket::IoPiece;

/// The queue of one stream.
///
/// **Order.** The stream is the copied words, with each reference inserted at its place among them.
#[derive(Debug)]
pub(super) struct OutputQueue {
    /// Headers and short payloads; `base` copied words of the stream were before the first.
    copied: Vec<u64>,
    base: u64,
    /// Payloads by reference that are kept, ascending in `at`.
    references: VecDeque<Reference>,
    /// The words of all references of the stream.
    referenced: u64,
    /// The first word that is kept, and how many copied words of the stream are before it: `base <= kept.copied`.
    kept: Kept,
    next: Cursor,
    /// The rest of a word whose beginning the kernel has taken: it must end with the bytes of the same value,
    /// whatever its owner stores meanwhile [F3]. Sent before everything else.
    split: Split,
    /// The last frame, if it is a single word of a mirror.
    tail: Option<Tail>,
    /// Whether output other than acknowledgements is queued.
    has_posts: bool,
    /// Whether the peer may need again what a socket has taken.
    keeps_sent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    position: u64,
    copied: u64,
}

/// The first byte that is not sent.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// How many copied bytes of the stream are before it.
    copied: u64,
    /// How many of the references that are kept are before it, and how many bytes of the one after these.
    passed: usize,
    part: usize,
}

/// Words that are read when they are sent.
#[derive(Debug)]
struct Reference {
    /// How many copied words of the stream precede it.
    at: u64,
    /// The position of its first word.
    position: u64,
    region: Region,
    words: Range<usize>,
}

#[derive(Debug, Default)]
struct Split {
    bytes: [u8; 8],
    /// The bytes that are not sent yet: `start <= end <= 8`.
    rest: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Tail {
    attachment: u32,
    word: u32,
    /// How many copied bytes of the stream precede the frame.
    at: u64,
}

impl OutputQueue {
    /// Returns an empty queue. `keeps_sent`: what a socket has taken is kept until the peer has handled it.
    pub(super) fn new(keeps_sent: bool) -> Self {
        Self {
            copied: Vec::new(),
            base: 0,
            references: VecDeque::new(),
            referenced: 0,
            kept: Kept::default(),
            next: Cursor::default(),
            split: Split::default(),
            tail: None,
            has_posts: false,
            keeps_sent,
        }
    }

    /// Returns whether everything is sent.
    pub(super) fn is_empty(&self) -> bool {
        self.next.copied == 8 * self.copied_end()
            && self.next.passed == self.references.len()
            && self.split.rest.is_empty()
    }

    /// Returns whether output other than acknowledgements is queued.
    pub(super) fn has_posts(&self) -> bool {
        self.has_posts
    }

    /// Returns whether posts on connections must wait.
    pub(super) fn is_full(&self) -> bool {
        self.unsent_bytes() >= POSTED_BYTES_MAX
            || self.references.len() - self.next.passed >= POSTED_REFERENCES_MAX
            || self.kept_bytes() >= KEPT_BYTES_MAX
    }

    /// Returns whether the peer is too slow to be kept: even the windows of the protocols should never queue
    /// this much.
    pub(super) fn is_overrun(&self) -> bool {
        self.kept_bytes() >= QUEUE_BYTES_MAX || self.references.len() >= QUEUE_REFERENCES_MAX
    }

    /// Queues a frame without payload, or the header of one with payload.
    pub(super) fn push_frame(&mut self, frame: TcpFrame) {
        self.has_posts = true;
        self.push_answer(frame);
    }

    /// Queues a frame that acknowledges or answers what arrived.
    pub(super) fn push_answer(&mut self, frame: TcpFrame) {
        let (words, count) = frame.encode();
        self.tail = None;
        self.copied.extend_from_slice(&words[..count]);
    }

    /// Queues a payload by value.
    pub(super) fn push_words(&mut self, words: &[u64]) {
        self.copied.extend_from_slice(words);
    }

    /// Queues a payload of bytes, padded with zeros to whole words.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.copied.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
    }

    /// Queues a payload by reference, or copies it if that is cheaper.
    pub(super) fn push_range(&mut self, region: &Region, range: Range<usize>) {
        if range.len() < REFERENCE_WORDS_MIN {
            let start = self.copied.len();
            self.copied.resize(start + range.len(), 0);
            region.copy_out(range.start, &mut self.copied[start..]);
        } else {
            let (at, position) = (self.copied_end(), self.end());
            self.referenced += range.len() as u64;
            self.references.push_back(Reference { at, position, region: region.clone(), words: range });
        }
    }

    /// Same as [`OutputQueue::push_range`], for a region that may be a file.
    pub(super) fn push_source(&mut self, region: &Region, range: Range<usize>) {
        match file_pages::piece(region, 8 * range.start..8 * range.end) {
            Some(_) if range.len() < REFERENCE_WORDS_MIN => {
                let start = self.copied.len();
                self.copied.resize(start + range.len(), 0);
                file_pages::copy_out(region, range.start, &mut self.copied[start..]);
            }
            _ => self.push_range(region, range),
        }
    }

    /// Queues a range of a mirror for the peer's attachment `attachment`.
    pub(super) fn push_mirror(&mut self, attachment: u32, region: &Region, range: Range<usize>) {
        (self.tail, self.has_posts) = (None, true);
        self.copied.extend_from_slice(&mirror_header(attachment, narrow(range.start), narrow(range.len())));
        self.push_range(region, range);
    }

    /// Queues one word of a mirror by value; returns whether that made a new frame.
    ///
    /// If the last frame is the same word and sending it has not begun, the value replaces the older one:
    /// nothing is between the two, so a reader that polls rarely could see no difference [M1].
    pub(super) fn push_mirror_word(&mut self, attachment: u32, word: u32, value: u64) -> bool {
        if let Some(tail) = self.tail
            && (tail.attachment, tail.word) == (attachment, word)
            && (tail.at >= self.next.copied || mutant!(ReplaceBegun))
        {
            *self.copied.last_mut().expect("the frame at the tail") = value;
            return false;
        }
        (self.tail, self.has_posts) = (Some(Tail { attachment, word, at: 8 * self.copied_end() }), true);
        let [head, tail] = mirror_header(attachment, word, 1);
        self.copied.extend_from_slice(&[head, tail, value]);
        true
    }

    /// Returns all that is to be sent, if it is one piece of copied bytes: the usual case of small messages.
    pub(super) fn plain(&self) -> Option<&[u8]> {
        let plain = self.references.len() == self.next.passed && self.split.rest.is_empty();
        plain.then(|| self.copied_slice(self.next.copied..8 * self.copied_end()))
    }

    /// Returns the bytes to send next, if they are a piece of a file.
    pub(super) fn next_file(&self) -> Option<FilePiece<'_>> {
        let reference = self.references.get(self.next.passed)?;
        let is_next = self.split.rest.is_empty() && 8 * reference.at == self.next.copied;
        is_next.then(|| reference.file_piece(self.next.part)).flatten()
    }

    /// Returns whether the next payload by reference is a piece of a file.
    pub(super) fn has_file(&self) -> bool {
        let next = self.references.get(self.next.passed);
        next.is_some_and(|reference| reference.file_piece(self.next.part).is_some())
    }

    /// Collects the memory to send next, up to the first piece of a file; returns the number of pieces. They are valid until the next
    /// change.
    pub(super) fn gather(&self, pieces: &mut [IoPiece]) -> usize {
        let mut count = 0;
        let mut add = |start: NonNull<u8>, length: usize| {
            if length > 0 && count < pieces.len() {
                pieces[count] = IoPiece::new(start, length);
                count += 1;
            }
        };
        let split = &self.split.bytes[self.split.rest.clone()];
        add(NonNull::from(split).cast(), split.len());
        let Cursor { copied: mut next, passed, mut part } = self.next;
        for reference in self.references.range(passed..).take(PIECES_MAX) {
            let copied = self.copied_slice(next..8 * reference.at);
            add(NonNull::from(copied).cast(), copied.len());
            next = 8 * reference.at;
            if reference.file_piece(part).is_some() {
                return count;
            }
            add(reference.start(part), reference.bytes() - part);
            part = 0;
        }
        if self.references.len() - passed <= PIECES_MAX {
            let copied = self.copied_slice(next..8 * self.copied_end());
            add(NonNull::from(copied).cast(), copied.len());
        }
        count
    }

    /// Notes that the kernel has taken the first `sent` bytes of what `gather` collected.
    pub(super) fn advance(&mut self, sent: usize) {
        let split = sent.min(self.split.rest.len());
        self.split.rest.start += split;
        let mut rest = sent - split;
        while rest > 0 {
            let copied = rest.min(self.copied_before_reference());
            self.next.copied += copied as u64;
            rest -= copied;
            if rest == 0 {
                break;
            }
            let reference = self.references.get(self.next.passed).expect("no more is sent than was gathered");
            let taken = rest.min(reference.bytes() - self.next.part);
            self.next.part += taken;
            rest -= taken;
            if !self.next.part.is_multiple_of(8) {
                self.split = reference.split(self.next.part);
                self.next.part = self.next.part.next_multiple_of(8);
            }
            self.pass_reference();
        }
        self.on_taken();
    }

    /// Takes the next words, by value, as many as `target` has space for; returns their number. A caller that takes words in this way must
    /// never use [`OutputQueue::gather`], so no word is split.
    pub(super) fn take_words(&mut self, target: &mut [u64]) -> usize {
        let mut taken = 0;
        while taken < target.len() {
            let copied = (self.copied_before_reference() / 8).min(target.len() - taken);
            let first = usize::try_from(self.next.copied / 8 - self.base).expect("in memory");
            target[taken..taken + copied].copy_from_slice(&self.copied[first..first + copied]);
            self.next.copied += 8 * copied as u64;
            taken += copied;
            let reference = self.references.get(self.next.passed);
            let Some(reference) = reference.filter(|reference| 8 * reference.at == self.next.copied) else {
                break;
            };
            let done = self.next.part / 8;
            let part = (reference.words.len() - done).min(target.len() - taken);
            reference.copy_out(done, &mut target[taken..taken + part]);
            self.next.part += 8 * part;
            taken += part;
            self.pass_reference();
        }
        self.on_taken();
        taken
    }

    /// Drops everything; nothing more will be sent.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.keeps_sent);
    }

    /// Returns the position of the word after the last one that is posted.
    pub(super) fn end(&self) -> u64 {
        self.copied_end() + self.referenced
    }

    /// Returns the position of the first word of which the present connection has taken nothing.
    pub(super) fn next(&self) -> u64 {
        let reference = self.references.get(self.next.passed);
        let referenced = reference.map_or(self.referenced, |next| next.position - next.at);
        self.next.copied.div_ceil(8) + referenced + (self.next.part / 8) as u64
    }

    /// Returns the position of the first word that is kept.
    pub(super) fn kept(&self) -> u64 {
        self.kept.position
    }

    /// Drops what is before `position`: the peer has handled it. What is dropped already stays so.
    ///
    /// # Panics
    /// Panics if the present connection has not taken all of it.
    pub(super) fn trim(&mut self, position: u64) {
        assert!(position <= self.next(), "nothing is handled that was not sent");
        if position <= self.kept.position {
            return;
        }
        while self.references.front().is_some_and(|front| front.end() <= position) {
            self.references.pop_front();
            self.next.passed -= 1;
        }
        let copied = match self.references.front() {
            Some(front) if front.position < position => front.at,
            Some(front) => position - (front.position - front.at),
            None => position - self.referenced,
        };
        self.kept = Kept { position, copied };
        self.reclaim();
    }

    /// Continues at `position`, for a new connection, which has taken nothing \[C15\]: what the peer has handled is dropped, and what it has not
    /// is sent again.
    ///
    /// # Panics
    /// Panics unless `kept <= position <= next`.
    pub(super) fn resume_at(&mut self, position: u64) {
        assert!(self.kept.position <= position, "what was handled is not needed again");
        self.trim(position);
        let begun = self.references.front().map_or(0, |front| position.saturating_sub(front.position));
        let part = 8 * usize::try_from(begun).expect("in memory");
        self.next = Cursor { copied: 8 * self.kept.copied, passed: 0, part };
        self.split = Split::default();
        self.has_posts = !self.is_empty();
    }

    /// Returns how many copied bytes are sent before the next reference.
    fn copied_before_reference(&self) -> usize {
        let until = self.references.get(self.next.passed).map_or(self.copied_end(), |next| next.at);
        usize::try_from(8 * until - self.next.copied).expect("in memory")
    }

    /// Passes over the next reference if it is sent.
    fn pass_reference(&mut self) {
        if self.references.get(self.next.passed).is_some_and(|next| next.bytes() == self.next.part) {
            (self.next.passed, self.next.part) = (self.next.passed + 1, 0);
        }
    }

    /// Notes that output was taken.
    fn on_taken(&mut self) {
        self.has_posts &= !self.is_empty();
        if !self.keeps_sent || mutant!(DropTaken) {
            // Not a word of which only a part is sent.
            let begun = u64::from(!self.next.copied.is_multiple_of(8));
            self.trim(self.next() - begun);
        }
    }

    /// The copied bytes that are not sent.
    fn unsent_bytes(&self) -> u64 {
        8 * self.copied_end() - self.next.copied
    }

    /// The copied bytes that are kept.
    fn kept_bytes(&self) -> u64 {
        8 * (self.copied_end() - self.kept.copied)
    }

    fn copied_end(&self) -> u64 {
        self.base + self.copied.len() as u64
    }

    /// Returns the copied bytes between two places, each given by the copied bytes of the stream before it.
    fn copied_slice(&self, places: Range<u64>) -> &[u8] {
        let place = |copied: u64| usize::try_from(copied - 8 * self.base).expect("in memory");
        &as_bytes(&self.copied)[place(places.start)..place(places.end)]
    }

    /// Frees the memory of copied words that are not kept.
    fn reclaim(&mut self) {
        let dropped = usize::try_from(self.kept.copied - self.base).expect("in memory");
        if dropped == self.copied.len() {
            self.copied.clear();
            self.copied.shrink_to(SPARE_WORDS);
        } else if dropped >= DROPPED_WORDS_MIN && dropped >= self.copied.len() / 2 {
            self.copied.drain(..dropped);
        } else {
            return;
        }
        self.base += dropped as u64;
    }
}

impl Reference {
    fn bytes(&self) -> usize {
        8 * self.words.len()
    }

    /// The position of the word after it.
    fn end(&self) -> u64 {
        self.position + self.words.len() as u64
    }

    /// Returns what follows its first `part` bytes as a piece of a file, if it is one.
    fn file_piece(&self, part: usize) -> Option<FilePiece<'_>> {
        file_pages::piece(&self.region, 8 * self.words.start + part..8 * self.words.end)
    }

    /// Copies its words from number `first` on.
    fn copy_out(&self, first: usize, target: &mut [u64]) {
        file_pages::copy_out(&self.region, self.words.start + first, target);
    }

    fn start(&self, part: usize) -> NonNull<u8> {
        self.region.pointer(self.words.start + part / 8).cast::<u8>()
    }

    /// Returns the rest of the word of whose bytes the kernel has just read some, the last of the first `part` bytes.
    fn split(&self, part: usize) -> Split {
        let mut word = [0];
        self.copy_out(part / 8, &mut word);
        Split { bytes: word[0].to_le_bytes(), rest: part % 8..8 }
    }
}

pub(super) fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any initialised memory may be read as bytes, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Converts a number of words of a mirror: `publish` checks that it fits.
fn narrow(words: usize) -> u32 {
    u32::try_from(words).expect("mirrors are checked when they are published")
}

/// The most pieces for one system call; the kernel's limit is 1024. Its bytes are bounded by the socket's
/// buffer only: the kernel sends a megabyte faster in one call than in four.
pub(super) const PIECES_MAX: usize = 128;

/// Shorter payloads are copied: below 1 KiB a copy costs less than a piece of its own.
const REFERENCE_WORDS_MIN: usize = 128;

/// Posts on connections wait when this much is queued, which is more than the socket takes at a time.
const POSTED_BYTES_MAX: u64 = 4 << 20;
const POSTED_REFERENCES_MAX: usize = 1024;

/// Posts on connections wait when this much is kept, too: far more than both kernels hold and the acknowledgements of what was handled
/// leave open, else both ends would wait for each other \[C6\].
const KEPT_BYTES_MAX: u64 = 48 << 20;

/// A reader for which this much is kept is disconnected; windows bound what a live reader may owe.
const QUEUE_BYTES_MAX: u64 = 96 << 20;
const QUEUE_REFERENCES_MAX: usize = 1 << 18;

/// The memory that an empty queue retains, so that it does not allocate again.
const SPARE_WORDS: usize = 1 << 16;

/// At least that many words are dropped at once: as many as are handled before they are acknowledged by themselves.
const DROPPED_WORDS_MIN: usize = 8 << 10;

const _: () = assert!(HEADER_WORDS == 2, "a frame of `push_mirror_word` ends with its value");

#[cfg(test)]
mod tests;
