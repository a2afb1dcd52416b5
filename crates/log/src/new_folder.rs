//! Making the folder of a log.

use crate::buffer::AlignedBuffer;
use crate::copies::CopyPair;
use crate::disk::{Disk, DiskError};
use crate::identity::{LogIdentity, RegisterValue};
use crate::names;
use crate::settings::LogSettings;
use crate::storage::{StorageError, StorageOwner};

/// Makes a folder: the identity comes last, so that a folder which has one is complete.
pub(crate) fn create(
    disk: &dyn Disk,
    owner: &StorageOwner,
    settings: &LogSettings,
    log: u64,
) -> Result<(), StorageError> {
    let segments = disk.list(names::LOG)?;
    let mut segments = segments.iter().filter_map(|name| names::parse_segment(name));
    let is_begun = segments.any(|number| number != 1) || !is_empty(disk, settings)?;
    if is_begun {
        return Err(StorageError::NoIdentity);
    }
    disk.create(&names::new_segment(1), u64::from(settings.segment_bytes))?;
    disk.rename(&names::new_segment(1), &names::segment(1))?;
    disk.flush_folder(names::LOG)?;
    CopyPair::create(disk, names::REGISTER, settings.block, &RegisterValue::new(log, 1).to_bytes())?;
    let identity = LogIdentity {
        cluster: owner.cluster.clone(),
        member: owner.member.clone(),
        log,
        block: u32::try_from(settings.block).expect("blocks are short"),
        segment_bytes: settings.segment_bytes,
        in_flight_max: u32::try_from(settings.in_flight_max).expect("few"),
    };
    CopyPair::create(disk, names::IDENTITY, settings.block, &identity.to_bytes())?;
    Ok(())
}

/// Returns whether the first segment has no frame, or is not there.
fn is_empty(disk: &dyn Disk, settings: &LogSettings) -> Result<bool, DiskError> {
    let mut block = AlignedBuffer::zeroed(settings.block);
    match disk.read(&names::segment(1), 0, &mut block) {
        Ok(length) => Ok(block.bytes()[..length].iter().all(|byte| *byte == 0)),
        Err(error) if error.is_absent() => Ok(true),
        Err(error) => Err(error),
    }
}
