//! Calls of peers: threads that connect to peers and prove, for a polling thread that never waits.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Instant;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::{Duration, NodeId};

use super::sentinel::{SENTINEL_CALL, SENTINEL_WAIT_MAX};
use crate::Waker;
use crate::pacing::{self, TcpInfo};
use crate::session::PeerStream;
use crate::tcp::pair::{PairId, ReopenBallot};
use crate::tcp::socket::{SentState, TcpSocket};

/// The first message on a connection of a pair that is opened again: the caller's ballot, and how many words it has handled. Number 0 asks for
/// a sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReopenRequest {
    pub(crate) pair: PairId,
    pub(crate) ballot: ReopenBallot,
    pub(crate) handled: u64,
}

/// The answer to a [`ReopenRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReopenAnswer {
    /// The connection is taken; the called end has handled that many words.
    Yes(u64),
    /// The called end has seen a ballot of this number, which is not lower.
    No(u64),
    /// The called end does not have this pair, or has lost it.
    Gone,
}

/// Why a call has failed.
#[derive(Debug)]
pub(crate) struct PairCallFailure {
    /// The host says that no process listens there, or the process that does says that it begins, so that it has no pair.
    pub(crate) refused: bool,
    pub(crate) cause: String,
}

/// Connects to peers, for these threads. All of it blocks, with a limit of its own.
pub(crate) trait PeerCaller: fmt::Debug + Send + Sync {
    /// Connects to a peer; returns when both ends have proved themselves.
    fn call(&self, peer: NodeId) -> Result<Box<dyn ProvedCall>, PairCallFailure>;
}

/// A connection whose ends have proved themselves, before the caller has asked.
pub(crate) trait ProvedCall {
    /// Sends the request and returns the answer, with the stream that follows it.
    fn ask(self: Box<Self>, request: &ReopenRequest) -> Result<(ReopenAnswer, PeerStream), PairCallFailure>;
}

/// A connection on which a proved caller asks to open it again.
pub(crate) trait Asking: fmt::Debug + Send {
    /// Returns the request.
    fn request(&self) -> ReopenRequest;

    /// Sends the answer, without waiting; returns the stream that follows it.
    fn answer(self: Box<Self>, answer: ReopenAnswer) -> io::Result<PeerStream>;
}

/// What comes to the polling thread.
pub(super) enum News {
    /// A call's other end has proved itself. The reply is the request to send, or nothing if the call was given up.
    Proved { peer: NodeId, call: u64, reply: SyncSender<ReopenRequest> },
    /// A call has got its answer.
    Answered { peer: NodeId, call: u64, answer: Result<(ReopenAnswer, PeerStream), PairCallFailure> },
    /// Another process asks.
    Asked(Box<dyn Asking>),
    /// The connection to a peer is silent.
    Silent { peer: NodeId },
}

/// Where the listening thread hands over those that ask.
#[derive(Clone)]
pub(crate) struct AskedDesk {
    news: Sender<News>,
    flag: Arc<AtomicBool>,
    waker: Waker,
}

impl fmt::Debug for AskedDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskedDesk").finish_non_exhaustive()
    }
}

impl AskedDesk {
    /// Hands over a connection on which a proved caller asks. If the fabric has ended, it is closed.
    pub(crate) fn hand_over(&self, asking: Box<dyn Asking>) {
        self.send(News::Asked(asking));
    }

    pub(super) fn send(&self, news: News) {
        if self.news.send(news).is_ok() {
            // SYNC: pairs with the acquiring swap in `PairCalls::take_flag`.
            self.flag.store(true, Ordering::Release);
            self.waker.wake();
        }
    }
}

/// What the thread of calls is to do.
pub(super) enum CallsOrder {
    /// To make a call.
    Call(PairCallOrder),
    /// To look whether the connection to a peer is silent, while it lasts.
    Watch { peer: NodeId, stream: Weak<TcpStream> },
}

/// A call to make.
pub(super) struct PairCallOrder {
    peer: NodeId,
    /// 0: a sentinel, for which the request is known.
    pub(super) call: u64,
    request: Option<ReopenRequest>,
    wait: Duration,
    given_up: Arc<AtomicBool>,
}

/// The threads that make the calls of a fabric.
pub(in crate::tcp) struct PairCalls {
    orders: Sender<CallsOrder>,
    news: Receiver<News>,
    desk: AskedDesk,
    /// How long a connection may be silent until it is broken.
    pub(super) silence: Option<Duration>,
}

impl fmt::Debug for PairCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairCalls").finish_non_exhaustive()
    }
}

impl PairCalls {
    pub(super) fn open(
        caller: Arc<dyn PeerCaller>,
        silence: Option<Duration>,
        waker: Waker,
    ) -> io::Result<Self> {
        let (calls, taken) = Self::without_threads(silence, waker);
        let of_threads = calls.desk();
        Builder::new()
            .name("squall-calls".into())
            .spawn(move || follow_orders(&taken, &caller, &of_threads))?;
        Ok(calls)
    }

    /// The holder of the orders makes the calls.
    pub(super) fn without_threads(silence: Option<Duration>, waker: Waker) -> (Self, Receiver<CallsOrder>) {
        let (orders, taken) = channel();
        let (sender, news) = channel();
        let desk = AskedDesk { news: sender, flag: Arc::new(AtomicBool::new(false)), waker };
        (Self { orders, news, desk, silence }, taken)
    }

