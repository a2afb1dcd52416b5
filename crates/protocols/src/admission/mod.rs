//! Admission: how a process outside a group becomes a member (Derecho §3.3: joins go through the leader, and each
//! member connects to the joiner).
//!
//! Each member has an [`AdmissionService`]; a process that joins has a [`Joiner`]. Both are pure: their drivers own
//! the sockets, the authentication and the threads, and the simulator drives the same two types. A joiner takes these
//! steps, one at a time:
//!
//! 1. *Ask.* It asks a contact. A member that is not the leader redirects it to the leader. A leader that cannot
//!    admit it now answers that it has to wait; otherwise the leader makes it the *candidate*, and gives it a number,
//!    a rank and the list of the members.
//! 2. *Link.* It connects to each member under its number. The member accepts the link before it knows whether the
//!    candidate will ever be a member, and answers once its core has accepted it, so a view with the candidate cannot
//!    come before the link.
//! 3. *Report.* It reports to the leader that all its links are established. The leader hands the candidate to its
//!    group, which admits it in the next view. The report has no answer: a joiner that waited for one would give the
//!    members of that view no sign of life meanwhile, and a leader that falls silent then would cost the group two members.
//! 4. *Arrive.* It waits for its first view, and until all members have begun that view. It accepts no message before
//!    then.
//!
//! Each step can fail at any process, and each message can be lost, delayed, or left over from an earlier attempt. An
//! attempt that fails is abandoned as a whole: the joiner closes all links and asks again, and gets a new number.
//!
//! # Invariants
//! - \[J1\] No two attempts ever have the same number: a number is composed of the number of the view, in which only
//!   one member admits, and of a count. When the numbers of a view are used up, the leader asks for the next view.
//! - \[J2\] Only the member with the lowest rank of a view admits, only once all members have begun that view, and
//!   only one candidate at a time, with a rank with which its group takes a member \[G14\]. So no two members of a
//!   view have the same tag.
//! - \[J3\] When a joiner's first view begins, each member has a link with the joiner, or has reported to its group
//!   that it has none; otherwise the view could wait forever.
//! - \[J4\] The number of links of processes that are in no view is bounded, and so is the lifetime of each. The
//!   lifetime of a candidate is bounded, too.
//! - \[J5\] A joiner that is alive, reaches the members and can be taken becomes a member, whatever happens to other
//!   candidates.
//! - \[J6\] A joiner has at most one attempt at a time: it has closed all links of one attempt before it begins the
//!   next.
//! - \[J7\] A joiner terminates: it becomes a member, or gives up at its deadline, with the reason.
//! - \[J8\] The application of a joiner learns of no view and of no message before the joiner has arrived.
//! - \[J9\] A joiner that has reported does not leave of its own accord until it knows that no view counts on it, or none has come in the
//!   time in which a leader answers and the others admit a process whose leader is gone. That is long, since the members may be waiting
//!   for a majority: the end of the links \[J11\] is what it waits for.
//! - \[J10\] A process whose first view has begun at a member keeps its link with that member until the next view, even if it is
//!   lost before all members have begun its first one: the group uses the link in that view.
//! - \[J11\] As soon as a view with another leader has begun, its members close the links of candidates that earlier leaders admitted
//!   and that are not in it: no view will come with them, so they ask again at once.

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
pub use self::number::{ADMISSIONS_MAX, VIEWS_WITH_NUMBERS};
pub use self::service::{AdmissionAction, AdmissionService, AdmissionSettings};
