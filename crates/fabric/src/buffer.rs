//! Memory of one user that a fabric can move: bytes while the user holds it, words while the fabric does.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use crate::{Fabric, Region, Shortage};

/// A range of registered memory that one user holds at a time.
///
/// Who posts a buffer gives it away and gets it back with the completion, so nobody reads bytes that a peer still
/// writes. The contract for who is between is that of [`Buffer::region`]: a buffer goes back to the user
/// when no post on it is outstanding. A peer that keeps writing beyond its completion breaks the protocol and can
/// spoil the bytes, as any member can.
pub struct Buffer {
    region: Region,
    /// The first word.
    first: usize,
    /// `length <= 8 * words`.
    words: usize,
    length: usize,
}

impl Buffer {
    /// `length` bytes of zeros that `fabric` can move. If memory is short, it unwinds as [`Fabric::register`] does.
    pub fn new<F: Fabric>(fabric: &mut F, length: usize) -> Self {
        Self::try_new(fabric, length).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// `length` bytes of zeros that `fabric` can move.
    ///
    /// # Errors
    /// [`Shortage`].
    pub fn try_new<F: Fabric>(fabric: &mut F, length: usize) -> Result<Self, Shortage> {
        let words = length.div_ceil(8);
        Ok(Self { region: fabric.try_register(words)?, first: 0, words, length })
    }

    /// The registered memory that it is a part of.
    ///
    /// # Safety
    /// As long as the region or a clone of it is used otherwise than in posts, and as long as such a post is outstanding,
    /// nobody uses the bytes of this buffer.
    #[must_use]
    pub const unsafe fn region(&self) -> &Region {
        &self.region
    }

    /// Where it lies there, in bytes; begins at a word.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        8 * self.first..8 * self.first + self.length
    }

    /// How many bytes it can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        8 * self.words
    }

    /// Shortens or lengthens it; bytes that were cut off keep their values.
    ///
    /// # Panics
    /// If `length` is above the capacity.
    pub fn resize(&mut self, length: usize) {
        assert!(length <= self.capacity(), "{length} bytes in a buffer of {}", self.capacity());
        self.length = length;
    }

    /// Cuts it in two: this one keeps the bytes below `at`. Parts of one registration are cheaper than many.
    ///
    /// # Panics
    /// If `at` is no multiple of 8 or beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at.is_multiple_of(8) && at <= self.length, "cut {} bytes at byte {at}", self.length);
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
        // SAFETY: the words belong to this buffer alone, and whoever has taken them (`region`) has promised to keep the
        // buffer from its user meanwhile.
        unsafe { self.region.bytes(self.first, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and `&mut self` is the only way to these words.
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
    #[should_panic(expected = "cut 16 bytes at byte 4")]
    fn a_part_begins_at_a_word() {
        let world = SimWorld::new(1, SimConfig::hardware(), 1);
        let _ = Buffer::new(&mut world.fabric(0), 16).split_off(4);
    }
}
