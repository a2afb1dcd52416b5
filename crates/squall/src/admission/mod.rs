//! Admission: the drivers of [`squall_protocols::admission`], with sockets and threads (Derecho §3.3).

mod joiner;
mod service;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(crate) use self::joiner::{JoinDriver, JoinOutcome, failure_of};
pub(crate) use self::service::MemberAdmission;

/// What a leader sends to a joiner through its admission listener.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinToken {
    pub(crate) rank: u64,
}
