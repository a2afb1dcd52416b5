//! Connections that are tried beside each other: the first packet of one that was lost is repeated after a second, a whole suspicion time
//! perhaps, so the next one begins before.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;

use super::Address;
use super::link::{begin_connect, is_itself, socket_addresses};
use super::wire::poll_for;

/// The addresses of a host, and the connections to them that are under way.
struct Attempts {
    /// Those at which none has failed, in the order in which they are tried next.
    addresses: Vec<SocketAddr>,
    under_way: Vec<(OwnedFd, SocketAddr)>,
    /// Why the last one has failed.
    failure: io::Error,
}

/// Connects to a host, and begins one more connection whenever some time has passed without one: [`FIRST_PAUSE`] at first, and so much more each
/// time, up to `every`. Returns the first that is made.
///
/// # Errors
/// Returns an error if a connection to each of the host's addresses has failed, or none is made until `deadline`.
pub(super) fn connect_soon(address: &Address, every: Duration, deadline: Instant) -> io::Result<TcpStream> {
    let (addresses, failure) = (socket_addresses(address)?, ErrorKind::AddrNotAvailable.into());
    let mut attempts = Attempts { addresses, under_way: Vec::new(), failure };
    let (mut next, mut pause) = (Instant::now(), FIRST_PAUSE.min(every));
    loop {
        let now = Instant::now();
        if attempts.addresses.is_empty() {
            return Err(attempts.failure);
        }
        if now >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        if now >= next {
            next = now + pause;
            pause = (pause + FIRST_PAUSE).min(every);
            attempts.begin();
        }
        if let Some(stream) = attempts.wait(next.min(deadline))? {
            stream.set_nodelay(true)?;
            return Ok(stream);
        }
    }
}

/// An interruption may be over soon.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

impl Attempts {
    fn begin(&mut self) {
        let address = self.addresses[0];
        // The next attempt is at another one, if there is one.
        self.addresses.rotate_left(1);
        match begin_connect(address) {
            Ok(socket) => self.under_way.push((socket, address)),
            Err(error) => self.fail(address, error),
        }
    }

    fn fail(&mut self, address: SocketAddr, error: io::Error) {
        self.addresses.retain(|other| *other != address);
        self.failure = error;
    }

    /// Waits until something has become of a connection, or until then; returns one that is made.
    fn wait(&mut self, until: Instant) -> io::Result<Option<TcpStream>> {
        let polled = self.under_way.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::OUT));
        let mut polled: Vec<PollFd<'_>> = polled.collect();
        poll_for(&mut polled, until.saturating_duration_since(Instant::now()))?;
        let ready = polled.iter().rposition(|polled| !polled.revents().is_empty());
        let Some((socket, address)) = ready.map(|place| self.under_way.swap_remove(place)) else {
            return Ok(None);
        };
        let made = rustix::net::sockopt::socket_error(&socket)?.map_err(io::Error::from);
        match made.map(|()| TcpStream::from(socket)) {
            Ok(stream) if is_itself(&stream)? => self.fail(address, ErrorKind::ConnectionRefused.into()),
            Ok(stream) => return Ok(Some(stream)),
            Err(error) => self.fail(address, error),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrV4, SocketFlags, SocketType};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn address(port: u16) -> Address {
        Address::Tcp { host: "127.0.0.1".into(), port }
    }

    /// A host whose queue of connections is full ignores their first packets, as if a network had lost them.
    #[test]
    fn a_lost_packet_costs_less_than_its_repetition() {
        let second = Duration::from_secs(1);
        let took = || {
            let socket = rustix::net::socket_with(
                AddressFamily::INET,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            rustix::net::bind(&socket, &SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
            rustix::net::listen(&socket, 0).unwrap();
            let host = std::net::TcpListener::from(socket);
            let at = host.local_addr().unwrap();
            let _full: Vec<_> = (0..4).map(|_| begin_connect(at).unwrap()).collect();
            let begun = Instant::now();
            let connecting = std::thread::spawn(move || {
                connect_soon(&address(at.port()), Duration::from_millis(20), begun + SOON)
                    .map(|_| begun.elapsed())
            });
            std::thread::sleep(Duration::from_millis(100));
            while !connecting.is_finished() {
                let _ = host.accept();
                std::thread::sleep(Duration::from_millis(1));
            }
            connecting.join().unwrap().unwrap()
        };
        // A machine that does something else may occasionally take long.
        let quickest = (0..5).map(|_| took()).min().unwrap();
        assert!(quickest < second, "{quickest:?}");
    }

    #[test]
    fn a_refusal_is_reported_at_once() {
        let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = host.local_addr().unwrap().port();
        drop(host);
        let begun = Instant::now();
        let error = connect_soon(&address(port), SOON, begun + SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(begun.elapsed() < SOON, "it waited for its next attempt");
    }

    /// One address of a host may be out of order.
    #[test]
    fn all_addresses_are_tried() {
        let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (there, dead) = (host.local_addr().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let nowhere = dead.local_addr().unwrap();
        drop(dead);
        let failure = ErrorKind::AddrNotAvailable.into();
        let mut attempts = Attempts { addresses: vec![nowhere, there], under_way: Vec::new(), failure };
        attempts.begin();
        assert!(attempts.wait(Instant::now() + SOON).unwrap().is_none() || attempts.addresses == [there]);
        attempts.begin();
        let stream = attempts.wait(Instant::now() + SOON).unwrap().expect("a connection");
        assert_eq!(stream.peer_addr().unwrap(), there);
    }
}
