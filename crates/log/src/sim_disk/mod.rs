//! A disk in memory that does all that real ones do, at the will of a seed: crashes, and faults.
//!
//! **Crashes.** Of a write that has not returned, any subset of its 8-byte words is on the disk afterwards; of names that were not
//! flushed, those of the first few operations in their folder. Writes that were submitted together are in no order.
//!
//! **Faults.** Rot at rest and on reading, blocks that cannot be read, writes that fail, are cut short, are lost or go elsewhere and
//! report success, a disk that is full. After a write that failed, the same write again reports success and does nothing, as a flush
//! does after one that failed.

mod fault;
mod files;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::sim::Prng;

use crate::buffer::AlignedBuffer;
use crate::disk::{Disk, DiskCause, DiskError};

use fault::ArmedFault;
pub use fault::{DiskFault, FaultStruck};
use files::{NameChange, SimFiles};

/// The disk. One thread uses it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: RefCell<SimState>,
}

#[derive(Clone, Debug)]
struct SimState {
    prng: Prng,
    block: usize,
    files: SimFiles,
    /// Writes that have been submitted and not completed.
    submitted: BTreeMap<u64, SimWrite>,
    tickets: u64,
    /// How many more operations there are before the machine stops.
    operations_left: Option<u64>,
    is_stopped: bool,
    /// Bytes of all files at most.
    capacity: u64,
    armed: Vec<ArmedFault>,
    struck: Vec<FaultStruck>,
    /// Ranges of which a write has failed.
    failed: BTreeSet<(usize, u64)>,
    /// Blocks that cannot be read.
    unreadable: BTreeSet<(usize, u64)>,
}

#[derive(Clone, Debug)]
struct SimWrite {
    path: String,
    file: usize,
    offset: u64,
    bytes: Vec<u8>,
}

impl SimDisk {
    /// Returns an empty disk with blocks of `block` bytes.
    #[must_use]
    pub fn new(seed: u64, block: usize) -> Self {
        let state = SimState {
            prng: Prng::new(seed),
            block,
            files: SimFiles::default(),
            submitted: BTreeMap::new(),
            tickets: 0,
            operations_left: None,
            is_stopped: false,
            capacity: u64::MAX,
            armed: Vec::new(),
            struck: Vec::new(),
            failed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
        };
        Self { state: RefCell::new(state) }
    }

    /// Has the machine stop in the operation after `operations` others.
    pub fn stop_after(&self, operations: u64) {
        self.state.borrow_mut().operations_left = Some(operations);
    }

    /// Returns whether the machine has stopped: all operations fail until [`Self::crash`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state.borrow().is_stopped
    }

    /// Begins a write, which [`Self::complete`] ends.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn submit(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<u64, DiskError> {
        let mut state = self.state.borrow_mut();
        let file = state.files.find("write", path)?;
        state.tickets += 1;
        let ticket = state.tickets;
        let write = SimWrite { path: path.into(), file, offset, bytes: bytes.bytes().to_vec() };
        state.submitted.insert(ticket, write);
        Ok(ticket)
    }

    /// Ends a write.
    ///
    /// # Errors
    /// If it fails.
    ///
    /// # Panics
    /// If it was not begun.
    pub fn complete(&self, ticket: u64) -> Result<(), DiskError> {
        let mut state = self.state.borrow_mut();
        let write = state.submitted.remove(&ticket).expect("it was submitted");
        state.write(write)
    }

    /// Crashes, and starts again: what was not flushed is there in part.
    pub fn crash(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        for (_, write) in std::mem::take(&mut state.submitted) {
            state.tear(&write);
        }
        state.files.crash(&mut state.prng);
        state.operations_left = None;
        state.is_stopped = false;
        state.armed.clear();
        state.failed.clear();
        state.capacity = u64::MAX;
    }

    /// Returns the bytes of a file as they are on the disk.
    #[must_use]
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        state.files.find("read", path).ok().map(|file| state.files.bytes[file].clone())
    }

    /// Puts other bytes in place of those of a file.
    pub fn replace(&self, path: &str, bytes: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        if let Ok(file) = state.files.find("write", path) {
            state.files.bytes[file] = bytes;
        }
    }
}

