//! Errors for memory or descriptors that the system refuses, with the limit and what to do next.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use squall_fabric::Shortage;

/// Describes that the system has refused `what`.
pub(crate) fn shortage(what: &str, error: &io::Error) -> Shortage {
    Shortage::new(format!("no {what}: {error}{}", remedy(error)))
}

/// Describes that `words` words of memory were refused.
pub(crate) fn of_memory(words: usize, error: &io::Error) -> Shortage {
    match words.checked_mul(8) {
        Some(bytes) => shortage(&format!("memory for a window or buffer of {bytes} bytes"), error),
        None => shortage(&format!("memory for {words} words"), error),
    }
}

/// Returns whether this process lacks a resource, as opposed to a failure of the other end.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let short = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::AGAIN];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn remedy(error: &io::Error) -> String {
    let limit = |resource, name: &str, unit: &str| match getrlimit(resource).current {
        Some(limit) => format!("; the limit {name} is {limit}{unit} (raise it with ulimit)"),
        None => String::new(),
    };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            limit(Resource::Nofile, "RLIMIT_NOFILE", " descriptors")
                + ", or configure fewer subgroups, each of which needs descriptors on shared memory"
        }
        Some(Errno::NFILE) => "; all processes together hold too many descriptors (raise fs.file-max)".into(),
        _ => {
            limit(Resource::As, "RLIMIT_AS", " bytes")
                + "; run fewer members, or lower window_bytes, message_max or large_max in the configuration"
        }
    }
}
