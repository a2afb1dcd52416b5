//! The join desk: where a group that runs is reached by who wants to join it, and by who asks how it does
//! (Derecho §3.3: joins go through the leader, and each member links with the newcomer).
//!
//! **Law.** After the assembly each member opens a desk on its own [`Listener`]. A thread of the desk's own serves it,
//! asleep as long as nobody comes. The desk decides nothing: it proves the secret, parses, and hands what comes over as
//! [`DeskEvent`]s to the member's polling thread, whose [`Waker`] it uses; that thread says who leads, who is admitted,
//! and under which number. A join takes these steps:
//!
//! 1. The newcomer ([`super::JoinCalls`]) calls a contact and asks to join ([`DeskEvent::JoinAsked`]). A member that does not
//!    lead answers [`Asker::redirect`]; one that cannot admit now, [`Asker::wait`]; the leader, [`Asker::admit`] with a
//!    number that no node ever had, the members, and a token for its own code at the other end.
//! 2. The newcomer connects to each member and says its number ([`DeskEvent::LinkAsked`]). Each member decides on its polling
//!    thread, and so before it can hear of a view with the newcomer; then its desk answers, and hands the stream over
//!    ([`DeskEvent::Peer`]).
//! 3. It reports to the leader that all its links stand. The leader's desk answers, and hands over its own link
//!    ([`DeskEvent::Peer`]) and the news ([`DeskEvent::Connected`]). Who dies before is [`DeskEvent::Gone`].
//!    Whether the newcomer becomes a member is for the leader's group to decide now.
//!
//! **Bounds.** As in the bootstrap, nobody is heard before the proof, and connections without it are few and
//! short-lived. Of those who have proved the secret, [`ASKERS_MAX`] wait for answers, each for [`ANSWER_TIMEOUT`]; those who were
//! admitted link until the member dismisses them ([`Desk::dismiss`]). If the polling thread does not take its events, newcomers
//! are told to wait.

mod room;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};

use self::room::Room;
use super::error::system;
use super::link::Link;
use super::message::{Admittance, Answer};
use super::{Address, BootstrapError, Listener, Member, Plan};
use crate::Waker;

/// Requests that wait for an answer of the polling thread.
pub const ASKERS_MAX: usize = 64;
/// How long they wait, before the desk itself tells them to come again.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest token of a leader.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
/// The longest answer to a question about the status.
pub const STATUS_BYTES_MAX: usize = 128 << 10;

/// A member's desk. Closed when dropped; who waits is told to try elsewhere by the end of its connection.
#[derive(Debug)]
pub struct Desk {
    address: Address,
    orders: Orders,
    thread: Option<JoinHandle<()>>,
}

/// What comes to a desk, in the order in which it came.
#[derive(Debug)]
pub struct DeskEvents<S> {
    events: Receiver<DeskEvent<S>>,
    waiting: Arc<AtomicU64>,
}

/// What a desk tells its member's polling thread.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeskEvent<S> {
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
    /// Where it listens; never empty. The first is for members that use this desk's kind of socket.
    pub addresses: Vec<Address>,
    /// The rank that it asks for.
    pub rank: Option<u32>,
    /// The peer in words.
    pub peer: String,
}

/// What the leader gives to who is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The newcomer's number, which no node ever had.
    pub node: NodeId,
    /// This node.
    pub leader: NodeId,
    /// All members, this node included: with whom the newcomer links.
    pub members: Vec<Member>,
    /// For the code that joins; at most [`TOKEN_BYTES_MAX`] bytes.
    pub token: Vec<u8>,
}

/// Somebody who waits for an answer. If it is dropped without one, the asker is told to try again.
pub struct Asker {
    number: u64,
    orders: Orders,
    answered: bool,
}

