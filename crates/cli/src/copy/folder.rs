//! The folder that is served: nothing is read or written outside it, whatever paths and links name.

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, flock, fstat, mkdirat, openat2, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A folder, held open.
#[derive(Debug)]
pub(crate) struct Folder {
    root: OwnedFd,
    name: PathBuf,
    /// The permissions that files and folders of this process do not get.
    umask: u32,
}

/// A place for a file: its folder, and its name there.
#[derive(Debug)]
pub(crate) struct FilePlace {
    folder: OwnedFd,
    name: String,
    umask: u32,
    /// For messages.
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.with_context(|| format!("cannot serve {}", path.display()))?;
        Ok(Self { root, name: path.to_owned(), umask: umask() })
    }

    /// Whether `path` is a folder here.
    pub(crate) fn is_folder(&self, path: &[String]) -> bool {
        self.open_folder(path).is_ok()
    }

    /// Makes a folder and all above it.
    pub(crate) fn make(&self, path: &[String], mode: u32) -> Result<()> {
        for end in 1..=path.len() {
            if self.is_folder(&path[..end]) {
                continue;
            }
            let above = self.open_folder(&path[..end - 1])?;
            // Its owner has to write into it. The kernel applies the umask.
            let mode = Mode::from_raw_mode(mode & PERMISSIONS | 0o700);
            let made = mkdirat(&above, path[end - 1].as_str(), mode);
            made.with_context(|| format!("cannot make the folder {}", self.show(&path[..end])))?;
        }
        Ok(())
    }

    /// The place of a file whose folder is there.
    pub(crate) fn place(&self, path: &[String]) -> Result<FilePlace> {
        let (name, above) = path.split_last().context("a file needs a name")?;
        let folder = self.open_folder(above)?;
        let path = self.name.join(path.join("/"));
        Ok(FilePlace { folder, name: name.clone(), umask: self.umask, path })
    }

    fn open_folder(&self, path: &[String]) -> Result<OwnedFd> {
        let joined = if path.is_empty() { ".".into() } else { path.join("/") };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(&self.root, joined.as_str(), flags, Mode::empty(), ResolveFlags::BENEATH);
        opened.with_context(|| format!("cannot use the folder {}", self.show(path)))
    }

    fn show(&self, path: &[String]) -> String {
        self.name.join(path.join("/")).display().to_string()
    }
}

impl FilePlace {
    /// The same place under a name derived from its own, which file systems take whenever they take its own.
    fn beside(&self, suffix: &str) -> String {
        let whole = format!(".{}.squall-{suffix}", self.name);
        if whole.len() <= NAME_BYTES_MAX {
            return whole;
        }
        let digest = super::digest::digest_of(self.name.as_bytes());
        let begin = &self.name[..self.name.floor_char_boundary(NAME_BEGIN_BYTES)];
        format!(".{begin}-{}.squall-{suffix}", &digest[..NAME_DIGEST_DIGITS])
    }

    /// The permission bits that a file here gets whose source has `mode`: none that change who runs it, and none that
    /// the umask excludes.
    pub(crate) const fn permissions(&self, mode: u32) -> u32 {
        mode & PERMISSIONS & !self.umask
    }

    /// The file itself, if it is there; not through a link.
    pub(crate) fn open(&self) -> Result<Option<File>> {
        self.open_name(&self.name, OFlags::RDWR)
    }

