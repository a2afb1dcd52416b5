//! Durable views and total restart: a group comes back from its logs after all its members have failed (Derecho §3.4,
//! "Total failures").
//!
//! View change and restart are **one consensus**: *how does view v end?* It is decided by a majority of the members of v. The value
//! ([`ViewEnd`]) is the trim of each durable shard and the next view; the leader of a live view has the ballot (0, rank), a restart's
//! leader (r, node) with r ≥ 1. So a restart contradicts neither a view change that was under way nor an earlier restart, whichever
//! members are there.
//!
//! **State on disk.** The *log* of the process has the messages of all its durable shards, and is seen here as counts
//! ([`LogState`]). The [`Register`] has what must not be in a tail that can be lost: the present view, the trims of the views before
//! it, the promise and the vote. It changes by transitions, live and in restarts alike, and only what is on the disk is shown to
//! others ([`RegisterWriter`], [`FlushedLog`]).
//!
//! # While a view runs ([`deliverable`], [`wedge_counts`], [`live_end`], [`may_echo`], [`is_decided`], [`may_forget`])
//! - \[T1\] A message is appended as received; `persisted` is published when the flush has returned.
//! - \[T2\] A message is delivered as durable when all members of its shard in this view, joiners included, have persisted it, and
//!   the own base (everything before the view) is whole on the own disk.
//! - \[T3\] A joiner logs and acknowledges at once and counts for majorities, and serves nothing until its base is whole and flushed.
//!   It asks one of the others after the other for what is missing ([`BaseTransfer`]).
//! - \[T4\] To wedge: stop receiving, flush the log, then publish the counts.
//! - \[T5\] The trim is the least count of those that stay. A shard of which no member stays cannot end: the members stop.
//! - \[T6\] An echo is a vote in the register: it is flushed, then published, the leader's own too, and before the member shows that
//!   it suspects that leader.
//! - \[T7\] When all that stay, a majority, have echoed, the end is decided; the trim is delivered at once.
//! - \[T8\] The next view is recorded and flushed before the member acts in it. A process that finds the record of a view when it
//!   boots is never live in that view again.
//!
//! # After a failure ([`Restarter`])
//! - \[T9\] *Boot.* A process without a good copy of the register has no vote and comes back as another node. Of ended views records
//!   count up to the trim; what is missing is a hole. A damaged tail says "at least" of the present view, until the next view is
//!   recorded.
//! - \[T10\] *Meet.* Newer views are learned and recorded by all. A process that is no member of the newest view waits to join, a
//!   member without its record records it and enters, a member with it takes part in its end. A group that runs is joined.
//! - \[T11\] *Lead.* The lowest present member leads, others after a time-out, with a ballot above all seen. The own promise is on
//!   disk first. A member whose ballot is the highest, and that still leads it, does not raise it; a promise without a leader behind
//!   it is led over, even one's own.
//! - \[T12\] *Promise:* into the register, flushed, and then the answer: vote, durable counts, damage.
//! - \[T13\] *Quorum:* a majority of the members of the view, no other process, and of each shard two logs (or its only one), of which
//!   one is not damaged.
//! - \[T14\] *Value:* the vote of the highest ballot, unchanged, if it may have been decided. Else a new one: of each shard the longest
//!   durable count, damaged logs included; the next members are those that answered.
//! - \[T15\] *Accept:* if the ballot is not below the promise: fetch what the own shards lack up to the trims, flush the log, then vote
//!   in the register, flush, publish.
//! - \[T16\] *Decide:* acceptances of a majority, and in each shard of two of those members that the end keeps. Then \[T8\].
//! - \[T17\] What is missing is fetched by (view, sequence) from any process. All up to the trims is durable.
//! - \[T18\] All of this can be cut off at any step and begun again.
//! - \[T19\] *Compaction.* A checkpoint takes the place of what was before its position, which was delivered: so all members of its
//!   view have that on their disks, and no trim is before it. Checkpoints of all own shards shorten the list of ended views, once all members of the present view are live
//!   in it and whole: before that a member of another shard may need the trims, and know them from no one else. A process that was away for longer than the
//!   lists of the others reach back cannot check its own records of these views: they count no more, until it has a checkpoint, or
//!   the list of a process that was not away.
//! - \[T20\] *Placement.* A shard that moves keeps two of its logs, whole ones first, until others are whole: the layout only adds
//!   members.
//! - \[T21\] *One history.* Processes of a group that know two views of one number, or two ends of one view, have no history in common any
//!   more: a folder was set back to an older copy of itself, and the group has continued from it. Neither is taken for the later one: a process
//!   that meets the other history goes no further. One that could end its view without any other process waits for the others first.
//!
//! - \[T22\] *A changed set.* The durable shards may change while the group is down: each process maps its register before it meets others
//!   ([`ShardChange`]). A shard that is added has no members in the present view, and nothing of what a log may have of it counts: it begins
//!   when that view ends ([`Restarter::add_shards`]). A view in which it has none, since its end was proposed with the set before, is not
//!   entered, but ended.
//!
//! # Promises
//! \[P1\] What was delivered as durable anywhere is never lost, as long as a quorum \[T13\] comes back. \[P2\] All members serve the
//! same prefix. \[P3\] A process fetches only what it lacks.
//!
//! # The driver, step by step
//! 1. Lock the folder; read the register ([`Register::decode`], the newest good copy). Without a good copy: a new node number, and
//!    [`Register::new`] with an empty view. Read the log: for each shard the position of a checkpoint that verifies
//!    ([`LogState::cover`]), and for its view and each later one the number of sequences from the first on, without a gap behind that
//!    position. Damage that cannot be a torn last write is reported as such.
//! 2. Make a [`Restarter`] of these, and carry out its actions. Writing the register replaces it as a whole: after a crash either the
//!    old or the new one is read. A write or a flush that fails ends the process; it is never repeated.
//! 3. Answer [`RestartAction::Fetch`] of others at any time, in a restart and in a view, by [`LogState::answer`] with the records
//!    themselves, and if there are none by [`Register::missing_trims`]. Append what comes for the own requests if it
//!    counts ([`Restarter::handle_fetched`]). A fetched checkpoint takes the place of all records of its shard that it covers.
//! 4. On [`RestartAction::Join`], ask the group for admission. The process is let in by a view that has it, which comes as
//!    [`RestartMessage::Views`].
//! 5. On [`RestartAction::Enter`], begin the view with the same register and log: answer reports of processes that are behind
//!    ([`RestartReport::missing_views`]), and report as [`RestartReport::live`]. A member that learns of a newer view while it is live
//!    ends its own view as the list says.
//! 6. Never append to a log of an ended view but what was fetched; never delete records but for a checkpoint of their shard that is on
//!    the disk. Then, and when [`may_forget`] allows it, call [`Register::forget_before`].
//!
//! `Deviation:` (Derecho §3.4) the paper restarts from the log with the highest commit sequence, of those that are there. A commit
//! record is not flushed before delivery, so the highest that is found may be below what was delivered; here every member has a
//! delivered message on its disk, and the longest of at least two logs counts. `Deviation:` the last view is not looked up in the
//! logs alone: its end is decided by ballot, since a view change may have been under way.
//!
//! [`crate::group`] keeps the register of a running view and votes in it; the crate `squall` drives a restart, as the simulator does
//! (scenarios `restart` and `revival`).

