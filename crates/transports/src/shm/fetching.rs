//! Fetching: this process reads a peer's memory, if the kernel lets it.
//!
//! A link begins with a try: each end names a word of its memory that nobody guesses, and the other reads it. So a peer
//! behind a policy of the kernel (Yama, seccomp, capabilities), in another process namespace, or under a number that is
//! by now another's, is found out before anything depends on it.
//!
//! **Who is read.** A number names another process once its own has ended and was waited for. So a fetch holds only if
//! the process that was tried lives *after* it ([`PeerMemory::is_alive`]): then the number was its own all the time.

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
    /// The memory of the process that shows its witness.
    ///
    /// # Errors
    /// If the kernel does not let us, or the process is not the one that knows the word.
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
    /// If the kernel does not let us, the process has ended, or nothing is there; some words may be there then.
    ///
    /// # Panics
    /// If the words do not fit the target.
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
            // SAFETY: the kernel stores whole words of ours, inside a region (checked above), that are accessed as atomics
            // only; it checks the other process's addresses.
            let read =
                unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(read) {
                Ok(0) => return Err(beyond()),
                // It stops at pages, so at words; the rest of one would be read again.
                Ok(read) => done += (read / 8).max(1).min(words - done),
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Whether the process has not ended.
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
        // Without it peers do not find what they look for, which is no harm.
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
        assert!(memory.fetch(8, &target, 0, 1).is_err(), "nothing is there");
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

    /// The number of a process that has ended says nothing any more.
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
