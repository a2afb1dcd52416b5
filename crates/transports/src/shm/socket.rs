//! The socket of a link: control messages with file descriptors, doorbells, and the notice of a death.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::wire::{ShmFrame, ShmMessage, ShmViolation};
use crate::peer_process::PeerProcess;
use crate::shortage::shortage;

/// A connected Unix stream socket, never blocking.
#[derive(Debug)]
pub(super) struct UnixSocket {
    stream: UnixStream,
    /// Bytes that have arrived and are not yet a complete message; fewer than one frame and one read.
    inbox: Vec<u8>,
    /// Files that have arrived and whose message is not yet complete.
    files: VecDeque<OwnedFd>,
    /// Messages for which the peer has no space yet, in order.
    outbox: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    frame: ShmFrame,
    /// 0 <= sent < length of the frame; the file is sent with the first byte.
    sent: usize,
    file: Option<OwnedFd>,
}

/// The peer's end is closed, or its process is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerGone;

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Bytes.
    Some,
    /// Nothing has arrived.
    Empty,
    /// Nothing will ever arrive.
    End,
}

impl UnixSocket {
    /// Takes over a connected socket whose other end is a process of the same user.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let peer = PeerProcess::of(&stream)?;
        if !peer.is_of_this_user() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "shared memory requires processes of one user, but this one runs as user {} and the peer as user {}: \
                     start both as the same user, or use `tcp`",
                    rustix::process::geteuid().as_raw(),
                    peer.user
                ),
            ));
        }
        stream.set_nonblocking(true)?;
        Ok(Self { stream, inbox: Vec::new(), files: VecDeque::new(), outbox: VecDeque::new() })
    }

    /// Sends a message, or buffers it until the peer has space for it.
    pub(super) fn send(&mut self, message: ShmMessage, file: Option<BorrowedFd<'_>>) -> Result<(), PeerGone> {
        debug_assert_eq!(message.has_file(), file.is_some(), "{message:?}");
        let frame = message.encode();
        if self.outbox.is_empty() {
            match self.send_now(frame.bytes(), file) {
                Ok(sent) if sent == frame.bytes().len() => return Ok(()),
                Ok(sent) => {
                    self.outbox.push_back(Waiting { frame, sent, file: None });
                    return Ok(());
                }
                Err(error) if is_full(error) => {}
                Err(_) => return Err(PeerGone),
            }
        }
        if self.outbox.len() == OUTBOX_MAX {
            return Err(PeerGone);
        }
        let file = file.map(|file| file.try_clone_to_owned()).transpose().map_err(|_| PeerGone)?;
        self.outbox.push_back(Waiting { frame, sent: 0, file });
        Ok(())
    }

    /// Sends buffered messages, as far as there is space.
    pub(super) fn flush(&mut self) -> Result<(), PeerGone> {
        while let Some(waiting) = self.outbox.pop_front() {
            let bytes = &waiting.frame.bytes()[waiting.sent..];
            match self.send_now(bytes, waiting.file.as_ref().map(AsFd::as_fd)) {
                Ok(sent) if sent == bytes.len() => {}
                Ok(sent) => {
                    let sent = waiting.sent + sent;
                    self.outbox.push_front(Waiting { sent, file: None, ..waiting });
                    return Ok(());
                }
                Err(error) if is_full(error) => {
                    self.outbox.push_front(waiting);
                    return Ok(());
                }
                Err(_) => return Err(PeerGone),
            }
        }
        Ok(())
    }

    /// Returns whether messages wait for space.
    pub(super) fn is_full(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Wakes the peer. If there is no space, the peer has unread messages and wakes anyway.
    pub(super) fn ring(&self) {
        if self.outbox.is_empty() {
            let _ = self.send_now(ShmMessage::Doorbell.encode().bytes(), None);
        }
    }

    /// Reads once.
    ///
    /// # Panics
    ///
    /// Unwinds with a [`Shortage`](squall_fabric::Shortage) if this process has reached its limit of descriptors.
    pub(super) fn fill(&mut self) -> Result<ReadOutcome, ShmViolation> {
        let mut bytes = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_READ))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.stream, &mut iov, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(ReadOutcome::Empty),
            Err(_) => return Ok(ReadOutcome::End),
        };
        let waiting = self.files.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        let cut = received.flags.contains(ReturnFlags::CTRUNC);
        if cut && self.files.len() - waiting < FILES_PER_READ {
            // There was space for more: this process has no descriptor left, and the file is lost.
            shortage("descriptor for memory that a peer shares", &Errno::MFILE.into()).unwind();
        }
        if cut || self.files.len() > FILES_WAITING_MAX {
            return Err(ShmViolation("more files than messages"));
        }
        if received.bytes == 0 {
            return Ok(ReadOutcome::End);
        }
        self.inbox.extend_from_slice(&bytes[..received.bytes]);
        Ok(ReadOutcome::Some)
    }

    /// Returns the next complete message, with its file if it has one.
    pub(super) fn next(&mut self) -> Result<Option<(ShmMessage, Option<OwnedFd>)>, ShmViolation> {
        let Some((message, length)) = ShmMessage::decode(&self.inbox)? else { return Ok(None) };
        self.inbox.drain(..length);
        if !message.has_file() {
            return Ok(Some((message, None)));
        }
        let file = self.files.pop_front().ok_or(ShmViolation("a message without its file"))?;
        Ok(Some((message, Some(file))))
    }

    /// Notifies the peer that nothing more will be sent.
    pub(super) fn shut_down(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn send_now(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: &[BorrowedFd<'_>] = file.as_slice();
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)), "space for one file");
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags)
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns whether there is no space now, or, with files, whether too many files are in flight (the kernel's
/// limit per user).
fn is_full(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)
}

