//! Staging: registered memory that holds what a send captured until the device has read it [F5].

use std::sync::Arc;

use squall_fabric::SEND_BYTES_MAX;

use super::VerbsError;
use super::domain::{KeyAccess, MemoryKey, ProtectionDomain};
use super::memory::PageMapping;

/// A ring of bytes. What is taken is released in the same order, because posts complete in order.
pub(super) struct StagingRing {
    ring: Ring,
    key: MemoryKey,
    mapping: PageMapping,
}

/// The bookkeeping of a ring: `used <= capacity`, and the next piece begins at `head < capacity`.
#[derive(Debug)]
struct Ring {
    capacity: usize,
    head: usize,
    used: usize,
}

/// A piece of the ring with captured bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagedBytes {
    pub(super) address: u64,
    pub(super) key: u32,
    /// The number of bytes to release.
    pub(super) charge: usize,
}

impl StagingRing {
    /// Creates a ring.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be allocated or locked.
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Result<Self, VerbsError> {
        let mapping = PageMapping::new(CAPACITY).map_err(VerbsError::system("mmap"))?;
        let (base, bytes) = (mapping.base(), mapping.bytes());
        // SAFETY: all of the mapping, which is unmapped after the queue pair whose posts name it is gone;
        // only the thread that posts stores into it, and never into a piece that is in use.
        let key = unsafe { domain.register(base, bytes, base.as_ptr().addr() as u64, KeyAccess::Local) };
        let key = key.map_err(|cause| VerbsError::MemoryLock { bytes, cause })?;
        Ok(Self { ring: Ring { capacity: CAPACITY, head: 0, used: 0 }, key, mapping })
    }

    /// Captures bytes; returns `None` if there is no space until earlier posts complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<StagedBytes> {
        let (first, charge) = self.ring.take(bytes.len())?;
        // SAFETY: the ring is within the mapping.
        let target = unsafe { self.mapping.base().add(first) };
        // SAFETY: this piece was free, so nothing else reads or writes it.
        unsafe { target.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
        Some(StagedBytes { address: target.as_ptr().addr() as u64, key: self.key.local(), charge })
    }

    /// Releases what the oldest post has taken.
    pub(super) fn release(&mut self, charge: usize) {
        self.ring.release(charge);
    }
}

impl Ring {
    /// Returns where `bytes` contiguous bytes begin, and how much of the ring they take: a piece that does
    /// not fit before the end leaves a gap.
    fn take(&mut self, bytes: usize) -> Option<(usize, usize)> {
        let length = bytes.next_multiple_of(LINE_BYTES);
        let gap = if self.head + length > self.capacity { self.capacity - self.head } else { 0 };
        if self.used + gap + length > self.capacity {
            return None;
        }
        let first = if gap > 0 { 0 } else { self.head };
        self.head = (first + length) % self.capacity;
        self.used += gap + length;
        Some((first, gap + length))
    }

    fn release(&mut self, charge: usize) {
        self.used = self.used.checked_sub(charge).expect("no more than was taken");
    }
}

/// Space for a few of the longest sends.
const CAPACITY: usize = 4 * SEND_BYTES_MAX;

const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn pieces_never_overlap_and_all_space_is_released() {
        let mut ring = Ring { capacity: 1024, head: 0, used: 0 };
        let mut taken: VecDeque<(usize, usize, usize)> = VecDeque::new();
        for step in 0..10_000_usize {
            let bytes = step * 7919 % 500;
            match ring.take(bytes) {
                Some((first, charge)) => {
                    assert!(first + bytes <= 1024);
                    let apart = |(other, length, _): &(usize, usize, usize)| {
                        first + bytes <= *other || other + length <= first
                    };
                    assert!(taken.iter().all(apart), "step {step}: {bytes} bytes at {first} in {taken:?}");
                    taken.push_back((first, bytes, charge));
                }
                None => ring.release(taken.pop_front().expect("an empty ring has space").2),
            }
        }
        taken.iter().for_each(|(_, _, charge)| ring.release(*charge));
        assert_eq!(ring.used, 0);
    }
}
