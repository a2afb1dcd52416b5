//! A member that does not coordinate: joins, learns the roster, links with the others.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::error::system;
use super::link::Link;
use super::message::{Answer, Notice, Refusal, Request, Stop};
use super::reception::{Reception, Visitor};
use super::scout::Scout;
use super::wire::{Until, Wire, WireError};
use super::{Address, Assembly, BootstrapError, Listener, Member, Plan, Progress, Proof, ProofError};

/// Pauses between attempts to reach the coordinator, which may start later than we.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How many handshakes of others we let pass before we call the coordinator again.
const PATIENCE: u32 = 5;

pub(super) fn join<S: Link>(
    plan: &Plan,
    contact: &Address,
    listener: &Listener<S>,
    scout: &Scout,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Assembly<S::Secured>, BootstrapError> {
    let deadline = Instant::now() + plan.timeout;
    let proof = plan.proof();
    let caller = Caller { plan, proof: &proof, deadline, patience: plan.timeout };
    let coordinator = caller.call_coordinator(contact, listener.address(), scout, on_progress)?;
    let reception = Reception::new(plan, listener, &proof);
    let mut joining = Joining {
        plan,
        contact,
        reception,
        coordinator,
        deadline,
        on_progress,
        joined: 1,
        early: Vec::new(),
    };
    let roster = joining.await_roster()?;
    let lower = joining.link_lower(&caller, &roster)?;
    joining.link_higher(roster, lower)
}

/// Makes connections.
pub(super) struct Caller<'p> {
    pub(super) plan: &'p Plan,
    pub(super) proof: &'p Proof,
    pub(super) deadline: Instant,
    /// How long a process may take to prove the secret.
    pub(super) patience: Duration,
}

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No process has heard it, or none that takes such requests yet.
    #[error("{0}")]
    Unheard(String),
    /// It may succeed next time. It may have been heard.
    #[error("{0}")]
    Again(String),
    /// What listens there has not proved the secret, whatever it says: next time it may be another process.
    #[error(transparent)]
    Unproved(BootstrapError),
    /// A process that has proved the secret says so, or the system.
    #[error(transparent)]
    Never(BootstrapError),
}

