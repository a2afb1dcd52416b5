//! Faults of a simulated disk.

use super::{SimDisk, SimState, SimWrite, failure};
use crate::disk::{DiskCause, DiskError};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskFault {
    /// A write fails; some of it is on the disk.
    WriteError,
    /// A write ends early.
    ShortWrite,
    /// A write reports success and is not on the disk.
    LostWrite,
    /// A write reports success and is elsewhere on the disk.
    MisdirectedWrite,
    /// What is read is not what is on the disk, once.
    ReadRot,
    /// A block cannot be read, until it is written.
    ReadError,
    /// Bits on the disk change.
    Rot,
}

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultStruck {
    /// Which.
    pub fault: DiskFault,
    /// In which file.
    pub path: String,
    /// Where.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ArmedFault {
    fault: DiskFault,
    prefix: &'static str,
    /// How many operations it passes over first; `None` for all but some, at random.
    after: Option<u64>,
}

impl SimDisk {
    /// Has a fault strike an operation on a path with this prefix, after `after` others.
    pub fn arm(&self, fault: DiskFault, prefix: &'static str, after: u64) {
        self.state.borrow_mut().armed.push(ArmedFault { fault, prefix, after: Some(after) });
    }

    /// Has a fault strike every second operation on a path with this prefix, on average.
    pub fn arm_often(&self, fault: DiskFault, prefix: &'static str) {
        self.state.borrow_mut().armed.push(ArmedFault { fault, prefix, after: None });
    }

    /// Limits the bytes of all files.
    pub fn limit(&self, capacity: u64) {
        self.state.borrow_mut().capacity = capacity;
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.state.borrow().files.total()
    }

    /// Changes some bits of 8 bytes at `offset` of a file. Not fuzzed: any 8 bytes are a number.
    pub fn rot(&self, path: &str, offset: u64) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Ok(file) = state.files.find("read", path) else { return };
        let begin = usize::try_from(offset).expect("in memory");
        let Some(bytes) = state.files.bytes[file].get_mut(begin..begin + 8) else { return };
        let flips = state.prng.draw() | 1 << state.prng.below(64);
        let value = u64::from_le_bytes((&*bytes).try_into().expect("8 bytes")) ^ flips;
        bytes.copy_from_slice(&value.to_le_bytes());
        state.struck.push(FaultStruck { fault: DiskFault::Rot, path: path.into(), offset, length: 8 });
    }

    /// Makes the block at `offset` of a file unreadable.
    pub fn make_unreadable(&self, path: &str, offset: u64) {
        let mut state = self.state.borrow_mut();
        let Ok(file) = state.files.find("read", path) else { return };
        let block = state.block as u64;
        state.unreadable.insert((file, offset / block));
        let (fault, offset) = (DiskFault::ReadError, offset / block * block);
        state.struck.push(FaultStruck { fault, path: path.into(), offset, length: block });
    }

    /// Returns the faults that have struck since this was last called.
    pub fn take_struck(&self) -> Vec<FaultStruck> {
        std::mem::take(&mut self.state.borrow_mut().struck)
    }
}

impl SimState {
    /// The fault that strikes an operation of these kinds on `path`.
    fn struck_by(&mut self, kinds: &[DiskFault], path: &str) -> Option<DiskFault> {
        let mut found = None;
        for i in (0..self.armed.len()).rev() {
            let armed = &mut self.armed[i];
            if !kinds.contains(&armed.fault) || !path.starts_with(armed.prefix) {
                continue;
            }
            match &mut armed.after {
                Some(0) => found = Some(self.armed.remove(i).fault),
                Some(after) => *after -= 1,
                None => {
                    let fault = armed.fault;
                    found = found.or(self.prng.chance(500).then_some(fault));
                }
            }
        }
        found
    }

    /// Carries out a write, with the fault that strikes it.
    pub(super) fn strike_write(&mut self, write: &SimWrite) -> Result<(), DiskError> {
        let (file, offset, length) = (write.file, write.offset, write.bytes.len() as u64);
        let kinds =
            [DiskFault::WriteError, DiskFault::ShortWrite, DiskFault::LostWrite, DiskFault::MisdirectedWrite];
        let fault = self.struck_by(&kinds, &write.path);
        if let Some(fault) = fault {
            self.struck.push(FaultStruck { fault, path: write.path.clone(), offset, length });
        }
        match fault {
            Some(DiskFault::WriteError) => {
                self.tear(write);
                self.failed.insert((file, offset));
                return Err(failure("write", &write.path));
            }
            Some(DiskFault::ShortWrite) => {
                let written = self.prng.below(length / self.block as u64) * self.block as u64;
                self.files.store(file, offset, &write.bytes[..usize::try_from(written).expect("in memory")]);
                self.failed.insert((file, offset));
                let cause = DiskCause::Short { written, wanted: length };
                return Err(DiskError { operation: "write", path: write.path.clone(), cause });
            }
            Some(DiskFault::LostWrite) => return Ok(()),
            Some(DiskFault::MisdirectedWrite) => {
                self.misdirect(write);
                return Ok(());
            }
            _ => {}
        }
        self.files.store(file, offset, &write.bytes);
        let blocks = offset / self.block as u64..(offset + length).div_ceil(self.block as u64);
        self.unreadable.retain(|(of, block)| *of != file || !blocks.contains(block));
        Ok(())
    }

    /// Stores a write elsewhere in a file of the same folder, where there is space.
    fn misdirect(&mut self, write: &SimWrite) {
        let folder = write.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let paths = self.files.paths().filter(|path| path.starts_with(folder) && path.ends_with(".segment"));
        let paths: Vec<String> = paths.cloned().collect();
        if paths.is_empty() {
            return;
        }
        let path = paths[self.prng.index(paths.len())].clone();
        let file = self.files.find("write", &path).expect("it is listed");
        let (block, length) = (self.block as u64, write.bytes.len() as u64);
        let Some(blocks) = (self.files.bytes[file].len() as u64).checked_sub(length) else { return };
        let offset = self.prng.below(blocks / block + 1) * block;
        if (file, offset) == (write.file, write.offset) {
            return;
        }
        self.files.store(file, offset, &write.bytes);
        self.struck.push(FaultStruck { fault: DiskFault::MisdirectedWrite, path, offset, length });
    }

    /// Changes what is read, if that is to be.
    pub(super) fn strike_read(&mut self, path: &str, offset: u64, bytes: &mut [u8]) {
        if bytes.is_empty() || self.struck_by(&[DiskFault::ReadRot], path).is_none() {
            return;
        }
        let at = self.prng.index(bytes.len());
        bytes[at] ^= 1 << self.prng.below(8);
        let (fault, offset) = (DiskFault::ReadRot, offset + at as u64);
        self.struck.push(FaultStruck { fault, path: path.into(), offset, length: 1 });
    }
}
