//! The settings that the members of a group share (RDMC §3, "configuration parameters like block size").

use std::fmt;

use super::schedule::{Algorithm, Schedule};

/// Identifies a group: a number is never used again, even after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// The settings of a group; the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmcSettings {
    /// The size of a block in bytes: a multiple of 8.
    pub block_bytes: u64,
    /// The schedule by which blocks are sent.
    pub schedule: Schedule,
    /// How many bytes of one object a member has in flight, but at least two blocks, so that the link never waits for
    /// a completion. Objects that are sent at the same time share the links in this proportion.
    pub in_flight_bytes: u64,
}

impl Default for RdmcSettings {
    fn default() -> Self {
        Self { block_bytes: 1 << 20, schedule: Algorithm::Pipeline.into(), in_flight_bytes: 2 << 20 }
    }
}

/// Why settings are not valid for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmcSettingsError {
    /// `block_bytes` is 0 or not a multiple of 8.
    BlockBytes(u64),
    /// The topology of a hybrid has another number of members.
    Topology {
        /// The number of members in the topology.
        named: usize,
        /// The number of members of the group.
        members: usize,
    },
}

impl fmt::Display for RdmcSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockBytes(bytes) => write!(f, "block_bytes is {bytes}: choose a multiple of 8 above 0"),
            Self::Topology { named, members } => {
                write!(f, "the topology names {named} members, the group has {members}: name each once")
            }
        }
    }
}

impl std::error::Error for RdmcSettingsError {}

impl RdmcSettings {
    /// Checks the settings for a group of `members` members.
    ///
    /// # Errors
    /// [`RdmcSettingsError`].
    pub fn check(&self, members: usize) -> Result<(), RdmcSettingsError> {
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(8) {
            return Err(RdmcSettingsError::BlockBytes(self.block_bytes));
        }
        match &self.schedule {
            Schedule::Hybrid(hybrid) if hybrid.topology().members() != members => {
                Err(RdmcSettingsError::Topology { named: hybrid.topology().members(), members })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of blocks of an object.
    #[must_use]
    pub const fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block_bytes)
    }

    /// Returns how many blocks of one object a member may have in flight.
    pub(super) fn in_flight_max(&self) -> u64 {
        (self.in_flight_bytes / self.block_bytes).clamp(2, IN_FLIGHT_BLOCKS_MAX)
    }

    /// Returns a number that differs where members of a group disagree; it is not a secret.
    pub(super) fn digest(&self, members: &[squall_fabric::NodeId], first: u64) -> u64 {
        let mut digest = mix(self.block_bytes, first);
        for member in members {
            digest = mix(digest, u64::from(member.0));
        }
        match &self.schedule {
            Schedule::Flat(algorithm) => mix(digest, *algorithm as u64),
            Schedule::Hybrid(hybrid) => {
                let topology = hybrid.topology();
                let pair = 16 + 4 * hybrid.between() as u64 + hybrid.within() as u64;
                let ranks = (0..topology.racks())
                    .flat_map(|rack| topology.rack(rack).iter().map(move |r| (rack, *r)));
                ranks.fold(mix(digest, pair), |digest, (rack, rank)| {
                    mix(mix(digest, rack as u64), rank as u64)
                })
            }
        }
    }
}

const fn mix(digest: u64, value: u64) -> u64 {
    let mixed = (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_add(1)
}

/// The largest number of blocks of an object: an immediate value has 24 bits for the block, and 8 for the object's
/// slot.
pub const BLOCKS_MAX: u64 = 1 << 24;
/// The number of objects of a group that are open at a member: one that is transferred, and the next, whose memory is
/// prepared.
pub const OBJECTS_AHEAD: u64 = 2;
/// The number of receives that a link has posted; both ends rely on it from the beginning.
pub const RECEIVES: u64 = 32;
/// A completion takes a few microseconds; this many of the smallest useful blocks (16 KiB) take longer.
const IN_FLIGHT_BLOCKS_MAX: u64 = 16;
