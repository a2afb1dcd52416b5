//! Whether this process can share memory at all: a sandbox may refuse what that needs.
//!
//! It is tried, since no list of policies (seccomp, vm.memfd_noexec, security modules, other kernels) would be complete. A
//! choice of transports asks *before* it offers shared memory, so that a refusal leads to the next transport instead of
//! an error in the middle of the set-up.

use std::io;
use std::sync::Once;

use rustix::fd::AsFd as _;
use squall_fabric::region::Access;

use super::fetching::{OwnProbeWord, PeerMemory};
use super::memory::{FileMapping, ShmSegment, anonymous_file};

/// Why this process cannot share memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process cannot share memory: {step} is refused ({cause}): {ADVICE}")]
pub struct ShmUnavailable {
    step: &'static str,
    cause: String,
}

/// Tries everything that sharing memory needs, on one page.
///
/// # Errors
/// Returns what is refused, and what to do.
pub fn check() -> Result<(), ShmUnavailable> {
    let refused = |step| move |error: io::Error| ShmUnavailable { step, cause: error.to_string() };
    anonymous_file().map_err(refused("an anonymous file (memfd_create)"))?;
    let read_only = ShmSegment::new(PAGE_WORDS).map_err(refused("a shared mapping of an anonymous file"))?;
    read_only.seal_for_readers().map_err(refused("sealing an anonymous file against writers"))?;
    let writable = ShmSegment::new(PAGE_WORDS).map_err(refused("a second anonymous file"))?;
    writable.seal_for_writers().map_err(refused("sealing an anonymous file"))?;
    for (segment, access) in [(&read_only, Access::ReadOnly), (&writable, Access::ReadWrite)] {
        let mapping = FileMapping::reserve(8 * PAGE_WORDS, 0).map_err(refused("a range of addresses"))?;
        let file = segment.file();
        mapping.place(file.as_fd(), 0, access).map_err(refused("a second mapping of an anonymous file"))?;
    }
    Ok(())
}

/// Same as [`check`], for a process that uses another transport instead: the first failure is logged as a warning.
///
/// # Errors
/// As [`check`].
pub fn check_or_warn() -> Result<(), ShmUnavailable> {
    static WARNED: Once = Once::new();
    check().inspect_err(|why| WARNED.call_once(|| crate::log::warn!("other transports are used: {why}")))
}

/// Returns whether the kernel lets this process read the memory of a process, at least its own; a policy may still refuse
/// others (`kernel.yama.ptrace_scope`, capabilities, process namespaces).
///
/// # Errors
/// Returns the system's error.
pub fn can_read_processes() -> io::Result<()> {
    PeerMemory::of(&OwnProbeWord::new().shown()).map(drop)
}

const ADVICE: &str =
    "let the sandbox or container allow it, or choose a TCP address and `transport = \"tcp\"` or \"auto\"";
const PAGE_WORDS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_can_be_shared_here() {
        assert_eq!(check(), Ok(()));
        assert_eq!(check_or_warn(), Ok(()));
        can_read_processes().expect("a process may read itself");
    }

    #[test]
    fn a_refusal_names_its_cause_and_a_remedy() {
        let why = ShmUnavailable { step: "an anonymous file (memfd_create)", cause: "not permitted".into() };
        let text = why.to_string();
        assert!(
            text.contains("memfd_create") && text.contains("not permitted") && text.contains("\"tcp\""),
            "{text}"
        );
    }
}
