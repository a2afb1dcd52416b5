//! The admission listener, at which processes reach a running group to join it or to query its status
//! (Derecho §3.3: joins go through the leader, and each member links with the joiner).
//!
//! **Contract.** After the assembly each member opens an admission listener on its own [`BootstrapListener`].
//! A separate thread serves it and sleeps while there are no connections. The admission listener decides
//! nothing: it proves the secret, parses, and passes what arrives as [`AdmissionEvent`]s to the member's
//! polling thread, whose [`Waker`] it uses; that thread decides who leads, who is admitted, and under which
//! number. A join takes these steps:
//!
//! 1. The joiner ([`super::JoinCalls`]) calls a contact and asks to join ([`AdmissionEvent::JoinAsked`]). A
//!    member that does not lead answers [`Asker::redirect`]; one that cannot admit now, [`Asker::wait`]; the
//!    leader, [`Asker::admit`] with a number that no node ever had, the members, and a token for its own code
//!    at the other end.
//! 2. The joiner connects to each member and sends its number ([`AdmissionEvent::LinkAsked`]). Each member
//!    decides on its polling thread, and so before it can learn of a view with the joiner; then its admission
//!    listener answers, and passes the stream on ([`AdmissionEvent::Peer`]).
//! 3. It reports to the leader that all its links are established. The leader's admission listener answers,
//!    and passes on its own link ([`AdmissionEvent::Peer`]) and the report ([`AdmissionEvent::Connected`]).
//!    The loss of a joiner before that is [`AdmissionEvent::Gone`]. From now on the leader's group decides
//!    whether the joiner becomes a member.
//!
//! **Bounds.** As in the bootstrap, requests are read only after the proof, and connections without it are
//! few and short-lived. Of the processes that have proved the secret, [`ASKERS_MAX`] wait for answers, each
//! for [`ANSWER_TIMEOUT`]; those that were admitted may link until the member dismisses them
//! ([`AdmissionListener::dismiss`]). If the polling thread does not take its events, joiners are asked to
//! wait.

mod thread;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};

use self::thread::AdmissionThread;
use super::error::system;
use super::link::LinkSocket;
use super::message::{AdmissionFrame, BootstrapAnswer};
use super::{Address, BootstrapError, BootstrapListener, BootstrapMember, BootstrapPlan};
use crate::Waker;

/// The number of requests that may wait for an answer of the polling thread.
pub const ASKERS_MAX: usize = 64;
/// How long a request waits before the admission listener itself asks the process to try again.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest token of a leader, in bytes.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
/// The longest question, in bytes.
pub const QUESTION_BYTES_MAX: usize = 384 << 10;
/// The longest answer to a question, in bytes: the register of a process is in some. Only the process that has asked takes so much.
pub const STATUS_BYTES_MAX: usize = 72 << 20;

/// A member's admission listener. Closed when dropped; processes that wait learn from the end of their
/// connection that they must try elsewhere.
#[derive(Debug)]
pub struct AdmissionListener {
    address: Address,
    orders: OrderSender,
    thread: Option<JoinHandle<()>>,
}

/// The events of an admission listener, in the order in which they occurred.
#[derive(Debug)]
pub struct AdmissionEvents<S> {
    events: Receiver<AdmissionEvent<S>>,
    waiting: Arc<AtomicU64>,
}

/// An event that an admission listener reports to its member's polling thread.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdmissionEvent<S> {
    /// A process wants to join.
    JoinAsked {
        /// The handle for the answer.
        asker: Asker,
        /// The process that asks.
        info: JoinInfo,
    },
    /// A node that claims to be admitted by a leader asks to link with this member. Only the leader's report
    /// can confirm its claim.
    LinkAsked {
        /// The handle for the answer.
        asker: Asker,
        /// The number that it claims.
        node: NodeId,
        /// The address at which it claims to listen.
        address: Address,
    },
    /// A node has linked with this member, which has agreed ([`Asker::take_link`]) or has admitted it: a
    /// blocking stream, with the secret proved at both ends.
    Peer {
        /// The number that it claims.
        node: NodeId,
        /// The address at which it claims to listen.
        address: Address,
        /// The stream to pass to the fabric (`add_peer`), or to drop.
        stream: S,
    },
    /// A node whose link was agreed to was lost before it got the answer.
    LinkFailed {
        /// The node.
        node: NodeId,
    },
    /// A node that was admitted here has linked with all members.
    Connected {
        /// The node.
        node: NodeId,
    },
    /// A node that was admitted here was lost before it was connected. Its number is not used again.
    Gone {
        /// The node.
        node: NodeId,
    },
    /// A process that has proved the secret sends a status query.
    StatusAsked {
        /// The handle for the answer.
        asker: Asker,
        /// The query, in a form that its sender and the member's code share.
        question: Vec<u8>,
    },
}

