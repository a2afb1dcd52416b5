//! What a member serves at the port at which it listens: one acceptor proves and reads all callers, and hands on by kind.
//!
//! A service is a [`PairListener`](super::PairListener) without a port of its own. Callers reach it at the member's address, where the
//! member's [`AdmissionListener`](super::super::AdmissionListener) finds it here. For shared memory it has a Unix socket beside a TCP
//! address, as every pair listener has.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use squall_fabric::mutex::lock;

use super::super::handshake_queue::ProvedVisitor;
use super::super::link::LinkSocket;
use super::super::message::{BootstrapAnswer, BootstrapRequest, Refusal};
use super::{PairTerms, Reporter};
use crate::session::CallerKind;

/// A service of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PairService {
    /// Readers and senders of the group's messages, outside the group.
    Clients,
    /// Requests about replicated objects, of clients and members.
    Objects,
}

impl PairService {
    /// Returns the kind of its callers.
    pub(in super::super) const fn kind(self) -> CallerKind {
        match self {
            Self::Clients => CallerKind::LogClient,
            Self::Objects => CallerKind::ObjectClient,
        }
    }
}

impl fmt::Display for PairService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clients => "clients",
            Self::Objects => "objects",
        })
    }
}

/// The services of one member. Clones are the same list.
#[derive(Clone, Default)]
pub struct PairServices(Arc<Mutex<ServiceList>>);

type ServiceList = BTreeMap<PairService, (Arc<Reporter>, PairTerms)>;

impl PairServices {
    fn list(&self) -> MutexGuard<'_, ServiceList> {
        lock(&self.0)
    }

    pub(super) fn add(&self, service: PairService, reporter: Arc<Reporter>, terms: &PairTerms) {
        self.list().insert(service, (reporter, terms.clone()));
    }

    pub(super) fn remove(&self, service: PairService) {
        self.list().remove(&service);
    }

    /// Hands a visitor to the service that it asks for; one that is not there yet answers that the visitor is to ask again.
    pub(in super::super) fn receive<S: LinkSocket>(&self, mut visitor: ProvedVisitor<S>) {
        let mut log = |progress| crate::log::debug!(?progress, "a caller of a service");
        let BootstrapRequest::Serve { service, wish } = visitor.request else {
            return visitor.reject(Refusal::Unusable, &mut log);
        };
        // The lock is not held while the choice of a transport tries a device.
        let found = self.list().get(&service).cloned();
        match found {
            Some((reporter, terms)) => reporter.accept(visitor, wish, &terms, &mut log),
            None => {
                let reason = format!("this member does not serve {service} yet");
                // A process that has closed its connection needs no answer.
                let _ = visitor.wire.write_frame(&BootstrapAnswer::Wait { reason }, Instant::now());
            }
        }
    }
}

impl fmt::Debug for PairServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().keys()).finish()
    }
}