impl Caller<'_> {
    /// Asks the coordinator to take us in, until it answers or the time is over.
    fn call_coordinator<S: Link>(
        &self,
        contact: &Address,
        listen: &Address,
        scout: &Scout,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Wire<S>, BootstrapError> {
        let request = Request::Join {
            members: self.plan.members,
            rank: self.plan.rank,
            agreement: self.plan.agreement,
            listen: listen.to_string(),
        };
        let (mut pause, mut told) = (PAUSE_MIN, String::new());
        loop {
            // Others may be served before us, so we wait longer than the coordinator waits for one of us.
            let deadline = self.deadline.min(Instant::now() + self.plan.handshake_timeout * PATIENCE);
            let until = Until { deadline, abandon: scout.bell() };
            let (cause, judgement) = match self.call(contact, &request, until) {
                Ok(wire) => return Ok(wire),
                Err(CallError::Never(error)) => return Err(error),
                Err(CallError::Unproved(error)) => (error.to_string(), Some(error)),
                Err(CallError::Unheard(cause) | CallError::Again(cause)) => (cause, None),
            };
            if let Some(contact) = scout.found() {
                return Err(BootstrapError::Running { contact });
            }
            if Instant::now() + pause >= self.deadline {
                let (contact, waited) = (contact.clone(), self.plan.timeout);
                return Err(judgement.unwrap_or(BootstrapError::Unreachable { contact, waited, cause }));
            }
            if cause != told {
                told.clone_from(&cause);
                on_progress(Progress::Calling { contact: contact.clone(), cause });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Connects, proves the secret, asks, and is accepted.
    pub(super) fn call<S: Link>(
        &self,
        address: &Address,
        request: &Request,
        until: Until<'_>,
    ) -> Result<Wire<S>, CallError> {
        let (wire, answer) = self.ask(address, request, until)?;
        self.accepted(address, answer).map(|()| wire)
    }

    /// Whether an answer is a plain yes.
    pub(super) fn accepted(&self, address: &Address, answer: Answer) -> Result<(), CallError> {
        match answer {
            Answer::Accepted => Ok(()),
            Answer::Refused(refusal) => {
                Err(CallError::Never(BootstrapError::Refused { address: address.clone(), refusal }))
            }
            Answer::Wait { reason } => Err(CallError::Unheard(reason)),
            Answer::Denied { reason } => Err(CallError::Again(reason)),
            _ => Err(CallError::Again("it gave an answer to something else".into())),
        }
    }

    /// Connects, proves the secret, and asks; returns the answer.
    pub(super) fn ask<S: Link>(
        &self,
        address: &Address,
        request: &Request,
        until: Until<'_>,
    ) -> Result<(Wire<S>, Answer), CallError> {
        let begun = Instant::now();
        let before = Until { deadline: until.deadline.min(begun + self.patience), ..until };
        let stream = S::connect(address, before.deadline, until.abandon).map_err(|error| {
            CallError::Unheard(match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => "nobody listens there".into(),
                _ => error.to_string(),
            })
        })?;
        if let Ok(Some(user)) = stream.foreign_user() {
            return Err(CallError::Unproved(BootstrapError::OtherUser { address: address.clone(), user }));
        }
        let wire = Wire::new(stream).map_err(system("to make a socket non-blocking"));
        let mut wire = wire.map_err(CallError::Never)?;
        wire.prove(self.proof, before).map_err(|error| self.on_proof_error(address, error))?;
        let again = |error: WireError| CallError::Again(error.to_string());
        wire.write_frame(request, until).map_err(again)?;
        let answer = wire.read_frame(until).map_err(again)?;
        Ok((wire, answer))
    }

    fn on_proof_error(&self, address: &Address, error: ProofError) -> CallError {
        let address = address.clone();
        CallError::Unproved(match error {
            ProofError::Io(error) => return CallError::Unheard(error.to_string()),
            ProofError::NotSquall => BootstrapError::NotSquall { address },
            ProofError::Secret => BootstrapError::SecretRefused { address },
            ProofError::Cluster => {
                BootstrapError::OtherCluster { address, cluster: self.plan.cluster.clone() }
            }
            ProofError::Version { ours, theirs } => BootstrapError::OtherVersion { address, ours, theirs },
        })
    }
}

pub(super) struct Roster {
    pub(super) session: u64,
    pub(super) node: NodeId,
    pub(super) members: Vec<Member>,
}

pub(super) struct Joining<'p, 'c, S: Link> {
    plan: &'p Plan,
    contact: &'p Address,
    reception: Reception<'p, S>,
    pub(super) coordinator: Wire<S>,
    pub(super) deadline: Instant,
    pub(super) on_progress: &'c mut dyn FnMut(Progress),
    /// How many have joined, as the coordinator told last.
    joined: u32,
    /// Members of higher rank that have the roster before us.
    pub(super) early: Vec<Visitor<S>>,
}

impl<S: Link> Joining<'_, '_, S> {
    fn await_roster(&mut self) -> Result<Roster, BootstrapError> {
        loop {
            match self.poll_notice(&[])? {
                Some(Notice::Joined { joined }) => {
                    self.joined = joined;
                    (self.on_progress)(Progress::Joined { joined, members: self.plan.members });
                    continue;
                }
                Some(Notice::Roster { session, node, listen }) => {
                    return self.on_roster(session, node, &listen);
                }
                Some(Notice::Go) => return Err(self.nonsense("the word to go before the roster")),
                Some(Notice::Stopped(_)) => unreachable!("an error of `poll_notice`"),
                None => {}
            }
            if Instant::now() >= self.deadline {
                return Err(BootstrapError::Incomplete { joined: self.joined, members: self.plan.members });
            }
            self.receive()?;
        }
    }

    /// Takes visitors in, of whom only members of higher rank are expected here.
    pub(super) fn receive(&mut self) -> Result<(), BootstrapError> {
        for visitor in self.reception.poll(&[self.coordinator.as_fd()], self.deadline, self.on_progress)? {
            match visitor.request {
                Request::Link { .. } if self.early.len() < self.plan.members as usize => {
                    self.early.push(visitor)
                }
                Request::Link { .. } | Request::Pair { .. } => {
                    visitor.turn_away(Refusal::OtherSession, self.on_progress);
                }
                Request::Enter { .. } | Request::Hello { .. } | Request::Status { .. } => {
                    visitor.turn_away(Refusal::Assembling, self.on_progress);
                }
                Request::Join { .. } => {
                    let coordinator = self.contact.to_string();
                    visitor.turn_away(Refusal::NotCoordinator { coordinator }, self.on_progress);
                }
            }
        }
        Ok(())
    }

    /// What the coordinator has said; that it is over is an error.
    pub(super) fn poll_notice(&mut self, members: &[Member]) -> Result<Option<Notice>, BootstrapError> {
        match self.coordinator.poll_frame() {
            Ok(Some(Notice::Stopped(stop))) => Err(self.on_stop(&stop, members)),
            Ok(notice) => Ok(notice),
            Err(WireError::Malformed(what)) => Err(self.nonsense(what)),
            Err(_) => Err(BootstrapError::CoordinatorLost { contact: self.contact.clone() }),
        }
    }

    fn on_stop(&self, stop: &Stop, members: &[Member]) -> BootstrapError {
        // Only members of the roster can be named, if the coordinator keeps to the protocol.
        let named =
            |node: u32| members.get(node as usize).map(|member| (member.node, member.address.clone()));
        match stop {
            Stop::Incomplete { joined } => {
                BootstrapError::Incomplete { joined: *joined, members: self.plan.members }
            }
            Stop::Unready { nodes } => {
                BootstrapError::Unready { unready: nodes.iter().copied().filter_map(named).collect() }
            }
            Stop::MemberLost { node, listen } => match listen.parse() {
                Ok(address) => BootstrapError::MemberLost { node: NodeId(*node), address },
                Err(_) => self.nonsense("an unusable address"),
            },
        }
    }

    fn on_roster(&self, session: u64, node: u32, listen: &[String]) -> Result<Roster, BootstrapError> {
        if listen.len() != self.plan.members as usize || node == 0 || node >= self.plan.members {
            return Err(self.nonsense("a roster of another size"));
        }
        let members = (0..).map(NodeId).zip(listen).map(|(node, listen)| {
            let address = listen.parse().ok().filter(|address| S::takes(address))?;
            Some(Member { node, address })
        });
        let members: Option<Vec<_>> = members.collect();
        let mut members = members.ok_or_else(|| self.nonsense("a roster with an unusable address"))?;
        // We know for sure at which address we have reached it.
        members[0].address = self.contact.clone();
        Ok(Roster { session, node: NodeId(node), members })
    }

    pub(super) fn nonsense(&self, what: &str) -> BootstrapError {
        BootstrapError::Protocol { contact: self.contact.clone(), what: what.into() }
    }
}
