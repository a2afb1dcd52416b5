//! The node as threads see it that share it: they sleep outside of its lock.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use squall_fabric::Fabric as _;
use squall_transports::runner::{Driven as _, IdleLimits, LOOK_AT_ALL};
use squall_transports::{TransportFabric as _, Waker, wait_readable};

use super::Node;
use super::polled_node::{NodeBells, PolledNode};

impl PolledNode for Node {
    type Bells = KernelBells;

    fn bells(&self) -> io::Result<KernelBells> {
        let fabric = &self.stack.fabric;
        let peers = fabric.readiness().0.try_clone_to_owned()?;
        Ok(KernelBells { peers, waker: fabric.waker(), calls: Waker::new()? })
    }

    fn poll(&mut self) -> usize {
        Self::poll(self)
    }

    fn flush(&mut self) {
        self.stack.fabric.flush();
    }

    fn begin_wait(&mut self) -> usize {
        self.stack.fabric.prepare_park();
        self.stack.look_at_all();
        let work = self.poll();
        if work > 0 {
            return work;
        }
        // What this poll has posted must not wait as long as the node sleeps, and it may complete at once.
        self.stack.fabric.flush();
        self.stack.look_at_all();
        self.poll()
    }

    fn end_wait(&mut self, polls: bool) -> usize {
        let work = if polls { self.poll() } else { 0 };
        self.stack.fabric.unpark();
        work
    }

    fn patience(&self) -> Option<Duration> {
        let (_, patience) = self.stack.fabric.readiness();
        let now = self.stack.fabric.now();
        let deadline = self.stack.next_deadline().map(|deadline| deadline.since(now));
        [patience, deadline].into_iter().flatten().min()
    }

    fn idle_limits(&self) -> IdleLimits {
        self.stack.idle_limits()
    }

    fn yielded(&mut self, fruitless: u32) {
        self.stack.fabric.yielded();
        if fruitless.is_multiple_of(LOOK_AT_ALL) {
            self.stack.look_at_all();
        }
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }
}

/// What the threads that share a node sleep on.
#[derive(Debug)]
pub(crate) struct KernelBells {
    /// Readable when a peer has something for a node that is about to sleep, and when the waker was used.
    peers: OwnedFd,
    /// What other threads ring.
    waker: Waker,
    /// What the standby thread is called by. The thread that has the turn silences the others, and may do so before the standby thread has
    /// seen them; this one only the standby thread silences.
    calls: Waker,
}

impl NodeBells for KernelBells {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, patience: Option<Duration>) {
        // An error is no reason to stop polling; without sleep it only takes more time of the processor.
        let _ = wait_readable(&[self.peers.as_fd()], patience);
    }

    fn wake(&self) {
        self.waker.ring();
    }

    fn sleep_until_called(&self, patience: Option<Duration>) {
        let _ = wait_readable(&[self.peers.as_fd(), self.calls.doorbell()], patience);
        self.calls.silence();
    }

    fn await_call(&self, limit: Option<Duration>) -> bool {
        let _ = wait_readable(&[self.calls.doorbell()], limit);
        self.calls.silence()
    }

    fn call(&self) {
        self.calls.ring();
    }
}
