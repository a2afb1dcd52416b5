//! A folder in a file system, for one process at a time.
//!
//! Files are written with `O_DIRECT | O_DSYNC` if the file system allows it: a write is on the disk when it returns, and no page
//! cache can report it as clean when it is not. Else with `fdatasync` behind each write, and one warning.
//!
//! All that is made here is for its user alone: folders with mode 0700, files with mode 0600. A folder of this user that others may enter,
//! since an earlier release has made it, is closed to them when it is opened.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FlockOperation, fadvise, flock, statvfs};
use rustix::io::Errno;
use squall_fabric::mutex::lock;

use crate::buffer::AlignedBuffer;
use crate::disk::{Disk, DiskCause, DiskError};
use crate::names;

/// A folder in a file system. Threads may share it.
#[derive(Debug)]
pub struct FileDisk {
    root: PathBuf,
    /// Locked as long as this lives, and the folder of segments: by their numbers in the file system a folder that has vanished is found out.
    held: Option<HeldFolder>,
    /// Files that were used, each open for reading and writing.
    files: Mutex<BTreeMap<String, Arc<File>>>,
    is_direct: bool,
}

/// What a process that writes a folder has of it.
#[derive(Debug)]
struct HeldFolder {
    lock: File,
    log: File,
}

/// Why a folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("{path} is in use by {holder}: end that process, or set another folder")]
    Held {
        /// The folder.
        path: String,
        /// The process that has locked it.
        holder: String,
    },
    /// The disk has failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl FileDisk {
    /// Opens the folder, makes it if it is absent, and locks it.
    ///
    /// # Errors
    /// If another process has it, or the disk fails.
    pub fn open(root: &Path) -> Result<Self, FolderError> {
        let disk = Self::new(root, Some(Self::lock(root)?));
        if !disk.is_direct {
            tracing::warn!(
                folder = %root.display(),
                "the file system allows no direct I/O: each write is flushed by fdatasync, which takes about twice as long"
            );
        }
        Ok(disk)
    }

    /// Opens the folder as [`FileDisk::open`] does, for writes through the page cache, each of which is flushed by `fdatasync`.
    ///
    /// # Errors
    /// If another process has it, or the disk fails.
    pub fn open_buffered(root: &Path) -> Result<Self, FolderError> {
        Ok(Self { is_direct: false, ..Self::new(root, Some(Self::lock(root)?)) })
    }

    /// Makes the folder if it is absent, and locks it.
    fn lock(root: &Path) -> Result<HeldFolder, FolderError> {
        let failed = |operation, path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| DiskError { operation, path, cause: cause(&error) }
        };
        for folder in [root.to_owned(), root.join(names::LOG), root.join(names::CHECKPOINTS)] {
            make_folder(&folder).map_err(failed("make the folder", &folder))?;
        }
        close_to_others(root);
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            flush(parent).map_err(failed("flush", parent))?;
        }
        flush(root).map_err(failed("flush", root))?;
        let path = root.join(names::LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut lock = options.open(&path).map_err(failed("open", &path))?;
        if !take_lock(&lock).map_err(failed("lock", &path))? {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            let holder =
                if holder.trim().is_empty() { "another process".into() } else { holder.trim().into() };
            return Err(FolderError::Held { path: root.display().to_string(), holder });
        }
        // Only for the error of another process.
        let name = format!("process {}\n", std::process::id());
        lock.set_len(0).and_then(|()| lock.write_all(name.as_bytes())).map_err(failed("write", &path))?;
        let path = root.join(names::LOG);
        let log = File::open(&path).map_err(failed("open", &path))?;
        Ok(HeldFolder { lock, log })
    }

    /// Opens a folder for reading, also while another process writes it.
    #[must_use]
    pub fn inspect(root: &Path) -> Self {
        Self::new(root, None)
    }

    /// Returns whether a process has the folder open for writing.
    #[must_use]
    pub fn is_held(root: &Path) -> bool {
        // A lock that is shared for this moment delays a process that opens the folder now; it waits longer than that.
        File::open(root.join(names::LOCK)).is_ok_and(|lock| {
            matches!(flock(&lock, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
        })
    }

    fn new(root: &Path, held: Option<HeldFolder>) -> Self {
        let is_direct = allows_direct(&root.join(if held.is_some() { names::LOCK } else { names::IDENTITY }));
        Self { root: root.to_owned(), held, files: Mutex::default(), is_direct }
    }

    /// Makes a folder within this one, unless it is there.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn make_folder(&self, folder: &str) -> Result<(), DiskError> {
        make_folder(&self.path(folder)).map_err(|error| self.error("make the folder", folder, &error))?;
        self.flush_folder("")
    }

    /// Returns whether writes go past the page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn error(&self, operation: &'static str, path: &str, error: &io::Error) -> DiskError {
        DiskError { operation, path: self.path(path).display().to_string(), cause: cause(error) }
    }

    fn flags(&self, is_flushed: bool) -> i32 {
        let direct = if self.is_direct { libc::O_DIRECT } else { 0 };
        direct | if self.is_direct && is_flushed { libc::O_DSYNC } else { 0 }
    }

    /// The file, opened if it is not open.
    fn file(&self, operation: &'static str, path: &str) -> Result<Arc<File>, DiskError> {
        let mut files = self.files();
        if let Some(file) = files.get(path) {
            return Ok(Arc::clone(file));
        }
        let can_write = self.held.is_some();
        let options = OpenOptions::new()
            .read(true)
            .write(can_write)
            .custom_flags(self.flags(true))
            .open(self.path(path));
        let file = Arc::new(options.map_err(|error| self.error(operation, path, &error))?);
        if files.len() >= OPEN_MAX {
            files.pop_first();
        }
        files.insert(path.into(), Arc::clone(&file));
        Ok(file)
    }

    fn files(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<File>>> {
        lock(&self.files)
    }

    /// Writes zeros with the file system's own order, and flushes once.
    fn fill(&self, path: &str, length: u64, begin_step: &mut dyn FnMut(u64)) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE).custom_flags(self.flags(false));
        let file = options.open(self.path(path))?;
        let zeros = AlignedBuffer::zeroed(usize::try_from(length.min(PIECE)).expect("short"));
        let mut offset = 0;
        while offset < length {
            let size = usize::try_from(PIECE.min(length - offset)).expect("short");
            begin_step(size as u64);
            file.write_all_at(&zeros.bytes()[..size], offset)?;
            offset += size as u64;
        }
        // The disk's own cache may have all of it.
        begin_step(length);
        file.sync_all()
    }
}

