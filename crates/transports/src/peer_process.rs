//! The process at the other end of a Unix socket, as the kernel reports it.
//!
//! The kernel reports the process number 0 for a process that this one's process namespace does not contain, as between
//! containers that share a network or a folder of sockets. The user remains known: it is what access is decided by.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::num::NonZeroU32;

use rustix::fd::{AsFd, AsRawFd};

/// The process that has created a Unix socket's other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerProcess {
    /// Its number; `None` if it is in another process namespace, and has none here.
    pub(crate) number: Option<NonZeroU32>,
    /// The user that runs it, as this process's user namespace numbers it.
    pub(crate) user: u32,
}

impl PeerProcess {
    /// Asks the kernel. The wrapper of rustix does not serve: its process numbers are never 0, so for a process of another
    /// namespace it returns "error 0".
    ///
    /// # Errors
    /// Returns the system's error, as for a socket that is not connected.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        let (descriptor, target) = (socket.as_fd().as_raw_fd(), (&raw mut found).cast());
        // SAFETY: the kernel stores at most `bytes` bytes at `target`, which are plain numbers.
        let result = unsafe {
            libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, target, &raw mut bytes)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let number = u32::try_from(found.pid).ok().and_then(NonZeroU32::new);
        Ok(Self { number, user: found.uid })
    }

    /// Returns whether the user that runs it is the one that runs this process.
    pub(crate) fn is_of_this_user(&self) -> bool {
        self.user == rustix::process::geteuid().as_raw()
    }
}

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "process {number} of user {}", self.user),
            None => write!(f, "a process of user {} in another process namespace", self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_process_of_this_namespace_has_its_number() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let peer = PeerProcess::of(&one).expect("connected");
        assert_eq!(peer.number.map(NonZeroU32::get), Some(std::process::id()));
        assert!(peer.is_of_this_user());
        let text = peer.to_string();
        assert_eq!(text, format!("process {} of user {}", std::process::id(), peer.user));
    }

    #[test]
    fn a_process_of_another_namespace_has_only_its_user() {
        let peer = PeerProcess { number: None, user: 1000 };
        assert_eq!(peer.to_string(), "a process of user 1000 in another process namespace");
    }
}
