//! Output: the queue of what is to be sent to one peer, in post order.
//!
//! Headers and short payloads are copied when they are posted; long payloads are referenced and read when the
//! kernel takes them [F5]. One `sendmsg` gathers as much as it can of both.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;

use squall_fabric::Region;

use super::file_pages::{self, FilePiece};
use super::frame::{HEADER_WORDS, TcpFrame, mirror_header};
use super::socket::IoPiece;

/// The queue of one stream.
///
/// **Order.** The stream is the copied bytes, with each reference inserted at its position among them.
/// Positions count the copied bytes since the stream began.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    /// Headers and short payloads; the first word has position `base`.
    copied: Vec<u64>,
    base: u64,
    /// The first copied byte that is not sent: `base <= next <= base + 8 * copied.len()`.
    next: u64,
    /// `next <= at`, and ascending in `at`.
    references: VecDeque<Reference>,
    /// The rest of a word whose beginning the kernel has taken: it must end with the bytes of the same value,
    /// whatever its owner stores meanwhile [F3]. Sent before everything else.
    split: Split,
    /// The last frame, if it is a single word of a mirror.
    tail: Option<Tail>,
    /// Whether output other than acknowledgements is queued.
    has_posts: bool,
}

/// Words that are read when they are sent.
#[derive(Debug)]
struct Reference {
    /// The position of the copied bytes that follow.
    at: u64,
    region: Region,
    /// The bytes of the region that are not sent yet.
    bytes: Range<usize>,
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
    /// The position of the frame.
    at: u64,
}

