//! What is copied: files and folders as they are found here. Symbolic links are followed. A file or folder that cannot be read, or has
//! vanished meanwhile, costs itself only.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::OFlags;
use squall_harness::terminal::error_text;

use super::digest::{digest, digest_of};
use super::{BLOCK_BYTES, CopyEntry, FileEntry};

/// A file or a folder of the source.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    pub(crate) entry: CopyEntry,
    /// `None`: a folder.
    pub(crate) file: Option<LocalFile>,
}

/// A file of the source.
#[derive(Debug)]
pub(crate) struct LocalFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Of a file whose size the system does not state, such as those of /proc.
    content: Option<Vec<u8>>,
}

/// What is found.
#[derive(Debug, Default)]
pub(crate) struct SourceTree {
    pub(crate) entries: Vec<SourceEntry>,
    /// What cannot be read, and why.
    pub(crate) failures: Vec<(PathBuf, String)>,
}

impl LocalFile {
    /// The digest of its content, in hexadecimal.
    pub(crate) fn digest(&self) -> Result<String> {
        match &self.content {
            Some(content) => Ok(digest_of(content)),
            None => digest(&self.open()?, self.bytes).with_context(|| cannot_read(&self.path)),
        }
    }

    pub(crate) fn open(&self) -> Result<File> {
        let file = File::open(&self.path).with_context(|| cannot_read(&self.path))?;
        let found = file.metadata().with_context(|| cannot_read(&self.path))?.len();
        ensure!(found >= self.bytes, "{}: it has become shorter", cannot_read(&self.path));
        Ok(file)
    }

    /// All bytes of a small file.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        if let Some(content) = &self.content {
            return Ok(content.clone());
        }
        let mut content = Vec::new();
        self.open()?.take(self.bytes).read_to_end(&mut content).with_context(|| cannot_read(&self.path))?;
        // As files of /sys do.
        let (found, stated) = (content.len() as u64, self.bytes);
        ensure!(found == stated, "{}: it has {found} bytes and not {stated}", cannot_read(&self.path));
        Ok(content)
    }
}

/// Returns all files and folders of `paths`, folders before what is in them, in the order of their names. A symbolic link
/// counts as the file or folder to which it leads.
///
/// # Errors
/// If one of the paths is not there, two of them have one name, or something is neither a file nor a folder, a link to nothing, or a link to
/// a folder that it is in.
pub(crate) fn find(paths: &[PathBuf]) -> Result<SourceTree> {
    let (mut tree, mut seen) = (SourceTree::default(), BTreeMap::new());
    for path in paths {
        let canonical = path.canonicalize().with_context(|| cannot_read(path))?;
        let name = canonical.file_name().with_context(|| format!("{} has no name", path.display()))?;
        let name = text(Path::new(name))?;
        if let Some(other) = seen.insert(name.clone(), path) {
            let (path, other) = (path.display(), other.display());
            bail!(
                "{other} and {path} would both become {name}: rename one, or copy them one after the other"
            );
        }
        tree.walk(path, &[name], &mut Vec::new())?;
    }
    Ok(tree)
}

impl SourceTree {
    /// `above` has the device and the number of each folder that `path` is in.
    fn walk(&mut self, path: &Path, names: &[String], above: &mut Vec<(u64, u64)>) -> Result<()> {
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(error) if path.is_symlink() => return Err(error).context(cannot_read(path)),
            Err(error) => {
                self.leave_out(path, &error.into());
                return Ok(());
            }
        };
        if !metadata.is_dir() {
            return self.add_file(path, names, &metadata);
        }
        let folder = (metadata.dev(), metadata.ino());
        ensure!(
            !above.contains(&folder),
            "{} is a link to a folder that it is in: remove it",
            path.display()
        );
        let inner = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut inner = match inner {
            Ok(inner) => inner,
            Err(error) => {
                self.leave_out(path, &error.into());
                return Ok(());
            }
        };
        let entry = CopyEntry { path: names.to_vec(), mode: metadata.mode() & 0o777, file: None };
        self.entries.push(SourceEntry { entry, file: None });
        above.push(folder);
        inner.sort_by_key(std::fs::DirEntry::file_name);
        for entry in inner {
            let name = text(Path::new(&entry.file_name()))?;
            self.walk(&entry.path(), &[names, &[name]].concat(), above)?;
        }
        above.pop();
        Ok(())
    }

    fn add_file(&mut self, path: &Path, names: &[String], metadata: &Metadata) -> Result<()> {
        if !metadata.is_file() {
            bail!("{} is neither a file nor a folder: remove it, or copy other paths", path.display());
        }
        let content = match metadata.len() {
            0 => match unstated(path) {
                Ok(content) => Some(content).filter(|content| !content.is_empty()),
                Err(error) => {
                    self.leave_out(path, &error);
                    return Ok(());
                }
            },
            _ => None,
        };
        let bytes = content.as_ref().map_or(metadata.len(), |content| content.len() as u64);
        let modified_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let file = Some(FileEntry { bytes, modified_ns });
        let entry = CopyEntry { path: names.to_vec(), mode: metadata.mode() & 0o777, file };
        let file = Some(LocalFile { path: path.to_owned(), bytes, content });
        self.entries.push(SourceEntry { entry, file });
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, error: &anyhow::Error) {
        self.failures.push((path.to_owned(), format!("{}: {}", cannot_read(path), error_text(error))));
    }
}

