//! The admission listener's thread: the candidates, what they wait for, and until when.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use squall_fabric::{NodeId, Reminders};

use super::{ANSWER_TIMEOUT, ASKERS_MAX, AdmissionEvent, AdmissionStage, EventSender, Order, OrderSender};
use crate::bootstrap::admission::Asker;
use crate::bootstrap::handshake_queue::{HandshakeQueue, ProvedVisitor};
use crate::bootstrap::link::LinkSocket;
use crate::bootstrap::message::{BootstrapAnswer, BootstrapRequest, LinkReport, Refusal};
use crate::bootstrap::request::{join_info, read_listen};
use crate::bootstrap::wire::FramedSocket;
use crate::bootstrap::{Address, BootstrapListener, BootstrapPlan, BootstrapProgress, MEMBER_CALLERS};

/// The state of the thread.
pub(super) struct AdmissionThread<'p, S: LinkSocket> {
    plan: &'p BootstrapPlan,
    stage: AdmissionStage,
    session: u64,
    queue: HandshakeQueue<'p, S>,
    events: EventSender<S::Secured>,
    orders: OrderSender,
    received: Receiver<Order>,
    /// By number; numbers are not reused. At most [`ASKERS_MAX`] of them are in state `Asking`.
    candidates: BTreeMap<u64, Candidate<S>>,
    candidates_ever: u64,
    refusals: RefusalLog,
}

/// Which refusals are logged: a process that is refused tries again several times a second.
struct RefusalLog {
    begun: Instant,
    reminders: Reminders<String>,
}

impl RefusalLog {
    fn note(&mut self, peer: &str, cause: &str) {
        match self.reminders.note(cause.into(), self.begun.elapsed()) {
            None => {}
            Some(0) => crate::log::warn!("refused {peer}: {cause}"),
            Some(silent) => crate::log::warn!("refused {peer}, after {silent} like it: {cause}"),
        }
    }
}

/// A process that has proved the secret and sent its request.
struct Candidate<S> {
    wire: FramedSocket<S>,
    peer: String,
    /// The address at which it listens, if it wants to join.
    address: Option<Address>,
    state: CandidateState,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateState {
    /// It waits for the polling thread's answer.
    Asking,
    /// It is admitted and connects to the members.
    Linking(NodeId),
}

impl<'p, S: LinkSocket> AdmissionThread<'p, S> {
    /// Serves until the order to close.
    pub(super) fn serve(
        plan: &'p BootstrapPlan,
        listener: &BootstrapListener<S>,
        (stage, session): (AdmissionStage, u64),
        events: EventSender<S::Secured>,
        (orders, received): (OrderSender, Receiver<Order>),
    ) {
        let proof = plan.proof();
        let queue = HandshakeQueue::new(plan, listener, &proof, MEMBER_CALLERS);
        let mut server = AdmissionThread {
            plan,
            stage,
            session,
            queue,
            events,
            orders,
            received,
            candidates: BTreeMap::new(),
            candidates_ever: 0,
            refusals: RefusalLog { begun: Instant::now(), reminders: Reminders::default() },
        };
        while server.step() {}
    }

    /// Waits for an event and handles it; returns false when the admission listener is closed.
    fn step(&mut self) -> bool {
        let visitors = self.receive();
        // Silenced before the orders are read: a later order rings again.
        self.orders.doorbell.set_parked(false);
        while let Ok(order) = self.received.try_recv() {
            match order {
                Order::Answer(number, answer) => self.answer(number, answer),
                Order::TakeLink(number, node) => self.take_link(number, node),
                Order::Dismiss(node) => {
                    self.candidates.retain(|_, candidate| candidate.state != CandidateState::Linking(node))
                }
                Order::Close => return false,
            }
        }
        self.poll_candidates();
        for visitor in visitors {
            self.on_visitor(visitor);
        }
        true
    }

    fn receive(&mut self) -> Vec<ProvedVisitor<S>> {
        let now = Instant::now();
        let deadline = self.candidates.values().map(|candidate| candidate.until).min().unwrap_or(now + LONG);
        let mut watched: Vec<BorrowedFd<'_>> =
            self.candidates.values().map(|candidate| candidate.wire.as_fd()).collect();
        watched.push(self.orders.doorbell.doorbell());
        let mut rejected = |progress| {
            if let BootstrapProgress::Rejected { peer, cause } = progress {
                self.refusals.note(&peer, &cause);
            }
        };
        match self.queue.poll(&watched, deadline, &mut rejected) {
            Ok(visitors) => visitors,
            Err(error) => {
                crate::log::warn!(%error, "admission cannot accept connections at present");
                Vec::new()
            }
        }
    }

