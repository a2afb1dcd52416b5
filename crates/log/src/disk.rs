//! What the log needs of a disk: files by their paths within one folder.

use std::fmt;
use std::sync::Mutex;

use squall_fabric::mutex::lock;

use crate::buffer::AlignedBuffer;
use crate::copies::COPY_VALUE_BYTES_MAX;

/// A folder on a disk. Paths are relative to it, with `/`.
///
/// A write is on the disk when it returns; names (of [`Self::create`], [`Self::rename`], [`Self::remove`]) are when
/// [`Self::flush_folder`] of their folder has returned.
pub trait Disk {
    /// Returns the names in `folder`, sorted.
    ///
    /// # Errors
    /// As the system says.
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError>;

    /// Returns the length of a file.
    ///
    /// # Errors
    /// As the system says.
    fn length(&self, path: &str) -> Result<u64, DiskError>;

    /// Reads from `offset` on, and returns how many bytes there are, at most the length of `buffer`. `offset` and length are
    /// multiples of the block.
    ///
    /// # Errors
    /// As the system says.
    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError>;

    /// Makes a file of `length` written zeros, in place of another of that name, and flushes it.
    ///
    /// # Errors
    /// As the system says; the file may exist in part.
    fn create(&self, path: &str, length: u64) -> Result<(), DiskError> {
        self.create_in_steps(path, length, &mut |_| ())
    }

