//! `[storage]`: where a member keeps the log of its durable subgroups, and what these need of the rest of the configuration
//! (Derecho §3.4, "durable" mode).

use std::path::PathBuf;
use std::time::Duration;

use super::Config;

/// Where a member keeps the log of its durable subgroups.
///
/// A message of a durable subgroup is delivered when it is on the disks of all members of the view; so is its outcome then
/// ([`crate::MessageOutcome::Delivered`]). A process has one log for all its durable subgroups, in segments of 64 MiB, of which one
/// is always made in advance. If its disk is full, fails or hangs, the member leaves the group with [`crate::GroupError::Log`], and the
/// others continue.
///
/// **Restart.** If all members end, by whatever cause, and start again with their folders, the group continues from its logs: with
/// everything that was ever delivered ([`crate::SubgroupHandle::history`]), when a majority of the members of its last view is there, and
/// two logs of each durable subgroup (or its only one), of which one is not damaged. No member has to be the first. Absent ones are waited
/// for, 3 seconds at most once the others are enough, and join later. Subgroups that are not durable begin with nothing, and the states of
/// their objects are lost.
///
/// A member that joins gets what was delivered before from the others while the group runs.
///
/// **Length.** A log grows by the bytes of all messages and 40 to 47 for each, until what it need not keep is discarded
/// ([`crate::config::Retention`]).
///
/// ```
/// use squall::config::{StorageConfig, SubgroupConfig};
/// use squall::{Config, DeliveryMode, Group, MessageOutcome};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-storage-{}", std::process::id());
/// let path = std::env::temp_dir().join(&name);
/// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
/// let mut config = Config::local(&name, 1).subgroup("orders", orders);
/// config.storage = Some(StorageConfig::new(&path));
/// let mut group = Group::builder(config).on_message("orders", |_| ()).join()?;
/// let mut sender = group.subgroup("orders")?.sender()?;
/// sender.send_bytes(b"two of them")?;
/// assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered); // it is on the disk
/// drop(group);
/// # std::fs::remove_dir_all(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// The folder for the logs of the members on this host; each has a folder of its own in it ([`Config::log_folder`]).
    pub path: PathBuf,
    /// The name of this member's folder in it, if that is not to follow from its rank or its address: a folder belongs to the name with which
    /// it was made, also if these change.
    pub folder: Option<String>,
    /// How long the disk may take for one operation, and a second more for each MiB of it. Then the member leaves, so that the others
    /// need not wait for it any longer.
    pub timeout: Duration,
    /// Whether writes go past the page cache where the file system allows that. Otherwise each one is flushed by `fdatasync`, which
    /// takes about twice as long and is as safe.
    pub direct: bool,
    /// Whether this member may begin a new group if its folder has no log.
    pub begin: NewGroup,
    /// Durable subgroups that are given up with all that was sent in them, by name: the member starts although its log has them, and the
    /// configuration has not. What of them is in the log is not found again, also if a subgroup of that name is added later.
    pub removed: Vec<String>,
}

/// Whether a member whose folder has no log may begin a new group with the other first members. One that may not joins the group if that
/// runs or comes back from its logs, and is refused otherwise ([`crate::error::LogFolderError::Beside`],
/// [`crate::error::LogFolderError::Empty`]). A member whose folder has a log never begins a group.
///
/// ```
/// use squall::config::{NewGroup, StorageConfig};
///
/// let storage = StorageConfig { begin: NewGroup::Never, ..StorageConfig::new("/mnt/volume") };
/// assert_ne!(storage, StorageConfig::new("/mnt/volume")); // a volume that is not mounted is not taken for an empty one
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewGroup {
    /// Unless the path has folders of this cluster that no running process uses: then the members were given other addresses or ranks, by
    /// which their folders are named, or a group of this name has been here before.
    #[default]
    Auto,
    /// Also beside such folders.
    New,
    /// Not at all: for members whose logs must be there, such as on a volume.
    Never,
}

impl StorageConfig {
    /// A folder, with a timeout of 10 seconds, and direct writes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use squall::config::StorageConfig;
    ///
    /// assert_eq!(StorageConfig::new("logs").timeout, Duration::from_secs(10));
    /// ```
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            folder: None,
            timeout: DISK_TIMEOUT,
            direct: true,
            begin: NewGroup::Auto,
            removed: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the folder of this member's log: in the path of [`StorageConfig`], its `folder`, or `rank-N` if the member asks for rank `N`, else
    /// its `listen` address, in which `_` replaces what is no letter, digit, dot or hyphen. `None` if there is no path.
    ///
    /// ```
    /// use squall::config::{Config, StorageConfig};
    ///
    /// let mut config = Config::local("example", 3).for_rank(2);
    /// config.storage = Some(StorageConfig::new("/var/lib/squall"));
    /// assert_eq!(config.log_folder().unwrap().to_str(), Some("/var/lib/squall/rank-2"));
    /// config.rank = None;
    /// config.listen = "192.0.2.1:7400".parse().unwrap();
    /// assert_eq!(config.log_folder().unwrap().to_str(), Some("/var/lib/squall/192.0.2.1_7400"));
    /// ```
    #[must_use]
    pub fn log_folder(&self) -> Option<PathBuf> {
        self.storage.as_ref().map(|storage| storage.path.join(self.log_name()))
    }

