//! What the members of a session agree on (RDMC §3, "configuration parameters like block size").

use squall_protocols::rdmc::schedule::{Algorithm, Schedule};
use squall_protocols::rdmc::{Settings, SettingsError};

/// The options of a session, the same at all members; what is `None` is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a block, a multiple of 8.
    pub block_bytes: Option<u64>,
    /// How blocks travel between hosts.
    pub schedule: Option<Schedule>,
}

impl Options {
    pub(super) fn check(&self, members: usize) -> Result<(), SettingsError> {
        self.settings().check(members)
    }

    /// The settings between hosts.
    pub(super) fn settings(&self) -> Settings {
        let schedule = self.schedule.clone().unwrap_or(Algorithm::Pipeline.into());
        let block_bytes = self.block_bytes.unwrap_or(NETWORK_BLOCK_BYTES);
        Settings { block_bytes, schedule, ..Settings::default() }
    }

    /// The pace on one host.
    pub(super) fn host_block_bytes(&self) -> usize {
        usize::try_from(self.block_bytes.unwrap_or(HOST_BLOCK_BYTES)).expect("checked")
    }
}

/// The paper's; measured in docs/results/rdmc.md.
const NETWORK_BLOCK_BYTES: u64 = 1 << 20;
/// A fraction of a core's second cache; measured in docs/results/rdmc.md.
const HOST_BLOCK_BYTES: u64 = 256 << 10;
