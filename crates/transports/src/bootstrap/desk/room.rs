//! The desk's thread: who waits, for what, and until when.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use squall_fabric::NodeId;

use super::{ANSWER_TIMEOUT, ASKERS_MAX, DeskEvent, Order, Orders, Told};
use crate::bootstrap::desk::Asker;
use crate::bootstrap::link::Link;
use crate::bootstrap::message::{Answer, Refusal, Report, Request};
use crate::bootstrap::reception::{Reception, Visitor};
use crate::bootstrap::request::{join_info, read_listen};
use crate::bootstrap::wire::Wire;
use crate::bootstrap::{Address, Listener, Plan, Progress};

/// All that the thread has.
pub(super) struct Room<'p, S: Link> {
    plan: &'p Plan,
    session: u64,
    reception: Reception<'p, S>,
    told: Told<S::Secured>,
    orders: Orders,
    received: Receiver<Order>,
    /// By number; numbers are not used again. At most [`ASKERS_MAX`] of them ask.
    guests: BTreeMap<u64, Guest<S>>,
    guests_ever: u64,
}

/// Somebody who has proved the secret and said what it wants.
struct Guest<S> {
    wire: Wire<S>,
    peer: String,
    /// Where it listens, if it wants to join.
    address: Option<Address>,
    state: State,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The polling thread has the word.
    Asking,
    /// Admitted, and connecting to the members.
    Linking(NodeId),
}

impl<'p, S: Link> Room<'p, S> {
    /// Serves until the order to close.
    pub(super) fn serve(
        plan: &'p Plan,
        listener: &Listener<S>,
        session: u64,
        told: Told<S::Secured>,
        (orders, received): (Orders, Receiver<Order>),
    ) {
        let proof = plan.proof();
        let reception = Reception::new(plan, listener, &proof);
        let mut room = Room {
            plan,
            session,
            reception,
            told,
            orders,
            received,
            guests: BTreeMap::new(),
            guests_ever: 0,
        };
        while room.turn() {}
    }

    /// Waits for something and does it; false when the desk is closed.
    fn turn(&mut self) -> bool {
        let visitors = self.receive();
        // Silenced before the orders are looked at: an order that comes later rings again.
        self.orders.doorbell.set_parked(false);
        while let Ok(order) = self.received.try_recv() {
            match order {
                Order::Answer(number, answer) => self.answer(number, answer),
                Order::TakeLink(number, node) => self.take_link(number, node),
                Order::Dismiss(node) => self.guests.retain(|_, guest| guest.state != State::Linking(node)),
                Order::Close => return false,
            }
        }
        self.poll_guests();
        for visitor in visitors {
            self.on_visitor(visitor);
        }
        true
    }

    fn receive(&mut self) -> Vec<Visitor<S>> {
        let now = Instant::now();
        let deadline = self.guests.values().map(|guest| guest.until).min().unwrap_or(now + LONG);
        let mut watched: Vec<BorrowedFd<'_>> = self.guests.values().map(|guest| guest.wire.as_fd()).collect();
        watched.push(self.orders.doorbell.doorbell());
        let mut rejected = |progress| {
            if let Progress::Rejected { peer, cause } = progress {
                tracing::info!(peer, cause, "the desk turned a connection away");
            }
        };
        match self.reception.poll(&watched, deadline, &mut rejected) {
            Ok(visitors) => visitors,
            Err(error) => {
                tracing::warn!(%error, "the desk cannot accept connections now");
                std::thread::sleep(SHORTAGE_PAUSE);
                Vec::new()
            }
        }
    }

    fn on_visitor(&mut self, visitor: Visitor<S>) {
        let Visitor { mut wire, peer, request } = visitor;
        let full = self.is_full(&request);
        let answer = match request {
            _ if full => Answer::Wait { reason: "too many ask at this member".into() },
            Request::Enter { .. } => match join_info(&request, &self.plan.agreement, wire.stream(), &peer) {
                Ok(info) => {
                    let asker = self.seat(wire, peer, info.addresses.first().cloned());
                    return self.told.tell(DeskEvent::JoinAsked { asker, info });
                }
                Err(refusal) => Answer::Refused(refusal),
            },
            Request::Status { question } => {
                let asker = self.seat(wire, peer, None);
                return self.told.tell(DeskEvent::StatusAsked { asker, question });
            }
            Request::Hello { session, node, listen } if session == self.session => {
                match read_listen(&listen, wire.stream()) {
                    Some(address) => {
                        let asker = self.seat(wire, peer, Some(address.clone()));
                        let node = NodeId(node);
                        return self.told.tell(DeskEvent::LinkAsked { asker, node, address });
                    }
                    None => Answer::Refused(Refusal::Unusable),
                }
            }
            Request::Join(_) => Answer::Refused(Refusal::Complete),
            Request::Hello { .. } | Request::Link { .. } | Request::Pair { .. } => {
                Answer::Refused(Refusal::OtherSession)
            }
        };
        tracing::info!(peer, ?answer, "the desk turned a request away");
        // Whoever does not wait for the answer needs none.
        let _ = wire.write_frame(&answer, Instant::now());
    }

