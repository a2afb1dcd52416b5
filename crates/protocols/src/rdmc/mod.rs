//! RDMC: bulk multicast of large objects (RDMC §2–3, app. A; Derecho §3.1).
//!
//! A *group* is a list of members, the *root* first; only the root sends. Objects of a group have numbers and are
//! received in their order. An object is divided into blocks of one size (the last may be shorter), which are sent by
//! one-sided writes, directly from the memory of one application into that of another, according to a [`schedule`].
//! One [`Rdmc`] in each process drives all groups; they share one connection to each peer.
//!
//! **State.** A *link* is the connection to a peer, with credits for its receives. A *group* has its neighbours: the
//! members with which it ever exchanges blocks. A *multicast* is one object at this member: its memory, the blocks
//! that it holds, for each target what the target is ready for, and the next transfer of the schedule. An *offer* is
//! memory for an object that has not been announced; a group has at most one pending offer.
//!
//! **The life of an object.** The root announces number and size to its targets in the schedule. A member that
//! receives an announcement asks the application for memory (an upcall) and announces the object to its own targets.
//! With memory, it answers each announcement by *ready for blocks*: a grant over the object's memory, and the blocks
//! that it already holds. Then blocks flow: each is one write, whose immediate value names the object (by the slot
//! that the receiver chose) and the block. A member that has offered memory in advance, in which the object fits, is
//! ready for its first block without an answer: the block follows the announcement at once (`offer.rs`).
//!
//! **Step order** of one evaluation ([`squall_fabric::Core::poll`]), after all events have been handled:
//! 1. *Open*: report an offer, or end it; get memory for the next objects, announce them, report *ready*.
//! 2. *Post blocks*: multicasts take turns, one block each; none has more than its share in flight.
//! 3. *Finish*: objects that are complete are handed over, in order; those that have been sent to all targets are
//!    released.
//! 4. *Report*: a wedged group whose memory is no longer accessed is reported, with the blocks that are held.
//! 5. Send the queued control messages and report new receives to peers.
//!
//! **Invariants.**
//! - \[B1\]–\[B6\] of [`schedule`]; at the receiver every block arrives exactly once, and an unexpected block is a
//!   protocol violation that ends the group ([`FailureCause::Breached`]).
//! - Every write with immediate and every send is covered by a receive of the peer: `used <= allowed` \[F7\].
//!   Receives are posted again at once, whatever they received, so credits always return.
//! - A block is posted only when it is held and its target is ready; the blocks of an object are posted in the order
//!   of the schedule's steps, and objects of a group one after the other.
//! - `finished <= received`: an object is released when it is complete here, everything is posted *and placed*, and
//!   every source has announced it and every target has answered; until then the fabric may read its memory \[F5\].
//! - \[B9\] An offer is for one number of one group, and neither is ever used again. The object with this number is
//!   received into its memory if it fits, else the offer is void; source and target decide this alike, whichever of
//!   offer and announcement arrives first. The application gets the memory back when no peer will write there any
//!   more: when the object is released, the offer is void, or the failure is reported.
//! - At most [`OBJECTS_AHEAD`] objects of a group are open at a member, so neighbours differ by a bounded number.
//! - \[B7\] When a member is lost, its neighbours stop and notify their neighbours, and so on: every member learns of
//!   it, because a group without its dead members falls into parts each of which has a neighbour of a dead one. A
//!   member reports the failure when no write of the group can arrive any more: every neighbour has reported that it
//!   has stopped, on the same connection after its last block, or its connection broke and its grants are revoked
//!   \[F9\]; the connection to a neighbour that does not answer is ended. So what a member reports as held is exact,
//!   and its memory is no longer accessed. A new group of the survivors takes over what they hold ([`Rdmc::resume`]):
//!   it has a schedule of its own, and blocks that a target holds are skipped.
//!
//! `Deviation:` (RDMC §3.2) size and number are sent in an announcement, not in the immediate value of the first
//! block: 32 bits cannot hold the size of a large object, the first block would have to arrive elsewhere and be
//! copied, and every source needs the target's grant before its first write anyway. The price is one round trip for
//! each object, not for each level of the schedule, and none where memory was offered in advance.
//! `Deviation:` (§3) blocks are one-sided writes with immediate, not two-sided sends, so a slow receiver processor
//! does not hold up its sources; *ready for block* is a grant, once for each object, and credits for receives.
//! `Deviation:` (§2, property 5) after a failure the survivors resume \[B7\]; the paper leaves it to the application
//! to start again.

mod application;
mod control;
mod core;
mod failure;
mod group;
mod held;
mod incoming;
mod link;
pub mod local;
mod message;
mod multicast;
pub mod mutation;
mod offer;
mod outgoing;
pub mod schedule;
mod settings;
mod slots;

pub use application::{
    FailureCause, ObjectAnswer, ObjectMemory, RdmcApplication, RdmcFailure, RdmcObject, UnfinishedObject,
};
pub use core::{Rdmc, RdmcCounters, RdmcCreateError, RdmcSendError};
pub use held::HeldBlocks;
pub use message::{BlockSummary, MalformedMessage, RdmcMessage};
pub use settings::{BLOCKS_MAX, GroupId, OBJECTS_AHEAD, RECEIVES, RdmcSettings, RdmcSettingsError};
pub use slots::ObjectSlot;
