//! Folders of a member's cluster beside its own: an empty folder among them says that the member is not the one that it was.
//!
//! A folder is named by the member's rank or its address. If these change, the member finds an empty folder, and if those of all change,
//! all of them do: they would begin a new group, and the one of before would seem to have lost everything.

use std::path::PathBuf;

use squall_log::{FileDisk, Storage};
use squall_protocols::restart::Register;

use crate::config::{Config, NewGroup};
use crate::error::LogFolderError;

/// Returns why a member whose folder has no log begins no group, if that is so.
pub(crate) fn hindrance(config: &Config) -> Option<LogFolderError> {
    let (storage, folder) = (config.storage.as_ref()?, config.log_folder()?);
    match storage.begin {
        NewGroup::New => None,
        NewGroup::Never => Some(LogFolderError::Empty { folder }),
        NewGroup::Auto => {
            let others = unused_logs(config);
            (!others.is_empty()).then_some(LogFolderError::Beside { folder, others })
        }
    }
}

/// Returns the other folders in the path of the logs that belong to members of this cluster which have been in a group, and that no
/// running process has open. What cannot be read is none.
fn unused_logs(config: &Config) -> Vec<PathBuf> {
    let (Some(storage), Some(own)) = (&config.storage, config.log_folder()) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(&storage.path) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let has_been_in_a_group = |path: &PathBuf| {
        let Ok((identity, Some(register))) = Storage::peek(FileDisk::inspect(path)) else { return false };
        let register = Register::decode(&register.protocol);
        identity.cluster == config.cluster && register.is_ok_and(|found| !found.view().members.is_empty())
    };
    let is_unused = |path: &PathBuf| *path != own && has_been_in_a_group(path) && !FileDisk::is_held(path);
    let mut unused: Vec<PathBuf> = paths.filter(is_unused).collect();
    unused.sort();
    unused
}
