//! Admission: how a process outside a group becomes a member (Derecho §3.3: joins go through the leader, and each member
//! connects with the joiner).
//!
//! Each member has an [`AdmissionService`]; a process that joins has a [`Joiner`]. Both are pure: their drivers own the sockets,
//! the proofs of identity and the threads, and the simulator drives the same two. A joiner takes these steps, one at a time:
//!
//! 1. *Ask.* It asks a contact. A member that does not lead redirects it to the leader; a member that cannot admit now tells it
//!    to wait; the leader makes it the *candidate*: gives it a number, a rank and the list of the members.
//! 2. *Link.* It connects to each member under its number. The member takes the link before it knows whether the candidate will
//!    ever be a member, and answers when its core has taken it: a view with the candidate cannot come first.
//! 3. *Report.* It reports to the leader that all links stand. The leader hands the candidate to its group, which lets it in with
//!    the next view. A joiner that gets no answer goes on as if it had one: the leader may have died with the answer.
//! 4. *Arrive.* It waits for its first view, and until all members have begun that view. It takes no message before.
//!
//! Each step can fail at any process, and each message can be lost, come late or come from an earlier attempt. An attempt that
//! fails is given up as a whole: the joiner closes all links and asks again, under a new number.
//!
//! # Invariants
//! - \[J1\] No two attempts ever have the same number: it is made of the number of the view, in which only one member admits, and
//!   of a count. When the numbers of a view are used up, the leader asks for the next view.
//! - \[J2\] Only the member with the lowest rank of a view that has begun everywhere admits, and one candidate at a time. So no
//!   two members of a view have the same tag.
//! - \[J3\] When a joiner's first view begins, each member has a link with the joiner, or has reported to its group that it has
//!   none: otherwise the view could wait for ever.
//! - \[J4\] Links of processes that are in no view are few, and each ends after a time. So does a candidate.
//! - \[J5\] A joiner that is alive, and reaches the members, becomes a member, whatever has happened to other candidates.
//! - \[J6\] A joiner has at most one attempt: it has closed all links of the attempt before when it begins the next.
//! - \[J7\] A joiner ends: it becomes a member, or gives up when its time is over, with the reason.
//! - \[J8\] The application of a joiner hears of no view and no message before it has arrived.
//! - \[J9\] A joiner that has reported does not go by itself before it knows that no view counts on it.

mod call;
mod joiner;
mod links;
mod message;
pub mod mutation;
mod number;
mod service;

pub use self::call::{CallFailure, JoinFailure, JoinStanding, JoinerAction, JoinerSettings};
pub use self::joiner::{HOPS_MAX, Joiner, REMOVALS_MAX};
pub use self::links::{LINKS_MAX, LinkVerdict};
pub use self::message::{Admitted, JoinAnswer};
pub use self::number::ADMISSIONS_MAX;
pub use self::service::{AdmissionAction, AdmissionService, AdmissionSettings};