    /// A file beside it, if it is there and no other user can have prepared it.
    pub(crate) fn open_beside(&self, suffix: &str) -> Result<Option<File>> {
        let name = self.beside(suffix);
        let Some(file) = self.open_name(&name, OFlags::RDWR)? else { return Ok(None) };
        let found = fstat(&file)?;
        // A user that may write into the folder could have put a file or a hard link there, to own or to spoil what arrives.
        let is_own = found.st_uid == geteuid().as_raw() && found.st_nlink <= 1;
        if !is_own || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            let path = self.path.with_file_name(name);
            bail!("{} was not made by this user, or has other names: remove it there", path.display());
        }
        Ok(Some(file))
    }

    /// A new, empty file beside it, instead of one that may be there.
    pub(crate) fn create_beside(&self, suffix: &str) -> Result<File> {
        self.remove_beside(suffix);
        self.create_new_beside(suffix)?
            .with_context(|| format!("cannot write {}: another process writes it, too", self.path.display()))
    }

    /// A file beside it, found or made, that no other process and no other copy writes while it is open: all writers
    /// lock it first.
    ///
    /// # Errors
    /// If another one writes it now.
    pub(crate) fn lock_beside(&self, suffix: &str) -> Result<File> {
        for _ in 0..LOCK_ATTEMPTS {
            let found = match self.open_beside(suffix)? {
                Some(file) => Some(file),
                None => self.create_new_beside(suffix)?,
            };
            let Some(file) = found else { continue };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.is_beside(&file, suffix)? => return Ok(file),
                // Its last writer has given it its name, or has removed it.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!(
                            "cannot lock {}: serve a folder on another file system",
                            self.path.with_file_name(self.beside(suffix)).display()
                        )
                    });
                }
            }
        }
        bail!("another copy writes {} now: wait until it has ended, or copy elsewhere", self.path.display())
    }

    /// Whether `file` is the file with the name beside it.
    fn is_beside(&self, file: &File, suffix: &str) -> Result<bool> {
        let own = fstat(file)?;
        match statat(&self.folder, self.beside(suffix), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// `None` if a file has that name already.
    fn create_new_beside(&self, suffix: &str) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.open_name(&self.beside(suffix), flags)
    }

    fn open_name(&self, name: &str, flags: OFlags) -> Result<Option<File>> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
        match openat2(&self.folder, name, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) if !flags.contains(OFlags::CREATE) => Ok(None),
            Err(Errno::EXIST) if flags.contains(OFlags::EXCL) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", self.path.display())),
        }
    }

    /// Replaces the file by the one beside it.
    pub(crate) fn take_place(&self, suffix: &str) -> Result<()> {
        if let Ok(there) = statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(there.st_mode) == FileType::Directory
        {
            bail!("{} is a folder: remove it, or copy elsewhere", self.path.display());
        }
        let renamed = renameat(&self.folder, self.beside(suffix), &self.folder, self.name.as_str());
        renamed.with_context(|| format!("cannot write {}", self.path.display()))
    }

    pub(crate) fn remove_beside(&self, suffix: &str) {
        // It may not be there.
        let _ = unlinkat(&self.folder, self.beside(suffix), AtFlags::empty());
    }
}

/// The names of a path below the folder.
///
/// # Errors
/// If it leads outside.
pub(crate) fn names(path: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => names.push(name.to_str().expect("it came as text").to_owned()),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                bail!("`{path}` leads outside the folder that is served")
            }
        }
    }
    Ok(names)
}

/// The permissions that files and folders of this process do not get. Read from a file of the kernel: the system call
/// would change it for a moment, for all threads.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(USUAL_UMASK)
}

