//! Assembly: how the first members of a group meet and begin its first view (Derecho §2.2 begins with a view that all members
//! have; §3.3 is about the processes that come later, for which see [`crate::admission`]).
//!
//! Each process has an [`Assembler`] and the same list of *contacts*: addresses at which some of the processes listen. Any contact
//! can coordinate. The core is pure: its driver owns the sockets, the proofs of identity and the threads, and the simulator drives
//! the same core.
//!
//! 1. *Gather.* A process that listens at a contact gathers: it accepts the processes that ask it. Meanwhile it asks the other
//!    contacts, and follows one that comes before it on the list and gathers, too: it releases those that it has gathered, which
//!    ask that one. A process that is no contact asks the contacts one after the other until one accepts it. A contact of a group
//!    that runs says so; then the process joins that group.
//! 2. *Introduce.* When as many as planned have been gathered, and a quorum of the contacts is among them, the coordinator gives
//!    out ranks and sends the roster to all. From then on it gathers no more.
//! 3. *Link.* Member *i* links with each member *j* < *i*; the connections with the coordinator become links as well. A member
//!    reports when all its links stand.
//! 4. *Begin.* When all have reported, the coordinator says go, and every member begins the first view.
//!
//! A member that is lost before step 4 costs the others their links, and nothing else: the coordinator releases them and gathers
//! again. A follower whose coordinator is lost or silent asks the other contacts, unless it has reported: then the others may have
//! begun, and it gives up.
//!
//! **Quorum.** A majority of the contacts, where the first one breaks a tie. If fewer members than that are planned, the first
//! contact has to be among them.
//!
//! # Invariants
//! - \[Q1\] Processes that do not start again never complete two assemblies: two quorums have a contact in common, and a process
//!   reports to a second roster only when the coordinator of the first has released it.
//! - \[Q2\] All members of a complete assembly have the same roster and a link with each other.
//! - \[Q3\] A member has the rank that it has asked for.
//! - \[Q4\] A contact follows each earlier contact that it reaches: two of them do not gather half of the members each.
//! - \[Q5\] If as many processes as planned, with a quorum of the contacts, are alive and reach one another for long enough, an
//!   assembly completes, whatever has happened before; a process that is not among its members learns of the group.
//! - \[Q6\] A process ends: it begins, learns that the group runs, or gives up when its time is over, with the reason.

mod action;
mod assembler;
mod contacts;
mod coordinating;
mod following;
mod message;
pub mod mutation;
mod roster;
#[cfg(test)]
mod tests;

pub use self::action::{
    AssembledGroup, AssemblyAction, AssemblyFailure, AssemblyProgress, AssemblySettings, LinkConnection,
    VisitorId,
};
pub use self::assembler::Assembler;
pub use self::contacts::ContactList;
pub use self::message::{AssemblyAnswer, AssemblyClaim, AssemblyNotice, AssemblyRefusal, ReleaseReason};
pub use self::roster::Roster;

/// The most members of a group.
pub const MEMBERS_MAX: u32 = 512;
