//! The folder that is served: nothing is read or written outside it, whatever paths and links name.

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdirat, openat, renameat, statat,
    unlinkat,
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

/// What has a name beside a file.
#[derive(Debug)]
pub(crate) enum FileBeside {
    Absent,
    Own(File),
    /// Something that this user has not made, or that has other names.
    Foreign,
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
            let above = self.folder(&path[..end - 1])?;
            // Its owner has to write into it. The kernel applies the umask.
            let mode = Mode::from_raw_mode(mode & PERMISSIONS | 0o700);
            let made = mkdirat(&above, path[end - 1].as_str(), mode);
            made.with_context(|| format!("cannot make the folder {}", self.show(&path[..end])))?;
        }
        Ok(())
    }

    /// Gives a folder that was here the permissions of the one that is copied; bits that are not copied stay.
    pub(crate) fn set_mode(&self, path: &[String], mode: u32) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let set = || -> rustix::io::Result<()> {
            let folder = self.open_folder(path)?;
            let folder = openat(&folder, ".", flags, Mode::empty())?;
            let found = fstat(&folder)?.st_mode;
            let wanted = found & !PERMISSIONS | mode & PERMISSIONS & !self.umask | 0o700;
            if found == wanted { Ok(()) } else { fchmod(&folder, Mode::from_raw_mode(wanted)) }
        };
        set().with_context(|| format!("cannot set the permissions of the folder {}", self.show(path)))
    }

    /// The place of a file whose folder is there.
    pub(crate) fn place(&self, path: &[String]) -> Result<FilePlace> {
        let (name, above) = path.split_last().context("a file needs a name")?;
        let folder = self.folder(above)?;
        let path = self.name.join(path.join("/"));
        Ok(FilePlace { folder, name: name.clone(), umask: self.umask, path })
    }

    fn folder(&self, path: &[String]) -> Result<OwnedFd> {
        self.open_folder(path).with_context(|| format!("cannot use the folder {}", self.show(path)))
    }

    /// Opens one folder in the other: each is one name, and no link is followed, so nothing leads outside.
    fn open_folder(&self, path: &[String]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder =
            self.root.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        for name in path {
            folder = openat(&folder, name.as_str(), flags, Mode::empty())?;
        }
        Ok(folder)
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

    /// The file itself, for reading, if it is there and can be read; what cannot is replaced.
    ///
    /// # Errors
    /// If something is there that no file replaces.
    pub(crate) fn open(&self) -> Result<Option<File>> {
        let path = self.path.display();
        let failed = || format!("cannot look at {path}");
        let there = match statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            there => there.with_context(failed)?,
        };
        match FileType::from_raw_mode(there.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => bail!("{path} is a folder: remove it, or copy elsewhere"),
            FileType::Symlink => bail!("{path} is a symbolic link: remove it, or copy elsewhere"),
            _ => return Ok(None),
        }
        // If it is not a regular file any more, opening it does not wait.
        match self.open_name(&self.name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => Err(error).with_context(failed),
        }
    }

    /// The file with a name beside it.
    pub(crate) fn open_beside(&self, suffix: &str) -> Result<FileBeside> {
        let name = self.beside(suffix);
        let file = match self.open_name(&name, OFlags::RDWR | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(FileBeside::Absent),
            Err(Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::TXTBSY) => {
                return Ok(FileBeside::Foreign);
            }
            Err(error) => return Err(error).with_context(|| self.not_written()),
        };
        let found = fstat(&file)?;
        // A user that may write into the folder could have put a file or a hard link there, to own or to spoil what arrives.
        let is_own = found.st_uid == geteuid().as_raw()
            && found.st_nlink <= 1
            && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        Ok(if is_own { FileBeside::Own(file) } else { FileBeside::Foreign })
    }

    /// A new, empty file beside it; `None` if the name is taken.
    pub(crate) fn create_beside(&self, suffix: &str) -> Result<Option<File>> {
        match self.open_name(&self.beside(suffix), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::EXIST) => Ok(None),
            Err(error) => Err(error).with_context(|| self.not_written()),
        }
    }

    /// Locks a file beside it, for as long as it is open, against other writers; false if it does not have this name any more, since its
    /// last writer has given it its own.
    ///
    /// # Errors
    /// If another one writes it now.
    pub(crate) fn lock_beside(&self, file: &File, suffix: &str) -> Result<bool> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.is_beside(file, suffix),
            Err(Errno::WOULDBLOCK) => bail!(
                "another copy writes {} now: wait until it has ended, or copy elsewhere",
                self.path.display()
            ),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot lock {}: serve a folder on another file system",
                    self.path.with_file_name(self.beside(suffix)).display()
                )
            }),
        }
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

    fn open_name(&self, name: &str, flags: OFlags) -> rustix::io::Result<File> {
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
        Ok(openat(&self.folder, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?.into())
    }

    fn not_written(&self) -> String {
        format!("cannot write {}", self.path.display())
    }

    /// Replaces the file by the one beside it.
    pub(crate) fn take_place(&self, suffix: &str) -> Result<()> {
        if let Ok(there) = statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(there.st_mode) == FileType::Directory
        {
            bail!("{} is a folder: remove it, or copy elsewhere", self.path.display());
        }
        let renamed = renameat(&self.folder, self.beside(suffix), &self.folder, self.name.as_str());
        renamed.with_context(|| self.not_written())
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn scratch_folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("squall-folder-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
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
            place.create_beside("held").unwrap().unwrap();
            place.create_beside("partial").unwrap().unwrap();
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
        let error = folder.place(&["file".into()]).unwrap().open().unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        folder.make(&["x".into(), "y".into()], 0o755).unwrap();
        std::os::unix::fs::symlink("x", scratch.join("inside")).unwrap();
        assert!(folder.place(&["inside".into(), "f".into()]).is_err(), "no link is followed");
        let place = folder.place(&["x".into(), "y".into(), "f".into()]).unwrap();
        place.create_beside("partial").unwrap();
        place.take_place("partial").unwrap();
        assert!(scratch.join("x/y/f").is_file());
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// A file that may not be read or written, and one that runs, are looked at without opening them for writing.
    #[test]
    fn a_file_is_opened_for_reading_alone() {
        let scratch = scratch_folder("reading");
        std::fs::copy("/bin/sleep", scratch.join("f")).unwrap();
        let place = Folder::open(&scratch).unwrap().place(&["f".into()]).unwrap();
        let mut running = std::process::Command::new(scratch.join("f")).arg("60").spawn().unwrap();
        assert!(place.open().unwrap().is_some(), "a program that runs");
        running.kill().unwrap();
        running.wait().unwrap();
        std::fs::set_permissions(scratch.join("f"), std::fs::Permissions::from_mode(0o444)).unwrap();
        assert!(place.open().unwrap().is_some(), "a file that is read-only");
        assert!(Folder::open(&scratch).unwrap().place(&["g".into()]).unwrap().open().unwrap().is_none());
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// A folder that was here gets the permissions, too, and keeps the bits that are not copied.
    #[test]
    fn a_folder_gets_its_mode() {
        let scratch = scratch_folder("folder-mode");
        let folder = Folder { umask: 0o022, ..Folder::open(&scratch).unwrap() };
        folder.make(&["d".into()], 0o755).unwrap();
        let mode = || scratch.join("d").metadata().unwrap().permissions().mode() & 0o7777;
        std::fs::set_permissions(scratch.join("d"), std::fs::Permissions::from_mode(0o2755)).unwrap();
        folder.set_mode(&["d".into()], 0o750).unwrap();
        assert_eq!(mode(), 0o2750);
        folder.set_mode(&["d".into()], 0o777).unwrap();
        assert_eq!(mode(), 0o2755);
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
