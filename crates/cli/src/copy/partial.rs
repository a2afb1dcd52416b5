//! A file that has arrived in part: its bytes, and beside it the list of blocks that are there, so that a receiver that was
//! killed can continue. A block is in the file before it is on the list; the digest decides in the end.
//!
//! **Names.** The two are `.NAME.squall-partial` and `.NAME.squall-held`. The list names the inode of its file, so a file of a user that has
//! one of these names is not taken for a part of a copy: then the two get a number.
//! Each writer locks the file before it changes it, so no other `serve` writes it at the same time. Only its owner may access it until it
//! has its name.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use squall::bulk::HeldBlocks;

use super::folder::{FileBeside, FilePlace};
use super::{BLOCK_BYTES, FileEntry, HeldContent, blocks};

/// A partial file, open and locked.
#[derive(Debug)]
pub(crate) struct PartialFile {
    pub(crate) file: File,
    names: PartialNames,
}

/// The list of the blocks that are there.
#[derive(Debug)]
pub(crate) struct BlockList {
    /// A header, then a byte for each block: 1 if it is there.
    pub(crate) list: File,
    pub(crate) held: HeldBlocks,
}

/// The suffixes of the names beside a file.
#[derive(Debug)]
struct PartialNames {
    file: String,
    list: String,
}

impl PartialNames {
    fn new(number: usize) -> Self {
        let number = if number == 0 { String::new() } else { format!("-{number}") };
        Self { file: format!("partial{number}"), list: format!("held{number}") }
    }
}

impl PartialFile {
    /// Continues with what is there of the same file, or begins; reserves all its space.
    ///
    /// # Errors
    /// If there is no space or no permission, or another copy writes the file.
    pub(crate) fn open(place: &FilePlace, entry: &FileEntry) -> Result<(Self, BlockList)> {
        let (partial, list) = Self::claim(place)?;
        if let Some(list) = &list
            && let Some(held) = partial.find_held(list, entry)?
        {
            return Ok((partial, BlockList { list: list.try_clone()?, held }));
        }
        let begin = || -> Result<File> {
            begin_file(&partial.file, entry.bytes)?;
            let list = match list {
                Some(list) => list,
                None => place.create_beside(&partial.names.list)?.context("another copy has just begun")?,
            };
            list.set_len(0)?;
            list.write_all_at(&header(entry, partial.file.metadata()?.ino()), 0)?;
            list.set_len(HEADER_BYTES + blocks(entry.bytes))?;
            Ok(list)
        };
        match begin() {
            Ok(list) => Ok((partial, BlockList { list, held: HeldBlocks::none(blocks(entry.bytes)) })),
            Err(error) => {
                partial.forget(place);
                let path = place.path.display();
                Err(error.context(format!("no space for the {} bytes of {path}", entry.bytes)))
            }
        }
    }

    /// Writes a small file at once, from all of its content.
    pub(crate) fn write(place: &FilePlace, content: &[u8], entry: &FileEntry, mode: u32) -> Result<()> {
        let (partial, _) = Self::claim(place)?;
        let written = empty(&partial.file).and_then(|()| Ok(partial.file.write_all_at(content, 0)?));
        let written = written.with_context(|| format!("cannot write {}", place.path.display()));
        written.and_then(|()| partial.finish(place, entry, mode)).inspect_err(|_| partial.forget(place))
    }

    /// Completes the file: permissions, time and name.
    pub(crate) fn finish(&self, place: &FilePlace, entry: &FileEntry, mode: u32) -> Result<()> {
        set_attributes(place, &self.file, entry, mode)?;
        place.take_place(&self.names.file)?;
        place.remove_beside(&self.names.list);
        Ok(())
    }

    /// Removes what is there, which is wrong.
    pub(crate) fn forget(&self, place: &FilePlace) {
        place.remove_beside(&self.names.file);
        place.remove_beside(&self.names.list);
    }

