//! Memory of short samples: allocators take longer for each of them than a copy takes.

use bytes::{Bytes, BytesMut};

/// A piece of memory for short samples that come one after another. It is free again when the last of them is dropped, so it suits readers
/// whose samples leave in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct SamplePiece(
    /// What is left of it.
    BytesMut,
);

impl SamplePiece {
    /// Returns a copy of these bytes, at most [`SHORT_MAX`], in this piece or the next one.
    #[inline]
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Bytes {
        debug_assert!(bytes.len() <= SHORT_MAX, "a piece holds several");
        if self.0.capacity() < bytes.len() {
            self.0 = BytesMut::with_capacity(PIECE_BYTES);
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

/// Returns a copy that several may hold, with the count of its holders in the same allocation; `None` if it is not short.
#[inline]
pub(crate) fn copy_to_share(bytes: &[u8]) -> Option<Bytes> {
    match bytes.len() {
        0..=64 => Some(Bytes::from_owner(Inline::<64>::of(bytes))),
        65..=96 => Some(Bytes::from_owner(Inline::<96>::of(bytes))),
        97..=160 => Some(Bytes::from_owner(Inline::<160>::of(bytes))),
        _ => None,
    }
}

/// At most `N` bytes.
struct Inline<const N: usize> {
    space: [u8; N],
    length: usize,
}

impl<const N: usize> Inline<N> {
    #[inline]
    fn of(bytes: &[u8]) -> Self {
        let mut space = [0; N];
        space[..bytes.len()].copy_from_slice(bytes);
        Self { space, length: bytes.len() }
    }
}

impl<const N: usize> AsRef<[u8]> for Inline<N> {
    fn as_ref(&self) -> &[u8] {
        &self.space[..self.length]
    }
}

/// A sample of at most this many bytes is short: memory of longer ones is used again in another way ([`crate::SampleBuffer`]).
pub(crate) const SHORT_MAX: usize = 511;
const PIECE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them remain as they are while others come and go.
    #[test]
    fn samples_share_a_piece() {
        let mut piece = SamplePiece::default();
        let sample = |number: usize| vec![number as u8; number % (SHORT_MAX + 1)];
        let mut held = Vec::new();
        for number in 0..2000 {
            held.push((number, piece.copy_of(&sample(number))));
            if number % 3 == 0 {
                held.swap_remove(number % held.len());
            }
        }
        assert!(held.iter().all(|(number, bytes)| *bytes == sample(*number)));
        let [first, second] = [piece.copy_of(&[1; 8]), piece.copy_of(&[2; 8])];
        assert_eq!(first.as_ptr().wrapping_add(8), second.as_ptr(), "one follows the other");
    }

    #[test]
    fn a_copy_to_share_is_the_same_bytes() {
        for length in (0..=200).chain([SHORT_MAX, 5000]) {
            let bytes: Vec<u8> = (0..length).map(|place| place as u8).collect();
            let copy = copy_to_share(&bytes);
            assert_eq!(copy.is_some(), length <= 160);
            if let Some(copy) = copy {
                assert_eq!(copy, bytes);
                assert_eq!(copy.clone().as_ptr(), copy.as_ptr());
            }
        }
    }
}
