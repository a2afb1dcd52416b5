//! Atomic multicast of small messages (Derecho §3.4, Spindle §2.3–3.5).
//!
//! A subgroup is a fixed list of members within one view; some of them are senders. Each member has a row, which
//! contains what it has announced, received and delivered, and its window of messages ([`squall_fabric::window`]).
//!
//! **Order.** Message or null `i` of the sender with rank `r` among `n` senders has sequence `i * n + r`. All counts
//! are numbers of sequences (or indexes): "received = s" means that this member has sequences `0..s`.
//!
//! **Step order** of one evaluation ([`Subgroup`]):
//! 1. *Send*: give committed messages their indexes, push their words, announce; a single short message is sent
//!    together with its announcement (`Express`).
//! 2. *Receive*: load each sender's announcement once; if this member is a sender and has to fill rounds that messages of others
//!    have begun, or the one after them if it is idle, raise its announcement by nulls (`nulls`); store `received`.
//! 3. *Deliver*: everything below the least `received` of all members is stable; deliver it in order, without the
//!    nulls; store `delivered`, and publish what the others do not know of both counts (`acknowledgement`).
//! 4. *Free*: return the words of messages below the least `delivered` of all members to the writer.
//! 5. Post all that was stored, in the order in which it was stored; no lock is held (Spindle §3.4).
//!
//! Each of 1–3 processes everything that is available and never waits (opportunistic batching, Spindle §3.2);
//! [`Batching`] turns that off stage by stage, for the figures. Only a long batch is sent in *pieces* of
//! [`PIECE_BYTES`], one in each evaluation, if a device carries what is pushed (RDMA), so that receipts, deliveries and
//! acknowledgements come in between.
//!
//! **Links.** If all members send at once, two things decide whether their links are busy all the time:
//! - *The order of readers.* A push is one write per reader, one after the other. If all members began with the same
//!   reader, all of them would write to that reader at a time, through one link, while the links of the others are idle:
//!   the first reader has everything when the last one begins to receive, so each window takes twice the time of its
//!   bytes. So the readers of a row begin with the next member (`sst`).
//! - *Pieces.* A window that is one push is acknowledged and freed as a whole. With pieces, its first messages can be
//!   acknowledged and freed while the last ones travel. In the simulator that matters with small windows; how much of it
//!   is due to acknowledgements that wait behind data is not known (docs/results/spindle-sim.md). There are none in shared
//!   memory nor on TCP, where no gain is known (`send`).
//!
//! What a sender has under way is bounded by its window alone. A bound on what is posted and not carried yet was not tried:
//! no fabric reports that for pushes.
//!
//! **The hot path** of small messages is the walk of a batch (`walk`), which costs a few nanoseconds for each message, and the evaluation,
//! which costs some two hundred for each batch. A message is taken by one comparison of its header with the expected one
//! ([`WindowReader::take_sure`](squall_fabric::window::WindowReader::take_sure)), and the upcall has one place, so that it is inlined into the
//! loop: use [`MessageBatch::for_each`] in [`Deliver::deliver_batch`]. An evaluation lets the lines of the others that it reads arrive
//! together, and the first lines of what was announced while it computes what is stable.
//!
//! **Invariants.**
//! - \[O1\] the same order everywhere, \[O2\] FIFO per sender, \[O3\] no gap, no duplicate: sequences are taken one by
//!   one, and each names one index of one sender.
//! - \[O4\] delivered means received by all members: `delivered <= min received` in mode `Atomic`.
//! - \[O5\] a record is reused only when *all* members have delivered it and no lease is held.
//! - \[O6\] a record carries its index; an unexpected index stops the subgroup ([`SubgroupFailure::Corrupt`]). A
//!   record that announces itself counts when all of it has arrived.
//! - \[N1\] a null never takes the place of a reserved message; \[N2\] nulls are counts, so no ring wraps over them;
//!   \[N3\] one active sender among many runs at its own speed; \[N4\] without messages only finitely many nulls are
//!   sent; \[N5\] the whole gap is filled at once; \[N6\] a message of size 0 is a message; \[N7\] nulls in flight at a
//!   wedge are part of the announced count, like messages.
//!
//! In mode `Durable` a member acknowledges what is on its disk (`durable`, \[T1\] \[T2\] \[T4\]).
//!
//! Messages longer than `message_max` have their bytes outside the window and count as received when these are
//! complete (`bodies`, \[L1\] \[L2\]).
//!
//! `Deviation:` (Spindle §3.3) a null takes no slot: the sender raises its announcement past it. (Derecho §3.4)
//! counts begin at 0, not at −1. Both are collected in docs/papers/.

mod acknowledgement;
mod bodies;
mod consumer;
mod counters;
mod durable;
mod failure;
mod freeing;
mod latency;
mod nulls;
mod order;
mod pull;
mod row;
mod send;
mod settings;
mod slow;
mod standing;
mod subgroup;
mod walk;
mod wedge;

pub use bodies::{BodyColumns, OutgoingBody};
pub use consumer::{Consumer, Deliver, Lanes, Message, MessageBatch};
pub use counters::{MulticastCounters, WindowTimes};
pub use durable::MessageLog;
pub use failure::{CorruptMemory, SubgroupFailure};
pub use latency::MessageTrack;
pub use order::{indexes_below, sequences_complete};
pub use pull::{DeliveryTally, NoUpcall, Pull, PullWatch};
pub use row::MulticastRow;
pub use settings::{
    BODIES_MAX, Batching, Carrier, DeliveryMode, LargeMessages, PIECE_BYTES, SubgroupSettings,
    SubgroupSettingsError,
};
pub use slow::{HeldUp, MessageStage, SlowestMember};
pub use subgroup::Subgroup;
pub use wedge::{SubgroupCarryover, ViewStart};
