//! The connections of a process that meets the other first members: claims and links that come, calls that it makes, and what is
//! said over the connections that stay. What to answer, and whom to call, is not decided here, but by the core that assembles
//! (`squall_protocols::assembly`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::caller::{Call, CallThread, Caller};
use super::calls::nonsense;
use super::error::system;
use super::link::Link;
use super::message::{Answer, Claim, Notice, Refusal, Report, Request};
use super::reception::{Reception, Visitor};
use super::request::{can_use, read_address, read_claim};
use super::secret::random_bytes;
use super::wire::{Wire, WireError};
use super::{Address, BootstrapError, CallError, Listener, Plan, Progress};

/// Where a process meets the others.
///
/// **Law.** Visitors have numbers in ascending order. One call is under way at a time; a call that has succeeded is followed by
/// [`MeetingPoint::keep`] or [`MeetingPoint::discard`]. Nothing here waits but [`MeetingPoint::poll`], except that a roster may
/// take `handshake_timeout` to be sent to a process that reads slowly.
#[derive(Debug)]
pub struct MeetingPoint<'p, S: Link> {
    handshake_timeout: Duration,
    reception: Reception<'p, S>,
    guests: BTreeMap<u64, Guest<S>>,
    /// How many there have been.
    visitors: u64,
    /// Processes to which a notice could not be sent.
    unheard: Vec<u64>,
    coordinator: Option<Wire<S>>,
    /// Links that this process has made.
    links: BTreeMap<NodeId, Wire<S>>,
    calls: CallThread<S>,
    /// Whom the last call was for, until its outcome is there.
    calling: Option<(Address, Target)>,
    /// The connection of the last call, if it has succeeded.
    called: Option<(Target, Wire<S>)>,
}

/// A process that has called this one.
#[derive(Debug)]
struct Guest<S> {
    wire: Wire<S>,
    peer: String,
    is_link: bool,
}

