//! The calls of a process that joins a running group: ask, link with a member, report. The joining core
//! (`squall_protocols::admission`) decides which call comes next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::admission::{ANSWER_TIMEOUT, QUESTION_BYTES_MAX};
use super::caller::Caller;
use super::error::system;
use super::link::LinkSocket;
use super::message::{AdmissionFrame, BootstrapAnswer, BootstrapRequest, LinkReport, Refusal};
use super::pre_join_responder::PreJoinResponder;
use super::request::{NAME_BYTES_MAX, read_address, read_members};
use super::wire::{FramedSocket, WaitLimit};
use super::{Address, BootstrapError, BootstrapListener, BootstrapMember, BootstrapPlan, CallError, Proof};

/// The result of establishing all links. The process is a member as soon as the leader's group decides so.
#[derive(Debug)]
pub struct Joined<S> {
    /// This process's number.
    pub node: NodeId,
    /// The group's session, for [`super::AdmissionListener::open`].
    pub session: u64,
    /// All members, without this process, in the order of their numbers.
    pub members: Vec<BootstrapMember>,
    /// A blocking stream to each of them, in the same order. TCP streams have `TCP_NODELAY` set.
    pub streams: Vec<(NodeId, S)>,
}

/// A member's reply to a process that asks to join.
#[derive(Debug)]
pub enum JoinReply {
    /// The process is the leader's candidate; the connection remains open.
    Admit {
        /// This process's number.
        node: NodeId,
        /// The member that has admitted this process.
        leader: NodeId,
        /// All members, without this process, in the order of their numbers.
        members: Vec<BootstrapMember>,
        /// Data from the leader's code for that of the joiner.
        token: Vec<u8>,
    },
    /// The leader can be reached at this address.
    Redirect(Address),
    /// Ask again soon; the reason is for people.
    Wait(String),
}

/// Returns the addresses that a joining process asks: the plan's contacts other than itself, `first` before
/// the others.
///
/// # Errors
/// Returns [`BootstrapError::Plan`] if this kind of socket reaches none of them.
pub fn join_contacts<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
    first: Option<&Address>,
) -> Result<Vec<Address>, BootstrapError> {
    let others = plan.contacts.iter().filter(|contact| !listener.is_at(contact));
    let mut contacts: Vec<Address> = others.filter(|contact| S::takes(contact)).cloned().collect();
    contacts.sort_by_key(|contact| Some(contact) != first);
    if contacts.is_empty() {
        let own = listener.address();
        let text = format!(
            "none of the `contacts` is another process with an address of the same kind as {own}: add a member's address"
        );
        return Err(BootstrapError::Plan(text));
    }
    Ok(contacts)
}

/// The calls of a process that joins, one at a time.
#[derive(Debug)]
pub struct JoinCalls<'p, S> {
    plan: &'p BootstrapPlan,
    proof: &'p Proof,
    request: BootstrapRequest,
    /// The address at which this process listens.
    own: String,
    /// The admission, and the connection with the leader.
    admission: Option<(FramedSocket<S>, AdmissionFrame, Vec<BootstrapMember>)>,
    links: BTreeMap<NodeId, FramedSocket<S>>,
    is_reported: bool,
}