impl Disk for FileDisk {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        let entries = fs::read_dir(self.path(folder)).map_err(|error| self.error("list", folder, &error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.error("list", folder, &error))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        let outcome = fs::metadata(self.path(path));
        Ok(outcome.map_err(|error| self.error("find", path, &error))?.len())
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        let file = self.file("open", path)?;
        let (mut length, wanted) = (0, buffer.len());
        while length < wanted {
            let rest = &mut buffer.bytes_mut()[length..];
            match file.read_at(rest, offset + length as u64) {
                Ok(0) => break,
                // A direct read that ends inside a block has come to the end of the file.
                Ok(read) if !read.is_multiple_of(512) => return Ok(length + read),
                Ok(read) => length += read,
                Err(error) => return Err(self.error("read", path, &error)),
            }
        }
        Ok(length)
    }

    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError> {
        self.files().remove(path);
        let space =
            statvfs(&self.root).map_err(|error| self.error("find the space of", "", &error.into()))?;
        if space.f_bavail.saturating_mul(space.f_frsize) < length {
            return Err(self.error("find space for", path, &Errno::NOSPC.into()));
        }
        self.fill(path, length, begin_step).map_err(|error| self.error("write zeros to", path, &error))
    }

    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
        let file = self.file("open", path)?;
        let bytes = bytes.bytes();
        let written = file.write_at(bytes, offset).map_err(|error| self.error("write", path, &error))?;
        if written < bytes.len() {
            let cause = DiskCause::Short { written: written as u64, wanted: bytes.len() as u64 };
            return Err(DiskError { operation: "write", path: self.path(path).display().to_string(), cause });
        }
        if !self.is_direct {
            file.sync_data().map_err(|error| self.error("flush", path, &error))?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut files = self.files();
        files.remove(from);
        files.remove(to);
        fs::rename(self.path(from), self.path(to)).map_err(|error| self.error("rename", from, &error))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.files().remove(path);
        fs::remove_file(self.path(path)).map_err(|error| self.error("remove", path, &error))
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        flush(&self.path(folder)).map_err(|error| self.error("flush", folder, &error))
    }

