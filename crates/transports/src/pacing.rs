//! Pacing of TCP connections: not where the path is short and loses nothing.
//!
//! Some systems have a congestion control that paces (BBR) as their default. It spaces out what is sent by a timer of the kernel, and limits
//! it to the rate that it has measured: good on paths that are long or lose packets, but between processors that share a switch the timer
//! costs more than the bytes, and bursts that come occasionally are measured too low (docs/results/hosts-no-faults.md).
//!
//! So, if the default of the system paces, a connection begins with one that does not, Reno ([`unpace`]), and has the default back
//!
//! - as soon as it is made, if the packets of the handshake took longer than a millisecond for a round trip;
//! - as soon as something had to be sent again: the sender looks every 16 sends; the thread that looks for silent
//!   connections (`tcp/reopening`) does while nothing is sent.
//!
//! It is one way for a connection: a kernel whose default paces continues to pace a connection that it has paced. Another default is left as it is.

use std::cell::Cell;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::OnceLock;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustix::net::{AddressFamily, SocketType};

use crate::log::debug;

/// Has a socket not pace its connections, if the default of the system does: before it connects, or while it listens, for those that it
/// accepts.
///
/// ```
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// squall_transports::pacing::unpace(&listener);
/// # std::io::Result::Ok(())
/// ```
pub fn unpace(socket: impl AsFd) {
    if pacing_default().is_some() {
        // Every system allows it.
        let _ = set_tcp_congestion(&socket, "reno");
    }
}

/// The congestion control that is the default of this system, if it paces.
pub fn pacing_default() -> Option<&'static str> {
    static DEFAULT: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
        tcp_congestion(&socket).ok().filter(|control| control.starts_with("bbr"))
    };
    DEFAULT.get_or_init(read).as_deref()
}

/// Whether a connection has the default of the system back.
#[derive(Debug)]
pub(crate) struct PathWatch {
    /// Sends until the next look; `None`: there is nothing to look for any more.
    sends: Cell<Option<u32>>,
}

impl PathWatch {
    /// Looks at a connection that was made.
    pub(crate) fn new(stream: &TcpStream) -> Self {
        let watch = Self { sends: Cell::new(pacing_default().map(|_| LOOK_EVERY_SENDS)) };
        let ends = stream.peer_addr().and_then(|peer| Ok((peer.ip(), stream.local_addr()?.ip())));
        if ends.is_ok_and(|(peer, own)| peer == own) {
            // Within a host there is no path.
            unpace(stream);
            watch.sends.set(None);
        } else if watch.sends.get().is_some() {
            watch.look(stream);
        }
        watch
    }

    /// Notes that something was sent.
    #[inline]
    pub(crate) fn on_send(&self, stream: &TcpStream) {
        match self.sends.get() {
            None => {}
            Some(0) => self.look(stream),
            Some(sends) => self.sends.set(Some(sends - 1)),
        }
    }

    #[cold]
    fn look(&self, stream: &TcpStream) {
        let info = TcpInfo::of(stream);
        let is_paced = info.wants_pacing();
        self.sends.set((!is_paced).then_some(LOOK_EVERY_SENDS));
        if is_paced {
            pace(stream);
            debug!(control = ?pacing_default(), ?info, "a connection has the system's congestion control");
        }
    }
}

/// Gives a connection the default of the system, if that paces.
pub(crate) fn pace(stream: &TcpStream) {
    if let Some(control) = pacing_default() {
        // The peer may be dead by now, which the next read notices.
        let _ = set_tcp_congestion(stream, control);
    }
}

/// What the kernel knows of a connection; zeros if it does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// How often in a row something was sent again because its time was over.
    pub(crate) sent_again: u8,
    /// Segments that are not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Segments that were sent again.
    pub(crate) sent_again_ever: u32,
    /// The shortest time from a segment to its acknowledgement.
    pub(crate) trip_min_us: u32,
}

impl TcpInfo {
    /// The path is long or loses packets.
    pub(crate) fn wants_pacing(&self) -> bool {
        self.sent_again_ever > 0 || self.trip_min_us > SHORT_TRIP_US
    }

    pub(crate) fn of(stream: &TcpStream) -> Self {
        // `struct tcp_info` up to `tcpi_min_rtt`; `libc` has a shorter one.
        let mut words = [0_u32; 38];
        let mut length = libc::socklen_t::try_from(size_of_val(&words)).expect("some hundred bytes");
        // SAFETY: `words` is valid for stores of that length, of which the kernel may use a part. If it fails, all is 0.
        unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                words.as_mut_ptr().cast(),
                &raw mut length,
            );
        }
        // Eight fields of a byte come first.
        let sent_again = words[0].to_ne_bytes()[2];
        Self { sent_again, unacknowledged: words[6], sent_again_ever: words[25], trip_min_us: words[37] }
    }
}

/// A path whose packets have a longer round trip is not within a data centre.
const SHORT_TRIP_US: u32 = 1_000;
/// A look takes as long as a small part of one send.
const LOOK_EVERY_SENDS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        unpace(&listener);
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_within_a_host_is_not_paced() {
        let (near, far) = pair();
        for stream in [&near, &far] {
            PathWatch::new(stream);
            assert!(!tcp_congestion(stream).unwrap().starts_with("bbr"));
        }
    }

    /// On a system whose default does not pace, that is the default from the beginning.
    #[test]
    fn an_accepted_connection_has_the_control_of_its_listener() {
        let (_near, far) = pair();
        assert!(!tcp_congestion(&far).unwrap().starts_with("bbr"));
    }

    #[test]
    fn a_connection_that_loses_nothing_is_looked_at_now_and_then() {
        let (near, _far) = pair();
        let watch = PathWatch { sends: Cell::new(Some(LOOK_EVERY_SENDS)) };
        for sends in 1..=LOOK_EVERY_SENDS {
            watch.on_send(&near);
            assert_eq!(watch.sends.get(), Some(LOOK_EVERY_SENDS - sends));
        }
        watch.on_send(&near);
        assert_eq!(watch.sends.get(), Some(LOOK_EVERY_SENDS), "it was looked at");
    }
}