impl<S: LinkSocket> JoinCalls<'_, S> {
    /// Runs `run` with the calls of a process that is reached at `listener`. Meanwhile, processes that
    /// connect there get the answer that it is too early. `name` is for people.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, or the system has no more descriptors.
    pub fn with<T>(
        plan: &BootstrapPlan,
        name: &str,
        listener: &BootstrapListener<S>,
        run: impl FnOnce(&mut JoinCalls<'_, S>) -> T,
    ) -> Result<T, BootstrapError> {
        if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let text = format!(
                "the name {name:?} is not valid: choose one of at most {NAME_BYTES_MAX} bytes without control characters"
            );
            return Err(BootstrapError::Plan(text));
        }
        let (proof, own) = (plan.proof(), listener.announced().to_string());
        let (agreement, listen) = (plan.agreement.clone(), vec![own.clone()]);
        let request = BootstrapRequest::Enter { agreement, listen, name: name.into(), rank: plan.rank };
        let (admission, links) = (None, BTreeMap::new());
        let mut calls = JoinCalls { plan, proof: &proof, request, own, admission, links, is_reported: false };
        let responder = PreJoinResponder::new(plan, listener, &proof)?;
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| responder.serve());
            let outcome = run(&mut calls);
            responder.dismiss();
            // The responder's thread has printed its own panic.
            let _ = serving.join();
            Ok(outcome)
        })
    }

    /// Asks a contact to admit this process. It may take `patience` to connect and to prove the secret.
    ///
    /// # Errors
    /// Returns a [`CallError`] if the call fails.
    pub fn ask(
        &mut self,
        contact: &Address,
        patience: Duration,
        until: Instant,
    ) -> Result<JoinReply, CallError> {
        let caller = Caller { plan: self.plan, proof: self.proof, patience };
        let (wire, answer) = caller.ask::<S>(contact, &self.request, until.into())?;
        match answer {
            BootstrapAnswer::Admit(admittance) => self.on_admitted(contact, wire, admittance),
            BootstrapAnswer::Redirect { leader } => Ok(match read_address(&leader).filter(S::takes) {
                Some(leader) => JoinReply::Redirect(leader.as_reached_by(contact)),
                None => JoinReply::Wait("the member does not know the leader".into()),
            }),
            BootstrapAnswer::Wait { reason } | BootstrapAnswer::Later { reason } => {
                Ok(JoinReply::Wait(reason))
            }
            BootstrapAnswer::Refused(
                refusal @ (Refusal::Assembling | Refusal::Complete | Refusal::OtherSession),
            ) => Ok(JoinReply::Wait(refusal.to_string())),
            BootstrapAnswer::Refused(refusal) => {
                Err(CallError::Never(BootstrapError::Refused { address: contact.clone(), refusal }))
            }
            BootstrapAnswer::Denied { reason } => {
                Err(CallError::Never(BootstrapError::Denied { address: contact.clone(), reason }))
            }
            BootstrapAnswer::Accepted
            | BootstrapAnswer::AcceptedByRdma
            | BootstrapAnswer::Status { .. }
            | BootstrapAnswer::Reopened { .. }
            | BootstrapAnswer::BallotTooLow { .. }
            | BootstrapAnswer::Gone => {
                Err(CallError::Never(nonsense(contact, "an answer to a different request")))
            }
        }
    }

    fn on_admitted(
        &mut self,
        contact: &Address,
        wire: FramedSocket<S>,
        admittance: AdmissionFrame,
    ) -> Result<JoinReply, CallError> {
        let mut members =
            read_members(&admittance, S::takes).map_err(|what| CallError::Never(nonsense(contact, what)))?;
        members.iter_mut().for_each(|member| member.address = member.address.as_reached_by(contact));
        // Its own address may be a wildcard, but this process has reached it at the contact's.
        let leads = |member: &&mut BootstrapMember| member.node.0 == admittance.leader;
        members.iter_mut().filter(leads).for_each(|member| member.address.clone_from(contact));
        let (node, leader) = (NodeId(admittance.node), NodeId(admittance.leader));
        let reply =
            JoinReply::Admit { node, leader, members: members.clone(), token: admittance.token.clone() };
        self.admission = Some((wire, admittance, members));
        Ok(reply)
    }

    /// Links with a member under the number of the admission.
    ///
    /// # Errors
    /// Returns [`CallError`]; also if the leader has closed its connection meanwhile.
    pub fn link(&mut self, node: NodeId, address: &Address, until: Instant) -> Result<(), CallError> {
        let Some((leader, AdmissionFrame { session, node: own, .. }, _)) = &mut self.admission else {
            return Err(CallError::Again("this process has not been admitted".into()));
        };
        let request = BootstrapRequest::hello(*session, *own, self.own.clone());
        let caller = Caller { plan: self.plan, proof: self.proof, patience: self.plan.timeout };
        let because = |cause: String| format!("failed to link with {node} at {address}: {cause}");
        let call =
            caller.call(address, &request, WaitLimit { deadline: until, abandon: Some(leader.as_fd()) });
        match call {
            Ok(wire) => {
                self.links.insert(node, wire);
                Ok(())
            }
            // The leader sends nothing before the report, so this is the end of its connection.
            Err(_) if !matches!(leader.poll_frame::<BootstrapAnswer>(), Ok(None)) => {
                Err(CallError::Again("the leader has closed the connection".into()))
            }
            // The member will soon accept links, or it has just been restarted.
            Err(CallError::Never(error @ BootstrapError::Refused { refusal: Refusal::Assembling, .. })) => {
                Err(CallError::Unheard(because(error.to_string())))
            }
            Err(CallError::Unheard(cause)) => Err(CallError::Unheard(because(cause))),
            Err(error) => Err(CallError::Again(because(error.to_string()))),
        }
    }

    /// Reports to the leader that all links are established. Even if an error is returned, the leader may
    /// have received the report.
    ///
    /// # Errors
    /// Returns a [`CallError`] if the call fails.
    pub fn report(&mut self, until: Instant) -> Result<(), CallError> {
        let Some((leader, ..)) = &mut self.admission else {
            return Err(CallError::Again("this process has not been admitted".into()));
        };
        self.is_reported = true;
        let written = leader.write_frame(&LinkReport::Connected, until);
        written.map_err(|error| CallError::Again(error.to_string()))
    }

    /// Closes all connections.
    pub fn abandon(&mut self) {
        (self.admission, self.is_reported) = (None, false);
        self.links.clear();
    }

    /// Returns the links, after this process has reported that all of them are established.
    ///
    /// # Errors
    /// Returns an error if the system cannot set a socket blocking.
    ///
    /// # Panics
    /// Panics if this process has not reported.
    pub fn finish(&mut self) -> Result<Joined<S::Secured>, BootstrapError> {
        let (leader, admittance, members) =
            self.admission.take().filter(|_| self.is_reported).expect("this process has reported");
        self.links.insert(NodeId(admittance.leader), leader);
        let links = std::mem::take(&mut self.links);
        // The leader may have died within its answer to the report. The fabric finds that out.
        let streams = links.into_iter().map(|(node, wire)| Ok((node, wire.into_usable_or_ended()?)));
        let streams = streams.collect::<Result<_, _>>().map_err(system("to set a socket blocking"))?;
        Ok(Joined { node: NodeId(admittance.node), session: admittance.session, members, streams })
    }
}

