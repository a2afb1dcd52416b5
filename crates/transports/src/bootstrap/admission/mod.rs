//! The admission listener: where a group that runs is reached by who wants to join it, and by who asks how it does
//! (Derecho §3.3: joins go through the leader, and each member links with the joiner).
//!
//! **Law.** After the assembly each member opens an admission listener on its own [`BootstrapListener`]. A thread of the
//! admission listener's own serves it, asleep as long as nobody comes. The admission listener decides nothing: it proves the
//! secret, parses, and hands what comes over as [`AdmissionEvent`]s to the member's polling thread, whose [`Waker`] it uses;
//! that thread says who leads, who is admitted, and under which number. A join takes these steps:
//!
//! 1. The joiner ([`super::JoinCalls`]) calls a contact and asks to join ([`AdmissionEvent::JoinAsked`]). A member that does
//!    not lead answers [`Asker::redirect`]; one that cannot admit now, [`Asker::wait`]; the leader, [`Asker::admit`] with a
//!    number that no node ever had, the members, and a token for its own code at the other end.
//! 2. The joiner connects to each member and says its number ([`AdmissionEvent::LinkAsked`]). Each member decides on its
//!    polling thread, and so before it can hear of a view with the joiner; then its admission listener answers, and hands the
//!    stream over ([`AdmissionEvent::Peer`]).
//! 3. It reports to the leader that all its links stand. The leader's admission listener answers, and hands over its own link
//!    ([`AdmissionEvent::Peer`]) and the news ([`AdmissionEvent::Connected`]). Who dies before is [`AdmissionEvent::Gone`].
//!    Whether the joiner becomes a member is for the leader's group to decide now.
//!
//! **Bounds.** As in the bootstrap, nobody is heard before the proof, and connections without it are few and
//! short-lived. Of those who have proved the secret, [`ASKERS_MAX`] wait for answers, each for [`ANSWER_TIMEOUT`]; those who were
//! admitted link until the member dismisses them ([`AdmissionListener::dismiss`]). If the polling thread does not take its
//! events, joiners are told to wait.

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

/// Requests that wait for an answer of the polling thread.
pub const ASKERS_MAX: usize = 64;
/// How long they wait, before the admission listener itself tells them to come again.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest token of a leader.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
/// The longest answer to a question about the status.
pub const STATUS_BYTES_MAX: usize = 128 << 10;

/// A member's admission listener. Closed when dropped; who waits is told to try elsewhere by the end of its connection.
#[derive(Debug)]
pub struct AdmissionListener {
    address: Address,
    orders: OrderSender,
    thread: Option<JoinHandle<()>>,
}

/// What comes to an admission listener, in the order in which it came.
#[derive(Debug)]
pub struct AdmissionEvents<S> {
    events: Receiver<AdmissionEvent<S>>,
    waiting: Arc<AtomicU64>,
}

/// What an admission listener tells its member's polling thread.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdmissionEvent<S> {
    /// A process wants to join.
    JoinAsked {
        /// To be answered.
        asker: Asker,
        /// Who it is.
        info: JoinInfo,
    },
    /// A node that some leader has admitted wants to link with this member. Whether it is who it says, only what the leader
    /// tells can show.
    LinkAsked {
        /// To be answered.
        asker: Asker,
        /// What it says to be.
        node: NodeId,
        /// Where it says that it listens.
        address: Address,
    },
    /// A node has linked with this member, which has agreed ([`Asker::take_link`]) or has admitted it: a blocking stream, proved
    /// at both ends.
    Peer {
        /// What it says to be.
        node: NodeId,
        /// Where it says that it listens.
        address: Address,
        /// To be given to the fabric (`add_peer`), or dropped.
        stream: S,
    },
    /// A node whose link was agreed to has gone before it heard of it.
    LinkFailed {
        /// The node.
        node: NodeId,
    },
    /// A node that was admitted here has linked with all members.
    Connected {
        /// The node.
        node: NodeId,
    },
    /// A node that was admitted here has gone before it was connected. Its number is spent.
    Gone {
        /// The node.
        node: NodeId,
    },
    /// Somebody who knows the secret asks something.
    StatusAsked {
        /// To be answered.
        asker: Asker,
        /// The question, as its sender and the member's code understand it.
        question: Vec<u8>,
    },
}

/// A process that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinInfo {
    /// What it calls itself, for people to see.
    pub name: String,
    /// Where it listens; never empty. The first is for members that use this admission listener's kind of socket.
    pub addresses: Vec<Address>,
    /// The rank that it asks for.
    pub rank: Option<u32>,
    /// The peer in words.
    pub peer: String,
}

/// What the leader gives to who is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The joiner's number, which no node ever had.
    pub node: NodeId,
    /// This node.
    pub leader: NodeId,
    /// All members, this node included: with whom the joiner links.
    pub members: Vec<BootstrapMember>,
    /// For the code that joins; at most [`TOKEN_BYTES_MAX`] bytes.
    pub token: Vec<u8>,
}

/// Somebody who waits for an answer. If it is dropped without one, the asker is told to try again.
pub struct Asker {
    number: u64,
    orders: OrderSender,
    answered: bool,
}

