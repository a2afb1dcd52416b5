//! A disk that does not answer: which operation hangs, and for how long.
//!
//! An operation that fails ends the log by itself. One that hangs does not return, in a system call that nothing can interrupt, while
//! all other threads of the process continue; so they look here.
//!
//! - \[W16\] Each operation is judged by itself, and by its present step: a write of a message is overdue in its own time, although a
//!   segment, which may take a minute, has been in the making since before. It hangs if it is still under way a second after it was found
//!   overdue: a process that was halted itself finds what it was doing late, and the disk has answered long ago.

use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use squall_fabric::mutex::lock;

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
    /// How much its present step reads, writes or flushes.
    bytes: u64,
    /// When that step began.
    begun: Instant,
    /// Since when it has been known to be overdue.
    overdue_since: Option<Instant>,
}

impl Operation {
    /// Returns by how much it is overdue, if it is: longer than `patience` and a second for each MiB.
    fn overdue(&self, now: Instant, patience: Duration) -> Option<Duration> {
        let allowed = patience.saturating_add(Duration::from_millis((self.bytes >> 10) * 1000 / 1024));
        now.saturating_duration_since(self.begun).checked_sub(allowed).filter(|more| !more.is_zero())
    }

    /// Returns by how much it is overdue, if it hangs: as it was overdue before, and this process has run since then.
    fn hangs(&mut self, now: Instant, patience: Duration) -> Option<Duration> {
        let overdue = self.overdue(now, patience);
        if overdue.is_none() {
            self.overdue_since = None;
            return None;
        }
        let since = *self.overdue_since.get_or_insert(now);
        overdue.filter(|_| now.saturating_duration_since(since) >= patience.min(RUNS_AGAIN))
    }
}

impl<D> WatchedDisk<D> {
    /// Watches a disk.
    pub const fn new(disk: D) -> Self {
        Self { disk, under_way: Mutex::new(Vec::new()) }
    }

    /// Returns the operation that is overdue by the most, as an error, if one hangs: its present step has been under way for longer
    /// than `patience` and a second for each MiB, and a call a second ago has found that already \[W16\].
    pub fn overdue(&self, patience: Duration) -> Option<DiskError> {
        let (mut operations, now) = (self.operations(), Instant::now());
        let overdue =
            operations.iter_mut().filter_map(|operation| Some((operation.hangs(now, patience)?, operation)));
        let (_, operation) = overdue.max_by_key(|(by, _)| *by)?;
        Some(DiskError {
            operation: operation.name,
            path: operation.path.clone(),
            cause: DiskCause::Hangs { seconds: now.saturating_duration_since(operation.begun).as_secs() },
        })
    }

    /// Returns whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        self.operations().is_empty()
    }

    fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        lock(&self.under_way)
    }

    fn watch<T>(&self, name: &'static str, path: &str, bytes: u64, run: impl FnOnce(&D) -> T) -> T {
        self.watch_steps(name, path, bytes, |disk, _| run(disk))
    }

    /// Watches an operation that reports its steps, by their bytes.
    fn watch_steps<T>(
        &self,
        name: &'static str,
        path: &str,
        bytes: u64,
        run: impl FnOnce(&D, &mut dyn FnMut(u64)) -> T,
    ) -> T {
        let mut operations = self.operations();
        let number = operations.last().map_or(0, |last| last.number + 1);
        let begun = Instant::now();
        operations.push(Operation { number, name, path: path.into(), bytes, begun, overdue_since: None });
        drop(operations);
        let outcome = run(&self.disk, &mut |bytes| {
            let mut operations = self.operations();
            let own = operations.iter_mut().find(|operation| operation.number == number);
            let own = own.expect("it is under way");
            (own.bytes, own.begun, own.overdue_since) = (bytes, Instant::now(), None);
        });
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

    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError> {
        self.watch_steps("write zeros to", path, 0, |disk, watch_step| {
            disk.create_in_steps(path, length, &mut |bytes| {
                watch_step(bytes);
                begin_step(bytes);
            })
        })
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

    fn check_folder(&self) -> Result<(), DiskError> {
        self.watch("find", "the folder of the log", 0, Disk::check_folder)
    }
}

/// A process that was halted has finished what its disk has done meanwhile when it has run for this time.
const RUNS_AGAIN: Duration = Duration::from_secs(1);

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
            writer.create("long", 4096)
        });
        begins.recv().expect("it begins");
        while disk.operations().is_empty() {
            std::thread::yield_now();
        }
        disk.operations()[0].bytes = 1 << 30;
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

    /// \[W16\] A segment was in the making when a disk hung; it could take a minute, and the write of a message hung for as long.
    #[test]
    fn a_long_operation_does_not_hide_a_short_one_that_hangs() {
        let disk = WatchedDisk::new(());
        let begun = Instant::now() - Duration::from_secs(5);
        let overdue_since = Some(begun);
        let operation = |number, name, bytes, begun| {
            let path = "log/1".into();
            Operation { number, name, path, bytes, begun, overdue_since }
        };
        let segment = operation(0, "write zeros to", 64 << 20, begun);
        let write = operation(1, "write", 4096, begun + Duration::from_secs(1));
        disk.operations().extend([segment, write]);
        let error = disk.overdue(Duration::from_secs(3)).expect("the write hangs");
        assert_eq!((error.operation, error.cause), ("write", DiskCause::Hangs { seconds: 4 }));
        assert_eq!(disk.overdue(Duration::from_secs(30)), None);
    }

    /// \[W16\] A process that was halted itself finds that an operation has taken long, and then that it has ended.
    #[test]
    fn a_process_that_was_halted_does_not_blame_its_disk() {
        let begun = Instant::now();
        let (path, overdue_since) = ("log/1".into(), None);
        let mut write = Operation { number: 0, name: "write", path, bytes: 0, begun, overdue_since };
        let patience = Duration::from_secs(2);
        let mut hangs_after = |millis| write.hangs(begun + Duration::from_millis(millis), patience);
        assert_eq!((hangs_after(100), hangs_after(5_100)), (None, None), "it was halted for five seconds");
        assert_eq!(hangs_after(6_000), None);
        assert_eq!(
            hangs_after(6_200),
            Some(Duration::from_millis(4_200)),
            "it runs, and the disk does not answer"
        );
    }

    /// \[W16\] A long operation is judged by its present step.
    #[test]
    fn a_step_that_hangs_is_found_before_all_could_be_done() {
        let disk = WatchedDisk::new(());
        disk.watch_steps("write zeros to", "log/1", 0, |(), begin_step| {
            begin_step(1 << 20);
            let now = Instant::now();
            let overdue = |after: u64| {
                let operations = disk.operations();
                operations[0].overdue(now + Duration::from_millis(after), Duration::from_millis(500))
            };
            assert_eq!(overdue(1400), None, "it has a second for its MiB");
            assert!(overdue(1600).is_some());
            begin_step(64 << 20);
            assert_eq!(overdue(60_000), None, "what is flushed may be long");
        });
        assert!(disk.is_idle());
    }
}
