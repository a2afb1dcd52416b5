//! Records: the encrypted and authenticated pieces in which a session's bytes travel.
//!
//! A record is the length of the rest (2 bytes, little endian) and a transport message of the Noise
//! framework: 1 to [`RECORD_BYTES_MAX`] bytes (or none), encrypted, and a tag of 16 bytes. Each direction has
//! a key of its own, and the number of a record is its nonce. So a record that is altered, replayed, omitted
//! or moved does not verify, and no part of it or of later records is ever returned. A direction changes its
//! key regularly.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use super::keys::RecordKeys;

/// The most bytes of plain text in a record. Larger records would be encrypted hardly faster, and the
/// receiver would wait longer before it could begin to decrypt.
pub(crate) const RECORD_BYTES_MAX: usize = 32 << 10;

const HEADER_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
const SEALED_BYTES_MAX: usize = RECORD_BYTES_MAX + TAG_BYTES;
const WHOLE_BYTES_MAX: usize = HEADER_BYTES + SEALED_BYTES_MAX;

/// The space that a reader needs for opening a record without an allocation.
pub(crate) const OPENING_BYTES: usize = SEALED_BYTES_MAX;

/// The space for the bytes of one read, which may hold many records.
pub(crate) const INBOUND_BYTES: usize = 256 << 10;

/// The keys of one session, records that have not arrived completely, and records that the socket has not
/// taken.
pub(crate) struct Records {
    keys: RecordKeys,
    /// `inbound[start..end]` has arrived and is not opened.
    inbound: Vec<u8>,
    start: usize,
    end: usize,
    /// `opened[taken..]` is plain text that is not yet taken.
    opened: Vec<u8>,
    taken: usize,
    /// `outbound[sent..sealed]` must be sent; what follows is space.
    outbound: Vec<u8>,
    sealed: usize,
    sent: usize,
    /// Reused memory for callers that create plain text from words.
    pub(crate) words: Vec<u64>,
    /// Whether a record did not verify; then no other will be opened.
    is_broken: bool,
}

/// The bytes that have arrived are not the next record of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record does not verify: it was altered in transit")]
pub(crate) struct BadRecord;

impl From<BadRecord> for io::Error {
    fn from(bad: BadRecord) -> Self {
        Self::new(ErrorKind::InvalidData, bad.to_string())
    }
}

impl Records {
    pub(super) const fn new(keys: RecordKeys) -> Self {
        Self {
            keys,
            inbound: Vec::new(),
            start: 0,
            end: 0,
            opened: Vec::new(),
            taken: 0,
            outbound: Vec::new(),
            sealed: 0,
            sent: 0,
            words: Vec::new(),
            is_broken: false,
        }
    }

    /// Returns one for each direction, for separate threads: the first reads, the second writes.
    pub(super) fn halves(self) -> (Self, Self) {
        let (reading, writing) = self.keys.shared();
        let writer =
            Self { outbound: self.outbound, sealed: self.sealed, sent: self.sent, ..Self::new(writing) };
        (Self { keys: reading, outbound: Vec::new(), sealed: 0, sent: 0, ..self }, writer)
    }

    /// Adds bytes to the output, in as many records as they need; at least one.
    pub(crate) fn seal(&mut self, plain: &[u8]) {
        if plain.is_empty() {
            return self.seal_one(&[]);
        }
        plain.chunks(RECORD_BYTES_MAX).for_each(|part| self.seal_one(part));
    }

    fn seal_one(&mut self, plain: &[u8]) {
        if self.is_flushed() {
            (self.sent, self.sealed) = (0, 0);
        }
        let bytes = plain.len() + TAG_BYTES;
        let end = self.sealed + HEADER_BYTES + bytes;
        // Space that was used before is not cleared: the next record overwrites it.
        if self.outbound.len() < end {
            self.outbound.resize(end, 0);
        }
        let (header, body) = self.outbound[self.sealed..end].split_at_mut(HEADER_BYTES);
        let length = u16::try_from(bytes).expect("a record's bytes fit");
        header.copy_from_slice(&length.to_le_bytes());
        let written = self.keys.seal(plain, body);
        assert_eq!(written, bytes, "a cipher text is as long as its plain text and the tag");
        self.sealed = end;
    }

