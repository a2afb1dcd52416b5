//! Files and names of a simulated disk, and which of the names are on it.

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;

use crate::disk::{DiskCause, DiskError};

#[derive(Clone, Debug, Default)]
pub(super) struct SimFiles {
    /// The files by their numbers, also those without a name.
    pub(super) bytes: Vec<Vec<u8>>,
    /// The names as the process sees them.
    names: BTreeMap<String, usize>,
    /// The names that a crash leaves, and per folder what would have changed them, in order.
    flushed: BTreeMap<String, usize>,
    changes: BTreeMap<String, Vec<NameChange>>,
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Link(String, usize),
    Move(String, String),
    Unlink(String),
}

impl SimFiles {
    pub(super) fn find(&self, operation: &'static str, path: &str) -> Result<usize, DiskError> {
        let cause = DiskCause::System(rustix::io::Errno::NOENT.raw_os_error());
        self.names.get(path).copied().ok_or_else(|| DiskError { operation, path: path.into(), cause })
    }

    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        let paths = self.names.keys().filter(|path| folder_of(path) == folder);
        paths.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()).collect()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(super) fn total(&self) -> u64 {
        self.names.values().map(|file| self.bytes[*file].len() as u64).sum()
    }

    pub(super) fn add(&mut self, length: usize) -> usize {
        self.bytes.push(vec![0; length]);
        self.bytes.len() - 1
    }

    pub(super) fn store(&mut self, file: usize, offset: u64, bytes: &[u8]) {
        let (begin, file) = (usize::try_from(offset).expect("in memory"), &mut self.bytes[file]);
        if file.len() < begin + bytes.len() {
            file.resize(begin + bytes.len(), 0);
        }
        file[begin..begin + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes.entry(folder_of(change.path()).to_owned()).or_default().push(change);
    }

    pub(super) fn flush(&mut self, folder: &str) {
        for change in self.changes.remove(folder).unwrap_or_default() {
            change.apply(&mut self.flushed);
        }
    }

    pub(super) fn crash(&mut self, prng: &mut Prng) {
        for (_, changes) in std::mem::take(&mut self.changes) {
            let kept = prng.index(changes.len() + 1);
            changes.iter().take(kept).for_each(|change| change.apply(&mut self.flushed));
        }
        self.names = self.flushed.clone();
    }
}

impl NameChange {
    fn path(&self) -> &str {
        match self {
            Self::Link(path, _) | Self::Move(path, _) | Self::Unlink(path) => path,
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Move(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Unlink(path) => drop(names.remove(path)),
        }
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}
