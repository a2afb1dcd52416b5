//! What the application gives to a group and gets from it (Derecho §2).

use std::fmt;
use std::ops::DerefMut;

use super::{Placement, SubgroupId, Succession, Unplaced};
use crate::membership::{StopReason, View};
use crate::multicast::{Deliver, Pull, SubgroupFailure};

/// How a subgroup's messages are taken.
#[derive(Debug)]
pub enum SubgroupOutlet<D> {
    /// By an upcall on the polling thread.
    Upcall(D),
    /// By whoever holds the [`Pull`] of the view.
    Pull,
}

/// The application side of a group, as the polling thread calls it. Everything here should be brief.
pub trait GroupApplication {
    /// Takes messages by upcall.
    type Deliver: Deliver;

    /// This node has become a member of a subgroup: how does it take its messages?
    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Self::Deliver>;

    /// A view is installed: all that is delivered from now on is delivered in it, at all its members.
    fn install(&mut self, view: &View, placements: &[Placement], unplaced: &[Unplaced]);

    /// The succession of a subgroup in which this node sends, where the sending end of the present view is taken
    /// ([`Succession::take_writer`]). It is the application's, one for each subgroup and empty at first, since its threads
    /// use it as well as the one that polls.
    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession>;

    /// As [`GroupApplication::succession`], without waiting: `None` while another thread has it, which advances it too.
    fn try_succession(&mut self, id: SubgroupId) -> Option<impl DerefMut<Target = Succession>> {
        Some(self.succession(id))
    }

    /// The receiving end of a subgroup for the present view. The one before has ended: take the rest from it first.
    fn take_pull(&mut self, id: SubgroupId, pull: Pull);

    /// Whether there may be more states that this node holds than when this was last taken.
    fn has_state_news(&self) -> bool {
        false
    }

    /// As [`GroupApplication::has_state_news`], and from now on there are none until something changes.
    fn take_state_news(&mut self) -> bool {
        false
    }

    /// Whether this node holds the state of a subgroup: it can give it to others, up to all that is delivered here. Once
    /// it does, it does so until it leaves the subgroup.
    fn holds(&self, _id: SubgroupId) -> bool {
        false
    }

    /// The view ends: whether this node holds the state of a subgroup. From now on it takes none to be held until the next
    /// view is installed \[A8\].
    fn seal(&mut self, _id: SubgroupId) -> bool {
        false
    }

    /// This node is no longer a member of a subgroup, whose upcall it gets back: it may come into the subgroup again.
    fn leave_subgroup(&mut self, id: SubgroupId, deliver: Option<Self::Deliver>);
}

/// Why a group has ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd {
    /// Membership has ended it.
    Stopped(StopReason),
    /// A subgroup cannot go on.
    Failed(SubgroupId, SubgroupFailure),
    /// All members that this node had asked to join are gone.
    NobodyLeft,
}

impl fmt::Display for GroupEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(stop) => stop.fmt(f),
            Self::Failed(id, failure) => write!(f, "{id}: {failure}"),
            Self::NobodyLeft => f.write_str("the members that were to let this one in are gone: join again"),
        }
    }
}

impl std::error::Error for GroupEnd {}
