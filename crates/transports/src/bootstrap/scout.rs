//! The scout: looks, while a process waits for a group to come together, whether one runs already.
//!
//! A thread of its own asks the contacts in turn, so that one that does not answer holds nothing up; in the first rounds such a
//! one has little time, so that it does not hold up the others either.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::BorrowedFd;
use squall_fabric::atomics::{AtomicBool, Ordering};

use super::error::system;
use super::link::Link;
use super::member::Caller;
use super::message::{Answer, Request};
use super::{Address, BootstrapError, Plan};
use crate::Waker;

/// Who looks around. Ends when dropped, as soon as the contact that it asks has answered.
#[derive(Debug, Default)]
pub(super) struct Scout {
    /// None if there is nobody to be asked.
    findings: Option<Arc<Findings>>,
}

#[derive(Debug)]
struct Findings {
    found: Mutex<Option<Address>>,
    over: AtomicBool,
    /// Rings when something is found.
    bell: Waker,
}

impl Scout {
    /// One that finds nothing.
    pub(super) const fn none() -> Self {
        Self { findings: None }
    }

    /// Sends a scout to `contacts`.
    pub(super) fn send<S: Link>(plan: &Plan, contacts: Vec<Address>) -> Result<Self, BootstrapError> {
        if contacts.is_empty() {
            return Ok(Self::none());
        }
        let bell = Waker::new().map_err(system("to make a doorbell"))?;
        let findings = Arc::new(Findings { found: Mutex::default(), over: AtomicBool::new(false), bell });
        let (plan, theirs) = (plan.clone(), Arc::clone(&findings));
        let thread = std::thread::Builder::new().name("squall-scout".into());
        let look_around = move || theirs.look_around::<S>(&plan, &contacts);
        thread.spawn(look_around).map_err(system("to start a thread"))?;
        Ok(Self { findings: Some(findings) })
    }

    /// A member of a group that runs.
    pub(super) fn found(&self) -> Option<Address> {
        let findings = self.findings.as_ref()?;
        findings.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Can be read when something is found.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.findings.as_ref().map(|findings| findings.bell.doorbell())
    }

    /// When to look again, for who sleeps meanwhile.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.findings.as_ref().map(|_| Instant::now() + PAUSE)
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        if let Some(findings) = &self.findings {
            findings.over.store(true, Ordering::Relaxed);
        }
    }
}

impl Findings {
    fn look_around<S: Link>(&self, plan: &Plan, contacts: &[Address]) {
        let proof = plan.proof();
        let mut patience = PATIENCE_MIN;
        loop {
            for contact in contacts {
                let deadline = Instant::now() + plan.handshake_timeout;
                let caller = Caller { plan, proof: &proof, deadline, patience };
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                let request = Request::Status { question: Vec::new() };
                let answer = caller.ask::<S>(contact, &request, deadline.into());
                // Only a desk gives these; who waits for a group to come together refuses.
                if matches!(
                    answer,
                    Ok((_, Answer::Status { .. } | Answer::Wait { .. } | Answer::Denied { .. }))
                ) {
                    *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(contact.clone());
                    self.bell.ring();
                    return;
                }
            }
            std::thread::sleep(PAUSE);
            patience = (2 * patience).min(plan.handshake_timeout);
        }
    }
}

/// How long a contact may take to prove the secret in the first round.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
/// Between looks.
const PAUSE: Duration = Duration::from_millis(200);
