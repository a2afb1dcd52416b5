//! A file system on a disk of the test's own, which sees each write and each flush that the kernel sends to the disk.
//!
//! The disk is a file of a file system in user space (FUSE, whose few requests are answered here, and nothing else), and a loop device on
//! it with direct I/O. So what the kernel's file system writes and flushes comes here in the order in which it waits for the answers:
//! a write as `WRITE`, a flush of the disk as `FSYNC`. One thread answers a disk's requests one after the other; so a flush covers all
//! writes that were answered before it came, and those that are not answered yet have not come.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use super::contents::{Contents, DiskEvent, SECTOR};

/// A disk with a file system, which is mounted until this is dropped.
pub(crate) struct FuseDisk {
    /// Where its file system is mounted.
    pub(crate) mount: PathBuf,
    device: String,
    file_folder: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl FuseDisk {
    /// Mounts a disk with these contents, a new file system if there are none, in `folder`; `record` gets what happens on it.
    pub(crate) fn mount(
        folder: &Path,
        contents: Option<Contents>,
        record: impl Fn(DiskEvent) + Send + 'static,
    ) -> Result<Self, String> {
        let (file_folder, mount) = (folder.join("device"), folder.join("mount"));
        for folder in [&file_folder, &mount] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let channel = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let channel = channel.map_err(|error| format!("/dev/fuse: {error}"))?;
        let stdin = channel.try_clone().map_err(|error| error.to_string())?;
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
        let mut command = Command::new("mount");
        command.args(["-i", "-t", "fuse", "-o", options, "squall-disk"]).arg(&file_folder).stdin(stdin);
        run(&mut command)?;
        let is_new = contents.is_none();
        let server = DiskServer { channel, contents: contents.unwrap_or_default(), record: Box::new(record) };
        let server = Some(std::thread::spawn(move || server.run()));
        // From here on dropping it takes back what was done.
        let mut disk = Self { mount, device: String::new(), file_folder, server };
        let file = disk.file_folder.join(FILE);
        disk.device = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file))?;
        if is_new {
            run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "nodiscard"]).arg(&disk.device))?;
        }
        run(Command::new("mount").args(["-t", "ext4"]).arg(&disk.device).arg(&disk.mount))?;
        Ok(disk)
    }
}

impl Drop for FuseDisk {
    fn drop(&mut self) {
        // A thread that has just been waiting for the disk may use it for a moment.
        let is_free = |folder: &Path| {
            (0..100).any(|_| {
                let is_free = run(Command::new("umount").arg(folder)).is_ok();
                if !is_free {
                    std::thread::sleep(Duration::from_millis(50));
                }
                is_free
            })
        };
        let is_mounted = is_mounted(&self.mount);
        if is_mounted && !is_free(&self.mount) {
            eprintln!("{} stays mounted", self.mount.display());
            return;
        }
        if !self.device.is_empty() {
            let _ = run(Command::new("losetup").arg("-d").arg(&self.device));
        }
        if is_free(&self.file_folder) {
            let _ = self.server.take().map(JoinHandle::join);
        }
    }
}

fn is_mounted(folder: &Path) -> bool {
    run(Command::new("mountpoint").arg("-q").arg(folder)).is_ok()
}

