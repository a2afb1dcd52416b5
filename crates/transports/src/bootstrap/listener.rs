//! The socket at which a process can be reached.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, BorrowedFd};

use super::link::LinkSocket;
use super::own_addresses::{is_same_host, is_this_host, is_wildcard};
use super::{Address, BootstrapError};

/// A bound socket. It outlives the bootstrap, so that later connections can be answered.
#[derive(Debug)]
pub struct BootstrapListener<S: LinkSocket> {
    socket: S::Listener,
    address: Address,
    announced: Address,
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
        Self::bind_as(address, None)
    }

    /// Same as [`BootstrapListener::bind`], for a process that others reach at another address: `advertise`, whose port 0 stands for
    /// the port at which this process listens.
    ///
    /// # Errors
    /// The errors of [`BootstrapListener::bind`].
    pub fn bind_as(address: &Address, advertise: Option<&Address>) -> Result<Self, BootstrapError> {
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
        let announced = match (advertise, &address) {
            (Some(Address::Tcp { host, port: 0 }), Address::Tcp { port, .. }) => {
                Address::Tcp { host: host.clone(), port: *port }
            }
            (advertise, address) => advertise.unwrap_or(address).clone(),
        };
        Ok(Self { socket, address, announced, _file })
    }

    /// Returns the address at which others reach this process: a wildcard, if they are to take the address that they see.
    #[must_use]
    pub const fn announced(&self) -> &Address {
        &self.announced
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
        if *contact == self.announced {
            return true;
        }
        if port != own_port {
            return false;
        }
        if is_wildcard(own) {
            return is_this_host(host);
        }
        let addresses =
            |host: &str| (host, 0).to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect);
        let (named, own): (Vec<SocketAddr>, Vec<SocketAddr>) = (addresses(host), addresses(own));
        named.iter().any(|named| own.iter().any(|own| is_same_host(named, own)))
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
