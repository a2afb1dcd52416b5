//! The connections of a process that meets the other first members: claims and links that come, calls that it makes, and what is
//! said over the connections that stay. What to answer, and whom to call, is not decided here, but by the core that assembles
//! (`squall_protocols::assembly`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::caller::{CallOrder, CallThread, Caller};
use super::calls::nonsense;
use super::error::system;
use super::handshake_queue::{HandshakeQueue, ProvedVisitor};
use super::link::LinkSocket;
use super::message::{BootstrapAnswer, BootstrapRequest, ClaimFrame, CoordinatorNotice, LinkReport, Refusal};
use super::request::{can_use, read_address, read_claim};
use super::secret::random_bytes;
use super::wire::{FramedSocket, FramingError};
use super::{Address, BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, CallError};

/// Where a process meets the others.
///
/// **Law.** Visitors have numbers in ascending order. One call is under way at a time; a call that has succeeded is followed by
/// [`MeetingPoint::keep`] or [`MeetingPoint::discard`]. Nothing here waits but [`MeetingPoint::poll`], except that a roster may
/// take `handshake_timeout` to be sent to a process that reads slowly.
#[derive(Debug)]
pub struct MeetingPoint<'p, S: LinkSocket> {
    handshake_timeout: Duration,
    queue: HandshakeQueue<'p, S>,
    connected: BTreeMap<u64, ConnectedVisitor<S>>,
    /// How many there have been.
    visitors: u64,
    /// Processes to which a notice could not be sent.
    unheard: Vec<u64>,
    coordinator: Option<FramedSocket<S>>,
    /// Links that this process has made.
    links: BTreeMap<NodeId, FramedSocket<S>>,
    calls: CallThread<S>,
    /// Whom the last call was for, until its outcome is there.
    calling: Option<(Address, CallTarget)>,
    /// The connection of the last call, if it has succeeded.
    called: Option<(CallTarget, FramedSocket<S>)>,
}

/// A process that has called this one.
#[derive(Debug)]
struct ConnectedVisitor<S> {
    wire: FramedSocket<S>,
    peer: String,
    is_link: bool,
}

/// What a call is for.
#[derive(Clone, Copy, Debug)]
enum CallTarget {
    Contact,
    Link(NodeId),
}

/// What has happened.
#[derive(Debug)]
pub enum MeetingEvent {
    /// A process that has proved the secret wants to be among the first members. It waits for [`MeetingPoint::answer`].
    Claimed {
        /// Its number.
        visitor: u64,
        /// What it says.
        claim: ClaimFrame,
    },
    /// A process wants to link with this one. It waits for [`MeetingPoint::take_link`] or [`MeetingPoint::answer`].
    LinkAsked {
        /// Its number.
        visitor: u64,
        /// The session that it names.
        session: u64,
        /// The rank that it says it has.
        node: NodeId,
    },
    /// A process that was accepted reports that its links stand.
    Reported {
        /// Its number.
        visitor: u64,
        /// The session that it names.
        session: u64,
    },
    /// A process that was accepted has gone, or has sent something that it must not.
    Lost {
        /// Its number.
        visitor: u64,
        /// Who it is, in words.
        peer: String,
    },
    /// The coordinator has sent a notice.
    Noticed(CoordinatorNotice),
    /// The coordinator has sent something that cannot be read, or not used.
    Nonsense(&'static str),
    /// The connection with the coordinator has ended.
    CoordinatorLost,
    /// A contact has answered the claim. A refusal for good is a failure.
    Answered(ClaimAnswer),
    /// The link that was asked for stands.
    Linked,
    /// A call has failed.
    Failed(CallError),
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The process is gathered; the connection stays open, for [`CoordinatorNotice`]s.
    Accepted,
    /// That contact gathers.
    Redirect(Address),
    /// Ask again; the reason is for people.
    Later(String),
    /// The process cannot be a member, or not with this configuration.
    Refused(Refusal),
    /// The group runs.
    Running,
}

/// Which connection becomes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSource {
    /// That of a visitor.
    Visitor(u64),
    /// The one that [`MeetingPoint::link`] has made.
    Called,
    /// That with the coordinator.
    Coordinator,
}

