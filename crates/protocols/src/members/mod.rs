//! The members of a view, sets of their ranks, and which of them to part with so that the rest hear each other (Derecho §2).

mod cover;
mod rank_set;

pub(crate) use cover::{Cover, least_cover};
pub use rank_set::RankSet;

use squall_fabric::NodeId;

/// The largest number of members of a group.
pub const MEMBERS_MAX: usize = 1024;

/// A member of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The process; another incarnation of it has another node.
    pub node: NodeId,
    /// The number by which the application knows the member; layouts may use it.
    pub tag: u64,
}
