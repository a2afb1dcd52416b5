//! The register of a folder as the process writes it (Derecho §3.4, "Total failures").

use std::sync::{Arc, Mutex};

use squall_fabric::mutex::lock;
use squall_log::{DiskError, DurableLog};
use squall_protocols::restart::{LogStart, Register, ViewChain};

use super::found::last_before;
use super::process_log::SharedDisk;
use super::subgroups::{PendingChange, SubgroupNumbers};

/// Writes registers, one after the other.
///
/// The first one of a view after that in which a changed set of subgroups was found has the new set take the place of the one before
/// ([`super::subgroups`]).
pub(super) struct RegisterFile {
    log: Arc<DurableLog<SharedDisk>>,
    numbers: SubgroupNumbers,
    written: Mutex<WrittenRegister>,
}

struct WrittenRegister {
    /// The view of the last one.
    view: u64,
    pending: Option<PendingChange>,
}

impl RegisterFile {
    /// The file of a folder in which `found` was found.
    pub(super) fn new(
        log: Arc<DurableLog<SharedDisk>>,
        numbers: SubgroupNumbers,
        found: Option<&Register>,
        pending: Option<PendingChange>,
    ) -> Self {
        let view = found.map_or(0, |register| register.view().number);
        Self { log, numbers, written: Mutex::new(WrittenRegister { view, pending }) }
    }

    /// Returns the shards that were added in the present view, which begin when it ends \[T22\].
    pub(super) fn added(&self) -> Vec<usize> {
        lock(&self.written).pending.as_ref().map(|pending| pending.added.clone()).unwrap_or_default()
    }

    /// Writes a register, and returns when it is on the disk, and nothing is left of what it declares void.
    pub(super) fn write(&self, register: &Register) -> Result<(), DiskError> {
        let mut written = lock(&self.written);
        let (view, protocol) = (register.view().number, register.encode());
        if written.pending.as_ref().is_some_and(|pending| pending.view < view) {
            self.log.settle_register(protocol)?;
            written.pending = None;
        } else {
            self.log.write_register(protocol)?;
        }
        if written.view < view {
            self.drop_void(&register.record.chain, written.view)?;
            written.view = view;
        }
        Ok(())
    }

    /// Removes the checkpoints of shards that begin again behind the view `before`. If a crash comes first, this is done when the folder is opened.
    fn drop_void(&self, chain: &ViewChain, before: u64) -> Result<(), DiskError> {
        for (shard, number) in self.numbers.all().enumerate() {
            let begun = chain.begun_again(shard);
            if let Some(last) = last_before(LogStart::of_view(begun)).filter(|_| begun > before) {
                self.log.storage().forget_checkpoints(number, last).map_err(DiskError::from)?;
            }
        }
        Ok(())
    }
}
