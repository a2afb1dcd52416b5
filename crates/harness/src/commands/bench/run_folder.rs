//! The folder for the logs of one run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::terminal::output;

/// The logs of one run, which are removed when it is over.
pub(super) struct RunFolder(PathBuf);

impl RunFolder {
    /// A folder for the logs of the benchmark `bench` in `storage`.
    pub(super) fn create(storage: &Path, bench: &str) -> Result<Self> {
        let path = storage.join(format!("squall-bench-{bench}-{}", std::process::id()));
        std::fs::create_dir(&path)
            .with_context(|| format!("failed to make the folder {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let Self(path) = self;
        if let Err(error) = std::fs::remove_dir_all(&*path) {
            output::note(format!("squall: failed to remove {}: {error}; remove it", path.display()));
        }
    }
}
