//! What RDMC asks of its application and tells it: memory, completion, failure (RDMC §2, §3, fig. 1 and 2).

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
    /// Its size.
    pub bytes: u64,
}

impl RdmcObject {
    /// How many words of memory it takes. The last word may be wider than the object; what lies there at the
    /// root, beyond the object, arrives too.
    #[must_use]
    pub fn words(&self) -> usize {
        usize::try_from(self.bytes.div_ceil(8)).expect("an object fits the address space")
    }
}

/// Where an object lies: registered memory of the application, from a word on.
#[derive(Clone, Debug)]
pub struct ObjectMemory {
    /// The region.
    pub region: Region,
    /// The first word.
    pub first: usize,
}

impl ObjectMemory {
    /// Whether `words` words lie inside the region.
    pub(super) fn holds(&self, words: usize) -> bool {
        self.first.checked_add(words).is_some_and(|end| end <= self.region.words())
    }
}

/// What the application answers when an object comes.
#[derive(Clone, Debug)]
pub enum ObjectAnswer {
    /// Here it shall go.
    Memory(ObjectMemory),
    /// Not yet: the application will call [`super::Rdmc::supply`].
    Later,
    /// There is no memory: the group fails everywhere, with [`FailureCause::Refused`].
    Refuse,
}

/// The application, as one member's RDMC calls it, on the thread that polls.
pub trait RdmcApplication<F: Fabric> {
    /// An object comes: where shall it go? (The paper's first upcall.) Asked once for each object, in order; not at
    /// the root, and not where it fits into memory that was offered ([`super::Rdmc::offer`]). An empty object is asked
    /// for too.
    fn memory(&mut self, fabric: &mut F, object: &RdmcObject) -> ObjectAnswer;

    /// A block of the object has arrived: it lies in the memory that was given. For who keeps account of what it holds;
    /// called between evaluations, as events come.
    fn on_block(&mut self, _object: &RdmcObject, _block: u64) {}

    /// The object is here, complete, and may be read. Others may still copy it from here: it must not be changed
    /// before [`RdmcApplication::on_released`]. Not called at the root.
    fn on_received(&mut self, object: &RdmcObject, memory: &ObjectMemory);

    /// This member has no more to do with the object: its memory belongs to the application again. At the root this
    /// is the end of sending; it does not say that all members have received it.
    fn on_released(&mut self, object: &RdmcObject, memory: ObjectMemory);

    /// The group has failed. Nothing will change its memory any more; the group is to be destroyed, and perhaps
    /// resumed as another one.
    fn on_failed(&mut self, failure: RdmcFailure);
}

/// A failed group.
#[derive(Clone, Debug)]
pub struct RdmcFailure {
    /// The group.
    pub group: GroupId,
    /// Why.
    pub cause: FailureCause,
    /// The objects that were not released here, by number, also one in memory that was offered. What follows them in the
    /// group is not known here.
    pub unfinished: Vec<UnfinishedObject>,
}

/// An object that a failed group leaves behind, as far as this member has it.
#[derive(Clone, Debug)]
pub struct UnfinishedObject {
    /// The object.
    pub object: RdmcObject,
    /// Its memory; `None` if the application had not given any.
    pub memory: Option<ObjectMemory>,
    /// Which blocks lie there: exactly those.
    pub held: HeldBlocks,
}

/// Why a group has failed, as far as this member can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// A connection to this member broke: it died, or cannot be reached by a neighbour.
    Lost(NodeId),
    /// This member has no memory for an object.
    Refused(NodeId),
    /// This member has other settings or another list of members.
    Disagreed(NodeId),
    /// This member broke the protocol.
    Breached(NodeId),
    /// This member has destroyed the group.
    Left(NodeId),
    /// The application of this member wants it ([`super::Rdmc::wedge`]).
    Wedged(NodeId),
}

impl FailureCause {
    /// The member that is the cause.
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
            Self::Lost(_) => write!(f, "{member} is lost: resume with the survivors, or begin again"),
            Self::Refused(_) => write!(f, "{member} has no memory for an object"),
            Self::Disagreed(_) => {
                write!(f, "{member} has other settings: create the group alike at all members")
            }
            Self::Breached(_) => write!(f, "{member} broke the protocol: do all run the same version?"),
            Self::Left(_) => write!(f, "{member} has destroyed the group"),
            Self::Wedged(_) => write!(f, "the application of {member} has stopped the group"),
        }
    }
}
