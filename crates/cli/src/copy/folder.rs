//! The folder that is served: nothing is read or written outside it, whatever paths and links say.

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// A folder, held open.
#[derive(Debug)]
pub(crate) struct Folder {
    root: OwnedFd,
    name: PathBuf,
}

/// A place for a file: the folder in which it is, and its name there.
#[derive(Debug)]
pub(crate) struct Place {
    folder: OwnedFd,
    name: String,
    /// For people.
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.with_context(|| format!("cannot serve {}", path.display()))?;
        Ok(Self { root, name: path.to_owned() })
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
            // Those who made it need to write into it.
            let made = mkdirat(&above, path[end - 1].as_str(), Mode::from_raw_mode(mode | 0o700));
            made.with_context(|| format!("cannot make the folder {}", self.show(&path[..end])))?;
        }
        Ok(())
    }

    /// The place of a file whose folder is there.
    pub(crate) fn place(&self, path: &[String]) -> Result<Place> {
        let (name, above) = path.split_last().context("a file needs a name")?;
        let folder = self.open_folder(above)?;
        Ok(Place { folder, name: name.clone(), path: self.name.join(path.join("/")) })
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

impl Place {
    /// The same place under a name derived from its own.
    fn beside(&self, suffix: &str) -> String {
        format!(".{}.squall-{suffix}", self.name)
    }

    /// The file itself, if it is there; not through a link.
    pub(crate) fn open(&self) -> Result<Option<File>> {
        self.open_name(&self.name, OFlags::RDWR)
    }

    /// A file beside it, if it is there.
    pub(crate) fn open_beside(&self, suffix: &str) -> Result<Option<File>> {
        self.open_name(&self.beside(suffix), OFlags::RDWR)
    }

    /// A new, empty file beside it, instead of one that may be there.
    pub(crate) fn create_beside(&self, suffix: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        Ok(self.open_name(&self.beside(suffix), flags)?.expect("it is made if it is not there"))
    }

    fn open_name(&self, name: &str, flags: OFlags) -> Result<Option<File>> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
        match openat2(&self.folder, name, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", self.path.display())),
        }
    }

    /// The file beside it takes its place.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch_folder() -> PathBuf {
        let path = std::env::temp_dir().join(format!("squall-folder-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn no_path_and_no_link_leads_outside() {
        assert_eq!(names("/a/./b").unwrap(), ["a", "b"]);
        assert!(names("a/../../b").is_err());
        let scratch = scratch_folder();
        std::os::unix::fs::symlink("/tmp", scratch.join("out")).unwrap();
        std::os::unix::fs::symlink("/tmp/nobody-has-this", scratch.join("file")).unwrap();
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
