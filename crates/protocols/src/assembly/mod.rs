//! Assembly: how the first members of a group find each other and begin its first view. (Derecho §2.2 starts from a
//! view that all members have; §3.3 covers processes that join later, for which see [`crate::admission`].)
//!
//! Each process has an [`Assembler`] and the same list of *contacts*: addresses at which some of the processes
//! listen. Any contact can coordinate. The core is pure: its driver owns the sockets, the authentication and the
//! threads, and the simulator drives the same core.
//!
//! 1. *Gather.* A process that listens at a contact gathers: it accepts the processes that ask it. Meanwhile it asks
//!    the other contacts, and follows one that precedes it on the list and gathers, too: it releases the processes
//!    that it has gathered, and they ask that contact. A process that is not a contact asks the contacts in turn
//!    until one accepts it. A contact of a running group answers that the group runs; then the process joins that
//!    group.
//! 2. *Introduce.* When the planned number of processes has been gathered, and a quorum of the contacts is among
//!    them, the coordinator assigns ranks and sends the roster to all. From then on it gathers no further processes.
//! 3. *Link.* Member *i* links with each member *j* < *i*; the connections with the coordinator become links as well.
//!    A member reports once all its links are established.
//! 4. *Begin.* When all members have reported, the coordinator sends *go*, and every member begins the first view.
//!
//! The loss of a member before step 4 costs the others only their links: the coordinator releases them and gathers
//! again. A follower whose coordinator is lost or silent asks the other contacts, unless it has reported. After its
//! report the others may have begun, so it gives up if the coordinator is lost.
//!
//! **Quorum.** A majority of the contacts, where the first contact breaks a tie. If fewer members than that are
//! planned, the first contact has to be among them.
//!
//! # Invariants
//! - \[Q1\] Processes that do not restart never complete two assemblies: two quorums have a contact in common, and a
//!   process reports for a second roster only after the coordinator of the first has released it.
//! - \[Q2\] All members of a completed assembly have the same roster, and each has a link with every other.
//! - \[Q3\] A member has the rank that it asked for.
//! - \[Q4\] A contact follows each earlier contact that it reaches, so two contacts do not gather half of the members
//!   each.
//! - \[Q5\] If the planned number of processes, with a quorum of the contacts among them, are alive and reach one
//!   another for long enough, an assembly completes, whatever happened before. A process that is not among its
//!   members learns of the group.
//! - \[Q6\] A process terminates: it begins, learns that the group runs, or gives up with the reason: at its deadline, or
//!   at once if all other contacts refuse it.

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

/// The maximum number of members of a group.
pub const MEMBERS_MAX: u32 = 1024;
