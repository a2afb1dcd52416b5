//! The two kinds of socket that members meet over: TCP between hosts, Unix sockets on one host.

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Address;
use super::own_addresses::{host_text, link_local};
use super::pair::PairedStream;
use super::relinking::Visitor;
use super::wire::{WaitLimit, wait};
use crate::pacing::unpace;
use crate::peer_process::PeerProcess;
use crate::session::{ConnectionEnds, PeerStream, SessionKeys};

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::net::TcpStream {}
    impl Sealed for std::os::unix::net::UnixStream {}
}

/// A stream socket that connects members: `TcpStream` or `UnixStream`.
pub trait LinkSocket: sealed::Sealed + AsFd + Read + Write + Debug + Sized + Send + 'static {
    /// The socket that accepts streams of this kind.
    type Listener: AsFd + Debug + Send + Sync;

    /// The stream after both ends have proved the secret, with the keys of its session if its data are
    /// encrypted.
    type Secured: AsFd + Read + Write + Debug + Sized + Send + 'static;

    /// Returns whether streams of this kind connect to `address`.
    #[doc(hidden)]
    fn takes(address: &Address) -> bool;

    #[doc(hidden)]
    fn bind(address: &Address) -> io::Result<Self::Listener>;

    /// Returns the address with the port that the kernel has chosen.
    #[doc(hidden)]
    fn bound_address(listener: &Self::Listener, asked: &Address) -> io::Result<Address>;

    /// Returns `WouldBlock` when no connection is waiting.
    #[doc(hidden)]
    fn accept(listener: &Self::Listener) -> io::Result<Self>;

    /// Connects, waiting until the deadline, or until `abandon` is readable.
    #[doc(hidden)]
    fn connect(address: &Address, deadline: Instant, abandon: Option<BorrowedFd<'_>>) -> io::Result<Self>;

    #[doc(hidden)]
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;

    /// Returns a description of the peer, for messages.
    #[doc(hidden)]
    fn peer(&self) -> String;

    /// Returns the address that the peer's packets come from.
    #[doc(hidden)]
    fn peer_ip(&self) -> Option<IpAddr>;

    /// Returns an address with the host that the peer's packets come from, with its zone; its port means nothing.
    #[doc(hidden)]
    fn peer_host(&self) -> Option<Address>;

    /// Returns the address of this end.
    #[doc(hidden)]
    fn local_ip(&self) -> Option<IpAddr>;

    /// Returns how this end sees the connection, if it is a TCP connection.
    #[doc(hidden)]
    fn ends(&self) -> io::Result<Option<ConnectionEnds>>;

    /// Returns what the stream of a pair becomes; `None` if it cannot become what the peer wants.
    #[doc(hidden)]
    fn meet(secured: Self::Secured, by_rdma: bool) -> Option<PairedStream>;

    #[doc(hidden)]
    fn secure(self, session: SessionKeys) -> Self::Secured;

    /// Returns a visitor that asks to open a link again, if links of this kind are.
    #[doc(hidden)]
    fn asking(visitor: Visitor<Self>) -> Option<Visitor<TcpStream>>;

    /// Returns the user that runs the peer, if the kernel reports it and it is not this process's.
    #[doc(hidden)]
    fn foreign_user(&self) -> io::Result<Option<u32>>;
}

impl LinkSocket for TcpStream {
    type Listener = TcpListener;
    type Secured = PeerStream;

    fn takes(address: &Address) -> bool {
        !address.is_unix()
    }

    fn bind(address: &Address) -> io::Result<TcpListener> {
        let listener = TcpListener::bind(&socket_addresses(address)?[..])?;
        listener.set_nonblocking(true)?;
        unpace(&listener);
        Ok(listener)
    }

    fn bound_address(listener: &TcpListener, asked: &Address) -> io::Result<Address> {
        let bound = listener.local_addr()?;
        // The zone as people write it, rather than the number of the interface.
        let host = match asked {
            Address::Tcp { host, .. } if link_local(host).is_some_and(|(_, zone)| zone.is_some()) => {
                host.clone()
            }
            _ => host_text(&bound),
        };
        Ok(Address::Tcp { host, port: bound.port() })
    }

