//! What is on a disk, and what may be on it after a power cut.
//!
//! A disk acknowledges a write when it has it in its cache, and a flush when everything that it had acknowledged before is on the
//! medium. When the power fails, what is in the cache may come to the medium or not: each sector of 512 bytes by itself, in any
//! order. So the possible contents are what the last flush has left, with any part of the sectors that were written after it.
//!
//! One exception: the two sectors of the superblock of ext4 come together. That file system writes them in place, with a checksum over
//! both, and does not mount if they do not match ("invalid superblock checksum"): so it counts on a disk that does not tear them.

use std::collections::HashMap;
use std::sync::Arc;

use squall_fabric::sim::Prng;

/// The bytes of a disk, in pages; a page that is absent has zeros. A copy shares its pages.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    pages: HashMap<u64, Arc<[u8; PAGE]>>,
}

/// What happened on a disk, in order.
pub(crate) enum DiskEvent {
    /// It has taken a write into its cache. Zeros have no bytes here.
    Write { offset: u64, length: usize, bytes: Option<Vec<u8>> },
    /// Everything before is on the medium.
    Flush,
}

/// Which of the sectors in the cache come to the medium when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheFate {
    /// None.
    Lost,
    /// All.
    Kept,
    /// Those of the first writes.
    Beginning,
    /// Those of any writes.
    Writes,
    /// Any of them: writes are torn.
    Sectors,
}

impl CacheFate {
    pub(crate) const ALL: [Self; 5] = [Self::Lost, Self::Kept, Self::Beginning, Self::Writes, Self::Sectors];
}

impl Contents {
    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, sector) in (offset..).step_by(SECTOR).zip(bytes.chunks_mut(SECTOR)) {
            if let Some(page) = self.pages.get(&(at / PAGE as u64)) {
                let from = (at % PAGE as u64) as usize;
                sector.copy_from_slice(&page[from..from + sector.len()]);
            }
        }
        bytes
    }

    /// Writes those sectors that `keeps` wants, which gets the place of each on the disk.
    pub(crate) fn write(&mut self, event: &DiskEvent, mut keeps: impl FnMut(u64) -> bool) {
        let DiskEvent::Write { offset, length, bytes } = event else { return };
        for from in (0..*length).step_by(SECTOR).filter(|from| keeps(offset + *from as u64)) {
            let at = offset + from as u64;
            let (number, place) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let sector = bytes.as_ref().map(|bytes| &bytes[from..from + SECTOR]);
            match (sector, self.pages.get_mut(&number)) {
                (None, None) => {}
                (None, Some(page)) => Arc::make_mut(page)[place..place + SECTOR].fill(0),
                (Some(sector), Some(page)) => {
                    Arc::make_mut(page)[place..place + SECTOR].copy_from_slice(sector);
                }
                (Some(sector), None) => {
                    let mut page = [0; PAGE];
                    page[place..place + SECTOR].copy_from_slice(sector);
                    self.pages.insert(number, Arc::new(page));
                }
            }
        }
    }

    /// What a power cut leaves of `cache`, which was written after the last flush.
    pub(crate) fn cut(&mut self, cache: &[&DiskEvent], fate: CacheFate, prng: &mut Prng) {
        let beginning = prng.index(cache.len() + 1);
        for (number, write) in cache.iter().enumerate() {
            let is_written = match fate {
                CacheFate::Lost => false,
                CacheFate::Kept | CacheFate::Sectors => true,
                CacheFate::Beginning => number < beginning,
                CacheFate::Writes => prng.chance(500),
            };
            let mut is_kept = true;
            let mut keeps = |at| {
                if fate == CacheFate::Sectors && at != SUPERBLOCK + SECTOR as u64 {
                    is_kept = prng.chance(500);
                }
                is_kept
            };
            if is_written {
                self.write(write, &mut keeps);
            }
        }
    }
}

/// Where the superblock of ext4 is, of two sectors.
const SUPERBLOCK: u64 = 1024;
/// What a disk writes as a whole, or not at all.
pub(crate) const SECTOR: usize = 512;
const PAGE: usize = 4096;
