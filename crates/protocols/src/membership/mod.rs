//! Membership: one sequence of views, agreed on through a shared state table (Derecho §2, §3.4).
//!
//! A *view* is a list of members, oldest first; a member's *rank* is its place. Each view has a table of its own,
//! with the columns of [`MembershipRow`]. A view lasts until one of its members is suspected, wishes to leave, or, as
//! its leader, has a process to admit; then it ends by exactly one change, to exactly one next view.
//!
//! **State** of a member in a view; all of it only grows: the members that it *accuses*, because it does not hear
//! them (the fabric has lost them, or they gave no sign of life for too long); the members that any member accuses,
//! as far as it knows (*disputed*); which of these have answered it (*vouched*); whether it *concedes* an accusation,
//! because it stalled itself; the members that it no longer follows (*suspected*: those that it accuses, and leaders
//! that have resigned); which states it holds; whether it wishes to leave; whether it has wedged; the latest proposal
//! that it has echoed, and that proposal's leader; and whether it knows the decision.
//!
//! **Step order** of one evaluation ([`Membership::poll`]):
//! 1. *Accuse* the members that it does not hear. Freeze their rows, and publish that before anything else that
//!    depends on it. A member that hears no majority of the view delivers nothing more \[V5\]: it waits
//!    for one with its state \[V17\] (`waiting.rs`), or stops where it cannot, or knows that too many are dead. An accusation removes no member by
//!    itself \[V11\]. A member that learns that it is accused, soon after it stalled, concedes, and posts that before
//!    its answer \[V15\].
//! 2. *Wedge*, if there is a reason or another member has wedged: subgroups stop, and the member publishes finally
//!    how much of each sender it has and which states it holds \[A8\]. A wish to leave is a reason when it is new,
//!    and again when members that stay hold every state that the leaver holds.
//! 3. *Echo* the proposal of the leader, the lowest rank that is not suspected here; never again one of an earlier
//!    leader.
//! 4. *Propose*, as leader, when the cut (`cut.rs`) is clear and every member outside it has wedged **and** suspects
//!    all ranks below \[D1\]: the latest earlier proposal that any of them has echoed, unchanged \[D2\] \[D3\]; else
//!    a new one, with the least of their counts for each sender as the trim, the members to remove, the joiners
//!    \[V9\], and the members that continue and hold each state. A member that wishes to leave is removed unless it
//!    holds a state that no member that stays holds \[A9\]; then the next view marks it as leaving. A leader that is
//!    in the cut itself resigns, before or after it has proposed.
//! 5. *Decide*, when a majority has echoed the same leader's proposal, and so has every other member that is heard,
//!    stays, and follows that leader; or, right after step 1, when another member has decided.
//!    In a group with durable subgroups a proposal and an echo are votes, shown when they are on the disk; until then the member shows
//!    no suspicion of the leader for which it votes, and votes for no other \[T6\]. A leader that would have to remove all members of a
//!    durable subgroup stops instead \[T5\].
//! 6. Post everything that was stored, in order, and then a new heartbeat: a member that has nothing else to do reads
//!    only the heartbeats ([`Membership::has_news`]), and evaluates when one has changed.
//!
//! **Opening a view.** A member stores nothing before all readers that it does not accuse are attached \[S4\] \[D8\],
//! except the heartbeat, which needs no barrier: a reader that misses one gets the next. So signs of life are given
//! from the first evaluation on, and a member that hangs before it has attached is the only one that falls silent
//! \[V10\]. In a group with durable subgroups that is all that a member does before the view is on its disk \[T8\].
//!
//! **Sets and rows.** Sets of ranks ([`RankSet`]) take one word in the rows of views of up to 64 members, and more in larger ones; a
//! reader that sees a part of a new value sees a set between the earlier and the new one, which is as good, since they only grow. A row is
//! read when its heartbeat has changed, and once more when it is frozen (`rows.rs`). A row has a place for the proposal of each leader in
//! views of up to 64 members, and eight places in larger ones, so \[V8\] holds there if no more leaders than that die one after the
//! other while one view ends (`row.rs`).
//!
//! **Why there is one decision.** A proposal is decided only when a majority of the view has echoed it. A later
//! leader waits until all members outside its cut, again a majority, suspect the earlier one; after that they echo
//! nothing of the earlier leader. The two majorities share a member, and its echo was posted before its suspicion, so
//! the later leader sees the echo \[M1\] and takes over the proposal. Ranks play the role of ballots in Paxos.
//!
//! **Invariants.** \[V1\] there is one sequence of views; \[V2\] the members that continue have the same trim; \[V3\]
//! the trim covers what any member has delivered; \[V4\] a removed member is never heard again, and stops; \[V5\]
//! there is no view without a majority of the previous one, unless that is switched off; \[V8\] after the last fault
//! a view is installed; \[V9\] several changes fit into one view; \[V10\] a healthy member is removed only because of
//! a bad link; \[V11\] bad links remove as few members as possible; \[V12\] a view ends only for a change; \[V13\] a
//! member that wishes to leave does so, whatever views end meanwhile; \[V15\] of a member that stalled and its
//! accusers, the former is removed; \[V17\] silence ends no member, however long.
//!
//! With [`PartitionSafety::Off`] no majority is required. Then there is one decision only as long as no live member
//! is accused: a decision waits for all members that are heard and stay. In one case, nevertheless, live members are
//! accused: a member that leaves, and learns late of the decision, loses the others, which have closed their
//! connections to it. So when all members that are heard wish to leave, and a member has been lost, they stop without
//! a decision.
//!
//! **Joining.** A joiner attaches a mirror of each member, the [`ViewNotice`], and waits for a view that includes it.
//! A member publishes the notice for each joiner of a view that it installs, and a joiner for all other members,
//! since it does not know which of them are new: so a joiner learns of its view as long as one member that knows the
//! view lives.
//!
//! `Deviation:` (Derecho §3.4) a view has one change, which may hold many joins and departures, instead of a ring of
//! changes that is committed one by one. `Deviation:` any member decides when it sees all echoes; Derecho's leader
//! commits in a further round. `Deviation:` Derecho's members adopt each other's suspicions, which removes both ends
//! of a bad link if the ends' suspicions are learned in different orders; here the leader weighs all accusations. All
//! are collected in docs/papers/.

mod agreement;
mod concession;
mod core;
mod cut;
mod departure;
mod distrust;
mod joins;
mod marks;
mod passage;
mod proposal;
mod row;
mod rows;
mod settings;
mod silence;
mod slow;
mod steps;
mod stop;
mod subgroups;
#[cfg(test)]
mod tests;
mod view;
mod view_notice;
mod waiting;

pub use core::{Membership, MembershipState};
pub use marks::MembershipMarks;
pub use passage::{FirstView, ViewPassage};
pub use proposal::{JOINS_MAX, Proposal};
pub use row::{MembershipRow, SenderSegment, SetColumn};
pub use settings::{MembershipSettings, PartitionSafety};
pub use slow::MemberHindrance;
pub use steps::{ViewChangeStep, ViewChangeSteps};
pub use stop::StopReason;
pub use subgroups::{LogPeers, Subgroups};
pub use view::View;
pub use view_notice::{ViewNotice, ViewNotifier};

pub use crate::members::{MEMBERS_MAX, Member, RankSet};