/// Sends a member of a running group a query that its code understands, and waits for the answer: for the
/// plan's `handshake_timeout` and the time that the member may take.
///
/// # Errors
/// Returns [`BootstrapError`], which says what to do next.
///
/// # Panics
/// If the question is longer than [`QUESTION_BYTES_MAX`].
pub fn ask<S: LinkSocket>(
    plan: &BootstrapPlan,
    address: &Address,
    question: &[u8],
) -> Result<Vec<u8>, BootstrapError> {
    assert!(question.len() <= QUESTION_BYTES_MAX, "a question of {} bytes", question.len());
    let deadline = Instant::now() + plan.handshake_timeout + ANSWER_WITHIN;
    let proof = plan.proof();
    let caller = Caller { plan, proof: &proof, patience: plan.timeout };
    let no_answer = |cause: String| BootstrapError::NoAnswer { address: address.clone(), cause };
    let request = BootstrapRequest::Status { question: question.into() };
    match caller.ask::<S>(address, &request, deadline.into()) {
        Ok((_, BootstrapAnswer::Status { bytes })) => Ok(bytes),
        Ok((_, BootstrapAnswer::Wait { reason } | BootstrapAnswer::Denied { reason })) => {
            Err(no_answer(reason))
        }
        Ok((_, BootstrapAnswer::Refused(refusal))) => Err(no_answer(refusal.to_string())),
        Ok(_) => Err(nonsense(address, "an answer to a different request")),
        Err(CallError::Unheard(cause) | CallError::Again(cause)) => Err(no_answer(cause)),
        Err(CallError::Never(error) | CallError::Unproved(error)) => Err(error),
    }
}

pub(super) fn nonsense(contact: &Address, what: &str) -> BootstrapError {
    BootstrapError::Protocol { contact: contact.clone(), what: what.into() }
}

/// How long a member may take to answer: slightly more than its admission listener allows its polling thread.
pub const ANSWER_WITHIN: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(2));