/// Runs a program; returns what it prints.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::piped()).stdout(Stdio::piped()).output();
    let output =
        output.map_err(|error| format!("{command:?} (apt install util-linux e2fsprogs): {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The thread that answers the kernel.
struct DiskServer {
    channel: File,
    contents: Contents,
    record: Box<dyn Fn(DiskEvent) + Send>,
}

impl DiskServer {
    /// Answers until the file system is unmounted.
    fn run(mut self) {
        let mut request = vec![0; REQUEST_MAX];
        while let Ok(length) = self.channel.read(&mut request) {
            let unique = word(&request, 8);
            let Some(answer) = self.answer(&request[..length]) else { continue };
            let (error, bytes) = match answer {
                Ok(bytes) => (0_i32, bytes),
                Err(error) => (-error, Vec::new()),
            };
            let mut reply = Vec::with_capacity(16 + bytes.len());
            reply.extend(u32::try_from(16 + bytes.len()).expect("short").to_le_bytes());
            reply.extend(error.to_le_bytes());
            reply.extend(unique.to_le_bytes());
            reply.extend(bytes);
            // The request may have been withdrawn.
            let _ = self.channel.write_all(&reply);
        }
    }

    /// Answers a request: bytes or an error; none if it takes no answer.
    fn answer(&mut self, request: &[u8]) -> Option<Result<Vec<u8>, i32>> {
        let (operation, node) = (half(request, 4), word(request, 16));
        let body = &request[40..];
        Some(Ok(match operation {
            INIT => words(&[
                (7, 4),
                (31, 4),
                (0, 4),
                (u64::from(BIG_WRITES | MAX_PAGES), 4),
                (16, 2),
                (12, 2),
                (u64::from(WRITE_MAX), 4),
                (1, 4),
                (u64::from(WRITE_MAX / 4096), 2),
                (0, 2),
                (0, 4),
                (0, 8),
                (0, 8),
                (0, 8),
            ]),
            LOOKUP if body.strip_suffix(b"\0") == Some(FILE.as_bytes()) => {
                let mut entry = words(&[(FILE_NODE, 8), (0, 8), (3600, 8), (3600, 8), (0, 4), (0, 4)]);
                entry.extend(attributes(FILE_NODE));
                entry
            }
            LOOKUP => return Some(Err(NO_SUCH_FILE)),
            GETATTR => {
                let mut found = words(&[(3600, 8), (0, 4), (0, 4)]);
                found.extend(attributes(node));
                found
            }
            OPEN => words(&[(0, 8), (DIRECT_IO, 4), (0, 4)]),
            READ => self.contents.read(word(body, 8), half(body, 16) as usize),
            WRITE => {
                let (offset, length) = (word(body, 8), half(body, 16));
                self.write(offset, &body[40..40 + length as usize]);
                words(&[(length.into(), 4), (0, 4)])
            }
            FSYNC => {
                // A flush takes its time: what is reported without it is reported before it.
                std::thread::sleep(FLUSH);
                (self.record)(DiskEvent::Flush);
                Vec::new()
            }
            STATFS => vec![0; 80],
            RELEASE | FLUSH_FILE | OPENDIR | RELEASEDIR => Vec::new(),
            FORGET | BATCH_FORGET => return None,
            _ => return Some(Err(NOT_IMPLEMENTED)),
        }))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!((offset as usize | bytes.len()).is_multiple_of(SECTOR), "a disk is written by the sector");
        let kept = bytes.iter().any(|byte| *byte != 0).then(|| bytes.to_vec());
        let event = DiskEvent::Write { offset, length: bytes.len(), bytes: kept };
        self.contents.write(&event, |_| true);
        (self.record)(event);
    }
}

/// What the kernel wants to know of the folder or of the file in it.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == FILE_NODE { (0o100_600, DISK_BYTES) } else { (0o40_700, 0) };
    let times = [(0, 8), (0, 8), (0, 8), (0, 4), (0, 4), (0, 4)];
    let head = [(node, 8), (size, 8), (size / 512, 8)];
    words(&[&head[..], &times, &[(mode, 4), (1, 4), (0, 4), (0, 4), (0, 4), (4096, 4), (0, 4)]].concat())
}

/// Numbers with their lengths, as bytes.
fn words(numbers: &[(u64, usize)]) -> Vec<u8> {
    numbers.iter().flat_map(|(number, length)| number.to_le_bytes().into_iter().take(*length)).collect()
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The length of a disk; what is not written takes no memory.
const DISK_BYTES: u64 = 600 << 20;
/// How long a flush takes.
const FLUSH: Duration = Duration::from_micros(500);
const FILE: &str = "disk";
const FILE_NODE: u64 = 2;
const WRITE_MAX: u32 = 1 << 20;
/// The longest write, and its headers.
const REQUEST_MAX: usize = WRITE_MAX as usize + 8192;
const NO_SUCH_FILE: i32 = 2;
const NOT_IMPLEMENTED: i32 = 38;
/// Requests and flags of the protocol (`linux/fuse.h`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH_FILE: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const BATCH_FORGET: u32 = 42;
const BIG_WRITES: u32 = 1 << 5;
const MAX_PAGES: u32 = 1 << 22;
const DIRECT_IO: u64 = 1;
