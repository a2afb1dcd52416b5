//! The bytes of a sample as a reader holds them.

use std::ops::Deref;

use bytes::Bytes;

use crate::buffer::SampleBuffer;

/// A copy that this reader has for itself, so that a type that is bytes can keep it, or one that others have, too.
#[derive(Debug)]
pub(crate) enum SampleBytes {
    Own(SampleBuffer),
    Shared(Bytes),
}

impl SampleBytes {
    /// Returns the same bytes for another holder.
    pub(super) fn share(&mut self) -> Self {
        let shared = match self {
            Self::Own(own) => Bytes::from(std::mem::take(own)),
            Self::Shared(shared) => shared.clone(),
        };
        *self = Self::Shared(shared.clone());
        Self::Shared(shared)
    }
}

impl Deref for SampleBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(own) => own,
            Self::Shared(shared) => shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_the_same_memory() {
        let mut first = SampleBytes::Own(vec![1, 2, 3].into());
        let (second, third) = (first.share(), first.share());
        for other in [&second, &third] {
            assert_eq!((**other).as_ptr(), first.as_ptr());
            assert_eq!(**other, [1, 2, 3]);
        }
    }
}