    /// Makes a file as [`Self::create`] does, and calls `begin_step` before each step with the number of bytes that it writes or
    /// flushes: what watches over the disk need not wait for the whole file to find that it hangs.
    ///
    /// # Errors
    /// As the system says; the file may exist in part.
    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`, both multiples of the block, and waits until they are on the disk.
    ///
    /// # Errors
    /// As the system says, and if only a part was written. After an error nothing is known of the range.
    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError>;

    /// Gives a file another name, in place of another file of that name.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, path: &str) -> Result<(), DiskError>;

    /// Waits until the names in `folder` are on the disk.
    ///
    /// # Errors
    /// As the system says.
    fn flush_folder(&self, folder: &str) -> Result<(), DiskError>;

    /// Checks that the folder is still found where it was opened, on a disk that can be read: files that are open would be written on when no
    /// process can find them any more, and while nothing is written, nothing else notices that the disk has gone.
    ///
    /// # Errors
    /// [`DiskCause::Vanished`], or as the system says.
    fn check_folder(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

/// A disk behind a reference, shared by threads, or used by one thread at a time.
macro_rules! disk_behind {
    ($($kind:ty: $own:ident => $disk:expr),+) => {$(
        impl<D: Disk + ?Sized> Disk for $kind {
            fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
                let $own = self;
                $disk.list(folder)
            }
            fn length(&self, path: &str) -> Result<u64, DiskError> {
                let $own = self;
                $disk.length(path)
            }
            fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
                let $own = self;
                $disk.read(path, offset, buffer)
            }
            fn create_in_steps(
                &self,
                path: &str,
                length: u64,
                begin_step: &mut dyn FnMut(u64),
            ) -> Result<(), DiskError> {
                let $own = self;
                $disk.create_in_steps(path, length, begin_step)
            }
            fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
                let $own = self;
                $disk.write(path, offset, bytes)
            }
            fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
                let $own = self;
                $disk.rename(from, to)
            }
            fn remove(&self, path: &str) -> Result<(), DiskError> {
                let $own = self;
                $disk.remove(path)
            }
            fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
                let $own = self;
                $disk.flush_folder(folder)
            }
            fn check_folder(&self) -> Result<(), DiskError> {
                let $own = self;
                $disk.check_folder()
            }
        }
    )+};
}

disk_behind!(
    &D: disk => (**disk),
    std::rc::Rc<D>: disk => (**disk),
    std::sync::Arc<D>: disk => (**disk),
    Mutex<D>: disk => lock(disk)
);

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// What was tried, as in `failed to …`.
    pub operation: &'static str,
    /// The file or folder.
    pub path: String,
    /// Why.
    pub cause: DiskCause,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskCause {
    /// The system's error number.
    System(i32),
    /// Only a part was written.
    Short {
        /// Bytes written.
        written: u64,
        /// Bytes to be written.
        wanted: u64,
    },
    /// It has not returned.
    Hangs {
        /// How long it has been under way.
        seconds: u64,
    },
    /// It was removed or unmounted while it was in use, or another one is in its place.
    Vanished,
    /// No copy of the register is good.
    RegisterLost,
    /// The register has grown too long.
    RegisterLong {
        /// Its length.
        length: usize,
    },
    /// A thread of the log has panicked.
    Panicked,
}

impl DiskError {
    /// Returns whether the file does not exist.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.cause == DiskCause::System(rustix::io::Errno::NOENT.raw_os_error())
    }

    /// Returns whether the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let full = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT];
        full.iter().any(|errno| self.cause == DiskCause::System(errno.raw_os_error()))
    }

    fn advice(&self) -> &'static str {
        use rustix::io::Errno;
        let errno = match self.cause {
            DiskCause::System(errno) => errno,
            DiskCause::Short { .. } => {
                return "the disk is failing or full: check it, then start this member again";
            }
            DiskCause::Hangs { .. } => {
                return "the disk hangs: check it and what connects it; when it answers again, end this process and start it anew";
            }
            DiskCause::Vanished => {
                return "it was removed, unmounted or replaced while this member used it: bring it back, then start this member again; if it is \
                        lost, start it with an empty folder, and it fetches from others what it lacks";
            }
            DiskCause::RegisterLost => return "begin a new log in the folder, and join as a new member",
            DiskCause::RegisterLong { .. } => {
                return "too many views with messages have ended in this group: start it anew from empty folders";
            }
            DiskCause::Panicked => return "an error of this program: report it, and start this member again",
        };
        match Errno::from_raw_os_error(errno) {
            Errno::NOSPC | Errno::DQUOT => "free space on that disk, then start this member again",
            Errno::IO => {
                "the disk is failing: check it, then start this member again; it fetches from others what its log lacks"
            }
            Errno::ACCESS | Errno::PERM | Errno::ROFS => "make the folder writable for this user",
            Errno::MFILE | Errno::NFILE => "raise the limit of open files",
            Errno::FBIG => "raise the limit of the size of files (ulimit -f), then start this member again",
            Errno::NOLCK => "this file system has no locks: choose a folder on another one",
            _ => "check the folder and its disk, then start this member again",
        }
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, path, cause } = self;
        write!(f, "failed to {operation} {path}: {cause} ({})", self.advice())
    }
}

impl fmt::Display for DiskCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Self::Short { written, wanted } => write!(f, "{written} of {wanted} bytes were written"),
            Self::Hangs { seconds } => write!(f, "no answer for {seconds} s"),
            Self::Vanished => f.write_str("it is not there any more"),
            Self::RegisterLost => f.write_str("no copy of it is good"),
            Self::RegisterLong { length } => {
                write!(f, "it has {length} bytes, and {COPY_VALUE_BYTES_MAX} is the most")
            }
            Self::Panicked => f.write_str("the thread that does this has panicked"),
        }
    }
}

impl std::error::Error for DiskError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened, with the values, and what to do next.
    #[test]
    fn errors_say_what_to_do() {
        let error = |cause| DiskError { operation: "write 4096 bytes at 0 of", path: "log/1".into(), cause };
        assert_eq!(
            error(DiskCause::System(28)).to_string(),
            "failed to write 4096 bytes at 0 of log/1: No space left on device (os error 28) (free space on that disk, then \
             start this member again)"
        );
        assert!(error(DiskCause::System(5)).to_string().contains("the disk is failing"));
        // A limit of the user, and a file system without locks.
        assert!(error(DiskCause::System(27)).to_string().contains("ulimit -f"));
        assert!(error(DiskCause::System(37)).to_string().contains("has no locks"));
        assert!(error(DiskCause::Short { written: 1, wanted: 2 }).to_string().contains("1 of 2 bytes"));
        assert!(error(DiskCause::System(28)).is_full() && !error(DiskCause::System(5)).is_full());
    }
}
