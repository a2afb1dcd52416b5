//! A file that has come in part: its bytes, and beside it the list of blocks that are there, so that a receiver that is
//! killed goes on where it was. What the list says is in the file at least as early; the digest judges in the end.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use squall::bulk::Held;

use super::folder::Place;
use super::{BLOCK_BYTES, FileEntry, blocks};

/// A partial file, open.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) file: File,
    /// A header, then a byte for each block: 1 if it is there.
    pub(crate) list: File,
    pub(crate) held: Held,
}

impl Partial {
    /// Goes on with what is there of the same file, or begins; all its space is taken.
    ///
    /// # Errors
    /// If there is no space or no permission.
    pub(crate) fn open(place: &Place, entry: &FileEntry) -> Result<Self> {
        if let Some(partial) = Self::find(place, entry)? {
            return Ok(partial);
        }
        let (file, list) = (place.create_beside(FILE)?, place.create_beside(LIST)?);
        let begin_list = || -> Result<()> {
            list.write_all_at(&header(entry), 0)?;
            Ok(list.set_len(HEADER_BYTES + blocks(entry.bytes))?)
        };
        reserve(&file, entry.bytes).and_then(|()| begin_list()).with_context(|| {
            Self::forget(place);
            format!("no room for the {} bytes of {}", entry.bytes, place.path.display())
        })?;
        Ok(Self { file, list, held: Held::none(blocks(entry.bytes)) })
    }

    fn find(place: &Place, entry: &FileEntry) -> Result<Option<Self>> {
        let (Some(file), Some(list)) = (place.open_beside(FILE)?, place.open_beside(LIST)?) else {
            return Ok(None);
        };
        let count = blocks(entry.bytes);
        let is_whole =
            file.metadata()?.len() == entry.bytes && list.metadata()?.len() == HEADER_BYTES + count;
        if !is_whole {
            return Ok(None);
        }
        let mut found = vec![0; usize::try_from(HEADER_BYTES + count)?];
        list.read_exact_at(&mut found, 0)?;
        let (head, marks) = found.split_at(usize::try_from(HEADER_BYTES)?);
        if head != header(entry) {
            return Ok(None);
        }
        let mut held = Held::none(count);
        for block in (0..count).filter(|block| marks[usize::try_from(*block).expect("read")] == 1) {
            held.insert(block);
        }
        Ok(Some(Self { file, list, held }))
    }

    /// Makes the file what it is to be, or forgets it.
    pub(crate) fn finish(place: &Place, file: &File, entry: &FileEntry, mode: u32) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.set_modified(time_of(entry.modified_ns))?;
        place.take_place(FILE)?;
        place.remove_beside(LIST);
        Ok(())
    }

    /// Makes a small file at once, from all of its content.
    pub(crate) fn write(place: &Place, content: &[u8], entry: &FileEntry, mode: u32) -> Result<()> {
        let file = place.create_beside(FILE)?;
        let written = file.write_all_at(content, 0);
        let written = written.with_context(|| format!("cannot write {}", place.path.display()));
        written.and_then(|()| Self::finish(place, &file, entry, mode)).inspect_err(|_| Self::forget(place))
    }

    /// What is there is wrong.
    pub(crate) fn forget(place: &Place) {
        place.remove_beside(FILE);
        place.remove_beside(LIST);
    }
}

/// Notes that a block is there.
pub(crate) fn note(list: &File, block: u64) {
    // If the list cannot be written, the block is sent again next time.
    let _ = list.write_all_at(&[1], HEADER_BYTES + block);
}

/// Whether the file at `place` is the one that is to be copied, by size and time.
pub(crate) fn is_there(place: &Place, entry: &FileEntry) -> Result<bool> {
    let Some(file) = place.open()? else { return Ok(false) };
    let there = file.metadata()?;
    Ok(there.is_file() && there.len() == entry.bytes && there.modified()? == time_of(entry.modified_ns))
}

fn reserve(file: &File, bytes: u64) -> Result<()> {
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
