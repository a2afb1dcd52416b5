//! The interface between a group and its application (Derecho §2).

use std::fmt;
use std::ops::DerefMut;

use super::{Placement, SubgroupId, Succession, Unplaced};
use crate::genuine::{GenuineFailure, GenuineMessage};
use crate::membership::{StopReason, View};
use crate::multicast::{Deliver, MessageLog, Pull, SubgroupFailure};
use crate::restart::Register;

/// How a subgroup's messages are taken.
#[derive(Debug)]
pub enum SubgroupOutlet<D> {
    /// By an upcall on the polling thread.
    Upcall(D),
    /// By the holder of the view's [`Pull`].
    Pull,
}

/// The application's side of a group, which the polling thread calls. All methods should be brief.
pub trait GroupApplication {
    /// The type that takes messages by upcall.
    type Deliver: Deliver;

    /// Returns how messages are taken of a subgroup of which this node has become a member.
    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Self::Deliver>;

    /// Notes that a view is installed: all messages from now on are delivered in it, at all its members.
    fn install(&mut self, view: &View, placements: &[Placement], unplaced: &[Unplaced]);

    /// Returns the succession of a subgroup in which this node sends, from which the sending end of the current view
    /// is taken ([`Succession::take_writer`]). The application owns it, one for each subgroup and empty at first,
    /// since its threads use it as well as the polling thread.
    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession>;

    /// Returns the succession as [`GroupApplication::succession`] does, without waiting: `None` while another thread
    /// has it, which also advances it.
    fn try_succession(&mut self, id: SubgroupId) -> Option<impl DerefMut<Target = Succession>> {
        Some(self.succession(id))
    }

    /// Takes the receiving end of a subgroup for the current view. The previous one has ended: its remaining messages
    /// should be taken first.
    fn take_pull(&mut self, id: SubgroupId, pull: Pull);

    /// Takes a message to the shard that this node is in. If shards have states, a node that joined is given what came after its
    /// first view began only when it has the state ([`GroupCore::take_shard_state`](super::GroupCore::take_shard_state)).
    ///
    /// # Panics
    /// By default: an application without shards is sent no message of this kind.
    fn deliver_genuine(&mut self, message: GenuineMessage<'_>) {
        panic!("there are no shards, and message {} of {} came", message.number, message.sender)
    }

    /// Returns how many messages to its shard the application takes now: until it takes more, their senders wait. At the end of a view
    /// it is given what that view still delivers, whatever it returns here.
    fn genuine_space(&self) -> usize {
        usize::MAX
    }

    /// Returns the log of a durable subgroup for the view that begins, in which this node is a member.
    ///
    /// # Panics
    /// By default: an application without a disk has no durable subgroups.
    fn log(&mut self, id: SubgroupId, _view: u64) -> Box<dyn MessageLog + Send> {
        panic!("{id} is durable, and there is no log")
    }

    /// Returns the register, as it is on the disk, in a group with durable subgroups
    /// ([`GroupSettings::durable`](super::GroupSettings::durable)): with an empty view if this node begins or joins the group. It is
    /// asked for once.
    fn register(&mut self) -> Option<Register> {
        None
    }

    /// Begins to replace the register on the disk as a whole: after a crash either the old or the new one is found there. There is
    /// one write at a time.
    ///
    /// # Panics
    /// By default: an application without a register has nothing to write.
    fn write_register(&mut self, register: &Register) {
        panic!("there is no register, and {register:?} is to be written")
    }

    /// Returns whether the write that was begun last has come to the disk; once for each write. The node should be polled soon
    /// after that.
    fn take_register_written(&mut self) -> bool {
        false
    }

    /// Returns whether the log has everything of earlier views that counts in the subgroups that this node is in, and that is on the
    /// disk; once it has, it does until this node leaves the group.
    fn has_whole_log(&self) -> bool {
        false
    }

    /// Returns the view before which the log needs nothing any more: checkpoints on the disk cover everything that it has of earlier
    /// ones \[T19\].
    fn log_base(&self) -> u64 {
        0
    }

    /// Returns whether this node may hold more states than when this was last taken.
    fn has_state_news(&self) -> bool {
        false
    }

    /// Returns what [`GroupApplication::has_state_news`] does, and resets it until something changes.
    fn take_state_news(&mut self) -> bool {
        false
    }

    /// Returns whether this node holds the state of a subgroup: it can provide the state to others, with all updates
    /// that are delivered here. Once it holds the state, it does so until it leaves the subgroup.
    fn holds(&self, _id: SubgroupId) -> bool {
        false
    }

    /// Ends the view; returns whether this node holds the state of a subgroup. From now on until the next view is
    /// installed, no further state counts as held \[A8\].
    fn seal(&mut self, _id: SubgroupId) -> bool {
        false
    }

    /// Notes that this node is no longer a member of a subgroup, and returns the subgroup's upcall to the
    /// application, since the node may become a member again.
    fn leave_subgroup(&mut self, id: SubgroupId, deliver: Option<Self::Deliver>);
}

/// Why a group has ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd {
    /// Membership has ended it.
    Stopped(StopReason),
    /// A subgroup cannot continue.
    Failed(SubgroupId, SubgroupFailure),
    /// The shards cannot continue.
    ShardsFailed(GenuineFailure),
    /// All members that this node had asked to join are gone.
    NobodyLeft,
}

impl fmt::Display for GroupEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(stop) => stop.fmt(f),
            Self::Failed(id, failure) => write!(f, "{id}: {failure}"),
            Self::ShardsFailed(failure) => failure.fmt(f),
            Self::NobodyLeft => f.write_str("the members that were to admit this one are gone: join again"),
        }
    }
}

impl std::error::Error for GroupEnd {}
