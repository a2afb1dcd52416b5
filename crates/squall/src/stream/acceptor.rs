//! Accepts streams from processes that stay connected to a member for a while: those that send requests about its
//! objects, and external clients.
//!
//! They connect to the port at which the member listens. A thread accepts, and each connection has a thread, at most
//! [`CONNECTIONS_MAX`].
//! Each process that connects has proved the cluster's secret.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::atomics::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use squall_fabric::mutex::lock;
use squall_transports::Waker;
use squall_transports::bootstrap::pair::PairService;
use squall_transports::log;

use crate::status::GroupStatus;
use crate::stream::{Listener, Socket, Stream, StreamError, StreamOptions};

/// Accepts streams. Dropping it stops listening, and asks the conversations to end.
#[derive(Debug)]
pub(crate) struct StreamAcceptor {
    state: Arc<State>,
    /// Wakes the accepting thread, to end it.
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    connections: AtomicUsize,
    is_closed: AtomicBool,
    /// What ends the waits of the conversations, by their numbers.
    wakers: Mutex<BTreeMap<u64, Waker>>,
    next_number: AtomicU64,
}

impl State {
    fn wakers(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        lock(&self.wakers)
    }

    /// Asks the conversations to end.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.wakers().values().for_each(Waker::wake);
    }

    /// Lets `partner` converse, so that it is woken when this closes.
    fn converse(&self, socket: Socket, partner: &impl Conversation) -> io::Result<()> {
        let mut stream = Stream::new(socket)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.wakers().insert(number, stream.waker());
        let ended = partner.converse(stream, &self.is_closed);
        self.wakers().remove(&number);
        ended
    }
}

/// Serves one peer until the connection ends, or until the flag says that the member ends.
pub(crate) trait Conversation: Send + Sync + 'static {
    fn converse(&self, stream: Stream, is_closed: &AtomicBool) -> io::Result<()>;
}

impl StreamAcceptor {
    /// Serves callers of the member's `service`.
    pub(crate) fn open(
        status: &GroupStatus,
        service: PairService,
        options: &StreamOptions,
        partner: impl Conversation,
    ) -> Result<Self, StreamError> {
        let not_there = || StreamError::Transport(io::ErrorKind::NotConnected.into());
        let address = status.listen().clone().ok_or_else(not_there)?;
        let listener = Listener::serve(&address, (status.services(), service), options)?;
        let state = Arc::new(State::default());
        let (bell, rung) = UnixStream::pair().map_err(StreamError::Transport)?;
        let (accepting, partner) = (Arc::clone(&state), Arc::new(partner));
        let run = move || accept(&listener, &rung, &accepting, &partner, service);
        let thread = std::thread::Builder::new().name(format!("squall {service}")).spawn(run);
        Ok(Self { state, bell, thread: Some(thread.map_err(StreamError::Transport)?) })
    }

    /// Asks the conversations to end, and waits for them, `patience` at most.
    pub(crate) fn end_conversations(&self, patience: Duration) {
        self.state.close();
        let pause = Duration::from_millis(1);
        let mut waited = Duration::ZERO;
        while self.state.connections.load(Ordering::Relaxed) > 0 && waited < patience {
            std::thread::sleep(pause);
            waited += pause;
        }
    }
}

impl Drop for StreamAcceptor {
    fn drop(&mut self) {
        self.state.close();
        // If the write fails, the thread has already ended.
        let _ = self.bell.write_all(&[0]);
        if let Some(thread) = self.thread.take() {
            // The address is free afterwards. If the thread panicked, it has already reported that.
            let _ = thread.join();
        }
    }
}

fn accept<C: Conversation>(
    listener: &Listener,
    bell: &UnixStream,
    state: &Arc<State>,
    partner: &Arc<C>,
    what: PairService,
) {
    while !state.is_closed.load(Ordering::Relaxed) {
        let waited = squall_transports::wait_readable(&[listener.as_fd(), bell.as_fd()], None);
        if waited.is_err() || state.is_closed.load(Ordering::Relaxed) {
            return;
        }
        match listener.accept_within(Some(ACCEPT_PATIENCE)) {
            Ok(Some(socket)) => accept_socket(socket, state, partner, what),
            Ok(None) => {}
            Err(error) => {
                log::warn!(%error, "failed to accept a connection to this member's {what}");
                std::thread::sleep(ACCEPT_PATIENCE);
            }
        }
    }
}

/// Gives a connection a thread, unless there are too many: a client that is turned away asks another member.
fn accept_socket<C: Conversation>(socket: Socket, state: &Arc<State>, partner: &Arc<C>, what: PairService) {
    if state.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        state.connections.fetch_sub(1, Ordering::Relaxed);
        log::warn!("closed a connection to this member's {what}: there are already {CONNECTIONS_MAX}");
        return;
    }
    let (own, partner) = (Arc::clone(state), Arc::clone(partner));
    let run = move || {
        if let Err(error) = own.converse(socket, &*partner) {
            log::debug!(%error, "a connection to this member's {what} has ended");
        }
        own.connections.fetch_sub(1, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("squall answers".into()).spawn(run).is_err() {
        state.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Each has a thread and two rings of buffers.
const CONNECTIONS_MAX: usize = 256;
/// How long to wait for a process that has connected and not yet proved the secret.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(100);
