//! Grants: the right of one peer to write one range of one region [F8].

use std::ops::Range;

use crate::{NodeId, RegionId};

/// The size of a [`Grant`] in its portable form.
pub const GRANT_BYTES: usize = 40;

/// The right of `peer` to write `words` of a region of `owner`. Plain data: the owner sends it to the peer by
/// any channel, as [`Grant::to_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The owner of the memory.
    pub owner: NodeId,
    /// The peer that may write.
    pub peer: NodeId,
    /// The region, as the owner names it.
    pub region: RegionId,
    /// First word of the range.
    pub first: u64,
    /// Number of words.
    pub words: u64,
    /// Distinguishes this grant from every other grant of the owner (RDMA: the remote key).
    pub key: u64,
}

/// Why bytes do not encode a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// The length is not [`GRANT_BYTES`].
    Length(usize),
    /// The range `first..first + words` does not fit in 64 bits.
    Range,
}

impl std::fmt::Display for GrantError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a grant has {GRANT_BYTES} bytes, but {length} were received"),
            Self::Range => f.write_str("the grant's range ends beyond 2^64 words"),
        }
    }
}

impl std::error::Error for GrantError {}

impl Grant {
    /// Returns the granted words, as a range within the region.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let first = usize::try_from(self.first).expect("word offsets fit the address space");
        let words = usize::try_from(self.words).expect("word counts fit the address space");
        first..first + words
    }

    /// Returns the portable form, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        bytes[0..4].copy_from_slice(&self.owner.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.peer.0.to_le_bytes());
        for (i, word) in [self.region.0, self.first, self.words, self.key].into_iter().enumerate() {
            bytes[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the portable form. Only the owner knows whether the grant is valid. Fuzzed as `grant`.
    ///
    /// # Errors
    /// Returns an error if the length is wrong or the range does not fit in 64 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GrantError> {
        let bytes: &[u8; GRANT_BYTES] = bytes.try_into().map_err(|_| GrantError::Length(bytes.len()))?;
        let half = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("4 bytes"));
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let grant = Self {
            owner: NodeId(half(0)),
            peer: NodeId(half(1)),
            region: RegionId(word(1)),
            first: word(2),
            words: word(3),
            key: word(4),
        };
        grant.first.checked_add(grant.words).ok_or(GrantError::Range)?;
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_form_returns_the_same_grant() {
        let grant = Grant {
            owner: NodeId(1),
            peer: NodeId(2),
            region: RegionId(3),
            first: 4,
            words: 5,
            key: u64::MAX,
        };
        assert_eq!(Grant::from_bytes(&grant.to_bytes()), Ok(grant));
    }

    #[test]
    fn bad_bytes_are_refused() {
        assert_eq!(Grant::from_bytes(&[0; 3]), Err(GrantError::Length(3)));
        assert_eq!(Grant::from_bytes(&[0xff; GRANT_BYTES]), Err(GrantError::Range));
    }
}