mod acceptor;
mod action;
mod base_transfer;
mod codec;
mod flushed_log;
mod leader;
mod live;
mod member;
mod merge;
mod message;
mod message_codec;
pub mod mutation;
mod placement;
mod register;
mod register_writer;
mod salvage;
mod shard_change;
mod taken;
#[cfg(test)]
mod tests;
mod transfer;
mod view_chain;
mod view_end;

pub use self::action::{RestartAction, RestartSettings};
pub use self::base_transfer::{BaseStep, BaseTransfer};
pub use self::codec::RegisterError;
pub use self::flushed_log::{FetchAnswer, FetchRequest, FlushedLog, LogStart, LogState, ShardLog};
pub use self::live::{deliverable, is_decided, live_end, may_echo, may_forget, wedge_counts};
pub use self::member::{RestartStanding, Restarter};
pub use self::merge::{
    LogPieces, MergeConflict, MergePlan, MergeStep, MergeTarget, MissingPart, SequenceRanges, ShardBegin,
    ShardPieces, plan_merge,
};
pub use self::message::{RestartMessage, RestartReport};
pub use self::placement::DurablePlacement;
pub use self::register::{Register, ViewRecord};
pub use self::register_writer::RegisterWriter;
pub use self::salvage::{Salvage, SalvageError, SalvagedShard};
pub use self::shard_change::ShardChange;
pub use self::taken::{TakenCounts, taken};
pub use self::transfer::{LogTransfer, TransferSettings};
pub use self::view_chain::ViewChain;
pub use self::view_end::{DurableView, EndOrigin, ViewEnd, Vote, copies_needed};
pub use crate::ends::Ballot;
