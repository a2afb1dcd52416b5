//! Admission: the drivers of [`squall_protocols::admission`], with sockets and threads (Derecho §3.3).

mod joiner;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use self::joiner::{JoinDriver, JoinOutcome};
pub(crate) use self::service::MemberAdmission;