    /// Finds or makes a file beside that this copy alone writes, and its list if it has one.
    fn claim(place: &FilePlace) -> Result<(Self, Option<File>)> {
        for number in 0..NUMBERS_MAX {
            let names = PartialNames::new(number);
            match (place.open_beside(&names.file)?, place.open_beside(&names.list)?) {
                (FileBeside::Own(file), FileBeside::Own(list)) if is_list_of(&list, Some(&file))? => {
                    if place.lock_beside(&file, &names.file)? {
                        return Ok((Self { file, names }, Some(list)));
                    }
                }
                (FileBeside::Absent, FileBeside::Own(list)) if is_list_of(&list, None)? => {
                    place.remove_beside(&names.list);
                }
                (FileBeside::Absent, FileBeside::Absent) => {}
                _ => continue,
            }
            if let Some(file) = place.create_beside(&names.file)?
                && place.lock_beside(&file, &names.file)?
            {
                return Ok((Self { file, names }, None));
            }
        }
        let (path, names) = (place.path.display(), PartialNames::new(0));
        bail!("{path} cannot be written: files like .NAME.squall-{} are in the way: remove them", names.file)
    }

    /// The blocks on a list that was begun before, if it is about the same file.
    fn find_held(&self, list: &File, entry: &FileEntry) -> Result<Option<HeldBlocks>> {
        let (count, found) = (blocks(entry.bytes), self.file.metadata()?);
        if found.len() != entry.bytes || list.metadata()?.len() != HEADER_BYTES + count {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(HEADER_BYTES + count)?];
        list.read_exact_at(&mut bytes, 0)?;
        let (head, marks) = bytes.split_at(usize::try_from(HEADER_BYTES)?);
        if head != header(entry, found.ino()) {
            return Ok(None);
        }
        let mut held = HeldBlocks::none(count);
        for block in (0..count).filter(|block| marks[usize::try_from(*block).expect("read")] == 1) {
            held.insert(block);
        }
        Ok(Some(held))
    }
}

/// Whether a file is the list of blocks of the other one, or of any. Not fuzzed: any bytes are one of both or not.
fn is_list_of(list: &File, file: Option<&File>) -> Result<bool> {
    let mut head = [0; HEADER_BYTES as usize];
    if list.read_exact_at(&mut head, 0).is_err() || !head.starts_with(MAGIC) {
        return Ok(false);
    }
    let inode = head.last_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    file.map_or(Ok(true), |file| Ok(Some(file.metadata()?.ino()) == inode))
}

/// Notes that a block is there.
pub(crate) fn note(list: &File, block: u64) {
    // If the list cannot be written, the block is sent again next time.
    let _ = list.write_all_at(&[1], HEADER_BYTES + block);
}

/// Gives a file its permissions and its time, as far as it does not have them.
pub(crate) fn set_attributes(place: &FilePlace, file: &File, entry: &FileEntry, mode: u32) -> Result<()> {
    let set = || -> std::io::Result<()> {
        let (found, wanted) = (file.metadata()?, place.permissions(mode));
        if found.mode() & 0o7777 != wanted {
            file.set_permissions(Permissions::from_mode(wanted))?;
        }
        if found.modified()? == time_of(entry.modified_ns) {
            Ok(())
        } else {
            file.set_modified(time_of(entry.modified_ns))
        }
    };
    set().with_context(|| format!("cannot set the permissions and the time of {}", place.path.display()))
}

/// Empties a file, to which only its owner has access until it gets its name.
fn empty(file: &File) -> Result<()> {
    file.set_len(0)?;
    Ok(file.set_permissions(Permissions::from_mode(0o600))?)
}

/// Makes a file of `bytes` bytes, for which it reserves space where the file system can.
fn begin_file(file: &File, bytes: u64) -> Result<()> {
    empty(file)?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(file.set_len(bytes)?),
            done => return Ok(done?),
        }
    }
}

/// Whether this process may give the file at `place` other permissions and another time.
pub(crate) fn is_own(file: &File) -> Result<bool> {
    let user = rustix::process::geteuid();
    Ok(user.is_root() || file.metadata()?.uid() == user.as_raw())
}

/// What the file at a place may be, by its size and time; `None` if it has to be replaced whatever its content is.
pub(crate) fn same_by_look(place: &FilePlace, entry: &FileEntry, mode: u32) -> Result<Option<HeldContent>> {
    let Some(file) = place.open()? else { return Ok(None) };
    let there = file.metadata()?;
    if !there.is_file() || there.len() != entry.bytes {
        return Ok(None);
    }
    let is_time = there.modified()? == time_of(entry.modified_ns);
    let is_right = is_time && there.mode() & 0o7777 == place.permissions(mode);
    let by_look = if is_time { HeldContent::SameTime } else { HeldContent::SameSize };
    Ok((is_right || is_own(&file)?).then_some(by_look))
}

