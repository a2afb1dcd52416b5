//! Grants as the device enforces them [F8]: each is a memory key of its own, in the protection domain of its
//! peer, over exactly the granted range. So the device itself refuses writes that go beyond the range, come
//! from another peer, or use a revoked grant.
//!
//! The device does not check a whole [`Grant`], only its 32-bit key and an address. The address therefore
//! encodes the rest: its upper bits are a tag derived from the grant's number and region. A write under a
//! grant that was altered, or that was revoked before the device issued the same key again, goes to an
//! address that its key does not cover.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use squall_fabric::atomics::AtomicU64;
use squall_fabric::region::Access as RegionAccess;
use squall_fabric::{Grant, NodeId, Region, RegionId};

use super::VerbsError;
use super::domain::{KeyAccess, MemoryKey, ProtectionDomain};
use super::memory::REGION_WORDS_MAX;
use super::post::RemoteMemory;
use crate::adopted::skip_words;

/// The grants that a node has issued and not revoked.
pub(super) struct VerbsGrants {
    issued: BTreeMap<u64, Issued>,
    /// The number of grants that each peer has.
    counts: Vec<usize>,
    /// All smaller numbers are used.
    next: u32,
}

struct Issued {
    /// The place of the peer that holds the grant.
    peer: usize,
    /// The address at which the region begins.
    base: NonNull<AtomicU64>,
    /// `None` if the range is empty, because writes of no words need no right; also if the memory has moved,
    /// or could not be registered.
    memory: Option<MemoryKey>,
}

// SAFETY: the address is compared, never dereferenced.
unsafe impl Send for Issued {}

impl VerbsGrants {
    pub(super) fn new() -> Self {
        Self { issued: BTreeMap::new(), counts: Vec::new(), next: 1 }
    }

    /// Prepares for a new peer at the place `peer`.
    pub(super) fn begin(&mut self, peer: usize) {
        self.counts.resize(self.counts.len().max(peer + 1), 0);
        assert!(self.counts[peer] == 0, "the previous peer at this place still has grants");
    }

    /// Revokes all grants of the peer at `peer`, whose queue pairs have ended.
    pub(super) fn revoke_all(&mut self, peer: usize) {
        self.issued.retain(|_, issued| issued.peer != peer);
        self.counts[peer] = 0;
    }

    /// Grants the peer at `peer`, whose number and domain are given, writes to `range` of `region`. If the
    /// memory cannot be registered, the error is returned as well, and every write under the grant is
    /// refused.
    ///
    /// # Panics
    /// Panics if the range is outside the region, or this process may not store there.
    pub(super) fn issue(
        &mut self,
        owner: NodeId,
        region: &Region,
        range: Range<usize>,
        (peer, node): (usize, NodeId),
        domain: &Arc<ProtectionDomain>,
    ) -> (Grant, Option<VerbsError>) {
        region.check(&range);
        let writable = region.access() == RegionAccess::ReadWrite;
        assert!(writable, "an attachment of another node's mirror cannot be granted");
        let number = self.next;
        self.next = number.checked_add(1).expect("fewer than 2^32 grants");
        let memory = (!range.is_empty()).then(|| register(domain, region, &range, number)).transpose();
        let (memory, shortage) = match memory {
            Ok(memory) => (memory, None),
            Err(error) => (None, Some(error)),
        };
        let key = u64::from(number) << 32 | u64::from(memory.as_ref().map_or(0, MemoryKey::remote));
        self.issued.insert(key, Issued { peer, base: region.pointer(0), memory });
        self.counts[peer] += 1;
        let (first, words) = (range.start as u64, range.len() as u64);
        (Grant { owner, peer: node, region: region.id(), first, words, key }, shortage)
    }

    /// Revokes a grant: when this returns, no write under it lands any more [F9]. If the device fails to
    /// revoke the key, this returns an error, and the caller must end everything that connects the peer. Does
    /// nothing for a grant that is not valid.
    pub(super) fn revoke(&mut self, grant: &Grant) -> io::Result<()> {
        let Some(issued) = self.issued.remove(&grant.key) else { return Ok(()) };
        self.counts[issued.peer] -= 1;
        issued.memory.map_or(Ok(()), MemoryKey::revoke)
    }

    /// Withdraws the grants of memory that begins at `base` and is about to move to other pages: their
    /// writers are refused from now on, because the device would write the old pages. Returns the peers whose
    /// keys could not be revoked.
    pub(super) fn withdraw_over(&mut self, base: NonNull<AtomicU64>) -> Vec<usize> {
        let over = self.issued.values_mut().filter(|issued| issued.base == base);
        over.filter_map(|issued| issued.memory.take()?.revoke().is_err().then_some(issued.peer)).collect()
    }

