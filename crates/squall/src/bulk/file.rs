//! Files as objects: sent from, and received into, their pages (RDMC §2: the receiver chooses the memory).

use std::fs::File;

use squall_fabric::Region;
use squall_fabric::region::Access;
use squall_protocols::rdmc::{Held, Memory};

use super::network::Network;
use super::{BulkError, Engine, Session};
use crate::transport::AnyFabric;

/// Where a file is received.
pub struct FileTarget<'f> {
    /// Open for reading and writing, with all its bytes allocated: a file that grows while it is written could find no
    /// space, at a moment when nobody can be told.
    pub file: &'f File,
    /// The blocks that lie there already, from an earlier attempt.
    pub held: Held,
    /// Hears of each block that has arrived, after it lies in the file.
    pub on_block: Box<dyn FnMut(u64) + Send>,
}

impl std::fmt::Debug for FileTarget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTarget").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Session {
    /// Bytes of a block.
    ///
    /// # Errors
    /// [`BulkError::NotFiles`] on shared memory, where blocks are only a matter of pace.
    pub fn block_bytes(&mut self) -> Result<u64, BulkError> {
        self.network().map(|network| network.block_bytes())
    }

    /// Sends the first `bytes` bytes of a file, which nobody may shorten meanwhile, from its pages. `on_progress` hears
    /// how many blocks the receiver of a rank has, a few times a second.
    ///
    /// # Errors
    /// As [`Session::send`]; [`BulkError::NotFiles`]; or that the file cannot be mapped.
    pub fn send_file(
        &mut self,
        file: &File,
        bytes: u64,
        on_progress: &mut dyn FnMut(usize, u64),
    ) -> Result<(), BulkError> {
        self.require_root(true)?;
        let network = self.network()?;
        let region = map(network, file, bytes, Access::ReadOnly)?;
        network.send(&Memory { region, first: 0 }, bytes, on_progress)
    }

    /// Receives the next object into a file.
    ///
    /// # Errors
    /// As [`Session::next_object`]; [`BulkError::NotFiles`]; or that the file cannot be mapped.
    pub fn receive_file(&mut self, target: FileTarget<'_>) -> Result<(), BulkError> {
        let bytes = self.next_object()?.bytes;
        let network = self.network()?;
        let region = map(network, target.file, bytes, Access::ReadWrite)?;
        network.receive(&Memory { region, first: 0 }, bytes, &target.held, Some(target.on_block))
    }

    fn network(&mut self) -> Result<&mut Network, BulkError> {
        match &mut self.engine {
            Engine::Network(network) => Ok(network),
            Engine::Host(_) => Err(BulkError::NotFiles),
        }
    }
}

fn map(network: &mut Network, file: &File, bytes: u64, access: Access) -> Result<Region, BulkError> {
    let length = usize::try_from(bytes).map_err(|_| BulkError::TooLarge { bytes })?;
    match network.fabric() {
        AnyFabric::Tcp(fabric) => Ok(fabric.map_file(file, length, access)?),
        AnyFabric::Shm(_) | AnyFabric::Verbs(_) | AnyFabric::Auto(_) => Err(BulkError::NotFiles),
    }
}
