//! What is copied: files and folders as they are found here. Symbolic links are followed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::{CopyEntry, FileEntry};

/// An entry and its local path.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    pub(crate) path: PathBuf,
    pub(crate) entry: CopyEntry,
}

/// Returns all files and folders of `paths`, folders before what is in them, in the order of their names. A symbolic link
/// counts as the file or folder to which it leads.
///
/// # Errors
/// If one cannot be read, is neither a file nor a folder, or is a link to a folder that it is in.
pub(crate) fn find(paths: &[PathBuf]) -> Result<Vec<SourceEntry>> {
    let mut found = Vec::new();
    for path in paths {
        let canonical = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
        let name = canonical.file_name().with_context(|| format!("{} has no name", path.display()))?;
        walk(path, &[text(Path::new(name))?], &mut Vec::new(), &mut found)?;
    }
    Ok(found)
}

/// `above` has the device and the number of each folder that `path` is in.
fn walk(
    path: &Path,
    names: &[String],
    above: &mut Vec<(u64, u64)>,
    found: &mut Vec<SourceEntry>,
) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    let metadata = path.metadata().with_context(failed)?;
    let file = file_entry(path, &metadata)?;
    let entry = CopyEntry { path: names.to_vec(), mode: metadata.mode() & 0o777, file };
    found.push(SourceEntry { path: path.to_owned(), entry });
    if metadata.is_dir() {
        let folder = (metadata.dev(), metadata.ino());
        ensure!(
            !above.contains(&folder),
            "{} is a link to a folder that it is in: remove it",
            path.display()
        );
        above.push(folder);
        let inner = std::fs::read_dir(path).with_context(failed)?;
        let mut inner = inner.collect::<std::io::Result<Vec<_>>>().with_context(failed)?;
        inner.sort_by_key(std::fs::DirEntry::file_name);
        for entry in inner {
            let name = text(Path::new(&entry.file_name()))?;
            walk(&entry.path(), &[names, &[name]].concat(), above, found)?;
        }
        above.pop();
    }
    Ok(())
}

fn file_entry(path: &Path, metadata: &Metadata) -> Result<Option<FileEntry>> {
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        bail!("{} is neither a file nor a folder: remove it, or copy other paths", path.display());
    }
    let modified_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Ok(Some(FileEntry { bytes: metadata.len(), modified_ns }))
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
}