/// A process that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinInfo {
    /// Its own name, for people.
    pub name: String,
    /// The addresses at which it listens; never empty. The first is for members that use this admission
    /// listener's kind of socket.
    pub addresses: Vec<Address>,
    /// The rank that it requests.
    pub rank: Option<u32>,
    /// A description of the peer, for people.
    pub peer: String,
}

/// What the leader sends to a joiner that it admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The joiner's number, which no node ever had.
    pub node: NodeId,
    /// This node.
    pub leader: NodeId,
    /// All members with which the joiner must link, this node included.
    pub members: Vec<BootstrapMember>,
    /// Data for the code that joins; at most [`TOKEN_BYTES_MAX`] bytes.
    pub token: Vec<u8>,
}

/// A process that waits for an answer. If this is dropped without one, the process is asked to try again.
pub struct Asker {
    number: u64,
    orders: OrderSender,
    answered: bool,
}

impl AdmissionListener {
    /// Opens an admission listener, which serves `listener` from now on in a thread of its own. `session` is
    /// that of the assembly (or of [`super::Joined`]); `plan` has the cluster, its secret, the agreement and
    /// the limits of handshakes. `waker` is used after each event.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread or a file descriptor.
    pub fn open<S: LinkSocket>(
        listener: Arc<BootstrapListener<S>>,
        plan: &BootstrapPlan,
        session: u64,
        waker: Waker,
    ) -> Result<(Self, AdmissionEvents<S::Secured>), BootstrapError> {
        Self::open_as(AdmissionStage::Running, listener, plan, session, waker)
    }

    /// Opens an admission listener for a process whose group does not run yet: one that asks to be among the first
    /// members is to ask again, for `reason`. Dropping the listener ends the thread, and `listener` can be used
    /// otherwise.
    ///
    /// # Errors
    /// The errors of [`AdmissionListener::open`].
    pub fn open_early<S: LinkSocket>(
        listener: Arc<BootstrapListener<S>>,
        plan: &BootstrapPlan,
        reason: &'static str,
        waker: Waker,
    ) -> Result<(Self, AdmissionEvents<S::Secured>), BootstrapError> {
        Self::open_as(AdmissionStage::Early(reason), listener, plan, 0, waker)
    }

    fn open_as<S: LinkSocket>(
        stage: AdmissionStage,
        listener: Arc<BootstrapListener<S>>,
        plan: &BootstrapPlan,
        session: u64,
        waker: Waker,
    ) -> Result<(Self, AdmissionEvents<S::Secured>), BootstrapError> {
        let address = listener.address().clone();
        let doorbell = Waker::new().map_err(system("to create a doorbell"))?;
        let (orders, received) = channel();
        let (events, for_member) = channel();
        let waiting = Arc::new(AtomicU64::new(0));
        let orders = OrderSender { orders, doorbell: doorbell.clone() };
        let event_sender = EventSender { events, waiting: Arc::clone(&waiting), waker };
        let (plan, thread_orders) = (plan.clone(), orders.clone());
        let run = move || {
            AdmissionThread::serve(
                &plan,
                &listener,
                (stage, session),
                event_sender,
                (thread_orders, received),
            );
        };
        let thread = std::thread::Builder::new().name("squall-admit".into()).spawn(run);
        let thread = Some(thread.map_err(system("to start the admission thread"))?);
        Ok((Self { address, orders, thread }, AdmissionEvents { events: for_member, waiting }))
    }

    /// Closes the connection of a node that was admitted here and is not connected.
    pub fn dismiss(&self, node: NodeId) {
        self.orders.send(Order::Dismiss(node));
    }

    /// Returns the address at which the admission listener can be reached.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for AdmissionListener {
    fn drop(&mut self) {
        self.orders.send(Order::Close);
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic.
            let _ = thread.join();
        }
    }
}

/// How far the group of an admission listener's process is.
#[derive(Clone, Copy, Debug)]
enum AdmissionStage {
    Running,
    /// It does not run yet, for this reason.
    Early(&'static str),
}

impl<S> AdmissionEvents<S> {
    /// Waits for the next event; `None` when the listener is closed.
    pub fn wait_event(&mut self) -> Option<AdmissionEvent<S>> {
        let event = self.events.recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }

