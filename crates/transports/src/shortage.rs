//! What is short when the system refuses memory or descriptors, with the limit and what to do next.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use squall_fabric::Shortage;

/// The system has refused `what`.
pub(crate) fn shortage(what: &str, error: &io::Error) -> Shortage {
    Shortage::new(format!("no {what}: {error}{}", remedy(error)))
}

/// `words` words of memory were refused.
pub(crate) fn of_memory(words: usize, error: &io::Error) -> Shortage {
    match words.checked_mul(8) {
        Some(bytes) => shortage(&format!("memory for a window or buffer of {bytes} bytes"), error),
        None => shortage(&format!("memory for {words} words"), error),
    }
}

/// Whether this process lacks something, and not the other end.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let short = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::AGAIN];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn remedy(error: &io::Error) -> String {
    let limit = |resource, name: &str, unit: &str| match getrlimit(resource).current {
        Some(limit) => format!("; the limit {name} is {limit}{unit}: raise it (ulimit)"),
        None => String::new(),
    };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            limit(Resource::Nofile, "RLIMIT_NOFILE", " descriptors")
                + ", or have fewer subgroups: on shared memory each takes some"
        }
        Some(Errno::NFILE) => "; all processes together hold too many: raise fs.file-max".into(),
        _ => {
            limit(Resource::As, "RLIMIT_AS", " bytes")
                + "; have fewer members, or lower window_bytes, message_max or large_max in the configuration"
        }
    }
}
