//! Why RDMA cannot be used here, with what to do about it.

use std::fmt;
use std::io;

squall_fabric::debug_as_text!(VerbsError);

/// Why a [`super::VerbsFabric`] could not be created.
#[derive(thiserror::Error)]
pub enum VerbsError {
    /// libibverbs is not installed.
    #[error(
        "RDMA needs the library libibverbs, which is not installed ({detail}): install the packages libibverbs1 and \
         ibverbs-providers (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers) or libibverbs (Fedora, \
         RHEL), or choose another transport"
    )]
    LibraryMissing {
        /// The loader's message.
        detail: String,
    },
    /// This program was built without RDMA.
    #[error(
        "this program was built without RDMA: build it with the feature `verbs`, which is on by default, and not for a static target, or \
         choose another transport"
    )]
    LeftOut,
    /// libibverbs lacks a required function.
    #[error("the library libibverbs is too old ({detail}): install version 1.11 (rdma-core 31) or later")]
    LibraryTooOld {
        /// The loader's message.
        detail: String,
    },
    /// No device fits; with the reason for each that exists.
    #[error("{}", no_device(.wanted.as_deref(), .refusals))]
    NoDevice {
        /// The device that the settings name, if they name one.
        wanted: Option<String>,
        /// The devices of this machine that were considered, each with the reason for which it cannot be used.
        refusals: Vec<(String, Unsuitable)>,
    },
    /// This process may not lock enough memory.
    #[error(
        "the device cannot lock {bytes} bytes of memory for this process ({cause}): raise the limit of locked \
         memory (`ulimit -l unlimited`, `memlock` in limits.conf, LimitMEMLOCK= of a systemd unit)"
    )]
    MemoryLock {
        /// The number of bytes to lock.
        bytes: usize,
        /// The system's error.
        cause: io::Error,
    },
    /// The list of peers is not valid: each other node needs exactly one stream.
    #[error("{0}")]
    Peers(String),
    /// A call of the system or the device failed.
    #[error("{call} failed: {cause}")]
    System {
        /// The function that was called.
        call: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl VerbsError {
    /// Returns a closure for `map_err` that names the failed call.
    pub(super) fn system(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |cause| Self::System { call, cause }
    }
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// It cannot be opened or queried.
    Closed(String),
    /// It is an iWARP device: such devices report a refused write as completed, so a completion proves
    /// nothing [F6].
    Iwarp,
    /// It is neither an InfiniBand nor a RoCE device, so its messages may overtake each other [F1]; Amazon's
    /// EFA is one.
    Unordered,
    /// None of its ports is active, or not the one that the settings name.
    PortDown,
    /// Its port has no address, or not the one that the settings name.
    NoAddress,
    /// This processor needs barriers for memory that a device writes, which have not been tested yet [F4].
    Processor,
    /// It violated an axiom in the test at the start.
    Broken(String),
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(detail) => return write!(f, "it cannot be opened: {detail}"),
            Self::Iwarp => "it is an iWARP device, whose completions do not prove that a write has landed",
            Self::Unordered => "it is neither InfiniBand nor RoCE, so its writes may overtake each other",
            Self::PortDown => "none of its ports is active, or not the one that the settings name",
            Self::NoAddress => "its port has no address (GID), or not the one that the settings name",
            Self::Processor => "RDMA has not been tested with processors other than x86-64",
            Self::Broken(detail) => {
                return write!(f, "it failed the test of memory order at the start: {detail}");
            }
        })
    }
}

fn no_device(wanted: Option<&str>, refusals: &[(String, Unsuitable)]) -> String {
    let mut text = match wanted {
        Some(name) => format!("the RDMA device `{name}` cannot be used"),
        None => "no RDMA device can be used".to_owned(),
    };
    for (i, (device, reason)) in refusals.iter().enumerate() {
        text.push_str(if i == 0 { ": " } else { "; " });
        text.push_str(&format!("{device}: {reason}"));
    }
    if refusals.is_empty() {
        text.push_str(
            ", because there is none: `rdma link` lists the devices, and `rdma link add rxe0 type rxe netdev \
             eth0` creates one in software if the kernel has rdma_rxe",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_reported_with_its_reason() {
        let refusals = vec![("efa0".into(), Unsuitable::Unordered), ("mlx5_1".into(), Unsuitable::PortDown)];
        let text = VerbsError::NoDevice { wanted: None, refusals }.to_string();
        assert!(
            text.contains("efa0: it is neither") && text.contains("; mlx5_1: none of its ports"),
            "{text}"
        );
    }

    #[test]
    fn without_devices_it_says_how_to_create_one() {
        let text = VerbsError::NoDevice { wanted: Some("rxe7".into()), refusals: vec![] }.to_string();
        assert!(text.contains("`rxe7`") && text.contains("rdma link add"), "{text}");
    }
}
