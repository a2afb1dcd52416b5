//! Replicated objects: one member's part in one shard (Derecho app. A, §3.3–3.4).
//!
//! A shard's members apply the same updates in the order of its subgroup, so their states are equal. This core decides
//! what is applied, what becomes of each own update, and how a newcomer gets the state; it moves no bytes itself.
//!
//! **State** of a [`Replica`]: the present view of the shard; the *standing*: absent, waiting for the state, holding it,
//! or knowing that it is lost; up to which [`Position`] messages have been seen and applied; the clients' sessions,
//! which are part of the state; a state that was kept when this member left the shard. Beside it, at the sending side,
//! [`UnderWay`]: own updates whose outcome is open.
//!
//! **Step order** at each member, by whoever drives it:
//! 1. All messages of a view in order ([`Replica::deliver`]), then the next view ([`Replica::begin_view`]), which
//!    every member of the group is told, also those outside the shard. In view 0 a shard begins empty; later, who comes
//!    in has to be given the state.
//! 2. A newcomer keeps what is delivered, so that senders never wait for it, and asks one member after the other
//!    ([`Replica::ask`]) for a state at or behind the start of its first view. If a giver dies, the next one is asked.
//!    It pauses between two questions, and longer each time: while it asks it does not refuse other newcomers, and some
//!    that only ever asked one another would not find out that the state is lost.
//! 3. A giver that holds such a state gives it with its position and goes on ([`Replica::give`]); one that has not come
//!    so far says so when it has; one that has nothing refuses.
//! 4. The newcomer takes the state ([`Replica::take_over`]), skips what is in it, applies the rest, and holds it from
//!    then on. Only now it may send.
//! 5. Who leaves a shard keeps the state as it was at the end of its last view there, until all members of the shard
//!    hold it ([`Replica::handle_settled`]).
//!
//! Deviation: in the paper the leader sends a joining member the state before the new view begins, so all wait for it; here
//! the view begins at once, and any member that has the state gives it while updates go on.
//!
//! **Invariants.**
//! - \[A1\] At one position all who hold a shard's state hold the same.
//! - \[A2\] An update that was acknowledged is in every later state.
//! - \[A3\] A client's update is applied at most once, however often it is sent.
//! - \[A4\] What was told to be not delivered is in no state.
//! - \[V6\] A newcomer's state includes all up to the start of its first view; what follows it applies itself.
//! - \[A5\] What is asked in a view is answered from a state of that view or a later one.
//! - \[A6\] A member sends updates only while it holds the state, so each gets its reply here.
//! - \[A7\] A state is taken for lost only if no member of the group has it.
//!
//! Why \[A7\] holds: a newcomer gives up when all others of its view have refused, each while in that view. Within a
//! view nobody who has the state lets go of it while a member of the shard waits for it. So a state that moves between
//! two questions is still where it was; or it is of use to others only ([`Replica::give`] says whose answer is then no
//! refusal). Who dies has not refused, and the next view starts the questions anew.

mod core;
mod message;
pub mod mutation;
mod search;
mod sessions;
mod shards;
mod turns;
mod under_way;

#[cfg(test)]
mod tests;

pub use core::{Answer, Delivery, Gift, Give, Machine, Readiness, Replica, Settings, ShardView, TakeOver};
pub use message::{HEADER_BYTES, Origin, Position};
pub use sessions::{SessionAnswer, SessionsError};
pub use shards::{members_of_shard, shard_of_key};
pub use turns::{Turn, Turns};
pub use under_way::{Outcome, UnderWay};
