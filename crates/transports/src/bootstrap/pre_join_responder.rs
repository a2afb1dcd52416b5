//! The pre-join responder: answers for a process that joins and is not in the group yet, so that no caller
//! waits in vain.

use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};

use super::error::system;
use super::handshake_queue::HandshakeQueue;
use super::link::LinkSocket;
use super::message::Refusal;
use super::{BootstrapError, BootstrapListener, BootstrapPlan, MEMBER_CALLERS, Proof};
use crate::Waker;

/// Rejects every caller at `listener`, with the reason that it is too early.
pub(super) struct PreJoinResponder<'p, S: LinkSocket> {
    plan: &'p BootstrapPlan,
    listener: &'p BootstrapListener<S>,
    proof: &'p Proof,
    over: AtomicBool,
    doorbell: Waker,
}

impl<'p, S: LinkSocket> PreJoinResponder<'p, S> {
    pub(super) fn new(
        plan: &'p BootstrapPlan,
        listener: &'p BootstrapListener<S>,
        proof: &'p Proof,
    ) -> Result<Self, BootstrapError> {
        let doorbell = Waker::new().map_err(system("to create a doorbell"))?;
        Ok(Self { plan, listener, proof, over: AtomicBool::new(false), doorbell })
    }

    /// Serves until dismissed. Connections that have not sent a request by then are closed.
    pub(super) fn serve(&self) {
        let mut queue = HandshakeQueue::new(self.plan, self.listener, self.proof, MEMBER_CALLERS);
        while !self.over.load(Ordering::Relaxed) {
            let until = Instant::now() + LONG;
            match queue.poll(&[self.doorbell.doorbell()], until, &mut |_| ()) {
                Ok(visitors) => {
                    visitors.into_iter().for_each(|visitor| visitor.reject(Refusal::Assembling, &mut |_| ()));
                }
                Err(error) => {
                    crate::log::warn!(%error, "a joining process cannot accept connections at present")
                }
            }
        }
    }

    /// Ends [`PreJoinResponder::serve`].
    pub(super) fn dismiss(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.doorbell.ring();
    }
}

/// A wait that only an event ends.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
