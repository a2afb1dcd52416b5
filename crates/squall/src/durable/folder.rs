//! Opening the folder of a member's log (Derecho §3.4, persistent mode).

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use squall_log::{
    CheckpointError, Disk, DiskError, FileDisk, LogBegin, LogIdentity, LogSettings, RECORD_HEADER_BYTES,
    Storage, StorageError, StorageOwner,
};
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::MEMBERS_MAX;
use squall_protocols::multicast::DeliveryMode;
use squall_protocols::restart::{LogStart, Register};
use squall_transports::log;

use super::discarder;
use super::found::last_before;
use super::index::LogIndex;
use super::process_log::{ProcessLog, SharedDisk};
use super::subgroup_log::time_ns;
use super::subgroups::{FolderPlan, PendingChange, SubgroupNumbers, shards};
use crate::config::{Config, Ranks, SubgroupConfig};
use crate::error::LogFolderError;

impl LogFolderError {
    /// No checkpoint of a subgroup, of this name, place and number, can be read or made again.
    pub(crate) fn checkpoints_lost<D: Disk>(
        storage: &Storage<D>,
        config: &Config,
        subgroup: &str,
        (id, number): (SubgroupId, u32),
    ) -> Self {
        // If the folder cannot be read, nothing is said of it.
        let had_state = discarder::discards(config, id) && storage.has_states(number).unwrap_or(false);
        let folder = config.log_folder().unwrap_or_default();
        Self::CheckpointsLost { folder, subgroup: subgroup.into(), had_state }
    }
}

/// Opens the log of a member, if it has durable subgroups. Makes the folder if it is absent; that writes a segment, and takes as
/// long as the disk needs.
///
/// # Errors
/// [`LogFolderError`], with what to do next.
pub(crate) fn open(config: &Config) -> Result<Option<Arc<ProcessLog>>, LogFolderError> {
    open_as(config, Storage::open)
}

/// Opens as [`open`] does, also a copy that `squall log backup` has made.
///
/// # Errors
/// [`LogFolderError`], with what to do next.
pub(crate) fn open_backup(config: &Config) -> Result<Option<Arc<ProcessLog>>, LogFolderError> {
    open_as(config, Storage::open_backup)
}

fn open_as(
    config: &Config,
    open: impl FnOnce(SharedDisk, &StorageOwner, LogSettings, u64) -> Result<Storage<SharedDisk>, StorageError>,
) -> Result<Option<Arc<ProcessLog>>, LogFolderError> {
    let durable = || config.subgroups.values().filter(|subgroup| subgroup.mode == DeliveryMode::Durable);
    let (Some(folder), Some(storage), Some(_)) = (config.log_folder(), &config.storage, durable().next())
    else {
        return Ok(None);
    };
    let owner = StorageOwner { cluster: config.cluster.clone(), member: config.log_name() };
    let settings = LogSettings {
        queue_frames_max: queue_frames(durable(), LogSettings::DEFAULT.frame_bytes),
        ..LogSettings::DEFAULT
    };
    let timeout = storage.timeout;
    let (was_there, path_was_there) = (folder.join("identity").exists(), storage.path.exists());
    let open_disk = if storage.direct { FileDisk::open } else { FileDisk::open_buffered };
    let disk = SharedDisk::new(Arc::new(open_disk(&folder)?));
    let failed = |cause| LogFolderError::Storage { folder: folder.clone(), cause: Box::new(cause) };
    let log = LogIdentity::random_log().map_err(|error| failed(error.into()))?;
    let storage = open(disk, &owner, settings, log).map_err(failed)?;
    if !was_there {
        say_new(&folder, path_was_there);
    }
    let value = storage.register().ok_or_else(|| failed(StorageError::RegisterLost))?;
    let plan = FolderPlan::new(config, &folder, value)?;
    plan.write(&storage).map_err(failed)?;
    if let Some(pending) = &plan.pending {
        say_changed(&folder, config, pending);
    }
    let mut index = LogIndex::new(plan.numbers.clone());
    let recovered = storage.recover_notes(&mut |note| index.note(note)).map_err(failed)?;
    let mended = plan.register.iter().try_for_each(|register| forget_lost(&storage, &plan.numbers, register));
    mended
        .and_then(|()| discarder::renew(&storage, config, &plan.numbers))
        .map_err(|error| failed(DiskError::from(error).into()))?;
    for (subgroup, (id, _)) in shards(config) {
        let number = plan.numbers.of(id);
        if matches!(storage.begin_of(number), LogBegin::Lost(_)) {
            return Err(LogFolderError::checkpoints_lost(&storage, config, &subgroup, (id, number)));
        }
    }
    let clock = Box::new(|| time_ns(SystemTime::now()));
    Ok(Some(ProcessLog::start(storage, plan, (recovered, index), folder, timeout, clock)?))
}

