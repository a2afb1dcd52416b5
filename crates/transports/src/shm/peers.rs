//! A set of peers, small and of fixed size, so that a push costs a few instructions.

/// Links by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerSet {
    bits: [u64; PEERS_MAX / 64],
}

impl Iterator for PeerSet {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.pop()
    }
}

impl PeerSet {
    #[inline]
    pub(super) fn insert(&mut self, link: usize) {
        self.bits[link / 64] |= 1 << (link % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, link: usize) {
        self.bits[link / 64] &= !(1 << (link % 64));
    }

    #[inline]
    pub(super) fn union(&mut self, other: &Self) {
        for (bits, others) in self.bits.iter_mut().zip(other.bits) {
            *bits |= others;
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }

    /// Removes the lowest link.
    pub(super) fn pop(&mut self) -> Option<usize> {
        let (group, bits) = self.bits.iter_mut().enumerate().find(|(_, bits)| **bits != 0)?;
        let bit = bits.trailing_zeros() as usize;
        *bits &= *bits - 1;
        Some(group * 64 + bit)
    }
}

/// The most peers of a node on one host.
pub(super) const PEERS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_returns_its_elements() {
        let (mut set, mut other) = (PeerSet::default(), PeerSet::default());
        assert!(set.is_empty());
        set.insert(255);
        set.insert(3);
        other.insert(64);
        other.insert(65);
        other.remove(65);
        set.union(&other);
        let taken: Vec<_> = std::iter::from_fn(|| set.pop()).collect();
        assert_eq!(taken, [3, 64, 255]);
        assert!(set.is_empty());
    }
}
