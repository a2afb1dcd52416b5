//! The connections of a process that meets the other first members: incoming claims and links, outgoing
//! calls, and the messages over the connections that stay open. The assembling core
//! (`squall_protocols::assembly`) decides what to answer and which process to call.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::admission::STATUS_BYTES_MAX;
use super::caller::{CallOrder, CallThread, Caller};
use super::calls::nonsense;
use super::error::system;
use super::handshake_queue::{HandshakeQueue, ProvedVisitor};
use super::link::LinkSocket;
use super::message::{BootstrapAnswer, BootstrapRequest, ClaimFrame, CoordinatorNotice, LinkReport, Refusal};
use super::request::{can_use, notice_from, read_address, read_claim};
use super::secret::random_bytes;
use super::wire::{FramedSocket, FramingError};
use super::{
    Address, BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, CallError, MEMBER_CALLERS,
};

/// The place where a process meets the others.
///
/// **Contract.** Visitors have numbers in ascending order. At most one call is in progress; after a
/// successful call the caller uses [`MeetingPoint::keep`] or [`MeetingPoint::discard`]. Only
/// [`MeetingPoint::poll`] waits, except that sending a roster to a process that reads slowly may take
/// `handshake_timeout`.
#[derive(Debug)]
pub struct MeetingPoint<'p, S: LinkSocket> {
    handshake_timeout: Duration,
    queue: HandshakeQueue<'p, S>,
    connected: BTreeMap<u64, ConnectedVisitor<S>>,
    /// The number of visitors so far.
    visitors: u64,
    /// Processes to which a notice could not be sent.
    unheard: Vec<u64>,
    coordinator: Option<FramedSocket<S>>,
    /// Links that this process has opened.
    links: BTreeMap<NodeId, FramedSocket<S>>,
    calls: CallThread<S>,
    /// The destination of the last call, until its outcome has arrived.
    calling: Option<(Address, CallTarget)>,
    /// The connection of the last call, if that was successful.
    called: Option<(CallTarget, FramedSocket<S>)>,
}

/// A process that has called this one.
#[derive(Debug)]
struct ConnectedVisitor<S> {
    wire: FramedSocket<S>,
    peer: String,
    is_link: bool,
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug)]
enum CallTarget {
    Contact,
    Link(NodeId),
}

/// An event at a meeting point.
#[derive(Debug)]
pub enum MeetingEvent {
    /// A process that has proved the secret wants to be one of the first members. It waits for
    /// [`MeetingPoint::answer`].
    Claimed {
        /// Its number.
        visitor: u64,
        /// Its claim.
        claim: ClaimFrame,
    },
    /// A process wants to link with this one. It waits for [`MeetingPoint::take_link`] or
    /// [`MeetingPoint::answer`].
    LinkAsked {
        /// Its number.
        visitor: u64,
        /// The session that it names.
        session: u64,
        /// The rank that it claims.
        node: NodeId,
    },
    /// A process asks a question. It waits for [`MeetingPoint::answer_question`].
    Asked {
        /// Its number.
        visitor: u64,
        /// The question, in a form that its sender and this process's code share.
        question: Vec<u8>,
    },
    /// A process that was accepted reports that its links are established.
    Reported {
        /// Its number.
        visitor: u64,
        /// The session that it names.
        session: u64,
    },
    /// A process that was accepted was lost, or has sent something invalid.
    Lost {
        /// Its number.
        visitor: u64,
        /// A description of the process.
        peer: String,
    },
    /// The coordinator has sent a notice.
    Noticed(CoordinatorNotice),
    /// The coordinator has sent something that cannot be parsed or used.
    Nonsense(&'static str),
    /// The connection with the coordinator has ended.
    CoordinatorLost,
    /// A contact has answered the claim. A final refusal is reported as `Failed`.
    Answered(ClaimAnswer),
    /// The requested link is established.
    Linked,
    /// A call has failed.
    Failed(CallError),
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The process is accepted; the connection remains open for [`CoordinatorNotice`]s.
    Accepted,
    /// That contact coordinates.
    Redirect(Address),
    /// Ask again; the reason is for people.
    Later(String),
    /// The process cannot be a member, or not with this configuration.
    Refused(Refusal),
    /// The group is already running.
    Running,
}

/// The connection that becomes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSource {
    /// The connection of a visitor.
    Visitor(u64),
    /// The connection that [`MeetingPoint::link`] has opened.
    Called,
    /// The connection with the coordinator.
    Coordinator,
}