impl OutputQueue {
    /// Returns whether the queue is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.end() && self.references.is_empty() && self.split.rest.is_empty()
    }

    /// Returns whether output other than acknowledgements is queued.
    pub(super) fn has_posts(&self) -> bool {
        self.has_posts
    }

    /// Returns whether posts on connections must wait.
    pub(super) fn is_full(&self) -> bool {
        self.copied_bytes() >= POSTED_BYTES_MAX || self.references.len() >= POSTED_REFERENCES_MAX
    }

    /// Returns whether the peer is too slow to be kept: even the windows of the protocols should never queue
    /// this much.
    pub(super) fn is_overrun(&self) -> bool {
        self.copied_bytes() >= QUEUE_BYTES_MAX || self.references.len() >= QUEUE_REFERENCES_MAX
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
            let bytes = 8 * range.start..8 * range.end;
            self.references.push_back(Reference { at: self.end(), region: region.clone(), bytes });
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
            && tail.at >= self.next
        {
            *self.copied.last_mut().expect("the frame at the tail") = value;
            return false;
        }
        (self.tail, self.has_posts) = (Some(Tail { attachment, word, at: self.end() }), true);
        let [head, tail] = mirror_header(attachment, word, 1);
        self.copied.extend_from_slice(&[head, tail, value]);
        true
    }

    /// Returns all queued output, if it is one piece of copied bytes: the usual case of small messages.
    pub(super) fn plain(&self) -> Option<&[u8]> {
        let plain = self.references.is_empty() && self.split.rest.is_empty();
        plain.then(|| self.copied_slice(self.next..self.end()))
    }

    /// Returns the bytes to send next, if they are a piece of a file.
    pub(super) fn next_file(&self) -> Option<FilePiece<'_>> {
        let reference = self.references.front()?;
        let is_next = self.split.rest.is_empty() && reference.at == self.next;
        is_next.then(|| reference.file_piece()).flatten()
    }

    /// Returns whether the next payload by reference is a piece of a file.
    pub(super) fn has_file(&self) -> bool {
        self.references.front().is_some_and(|reference| reference.file_piece().is_some())
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
        let mut next = self.next;
        for reference in self.references.iter().take(PIECES_MAX) {
            let copied = self.copied_slice(next..reference.at);
            add(NonNull::from(copied).cast(), copied.len());
            next = reference.at;
            if reference.file_piece().is_some() {
                return count;
            }
            add(reference.start(), reference.bytes.len());
        }
        if self.references.len() <= PIECES_MAX {
            let copied = self.copied_slice(next..self.end());
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
            let until = self.references.front().map_or(self.end(), |reference| reference.at);
            let copied = rest.min(usize::try_from(until - self.next).expect("in memory"));
            self.next += copied as u64;
            rest -= copied;
            if rest == 0 {
                break;
            }
            let reference = self.references.front_mut().expect("no more is sent than was gathered");
            let taken = rest.min(reference.bytes.len());
            reference.bytes.start += taken;
            rest -= taken;
            if !reference.bytes.start.is_multiple_of(8) {
                self.split = reference.split();
            }
            if reference.bytes.is_empty() {
                self.references.pop_front();
            }
        }
        self.has_posts &= !self.is_empty();
        self.reclaim();
    }

    /// Removes the next words from the queue, by value, as many as `target` has space for; returns their
    /// number. A caller that takes words in this way must never use [`OutputQueue::gather`], so no word is
    /// split.
    pub(super) fn take_words(&mut self, target: &mut [u64]) -> usize {
        let mut taken = 0;
        while taken < target.len() {
            let until = self.references.front().map_or(self.end(), |reference| reference.at);
            let copied =
                usize::try_from((until - self.next) / 8).expect("in memory").min(target.len() - taken);
            let first = usize::try_from((self.next - self.base) / 8).expect("in memory");
            target[taken..taken + copied].copy_from_slice(&self.copied[first..first + copied]);
            self.next += 8 * copied as u64;
            taken += copied;
            let Some(reference) = self.references.front_mut().filter(|reference| reference.at == self.next)
            else {
                break;
            };
            let part = (reference.bytes.len() / 8).min(target.len() - taken);
            reference.region.copy_out(reference.bytes.start / 8, &mut target[taken..taken + part]);
            reference.bytes.start += 8 * part;
            taken += part;
            if reference.bytes.is_empty() {
                self.references.pop_front();
            }
        }
        self.has_posts &= !self.is_empty();
        self.reclaim();
        taken
    }

    /// Drops everything; nothing more will be sent.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn copied_bytes(&self) -> u64 {
        self.end() - self.next
    }

    fn end(&self) -> u64 {
        self.base + 8 * self.copied.len() as u64
    }

    /// Returns the copied bytes at these positions.
    fn copied_slice(&self, positions: Range<u64>) -> &[u8] {
        let place = |position: u64| usize::try_from(position - self.base).expect("in memory");
        &as_bytes(&self.copied)[place(positions.start)..place(positions.end)]
    }

    /// Frees the memory of copied bytes that are sent.
    fn reclaim(&mut self) {
        let sent = usize::try_from((self.next - self.base) / 8).expect("in memory");
        if sent == self.copied.len() {
            self.copied.clear();
            self.copied.shrink_to(KEPT_WORDS);
        } else if sent >= KEPT_WORDS && sent >= self.copied.len() / 2 {
            self.copied.drain(..sent);
        } else {
            return;
        }
        self.base += 8 * sent as u64;
    }
}

impl Reference {
    /// Returns it as a piece of a file, if it is one.
    fn file_piece(&self) -> Option<FilePiece<'_>> {
        file_pages::piece(&self.region, self.bytes.clone())
    }

    fn start(&self) -> NonNull<u8> {
        let word = self.region.pointer(self.bytes.start / 8).cast::<u8>();
        // SAFETY: the bytes are inside the region, and so is the rest of their first word.
        unsafe { word.add(self.bytes.start % 8) }
    }

    /// Takes the rest of the first word, whose beginning the kernel has just read.
    fn split(&mut self) -> Split {
        let word = self.bytes.start / 8;
        let rest = self.bytes.start % 8..8;
        self.bytes.start = 8 * (word + 1);
        Split { bytes: self.region.load_relaxed(word).to_le_bytes(), rest }
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

/// A reader for which this much is queued is disconnected; windows bound what a live reader may owe.
const QUEUE_BYTES_MAX: u64 = 64 << 20;
const QUEUE_REFERENCES_MAX: usize = 1 << 18;

/// The memory that an empty queue keeps, so that it does not allocate again.
const KEPT_WORDS: usize = 1 << 16;

const _: () = assert!(HEADER_WORDS == 2, "a frame of `push_mirror_word` ends with its value");

#[cfg(test)]
mod tests;