    /// The polling thread has agreed to a link.
    fn take_link(&mut self, number: u64, node: NodeId) {
        let guest = self.guests.remove(&number);
        let linked = guest.and_then(|Guest { mut wire, address, .. }| {
            wire.write_frame(&Answer::Accepted, Instant::now() + self.plan.handshake_timeout).ok()?;
            Some((address?, wire.into_stream().ok()?))
        });
        self.told.tell(match linked {
            Some((address, stream)) => DeskEvent::Peer { node, address, stream },
            None => DeskEvent::LinkFailed { node },
        });
    }

    /// Whether there is no room for a request now. A link that waits is tried again, with the leader's patience.
    fn is_full(&self, request: &Request) -> bool {
        let asking = self.guests.values().filter(|guest| guest.state == State::Asking).count();
        let asks = matches!(request, Request::Enter { .. } | Request::Status { .. } | Request::Hello { .. });
        asks && asking >= ASKERS_MAX || self.told.is_full()
    }

    /// Lets a visitor wait for the polling thread's answer.
    fn seat(&mut self, wire: Wire<S>, peer: String, address: Option<Address>) -> Asker {
        let number = self.guests_ever;
        self.guests_ever += 1;
        let until = Instant::now() + ANSWER_TIMEOUT;
        self.guests.insert(number, Guest { wire, peer, address, state: State::Asking, until });
        Asker { number, orders: self.orders.clone(), answered: false }
    }

    /// The polling thread has decided.
    fn answer(&mut self, number: u64, mut answer: Answer) {
        let node = match &mut answer {
            Answer::Admit(admittance) => {
                admittance.session = self.session;
                Some(NodeId(admittance.node))
            }
            _ => None,
        };
        let Some(mut guest) = self.guests.remove(&number) else {
            // It has gone, or was told to come again.
            node.into_iter().for_each(|node| self.told.tell(DeskEvent::Gone { node }));
            return;
        };
        let written = guest.wire.write_frame(&answer, Instant::now() + self.plan.handshake_timeout);
        let Some(node) = node else { return };
        if written.is_err() {
            return self.told.tell(DeskEvent::Gone { node });
        }
        (guest.state, guest.until) = (State::Linking(node), Instant::now() + LONG);
        self.guests.insert(number, guest);
    }

    /// Looks for reports, for ends of connections, and at the clock.
    fn poll_guests(&mut self) {
        let now = Instant::now();
        for (number, mut guest) in std::mem::take(&mut self.guests) {
            match (guest.wire.poll_frame::<Report>(), guest.state) {
                (Ok(None), _) if now < guest.until => {
                    self.guests.insert(number, guest);
                }
                (Ok(None), State::Asking) => {
                    let reason = "the member is busy".into();
                    let _ = guest.wire.write_frame(&Answer::Wait { reason }, now);
                }
                (Ok(Some(Report::Connected)), State::Linking(node)) => self.on_connected(guest, node),
                (_, State::Linking(node)) => {
                    tracing::info!(peer = guest.peer, %node, "an admitted process has gone before it was connected");
                    self.told.tell(DeskEvent::Gone { node });
                }
                // Who asks says nothing more; so it has gone.
                (_, State::Asking) => {}
            }
        }
    }

    fn on_connected(&mut self, mut guest: Guest<S>, node: NodeId) {
        let welcomed = guest.wire.write_frame(&Answer::Accepted, Instant::now());
        match (guest.wire.into_stream(), guest.address) {
            (Ok(stream), Some(address)) if welcomed.is_ok() => {
                self.told.tell(DeskEvent::Peer { node, address, stream });
                self.told.tell(DeskEvent::Connected { node });
            }
            _ => self.told.tell(DeskEvent::Gone { node }),
        }
    }
}

/// A sleep that only an event ends.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// Without file descriptors, to look again at once would be to spin.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
