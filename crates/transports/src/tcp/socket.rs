//! System calls on the stream of one peer. They take raw pieces of memory, because a slice over words that
//! others write meanwhile would be unsound, and the wrappers of `rustix` take slices.

use std::io;
use std::net::TcpStream;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::net::{RecvFlags, SendFlags};

use crate::pacing::{PathWatch, TcpInfo};

/// A piece of memory for the kernel to read or to fill.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct IoPiece(libc::iovec);

impl IoPiece {
    /// No memory.
    pub(super) const EMPTY: Self = Self(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });

    pub(super) fn new(start: NonNull<u8>, length: usize) -> Self {
        Self(libc::iovec { iov_base: start.as_ptr().cast(), iov_len: length })
    }

    #[cfg(test)]
    pub(super) fn start(&self) -> *const u8 {
        self.0.iov_base.cast()
    }

    pub(super) fn length(&self) -> usize {
        self.0.iov_len
    }
}

/// A non-blocking stream.
#[derive(Debug)]
pub(super) struct TcpSocket {
    stream: Arc<TcpStream>,
    path: PathWatch,
}

impl TcpSocket {
    /// Makes the stream non-blocking and disables the delay of small writes.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        widen(&stream)?;
        let path = PathWatch::new(&stream);
        Ok(Self { stream: Arc::new(stream), path })
    }

    /// Has the kernel end the connection when nothing that was sent has been acknowledged for that long, and send again at least as often: after
    /// an outage, its next attempt would come up to as long again later.
    pub(super) fn limit_silence(&self, silence: Duration) -> io::Result<()> {
        let milliseconds = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&self.stream, milliseconds)?;
        let most = libc::c_int::try_from(milliseconds.max(RTO_MAX_MS_MIN)).unwrap_or(libc::c_int::MAX);
        let length = libc::socklen_t::try_from(size_of_val(&most)).expect("4 bytes");
        // SAFETY: the value is an `int` of that length. Kernels before 6.15 do not have the option; they double the time each time.
        unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_RTO_MAX_MS,
                (&raw const most).cast(),
                length,
            );
        }
        Ok(())
    }

    /// The stream, for a thread that looks whether it is silent.
    pub(super) fn watched(&self) -> Weak<TcpStream> {
        Arc::downgrade(&self.stream)
    }

    /// Returns whether its kernel sends in vain.
    pub(super) fn is_silent(&self) -> bool {
        SentState::of(&TcpInfo::of(&self.stream)) == SentState::Silent
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends some prefix of the bytes; returns its length.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.path.on_send(&self.stream);
        Ok(rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Same as [`TcpSocket::send`], for bytes that may wait briefly for others: the kernel sends them when
    /// more is sent, when the peer's kernel sends something, when [`TcpSocket::push`] is called, or after 0.2
    /// s.
    pub(super) fn send_with_more(&self, bytes: &[u8]) -> io::Result<usize> {
        self.path.on_send(&self.stream);
        Ok(rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL | SendFlags::MORE)?)
    }

    /// Sends bytes that the kernel holds.
    pub(super) fn push(&self) {
        // The option is set already; setting it again makes the kernel send. If the stream is dead, the next
        // read reports that.
        let _ = self.stream.set_nodelay(true);
    }

    /// Sends some prefix of the pieces; returns its length in bytes. With `more` they may wait briefly for what follows, as with
    /// [`TcpSocket::send_with_more`].
    ///
    /// # Safety
    /// Each piece must be valid for loads of its length.
    pub(super) unsafe fn send_pieces(&self, pieces: &[IoPiece], more: bool) -> io::Result<usize> {
        // SAFETY: a `msghdr` of zeros is valid: no name, no pieces, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        message.msg_iovlen = pieces.len() as _;
        self.path.on_send(&self.stream);
        let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: `message` refers to `pieces`, `IoPiece` is an `iovec`, and the caller promises that each is
        // valid; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Fills some prefix of `buffer`; returns its length in bytes, 0 at the end of the stream.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.stream, buffer, RecvFlags::empty())?.0)
    }

    /// Fills some prefix of the pieces; returns its length in bytes, 0 at the end of the stream.
    ///
    /// # Safety
    /// Each piece must be valid for stores of its length, and no reference to its bytes may exist.
    pub(super) unsafe fn receive_pieces(&self, pieces: &[IoPiece]) -> io::Result<usize> {
        let count = libc::c_int::try_from(pieces.len()).expect("few pieces");
        // SAFETY: `IoPiece` is an `iovec`, and the caller promises that each is valid.
        let received = unsafe { libc::readv(self.stream.as_raw_fd(), pieces.as_ptr().cast(), count) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the number of bytes that can be received now.
    pub(super) fn available(&self) -> io::Result<usize> {
        Ok(usize::try_from(rustix::io::ioctl_fionread(&self.stream)?).unwrap_or(usize::MAX))
    }
}

/// What has become of what the kernel has sent on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentState {
    /// All of it is acknowledged.
    Idle,
    /// Some of it is under way.
    UnderWay,
    /// Something was sent again because its time was over, and nothing has been acknowledged since: the path may be interrupted, and from
    /// here on each next attempt comes after twice the time.
    Silent,
}

impl SentState {
    pub(super) fn of(info: &TcpInfo) -> Self {
        match (info.unacknowledged, info.sent_again) {
            (0, _) => Self::Idle,
            (_, 0) => Self::UnderWay,
            _ => Self::Silent,
        }
    }
}

/// Requests large buffers where the system allows them. Elsewhere the kernel's own sizing is kept: an
/// explicit request would be cut to the system's limit and would disable the automatic growth beyond it.
fn widen(stream: &TcpStream) -> io::Result<()> {
    let allowed = |limit: &str| {
        let text = std::fs::read_to_string(limit).unwrap_or_default();
        text.trim().parse::<usize>().is_ok_and(|bytes| bytes >= SOCKET_BUFFER_BYTES)
    };
    if allowed("/proc/sys/net/core/wmem_max") {
        rustix::net::sockopt::set_socket_send_buffer_size(stream, SOCKET_BUFFER_BYTES)?;
    }
    if allowed("/proc/sys/net/core/rmem_max") {
        rustix::net::sockopt::set_socket_recv_buffer_size(stream, SOCKET_BUFFER_BYTES)?;
    }
    Ok(())
}

/// The option for the longest time between two attempts to send again, in milliseconds, and the least that it takes.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const RTO_MAX_MS_MIN: u32 = 1_000;

/// Space for a few windows of large messages between two polls of the peer.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