/// Says that the set of durable subgroups has changed.
fn say_changed(folder: &Path, config: &Config, pending: &PendingChange) {
    let names: Vec<String> = shards(config).into_keys().collect();
    let added: Vec<&str> = pending.added.iter().map(|shard| names[*shard].as_str()).collect();
    log::info!(
        folder = %folder.display(), subgroups = names.join(", "), added = added.join(", "),
        "the durable subgroups of the configuration are not those of the log: the group restarts with them"
    );
}

/// Says that a member begins with an empty log: that is wrong if its disk is not mounted.
fn say_new(folder: &Path, path_was_there: bool) {
    let folder = folder.display();
    if path_was_there {
        log::info!(%folder, "this member begins with an empty log");
    } else {
        log::warn!(
            %folder,
            "this member begins with an empty log, in a path that did not exist: right at its first start; else see whether a volume is not \
             mounted (`begin = \"never\"` in [storage] refuses this)"
        );
    }
}

/// Removes the checkpoints of subgroups that begin again later, since the group has continued from a log in which they were not.
fn forget_lost(
    storage: &Storage<SharedDisk>,
    numbers: &SubgroupNumbers,
    register: &Register,
) -> Result<(), CheckpointError> {
    for (shard, number) in numbers.all().enumerate() {
        if let Some(position) = last_before(LogStart::of_view(register.record.chain.begun_again(shard))) {
            storage.forget_checkpoints(number, position)?;
        }
    }
    Ok(())
}

/// Returns how many full frames may wait for the disk: as many as the windows of all senders fill. What is not on this member's disk
/// has not been delivered by all, so it is in a window; and when a view ends, everything of it is on the disk \[T4\]. Two frames in a
/// row have more than `frame_bytes` together, since the second begins with a record that did not fit the first.
pub(super) fn queue_frames<'a>(
    subgroups: impl Iterator<Item = &'a SubgroupConfig>,
    frame_bytes: usize,
) -> usize {
    let bytes = subgroups.map(window_bytes).fold(0, usize::saturating_add);
    // The last two are for what is fetched from others, a frame at a time.
    (bytes / frame_bytes).saturating_mul(2).saturating_add(4)
}

/// The most bytes of records that a subgroup's windows hold.
fn window_bytes(subgroup: &SubgroupConfig) -> usize {
    let senders = match &subgroup.senders {
        // Processes may join until the group is full.
        Ranks::All => MEMBERS_MAX,
        Ranks::These(ranks) => ranks.len(),
    };
    // A window has space for two of the longest messages in any case; the ring of large messages for one more than its bytes.
    let small = subgroup.window_bytes.max(subgroup.message_max.saturating_mul(2));
    let longest = subgroup.large_max.unwrap_or(0);
    let large = subgroup.large_window_bytes.unwrap_or(2 * longest).max(longest).saturating_add(longest);
    // Each record has a header and padding.
    let headers = subgroup.window.saturating_mul(RECORD_HEADER_BYTES + 8);
    small.saturating_add(large).saturating_add(headers).saturating_mul(senders)
}
