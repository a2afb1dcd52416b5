//! Fetching: this process reads a peer's memory, if the kernel allows it.
//!
//! A link begins with a probe: each end names an unpredictable word of its memory, and the other reads it. So
//! a peer behind a policy of the kernel (Yama, seccomp, capabilities), in another process namespace, or with
//! a process id that now belongs to another process, is detected before anything depends on it.
//!
//! **Identity.** A process id may name another process once its own has ended and was waited for. So a fetch
//! is valid only if the process that was probed is alive *after* it ([`PeerMemory::is_alive`]): then the id
//! was its own all the time.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use squall_fabric::Region;

use super::wire::ProbeWord;

/// The memory of a peer that this process may read.
#[derive(Debug)]
pub(super) struct PeerMemory {
    pid: libc::pid_t,
    process: OwnedFd,
}

impl PeerMemory {
    /// Opens the memory of the process that has announced `witness`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not allow it, or the process does not have that word.
    pub(super) fn of(witness: &ProbeWord) -> io::Result<Self> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "no such process in this namespace");
        let pid = libc::pid_t::try_from(witness.pid).map_err(|_| unknown())?;
        let process = pidfd_open(Pid::from_raw(pid).ok_or_else(unknown)?, PidfdFlags::empty())?;
        let memory = Self { pid, process };
        let word = Region::heap(super::memory::INTERNAL, 1);
        memory.fetch(witness.address, &word, 0, 1)?;
        if word.load(0) == witness.word && memory.is_alive() { Ok(memory) } else { Err(unknown()) }
    }

    /// Reads `words` words from `address` into `target`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not allow it, the process has ended, or the address is not mapped;
    /// some words may have been copied then.
    ///
    /// # Panics
    /// Panics if the words do not fit the target.
    pub(super) fn fetch(&self, address: u64, target: &Region, first: usize, words: usize) -> io::Result<()> {
        target.check(&(first..first + words));
        let beyond = || io::Error::from_raw_os_error(libc::EFAULT);
        let address = usize::try_from(address).map_err(|_| beyond())?;
        let mut done = 0;
        while done < words {
            let bytes = 8 * (words - done);
            let local =
                libc::iovec { iov_base: target.pointer(first + done).as_ptr().cast(), iov_len: bytes };
            let start = address.checked_add(8 * done).ok_or_else(beyond)?;
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: bytes };
            // SAFETY: the kernel stores whole words into a region of this process (checked above) whose words
            // are accessed as atomics only; it checks the other process's addresses.
            let read =
                unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(read) {
                Ok(0) => return Err(beyond()),
                // A short read ends at a page, and so at a word; the rest of a word would be read again.
                Ok(read) => done += (read / 8).max(1).min(words - done),
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Returns whether the process has not ended.
    pub(super) fn is_alive(&self) -> bool {
        let mut ends = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec::default())) == Ok(0)
    }
}

/// A word of this process that its peers can try to read.
#[derive(Debug)]
pub(super) struct OwnProbeWord(Region);

impl OwnProbeWord {
    pub(super) fn new() -> Self {
        let mut word = [0; 8];
        // If this fails, peers do not find the expected word, and copy differently; nothing else depends on
        // it.
        let _ = getrandom::fill(&mut word);
        let region = Region::heap(super::memory::INTERNAL, 1);
        region.store(0, u64::from_le_bytes(word));
        Self(region)
    }

    pub(super) fn shown(&self) -> ProbeWord {
        let address = self.0.pointer(0).as_ptr().addr() as u64;
        ProbeWord { pid: std::process::id(), address, word: self.0.load(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_process_are_fetched() {
        let own = OwnProbeWord::new();
        let memory = PeerMemory::of(&own.shown()).expect("a process may read itself");
        let [source, target] = [0, 1].map(|_| Region::heap(super::super::memory::INTERNAL, 5000));
        (0..5000).for_each(|word| source.store(word, 7 * word as u64));
        let address = source.pointer(3).as_ptr().addr() as u64;
        memory.fetch(address, &target, 1, 4000).expect("memory");
        assert!((0..4000).all(|word| target.load(1 + word) == 7 * (3 + word) as u64));
        assert_eq!((target.load(0), target.load(4001)), (0, 0));
        assert!(memory.fetch(8, &target, 0, 1).is_err(), "the address is not mapped");
        assert!(memory.fetch(u64::MAX - 7, &target, 0, 4000).is_err());
    }

    #[test]
    fn another_word_is_another_process() {
        let own = OwnProbeWord::new();
        let witness = own.shown();
        assert!(PeerMemory::of(&ProbeWord { word: witness.word ^ 1, ..witness }).is_err());
        assert!(PeerMemory::of(&ProbeWord { pid: 0, ..witness }).is_err());
        assert!(PeerMemory::of(&ProbeWord { pid: u32::MAX, ..witness }).is_err());
    }

    /// The id of a process that has ended proves nothing any more.
    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("a process");
        let pid = libc::pid_t::try_from(child.id()).expect("a number");
        let process = pidfd_open(Pid::from_raw(pid).expect("not 0"), PidfdFlags::empty()).expect("our child");
        let memory = PeerMemory { pid, process };
        assert!(memory.is_alive());
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert!(!memory.is_alive());
    }
}
