//! The group: membership and its subgroups, from view to view (Derecho §2, §3.4).
//!
//! **State.** Either this node waits for its first view, or it is in a view, with one
//! [`Subgroup`](crate::multicast::Subgroup) for each subgroup that it belongs to, or it has stopped. In addition, for
//! each subgroup in which it sends, it has its *succession*: the messages that it has sent or committed in earlier
//! views and that were not delivered there.
//!
//! **Step order** of one evaluation (`poll` of [`GroupCore`]):
//! 1. Membership ([`crate::membership`]). It freezes and wedges subgroups when it must.
//! 2. If the next view is decided: each subgroup delivers its trim and ends; the application is notified of the view;
//!    the subgroups of the next view begin with windows of their own; joiners are notified of their first view.
//! 3. Successions: messages of earlier views move into the current window, whose
//!    [`WindowWriter`](squall_fabric::window::WindowWriter) the application takes, positioned after them
//!    ([`Succession`]).
//! 4. Subgroups ([`crate::multicast`]), then the bodies of large messages between members (`relays`), then the shards of genuine
//!    multicast ([`crate::genuine`]).
//!
//! Step 1 includes a check for consumers that hold up others ([`ConsumerStandstill`]).
//!
//! Step 1 is skipped in most evaluations, so that a view costs almost nothing until it ends: while messages flow it
//! is taken in one of 64 evaluations, and in one of 16 that find nothing to do. A node that finds nothing to do reads
//! the members' heartbeats each time, one word each, and a busy node does so in one of 16 evaluations; step 1 is
//! taken if a heartbeat has changed. Events of the fabric and calls of the application make it due at once. So a
//! deadline that has passed is noticed within 64 evaluations.
//!
//! **Invariants.** \[V7\] a message is delivered once, in the view in which it was stable, or in a later one if its
//! sender continues; the messages of one sender keep their order across views. Windows belong to a view: after its
//! wedge no word of them is written again, except for a message that was being built. The placement of subgroups is a
//! function of the view alone ([`SubgroupLayout`]).
//!
//! **Shards.** A group may have shards beside its subgroups, which [`SubgroupLayout::shards`] places. All of them are one
//! [`GenuineMember`](crate::genuine::GenuineMember) in each view (`shards.rs`). They share membership with the subgroups: a shard has
//! one count in the rows, behind those of the subgroups, and one trim in the decision \[G10\] \[G11\]. At the end of a view the
//! subgroups deliver their trims first, then the shards theirs. A node that stands by is silent in its shard, too, so nothing to
//! that shard is delivered before it takes part \[J8\].
//!
//! **Durable subgroups.** Votes and views come to the disk before they count (`register.rs`): a node does nothing in a view that is
//! not on its disk but show that it lives \[T8\]. What is on the disks is what [`crate::restart`] begins with.

mod active;
mod change;
mod core;
mod figures;
mod flight;
mod layout;
mod register;
mod relays;
mod rota;
mod shards;
mod slow;
mod stage;
mod succession;
mod timeline;
mod tracks;

#[cfg(test)]
mod tests;

pub use core::{GroupCore, GroupSettings};
pub use figures::SAMPLE_PERIOD;
pub use flight::{EVENTS_KEPT, FlightEvent, FlightRecorder, HELD_UP_FROM, STALL_AFTER};
pub use layout::{Placement, SubgroupId, SubgroupLayout, Unplaced, first_holders};
pub use register::durable_view;
pub use slow::{ConsumerStandstill, HoldUp, SlowCause};
pub use stage::{GroupApplication, GroupEnd, SubgroupOutlet};
pub use succession::Succession;
pub use timeline::{CHANGES_KEPT, ViewChange};
pub use tracks::{MessageTracks, TRACKS_KEPT};

impl<A: GroupApplication> std::fmt::Debug for GroupCore<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let view = self.membership().map(crate::membership::Membership::view);
        f.debug_struct("Group")
            .field("node", &self.passage.node())
            .field("view", &view)
            .finish_non_exhaustive()
    }
}
