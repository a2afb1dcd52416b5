//! The interface between RDMC and its application: memory, completion, failure (RDMC §2, §3, fig. 1 and 2).

use std::fmt;

use squall_fabric::{Fabric, NodeId, Region};

use super::{GroupId, HeldBlocks};

/// An object of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RdmcObject {
    /// The group.
    pub group: GroupId,
    /// Its number in the group.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl RdmcObject {
    /// Returns how many words of memory it takes. The last word may extend beyond the object; the root's bytes there
    /// are sent, too.
    #[must_use]
    pub fn words(&self) -> usize {
        usize::try_from(self.bytes.div_ceil(8)).expect("an object fits the address space")
    }
}

/// The memory of an object: registered memory of the application, from a word on.
#[derive(Clone, Debug)]
pub struct ObjectMemory {
    /// The region.
    pub region: Region,
    /// The first word.
    pub first: usize,
}

impl ObjectMemory {
    /// Returns whether `words` words fit into the region.
    pub(super) fn holds(&self, words: usize) -> bool {
        self.first.checked_add(words).is_some_and(|end| end <= self.region.words())
    }
}

/// The application's answer when an object is announced.
#[derive(Clone, Debug)]
pub enum ObjectAnswer {
    /// The object is to be received into this memory.
    Memory(ObjectMemory),
    /// Not yet: the application will call [`super::Rdmc::supply`].
    Later,
    /// There is no memory: the group fails everywhere, with [`FailureCause::Refused`].
    Refuse,
}

/// The application's side, which one member's RDMC calls on the thread that polls.
pub trait RdmcApplication<F: Fabric> {
    /// Returns the memory for an object that was announced (the paper's first upcall). It is called once for each
    /// object, in order; not at the root, and not for an object that fits into memory that was offered
    /// ([`super::Rdmc::offer`]). It is called for an empty object, too.
    fn memory(&mut self, fabric: &mut F, object: &RdmcObject) -> ObjectAnswer;

    /// Notes that a block of the object has arrived in its memory, for applications that track the blocks that they
    /// hold. It is called between evaluations, when events are handled.
    fn on_block(&mut self, _object: &RdmcObject, _block: u64) {}

    /// Notes that the object is complete and may be read. Others may still read it from here: it must not be changed
    /// before [`RdmcApplication::on_released`]. It is not called at the root.
    fn on_received(&mut self, object: &RdmcObject, memory: &ObjectMemory);

    /// Notes that this member has nothing more to do with the object: its memory belongs to the application again. At
    /// the root this is the end of sending; it does not imply that all members have received the object.
    fn on_released(&mut self, object: &RdmcObject, memory: ObjectMemory);

    /// Notes that the group has failed. Nothing changes its memory any more; the application destroys the group, and
    /// may resume it as another one.
    fn on_failed(&mut self, failure: RdmcFailure);
}

/// A failed group.
#[derive(Clone, Debug)]
pub struct RdmcFailure {
    /// The group.
    pub group: GroupId,
    /// Why.
    pub cause: FailureCause,
    /// The objects that were not released here, by number, including one in memory that was offered. What follows
    /// them in the group is not known here.
    pub unfinished: Vec<UnfinishedObject>,
}

/// An object that a failed group leaves behind, with the blocks that this member has.
#[derive(Clone, Debug)]
pub struct UnfinishedObject {
    /// The object.
    pub object: RdmcObject,
    /// Its memory; `None` if the application had not provided any.
    pub memory: Option<ObjectMemory>,
    /// Exactly the blocks that the memory has.
    pub held: HeldBlocks,
}

/// Why a group has failed, as far as this member knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// A connection to this member broke: it died, or cannot be reached by a neighbour.
    Lost(NodeId),
    /// This member has no memory for an object.
    Refused(NodeId),
    /// This member has other settings or another list of members.
    Disagreed(NodeId),
    /// This member has violated the protocol.
    Breached(NodeId),
    /// This member has destroyed the group.
    Left(NodeId),
    /// The application of this member has stopped the group ([`super::Rdmc::wedge`]).
    Wedged(NodeId),
}

impl FailureCause {
    /// Returns the member that is the cause.
    #[must_use]
    pub const fn member(self) -> NodeId {
        match self {
            Self::Lost(member)
            | Self::Refused(member)
            | Self::Disagreed(member)
            | Self::Breached(member)
            | Self::Left(member)
            | Self::Wedged(member) => member,
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let member = self.member();
        match self {
            Self::Lost(_) => write!(f, "{member} is lost: resume with the survivors, or start again"),
            Self::Refused(_) => {
                write!(f, "{member} has no memory for an object: resume without it, or free memory there")
            }
            Self::Disagreed(_) => {
                write!(
                    f,
                    "{member} has other settings: create the group with the same settings at all members"
                )
            }
            Self::Breached(_) => {
                write!(f, "{member} has violated the protocol: run the same release at all members")
            }
            Self::Left(_) => write!(f, "{member} has destroyed the group"),
            Self::Wedged(_) => write!(f, "the application of {member} has stopped the group"),
        }
    }
}
