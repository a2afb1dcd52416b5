//! The control stream to one peer: frames in both directions, and its end, by which a death is detected
//! [F11].

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use rustix::fd::{AsFd, BorrowedFd};
use squall_fabric::BreakReason;

use super::VerbsError;
use super::frame::{FRAME_BYTES, VerbsFrame, VerbsViolation};
use crate::session::PeerStream;

/// A non-blocking stream of frames.
#[derive(Debug)]
pub(super) struct ControlStream {
    stream: PeerStream,
    /// Bytes that are not a complete frame yet, and space for more; `filled < FRAME_BYTES` between calls.
    input: Vec<u8>,
    filled: usize,
    /// Bytes that the socket has not taken.
    output: Vec<u8>,
}

/// Why a peer is lost.
#[derive(Debug)]
pub(super) enum VerbsLoss {
    /// It violated the protocol.
    Violation(VerbsViolation),
    /// It reports that this node violated the protocol.
    Goodbye,
    /// It ended the stream: its process has closed it, or is dead.
    End,
    /// It does not read what is sent to it, or does not take what is pushed to it.
    Overrun,
    /// The device cannot reach it, or has failed itself.
    Unreachable(String),
    /// This end lacks the memory for what the peer shares.
    Shortage(VerbsError),
    Io(io::Error),
}

impl VerbsLoss {
    pub(super) fn reason(&self) -> BreakReason {
        match self {
            Self::Violation(_) | Self::Goodbye => BreakReason::Protocol,
            Self::Overrun | Self::Unreachable(_) => BreakReason::Unreachable,
            Self::Shortage(_) => BreakReason::Shortage,
            Self::End => BreakReason::PeerClosed,
            Self::Io(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                    BreakReason::PeerClosed
                }
                _ => BreakReason::Unreachable,
            },
        }
    }
}

impl fmt::Display for VerbsLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(VerbsViolation(what)) => {
                write!(f, "it violated the control protocol with {what}")
            }
            Self::Goodbye => f.write_str("it reports that this node violated the control protocol"),
            Self::End => f.write_str("it closed the control stream, or is dead"),
            Self::Overrun => f.write_str("it does not take what is sent to it"),
            Self::Unreachable(why) => write!(f, "the device cannot reach it: {why}"),
            Self::Shortage(error) => write!(f, "this node cannot work with it: {error}"),
            Self::Io(error) => write!(f, "the control stream failed: {error}"),
        }
    }
}

impl From<VerbsViolation> for VerbsLoss {
    fn from(violation: VerbsViolation) -> Self {
        Self::Violation(violation)
    }
}

impl ControlStream {
    pub(super) fn new(stream: PeerStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: vec![0; INPUT_BYTES], filled: 0, output: Vec::new() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Queues a frame.
    pub(super) fn push(&mut self, frame: VerbsFrame) {
        self.output.extend_from_slice(&frame.to_bytes());
    }

    /// Returns whether frames wait for the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty() || self.stream.has_output()
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), VerbsLoss> {
        while self.has_output() {
            let sent = if self.output.is_empty() {
                self.stream.flush().map(|()| 0)
            } else {
                self.stream.write(&self.output)
            };
            match sent {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // What the peer sent before its end can still be read; the end of the stream follows.
                Err(_) => {
                    self.output.clear();
                    break;
                }
            }
        }
        if self.output.len() > OUTPUT_BYTES_MAX { Err(VerbsLoss::Overrun) } else { Ok(()) }
    }

    /// Reads once and yields the complete frames; returns false if nothing had arrived.
    pub(super) fn read(&mut self, frames: &mut Vec<VerbsFrame>) -> Result<bool, VerbsLoss> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(VerbsLoss::End),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(VerbsLoss::Io(error)),
        }
        let whole = self.filled / FRAME_BYTES * FRAME_BYTES;
        for bytes in self.input[..whole].chunks_exact(FRAME_BYTES) {
            frames.push(VerbsFrame::from_bytes(bytes.try_into().expect("a whole frame"))?);
        }
        self.input.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        Ok(true)
    }

    /// Ends the stream in both directions.
    pub(super) fn shutdown(&mut self) {
        self.output.clear();
        // An error means that the peer has closed it first.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// The space for frames of one read.
const INPUT_BYTES: usize = 128 * FRAME_BYTES;

/// A peer for which more bytes wait than this is lost.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn streams() -> (ControlStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        let (server, _) = listener.accept().expect("a client");
        (ControlStream::new(server.into()).expect("a stream"), client)
    }

    fn read_all(control: &mut ControlStream) -> Result<Vec<VerbsFrame>, VerbsLoss> {
        let mut frames = Vec::new();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while frames.is_empty() && std::time::Instant::now() < until {
            control.read(&mut frames)?;
        }
        Ok(frames)
    }

    #[test]
    fn a_frame_may_arrive_in_pieces() {
        let (mut control, mut peer) = streams();
        let bytes: Vec<u8> =
            (0..3).flat_map(|attachment| VerbsFrame::Detach { attachment }.to_bytes()).collect();
        let mut found = Vec::new();
        for piece in bytes.chunks(7) {
            peer.write_all(piece).expect("connected");
            std::thread::sleep(std::time::Duration::from_millis(1));
            control.read(&mut found).expect("connected");
        }
        while found.len() < 3 {
            found.extend(read_all(&mut control).expect("connected"));
        }
        assert_eq!(found, [0, 1, 2].map(|attachment| VerbsFrame::Detach { attachment }));
    }

    #[test]
    fn garbage_and_the_end_are_losses() {
        let (mut control, mut peer) = streams();
        peer.write_all(&[0xee; FRAME_BYTES]).expect("connected");
        assert!(matches!(read_all(&mut control), Err(VerbsLoss::Violation(_))));
        let (mut control, peer) = streams();
        drop(peer);
        assert!(matches!(read_all(&mut control), Err(VerbsLoss::End)));
    }

    #[test]
    fn a_peer_that_does_not_read_is_lost() {
        let (mut control, _peer) = streams();
        let overrun = (0..10_000_000).find_map(|_| {
            control.push(VerbsFrame::Ring);
            control.has_output().then(|| control.flush().err()).flatten()
        });
        assert!(matches!(overrun, Some(VerbsLoss::Overrun)));
    }
}
