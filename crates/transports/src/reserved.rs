//! Ports for processes that are started later.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// Reserves a TCP port of this host as long as this process lives: nothing gets it by chance, neither a listener with port 0
/// nor an outgoing connection, and any process may listen there on purpose.
///
/// A port that was free a moment ago may be taken by any connection that begins meanwhile. This one is bound, with
/// `SO_REUSEADDR`, by a socket that does not listen: the system passes over such ports when it chooses one, and lets a
/// listener have it that sets that option, too, as those of the standard library do (Linux, `socket(7)`).
///
/// # Errors
/// There is no port, or no descriptor.
///
/// # Examples
/// ```
/// let port = squall_transports::reserve_port()?;
/// assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
/// let _listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn reserve_port() -> io::Result<u16> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    let bound = SocketAddrV4::try_from(getsockname(&socket)?)?;
    // It is held for as long as the process lives.
    std::mem::forget(socket);
    Ok(bound.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Every port that the system chooses is another one, until there are none left.
    #[test]
    fn no_connection_and_no_other_listener_gets_it() {
        let port = reserve_port().expect("there are ports");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
        let to = listener.local_addr().expect("it is bound");
        let mut held = Vec::new();
        for _ in 0..2_000 {
            let stream = TcpStream::connect(to).expect("it listens");
            assert_ne!(stream.local_addr().expect("it is connected").port(), port);
            let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
            assert_ne!(other.local_addr().expect("it is bound").port(), port);
            held.push(other);
            drop(listener.accept().expect("it has connected"));
        }
        let listens = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("it is reserved");
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect_err("a process listens there");
        drop(listens);
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("it is reserved");
    }
}