/// Without the bits by which a program runs as its owner or group.
const PERMISSIONS: u32 = 0o777;
/// Where the kernel does not report it.
const USUAL_UMASK: u32 = 0o022;
/// Of all usual file systems.
const NAME_BYTES_MAX: usize = 255;
/// With the digest, the longest suffix and the rest below [`NAME_BYTES_MAX`].
const NAME_BEGIN_BYTES: usize = 200;
const NAME_DIGEST_DIGITS: usize = 16;
/// Each is needed only if another writer ends between two system calls.
const LOCK_ATTEMPTS: usize = 8;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn scratch_folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("squall-folder-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// The second writer gets an error, a writer that has ended releases the lock, and a file that has been renamed
    /// meanwhile is not taken for the one beside it.
    #[test]
    fn a_file_beside_has_one_writer() {
        let scratch = scratch_folder("lock");
        let place = Folder::open(&scratch).unwrap().place(&["f".into()]).unwrap();
        let first = place.lock_beside("partial").unwrap();
        let error = place.lock_beside("partial").unwrap_err().to_string();
        assert!(error.contains("another copy writes") && error.ends_with("copy elsewhere"), "{error}");
        place.take_place("partial").unwrap();
        let second = place.lock_beside("partial").unwrap();
        assert!(place.is_beside(&second, "partial").unwrap() && !place.is_beside(&first, "partial").unwrap());
        drop((first, second));
        place.lock_beside("partial").unwrap();
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// A file that another user has put there before is neither written nor used.
    #[test]
    fn a_prepared_file_is_not_written() {
        let scratch = scratch_folder("prepared");
        let place = Folder::open(&scratch).unwrap().place(&["f".into()]).unwrap();
        let (own, partial) = (scratch.join("own"), scratch.join(".f.squall-partial"));
        std::fs::write(&own, "mine").unwrap();
        std::fs::hard_link(&own, &partial).unwrap();
        assert!(place.lock_beside("partial").unwrap_err().to_string().contains("has other names: remove it"));
        std::fs::remove_file(&partial).unwrap();
        std::os::unix::fs::symlink(&own, &partial).unwrap();
        assert!(place.lock_beside("partial").is_err());
        std::fs::remove_file(&partial).unwrap();
        std::fs::create_dir(&partial).unwrap();
        assert!(place.lock_beside("partial").is_err());
        std::fs::remove_dir(&partial).unwrap();
        std::fs::write(&partial, "").unwrap();
        if std::os::unix::fs::chown(&partial, Some(12_345), None).is_ok() {
            assert!(place.lock_beside("partial").unwrap_err().to_string().contains("not made by this user"));
        }
        assert_eq!(std::fs::read(&own).unwrap(), b"mine");
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn no_mode_gives_rights_to_others_than_the_umask() {
        let scratch = scratch_folder("mode");
        let folder = Folder { umask: 0o027, ..Folder::open(&scratch).unwrap() };
        let place = folder.place(&["f".into()]).unwrap();
        for (mode, right) in [(0o4755, 0o750), (0o2777, 0o750), (0o1640, 0o640), (u32::MAX, 0o750)] {
            assert_eq!(place.permissions(mode), right, "{mode:o}");
        }
        folder.make(&["d".into()], 0o7777).unwrap();
        let made = scratch.join("d").metadata().unwrap().permissions().mode();
        assert_eq!(made & 0o7000, 0, "{made:o}");
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// As long as the file system takes the name itself, and different for different names.
    #[test]
    fn names_beside_are_short_enough() {
        let scratch = scratch_folder("names");
        let folder = Folder::open(&scratch).unwrap();
        let names = ["n".repeat(239), "n".repeat(240), "n".repeat(255), format!("{}m", "n".repeat(254))];
        let mut seen = std::collections::BTreeSet::new();
        for name in names.into_iter().chain(["\u{fc}".repeat(127)]) {
            let place = folder.place(std::slice::from_ref(&name)).unwrap();
            assert!(seen.insert(place.beside("partial")), "{name}");
            place.create_beside("held").unwrap();
            place.lock_beside("partial").unwrap();
            place.take_place("partial").unwrap();
            assert!(scratch.join(name).is_file());
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn no_path_and_no_link_leads_outside() {
        assert_eq!(names("/a/./b").unwrap(), ["a", "b"]);
        assert!(names("a/../../b").is_err());
        let scratch = scratch_folder("links");
        std::os::unix::fs::symlink("/tmp", scratch.join("out")).unwrap();
        std::os::unix::fs::symlink("/tmp/no-file-has-this-name", scratch.join("file")).unwrap();
        let folder = Folder::open(&scratch).unwrap();
        assert!(folder.place(&["out".into(), "f".into()]).is_err(), "through a link to a folder");
        assert!(folder.place(&["file".into()]).unwrap().open().is_err(), "through a link to a file");
        folder.make(&["x".into(), "y".into()], 0o755).unwrap();
        let place = folder.place(&["x".into(), "y".into(), "f".into()]).unwrap();
        place.create_beside("partial").unwrap();
        place.take_place("partial").unwrap();
        assert!(scratch.join("x/y/f").is_file());
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
