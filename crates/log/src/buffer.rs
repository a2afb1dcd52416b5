//! Memory that direct I/O accepts: a buffer that begins at a multiple of [`MEMORY_ALIGNMENT`].

/// Direct I/O needs the alignment of the device's logical blocks, which is this at most.
pub const MEMORY_ALIGNMENT: usize = 4096;

/// Bytes whose first one is aligned. Grows like a vector, and keeps its memory when it is cleared.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    /// Where the content begins: `memory[start]` is aligned, or there is no memory.
    start: usize,
}

impl AlignedBuffer {
    /// Returns an empty buffer with memory for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut memory = Vec::<u8>::with_capacity(capacity + MEMORY_ALIGNMENT);
        let start = memory.as_ptr().addr().wrapping_neg() % MEMORY_ALIGNMENT;
        memory.resize(start, 0);
        Self { memory, start }
    }

    /// Returns a buffer of `length` zeros.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::with_capacity(length);
        buffer.pad_to(length);
        buffer
    }

    /// Returns how many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    /// Returns whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// Returns the content for changes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }

    /// Appends `bytes`.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.memory.extend_from_slice(bytes);
    }

    /// Appends zeros up to `length` bytes.
    pub fn pad_to(&mut self, length: usize) {
        self.reserve(length.saturating_sub(self.len()));
        self.memory.resize(self.start + length.max(self.len()), 0);
    }

    /// Drops the content, not the memory.
    pub fn clear(&mut self) {
        self.memory.truncate(self.start);
    }

    /// Moves to larger memory before the vector would do so by itself, and lose the alignment.
    pub(crate) fn reserve(&mut self, more: usize) {
        if self.memory.capacity() - self.memory.len() < more {
            let mut larger = Self::with_capacity((self.len() + more).max(2 * self.len()));
            larger.memory.extend_from_slice(self.bytes());
            *self = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_stays_aligned_while_it_grows() {
        let mut buffer = AlignedBuffer::default();
        let mut expected = Vec::new();
        for round in 0..200_u8 {
            let bytes = vec![round; usize::from(round) * 7];
            buffer.extend(&bytes);
            expected.extend(bytes);
            assert_eq!(buffer.bytes(), expected);
            assert!(buffer.is_empty() || buffer.bytes().as_ptr().addr() % MEMORY_ALIGNMENT == 0);
        }
        buffer.pad_to(expected.len() + 9);
        assert_eq!(buffer.bytes()[expected.len()..], [0; 9]);
        buffer.clear();
        assert!(buffer.is_empty());
        assert_eq!(AlignedBuffer::zeroed(70).bytes(), [0; 70]);
    }
}
