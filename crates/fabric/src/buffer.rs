//! A user's memory that a fabric can transfer: bytes while the user holds it, words while the fabric does.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use crate::{Fabric, Region, Shortage};

/// A range of registered memory that one user holds at a time.
///
/// A user that posts a buffer gives it up and gets it back with the completion, so no user reads bytes that a
/// peer still writes. The code in between is bound by the contract of [`Buffer::region`]: a buffer returns to
/// the user when no post on it is outstanding. A peer that continues to write after its completion violates
/// the protocol and can corrupt the bytes, as any member can.
pub struct Buffer {
    region: Region,
    /// The first word.
    first: usize,
    /// `length <= 8 * words`.
    words: usize,
    length: usize,
}

impl Buffer {
    /// Allocates `length` zero bytes that `fabric` can transfer. If memory is short, it unwinds as
    /// [`Fabric::register`] does.
    pub fn new<F: Fabric>(fabric: &mut F, length: usize) -> Self {
        Self::try_new(fabric, length).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// Allocates `length` zero bytes that `fabric` can transfer.
    ///
    /// # Errors
    /// Returns [`Shortage`] if allocation fails.
    pub fn try_new<F: Fabric>(fabric: &mut F, length: usize) -> Result<Self, Shortage> {
        let words = length.div_ceil(8);
        Ok(Self { region: fabric.try_register(words)?, first: 0, words, length })
    }

    /// Returns the registered memory that contains this buffer.
    ///
    /// # Safety
    /// While the region or a clone of it is used other than in posts, and while such a post is outstanding,
    /// the bytes of this buffer must not be used.
    #[must_use]
    pub const unsafe fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the byte range of the buffer within its region; it begins at a word.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        8 * self.first..8 * self.first + self.length
    }

    /// Returns the number of bytes that the buffer can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        8 * self.words
    }

    /// Sets the length; bytes that were cut off keep their values.
    ///
    /// # Panics
    /// Panics if `length` is above the capacity.
    pub fn resize(&mut self, length: usize) {
        assert!(length <= self.capacity(), "{length} bytes do not fit a buffer of {} bytes", self.capacity());
        self.length = length;
    }

    /// Splits the buffer in two: this one keeps the bytes below `at`. Parts of one registration are cheaper
    /// than many registrations.
    ///
    /// # Panics
    /// Panics if `at` is no multiple of 8 or is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            at.is_multiple_of(8) && at <= self.length,
            "cannot split {} bytes at byte {at}: split at a multiple of 8 within them",
            self.length
        );
        let words = at / 8;
        let (first, length) = (self.first + words, self.length - at);
        let rest = Self { region: self.region.clone(), first, words: self.words - words, length };
        (self.words, self.length) = (words, at);
        rest
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the words belong to this buffer alone, and any caller that has taken them (`region`) has
        // promised to keep the buffer from its user meanwhile.
        unsafe { self.region.bytes(self.first, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and `&mut self` is the only access path to these words.
        unsafe { self.region.bytes_mut(self.first, self.length) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes of {:?})", self.length, self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, SimWorld};

    #[test]
    fn parts_are_disjoint_and_keep_their_bytes() {
        let world = SimWorld::new(1, SimConfig::hardware(), 1);
        let mut buffer = Buffer::new(&mut world.fabric(0), 21);
        buffer.copy_from_slice(&(0..21).collect::<Vec<u8>>());
        let mut rest = buffer.split_off(16);
        rest.fill(0xff);
        assert_eq!((&*buffer, &*rest), (&(0..16).collect::<Vec<u8>>()[..], &[0xff; 5][..]));
        assert_eq!((buffer.range(), rest.range(), rest.capacity()), (0..16, 16..21, 8));
        rest.resize(8);
        assert_eq!(rest.len(), 8);
    }

    #[test]
    #[should_panic(expected = "cannot split 16 bytes at byte 4")]
    fn a_part_begins_at_a_word() {
        let world = SimWorld::new(1, SimConfig::hardware(), 1);
        let _ = Buffer::new(&mut world.fabric(0), 16).split_off(4);
    }
}
