//! Membership: one sequence of views, agreed on through a shared state table (Derecho §2, §3.4).
//!
//! A *view* is a list of members, oldest first; a member's *rank* is its place. Each view has a table of its own, with
//! the columns of [`MembershipRow`]. A view lives until one of its members is suspected, wants to leave, or, as its leader, has
//! somebody to let in; then it ends by exactly one change, to exactly one next view.
//!
//! **State** of a member in a view; all of it grows only: whom it *accuses*, because it does not hear them (the fabric has
//! lost them, or they gave no sign of life for too long); whom anybody accuses, as far as it knows (*disputed*); which of
//! these have answered to it (*vouched*); whether it *concedes* an accusation, since it stalled itself; whom it follows no more (*suspected*: those it accuses, and leaders that have
//! resigned); which states it holds; whether it wishes to leave; whether it has wedged, the latest proposal that it has echoed and of which leader, and whether it knows the
//! decision.
//!
//! **Step order** of one evaluation ([`Membership::poll`]):
//! 1. *Accuse* whom it does not hear. Freeze their rows, and publish that before anything else that rests on it. A member
//!    that hears no majority of the view stops \[V5\]. An accusation removes nobody by itself \[V11\]. A member that learns that it
//!    is accused, soon after it stalled, concedes, and posts that before its answer \[V15\].
//! 2. *Wedge*, if there is a reason or another member has wedged: subgroups stop, and how much of each sender is here
//!    and which states are held here is published for good \[A8\]. A wish to leave is a reason when it is new, and again
//!    when members that stay hold all that the leaver holds.
//! 3. *Echo* the proposal of the leader, the lowest rank that is not suspected here; never again one of an earlier
//!    leader.
//! 4. *Propose*, as leader, when the cut (`cut.rs`) is clear and every member outside it has wedged **and** suspects all
//!    ranks below \[D1\]: the latest earlier proposal that any of them has echoed, as it is \[D2\] \[D3\]; else the least
//!    of their counts, for each sender, as the trim, who is removed, who joins \[V9\], and which of those that go on hold
//!    which state. A member that wishes to leave is removed unless it holds a state that no member that stays holds
//!    \[A9\]; then the next view says that it is leaving. A leader that is in the cut itself resigns, before it
//!    has proposed or after.
//! 5. *Decide*, when a majority has echoed the same leader's proposal, and so has every other member that is heard,
//!    stays, and follows that leader; or before all of this but step 1, when another member has decided.
//! 6. Post all that was stored, in order, and then a new heartbeat: a member that has nothing else to do looks at the
//!    heartbeats alone ([`Membership::has_news`]), and evaluates when one has changed.
//!
//! **Opening a view.** Nobody stores before all readers that it does not accuse are attached \[S4\] \[D8\], except the
//! heartbeat, which needs no barrier: a reader that misses one gets the next. So signs of life flow from the first
//! evaluation on, and a member that hangs before it has attached is the only one that falls silent \[V10\].
//!
//! **Why there is one decision.** A proposal is decided only when a majority of the view has echoed it. A later leader
//! waits for all members outside its cut, again a majority, to suspect the earlier one; after that they echo it no more. The two majorities share a member, and its
//! echo was posted before its suspicion, so the later leader sees it \[M1\] and takes it over. Ranks play the part of
//! Paxos' ballots.
//!
//! **Invariants.** \[V1\] one sequence of views; \[V2\] those who go on have the same trim; \[V3\] the trim covers what
//! anyone has delivered; \[V4\] a removed member is never heard again, and stops; \[V5\] no view without a majority of
//! the one before, unless that is switched off; \[V8\] after the last fault a view is installed; \[V9\] several changes
//! go in one view; \[V10\] a healthy member is removed only with a bad link; \[V11\] bad links remove as few members as can
//! be; \[V12\] a view ends only for a change; \[V13\] a member that wishes to leave does, whatever views end
//! meanwhile; \[V15\] of a member that stalled and its accusers, the former goes.
//!
//! With [`PartitionSafety::Off`] no majority is asked for. Then there is one decision only as long as nobody is accused that
//! lives: a decision waits for everybody that is heard and stays. One is accused all the same: a member that leaves, and hears
//! late of the decision, loses the others, which have parted with it. So those who all wish to leave, and have lost somebody,
//! stop without a decision.
//!
//! **Joining.** A joiner attaches a mirror of each member, the [`ViewNotice`], and waits for the view that has it. A
//! member publishes it for each joiner of a view that it installs, and a joiner for all others, since it does not know
//! who is new: so a joiner learns of its view as long as one who knows it lives.
//!
//! `Deviation:` (Derecho §3.4) a view has one change, which may hold many joins and departures, instead of a ring of
//! changes that is committed one by one. `Deviation:` any member decides when it sees all echoes; Derecho's leader
//! commits in a further round. `Deviation:` Derecho's members take over each other's suspicions, which removes both ends of
//! a bad link if its ends are heard in different orders; here the leader weighs all accusations. All are collected in
//! docs/papers/.

mod agreement;
mod concession;
mod core;
mod cut;
mod departure;
mod distrust;
mod joins;
mod proposal;
mod row;
mod settings;
mod silence;
mod slow;
mod steps;
mod stop;
mod view;
mod view_notice;

pub use core::{Membership, MembershipState, Subgroups};
pub use proposal::{JOINS_MAX, Proposal};
pub use row::{MembershipRow, SenderSegment};
pub use settings::{MembershipSettings, PartitionSafety};
pub use steps::{ViewChangeStep, ViewChangeSteps};
pub use stop::StopReason;
pub use view::{MEMBERS_MAX, Member, View};
pub use view_notice::{ViewNotice, ViewNotifier};
