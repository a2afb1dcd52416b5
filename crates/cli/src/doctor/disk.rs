//! The disk on which a member keeps its log: what it is, and how long it takes.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use squall_harness::terminal::{error_text, units};
use squall_log::{AlignedBuffer, Disk as _, FileDisk};

/// A folder for logs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DiskReport {
    pub(crate) folder: PathBuf,
    /// The file system, as the kernel names it.
    pub(crate) file_system: Option<String>,
    /// The block device below it, where there is one.
    pub(crate) device: Option<String>,
    /// What the kernel believes of the device's cache; with `write back` it is flushed at each write of a log.
    pub(crate) cache: Option<String>,
    /// Bytes that processes of this user may still write there.
    pub(crate) free_bytes: Option<u64>,
    /// What writing showed.
    pub(crate) writes: Option<WriteReport>,
    /// Why it cannot be used, if it cannot.
    pub(crate) failure: Option<String>,
}

/// Writes as a log does them, one at a time, each on the disk when it returns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WriteReport {
    /// Whether they go past the page cache; else each is flushed in a call of its own.
    pub(crate) direct: bool,
    /// Bytes of one.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) us_p50: f64,
    pub(crate) us_p99: f64,
}

/// Looks at the disk of `folder`, and writes there for half a second; if there is no such folder yet, where it would be made.
/// Nothing is left behind.
pub(crate) fn examine(folder: &Path) -> DiskReport {
    let place = folder.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("."));
    let (mount, device) = (mount_of(place), device_of(place));
    let writes = time_writes(place);
    DiskReport {
        folder: folder.to_owned(),
        file_system: mount,
        cache: device.as_ref().and_then(|(_, cache)| cache.clone()),
        device: device.map(|(name, _)| name),
        free_bytes: rustix::fs::statvfs(place).ok().map(|found| found.f_bavail * found.f_frsize),
        failure: writes.as_ref().err().map(error_text),
        writes: writes.ok(),
    }
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, file_system, device, cache, free_bytes, writes, failure } = self;
        write!(f, "{}", folder.display())?;
        for (before, part) in [(" on ", file_system), (", ", device), (", cache ", cache)] {
            part.iter().try_for_each(|part| write!(f, "{before}{part}"))?;
        }
        free_bytes.iter().try_for_each(|free| write!(f, ", {} free", units::bytes(*free as f64)))?;
        if let Some(WriteReport { direct, bytes, us_p50, us_p99, .. }) = writes {
            let way = if *direct { "direct" } else { "flushed one by one, since there is no direct I/O" };
            let size = units::bytes(*bytes as f64);
            write!(f, "; a write of {size} takes {us_p50:.0} µs, 99 % at most {us_p99:.0} µs ({way})")?;
        }
        failure.iter().try_for_each(|why| write!(f, "; cannot be used: {why}"))
    }
}

const WRITE_BYTES: usize = 4096;
const FILE_BYTES: u64 = 4 << 20;
const WRITES_FOR: Duration = Duration::from_millis(500);
const FILE: &str = "writes";

fn time_writes(place: &Path) -> Result<WriteReport> {
    let folder = Scratch(place.join(format!(".squall-doctor-{}", std::process::id())));
    let disk = FileDisk::open(&folder.0)?;
    disk.create(FILE, FILE_BYTES)?;
    let bytes = AlignedBuffer::zeroed(WRITE_BYTES);
    let (begun, mut times, mut offset) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed() < WRITES_FOR || times.is_empty() {
        let before = Instant::now();
        disk.write(FILE, offset, &bytes)?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
        offset = (offset + WRITE_BYTES as u64) % FILE_BYTES;
    }
    times.sort_by(f64::total_cmp);
    let [us_p50, us_p99] = [50, 99].map(|part| times[(times.len() - 1) * part / 100]);
    Ok(WriteReport { direct: disk.is_direct(), bytes: WRITE_BYTES, count: times.len(), us_p50, us_p99 })
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The kind of the file system: of the mounts above a place, that with the longest name counts, and of these the last.
fn mount_of(place: &Path) -> Option<String> {
    let place = place.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let above = mounts.lines().filter_map(parse_mount).filter(|(at, _)| place.starts_with(at));
    above.max_by_key(|(at, _)| at.as_os_str().len()).map(|(_, kind)| kind.to_owned())
}

/// Where something is mounted, and its kind, in a line of `mountinfo` (man 5 proc).
fn parse_mount(line: &str) -> Option<(PathBuf, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let at = before.split(' ').nth(4)?;
    // Spaces are the only such characters that occur in practice.
    Some((at.replace("\\040", " ").into(), after.split(' ').next()?))
}

/// The block device of a file system, and its cache.
fn device_of(place: &Path) -> Option<(String, Option<String>)> {
    let number = std::fs::metadata(place).ok()?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = device.file_name()?.to_str()?.to_owned();
    // A partition has no queue; its disk has.
    let queues = [Some(device.as_path()), device.parent()].into_iter().flatten();
    let cache = queues.filter_map(|at| std::fs::read_to_string(at.join("queue/write_cache")).ok()).next();
    Some((name, cache.map(|text| text.trim().to_owned())))
}

/// The folder of a command line, or that of a configuration with durable subgroups.
pub(crate) fn folder(given: Option<&PathBuf>, config: Option<&squall::Config>) -> Option<PathBuf> {
    given.cloned().or_else(|| config?.storage.as_ref().map(|storage| storage.path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mounts_are_read() {
        let line = "36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(parse_mount(line), Some(("/mnt two".into(), "ext3")));
        assert_eq!(parse_mount("36 35 98:0"), None);
        assert!(mount_of(Path::new("/")).is_some());
    }

    #[test]
    fn a_disk_is_examined_and_nothing_is_left() {
        let parent = Scratch(std::env::temp_dir().join(format!("squall-doctor-test-{}", std::process::id())));
        std::fs::create_dir_all(&parent.0).expect("it can be made");
        let report = examine(&parent.0.join("not/there"));
        let writes = report.writes.expect("it can be written");
        assert!(writes.count > 0 && writes.us_p99 >= writes.us_p50, "{report}");
        assert_eq!(report.failure, None);
        assert_eq!(std::fs::read_dir(&parent.0).expect("it is there").count(), 0);
        let report = examine(Path::new("/proc/squall"));
        assert!(report.failure.is_some() && report.to_string().contains("cannot be used"), "{report}");
    }
}
