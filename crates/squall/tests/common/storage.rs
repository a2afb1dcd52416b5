//! What the tests of durable subgroups share: folders, configurations, and waiting.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{StorageConfig, SubgroupConfig, Transport};
use squall::{Config, DeliveryMode};

use crate::common;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that is removed at the end of its test.
pub(crate) struct TestFolder(pub(crate) PathBuf);

impl TestFolder {
    pub(crate) fn new(test: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the configurations of three members with a durable subgroup, and of a joiner, all with logs in `folder`.
pub(crate) fn configs(transport: Transport, test: &str, folder: &TestFolder, subgroup: &str) -> Vec<Config> {
    let settings = SubgroupConfig {
        mode: DeliveryMode::Durable,
        window: 16,
        message_max: 1000,
        large_max: Some(512 << 10),
        ..SubgroupConfig::default()
    };
    let configs = common::configs(transport, test, Duration::from_secs(5), (subgroup, settings));
    let storage = Some(StorageConfig::new(&folder.0));
    configs.into_iter().map(|config| Config { storage: storage.clone(), ..config }).collect()
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
