//! Replicated objects: one member's part in one shard (Derecho app. A, §3.3–3.4).
//!
//! A shard's members apply the same updates in the order of its subgroup, so their states are equal. This core
//! decides what is applied, the outcome of each of this member's updates, and how a joiner gets the state; it
//! transfers no bytes itself.
//!
//! **State** of a [`Replica`]: the current view of the shard; the *standing*: absent, waiting for the state, holding
//! it, or knowing that it is lost; the [`ShardPosition`]s up to which messages have been seen and applied; the
//! clients' sessions, which are part of the state. In addition there are, on the sending side, [`Outbox`]: updates to
//! be sent, and those whose outcome is open ([`UnderWay`]); on the group's side, [`Holding`]: whether the state here
//! counts when the view ends; for a joiner, [`StateTransfer`]; for callers, [`Queries`]. A process that is not in the
//! shard has a [`ShardClient`].
//!
//! The set of members that hold a state is part of the view ([`View::holders`](crate::membership::View::holders)),
//! and so the members of each shard remain a function of the view ([`place`]): the first choices, and other holders
//! as long as fewer of the first choices hold the state than there are first choices.
//!
//! **Step order** at each member, which its driver follows:
//! 1. Deliver all messages of a view in order ([`Replica::deliver`]), then begin the next view
//!    ([`Replica::begin_view`]), at every member of the group, including those outside the shard. In view 0 a shard
//!    begins with its initial state, and so does one in memory in the view with which a group begins again after all its processes have
//!    ended; later, a joiner of the shard waits for the state, or, if the view has no holder, considers it lost at once.
//! 2. A joiner keeps what is delivered, so that senders never wait for it, and asks one member of the shard after the
//!    other ([`Replica::ask`]), first those that hold the state according to the view, for a state at or after the
//!    start of its first view in the shard. If a state provider dies, or is silent for too long, the joiner asks the
//!    next one.
//! 3. A provider that holds such a state sends it with its position and continues ([`Replica::provide_state`]); one
//!    that has not applied enough yet reports that.
//! 4. When the whole state has arrived, [`Holding::hold`] decides whether it counts. If the view is about to change,
//!    the state waits for the next view; then the joiner takes it over ([`Replica::take_over`]), skips kept messages
//!    that it contains, applies the rest, and holds the state from then on. Only now may it send.
//! 5. When a view ends, each member publishes which states it holds as it wedges ([`Holding::seal`]), and takes none
//!    over until the next view. The leader's proposal contains these sets, for the members that continue.
//! 6. A member that is outside the shard in the next view drops the state: enough others hold it.
//! 7. A member that wishes to leave is chosen for no shard, but remains a holder where it is needed. It is removed
//!    when members that stay hold every state that it holds, or when all members wish to leave.
//!
//! Deviation: in the paper the leader sends a joining member the state before the new view begins, so all wait for it; here
//! the view begins at once, and any member that has the state sends it while updates continue.
//!
//! **Invariants.**
//! - \[A1\] At one position all holders of a shard's state hold the same state.
//! - \[A2\] An update that was acknowledged is in every later state.
//! - \[A3\] A client's update is applied at most once, however often it is sent.
//! - \[A4\] An update that was reported as not delivered is in no state.
//! - \[V6\] A joiner's state includes all updates up to the start of its first view; the joiner applies later ones
//!   itself.
//! - \[A5\] A query that is asked in a view is answered from a state of that view or a later one.
//! - \[A6\] A member sends updates only while it holds the state, so each gets its reply here.
//! - \[A7\] A state is considered lost only if no member of the group holds it, and then by all members.
//! - \[A8\] A state is lost only if all members that held it have died or were cut off.
//! - \[A9\] A member that wishes to leave is removed only when members that stay hold its states, or when none stays.
//! - \[A12\] A shard is linearizable (Herlihy and Wing): each update, and each query that asks for the latest state, takes effect
//!   at one moment between its call and its answer.
//! - \[A11\] A client's updates are applied in the order in which it has sent them, each after all earlier ones that
//!   the client has not given up.
//! - \[A13\] When all members of a durable shard have ended and begin again, each holds the state to which all updates that were
//!   delivered before lead, sessions included: it makes that from its log ([`StateRecovery`]), which has the same messages at all.
//! - \[A14\] An earlier version of a durable shard is the state to which the messages before its position led, and
//!   stays that ([`VersionReplay`]).
//! - \[A15\] A reader that begins at an earlier position of a durable subgroup gets each message from there on once, in order
//!   ([`PositionReader`]).
//! - \[A16\] The state that a member makes from a checkpoint and the messages behind it in its log is the one that all messages
//!   make ([`StateRecovery::resume`], [`CheckpointSchedule`]).
//! - \[A17\] The updates of one thread of a member to one shard are applied in the order in which it submitted them, whether they go
//!   through this member's window or, before it holds the state, through other members ([`Outbox::submit_own`]). Of one whose outcome
//!   was reported as unknown this does not hold: it may be applied later.
//! - \[A18\] When all members of a group have ended and begin again, each member of a shard in memory holds the initial state in the view
//!   with which the group begins again, and no update of before is applied any more: sessions of before are forgotten.
//! - \[A10\] A client outside the group, idle or busy, can reach the group even after all members that it knew have
//!   been replaced one by one, if no period of [`Contacts`] passes without one of them.
//!
//! Why \[A7\] and \[A8\] hold: a member counts as a holder in a view if it held the state when it wedged in the
//! previous view, and from its wedge on it takes over nothing. The leader reads the rows of all members that continue
//! after they have wedged, and its proposal is agreed on: so the view names exactly the members that hold the state,
//! and a view without a holder is followed only by such views, since there is no member left to ask. [`place`] keeps
//! as many holders in the shard as it has first choices, if there are that many; they receive all of the view's
//! updates and stay holders until it ends. So a member drops a state only when that many others hold it.

mod checkpointing;
mod client;
mod contacts;
mod core;
mod holding;
mod message;
pub mod mutation;
mod outbox;
mod position_reader;
mod search;
mod service;
mod sessions;
mod shard_events;
mod shards;
mod transfer;
mod under_way;
mod version;

#[cfg(test)]
mod tests;

pub use checkpointing::CheckpointSchedule;
pub use client::{ClientAction, ClientSettings, Doubt, ShardClient, Task, TaskOutcome};
pub use contacts::{Contacts, EAGER, FORMER_MAX};
pub use core::{
    AppliedReply, Machine, Readiness, Replica, ReplicaSettings, ShardDelivery, ShardSnapshot, ShardView,
    SnapshotOutcome, StateRecovery, StateReply,
};
pub use holding::{HoldDecision, Holding};
pub use message::{HEADER_BYTES, ShardAnswer, ShardPosition, ShardRequest, UpdateOrigin, items};
pub use outbox::{Hindrance, Outbox, UpdateSource};
pub use position_reader::PositionReader;
pub use service::Queries;
pub use sessions::{OPEN_MAX, SessionAnswer, Sessions, SessionsError};
pub use shard_events::{ShardEvent, ShardEvents};
pub use shards::{members_of_shard, place, shard_of_key};
pub use transfer::{ArrivedState, AskForState, StateTransfer, StateTransferSettings};
pub use under_way::{UnderWay, UpdateOutcome};
pub use version::{CountedLog, LogPart, TimedPosition, VersionFault, VersionPoint, VersionReplay};