    pub(super) fn desk(&self) -> AskedDesk {
        self.desk.clone()
    }

    pub(in crate::tcp) fn has_news(&self) -> bool {
        self.desk.flag.load(Ordering::Relaxed)
    }

    /// Returns whether there is news, which the caller takes.
    pub(super) fn take_flag(&self) -> bool {
        // SYNC: pairs with the store in `AskedDesk::send`.
        self.desk.flag.swap(false, Ordering::Acquire)
    }

    pub(super) fn next_news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Orders a call of `peer`, after some that have failed; returns what gives it up.
    pub(super) fn order(&self, peer: NodeId, call: u64, failed: u32) -> Arc<AtomicBool> {
        // A refusal counts twice in a row, so the second call does not wait either.
        let wait = (WAIT_STEP * failed.saturating_sub(1)).min(WAIT_MAX);
        self.send(PairCallOrder { peer, call, request: None, wait, given_up: Arc::default() })
    }

    /// Orders a sentinel.
    pub(super) fn order_sentinel(
        &self,
        peer: NodeId,
        request: ReopenRequest,
        failed: u32,
    ) -> Arc<AtomicBool> {
        let wait = (WAIT_STEP * failed * failed).min(SENTINEL_WAIT_MAX);
        let call = SENTINEL_CALL;
        self.send(PairCallOrder { peer, call, request: Some(request), wait, given_up: Arc::default() })
    }

    fn send(&self, order: PairCallOrder) -> Arc<AtomicBool> {
        let given_up = Arc::clone(&order.given_up);
        self.orders.send(CallsOrder::Call(order)).expect("the thread lives as long as this");
        given_up
    }

    /// Has the connection to a peer watched, if its silence is bounded.
    pub(super) fn watch(&self, peer: NodeId, socket: &TcpSocket) {
        if self.silence.is_some() {
            let order = CallsOrder::Watch { peer, stream: socket.watched() };
            self.orders.send(order).expect("the thread lives as long as this");
        }
    }

    /// Returns whether a connection is not silent, as far as anything looks.
    pub(super) fn shows_life(&self, socket: &TcpSocket) -> bool {
        self.silence.is_some() && !socket.is_silent()
    }
}

/// Makes the calls, each in a thread of its own, so that none waits for another's, and looks at the connections that are watched.
fn follow_orders(orders: &Receiver<CallsOrder>, caller: &Arc<dyn PeerCaller>, desk: &AskedDesk) {
    let mut watched: Vec<(NodeId, Weak<TcpStream>)> = Vec::new();
    let mut next_look = Instant::now();
    loop {
        let order = if watched.is_empty() {
            orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            orders.recv_timeout(next_look.saturating_duration_since(Instant::now()))
        };
        match order {
            Ok(CallsOrder::Call(order)) => begin_call(order, caller, desk),
            Ok(CallsOrder::Watch { peer, stream }) => watched.push((peer, stream)),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let mut is_idle = true;
                watched.retain(|(peer, stream)| {
                    let Some(stream) = stream.upgrade() else { return false };
                    let info = TcpInfo::of(&stream);
                    if info.wants_pacing() {
                        pacing::pace(&stream);
                    }
                    let flow = SentState::of(&info);
                    is_idle &= flow == SentState::Idle;
                    if flow == SentState::Silent {
                        desk.send(News::Silent { peer: *peer });
                    }
                    true
                });
                next_look = Instant::now() + if is_idle { LOOK_IDLE_EVERY } else { LOOK_EVERY };
            }
        }
    }
}

fn begin_call(order: PairCallOrder, caller: &Arc<dyn PeerCaller>, desk: &AskedDesk) {
    let (peer, call) = (order.peer, order.call);
    let (caller, of_thread) = (Arc::clone(caller), desk.clone());
    let thread = Builder::new().name("squall-call".into());
    if let Err(error) = thread.spawn(move || make_call(&order, &*caller, &of_thread)) {
        let failure = PairCallFailure { refused: false, cause: format!("no thread: {error}") };
        desk.send(News::Answered { peer, call, answer: Err(failure) });
    }
}

fn make_call(order: &PairCallOrder, caller: &dyn PeerCaller, desk: &AskedDesk) {
    let &PairCallOrder { peer, call, request, wait, ref given_up } = order;
    std::thread::sleep(wait);
    // SYNC: a hint; what a call that was given up brings is not taken.
    if given_up.load(Ordering::Relaxed) {
        return;
    }
    let answer = caller.call(peer).and_then(|proved| {
        if let Some(request) = request {
            return proved.ask(&request);
        }
        let (reply, request) = sync_channel(1);
        desk.send(News::Proved { peer, call, reply });
        let given_up = |_| PairCallFailure { refused: false, cause: "it was given up".into() };
        proved.ask(&request.recv().map_err(given_up)?)
    });
    desk.send(News::Answered { peer, call, answer });
}

/// How often connections are looked at while something is under way on one of them.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same while nothing is: an idle member is to sleep.
const LOOK_IDLE_EVERY: Duration = Duration::from_millis(500);

/// Waits between the calls of a peer: none before the first, then longer each time.
const WAIT_STEP: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_millis(200);