    /// Returns the next event, if there is one. Costs one load if there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<AdmissionEvent<S>> {
        // SYNC: pairs with the release in `EventSender::send`: a thread that sees the count finds the event.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let event = self.events.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}

impl Asker {
    /// Admits the joiner to link with the members. [`AdmissionEvent::Connected`] or [`AdmissionEvent::Gone`]
    /// follows.
    ///
    /// # Panics
    /// Panics if the token is too long, there are too many members, or the leader is not one of them.
    pub fn admit(self, admission: &Admission) {
        let Admission { node, leader, members, token } = admission;
        assert!(token.len() <= TOKEN_BYTES_MAX, "a token of {} bytes", token.len());
        assert!(members.len() < super::MEMBERS_MAX, "{} members leave no place for a joiner", members.len());
        assert!(members.iter().any(|member| member.node == *leader), "{leader} is not a member");
        assert!(members.iter().all(|member| member.node != *node), "{node} is a member already");
        let members = members.iter().map(|member| (member.node.0, member.address.to_string())).collect();
        let (node, leader, token) = (node.0, leader.0, token.clone());
        // The admission listener sets its session.
        self.answer_with(BootstrapAnswer::Admit(AdmissionFrame { session: 0, node, leader, members, token }));
    }

    /// Redirects the joiner to the leader.
    pub fn redirect(self, leader: &Address) {
        self.answer_with(BootstrapAnswer::Redirect { leader: leader.to_string() });
    }

    /// Agrees to the requested link of `node`. [`AdmissionEvent::Peer`] or [`AdmissionEvent::LinkFailed`]
    /// follows.
    pub fn take_link(mut self, node: NodeId) {
        self.answered = true;
        self.orders.send(Order::TakeLink(self.number, node));
    }

    /// Asks the process to try again soon; `reason` is for people and is cut to 200 characters.
    pub fn wait(self, reason: &str) {
        self.answer_with(BootstrapAnswer::Wait { reason: cut(reason) });
    }

    /// Rejects the process for good; `reason` says what to do next, and is cut to 200 characters.
    pub fn refuse(self, reason: &str) {
        self.answer_with(BootstrapAnswer::Denied { reason: cut(reason) });
    }

    /// Answers a question.
    ///
    /// # Panics
    /// Panics if the answer is longer than [`STATUS_BYTES_MAX`].
    pub fn answer(self, bytes: Vec<u8>) {
        assert!(bytes.len() <= STATUS_BYTES_MAX, "an answer of {} bytes", bytes.len());
        self.answer_with(BootstrapAnswer::Status { bytes });
    }

    fn answer_with(mut self, answer: BootstrapAnswer) {
        self.answered = true;
        self.orders.send(Order::Answer(self.number, answer));
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.answered {
            let reason = "the member did not decide".into();
            self.orders.send(Order::Answer(self.number, BootstrapAnswer::Wait { reason }));
        }
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asker({})", self.number)
    }
}

/// An order to an admission listener's thread.
#[derive(Debug)]
enum Order {
    Answer(u64, BootstrapAnswer),
    TakeLink(u64, NodeId),
    Dismiss(NodeId),
    Close,
}

/// Sends orders to an admission listener's thread.
#[derive(Clone, Debug)]
struct OrderSender {
    orders: Sender<Order>,
    doorbell: Waker,
}

impl OrderSender {
    fn send(&self, order: Order) {
        // An admission listener that is closed needs no orders.
        if self.orders.send(order).is_ok() {
            self.doorbell.ring();
        }
    }
}

/// Sends events to the polling thread.
#[derive(Debug)]
struct EventSender<S> {
    events: Sender<AdmissionEvent<S>>,
    waiting: Arc<AtomicU64>,
    waker: Waker,
}

impl<S> EventSender<S> {
    /// Sends an event; if the member no longer takes events, it is dropped.
    fn send(&self, event: AdmissionEvent<S>) {
        if self.events.send(event).is_ok() {
            // SYNC: pairs with the acquire in `poll_event`.
            self.waiting.fetch_add(1, Ordering::Release);
            self.waker.wake();
        }
    }

    /// Returns whether the member does not take its events.
    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= EVENTS_MAX
    }
}

fn cut(reason: &str) -> String {
    reason.chars().take(200).collect()
}

/// With more events than this, joiners are asked to wait.
const EVENTS_MAX: u64 = 4 * ASKERS_MAX as u64;
