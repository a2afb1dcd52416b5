//! Small values that no crash destroys: two checked copies in one file.
//!
//! A new value is written to one copy, and flushed, then to the other one, and flushed; first to the copy that is not the newest
//! good one. So at any moment one copy is whole, it is of the last value that was completely written or of the one after, and one
//! copy may rot without loss [W9].

use crate::buffer::AlignedBuffer;
use crate::check::crc64;
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskError};
use crate::mutation;

/// The least distance of the copies in the file.
pub const COPY_BYTES_MIN: usize = 16 << 10;
/// The longest value: the register has a few words for each view that has ended with messages, so that some millions fit.
pub const COPY_VALUE_BYTES_MAX: usize = (64 << 20) - HEADER_BYTES;
/// Magic, length, generation, check.
const HEADER_BYTES: usize = 24;
/// `SQRG`
const MAGIC: u32 = u32::from_le_bytes(*b"SQRG");

/// A file with two copies of a value.
#[derive(Debug)]
pub(crate) struct CopyPair {
    path: &'static str,
    block: usize,
    /// Where the second copy begins, and so the longest copy.
    distance: usize,
    /// The copy that holds the newest value.
    newest: usize,
    generation: u64,
}

impl CopyPair {
    /// Makes the file with a first value; it is there as a whole or not at all.
    pub(crate) fn create(
        disk: &dyn Disk,
        path: &'static str,
        block: usize,
        value: &[u8],
    ) -> Result<Self, DiskError> {
        let mut pair = Self { path, block, distance: 0, newest: 1, generation: 0 };
        pair.replace(disk, value)?;
        Ok(pair)
    }

    /// Puts a larger file with the value into the place of this one, or leaves it as it is.
    fn replace(&mut self, disk: &dyn Disk, value: &[u8]) -> Result<(), DiskError> {
        let temporary = format!("{}.new", self.path);
        let mut larger = Self { distance: distance_for(value.len(), self.block), ..*self };
        disk.create(&temporary, 2 * larger.distance as u64)?;
        larger.write_to(disk, &temporary, value)?;
        disk.rename(&temporary, self.path)?;
        disk.flush_folder("")?;
        *self = larger;
        Ok(())
    }

    /// Reads the file: its newest good copy, or `None` if no copy is good.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &'static str,
        block: usize,
    ) -> Result<Option<(Self, Vec<u8>)>, DiskError> {
        let distance = usize::try_from(disk.length(path)? / 2).unwrap_or(usize::MAX);
        if distance % block != 0
            || !(HEADER_BYTES..=distance_for(COPY_VALUE_BYTES_MAX, block)).contains(&distance)
        {
            return Ok(None);
        }
        let copies = [read_copy(disk, path, 0, distance)?, read_copy(disk, path, distance, distance)?];
        if copies.iter().any(Option::is_none) && copies.iter().any(Option::is_some) {
            reach(LogPoint::CopyHealed);
        }
        let found = copies.into_iter().enumerate().filter_map(|(copy, found)| Some((copy, found?)));
        let newest = found.max_by_key(|(_, (generation, _))| *generation);
        Ok(newest
            .map(|(newest, (generation, value))| (Self { path, block, distance, newest, generation }, value)))
    }

    /// Returns whether both copies of the file are good, and of the same value.
    pub(crate) fn is_whole(disk: &dyn Disk, path: &'static str) -> Result<bool, DiskError> {
        let distance = usize::try_from(disk.length(path)? / 2).unwrap_or(0);
        let first = read_copy(disk, path, 0, distance)?;
        Ok(first.is_some() && first == read_copy(disk, path, distance, distance)?)
    }

    /// Writes a new value to both copies.
    ///
    /// # Panics
    /// If it is too long.
    pub(crate) fn write(&mut self, disk: &dyn Disk, value: &[u8]) -> Result<(), DiskError> {
        if value.len() > self.distance - HEADER_BYTES {
            reach(LogPoint::CopyGrown);
            return self.replace(disk, value);
        }
        self.write_to(disk, self.path, value)
    }

    fn write_to(&mut self, disk: &dyn Disk, path: &str, value: &[u8]) -> Result<(), DiskError> {
        let generation = self.generation + 1;
        let mut bytes = AlignedBuffer::default();
        bytes.extend(&copy_to_bytes(generation, value));
        bytes.pad_to(bytes.len().next_multiple_of(self.block));
        let (first, second) = (1 - self.newest, self.newest);
        if mutant!(SingleCopy) {
            self.generation = generation;
            return disk.write(path, 0, &bytes);
        }
        disk.write(path, (first * self.distance) as u64, &bytes)?;
        (self.generation, self.newest) = (generation, first);
        disk.write(path, (second * self.distance) as u64, &bytes)
    }
}

/// Reads one copy; `None` if it is not good.
fn read_copy(
    disk: &dyn Disk,
    path: &str,
    offset: usize,
    length: usize,
) -> Result<Option<(u64, Vec<u8>)>, DiskError> {
    let mut bytes = AlignedBuffer::zeroed(length);
    match disk.read(path, offset as u64, &mut bytes) {
        Ok(length) => {
            let found = copy_from_bytes(&bytes.bytes()[..length]);
            Ok(found.map(|(generation, value)| (generation, value.to_vec())))
        }
        Err(error) if error.is_absent() => Err(error),
        // As good as bad bytes.
        Err(_) => Ok(None),
    }
}

/// Returns the distance of copies in which a value of `length` bytes fits.
fn distance_for(length: usize, block: usize) -> usize {
    (HEADER_BYTES + length).max(COPY_BYTES_MIN).next_power_of_two().max(block)
}

/// Writes a copy.
///
/// # Panics
/// If the value is too long.
#[must_use]
pub fn copy_to_bytes(generation: u64, value: &[u8]) -> Vec<u8> {
    assert!(value.len() <= COPY_VALUE_BYTES_MAX, "the value fits a copy");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(u32::try_from(value.len()).expect("checked above").to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(value);
    let check = crc64(&bytes);
    bytes[16..24].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Reads a copy, with what follows it: its generation and the value. Fuzzed as `register`.
#[must_use]
pub fn copy_from_bytes(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let end = HEADER_BYTES.checked_add(half(4) as usize)?;
    if half(0) != MAGIC || end > bytes.len() {
        return None;
    }
    let mut checked = bytes[..end].to_vec();
    checked[16..24].fill(0);
    (crc64(&checked) == word(16)).then_some((word(8), &bytes[HEADER_BYTES..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_read_as_written() {
        for value in [&b""[..], b"value", &[7; COPY_BYTES_MIN]] {
            let mut bytes = copy_to_bytes(9, value);
            assert_eq!(copy_from_bytes(&bytes), Some((9, value)));
            bytes.push(1);
            assert_eq!(copy_from_bytes(&bytes), Some((9, value)), "what follows is not of it");
        }
    }

    #[test]
    fn every_bit_is_checked() {
        let bytes = copy_to_bytes(9, b"value");
        for bit in 0..8 * bytes.len() {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(copy_from_bytes(&wrong), None, "bit {bit}");
        }
        assert!((0..bytes.len()).all(|length| copy_from_bytes(&bytes[..length]).is_none()));
    }
}