fn time_of(modified_ns: i128) -> std::time::SystemTime {
    let distance =
        std::time::Duration::from_nanos(u64::try_from(modified_ns.unsigned_abs()).unwrap_or(u64::MAX));
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    if modified_ns < 0 { epoch - distance } else { epoch + distance }
}

fn header(entry: &FileEntry, inode: u64) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(entry.bytes.to_le_bytes());
    header.extend(entry.modified_ns.to_le_bytes());
    header.extend(BLOCK_BYTES.to_le_bytes());
    header.extend(inode.to_le_bytes());
    header
}

const MAGIC: &[u8] = b"squall 2";
const HEADER_BYTES: u64 = 8 + 8 + 16 + 8 + 8;
/// More names than a user has taken, or other copies that were killed have left.
const NUMBERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::folder::Folder;
    use super::*;

    const ENTRY: FileEntry = FileEntry { bytes: 3 * BLOCK_BYTES, modified_ns: 5 };

    fn scratch(name: &str) -> (PathBuf, FilePlace) {
        let path = std::env::temp_dir().join(format!("squall-partial-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let place = Folder::open(&path).unwrap().place(&["f".into()]).unwrap();
        (path, place)
    }

    /// The second writer gets an error, a writer that has ended releases the lock, and what was noted is continued.
    #[test]
    fn a_partial_file_has_one_writer() {
        let (scratch, place) = scratch("writer");
        let (first, blocks) = PartialFile::open(&place, &ENTRY).unwrap();
        note(&blocks.list, 1);
        let error = PartialFile::open(&place, &ENTRY).unwrap_err().to_string();
        assert!(error.contains("another copy writes") && error.ends_with("copy elsewhere"), "{error}");
        assert!(PartialFile::write(&place, b"x", &FileEntry { bytes: 1, ..ENTRY }, 0o644).is_err());
        drop(first);
        let (second, blocks) = PartialFile::open(&place, &ENTRY).unwrap();
        assert!(blocks.held.contains(1) && blocks.held.count() == 1);
        second.finish(&place, &ENTRY, 0o640).unwrap();
        let found = scratch.join("f").metadata().unwrap();
        assert_eq!((found.len(), found.mode() & 0o777, found.mtime_nsec()), (ENTRY.bytes, 0o640, 5));
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1, "nothing is left beside");
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// What a user, or another one, has put there is neither written nor used nor removed.
    #[test]
    fn files_of_a_user_are_not_eaten() {
        let (scratch, place) = scratch("users");
        let [partial, list, own] =
            [".f.squall-partial", ".f.squall-held", "own"].map(|name| scratch.join(name));
        let copied = |what: &str| {
            PartialFile::write(&place, b"new", &FileEntry { bytes: 3, ..ENTRY }, 0o644).unwrap();
            assert_eq!(std::fs::read(scratch.join("f")).unwrap(), b"new", "{what}");
            let (large, _) = PartialFile::open(&place, &ENTRY).unwrap();
            large.finish(&place, &ENTRY, 0o644).unwrap();
            assert_eq!(scratch.join("f").metadata().unwrap().len(), ENTRY.bytes, "{what}");
        };
        std::fs::write(&partial, "mine").unwrap();
        copied("a file of the user");
        assert_eq!(std::fs::read(&partial).unwrap(), b"mine");
        std::fs::rename(&partial, &list).unwrap();
        copied("a file with the name of the list");
        assert_eq!(std::fs::read(&list).unwrap(), b"mine");
        std::fs::rename(&list, &own).unwrap();
        std::fs::hard_link(&own, &partial).unwrap();
        copied("a hard link");
        std::fs::remove_file(&partial).unwrap();
        std::os::unix::fs::symlink(&own, &partial).unwrap();
        copied("a symbolic link");
        std::fs::remove_file(&partial).unwrap();
        std::fs::create_dir(&partial).unwrap();
        copied("a folder");
        assert_eq!(std::fs::read(&own).unwrap(), b"mine");
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// The list of a file that has its name already is no file of a user.
    #[test]
    fn a_list_that_is_left_is_removed() {
        let (scratch, place) = scratch("left");
        let (file, _) = PartialFile::open(&place, &ENTRY).unwrap();
        std::fs::remove_file(scratch.join(".f.squall-partial")).unwrap();
        drop(file);
        let (file, _) = PartialFile::open(&place, &ENTRY).unwrap();
        file.finish(&place, &ENTRY, 0o644).unwrap();
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
