//! A file that has arrived in part: its bytes, and beside it the list of blocks that are there, so that a receiver that was
//! killed can continue. A block is in the file before it is on the list; the digest decides in the end.
//!
//! The file is mapped while it arrives, so it must not lose pages meanwhile: access to a page that is gone ends the process
//! with SIGBUS. Each writer locks it before it changes its length, so no other `serve` truncates it. The user that runs
//! `serve` can truncate it by hand; no other user can, as only its owner may access the file until it has its name.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use squall::bulk::HeldBlocks;

use super::folder::FilePlace;
use super::{BLOCK_BYTES, FileEntry, blocks};

/// A partial file, open.
#[derive(Debug)]
pub(crate) struct PartialFile {
    pub(crate) file: File,
    /// A header, then a byte for each block: 1 if it is there.
    pub(crate) list: File,
    pub(crate) held: HeldBlocks,
}

impl PartialFile {
    /// Continues with what is there of the same file, or begins; reserves all its space.
    ///
    /// # Errors
    /// If there is no space or no permission.
    pub(crate) fn open(place: &FilePlace, entry: &FileEntry) -> Result<Self> {
        let file = place.lock_beside(FILE)?;
        if let Some((list, held)) = find_list(place, &file, entry)? {
            return Ok(Self { file, list, held });
        }
        let begin = || -> Result<File> {
            begin_file(&file, entry.bytes)?;
            let list = place.create_beside(LIST)?;
            list.write_all_at(&header(entry), 0)?;
            list.set_len(HEADER_BYTES + blocks(entry.bytes))?;
            Ok(list)
        };
        let list = begin().with_context(|| {
            Self::forget(place);
            format!("no space for the {} bytes of {}", entry.bytes, place.path.display())
        })?;
        Ok(Self { file, list, held: HeldBlocks::none(blocks(entry.bytes)) })
    }

    /// Completes the file: permissions, time and name.
    pub(crate) fn finish(place: &FilePlace, file: &File, entry: &FileEntry, mode: u32) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        file.set_permissions(std::fs::Permissions::from_mode(place.permissions(mode)))?;
        file.set_modified(time_of(entry.modified_ns))?;
        place.take_place(FILE)?;
        place.remove_beside(LIST);
        Ok(())
    }

    /// Writes a small file at once, from all of its content.
    pub(crate) fn write(place: &FilePlace, content: &[u8], entry: &FileEntry, mode: u32) -> Result<()> {
        let file = place.lock_beside(FILE)?;
        let written = empty(&file).and_then(|()| Ok(file.write_all_at(content, 0)?));
        let written = written.with_context(|| format!("cannot write {}", place.path.display()));
        written.and_then(|()| Self::finish(place, &file, entry, mode)).inspect_err(|_| Self::forget(place))
    }

    /// Removes what is there, which is wrong.
    pub(crate) fn forget(place: &FilePlace) {
        place.remove_beside(FILE);
        place.remove_beside(LIST);
    }
}

/// The list of a file that was begun before, and the blocks on it, if it is about the same file.
fn find_list(place: &FilePlace, file: &File, entry: &FileEntry) -> Result<Option<(File, HeldBlocks)>> {
    let Some(list) = place.open_beside(LIST)? else { return Ok(None) };
    let count = blocks(entry.bytes);
    let is_whole = file.metadata()?.len() == entry.bytes && list.metadata()?.len() == HEADER_BYTES + count;
    if !is_whole {
        return Ok(None);
    }
    let mut found = vec![0; usize::try_from(HEADER_BYTES + count)?];
    list.read_exact_at(&mut found, 0)?;
    let (head, marks) = found.split_at(usize::try_from(HEADER_BYTES)?);
    if head != header(entry) {
        return Ok(None);
    }
    let mut held = HeldBlocks::none(count);
    for block in (0..count).filter(|block| marks[usize::try_from(*block).expect("read")] == 1) {
        held.insert(block);
    }
    Ok(Some((list, held)))
}

/// Notes that a block is there.
pub(crate) fn note(list: &File, block: u64) {
    // If the list cannot be written, the block is sent again next time.
    let _ = list.write_all_at(&[1], HEADER_BYTES + block);
}

/// Whether the file at `place` is the one to be copied, by size and time.
pub(crate) fn is_there(place: &FilePlace, entry: &FileEntry) -> Result<bool> {
    let Some(file) = place.open()? else { return Ok(false) };
    let there = file.metadata()?;
    Ok(there.is_file() && there.len() == entry.bytes && there.modified()? == time_of(entry.modified_ns))
}

/// Empties a file, to which only its owner has access until it gets its name.
fn empty(file: &File) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_len(0)?;
    Ok(file.set_permissions(std::fs::Permissions::from_mode(0o600))?)
}

/// Makes a file of `bytes` bytes, for which it reserves space.
fn begin_file(file: &File, bytes: u64) -> Result<()> {
    empty(file)?;
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => {
            bail!("this file system cannot reserve space: serve a folder on another one")
        }
        done => Ok(done?),
    }
}

fn time_of(modified_ns: i128) -> std::time::SystemTime {
    let distance =
        std::time::Duration::from_nanos(u64::try_from(modified_ns.unsigned_abs()).unwrap_or(u64::MAX));
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    if modified_ns < 0 { epoch - distance } else { epoch + distance }
}

fn header(entry: &FileEntry) -> Vec<u8> {
    let mut header = b"squall 1".to_vec();
    header.extend(entry.bytes.to_le_bytes());
    header.extend(entry.modified_ns.to_le_bytes());
    header.extend(BLOCK_BYTES.to_le_bytes());
    header
}

const HEADER_BYTES: u64 = 8 + 8 + 16 + 8;
const FILE: &str = "partial";
const LIST: &str = "held";
