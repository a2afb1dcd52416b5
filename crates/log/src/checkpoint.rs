//! Checkpoints: states of subgroups, in blocks with checksums.
//!
//! A checkpoint is written under a temporary name, read back, and gets its name then; the folder is flushed before it counts [W10].
//! Blocks are full but the last one, which is marked: a file that was cut off is none.
//!
//! A *mark* says that the records before its position are not wanted any more, and has no state. Its file has one block of the disk, and
//! that of a state at least two, so that the two differ even when they cannot be read.

use std::io::{self, Write};

use rustix::io::Errno;

use crate::buffer::AlignedBuffer;
use crate::check::crc64;
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskCause, DiskError};
use crate::mutation;
use crate::names::{self, UNFINISHED};
use crate::record::LogPosition;

/// The length of the header of a block.
pub const CHECKPOINT_HEADER_BYTES: usize = 40;

/// How many of the disk's blocks a block of a checkpoint is at most: 64 KiB on a real disk.
const DISK_BLOCKS: usize = 16;
/// `SQCP`
const MAGIC: u32 = u32::from_le_bytes(*b"SQCP");
/// The bit of the last block in the field `index`.
const LAST: u32 = 1 << 31;

/// The header of a block: magic, length, subgroup, index, view, sequence, and the check of these and of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointBlock<'a> {
    /// The subgroup.
    pub subgroup: u32,
    /// The position of the state.
    pub position: LogPosition,
    /// Which block, from 0. Below 2^31.
    pub index: u32,
    /// Whether it is the last one.
    pub is_last: bool,
    /// A part of the state.
    pub bytes: &'a [u8],
}

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointKind {
    /// It has a state, which may be empty.
    State,
    /// It has none.
    Mark,
}

/// Why a checkpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A block is not as it was written.
    #[error(
        "block {block} of the checkpoint {path} is not as it was written; an older checkpoint is used, or another member's state"
    )]
    Bad {
        /// The file.
        path: String,
        /// Which block.
        block: u32,
    },
    /// The state could not be written.
    #[error("the checkpoint {path} was not finished: {cause}; the older ones still count")]
    Abandoned {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
    /// The disk has failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<CheckpointError> for DiskError {
    fn from(error: CheckpointError) -> Self {
        let path = match error {
            CheckpointError::Disk(error) => return error,
            CheckpointError::Bad { path, .. } | CheckpointError::Abandoned { path, .. } => path,
        };
        Self { operation: "write", path, cause: DiskCause::System(Errno::IO.raw_os_error()) }
    }
}

impl<'a> CheckpointBlock<'a> {
    /// Writes the block.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CHECKPOINT_HEADER_BYTES + self.bytes.len());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(u32::try_from(self.bytes.len()).expect("blocks are short").to_le_bytes());
        bytes.extend(self.subgroup.to_le_bytes());
        bytes.extend((self.index | if self.is_last { LAST } else { 0 }).to_le_bytes());
        bytes.extend(self.position.view.to_le_bytes());
        bytes.extend(self.position.sequence.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(self.bytes);
        let check = crc64(&bytes);
        bytes[32..40].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a block, with what follows it; `None` if it is none. Fuzzed as `checkpoint`.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<CHECKPOINT_HEADER_BYTES>()?;
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let end = CHECKPOINT_HEADER_BYTES.checked_add(half(4) as usize)?;
        if half(0) != MAGIC || end > bytes.len() {
            return None;
        }
        let mut checked = bytes[..end].to_vec();
        checked[32..40].fill(0);
        let (index, position) = (half(12), LogPosition { view: word(16), sequence: word(24) });
        (crc64(&checked) == word(32)).then_some(Self {
            subgroup: half(8),
            position,
            index: index & !LAST,
            is_last: index & LAST != 0,
            bytes: &bytes[CHECKPOINT_HEADER_BYTES..end],
        })
    }
}

/// Writes a checkpoint of what `write` hands over, and verifies it.
pub(crate) fn write(
    disk: &dyn Disk,
    block: usize,
    kind: CheckpointKind,
    subgroup: u32,
    position: LogPosition,
    write: &mut StateWriting<'_>,
) -> Result<(), CheckpointError> {
    let path = format!("{}{UNFINISHED}", names::checkpoint(subgroup, position));
    disk.create(&path, 0)?;
    let mut file = UnfinishedCheckpoint {
        disk,
        path,
        block,
        kind,
        subgroup,
        position,
        rest: Vec::new(),
        blocks: 0,
        failure: None,
    };
    let outcome = write(&mut file).and_then(|()| file.put_block(true));
    match (outcome, file.failure) {
        (Ok(()), None) => complete(disk, block, subgroup, position, file.blocks),
        // Whatever the state's writer has made of it.
        (_, Some(error)) => {
            // On a full disk it would take what the log needs.
            let _ = disk.remove(&file.path);
            Err(error.into())
        }
        (Err(error), None) => {
            disk.remove(&file.path)?;
            Err(CheckpointError::Abandoned { path: file.path, cause: error.to_string() })
        }
    }
}