    /// Returns the name by which this member's log is known on its host.
    pub(crate) fn log_name(&self) -> String {
        if let Some(name) = self.storage.as_ref().and_then(|storage| storage.folder.clone()) {
            return name;
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
        self.rank.map_or_else(
            || self.listen.to_string().chars().map(plain).collect(),
            |rank| format!("rank-{rank}"),
        )
    }
}

/// Returns whether a text is the name of a folder within another one.
pub(super) fn is_folder_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !text.is_empty() && text.chars().all(is_plain) && text.chars().any(|c| c != '.')
}

/// Longer than a disk takes that works.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use squall_protocols::multicast::DeliveryMode;

    use super::*;

    /// A configuration of three members with a durable subgroup; `top` is in front of all tables, `subgroup` in the subgroup's.
    fn parse(top: &str, storage: &str, subgroup: &str) -> Result<Config, String> {
        let text = format!(
            "cluster = \"c\"\nsecret = \"at least sixteen bytes\"\nmembers = 3\n{top}\n{storage}\n\
             [subgroups.orders]\nmode = \"durable\"\n{subgroup}"
        );
        Config::parse(&text).map_err(|error| error.to_string())
    }

    const LISTEN: &str = "listen = \"127.0.0.1:7400\"";
    const STORAGE: &str = "[storage]\npath = \"logs\"";

    #[test]
    fn a_durable_subgroup_has_a_folder_for_each_member() {
        let config = parse(LISTEN, STORAGE, "").expect("it is complete");
        assert_eq!(config.subgroups["orders"].mode, DeliveryMode::Durable);
        assert_eq!(config.log_folder(), Some("logs/127.0.0.1_7400".into()));
        let config = parse(&format!("{LISTEN}\nrank = 2"), STORAGE, "").expect("it is complete");
        assert_eq!(config.log_folder(), Some("logs/rank-2".into()));
        assert_eq!(Config::local("none", 1).log_folder(), None);
    }

    /// Each error says what to write instead.
    #[test]
    fn what_a_durable_subgroup_lacks_is_said() {
        let error = |top: &str, storage: &str, subgroup: &str| parse(top, storage, subgroup).unwrap_err();
        let missing = error(LISTEN, "", "");
        let expected = "line 7: [subgroups.orders]: `mode = \"durable\"` needs a folder for the log of this member: write \
                        `path = \"FOLDER\"` in [storage]";
        assert_eq!(missing, expected);
        let unsafe_parts = error(&format!("{LISTEN}\npartition_safety = \"off\""), STORAGE, "");
        assert!(unsafe_parts.contains("write `partition_safety = \"majority\"`"), "{unsafe_parts}");
        for key in ["shards = 2", "replicas = 2"] {
            let objects = error(LISTEN, STORAGE, key);
            assert!(objects.contains("the members of a durable subgroup do not move"), "{objects}");
        }
        for key in ["message_max", "large_max"] {
            let long = error(LISTEN, STORAGE, &format!("{key} = \"64MiB\""));
            assert!(long.contains("67108864 bytes") && long.contains("at most 67108760"), "{long}");
        }
        let nameless = error("listen = \"127.0.0.1:0\"", STORAGE, "");
        assert!(nameless.contains("write a `rank`"), "{nameless}");
        parse("listen = \"127.0.0.1:0\"\nrank = 0", STORAGE, "message_max = 67108760")
            .expect("the longest fits");
    }

    #[test]
    fn subgroups_are_given_up_by_name() {
        let config = parse(LISTEN, "[storage]\npath = \"a\"\nremoved = [\"invoices\", \"returns\"]", "");
        let removed = config.expect("it is complete").storage.expect("it has one").removed;
        assert_eq!(removed, ["invoices", "returns"]);
    }

    #[test]
    fn a_storage_without_a_path_is_refused() {
        let error = |storage: &str| parse(LISTEN, storage, "").unwrap_err();
        assert_eq!(
            error("[storage]"),
            "the configuration: `path` is missing in [storage]: write the path of a folder for the logs"
        );
        assert_eq!(
            error("[storage]\npath = \"\""),
            "line 6: `path = \"\"`: write the path of a folder for the logs"
        );
        assert!(error("[storage]\npth = \"a\"").contains("did you mean `path`?"));
        assert!(
            error("[storage]\npath = \"a\"\ntimeout = \"1ms\"").contains("write a time of at least 100ms")
        );
        for name in ["", "..", "a/b", "/a"] {
            let folder = error(&format!("[storage]\npath = \"a\"\nfolder = \"{name}\""));
            assert!(folder.contains("without a path"), "{folder}");
        }
        let config = parse(LISTEN, "[storage]\npath = \"a\"\nfolder = \"192.0.2.1_7400\"", "");
        assert_eq!(config.expect("it is complete").log_folder(), Some("a/192.0.2.1_7400".into()));
        let begin = error("[storage]\npath = \"a\"\nbegin = \"old\"");
        assert!(begin.contains("write \"auto\", \"new\" or \"never\""), "{begin}");
        let removed = error("[storage]\npath = \"a\"\nremoved = [\"invoices\", \"orders\"]");
        assert!(
            removed.contains("`removed` in [storage] names `orders`, which is a durable subgroup here"),
            "{removed}"
        );
        for (text, begin) in [("auto", NewGroup::Auto), ("new", NewGroup::New), ("never", NewGroup::Never)] {
            let config = parse(LISTEN, &format!("[storage]\npath = \"a\"\nbegin = \"{text}\""), "");
            assert_eq!(config.expect("it is complete").storage.expect("a table").begin, begin);
        }
        let config = parse(LISTEN, "[storage]\npath = \"a\"\ntimeout = \"3s\"", "").expect("it is complete");
        assert_eq!(config.storage.expect("a table").timeout, Duration::from_secs(3));
    }
}