/// What a call is for.
#[derive(Clone, Copy, Debug)]
enum Target {
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
        claim: Claim,
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
    Noticed(Notice),
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
    /// The process is gathered; the connection stays open, for [`Notice`]s.
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

impl<S: Link> MeetingPoint<'_, S> {
    /// Runs `run` with the connections of a process that is reached at `listener`. All connections that are left at the end are
    /// closed.
    ///
    /// # Errors
    /// If the plan cannot be followed, or the system has no more descriptors or threads.
    pub fn with<T>(
        plan: &Plan,
        listener: &Listener<S>,
        run: impl FnOnce(&mut MeetingPoint<'_, S>) -> T,
    ) -> Result<T, BootstrapError> {
        plan.check(S::takes, listener.address())?;
        let proof = plan.proof();
        let mut point = MeetingPoint {
            handshake_timeout: plan.handshake_timeout,
            reception: Reception::new(plan, listener, &proof),
            guests: BTreeMap::new(),
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
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<MeetingEvent>, BootstrapError> {
        let until = if self.unheard.is_empty() { until } else { Instant::now() };
        let followers = self.guests.values().filter(|guest| !guest.is_link).map(|guest| guest.wire.as_fd());
        let coordinator = self.coordinator.iter().map(AsFd::as_fd);
        let watched: Vec<_> = followers.chain(coordinator).chain([self.calls.bell()]).collect();
        let visitors = self.reception.poll(&watched, until, on_progress)?;
        // A member that is lost is known before another one reports, and links that have come before the notice that ends
        // their session: so no connection is missing that is to become a link.
        let mut events: Vec<MeetingEvent> = self.poll_call().into_iter().collect();
        self.poll_guests(&mut events);
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

    fn poll_guests(&mut self, events: &mut Vec<MeetingEvent>) {
        let mut lost = std::mem::take(&mut self.unheard);
        let mut reports = Vec::new();
        for (visitor, guest) in self.guests.iter_mut().filter(|(_, guest)| !guest.is_link) {
            match guest.wire.poll_frame() {
                Ok(None) => {}
                Ok(Some(Report::Linked { session })) => {
                    reports.push(MeetingEvent::Reported { visitor: *visitor, session });
                }
                Ok(Some(Report::Connected)) | Err(_) => lost.push(*visitor),
            }
        }
        for visitor in lost {
            if let Some(Guest { peer, .. }) = self.guests.remove(&visitor) {
                events.push(MeetingEvent::Lost { visitor, peer });
            }
        }
        events.append(&mut reports);
    }

    fn receive(
        &mut self,
        visitor: Visitor<S>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Option<MeetingEvent> {
        let number = self.visitors;
        let event = match &visitor.request {
            Request::Join(claim) => match read_claim(claim.clone(), visitor.wire.stream()) {
                Some(claim) => MeetingEvent::Claimed { visitor: number, claim },
                None => {
                    visitor.turn_away(Refusal::Unusable, on_progress);
                    return None;
                }
            },
            Request::Link { session, node } => {
                MeetingEvent::LinkAsked { visitor: number, session: *session, node: NodeId(*node) }
            }
            Request::Enter { .. } | Request::Hello { .. } | Request::Status { .. } | Request::Pair { .. } => {
                visitor.turn_away(Refusal::Assembling, on_progress);
                return None;
            }
        };
        self.visitors += 1;
        let is_link = matches!(event, MeetingEvent::LinkAsked { .. });
        let Visitor { wire, peer, .. } = visitor;
        self.guests.insert(number, Guest { wire, peer, is_link });
        Some(event)
    }

    /// One notice at a time: what follows the last one belongs to the members.
    fn poll_coordinator(&mut self) -> Option<MeetingEvent> {
        match self.coordinator.as_mut()?.poll_frame() {
            Ok(None) => None,
            Ok(Some(notice)) if can_use::<S>(&notice) => Some(MeetingEvent::Noticed(notice)),
            Ok(Some(_)) => Some(MeetingEvent::Nonsense("an address that cannot be used")),
            Err(WireError::Malformed(what)) => Some(MeetingEvent::Nonsense(what)),
            Err(_) => {
                self.coordinator = None;
                Some(MeetingEvent::CoordinatorLost)
            }
        }
    }

    /// Sends a claim to a contact, which may take `patience` to prove the secret.
    pub fn ask(&mut self, contact: &Address, claim: Claim, patience: Duration, until: Instant) {
        self.call(contact, Target::Contact, Request::Join(claim), patience, until);
    }

    /// Asks a member for a link with this one, which has the rank `own` in the session.
    pub fn link(&mut self, session: u64, own: NodeId, node: NodeId, address: &Address, until: Instant) {
        let patience = until.saturating_duration_since(Instant::now());
        self.call(address, Target::Link(node), Request::Link { session, node: own.0 }, patience, until);
    }

    fn call(
        &mut self,
        address: &Address,
        target: Target,
        request: Request,
        patience: Duration,
        until: Instant,
    ) {
        self.calling = Some((address.clone(), target));
        self.calls.begin_call(Call { address: address.clone(), request, patience, until });
    }

    /// Keeps the connection of the last call: with the coordinator, or with the member that it was to link with.
    pub fn keep(&mut self) {
        match self.called.take() {
            Some((Target::Contact, wire)) => self.coordinator = Some(wire),
            Some((Target::Link(node), wire)) => {
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
    pub fn answer(&mut self, visitor: u64, answer: ClaimAnswer, on_progress: &mut dyn FnMut(Progress)) {
        let Some(mut guest) = self.guests.remove(&visitor) else { return };
        let stays = answer == ClaimAnswer::Accepted;
        let answer = match answer {
            ClaimAnswer::Accepted => Answer::Accepted,
            ClaimAnswer::Redirect(contact) => Answer::Redirect { leader: contact.to_string() },
            ClaimAnswer::Later(reason) => Answer::Later { reason },
            ClaimAnswer::Running => Answer::Refused(Refusal::Complete),
            ClaimAnswer::Refused(refusal) => {
                on_progress(Progress::Rejected { peer: guest.peer.clone(), cause: refusal.to_string() });
                Answer::Refused(refusal)
            }
        };
        // `poll` finds out whether a process has gone that was accepted; another one needs no answer then.
        let _ = guest.wire.write_frame(&answer, Instant::now());
        if stays {
            self.guests.insert(visitor, guest);
        }
    }

    /// Accepts a link.
    pub fn take_link(&mut self, visitor: u64) {
        if let Some(guest) = self.guests.get_mut(&visitor) {
            // If it has gone, the coordinator notices.
            let _ = guest.wire.write_frame(&Answer::Accepted, Instant::now());
        }
    }

    /// Sends a notice to a process that was accepted.
    pub fn notify(&mut self, visitor: u64, notice: &Notice) {
        let Some(guest) = self.guests.get_mut(&visitor) else { return };
        // A short notice fits into the socket's buffer, if the process reads at all.
        let patience = match notice {
            Notice::Roster { .. } => self.handshake_timeout,
            Notice::Joined { .. } | Notice::Go | Notice::Released(_) => Duration::ZERO,
        };
        if guest.wire.write_frame(notice, Instant::now() + patience).is_err() {
            self.unheard.push(visitor);
        }
    }

    /// Closes the connection with a process that was accepted.
    pub fn close(&mut self, visitor: u64) {
        self.guests.remove(&visitor);
    }

    /// Reports to the coordinator that all links of a session stand.
    pub fn report(&mut self, session: u64) {
        if let Some(coordinator) = &mut self.coordinator {
            // If it has gone, `poll` finds out.
            let _ = coordinator.write_frame(&Report::Linked { session }, Instant::now());
        }
    }

    /// Closes all links, also those that were only asked for.
    pub fn close_links(&mut self) {
        self.links.clear();
        self.guests.retain(|_, guest| !guest.is_link);
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
                LinkSource::Visitor(visitor) => self.guests.remove(&visitor).map(|guest| guest.wire),
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
fn read_answer<S: Link>(
    address: &Address,
    target: Target,
    answer: Answer,
) -> Result<MeetingEvent, CallError> {
    if let Target::Link(_) = target {
        return Caller::accepted(address, answer).map(|()| MeetingEvent::Linked);
    }
    Ok(MeetingEvent::Answered(match answer {
        Answer::Accepted => ClaimAnswer::Accepted,
        Answer::Redirect { leader } => match read_address(&leader).filter(S::takes) {
            Some(contact) => ClaimAnswer::Redirect(contact),
            None => ClaimAnswer::Later("it names an address that cannot be used".into()),
        },
        Answer::Later { reason } => ClaimAnswer::Later(reason),
        // Only the desk of a group that runs gives these.
        Answer::Refused(Refusal::Complete) | Answer::Wait { .. } | Answer::Denied { .. } => {
            ClaimAnswer::Running
        }
        Answer::Refused(
            refusal @ (Refusal::MemberCount { .. }
            | Refusal::Agreement
            | Refusal::Contacts
            | Refusal::RankTaken { .. }
            | Refusal::RankOutOfRange { .. }),
        ) => return Err(CallError::Never(BootstrapError::Refused { address: address.clone(), refusal })),
        Answer::Refused(refusal) => ClaimAnswer::Later(refusal.to_string()),
        Answer::Admit(_) | Answer::Status { .. } | Answer::AcceptedByRdma => {
            return Err(CallError::Never(nonsense(address, "an answer to something else")));
        }
    }))
}