    fn on_visitor(&mut self, visitor: ProvedVisitor<S>) {
        if let BootstrapRequest::Serve { .. } = visitor.request {
            return self.plan.services.receive(visitor);
        }
        if let BootstrapRequest::Reopen { .. } = visitor.request {
            return self.plan.links.receive(visitor);
        }
        let ProvedVisitor { mut wire, peer, request } = visitor;
        let full = self.is_full(&request);
        let answer = match request {
            _ if full => BootstrapAnswer::Wait { reason: "too many processes wait for this member".into() },
            BootstrapRequest::Enter { .. } => {
                match join_info(&request, &self.plan.agreement, wire.stream(), &peer) {
                    Ok(info) => {
                        let asker = self.add_candidate(wire, peer, info.addresses.first().cloned());
                        return self.events.send(AdmissionEvent::JoinAsked { asker, info });
                    }
                    Err(refusal) => BootstrapAnswer::Refused(refusal),
                }
            }
            BootstrapRequest::Status { question } => {
                let asker = self.add_candidate(wire, peer, None);
                return self.events.send(AdmissionEvent::StatusAsked { asker, question });
            }
            BootstrapRequest::Hello { session, node, listen, .. } if session == self.session => {
                match read_listen(&listen, wire.stream()) {
                    Some(address) => {
                        let asker = self.add_candidate(wire, peer, Some(address.clone()));
                        let node = NodeId(node);
                        return self.events.send(AdmissionEvent::LinkAsked { asker, node, address });
                    }
                    None => BootstrapAnswer::Refused(Refusal::Unusable),
                }
            }
            BootstrapRequest::Join(_) => match self.stage {
                AdmissionStage::Running => BootstrapAnswer::Refused(Refusal::Complete),
                AdmissionStage::Early(reason) => BootstrapAnswer::Later { reason: reason.into() },
            },
            BootstrapRequest::Hello { .. }
            | BootstrapRequest::Link { .. }
            | BootstrapRequest::Pair { .. }
            | BootstrapRequest::Reopen { .. }
            | BootstrapRequest::Serve { .. } => BootstrapAnswer::Refused(Refusal::OtherSession),
        };
        match &answer {
            // A process that starts asks at first whether it is one of the first members.
            BootstrapAnswer::Refused(Refusal::Complete) => {}
            BootstrapAnswer::Refused(refusal) => self.refusals.note(&peer, &refusal.at_refusing()),
            answer => crate::log::debug!(peer, ?answer, "a process is to ask again"),
        }
        // A process that has closed its connection needs no answer.
        let _ = wire.write_frame(&answer, Instant::now());
    }

    /// Completes a link that the polling thread has agreed to.
    fn take_link(&mut self, number: u64, node: NodeId) {
        let candidate = self.candidates.remove(&number);
        let linked = candidate.and_then(|Candidate { mut wire, address, .. }| {
            wire.write_frame(&BootstrapAnswer::Accepted, Instant::now() + self.plan.handshake_timeout)
                .ok()?;
            Some((address?, wire.into_stream().ok()?))
        });
        self.events.send(match linked {
            Some((address, stream)) => AdmissionEvent::Peer { node, address, stream },
            None => AdmissionEvent::LinkFailed { node },
        });
    }

    /// Returns whether there is no capacity for a request now. A link that must wait is tried again, with the
    /// leader's patience.
    fn is_full(&self, request: &BootstrapRequest) -> bool {
        let asking =
            self.candidates.values().filter(|candidate| candidate.state == CandidateState::Asking).count();
        let asks = matches!(
            request,
            BootstrapRequest::Enter { .. } | BootstrapRequest::Status { .. } | BootstrapRequest::Hello { .. }
        );
        asks && asking >= ASKERS_MAX || self.events.is_full()
    }

    /// Adds a candidate that waits for the polling thread's answer.
    fn add_candidate(&mut self, wire: FramedSocket<S>, peer: String, address: Option<Address>) -> Asker {
        let number = self.candidates_ever;
        self.candidates_ever += 1;
        let until = Instant::now() + ANSWER_TIMEOUT;
        self.candidates
            .insert(number, Candidate { wire, peer, address, state: CandidateState::Asking, until });
        Asker { number, orders: self.orders.clone(), answered: false }
    }

    /// Sends the polling thread's answer.
    fn answer(&mut self, number: u64, mut answer: BootstrapAnswer) {
        let node = match &mut answer {
            BootstrapAnswer::Admit(admittance) => {
                admittance.session = self.session;
                Some(NodeId(admittance.node))
            }
            _ => None,
        };
        let Some(mut candidate) = self.candidates.remove(&number) else {
            // It was lost, or was asked to try again.
            node.into_iter().for_each(|node| self.events.send(AdmissionEvent::Gone { node }));
            return;
        };
        let written = candidate.wire.write_frame(&answer, Instant::now() + self.plan.handshake_timeout);
        let Some(node) = node else { return };
        if written.is_err() {
            return self.events.send(AdmissionEvent::Gone { node });
        }
        (candidate.state, candidate.until) = (CandidateState::Linking(node), Instant::now() + LONG);
        self.candidates.insert(number, candidate);
    }

    /// Handles reports, ends of connections, and timeouts.
    fn poll_candidates(&mut self) {
        let now = Instant::now();
        for (number, mut candidate) in std::mem::take(&mut self.candidates) {
            match (candidate.wire.poll_frame::<LinkReport>(), candidate.state) {
                (Ok(None), _) if now < candidate.until => {
                    self.candidates.insert(number, candidate);
                }
                (Ok(None), CandidateState::Asking) => {
                    let reason = "the member is busy".into();
                    let _ = candidate.wire.write_frame(&BootstrapAnswer::Wait { reason }, now);
                }
                (Ok(Some(LinkReport::Connected)), CandidateState::Linking(node)) => {
                    self.on_connected(candidate, node)
                }
                (_, CandidateState::Linking(node)) => {
                    crate::log::info!(peer = candidate.peer, %node, "an admitted process was lost before it was connected");
                    self.events.send(AdmissionEvent::Gone { node });
                }
                // A candidate sends nothing more after its request, so it was lost.
                (_, CandidateState::Asking) => {}
            }
        }
    }

    /// The report has no answer: what follows on this connection is the link's.
    fn on_connected(&mut self, candidate: Candidate<S>, node: NodeId) {
        match (candidate.wire.into_stream(), candidate.address) {
            (Ok(stream), Some(address)) => {
                self.events.send(AdmissionEvent::Peer { node, address, stream });
                self.events.send(AdmissionEvent::Connected { node });
            }
            _ => self.events.send(AdmissionEvent::Gone { node }),
        }
    }
}

/// A wait that only an event ends.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