    /// Returns the number of grants that the peer at `peer` has, not counting `except`.
    pub(super) fn count(&self, peer: usize, except: Option<&Grant>) -> usize {
        let issued = except.and_then(|grant| self.issued.get(&grant.key));
        self.counts[peer] - usize::from(issued.is_some_and(|issued| issued.peer == peer))
    }
}

fn register(
    domain: &Arc<ProtectionDomain>,
    region: &Region,
    range: &Range<usize>,
    number: u32,
) -> Result<MemoryKey, VerbsError> {
    let bytes = 8 * range.len();
    let address = address(number, region.id(), range.start as u64);
    // SAFETY: inside the region, checked by the caller. The region's words are atomics; pages that are
    // unmapped while they are registered stay with the device.
    let memory =
        unsafe { domain.register(region.pointer(range.start).cast(), bytes, address, KeyAccess::Remote) };
    memory.map_err(|cause| VerbsError::MemoryLock { bytes, cause })
}

/// Returns the address to which a write of `writer` to `owner` under `grant` goes, `offset` words after the
/// beginning of its range. For a grant that cannot be meant for these two nodes, returns an address that the
/// device refuses.
pub(super) fn target(
    grant: &Grant,
    offset: usize,
    words: usize,
    writer: NodeId,
    owner: NodeId,
) -> RemoteMemory {
    let [low, high] = [grant.key, grant.key >> 32].map(|half| (half & u64::from(u32::MAX)) as u32);
    let first = grant.first.saturating_add(offset as u64);
    let fits = first.saturating_add(skip_words(grant.region)).saturating_add(words as u64)
        <= REGION_WORDS_MAX as u64;
    let ours = grant.owner == owner && grant.peer == writer;
    let address = if fits && ours { address(high, grant.region, first) } else { NOWHERE };
    RemoteMemory { address, key: low }
}

/// Returns the address of a granted word: a tag, and the word's offset from the beginning of its region's
/// first page, which preserves its offset within the page.
fn address(number: u32, region: RegionId, word: u64) -> u64 {
    let mixed = (u64::from(number) ^ region.0.wrapping_mul(MIX)).wrapping_mul(MIX);
    let tag = (mixed ^ mixed >> 32).wrapping_mul(MIX) >> 42;
    ((tag + 1) << OFFSET_BITS) | (8 * (skip_words(region) + word))
}

/// An odd number without a pattern: 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Tags begin at 1, so no granted address begins with a tag of zero.
const NOWHERE: u64 = 0;

const OFFSET_BITS: u32 = 40;

const _: () = assert!(8 * REGION_WORDS_MAX as u64 == 1 << OFFSET_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: NodeId = NodeId(1);
    const WRITER: NodeId = NodeId(2);

    fn grant() -> Grant {
        let key = 5 << 32 | 0x1234;
        Grant { owner: OWNER, peer: WRITER, region: RegionId(3), first: 512, words: 8, key }
    }

    #[test]
    fn the_target_has_the_key_and_the_offset_within_the_page() {
        let remote = target(&grant(), 7, 1, WRITER, OWNER);
        assert_eq!(remote.key, 0x1234);
        assert_eq!(remote.address, address(5, RegionId(3), 519));
        assert_eq!(remote.address % 4096, 7 * 8);
    }

    #[test]
    fn an_altered_grant_targets_another_address() {
        let (good, tag) =
            (grant(), |grant: &Grant| target(grant, 0, 8, WRITER, OWNER).address >> OFFSET_BITS);
        for bit in 0..32 {
            let number = Grant { key: good.key ^ 1 << (32 + bit), ..good };
            assert_ne!(tag(&number), tag(&good), "bit {bit} of the number");
        }
        for bit in 0..64 {
            let region = Grant { region: RegionId(good.region.0 ^ 1 << bit), ..good };
            assert_ne!(tag(&region), tag(&good), "bit {bit} of the region");
        }
        for (first, words) in [(u64::MAX, 8), (u64::MAX - 100, 8), (1 << 37, 8), (1 << 60, 1)] {
            let far = Grant { first, words, ..good };
            assert_eq!(target(&far, 0, 8, WRITER, OWNER).address, NOWHERE);
        }
        assert_eq!(target(&good, usize::MAX, 8, WRITER, OWNER).address, NOWHERE);
        assert_eq!(target(&good, 0, 8, OWNER, OWNER).address, NOWHERE, "another writer");
        assert_eq!(target(&good, 0, 8, WRITER, WRITER).address, NOWHERE, "another owner");
    }
}
