//! Calls: connect, prove the secret, send a request. The callers interpret the answer.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::fd::BorrowedFd;

use super::error::system;
use super::link::LinkSocket;
use super::message::{BootstrapAnswer, BootstrapRequest};
use super::wire::{FramedSocket, FramingError, WaitLimit};
use super::{Address, BootstrapError, BootstrapPlan, Proof, ProofError};
use crate::Waker;

/// Makes connections.
pub(super) struct Caller<'p> {
    pub(super) plan: &'p BootstrapPlan,
    pub(super) proof: &'p Proof,
    /// How long a process may take to prove the secret.
    pub(super) patience: Duration,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No process has received the request, or none that serves such requests yet.
    #[error("{0}")]
    Unheard(String),
    /// The call may succeed next time. The request may have been received.
    #[error("{0}")]
    Again(String),
    /// The process that listens there has not proved the secret, whatever it sends: next time it may be
    /// another process.
    #[error(transparent)]
    Unproved(BootstrapError),
    /// Refused for good by a process that has proved the secret, or by the system.
    #[error(transparent)]
    Never(BootstrapError),
}

impl Caller<'_> {
    /// Connects, proves the secret, sends the request, and requires that it is accepted.
    pub(super) fn call<S: LinkSocket>(
        &self,
        address: &Address,
        request: &BootstrapRequest,
        until: WaitLimit<'_>,
    ) -> Result<FramedSocket<S>, CallError> {
        let (wire, answer) = self.ask(address, request, until)?;
        Self::accepted(address, answer).map(|()| wire)
    }

    /// Returns an error unless the answer is plain acceptance.
    pub(super) fn accepted(address: &Address, answer: BootstrapAnswer) -> Result<(), CallError> {
        match answer {
            BootstrapAnswer::Accepted => Ok(()),
            BootstrapAnswer::Refused(refusal) => {
                Err(CallError::Never(BootstrapError::Refused { address: address.clone(), refusal }))
            }
            BootstrapAnswer::Wait { reason } => Err(CallError::Unheard(reason)),
            BootstrapAnswer::Denied { reason } => Err(CallError::Again(reason)),
            _ => Err(CallError::Again("it sent an answer to a different request".into())),
        }
    }

    /// Connects, proves the secret, and sends the request; returns the answer.
    pub(super) fn ask<S: LinkSocket>(
        &self,
        address: &Address,
        request: &BootstrapRequest,
        until: WaitLimit<'_>,
    ) -> Result<(FramedSocket<S>, BootstrapAnswer), CallError> {
        let begun = Instant::now();
        let before = WaitLimit { deadline: until.deadline.min(begun + self.patience), ..until };
        let stream = S::connect(address, before.deadline, until.abandon).map_err(|error| {
            CallError::Unheard(match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => "no process listens there".into(),
                _ => error.to_string(),
            })
        })?;
        let unknown_user =
            |error| CallError::Unheard(format!("the system does not report its user: {error}"));
        if let Some(user) = stream.foreign_user().map_err(unknown_user)? {
            return Err(CallError::Unproved(BootstrapError::OtherUser { address: address.clone(), user }));
        }
        let wire = FramedSocket::new(stream).map_err(system("to set a socket non-blocking"));
        let mut wire = wire.map_err(CallError::Never)?;
        let proved = wire.prove(self.proof, request.kind(), before);
        proved.map_err(|error| self.on_proof_error(address, error))?;
        let again = |error: FramingError| CallError::Again(error.to_string());
        wire.write_frame(request, until).map_err(again)?;
        if matches!(request, BootstrapRequest::Status { .. }) {
            wire.expect_answer();
        }
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
            cause @ ProofError::NoVersions { .. } => BootstrapError::NotServed { address, cause },
            // It has proved the secret.
            cause @ (ProofError::NotServed { .. } | ProofError::NotKnown) => {
                return CallError::Never(BootstrapError::NotServed { address, cause });
            }
        })
    }
}

/// Makes calls on a thread of its own, one at a time: two contacts call each other at the same time, and one
/// that does not answer must not delay the other. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct CallThread<S> {
    calls: Sender<CallOrder>,
    outcomes: Receiver<CallOutcome<S>>,
    /// Rings when there is an outcome.
    bell: Waker,
    /// Rings when calls are no longer needed.
    over: Waker,
}

#[derive(Debug)]
pub(super) struct CallOrder {
    pub(super) address: Address,
    pub(super) request: BootstrapRequest,
    /// How long it may take to connect and to prove the secret.
    pub(super) patience: Duration,
    pub(super) until: Instant,
}

pub(super) type CallOutcome<S> = Result<(FramedSocket<S>, BootstrapAnswer), CallError>;

impl<S: LinkSocket> CallThread<S> {
    pub(super) fn begin(plan: &BootstrapPlan) -> Result<Self, BootstrapError> {
        let waker = || Waker::new().map_err(system("to create a doorbell"));
        let (bell, over) = (waker()?, waker()?);
        let ((calls, ordered), (made, outcomes)) = (channel::<CallOrder>(), channel());
        let (plan, ring, abandon) = (plan.clone(), bell.clone(), over.clone());
        let run = move || {
            let proof = plan.proof();
            for CallOrder { address, request, patience, until } in ordered {
                let until = WaitLimit { deadline: until, abandon: Some(abandon.doorbell()) };
                let outcome = Caller { plan: &plan, proof: &proof, patience }.ask(&address, &request, until);
                if made.send(outcome).is_err() {
                    return;
                }
                ring.ring();
            }
        };
        let thread = std::thread::Builder::new().name("squall-calls".into()).spawn(run);
        thread.map_err(system("to start a thread"))?;
        Ok(Self { calls, outcomes, bell, over })
    }

    pub(super) fn begin_call(&self, call: CallOrder) {
        // If the thread has panicked, it has reported that, and this process will time out.
        let _ = self.calls.send(call);
    }

    /// Returns a descriptor that is readable when there is an outcome.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.doorbell()
    }

    /// Returns the outcome of the call, once.
    pub(super) fn poll(&self) -> Option<CallOutcome<S>> {
        // First, since the bell rings after the outcome.
        self.bell.silence();
        self.outcomes.try_recv().ok()
    }
}

impl<S> Drop for CallThread<S> {
    fn drop(&mut self) {
        self.over.ring();
    }
}