impl AdmissionListener {
    /// Opens an admission listener: serves `listener` from now on, in a thread of its own. `session` is that of the assembly
    /// (or of [`super::Joined`]); the cluster, its secret, the agreement and the limits of handshakes are the plan's. `waker`
    /// is used after each event.
    ///
    /// # Errors
    /// If a thread or a file descriptor cannot be had.
    pub fn open<S: LinkSocket>(
        listener: BootstrapListener<S>,
        plan: &BootstrapPlan,
        session: u64,
        waker: Waker,
    ) -> Result<(Self, AdmissionEvents<S::Secured>), BootstrapError> {
        let address = listener.address().clone();
        let doorbell = Waker::new().map_err(system("to make a doorbell"))?;
        let (orders, received) = channel();
        let (events, for_member) = channel();
        let waiting = Arc::new(AtomicU64::new(0));
        let orders = OrderSender { orders, doorbell: doorbell.clone() };
        let event_sender = EventSender { events, waiting: Arc::clone(&waiting), waker };
        let (plan, thread_orders) = (plan.clone(), orders.clone());
        let run = move || {
            AdmissionThread::serve(&plan, &listener, session, event_sender, (thread_orders, received))
        };
        let thread = std::thread::Builder::new().name("squall-admit".into()).spawn(run);
        let thread = Some(thread.map_err(system("to start the admission thread"))?);
        Ok((Self { address, orders, thread }, AdmissionEvents { events: for_member, waiting }))
    }

    /// Closes the connection of a node that was admitted here and is not connected.
    pub fn dismiss(&self, node: NodeId) {
        self.orders.send(Order::Dismiss(node));
    }

    /// Where the admission listener can be reached.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for AdmissionListener {
    fn drop(&mut self) {
        self.orders.send(Order::Close);
        if let Some(thread) = self.thread.take() {
            // A panic of the admission listener has been printed by its thread.
            let _ = thread.join();
        }
    }
}

impl<S> AdmissionEvents<S> {
    /// The next event, if there is one. Costs one load when there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<AdmissionEvent<S>> {
        // SYNC: pairs with the release in `EventSender::send`: who sees the count finds the event.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let event = self.events.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}

impl Asker {
    /// Takes the joiner in, as far as links go. [`AdmissionEvent::Connected`] or [`AdmissionEvent::Gone`] answers.
    ///
    /// # Panics
    /// If the token is too long, there are too many members, or the leader is not one of them.
    pub fn admit(self, admission: &Admission) {
        let Admission { node, leader, members, token } = admission;
        assert!(token.len() <= TOKEN_BYTES_MAX, "a token of {} bytes", token.len());
        assert!(members.len() < super::MEMBERS_MAX, "{} members are as many as can be", members.len());
        assert!(members.iter().any(|member| member.node == *leader), "{leader} is no member");
        assert!(members.iter().all(|member| member.node != *node), "{node} is a member already");
        let members = members.iter().map(|member| (member.node.0, member.address.to_string())).collect();
        let (node, leader, token) = (node.0, leader.0, token.clone());
        // The admission listener knows its session.
        self.answer_with(BootstrapAnswer::Admit(AdmissionFrame { session: 0, node, leader, members, token }));
    }

    /// Sends the joiner to the leader.
    pub fn redirect(self, leader: &Address) {
        self.answer_with(BootstrapAnswer::Redirect { leader: leader.to_string() });
    }

    /// Takes the link of `node`, which has asked for it. [`AdmissionEvent::Peer`] or [`AdmissionEvent::LinkFailed`] answers.
    pub fn take_link(mut self, node: NodeId) {
        self.answered = true;
        self.orders.send(Order::TakeLink(self.number, node));
    }

    /// Tells the asker to try again soon; `reason` is for people and is cut to 200 characters.
    pub fn wait(self, reason: &str) {
        self.answer_with(BootstrapAnswer::Wait { reason: cut(reason) });
    }

    /// Tells the asker to give up; `reason` says what to do next, and is cut to 200 characters.
    pub fn refuse(self, reason: &str) {
        self.answer_with(BootstrapAnswer::Denied { reason: cut(reason) });
    }

    /// Answers a question about the status.
    ///
    /// # Panics
    /// If the answer is longer than [`STATUS_BYTES_MAX`].
    pub fn answer(self, bytes: Vec<u8>) {
        assert!(bytes.len() <= STATUS_BYTES_MAX, "a status of {} bytes", bytes.len());
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

/// What an admission listener is told to do.
#[derive(Debug)]
enum Order {
    Answer(u64, BootstrapAnswer),
    TakeLink(u64, NodeId),
    Dismiss(NodeId),
    Close,
}

/// The way to an admission listener's thread.
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

/// The way to the polling thread.
#[derive(Debug)]
struct EventSender<S> {
    events: Sender<AdmissionEvent<S>>,
    waiting: Arc<AtomicU64>,
    waker: Waker,
}

impl<S> EventSender<S> {
    /// Hands an event over; what the member no longer wants is dropped.
    fn send(&self, event: AdmissionEvent<S>) {
        if self.events.send(event).is_ok() {
            // SYNC: pairs with the acquire in `poll_event`.
            self.waiting.fetch_add(1, Ordering::Release);
            self.waker.wake();
        }
    }

    /// Whether the member leaves its events lying.
    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= EVENTS_MAX
    }
}

fn cut(reason: &str) -> String {
    reason.chars().take(200).collect()
}

/// Beyond so many events joiners are told to wait.
const EVENTS_MAX: u64 = 4 * ASKERS_MAX as u64;