/// The content of a file that has no bytes, as the system says.
fn unstated(path: &Path) -> Result<Vec<u8>> {
    // Some files of the kernel wait for content.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut content = Vec::new();
    file.take(BLOCK_BYTES + 1).read_to_end(&mut content)?;
    ensure!(
        content.len() as u64 <= BLOCK_BYTES,
        "the system does not state its size, which is more than {BLOCK_BYTES} bytes: copy a copy of it"
    );
    Ok(content)
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

fn text(name: &Path) -> Result<String> {
    Ok(name.to_str().with_context(|| format!("{} is not UTF-8: rename it", name.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Links are followed, wherever they lead; a link to nothing and a link to a folder that it is in are errors.
    #[test]
    fn links_are_followed() {
        let scratch = std::env::temp_dir().join(format!("squall-source-{}", std::process::id()));
        let site = scratch.join("site");
        std::fs::create_dir_all(site.join("real")).unwrap();
        std::fs::create_dir_all(scratch.join("outside")).unwrap();
        std::fs::write(scratch.join("outside/page"), "12345").unwrap();
        symlink("../outside/page", site.join("page")).unwrap();
        symlink("../outside", site.join("folder")).unwrap();
        symlink("folder", site.join("same")).unwrap();
        let found = find(std::slice::from_ref(&site)).unwrap();
        let names: Vec<(String, Option<u64>)> = found
            .entries
            .iter()
            .map(|source| (source.entry.path.join("/"), source.entry.file.map(|file| file.bytes)))
            .collect();
        let expected = [
            ("site", None),
            ("site/folder", None),
            ("site/folder/page", Some(5)),
            ("site/page", Some(5)),
            ("site/real", None),
            ("site/same", None),
            ("site/same/page", Some(5)),
        ];
        assert_eq!(names, expected.map(|(name, bytes)| (name.to_owned(), bytes)));

        symlink("..", site.join("real/up")).unwrap();
        let error = find(std::slice::from_ref(&site)).unwrap_err().to_string();
        assert!(error.contains("real/up is a link to a folder that it is in"), "{error}");
        std::fs::remove_file(site.join("real/up")).unwrap();
        symlink("nothing", site.join("broken")).unwrap();
        let error = find(std::slice::from_ref(&site)).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("broken"), "{error}");
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// What cannot be read, or has vanished, is left out and named.
    #[test]
    fn what_cannot_be_read_costs_itself_only() {
        let scratch = std::env::temp_dir().join(format!("squall-unread-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        std::fs::write(scratch.join("a"), "1").unwrap();
        let mut tree = SourceTree::default();
        tree.walk(&scratch.join("vanished"), &["v".into()], &mut Vec::new()).unwrap();
        tree.walk(&scratch.join("a"), &["a".into()], &mut Vec::new()).unwrap();
        assert_eq!((tree.entries.len(), tree.failures.len()), (1, 1));
        assert!(tree.failures[0].0.ends_with("vanished"));
        let file = tree.entries[0].file.as_ref().unwrap();
        assert_eq!((file.read().unwrap(), file.digest().unwrap()), (b"1".to_vec(), digest_of(b"1")));
        std::fs::write(scratch.join("a"), "").unwrap();
        assert!(file.read().unwrap_err().to_string().contains("shorter") && file.digest().is_err());
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// Files of /proc have content whose size the system does not state, and files of /sys less than it states.
    #[test]
    fn files_of_the_kernel_are_whole_or_refused() {
        let tree = find(&["/proc/self/status".into()]).unwrap();
        let file = tree.entries[0].file.as_ref().unwrap();
        assert!(file.bytes > 0 && file.read().unwrap().starts_with(b"Name:"));
        let tree = find(&["/sys/kernel/mm/transparent_hugepage/enabled".into()]).unwrap();
        let file = tree.entries[0].file.as_ref().unwrap();
        assert!(file.read().unwrap_err().to_string().contains("and not 4096"));
    }

    #[test]
    fn two_sources_of_one_name_are_an_error() {
        let scratch = std::env::temp_dir().join(format!("squall-twice-{}", std::process::id()));
        let paths = ["a/big", "b/big"].map(|path| scratch.join(path));
        for path in &paths {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1").unwrap();
        }
        let error = find(&paths).unwrap_err().to_string();
        assert!(error.contains("a/big and ") && error.contains("b/big would both become big"), "{error}");
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
