//! Admission as processes do it: the drivers of [`squall_protocols::admission`] on sockets and threads (Derecho §3.3).

mod joiner;
mod service;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(crate) use self::joiner::{JoinDriver, JoinOutcome, failure_of};
pub(crate) use self::service::MemberAdmission;

/// What a leader tells a joiner through its admission listener.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinToken {
    pub(crate) rank: u64,
}
