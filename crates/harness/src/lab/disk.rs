//! A host's own disk: an ext4 file system on a loop device, whose sectors are in a file that this process serves by FUSE, so that it can be
//! slow, fail and vanish as disks do, below the file system and its page cache. Where there is no `/dev/fuse`, the file is an ordinary one:
//! such a disk can be full and frozen, but neither slow nor failing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno as SystemError;
use serde::{Deserialize, Serialize};
use squall_fabric::mutex::lock;

use super::LabHost;
use super::wire::run_program;

/// What a host's own disk does. The default is a disk without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskConditions {
    /// How much longer each read, write and flush takes; the disk does one after the other.
    pub delay: Duration,
    /// Writes and flushes fail with an I/O error.
    pub fails: bool,
    /// Reads, too: the disk has gone. What is in the page cache can still be read.
    pub is_gone: bool,
    /// No space is free, for any user.
    pub is_full: bool,
    /// All that writes waits.
    pub is_frozen: bool,
}

impl DiskConditions {
    /// Whether a disk needs to be served by this process in order to have these conditions.
    fn need_device(&self) -> bool {
        !self.delay.is_zero() || self.fails || self.is_gone
    }
}

/// A disk that is mounted at [`DISK`].
pub(super) struct HostDisk {
    conditions: DiskConditions,
    /// Why it can be neither slow nor failing, or what it does.
    device: Result<DiskDevice, String>,
}

impl HostDisk {
    /// Makes a file system of `bytes` in a folder in memory, at [`DISK`], for the host of this name, and mounts it there, instead of it.
    pub(super) fn mount(name: &str, bytes: u64) -> Result<Self> {
        let image = format!("{DISK}/{name}.image");
        File::create(&image)?.set_len(bytes)?;
        run_program(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", &image]))?;
        let device = DiskDevice::serve(Path::new(&image), &Path::new(DISK).join(name));
        let file = device.as_ref().map_or_else(|_| image.into(), |device| device.file.clone());
        run_program(Command::new("mount").args(["-o", "loop"]).arg(file).arg(DISK))?;
        Ok(Self { conditions: DiskConditions::default(), device })
    }

    /// Gives it other conditions. If it cannot have one of them, those before it hold.
    pub(super) fn set(&mut self, conditions: DiskConditions) -> Result<()> {
        match &self.device {
            Ok(device) => device.set(conditions),
            Err(missing) => {
                ensure!(!conditions.need_device(), "a disk can be neither slow nor failing here: {missing}")
            }
        }
        // A frozen disk can neither be filled nor emptied.
        if self.conditions.is_frozen && !conditions.is_frozen {
            freeze(false)?;
            self.conditions.is_frozen = false;
        }
        if conditions.is_full != self.conditions.is_full {
            ensure!(!self.conditions.is_frozen, "a frozen disk can neither be filled nor emptied");
            if conditions.is_full {
                fill()?
            } else {
                std::fs::remove_file(FILLER)?
            }
            self.conditions.is_full = conditions.is_full;
        }
        if conditions.is_frozen && !self.conditions.is_frozen {
            freeze(true)?;
        }
        self.conditions = conditions;
        Ok(())
    }
}

impl Drop for HostDisk {
    /// What waits for a frozen disk cannot be killed, and what waits for a slow one not soon.
    fn drop(&mut self) {
        if let Ok(device) = &self.device {
            device.set(DiskConditions::default());
        }
        if self.conditions.is_frozen {
            let _ = freeze(false);
        }
    }
}

fn freeze(is_frozen: bool) -> Result<()> {
    run_program(Command::new("fsfreeze").args([if is_frozen { "--freeze" } else { "--unfreeze" }, DISK]))
}

/// Mounts the disk of a host again after its file system was checked, as one does whose disk has failed: what could not be written in time
/// leaves the file system read-only. No process on the host may use it.
pub(crate) fn repair_disk(host: &LabHost) -> Result<()> {
    let mut repair = super::enter(host.pid, &["--mount", "--uts", "--pid"]);
    run_program(repair.args(["sh", "-c", REPAIR]))
}

/// Takes all space that is free.
fn fill() -> Result<()> {
    let file = File::create(FILLER).context("cannot fill the disk")?;
    let mut end = 0;
    loop {
        let state = statvfs(DISK)?;
        // The file system needs some for itself, to know which are taken.
        let mut free = state.f_bavail * state.f_frsize;
        while free > 0 {
            match fallocate(&file, FallocateFlags::empty(), end, free) {
                Ok(()) => break,
                Err(SystemError::NOSPC) => free = free / 2 / state.f_frsize * state.f_frsize,
                Err(error) => return Err(error).context("cannot fill the disk"),
            }
        }
        if free == 0 {
            return Ok(());
        }
        end += free;
    }
}

/// The one file of a file system of its own, which is what the loop device reads and writes.
struct DiskDevice {
    conditions: Arc<Mutex<DiskConditions>>,
    file: PathBuf,
    _session: BackgroundSession,
}

impl DiskDevice {
    /// Serves the content of `image`, in a new folder; else returns why it cannot be.
    fn serve(image: &Path, folder: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("no file system in user space (/dev/fuse): {error}");
        let file = File::options().read(true).write(true).open(image).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let conditions: Arc<Mutex<DiskConditions>> = Arc::default();
        let served = ServedFile { file, bytes, conditions: Arc::clone(&conditions) };
        std::fs::create_dir(folder).map_err(failed)?;
        let session = fuser::spawn_mount(served, folder, &fuser::Config::default()).map_err(failed)?;
        Ok(Self { conditions, file: folder.join(FILE), _session: session })
    }

