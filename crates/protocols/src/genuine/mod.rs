//! Genuine atomic multicast: messages to several shards of a group in one order, which only the members of these shards, and
//! the sender, take part in (RamCast §2.2, §3).
//!
//! RamCast's groups are the shards of one group with views, and its rounds are the views: so there is one failure detector, one
//! agreement and one state transfer in the system. A shard is a log that its leader sequences; an acknowledgement is one
//! cumulative word per member; the agreement of [`crate::membership`] ends a view, with one count per shard as its trim. Clocks,
//! timestamps and messages that are not delivered do not cross a view.
//!
//! **State** of a member in a view, all of it in tables of the view: for each shard a window of what it has sent there; of each
//! message to its own shard the record, the timestamps that are here, and by both its place in the queue; how far the log of its
//! shard is complete here (*reach*), and how far that of each other member is, as it has acknowledged; as leader of its shard the
//! clock. Across views: which messages it has delivered (*marks*), what it has sent and does not know to be delivered, and the
//! number of its next message.
//!
//! **Step order** of one evaluation (`poll` of [`GenuineMember`]):
//! 1. *Send*: publish the records that were written, to the members of their shards \[G2\].
//! 2. *Read* all acknowledgements \[G7\].
//! 3. *Receive* records, then timestamps.
//! 4. *Sequence*, as leader: a timestamp for each record that has none, to the members of all its shards \[G3\].
//! 5. *Acknowledge* as far as the log is complete, as leader with the clock raised first \[G5\].
//! 6. *Deliver* from the front of the queue, as long as the acknowledgements suffice \[G6\].
//! 7. *Report* to each sender how many of its records are done, and free the own ones that all have reported \[G8\].
//! 8. Post all that was stored, in order.
//!
//! **What a message costs.** To `k` shards of `r` members, with `b` bytes: its sender writes `k` records of `b + 24` bytes, each of the
//! `k` leaders `k` entries of 16 bytes, which announce themselves. Everything else is words that count: for all that an evaluation does,
//! one word per shard announces the records, one acknowledges, and one per sender reports what is done. A record that is alone has its
//! announcement with it, if it is short ([`GenuineSettings::express`]). So a message that is alone is one write to each member by its
//! sender, by each leader and by each member; and the more messages an evaluation finds, the less each costs. On one host a store serves all readers; between hosts each write goes to each member of its shard. Each of the
//! `k * r` members finds a message by its sender and number: with its record, with each timestamp, and when it delivers.
//! Nothing is allocated for it: records are read in place, and what a member knows of it is in a slot that was used before.
//!
//! [`GroupCore`](crate::group::GroupCore) evaluates membership before that, and goes from view to view with its shards and its
//! subgroups: when the next view is decided, the shards deliver what the trims hold, in the order of final timestamps; all else is
//! sent again by its sender, or dropped with it.
//!
//! **A majority** ([`QuorumRule::Majority`]). A message is delivered when more than half of each of its shards have acknowledged it, the
//! leader among them. So a member may deliver what another one of its shard lacks; that one cannot deliver anything behind it, since a
//! timestamp that is here holds back what is greater \[G6\]. Two more things are kept of it in the view: of what this member has
//! acknowledged and others of its shard have not, the timestamps and where the record is (`kept.rs`); and once the view ends, one
//! word per member, which says what it counts (`fetch.rs`).
//!
//! Steps at the end of a view, beyond those of all groups: (1) Wedge: publish the count; from now on only read on, for the own use. (2) The
//! leader of the view proposes as trim of each shard the `(Q - s)`-th highest count, where `Q` members have what any member has
//! delivered and `s` are in the cut: that many of the others have everything up to there, and what was delivered is not beyond it. With
//! `s >= Q` the last one that had it may be gone, and all stop \[G10\]. (3) A member whose log ends before the trim fetches the rest from the
//! first member of its shard that it hears and that counts as much, and another one if that fails; then it echoes, or takes over a
//! decision \[G11\]. Records are still where their sender wrote them, at all members: a place is used again when all members of
//! the shard have delivered what was there \[G8\]. (4) After the installation a member continues to send its log of the view before until
//! all are in the present one.
//!
//! What a follower that stalls delays: nothing, until a sender has `window` messages under way that it has not delivered, since
//! their places are not free \[G8\]; then that sender waits, until the follower continues or is suspected and removed. A removed one comes
//! back as any joiner. A joiner counts as a member of its shard from its first view on, with its state or without: it acknowledges
//! \[G14\], keeps and fetches like the others, and what it fetches is kept for the state. All members of a shard that are in the next view have
//! delivered the same when it begins, with either rule: so marks, replies \[G19\] and announcements \[G17\] are not
//! concerned.
//!
//! **Joiners.** A leader that finds a record marked writes to the members of all its shards, in its log, that the message was delivered
//! in an earlier view, and all of them drop it \[G17\]. If shards have states, a joiner takes over a state with its marks, and
//! delivers and sequences from then on \[G14\]; until then it knows by these announcements what is done, so that it holds no sender back.
//! Without states there is nothing to take over, so the marks of leaders decide alone:
//! another member does nothing with a record before a leader has decided. The leader of a shard is its oldest member, so it has
//! delivered what any other one has delivered.
//!
//! **Objects.** If shards have states, these may be the parts of one replicated object. All its updates are multicast to the shards
//! that they concern, those of one shard too, so that there is one order: a [`ShardedUpdate`] has parts for shards, and each shard
//! applies its own at the one position of the update. The members of a shard keep the replies ([`UpdateReplies`]), with the state, until the caller has
//! those of all its shards ([`ReplyGathering`]); by them an update that is sent again counts once.
//!
//! **Invariants.** \[G1\] to \[G19\] are stated in docs/invariants.md. Why the order is right: (a) a member that delivers `m` counts the
//! acknowledgement of its own shard's leader, which that leader has posted after all timestamps that it had given, and after
//! it had raised its clock to the final timestamp of `m`: so no smaller timestamp can come. (b) Whatever any member has delivered
//! is acknowledged by enough members of each destination shard that every trim holds it: by `Q`, of which at least `Q - s` are not in the
//! cut. (c) A member within the trim, by itself or by what it has fetched, has the record and all timestamps, so the same final
//! timestamp. (d) If one that died had delivered `m` and not `n` with a smaller final
//! timestamp, where `n` is in, it would have had the timestamp of `n` by (a), and waited for it.
//!
//! `Deviation:` (§3.5) RamCast's groups elect leaders by themselves and carry timestamps from round to round; here a view ends for
//! all shards at once, and none of that is needed. `Deviation:` (§3.4) the leader of each shard writes its timestamp to the
//! members of all destination shards, and a member acknowledges only what has all its timestamps: as printed, members may deliver
//! in different orders. All are collected in docs/papers/ramcast.md.

mod clock;
mod core;
mod failure;
mod fetch;
mod figures;
mod gathering;
mod inbox;
mod kept;
mod log;
mod marks;
pub mod mutation;
mod order;
mod outbox;
mod pending;
mod placement;
mod record;
mod relay;
mod replies;
mod settings;
mod shard;
mod table;
mod update;
mod wedge;

#[cfg(test)]
mod tests;

pub use core::GenuineMember;
pub use failure::GenuineFailure;
pub use figures::ShardProgress;
pub use gathering::{AskForReplies, ReplyGathering, ShardedOutcome};
pub use log::CorruptTimestamp;
pub use marks::DeliveredMarks;
pub use outbox::GenuineSendError;
pub use placement::{SHARDS_MAX, ShardPlacement};
pub use record::{GenuineMessage, GenuinePosition, Timestamp};
pub use replies::{PartReplies, ReplyState, UpdateReplies};
pub use settings::{GenuineSettings, QuorumRule};
pub use table::is_genuine_mirror;
pub use update::{PART_HEADER_BYTES, PartKind, ShardedUpdate, UPDATE_HEADER_BYTES, UpdatePart};
pub use wedge::GenuineCarryover;