impl Desk {
    /// Opens a desk: serves `listener` from now on, in a thread of its own. `session` is that of the assembly (or of
    /// [`super::Joined`]); the cluster, its secret, the agreement and the limits of handshakes are the plan's. `waker`
    /// is used after each event.
    ///
    /// # Errors
    /// If a thread or a file descriptor cannot be had.
    pub fn open<S: Link>(
        listener: Listener<S>,
        plan: &Plan,
        session: u64,
        waker: Waker,
    ) -> Result<(Self, DeskEvents<S::Secured>), BootstrapError> {
        let address = listener.address().clone();
        let doorbell = Waker::new().map_err(system("to make a doorbell"))?;
        let (orders, received) = channel();
        let (events, for_member) = channel();
        let waiting = Arc::new(AtomicU64::new(0));
        let orders = Orders { orders, doorbell: doorbell.clone() };
        let told = Told { events, waiting: Arc::clone(&waiting), waker };
        let (plan, desk_orders) = (plan.clone(), orders.clone());
        let run = move || Room::serve(&plan, &listener, session, told, (desk_orders, received));
        let thread = std::thread::Builder::new().name("squall-desk".into()).spawn(run);
        let thread = Some(thread.map_err(system("to start the desk's thread"))?);
        Ok((Self { address, orders, thread }, DeskEvents { events: for_member, waiting }))
    }

    /// Closes the connection of a node that was admitted here and is not connected.
    pub fn dismiss(&self, node: NodeId) {
        self.orders.give(Order::Dismiss(node));
    }

    /// Where the desk can be reached.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.orders.give(Order::Close);
        if let Some(thread) = self.thread.take() {
            // A panic of the desk has been printed by its thread.
            let _ = thread.join();
        }
    }
}

impl<S> DeskEvents<S> {
    /// The next event, if there is one. Costs one load when there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<DeskEvent<S>> {
        // SYNC: pairs with the release in `Told::tell`: who sees the count finds the event.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let event = self.events.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}

impl Asker {
    /// Takes the newcomer in, as far as links go. [`DeskEvent::Connected`] or [`DeskEvent::Gone`] answers.
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
        // The desk knows its session.
        self.answer_with(Answer::Admit(Admittance { session: 0, node, leader, members, token }));
    }

    /// Sends the newcomer to the leader.
    pub fn redirect(self, leader: &Address) {
        self.answer_with(Answer::Redirect { leader: leader.to_string() });
    }

    /// Takes the link of `node`, which has asked for it. [`DeskEvent::Peer`] or [`DeskEvent::LinkFailed`] answers.
    pub fn take_link(mut self, node: NodeId) {
        self.answered = true;
        self.orders.give(Order::TakeLink(self.number, node));
    }

    /// Tells the asker to try again soon; `reason` is for people and is cut to 200 characters.
    pub fn wait(self, reason: &str) {
        self.answer_with(Answer::Wait { reason: cut(reason) });
    }

    /// Tells the asker to give up; `reason` says what to do next, and is cut to 200 characters.
    pub fn refuse(self, reason: &str) {
        self.answer_with(Answer::Denied { reason: cut(reason) });
    }

    /// Answers a question about the status.
    ///
    /// # Panics
    /// If the answer is longer than [`STATUS_BYTES_MAX`].
    pub fn answer(self, bytes: Vec<u8>) {
        assert!(bytes.len() <= STATUS_BYTES_MAX, "a status of {} bytes", bytes.len());
        self.answer_with(Answer::Status { bytes });
    }

    fn answer_with(mut self, answer: Answer) {
        self.answered = true;
        self.orders.give(Order::Answer(self.number, answer));
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.answered {
            let reason = "the member did not decide".into();
            self.orders.give(Order::Answer(self.number, Answer::Wait { reason }));
        }
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asker({})", self.number)
    }
}

/// What a desk is told to do.
#[derive(Debug)]
enum Order {
    Answer(u64, Answer),
    TakeLink(u64, NodeId),
    Dismiss(NodeId),
    Close,
}

/// The way to a desk's thread.
#[derive(Clone, Debug)]
struct Orders {
    orders: Sender<Order>,
    doorbell: Waker,
}

impl Orders {
    fn give(&self, order: Order) {
        // A desk that is closed needs no orders.
        if self.orders.send(order).is_ok() {
            self.doorbell.ring();
        }
    }
}

/// The way to the polling thread.
#[derive(Debug)]
struct Told<S> {
    events: Sender<DeskEvent<S>>,
    waiting: Arc<AtomicU64>,
    waker: Waker,
}

impl<S> Told<S> {
    /// Hands an event over; what the member no longer wants is dropped.
    fn tell(&self, event: DeskEvent<S>) {
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

/// Beyond so many events newcomers are told to wait.
const EVENTS_MAX: u64 = 4 * ASKERS_MAX as u64;
