//! The connections of a process that restarts: what others ask it, and what it asks them (Derecho §3.4, "Total failures").
//!
//! Each other process has a thread that calls it, one call after the other, so that one that hangs delays nothing else. Each call
//! is a connection of its own and carries what both sides have for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::restart::FetchRequest;
use squall_transports::Waker;
use squall_transports::bootstrap::{
    Address, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, BootstrapError, BootstrapListener,
    BootstrapPlan, LinkSocket,
};

use super::fetch::{self, Fetched};
use crate::error::JoinError;
use crate::operate::calls::{FetchCall, RestartAnswer, RestartCall};
use crate::operate::inquiry::{self, StatusQuestion};

/// What has happened.
#[derive(Debug)]
pub(super) enum ExchangeEvent {
    /// A process asks a question.
    Asked(Asker, Vec<u8>),
    /// A process has answered a call, or has not.
    Answered(Address, Result<RestartAnswer, BootstrapError>),
    /// A part of what was asked of a process's log has come.
    FetchedPart(NodeId, FetchRequest),
    /// What was asked of a process's log has come, or has not.
    Fetched(NodeId, FetchRequest, Fetched),
}

/// The connections. Dropping this ends what listens; a call that is under way ends by itself.
#[derive(Debug)]
pub(super) struct Exchange {
    plan: BootstrapPlan,
    // Closed before the events that its thread sends.
    _listener: AdmissionListener,
    sender: Sender<ExchangeEvent>,
    events: Receiver<ExchangeEvent>,
    lines: BTreeMap<Address, CallLine>,
}

/// The thread that calls one address.
#[derive(Debug)]
struct CallLine {
    calls: Sender<RestartCall>,
    is_busy: bool,
}

impl Exchange {
    /// Listens.
    pub(super) fn open<S: LinkSocket>(
        plan: &BootstrapPlan,
        listener: &Arc<BootstrapListener<S>>,
    ) -> Result<Self, JoinError> {
        let (sender, events) = channel();
        let (listener, asked) =
            AdmissionListener::open_early(Arc::clone(listener), plan, RESTARTS, Waker::new()?)?;
        let forward = sender.clone();
        Builder::new().name("squall asked".into()).spawn(move || forward_questions(asked, &forward))?;
        Ok(Self { plan: plan.clone(), _listener: listener, sender, events, lines: BTreeMap::new() })
    }

    /// Waits for the next event.
    pub(super) fn wait(&self, timeout: Duration) -> Option<ExchangeEvent> {
        self.events.recv_timeout(timeout).ok()
    }

    /// Calls an address, unless a call is under way there; returns whether it does.
    pub(super) fn call(
        &mut self,
        address: &Address,
        make: impl FnOnce() -> RestartCall,
    ) -> Result<bool, JoinError> {
        if !self.lines.contains_key(address) {
            let line = self.begin_line(address.clone())?;
            self.lines.insert(address.clone(), line);
        }
        let line = self.lines.get_mut(address).expect("inserted above");
        if line.is_busy {
            return Ok(false);
        }
        line.is_busy = line.calls.send(make()).is_ok();
        Ok(line.is_busy)
    }

    fn begin_line(&self, address: Address) -> Result<CallLine, JoinError> {
        let (calls, received) = channel::<RestartCall>();
        let (plan, events) = (self.plan.clone(), self.sender.clone());
        let run = move || {
            for call in received {
                let question = StatusQuestion::Restart(Box::new(call));
                let answer = inquiry::ask(&plan, &address, &question);
                if events.send(ExchangeEvent::Answered(address.clone(), answer)).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("squall calls".into()).spawn(run)?;
        Ok(CallLine { calls, is_busy: false })
    }

    /// Notes that the call to an address is over.
    pub(super) fn end_call(&mut self, address: &Address) {
        self.lines.get_mut(address).into_iter().for_each(|line| line.is_busy = false);
    }

    /// Asks a process for a part of its log.
    pub(super) fn fetch(
        &self,
        from: NodeId,
        address: Address,
        request: FetchRequest,
        call: FetchCall,
    ) -> Result<(), JoinError> {
        let (plan, events) = (self.plan.clone(), self.sender.clone());
        let run = move || {
            let mut on_part = || events.send(ExchangeEvent::FetchedPart(from, request)).is_ok();
            let fetched = fetch::fetch(&plan, &address, call, &mut on_part);
            // A restart that is over needs it no more.
            let _ = events.send(ExchangeEvent::Fetched(from, request, fetched));
        };
        Builder::new().name("squall fetches".into()).spawn(run)?;
        Ok(())
    }
}

/// Hands questions on until the listener is closed; a process that wants to join waits.
fn forward_questions<S>(mut asked: AdmissionEvents<S>, events: &Sender<ExchangeEvent>) {
    while let Some(event) = asked.wait_event() {
        match event {
            AdmissionEvent::StatusAsked { asker, question } => {
                // If the restart is over, the asker tries again.
                let _ = events.send(ExchangeEvent::Asked(asker, question));
            }
            AdmissionEvent::JoinAsked { asker, .. } | AdmissionEvent::LinkAsked { asker, .. } => {
                asker.wait(RESTARTS);
            }
            _ => {}
        }
    }
}

/// What processes without a log hear meanwhile.
pub(super) const RESTARTS: &str = "the group restarts from its logs";
