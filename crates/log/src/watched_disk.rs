//! A disk that does not answer: which operation hangs, and for how long.
//!
//! An operation that fails ends the log by itself. One that hangs does not return, in a system call that nothing can interrupt, while
//! all other threads of the process continue; so they look here.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::buffer::AlignedBuffer;
use crate::disk::{Disk, DiskCause, DiskError};

/// A disk, and the operations that are under way on it.
///
/// ```
/// use std::time::Duration;
/// use squall_log::{Disk, SimDisk, WatchedDisk};
///
/// let disk = WatchedDisk::new(SimDisk::new(1, 4096));
/// disk.create("file", 4096)?;
/// assert_eq!(disk.overdue(Duration::ZERO), None); // nothing is under way
/// # Ok::<(), squall_log::DiskError>(())
/// ```
pub struct WatchedDisk<D> {
    disk: D,
    /// Few at a time: one for each thread that uses the disk.
    under_way: Mutex<Vec<Operation>>,
}

/// An operation that has not returned.
struct Operation {
    number: u64,
    /// As in `failed to …`.
    name: &'static str,
    path: String,
    bytes: u64,
    begun: Instant,
}

impl<D> WatchedDisk<D> {
    /// Watches a disk.
    pub const fn new(disk: D) -> Self {
        Self { disk, under_way: Mutex::new(Vec::new()) }
    }

    /// Returns the operation that has been under way for the longest time, as an error, if that is longer than `patience` and a
    /// second for each MiB that it reads or writes.
    pub fn overdue(&self, patience: Duration) -> Option<DiskError> {
        let operations = self.operations();
        let oldest = operations.iter().min_by_key(|operation| operation.begun)?;
        let elapsed = oldest.begun.elapsed();
        let allowed = patience.saturating_add(Duration::from_millis((oldest.bytes >> 10) * 1000 / 1024));
        (elapsed > allowed).then(|| DiskError {
            operation: oldest.name,
            path: oldest.path.clone(),
            cause: DiskCause::Hangs { seconds: elapsed.as_secs() },
        })
    }

    /// Returns whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        self.operations().is_empty()
    }

    fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch<T>(&self, name: &'static str, path: &str, bytes: u64, run: impl FnOnce(&D) -> T) -> T {
        let mut operations = self.operations();
        let number = operations.last().map_or(0, |last| last.number + 1);
        operations.push(Operation { number, name, path: path.into(), bytes, begun: Instant::now() });
        drop(operations);
        let outcome = run(&self.disk);
        self.operations().retain(|operation| operation.number != number);
        outcome
    }
}

impl<D> fmt::Debug for WatchedDisk<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedDisk").finish_non_exhaustive()
    }
}

impl<D: Disk> Disk for WatchedDisk<D> {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        self.watch("list", folder, 0, |disk| disk.list(folder))
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        self.watch("find", path, 0, |disk| disk.length(path))
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        self.watch("read", path, buffer.len() as u64, |disk| disk.read(path, offset, buffer))
    }

    fn create(&self, path: &str, length: u64) -> Result<(), DiskError> {
        self.watch("write zeros to", path, length, |disk| disk.create(path, length))
    }

    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
        self.watch("write", path, bytes.len() as u64, |disk| disk.write(path, offset, bytes))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.watch("rename", from, 0, |disk| disk.rename(from, to))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.watch("remove", path, 0, |disk| disk.remove(path))
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        self.watch("flush", folder, 0, |disk| disk.flush_folder(folder))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::SimDisk;

    /// A disk that hangs differs from one that answers, and a long operation gets its time.
    #[test]
    fn what_hangs_is_said() {
        let disk = Arc::new(WatchedDisk::new(Mutex::new(SimDisk::new(1, 4096))));
        disk.create("file", 8192).expect("it works");
        assert_eq!(disk.overdue(Duration::ZERO), None);
        let held = disk.disk.lock().expect("no panic");
        let (begun, begins) = channel();
        let writer = Arc::clone(&disk);
        let writing = std::thread::spawn(move || {
            begun.send(()).expect("it waits");
            writer.create("long", 1 << 30)
        });
        begins.recv().expect("it begins");
        while disk.operations().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(disk.overdue(Duration::ZERO), None, "it may take 1,024 seconds");
        disk.operations()[0].bytes = 4096;
        while disk.overdue(Duration::from_millis(1)).is_none() {
            std::thread::yield_now();
        }
        let error = disk.overdue(Duration::ZERO).expect("it hangs");
        assert_eq!((error.operation, &*error.path), ("write zeros to", "long"));
        let text = error.to_string();
        assert!(text.contains(": no answer for ") && text.contains(" s (the disk hangs: check it"), "{text}");
        drop(held);
        writing.join().expect("no panic").expect("it works again");
        assert_eq!(disk.overdue(Duration::ZERO), None);
    }
}