    /// Returns the bytes to send next.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.outbound[self.sent..self.sealed]
    }

    /// Notes that the socket has taken the first `sent` bytes of [`Records::pending`].
    pub(crate) fn on_sent(&mut self, sent: usize) {
        self.sent += sent;
        assert!(self.sent <= self.sealed, "more was sent than there was");
    }

    /// Returns whether no output is pending.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sent == self.sealed
    }

    /// Returns the space for bytes from the socket: a large buffer, or at most `most` bytes.
    pub(crate) fn free_space(&mut self, most: usize) -> &mut [u8] {
        if self.inbound.len() < INBOUND_BYTES.min(most.max(WHOLE_BYTES_MAX)) {
            self.inbound.resize(INBOUND_BYTES.min(most.max(WHOLE_BYTES_MAX)), 0);
        }
        if self.start > 0 {
            self.inbound.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let end = self.inbound.len().min(self.end.saturating_add(most));
        &mut self.inbound[self.end..end]
    }

    /// Notes that the first `received` bytes of [`Records::free_space`] have been stored.
    pub(crate) fn on_received(&mut self, received: usize) {
        self.end += received;
        assert!(self.end <= self.inbound.len(), "more was received than there was space for");
    }

    /// Returns how many bytes are missing of the length of the next record, or of the record; 0 if it is
    /// complete.
    pub(crate) fn missing(&self) -> Result<usize, BadRecord> {
        let there = &self.inbound[self.start..self.end];
        let Some(length) = there.first_chunk() else { return Ok(HEADER_BYTES - there.len()) };
        let length = usize::from(u16::from_le_bytes(*length));
        if !(TAG_BYTES..=SEALED_BYTES_MAX).contains(&length) {
            return Err(BadRecord);
        }
        Ok((HEADER_BYTES + length).saturating_sub(there.len()))
    }

    /// Opens the next record into `target`, which must have space for [`OPENING_BYTES`]. Returns the number
    /// of bytes of its plain text; `None` if it has not arrived completely. Fuzzed as `records`.
    pub(crate) fn open(&mut self, target: &mut [u8]) -> Result<Option<usize>, BadRecord> {
        if self.is_broken {
            return Err(BadRecord);
        }
        let opened = self.try_open(target);
        self.is_broken = opened.is_err();
        opened
    }

    fn try_open(&mut self, target: &mut [u8]) -> Result<Option<usize>, BadRecord> {
        if self.missing()? > 0 {
            return Ok(None);
        }
        let there = &self.inbound[self.start..self.end];
        let length = usize::from(u16::from_le_bytes(*there.first_chunk().expect("nothing is missing")));
        let sealed = &there[HEADER_BYTES..HEADER_BYTES + length];
        let bytes = self.keys.open(sealed, target).ok_or(BadRecord)?;
        self.start += HEADER_BYTES + length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(Some(bytes))
    }

    /// Opens the next record that is not empty, reading it from `stream` and not a byte beyond it. Returns
    /// false at the end of the stream.
    ///
    /// # Errors
    /// Returns the stream's error, [`ErrorKind::UnexpectedEof`] inside a record, and
    /// [`ErrorKind::InvalidData`] if it does not verify.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        while self.taken == self.opened.len() {
            if !self.fill_one(stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Same as [`Records::fill`], for the next record, whether it is empty or not.
    fn fill_one(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        loop {
            let missing = self.missing()?;
            if missing == 0 {
                break;
            }
            match stream.read(self.free_space(missing))? {
                0 if self.start == self.end => return Ok(false),
                0 => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the stream ended inside a record"));
                }
                received => self.on_received(received),
            }
        }
        let mut target = std::mem::take(&mut self.opened);
        target.resize(OPENING_BYTES, 0);
        let opened = self.open(&mut target);
        target.truncate(opened.unwrap_or_default().unwrap_or_default());
        (self.opened, self.taken) = (target, 0);
        opened?;
        Ok(true)
    }

    /// Waits for a first record, which proves that the other end has the keys.
    pub(crate) fn confirm(&mut self, stream: &mut impl Read) -> io::Result<()> {
        match self.fill_one(stream)? {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns plain text that [`Records::fill`] has opened.
    pub(crate) fn opened(&self) -> &[u8] {
        &self.opened[self.taken..]
    }

    /// Notes that the first `taken` bytes of [`Records::opened`] have been used.
    pub(crate) fn on_taken(&mut self, taken: usize) {
        self.taken += taken;
        assert!(self.taken <= self.opened.len(), "more was taken than was opened");
    }

    /// Returns whether bytes of the other end are buffered here.
    pub(crate) fn holds_input(&self) -> bool {
        self.start < self.end || self.taken < self.opened.len()
    }

    /// Same as [`Read::read`], for a stream of records.
    pub(crate) fn read(&mut self, stream: &mut impl Read, target: &mut [u8]) -> io::Result<usize> {
        if target.is_empty() || !self.fill(stream)? {
            return Ok(0);
        }
        let read = target.len().min(self.opened().len());
        target[..read].copy_from_slice(&self.opened()[..read]);
        self.on_taken(read);
        Ok(read)
    }

    /// Same as [`Write::write`], to a stream of records. If a non-blocking stream has not taken all of the
    /// last record, the rest remains pending.
    pub(crate) fn write(&mut self, stream: &mut impl Write, source: &[u8]) -> io::Result<usize> {
        self.flush(stream)?;
        let part = &source[..source.len().min(RECORD_BYTES_MAX)];
        if part.is_empty() {
            return Ok(0);
        }
        self.seal(part);
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(part.len()),
        }
    }

    /// Sends pending output.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while !self.is_flushed() {
            match stream.write(self.pending()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.on_sent(sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("inbound", &(self.end - self.start))
            .field("outbound", &(self.sealed - self.sent))
            .finish_non_exhaustive()
    }
}