    fn check_folder(&self) -> Result<(), DiskError> {
        let Some(HeldFolder { lock, log }) = &self.held else { return Ok(()) };
        for (name, held) in [(names::LOCK, lock), (names::LOG, log)] {
            let is_there = held.metadata().and_then(|held| {
                let found = fs::metadata(self.path(name))?;
                Ok((found.dev(), found.ino()) == (held.dev(), held.ino()))
            });
            let cause = match is_there {
                Ok(true) => continue,
                Ok(false) => DiskCause::Vanished,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    DiskCause::Vanished
                }
                Err(error) => cause(&error),
            };
            return Err(DiskError { operation: "find", path: self.path(name).display().to_string(), cause });
        }
        self.check_device()
    }
}

impl FileDisk {
    /// Reads from the disk itself: names and what was read before are in memory, also of a disk that has gone. One file that cannot be read
    /// is no reason to end: a sector may be bad.
    fn check_device(&self) -> Result<(), DiskError> {
        let mut read = Ok(());
        for path in [names::IDENTITY, names::REGISTER] {
            match self.probe(path) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_absent() => {}
                Err(error) => read = Err(error),
            }
        }
        read
    }

    fn probe(&self, path: &str) -> Result<(), DiskError> {
        let mut block = AlignedBuffer::zeroed(PROBE);
        if !self.is_direct {
            // If that is not possible, the page stays in memory, and the disk is not asked.
            let _ = fadvise(&*self.file("open", path)?, 0, None, Advice::DontNeed);
        }
        self.read(path, 0, &mut block).map(drop)
    }
}

/// Locks a file, unless another process has it. A child that has just been forked has the locks of its parent until it runs its
/// program, also those that the parent gives back meanwhile: that is waited for.
///
/// # Errors
/// If the file system has no locks.
fn take_lock(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a folder, and those above it that are absent, for this user alone.
fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)
}

/// Takes from others what they may do with a folder, if it is of this user. Files in it that they can read are out of their reach then.
fn close_to_others(folder: &Path) {
    let Ok(mode) = fs::metadata(folder).map(|found| found.permissions().mode()) else { return };
    if mode & OTHERS == 0 {
        return;
    }
    let shown = folder.display();
    match fs::set_permissions(folder, Permissions::from_mode(mode & 0o7777 & !OTHERS)) {
        Ok(()) => {
            tracing::info!(folder = %shown, "other users could enter the folder of the log: it is closed to them now");
        }
        Err(error) => {
            tracing::warn!(folder = %shown, %error, "other users can enter the folder of the log, and this one cannot close it to them");
        }
    }
}

fn flush(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns whether the file system of an existing file allows direct I/O.
fn allows_direct(path: &Path) -> bool {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).is_ok()
}

fn cause(error: &io::Error) -> DiskCause {
    DiskCause::System(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

/// Of folders and files that are made here.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What the group and others may do.
const OTHERS: u32 = 0o077;
/// How long to wait for the lock of a folder: longer than a fork takes.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Files that stay open: the segments in use, register, identity, a checkpoint.
const OPEN_MAX: usize = 16;
/// How much is read to find out whether the disk is there.
const PROBE: usize = 4096;
/// How much is written at a time when a file is made.
const PIECE: u64 = 1 << 20;