/// Hands over a state.
pub type StateWriting<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// A checkpoint that is being written: a block at a time.
struct UnfinishedCheckpoint<'a> {
    disk: &'a dyn Disk,
    path: String,
    block: usize,
    kind: CheckpointKind,
    subgroup: u32,
    position: LogPosition,
    /// What is not written yet.
    rest: Vec<u8>,
    /// How many blocks are written.
    blocks: u32,
    /// Why the disk has failed.
    failure: Option<DiskError>,
}

impl UnfinishedCheckpoint<'_> {
    const fn block_bytes_max(&self) -> usize {
        self.block * DISK_BLOCKS - CHECKPOINT_HEADER_BYTES
    }

    fn put_block(&mut self, is_last: bool) -> io::Result<()> {
        let bytes: Vec<u8> = self.rest.drain(..self.rest.len().min(self.block_bytes_max())).collect();
        let Self { subgroup, position, blocks: index, block, .. } = *self;
        let written = CheckpointBlock { subgroup, position, index, is_last, bytes: &bytes }.to_bytes();
        let mut buffer = AlignedBuffer::default();
        buffer.extend(&written);
        let least = if self.kind == CheckpointKind::State { 2 * block } else { block };
        buffer.pad_to(written.len().next_multiple_of(block).max(least));
        let offset = u64::from(index) * (block * DISK_BLOCKS) as u64;
        self.disk.write(&self.path, offset, &buffer).map_err(|error| {
            let text = error.to_string();
            self.failure = Some(error);
            io::Error::other(text)
        })?;
        self.blocks += 1;
        Ok(())
    }
}

impl Write for UnfinishedCheckpoint<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.block_bytes_max());
        self.rest.extend(&bytes[..taken]);
        while self.rest.len() > self.block_bytes_max() {
            self.put_block(false)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads back what was written, and gives it its name.
fn complete(
    disk: &dyn Disk,
    block: usize,
    subgroup: u32,
    position: LogPosition,
    blocks: u32,
) -> Result<(), CheckpointError> {
    let path = names::checkpoint(subgroup, position);
    let temporary = format!("{path}{UNFINISHED}");
    if !mutant!(SkipReadBack) {
        let mut read = 0;
        let outcome = read_file(disk, block, &temporary, subgroup, position, &mut |_| read += 1);
        let bad = CheckpointError::Bad { path: temporary.clone(), block: read };
        if let Err(error) = outcome.and(if read == blocks { Ok(()) } else { Err(bad) }) {
            disk.remove(&temporary)?;
            return Err(error);
        }
    }
    disk.rename(&temporary, &path)?;
    disk.flush_folder(names::CHECKPOINTS)?;
    Ok(())
}

/// Reads a checkpoint, and hands each block's bytes to `each`. What was handed over before an error is not to be used.
pub(crate) fn read(
    disk: &dyn Disk,
    block: usize,
    subgroup: u32,
    position: LogPosition,
    each: &mut dyn FnMut(&[u8]),
) -> Result<(), CheckpointError> {
    read_file(disk, block, &names::checkpoint(subgroup, position), subgroup, position, each)
}

fn read_file(
    disk: &dyn Disk,
    block: usize,
    path: &str,
    subgroup: u32,
    position: LogPosition,
    each: &mut dyn FnMut(&[u8]),
) -> Result<(), CheckpointError> {
    for index in 0..LAST {
        let (bytes, is_last) = read_file_block(disk, block, path, subgroup, position, index)?;
        each(&bytes);
        if is_last {
            return Ok(());
        }
    }
    Err(CheckpointError::Bad { path: path.into(), block: LAST })
}

/// Reads the `index`-th block of a checkpoint; returns its bytes, and whether it is the last one.
pub(crate) fn read_block(
    disk: &dyn Disk,
    block: usize,
    subgroup: u32,
    position: LogPosition,
    index: u32,
) -> Result<(Vec<u8>, bool), CheckpointError> {
    read_file_block(disk, block, &names::checkpoint(subgroup, position), subgroup, position, index)
}

fn read_file_block(
    disk: &dyn Disk,
    block: usize,
    path: &str,
    subgroup: u32,
    position: LogPosition,
    index: u32,
) -> Result<(Vec<u8>, bool), CheckpointError> {
    let size = block * DISK_BLOCKS;
    let mut buffer = AlignedBuffer::zeroed(size);
    let length = disk.read(path, u64::from(index) * size as u64, &mut buffer)?;
    let found = CheckpointBlock::from_bytes(&buffer.bytes()[..length]);
    let expected = |found: &CheckpointBlock<'_>| {
        (found.subgroup, found.position, found.index) == (subgroup, position, index)
    };
    let Some(found) = found.filter(expected) else {
        reach(LogPoint::CheckpointRefused);
        return Err(CheckpointError::Bad { path: path.into(), block: index });
    };
    Ok((found.bytes.to_vec(), found.is_last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_as_written() {
        let position = LogPosition { view: 3, sequence: 8 };
        for (index, bytes) in [(0, &b""[..]), (5, b"state")] {
            let block = CheckpointBlock { subgroup: 1, position, index, is_last: index == 5, bytes };
            let mut written = block.to_bytes();
            assert_eq!(CheckpointBlock::from_bytes(&written), Some(block));
            assert!(
                (0..written.len()).all(|length| CheckpointBlock::from_bytes(&written[..length]).is_none())
            );
            for bit in 0..8 * written.len() {
                written[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(CheckpointBlock::from_bytes(&written), None, "bit {bit}");
                written[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