    fn accept(listener: &TcpListener) -> io::Result<Self> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn connect(address: &Address, deadline: Instant, abandon: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let mut last = ErrorKind::AddrNotAvailable.into();
        for address in socket_addresses(address)? {
            match connect_tcp(address, WaitLimit { deadline, abandon }) {
                Ok(stream) if is_itself(&stream)? => last = ErrorKind::ConnectionRefused.into(),
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        TcpStream::set_nonblocking(self, nonblocking)
    }

    fn peer(&self) -> String {
        self.peer_addr().map_or_else(|_| "a closed connection".into(), |address| address.to_string())
    }

    fn peer_ip(&self) -> Option<IpAddr> {
        self.peer_addr().ok().map(|address| address.ip())
    }

    fn peer_host(&self) -> Option<Address> {
        self.peer_addr().ok().map(|peer| Address::of_socket(&peer))
    }

    fn local_ip(&self) -> Option<IpAddr> {
        self.local_addr().ok().map(|address| address.ip())
    }

    fn ends(&self) -> io::Result<Option<ConnectionEnds>> {
        ConnectionEnds::of(self).map(Some)
    }

    fn meet(secured: PeerStream, by_rdma: bool) -> Option<PairedStream> {
        Some(if by_rdma { PairedStream::Verbs(secured) } else { PairedStream::Tcp(secured) })
    }

    fn secure(self, session: SessionKeys) -> PeerStream {
        PeerStream::new(self, session)
    }

    fn asking(visitor: Visitor<Self>) -> Option<Visitor<TcpStream>> {
        Some(visitor)
    }

    fn foreign_user(&self) -> io::Result<Option<u32>> {
        Ok(None)
    }
}

impl LinkSocket for UnixStream {
    type Listener = UnixListener;
    type Secured = Self;

    fn takes(address: &Address) -> bool {
        address.is_unix()
    }

    fn bind(address: &Address) -> io::Result<UnixListener> {
        let listener = match address {
            Address::Abstract(name) => UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?),
            Address::Path(path) => bind_for_user(path),
            Address::Tcp { .. } => Err(ErrorKind::InvalidInput.into()),
        }?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn bound_address(_listener: &UnixListener, asked: &Address) -> io::Result<Address> {
        Ok(asked.clone())
    }

    fn accept(listener: &UnixListener) -> io::Result<Self> {
        Ok(listener.accept()?.0)
    }

    /// Does not wait: if the listener's queue is full, it returns `WouldBlock`.
    fn connect(address: &Address, _deadline: Instant, _abandon: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let address = match address {
            Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            Address::Path(path) => SocketAddrUnix::new(path)?,
            Address::Tcp { .. } => return Err(ErrorKind::InvalidInput.into()),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket.into())
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        UnixStream::set_nonblocking(self, nonblocking)
    }

    fn peer(&self) -> String {
        PeerProcess::of(self).map_or_else(|_| "an unknown process".into(), |peer| peer.to_string())
    }

    fn peer_ip(&self) -> Option<IpAddr> {
        None
    }

    fn peer_host(&self) -> Option<Address> {
        None
    }

    fn local_ip(&self) -> Option<IpAddr> {
        None
    }

    fn ends(&self) -> io::Result<Option<ConnectionEnds>> {
        Ok(None)
    }

    fn meet(secured: Self, by_rdma: bool) -> Option<PairedStream> {
        (!by_rdma).then_some(PairedStream::Shm(secured))
    }

    fn secure(self, session: SessionKeys) -> Self {
        assert!(!session.is_sealed(), "nothing is encrypted on Unix sockets");
        self
    }

    fn asking(_visitor: Visitor<Self>) -> Option<Visitor<TcpStream>> {
        None
    }

    fn foreign_user(&self) -> io::Result<Option<u32>> {
        let peer = PeerProcess::of(self)?;
        Ok((!peer.is_of_this_user()).then_some(peer.user))
    }
}

/// Listens at a path, to which only this user can connect: the mode of the socket, before it has a name, limits that of its file.
fn bind_for_user(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// As many as the kernel allows (`net.core.somaxconn`).
const BACKLOG: i32 = i32::MAX;

/// Connects to an address within some time. The connection is not paced ([`crate::pacing`]).
///
/// # Errors
/// Returns the system's error, or [`ErrorKind::TimedOut`].
pub fn connect_within(address: SocketAddr, time: Duration) -> io::Result<TcpStream> {
    let stream = connect_tcp(address, (Instant::now() + time).into())?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn connect_tcp(address: SocketAddr, until: WaitLimit<'_>) -> io::Result<TcpStream> {
    let socket = begin_connect(address)?;
    wait(socket.as_fd(), PollFlags::OUT, until)?;
    rustix::net::sockopt::socket_error(&socket)??;
    Ok(socket.into())
}

/// Begins to connect. The socket can be written to when the connection is made, or has failed.
pub(super) fn begin_connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    unpace(&socket);
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the stream is connected to itself, which can happen at a port of the ephemeral range at
/// which no process listens.
pub(super) fn is_itself(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()? == stream.peer_addr()?)
}

pub(super) fn socket_addresses(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let Address::Tcp { host, port } = address else { return Err(ErrorKind::InvalidInput.into()) };
    Ok((host.as_str(), *port).to_socket_addrs()?.collect())
}