impl SimState {
    /// Counts an operation; false if the machine stops in it.
    fn step(&mut self, operation: &'static str, path: &str) -> Result<bool, DiskError> {
        if self.is_stopped {
            return Err(failure(operation, path));
        }
        match &mut self.operations_left {
            Some(0) => self.is_stopped = true,
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(!self.is_stopped)
    }

    fn write(&mut self, write: SimWrite) -> Result<(), DiskError> {
        if !self.step("write", &write.path)? {
            self.tear(&write);
            return Err(failure("write", &write.path));
        }
        if self.failed.contains(&(write.file, write.offset)) {
            return Ok(());
        }
        let end = write.offset + write.bytes.len() as u64;
        let grown = end.saturating_sub(self.files.bytes[write.file].len() as u64);
        if self.files.total() + grown > self.capacity {
            return Err(full("write", &write.path));
        }
        self.strike_write(&write)
    }

    /// Stores the words of a write that survive a crash.
    fn tear(&mut self, write: &SimWrite) {
        let style = self.prng.below(6);
        let words = write.bytes.len().div_ceil(WORD);
        let (cut, chance) = (self.prng.index(words + 1), u32::try_from(self.prng.below(1001)).expect("few"));
        for (i, word) in write.bytes.chunks(WORD).enumerate() {
            let survives = match style {
                0 => false,
                1 => true,
                2 => i < cut,
                3 => i >= cut,
                4 => self.prng.chance(chance),
                // Whole blocks.
                _ => (i * WORD / self.block) as u64 % 2 == u64::from(chance % 2),
            };
            if survives {
                self.files.store(write.file, write.offset + (i * WORD) as u64, word);
            }
        }
    }
}

impl Disk for SimDisk {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        let state = self.state.borrow();
        if state.is_stopped {
            return Err(failure("list", folder));
        }
        Ok(state.files.list(folder))
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        let state = self.state.borrow();
        state.files.find("read", path).map(|file| state.files.bytes[file].len() as u64)
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        let mut state = self.state.borrow_mut();
        if state.is_stopped {
            return Err(failure("read", path));
        }
        let file = state.files.find("read", path)?;
        let bytes = &state.files.bytes[file];
        let begin = usize::try_from(offset).expect("in memory").min(bytes.len());
        let length = buffer.len().min(bytes.len() - begin);
        buffer.bytes_mut()[..length].copy_from_slice(&bytes[begin..begin + length]);
        let blocks = offset / state.block as u64..(offset + length as u64).div_ceil(state.block as u64);
        if state.unreadable.range((file, blocks.start)..(file, blocks.end)).next().is_some() {
            return Err(failure("read", path));
        }
        state.strike_read(path, offset, &mut buffer.bytes_mut()[..length]);
        Ok(length)
    }

    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError> {
        begin_step(length);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let continues = state.step("create", path)?;
        let fits = state.files.total() + length <= state.capacity;
        let written = if continues && fits { length } else { state.prng.below(length + 1) };
        let file = state.files.add(usize::try_from(written).expect("in memory"));
        state.files.change(NameChange::Link(path.into(), file));
        match (continues, fits) {
            (true, true) => Ok(()),
            (true, false) => Err(full("create", path)),
            _ => Err(failure("create", path)),
        }
    }

    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
        let ticket = self.submit(path, offset, bytes)?;
        self.complete(ticket)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.state.borrow_mut();
        let continues = state.step("rename", from)?;
        state.files.find("rename", from)?;
        state.files.change(NameChange::Move(from.into(), to.into()));
        if continues { Ok(()) } else { Err(failure("rename", from)) }
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        let mut state = self.state.borrow_mut();
        let continues = state.step("remove", path)?;
        state.files.find("remove", path)?;
        state.files.change(NameChange::Unlink(path.into()));
        if continues { Ok(()) } else { Err(failure("remove", path)) }
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        let mut state = self.state.borrow_mut();
        if !state.step("flush", folder)? {
            return Err(failure("flush", folder));
        }
        state.files.flush(folder);
        Ok(())
    }
}