impl<S: LinkSocket> MeetingPoint<'_, S> {
    /// Runs `run` with the connections of a process that is reached at `listener`. All connections that are left at the end are
    /// closed.
    ///
    /// # Errors
    /// If the plan cannot be followed, or the system has no more descriptors or threads.
    pub fn with<T>(
        plan: &BootstrapPlan,
        listener: &BootstrapListener<S>,
        run: impl FnOnce(&mut MeetingPoint<'_, S>) -> T,
    ) -> Result<T, BootstrapError> {
        plan.check(S::takes, listener.address())?;
        let proof = plan.proof();
        let mut point = MeetingPoint {
            handshake_timeout: plan.handshake_timeout,
            queue: HandshakeQueue::new(plan, listener, &proof),
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

    /// Returns a number that no other process has. Not fuzzed: all bytes are a number.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        u64::from_le_bytes(random_bytes())
    }

    /// Waits for something to happen, until `until` at the latest. Connections that are turned away here are reported to
    /// `on_progress`.
    ///
    /// # Errors
    /// If the system has no more descriptors.
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
        // A member that is lost is known before another one reports, and links that have come before the notice that ends
        // their session: so no connection is missing that is to become a link.
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
            BootstrapRequest::Link { session, node } => {
                MeetingEvent::LinkAsked { visitor: number, session: *session, node: NodeId(*node) }
            }
            BootstrapRequest::Enter { .. }
            | BootstrapRequest::Hello { .. }
            | BootstrapRequest::Status { .. }
            | BootstrapRequest::Pair { .. } => {
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

    /// One notice at a time: what follows the last one belongs to the members.
    fn poll_coordinator(&mut self) -> Option<MeetingEvent> {
        match self.coordinator.as_mut()?.poll_frame() {
            Ok(None) => None,
            Ok(Some(notice)) if can_use::<S>(&notice) => Some(MeetingEvent::Noticed(notice)),
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

    /// Asks a member for a link with this one, which has the rank `own` in the session.
    pub fn link(&mut self, session: u64, own: NodeId, node: NodeId, address: &Address, until: Instant) {
        let patience = until.saturating_duration_since(Instant::now());
        self.call(
            address,
            CallTarget::Link(node),
            BootstrapRequest::Link { session, node: own.0 },
            patience,
            until,
        );
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

    /// Keeps the connection of the last call: with the coordinator, or with the member that it was to link with.
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

    /// Answers a claim, or refuses a link; closes the connection unless the answer is [`ClaimAnswer::Accepted`].
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
                    cause: refusal.to_string(),
                });
                BootstrapAnswer::Refused(refusal)
            }
        };
        // `poll` finds out whether a process has gone that was accepted; another one needs no answer then.
        let _ = connected.wire.write_frame(&answer, Instant::now());
        if stays {
            self.connected.insert(visitor, connected);
        }
    }

    /// Accepts a link.
    pub fn take_link(&mut self, visitor: u64) {
        if let Some(connected) = self.connected.get_mut(&visitor) {
            // If it has gone, the coordinator notices.
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

    /// Reports to the coordinator that all links of a session stand.
    pub fn report(&mut self, session: u64) {
        if let Some(coordinator) = &mut self.coordinator {
            // If it has gone, `poll` finds out.
            let _ = coordinator.write_frame(&LinkReport::Linked { session }, Instant::now());
        }
    }

    /// Closes all links, also those that were only asked for.
    pub fn close_links(&mut self) {
        self.links.clear();
        self.connected.retain(|_, connected| !connected.is_link);
    }

    /// Closes the connection with the coordinator, and all links: they are of its session.
    pub fn leave(&mut self) {
        self.coordinator = None;
        self.close_links();
    }

    /// Gives out connections as blocking streams, in the same order. TCP streams have no delay set.
    ///
    /// # Errors
    /// If the system does not let a socket block, or the last notice could not be sent.
    ///
    /// # Panics
    /// If there is no such connection.
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
            let stream = wire.expect("a link that stands has a connection").into_stream();
            Ok((node, stream.map_err(system("to make a socket blocking"))?))
        };
        links.into_iter().map(stream).collect()
    }
}

/// What an answer means to a process that has called; an error if the connection is of no use.
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
            Some(contact) => ClaimAnswer::Redirect(contact),
            None => ClaimAnswer::Later("it names an address that cannot be used".into()),
        },
        BootstrapAnswer::Later { reason } => ClaimAnswer::Later(reason),
        // Only the admission listener of a group that runs gives these.
        BootstrapAnswer::Refused(Refusal::Complete)
        | BootstrapAnswer::Wait { .. }
        | BootstrapAnswer::Denied { .. } => ClaimAnswer::Running,
        BootstrapAnswer::Refused(
            refusal @ (Refusal::MemberCount { .. }
            | Refusal::Agreement
            | Refusal::Contacts
            | Refusal::RankTaken { .. }
            | Refusal::RankOutOfRange { .. }),
        ) => return Err(CallError::Never(BootstrapError::Refused { address: address.clone(), refusal })),
        BootstrapAnswer::Refused(refusal) => ClaimAnswer::Later(refusal.to_string()),
        BootstrapAnswer::Admit(_) | BootstrapAnswer::Status { .. } | BootstrapAnswer::AcceptedByRdma => {
            return Err(CallError::Never(nonsense(address, "an answer to something else")));
        }
    }))
}
