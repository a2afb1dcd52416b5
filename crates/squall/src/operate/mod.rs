//! What operators see of a member: questions and answers, flight records, traces, metrics, and what is left of a group that cannot come
//! back (Derecho §3.4).

pub(crate) mod calls;
pub(crate) mod flight;
pub(crate) mod inquiry;
pub(crate) mod merge;
pub mod metrics;
pub(crate) mod missing;
pub mod recovery;
pub mod trace;
