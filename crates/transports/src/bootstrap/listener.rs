//! The socket at which a process can be reached.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, BorrowedFd};

use super::link::{LinkSocket, is_this_host};
use super::{Address, BootstrapError};

/// A bound socket. It outlives the bootstrap, so that later connections can be answered.
#[derive(Debug)]
pub struct BootstrapListener<S: LinkSocket> {
    socket: S::Listener,
    address: Address,
    /// Removes the file of a `unix:/path` socket when dropped.
    _file: Option<SocketFile>,
}

impl<S: LinkSocket> BootstrapListener<S> {
    /// Listens at `address`. A socket file at its path is replaced if no process listens there any more.
    ///
    /// # Errors
    /// Returns [`BootstrapError::AddressInUse`], [`BootstrapError::AddressElsewhere`],
    /// [`BootstrapError::Listen`], or [`BootstrapError::Plan`] if `address` is of another kind than `S`.
    pub fn bind(address: &Address) -> Result<Self, BootstrapError> {
        if !S::takes(address) {
            let wanted = if address.is_unix() { "`host:port`" } else { "`unix:@name`" };
            return Err(BootstrapError::Plan(format!("{address} is of the wrong kind: write {wanted}")));
        }
        if let Address::Path(path) = address {
            remove_stale(path);
        }
        let failed = |cause: io::Error| match cause.kind() {
            ErrorKind::AddrInUse => BootstrapError::AddressInUse { address: address.clone() },
            ErrorKind::AddrNotAvailable => BootstrapError::AddressElsewhere { address: address.clone() },
            _ => BootstrapError::Listen { address: address.clone(), cause },
        };
        let socket = S::bind(address).map_err(failed)?;
        let _file = match address {
            Address::Path(path) => Some(SocketFile(path.clone())),
            _ => None,
        };
        let address = S::bound_address(&socket, address).map_err(failed)?;
        Ok(Self { socket, address, _file })
    }

    /// Returns the address at which it listens, with the port that the kernel has chosen.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether connections to `contact` arrive here.
    #[must_use]
    pub fn is_at(&self, contact: &Address) -> bool {
        let (Address::Tcp { host, port }, Address::Tcp { host: own, port: own_port }) =
            (contact, &self.address)
        else {
            return *contact == self.address;
        };
        let Ok(own) = own.parse::<IpAddr>() else { return false };
        let named =
            || (host.as_str(), *port).to_socket_addrs().is_ok_and(|mut all| all.any(|one| one.ip() == own));
        port == own_port && (named() || own.is_unspecified() && is_this_host(host))
    }

    pub(super) fn accept(&self) -> io::Result<S> {
        S::accept(&self.socket)
    }
}

impl<S: LinkSocket> AsFd for BootstrapListener<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn remove_stale(path: &Path) {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    let refused = || {
        let outcome = std::os::unix::net::UnixStream::connect(path);
        outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    if is_socket && refused() {
        // If this fails, `bind` reports the cause.
        let _ = std::fs::remove_file(path);
    }
}
