//! The options that the members of a session share (RDMC §3, "configuration parameters like block size").

use squall_protocols::rdmc::schedule::{self, Algorithm, Schedule, ScheduleChoice, choose};
use squall_protocols::rdmc::{RdmcSettings, RdmcSettingsError};

use crate::config::Transport;

/// The options of a session, the same at all members; values that are `None` are chosen.
///
/// ```
/// use squall::bulk::BulkOptions;
///
/// // Blocks and schedule for objects of about 10 MB.
/// let options = BulkOptions { object_bytes: Some(10_000_000), ..BulkOptions::default() };
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkOptions {
    /// The size of a block in bytes, a multiple of 8.
    pub block_bytes: Option<u64>,
    /// How blocks are relayed between hosts.
    pub schedule: Option<Schedule>,
    /// The approximate size of objects: block size and schedule are chosen for this size, the number of members and a
    /// network of the transport's kind (`schedule::choose`). Without it, they are those that measured best among
    /// members of one host, for objects from 1 MB to 256 MB: blocks of 1 MiB and the binomial pipeline.
    pub object_bytes: Option<u64>,
}

impl BulkOptions {
    pub(super) fn check(&self, members: usize, transport: Transport) -> Result<(), RdmcSettingsError> {
        self.settings(members, transport).check(members)
    }

    /// Returns the settings between hosts.
    pub(super) fn settings(&self, members: usize, transport: Transport) -> RdmcSettings {
        let chosen = match self.object_bytes {
            Some(bytes) => choose(bytes.max(1), members, network(transport)),
            None => ScheduleChoice { schedule: Algorithm::Pipeline.into(), block_bytes: NETWORK_BLOCK_BYTES },
        };
        let schedule = self.schedule.clone().unwrap_or(chosen.schedule);
        let block_bytes = self.block_bytes.unwrap_or(chosen.block_bytes);
        RdmcSettings { block_bytes, schedule, ..RdmcSettings::default() }
    }

    /// Returns the block size on one host.
    pub(super) fn host_block_bytes(&self) -> usize {
        usize::try_from(self.block_bytes.unwrap_or(HOST_BLOCK_BYTES)).expect("checked")
    }
}

/// The paper's block size; measured in docs/results/rdmc.md.
const NETWORK_BLOCK_BYTES: u64 = 1 << 20;
/// A fraction of a core's second-level cache; measured in docs/results/rdmc.md.
const HOST_BLOCK_BYTES: u64 = 256 << 10;

/// Returns what the chooser knows about a transport. If members use different transports, the slowest one counts.
const fn network(transport: Transport) -> schedule::TransportProfile {
    match transport {
        Transport::Verbs => schedule::TransportProfile::VERBS,
        Transport::Shm => schedule::TransportProfile::SHM,
        Transport::Tcp | Transport::Auto => schedule::TransportProfile::TCP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options that are given are used, and the others are chosen: smaller blocks for smaller objects, and a tree for
    /// the smallest.
    #[test]
    fn options_that_are_not_given_are_chosen_by_the_size_of_objects() {
        let of =
            |object_bytes| BulkOptions { object_bytes, ..BulkOptions::default() }.settings(8, Transport::Tcp);
        assert_eq!((of(None).block_bytes, of(None).schedule), (1 << 20, Algorithm::Pipeline.into()));
        assert_eq!(of(Some(1 << 10)).schedule, Algorithm::Tree.into());
        assert_eq!(of(Some(256 << 20)).schedule, Algorithm::Pipeline.into());
        assert!(of(Some(1 << 20)).block_bytes < of(Some(256 << 20)).block_bytes);
        assert!(of(Some(0)).check(8).is_ok());
        let given =
            BulkOptions { block_bytes: Some(8), object_bytes: Some(1 << 10), ..BulkOptions::default() };
        let settings = given.settings(8, Transport::Verbs);
        assert_eq!((settings.block_bytes, settings.schedule), (8, Algorithm::Tree.into()));
    }
}
