//! What is copied: files and folders as they are found here.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::{CopyEntry, FileEntry};

/// An entry and where it is here.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    pub(crate) path: PathBuf,
    pub(crate) entry: CopyEntry,
}

/// All files and folders of `paths`, folders before what is in them, in the order of their names.
///
/// # Errors
/// If one cannot be read, or is neither a file nor a folder.
pub(crate) fn find(paths: &[PathBuf]) -> Result<Vec<SourceEntry>> {
    let mut found = Vec::new();
    for path in paths {
        let canonical = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
        let name = canonical.file_name().with_context(|| format!("{} has no name", path.display()))?;
        walk(path, &[text(Path::new(name))?], &mut found)?;
    }
    Ok(found)
}

fn walk(path: &Path, names: &[String], found: &mut Vec<SourceEntry>) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    let metadata = path.metadata().with_context(failed)?;
    let file = file_entry(path, &metadata)?;
    let entry = CopyEntry { path: names.to_vec(), mode: metadata.mode() & 0o777, file };
    found.push(SourceEntry { path: path.to_owned(), entry });
    if metadata.is_dir() {
        let inner = std::fs::read_dir(path).with_context(failed)?;
        let mut inner = inner.collect::<std::io::Result<Vec<_>>>().with_context(failed)?;
        inner.sort_by_key(std::fs::DirEntry::file_name);
        for entry in inner {
            let name = text(Path::new(&entry.file_name()))?;
            walk(&entry.path(), &[names, &[name]].concat(), found)?;
        }
    }
    Ok(())
}

fn file_entry(path: &Path, metadata: &Metadata) -> Result<Option<FileEntry>> {
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        bail!("{} is neither a file nor a folder: leave it out", path.display());
    }
    let modified_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Ok(Some(FileEntry { bytes: metadata.len(), modified_ns }))
}

fn text(name: &Path) -> Result<String> {
    Ok(name.to_str().with_context(|| format!("{} is not UTF-8: rename it", name.display()))?.to_owned())
}