impl<S: LinkSocket> MeetingPoint<'_, S> {
    /// Runs `run` with the connections of a process that is reached at `listener`. Connections that remain at
    /// the end are closed.
    ///
    /// # Errors
    /// Returns an error if the plan is not valid, or the system has no more descriptors or threads.
    pub fn with<T>(
        plan: &BootstrapPlan,
        listener: &BootstrapListener<S>,
        run: impl FnOnce(&mut MeetingPoint<'_, S>) -> T,
    ) -> Result<T, BootstrapError> {
        plan.check(S::takes, listener.address())?;
        let proof = plan.proof();
        let mut point = MeetingPoint {
            handshake_timeout: plan.handshake_timeout,
            queue: HandshakeQueue::new(plan, listener, &proof, MEMBER_CALLERS),
            connected: BTreeMap::new(),
            visitors: 0,
            unheard: Vec::new(),
            coordinator: None,
            links: BTreeMap::new(),
            calls: CallThread::begin(plan)?,
            calling: None,
            called: None,
        };
        Ok(run(&mut point))
    }

    /// Returns a random number that no other process has. Not fuzzed: any bytes are a number.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        u64::from_le_bytes(random_bytes())
    }

    /// Waits for events until `until` at the latest. Connections that are rejected here are reported to
    /// `on_progress`.
    ///
    /// # Errors
    /// Returns an error if the system has no more descriptors.
    pub fn poll(
        &mut self,
        until: Instant,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Result<Vec<MeetingEvent>, BootstrapError> {
        let until = if self.unheard.is_empty() { until } else { Instant::now() };
        let followers = self
            .connected
            .values()
            .filter(|connected| !connected.is_link)
            .map(|connected| connected.wire.as_fd());
        let coordinator = self.coordinator.iter().map(AsFd::as_fd);
        let watched: Vec<_> = followers.chain(coordinator).chain([self.calls.bell()]).collect();
        let visitors = self.queue.poll(&watched, until, on_progress)?;
        // The loss of a member must be known before another one reports, and links must be known before the
        // notice that ends their session: so no connection is missing that is to become a link.
        let mut events: Vec<MeetingEvent> = self.poll_call().into_iter().collect();
        self.poll_visitors(&mut events);
        events.extend(visitors.into_iter().filter_map(|visitor| self.receive(visitor, on_progress)));
        events.extend(self.poll_coordinator());
        Ok(events)
    }

    fn poll_call(&mut self) -> Option<MeetingEvent> {
        let outcome = self.calls.poll()?;
        let (address, target) = self.calling.take()?;
        Some(
            match outcome.and_then(|(wire, answer)| Ok((wire, read_answer::<S>(&address, target, answer)?))) {
                Ok((wire, event)) => {
                    self.called = Some((target, wire));
                    event
                }
                Err(error) => MeetingEvent::Failed(error),
            },
        )
    }

    fn poll_visitors(&mut self, events: &mut Vec<MeetingEvent>) {
        let mut lost = std::mem::take(&mut self.unheard);
        let mut reports = Vec::new();
        for (visitor, connected) in self.connected.iter_mut().filter(|(_, connected)| !connected.is_link) {
            match connected.wire.poll_frame() {
                Ok(None) => {}
                Ok(Some(LinkReport::Linked { session })) => {
                    reports.push(MeetingEvent::Reported { visitor: *visitor, session });
                }
                Ok(Some(LinkReport::Connected)) | Err(_) => lost.push(*visitor),
            }
        }
        for visitor in lost {
            if let Some(ConnectedVisitor { peer, .. }) = self.connected.remove(&visitor) {
                events.push(MeetingEvent::Lost { visitor, peer });
            }
        }
        events.append(&mut reports);
    }

    fn receive(
        &mut self,
        visitor: ProvedVisitor<S>,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Option<MeetingEvent> {
        let number = self.visitors;
        let event = match &visitor.request {
            BootstrapRequest::Join(claim) => match read_claim(claim.clone(), visitor.wire.stream()) {
                Some(claim) => MeetingEvent::Claimed { visitor: number, claim },
                None => {
                    visitor.reject(Refusal::Unusable, on_progress);
                    return None;
                }
            },
            BootstrapRequest::Link { session, node, .. } => {
                MeetingEvent::LinkAsked { visitor: number, session: *session, node: NodeId(*node) }
            }
            BootstrapRequest::Status { question } => {
                let question = question.clone();
                MeetingEvent::Asked { visitor: number, question }
            }
            BootstrapRequest::Enter { .. }
            | BootstrapRequest::Hello { .. }
            | BootstrapRequest::Pair { .. }
            | BootstrapRequest::Reopen { .. }
            | BootstrapRequest::Serve { .. } => {
                visitor.reject(Refusal::Assembling, on_progress);
                return None;
            }
        };
        self.visitors += 1;
        let is_link = matches!(event, MeetingEvent::LinkAsked { .. });
        let ProvedVisitor { wire, peer, .. } = visitor;
        self.connected.insert(number, ConnectedVisitor { wire, peer, is_link });
        Some(event)
    }

    /// Reads one notice at a time, since the bytes after the last one belong to the members.
    fn poll_coordinator(&mut self) -> Option<MeetingEvent> {
        let coordinator = self.coordinator.as_mut()?;
        match coordinator.poll_frame() {
            Ok(None) => None,
            Ok(Some(notice)) if can_use::<S>(&notice) => {
                Some(MeetingEvent::Noticed(notice_from(notice, coordinator.stream())))
            }
            Ok(Some(_)) => Some(MeetingEvent::Nonsense("an address that cannot be used")),
            Err(FramingError::Malformed(what)) => Some(MeetingEvent::Nonsense(what)),
            Err(_) => {
                self.coordinator = None;
                Some(MeetingEvent::CoordinatorLost)
            }
        }
    }

    /// Sends a claim to a contact, which may take `patience` to prove the secret.
    pub fn ask(&mut self, contact: &Address, claim: ClaimFrame, patience: Duration, until: Instant) {
        self.call(contact, CallTarget::Contact, BootstrapRequest::Join(claim), patience, until);
    }

    /// Asks a member for a link with this process, which has rank `own` in the session.
    pub fn link(&mut self, session: u64, own: NodeId, node: NodeId, address: &Address, until: Instant) {
        let patience = until.saturating_duration_since(Instant::now());
        self.call(address, CallTarget::Link(node), BootstrapRequest::link(session, own), patience, until);
    }

    fn call(
        &mut self,
        address: &Address,
        target: CallTarget,
        request: BootstrapRequest,
        patience: Duration,
        until: Instant,
    ) {
        self.calling = Some((address.clone(), target));
        self.calls.begin_call(CallOrder { address: address.clone(), request, patience, until });
    }

    /// Keeps the connection of the last call: with the coordinator, or with the member to link with.
    pub fn keep(&mut self) {
        match self.called.take() {
            Some((CallTarget::Contact, wire)) => self.coordinator = Some(wire),
            Some((CallTarget::Link(node), wire)) => {
                self.links.insert(node, wire);
            }
            None => {}
        }
    }

    /// Closes the connection of the last call.
    pub fn discard(&mut self) {
        self.called = None;
    }

    /// Answers a claim, or refuses a link; closes the connection unless the answer is
    /// [`ClaimAnswer::Accepted`].
    pub fn answer(
        &mut self,
        visitor: u64,
        answer: ClaimAnswer,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) {
        let Some(mut connected) = self.connected.remove(&visitor) else { return };
        let stays = answer == ClaimAnswer::Accepted;
        let answer = match answer {
            ClaimAnswer::Accepted => BootstrapAnswer::Accepted,
            ClaimAnswer::Redirect(contact) => BootstrapAnswer::Redirect { leader: contact.to_string() },
            ClaimAnswer::Later(reason) => BootstrapAnswer::Later { reason },
            ClaimAnswer::Running => BootstrapAnswer::Refused(Refusal::Complete),
            ClaimAnswer::Refused(refusal) => {
                on_progress(BootstrapProgress::Rejected {
                    peer: connected.peer.clone(),
                    cause: refusal.at_refusing(),
                });
                BootstrapAnswer::Refused(refusal)
            }
        };
        // If an accepted process was lost, `poll` detects it; any other needs no answer then.
        let _ = connected.wire.write_frame(&answer, Instant::now());
        if stays {
            self.connected.insert(visitor, connected);
        }
    }

    /// Answers a question, or refuses it if there is no answer; closes the connection.
    ///
    /// # Panics
    /// If the answer is longer than [`STATUS_BYTES_MAX`].
    pub fn answer_question(&mut self, visitor: u64, answer: Option<Vec<u8>>) {
        let Some(mut connected) = self.connected.remove(&visitor) else { return };
        let answer = match answer {
            Some(bytes) => {
                assert!(bytes.len() <= STATUS_BYTES_MAX, "an answer of {} bytes", bytes.len());
                BootstrapAnswer::Status { bytes }
            }
            None => BootstrapAnswer::Refused(Refusal::Assembling),
        };
        // A process that has closed its connection needs no answer.
        let _ = connected.wire.write_frame(&answer, Instant::now() + self.handshake_timeout);
    }

    /// Accepts a link.
    pub fn take_link(&mut self, visitor: u64) {
        if let Some(connected) = self.connected.get_mut(&visitor) {
            // If it was lost, the coordinator detects it.
            let _ = connected.wire.write_frame(&BootstrapAnswer::Accepted, Instant::now());
        }
    }

    /// Sends a notice to a process that was accepted.
    pub fn notify(&mut self, visitor: u64, notice: &CoordinatorNotice) {
        let Some(connected) = self.connected.get_mut(&visitor) else { return };
        // A short notice fits into the socket's buffer, if the process reads at all.
        let patience = match notice {
            CoordinatorNotice::Roster { .. } => self.handshake_timeout,
            CoordinatorNotice::Joined { .. } | CoordinatorNotice::Go | CoordinatorNotice::Released(_) => {
                Duration::ZERO
            }
        };
        if connected.wire.write_frame(notice, Instant::now() + patience).is_err() {
            self.unheard.push(visitor);
        }
    }

    /// Closes the connection with a process that was accepted.
    pub fn close(&mut self, visitor: u64) {
        self.connected.remove(&visitor);
    }

    /// Reports to the coordinator that all links of a session are established.
    pub fn report(&mut self, session: u64) {
        if let Some(coordinator) = &mut self.coordinator {
            // If it was lost, `poll` detects it.
            let _ = coordinator.write_frame(&LinkReport::Linked { session }, Instant::now());
        }
    }

    /// Closes all links, including those that were only requested.
    pub fn close_links(&mut self) {
        self.links.clear();
        self.connected.retain(|_, connected| !connected.is_link);
    }

    /// Closes the connection with the coordinator, and all links, which belong to its session.
    pub fn leave(&mut self) {
        self.coordinator = None;
        self.close_links();
    }

    /// Returns connections as blocking streams, in the same order. TCP streams have `TCP_NODELAY` set.
    ///
    /// # Errors
    /// Returns an error if the system cannot set a socket blocking, or the last notice could not be sent.
    ///
    /// # Panics
    /// Panics if there is no such connection.
    pub fn finish(
        &mut self,
        links: impl IntoIterator<Item = (NodeId, LinkSource)>,
    ) -> Result<Vec<(NodeId, S::Secured)>, BootstrapError> {
        let stream = |(node, source)| {
            let wire = match source {
                LinkSource::Visitor(visitor) => {
                    self.connected.remove(&visitor).map(|connected| connected.wire)
                }
                LinkSource::Called => self.links.remove(&node),
                LinkSource::Coordinator => self.coordinator.take(),
            };
            let stream = wire.expect("an established link has a connection").into_stream();
            Ok((node, stream.map_err(system("to set a socket blocking"))?))
        };
        links.into_iter().map(stream).collect()
    }
}

/// Interprets the answer to a call; returns an error if the connection is of no use.
fn read_answer<S: LinkSocket>(
    address: &Address,
    target: CallTarget,
    answer: BootstrapAnswer,
) -> Result<MeetingEvent, CallError> {
    if let CallTarget::Link(_) = target {
        return Caller::accepted(address, answer).map(|()| MeetingEvent::Linked);
    }
    Ok(MeetingEvent::Answered(match answer {
        BootstrapAnswer::Accepted => ClaimAnswer::Accepted,
        BootstrapAnswer::Redirect { leader } => match read_address(&leader).filter(S::takes) {
            Some(contact) => ClaimAnswer::Redirect(contact.as_reached_by(address)),
            None => ClaimAnswer::Later("it sent an unusable address".into()),
        },
        BootstrapAnswer::Later { reason } => ClaimAnswer::Later(reason),
        // Only the admission listener of a running group gives these answers.
        BootstrapAnswer::Refused(Refusal::Complete)
        | BootstrapAnswer::Wait { .. }
        | BootstrapAnswer::Denied { .. } => ClaimAnswer::Running,
        BootstrapAnswer::Refused(
            refusal @ (Refusal::MemberCount { .. }
            | Refusal::Agreement(_)
            | Refusal::Contacts
            | Refusal::RankTaken { .. }
            | Refusal::RankOutOfRange { .. }),
        ) => return Err(CallError::Never(BootstrapError::Refused { address: address.clone(), refusal })),
        BootstrapAnswer::Refused(refusal) => ClaimAnswer::Later(refusal.to_string()),
        BootstrapAnswer::Admit(_)
        | BootstrapAnswer::Status { .. }
        | BootstrapAnswer::AcceptedByRdma
        | BootstrapAnswer::Reopened { .. }
        | BootstrapAnswer::BallotTooLow { .. }
        | BootstrapAnswer::Gone => {
            return Err(CallError::Never(nonsense(address, "an answer to a different request")));
        }
    }))
}
