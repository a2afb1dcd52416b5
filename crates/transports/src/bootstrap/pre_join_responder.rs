//! The pre-join responder: answers at a process that joins and is not in the group yet, so that nobody waits there in vain.

use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};

use super::error::system;
use super::handshake_queue::HandshakeQueue;
use super::link::LinkSocket;
use super::message::Refusal;
use super::{BootstrapError, BootstrapListener, BootstrapPlan, Proof};
use crate::Waker;

/// Sends everybody away who comes to `listener`, with the word that it is too early.
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
        let doorbell = Waker::new().map_err(system("to make a doorbell"))?;
        Ok(Self { plan, listener, proof, over: AtomicBool::new(false), doorbell })
    }

    /// Serves until dismissed. Who has connected and not said what it wants by then sees the end of its connection.
    pub(super) fn serve(&self) {
        let mut queue = HandshakeQueue::new(self.plan, self.listener, self.proof);
        while !self.over.load(Ordering::Relaxed) {
            let until = Instant::now() + LONG;
            match queue.poll(&[self.doorbell.doorbell()], until, &mut |_| ()) {
                Ok(visitors) => {
                    visitors.into_iter().for_each(|visitor| visitor.reject(Refusal::Assembling, &mut |_| ()));
                }
                Err(error) => tracing::warn!(%error, "a process that joins cannot accept connections now"),
            }
        }
    }

    /// Ends [`PreJoinResponder::serve`].
    pub(super) fn dismiss(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.doorbell.ring();
    }
}

/// A sleep that only an event ends.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