fn failure(operation: &'static str, path: &str) -> DiskError {
    DiskError { operation, path: path.into(), cause: DiskCause::System(rustix::io::Errno::IO.raw_os_error()) }
}

fn full(operation: &'static str, path: &str) -> DiskError {
    DiskError {
        operation,
        path: path.into(),
        cause: DiskCause::System(rustix::io::Errno::NOSPC.raw_os_error()),
    }
}

/// What survives as a whole.
const WORD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> SimDisk {
        let disk = SimDisk::new(seed, 64);
        disk.create("a/x", 256).expect("there is space");
        disk.flush_folder("a").expect("it can be flushed");
        disk
    }

    fn buffer(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::default();
        buffer.extend(bytes);
        buffer
    }

    #[test]
    fn any_words_of_a_write_survive_a_crash() {
        let (mut wholes, mut words) = (BTreeSet::new(), 0);
        for seed in 0..400 {
            let disk = disk(seed);
            disk.write("a/x", 0, &buffer(&[1; 64])).expect("it works");
            disk.submit("a/x", 64, &buffer(&[2; 64])).expect("it exists");
            disk.crash();
            let bytes = disk.contents("a/x").expect("its name was flushed");
            assert_eq!(bytes[..64], [1; 64], "what has returned stays");
            let survived: Vec<bool> = bytes[64..128].chunks(8).map(|word| word == [2; 8]).collect();
            assert!(bytes[64..128].chunks(8).all(|word| word == [0; 8] || word == [2; 8]), "words are whole");
            words += survived.iter().filter(|survived| **survived).count();
            wholes.insert(survived);
        }
        assert!(wholes.len() > 30 && words > 800 && words < 2400, "{} {words}", wholes.len());
    }

    #[test]
    fn names_that_were_not_flushed_can_be_lost() {
        let mut found = BTreeSet::new();
        for seed in 0..50 {
            let disk = disk(seed);
            disk.create("a/new", 64).expect("there is space");
            disk.rename("a/new", "a/y").expect("it exists");
            disk.crash();
            found.insert(disk.list("a").expect("it is up"));
        }
        let of = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found, BTreeSet::from([of(&["x"]), of(&["new", "x"]), of(&["x", "y"])]));
    }

    #[test]
    fn the_machine_stops_in_an_operation() {
        let disk = disk(1);
        disk.stop_after(1);
        disk.write("a/x", 0, &buffer(&[1; 64])).expect("the first one works");
        disk.write("a/x", 64, &buffer(&[2; 64])).expect_err("it stops here");
        assert!(disk.is_stopped());
        disk.flush_folder("a").expect_err("and stays so");
        disk.crash();
        disk.write("a/x", 0, &buffer(&[3; 64])).expect("until it starts again");
    }

    #[test]
    fn faults_strike_once_and_are_known() {
        let disk = disk(3);
        disk.arm(DiskFault::LostWrite, "a/", 1);
        disk.write("a/x", 0, &buffer(&[1; 64])).expect("the second one is lost");
        disk.write("a/x", 64, &buffer(&[2; 64])).expect("and reports success");
        assert_eq!(disk.contents("a/x").expect("it exists")[64..128], [0; 64]);
        let struck = disk.take_struck();
        assert_eq!((struck.len(), struck[0].fault, struck[0].offset), (1, DiskFault::LostWrite, 64));

        disk.arm(DiskFault::WriteError, "a/", 0);
        disk.write("a/x", 128, &buffer(&[3; 64])).expect_err("it fails");
        disk.write("a/x", 128, &buffer(&[3; 64])).expect("again, it seems to work");
        assert_ne!(disk.contents("a/x").expect("it exists")[128..192], [3; 64]);

        disk.limit(300);
        assert!(disk.create("a/z", 100).expect_err("it is full").is_full());
    }
}