/// A peer that leaves this many control messages unread counts as dead; each may hold a file open.
const OUTBOX_MAX: usize = 8192;
const READ_BYTES: usize = 4096;
/// One message carries one file; the kernel does not merge two messages that carry files. Alignment leaves
/// space for more.
const FILES_PER_READ: usize = 4;
const FILES_WAITING_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixSocket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (UnixSocket::new(ours).expect("same user"), theirs)
    }

    /// More messages with files than the kernel takes at once: none is lost, none changes its position.
    #[test]
    fn messages_wait_for_space_in_order() {
        const MESSAGES: u64 = 2000;
        let (mut sender, theirs) = pair();
        let mut receiver = UnixSocket::new(theirs).expect("same user");
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        for key in 0..MESSAGES {
            sender.send(ShmMessage::Mirror { key, words: 1 }, Some(file.as_fd())).expect("open");
            sender.send(ShmMessage::Attached { key }, None).expect("open");
        }
        assert!(sender.is_full(), "more than the socket holds");
        let mut keys = Vec::new();
        while receiver.fill().expect("no violation") == ReadOutcome::Some {
            while let Some((message, file)) = receiver.next().expect("no violation") {
                match message {
                    ShmMessage::Mirror { key, .. } => assert!(file.is_some(), "file of {key}"),
                    ShmMessage::Attached { key } => keys.push(key),
                    other => panic!("{other:?}"),
                }
            }
            sender.flush().expect("open");
        }
        assert_eq!(keys, (0..MESSAGES).collect::<Vec<_>>());
    }

    #[test]
    fn the_end_follows_the_last_message() {
        let (mut receiver, theirs) = pair();
        UnixSocket::new(theirs)
            .expect("same user")
            .send(ShmMessage::Attached { key: 1 }, None)
            .expect("open");
        assert_eq!(receiver.fill(), Ok(ReadOutcome::Some));
        let message = receiver.next().expect("no violation").map(|(message, _)| message);
        assert_eq!(message, Some(ShmMessage::Attached { key: 1 }));
        assert_eq!(receiver.fill(), Ok(ReadOutcome::End));
    }

    /// A peer's excess of files is not a shortage of this process.
    #[test]
    fn more_files_than_there_is_space_for_are_a_violation() {
        let (mut receiver, theirs) = pair();
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let files = [file.as_fd(); 2 * FILES_PER_READ];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * FILES_PER_READ))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)), "space");
        let frame = ShmMessage::Mirror { key: 1, words: 1 }.encode();
        rustix::net::sendmsg(&theirs, &[IoSlice::new(frame.bytes())], &mut control, SendFlags::empty())
            .expect("sent");
        assert_eq!(receiver.fill(), Err(ShmViolation("more files than messages")));
    }

    #[test]
    fn a_message_without_its_file_is_a_violation() {
        use std::io::Write as _;
        let (mut receiver, mut theirs) = pair();
        theirs.write_all(ShmMessage::Mirror { key: 1, words: 1 }.encode().bytes()).expect("space");
        assert_eq!(receiver.fill(), Ok(ReadOutcome::Some));
        assert_eq!(receiver.next().map(|_| ()), Err(ShmViolation("a message without its file")));
    }
}