    fn set(&self, conditions: DiskConditions) {
        *lock(&self.conditions) = conditions;
    }
}

struct ServedFile {
    file: File,
    bytes: u64,
    conditions: Arc<Mutex<DiskConditions>>,
}

impl ServedFile {
    /// Waits as long as the disk takes, and fails as it does.
    fn take(&self, is_read: bool) -> Result<(), Errno> {
        let DiskConditions { delay, fails, is_gone, .. } = *lock(&self.conditions);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        if is_gone || fails && !is_read { Err(Errno::EIO) } else { Ok(()) }
    }

    fn attributes(&self, number: INodeNo) -> FileAttr {
        let is_root = number == INodeNo::ROOT;
        let bytes = if is_root { 0 } else { self.bytes };
        FileAttr {
            ino: number,
            size: bytes,
            blocks: bytes / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for ServedFile {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&VALID, &self.attributes(NUMBER), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(number));
    }

    /// Without a cache above it, which would hide what the disk does.
    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.bytes.saturating_sub(offset).min(size.into());
        let mut bytes = vec![0; usize::try_from(left).expect("at most `size`")];
        let read = self.take(true).and_then(|()| Ok(self.file.read_exact_at(&mut bytes, offset)?));
        match read {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.take(false).and_then(|()| Ok(self.file.write_all_at(bytes, offset)?));
        match written {
            Ok(()) => reply.written(u32::try_from(bytes.len()).expect("it was asked for in 32 bits")),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _is_data_only: bool, reply: ReplyEmpty) {
        match self.take(false) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// A process that closes it has nothing to wait for.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Where a host's own disk is mounted.
pub(crate) const DISK: &str = "/mnt";
/// A process that has been killed may use the disk for a moment. A file system that could be corrected is no failure (a status below 4).
const REPAIR: &str = "tries=0
until umount /mnt 2>/dev/null; do
    tries=$((tries + 1)); [ $tries -lt 100 ] || exec umount /mnt; sleep 0.05
done
file=/mnt/$(hostname)/sectors
[ -e $file ] || file=/mnt/$(hostname).image
said=$(fsck.ext4 -y $file 2>&1); [ $? -lt 4 ] || { echo \"$said\" >&2; exit 1; }
exec mount -o loop $file /mnt";
/// What takes the space of a full disk.
const FILLER: &str = "/mnt/.squall-lab-full";
/// The name and the number of the file that is served.
const FILE: &str = "sectors";
const NUMBER: INodeNo = INodeNo(2);
/// How long the kernel may believe what it is answered of the file, which does not change.
const VALID: Duration = Duration::from_secs(3600);
