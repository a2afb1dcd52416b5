//! What programs on a host may use of the processors and of memory: control groups of the kernel, one for each limit (version 1) or one
//! for both (version 2), whichever this machine has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::HostPlan;

/// The control groups of a host. Dropping them removes them, if what ran there has ended.
pub(super) struct HostLimits {
    groups: Vec<PathBuf>,
}

impl HostLimits {
    /// Makes those that a host of this name needs, in the folder in which control groups are mounted.
    pub(super) fn make(root: &Path, name: &str, plan: &HostPlan) -> Result<Self> {
        let mut limits = Self { groups: Vec::new() };
        if let Some(thousandths) = plan.processor_thousandths {
            limits.set(root, name, &ProcessorLimit(thousandths))?;
        }
        if let Some(bytes) = plan.memory {
            limits.set(root, name, &MemoryLimit(bytes))?;
        }
        Ok(limits)
    }

    fn set(&mut self, root: &Path, name: &str, limit: &dyn Limit) -> Result<()> {
        let (parent, version) = find(root, limit.controller())?;
        let group = parent.join(name);
        std::fs::create_dir_all(&group).with_context(|| format!("cannot make {}", group.display()))?;
        if !self.groups.contains(&group) {
            self.groups.push(group.clone());
        }
        for (file, text) in limit.files(version) {
            let file = group.join(file);
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// The files by which a process enters them.
    pub(super) fn entrances(&self) -> Vec<PathBuf> {
        self.groups.iter().map(|group| group.join("cgroup.procs")).collect()
    }
}

impl Drop for HostLimits {
    fn drop(&mut self) {
        for group in &self.groups {
            // Those that have been killed may be about to end.
            for _ in 0..REMOVALS {
                if std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(REMOVAL_PAUSE);
            }
        }
    }
}

/// Removes the control groups that a lab has left whose process was killed: those that have nothing running in them.
pub(super) fn remove_leftovers(root: &Path) {
    for parent in ["", "unified", "cpu", "memory"].map(|folder| root.join(folder)) {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let maker = name.strip_prefix(NAME).and_then(|rest| rest.split('-').next());
            if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

/// The name of a control group of this process, for the host with this number.
pub(super) fn name(host: usize) -> String {
    format!("{NAME}{}-host{host}", std::process::id())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where the groups of a controller are, and of which version.
fn find(root: &Path, controller: &str) -> Result<(PathBuf, Version)> {
    for parent in [root.to_owned(), root.join("unified")] {
        let has_it = |file: &str| {
            let text = std::fs::read_to_string(parent.join(file)).unwrap_or_default();
            text.split_whitespace().any(|name| name == controller)
        };
        if has_it("cgroup.controllers") {
            if !has_it("cgroup.subtree_control") {
                let file = parent.join("cgroup.subtree_control");
                std::fs::write(&file, format!("+{controller}"))
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            return Ok((parent, Version::Two));
        }
    }
    let parent = root.join(controller);
    if parent.join("cgroup.procs").exists() {
        return Ok((parent, Version::One));
    }
    bail!("this machine has no control groups that limit `{controller}` (in {})", root.display())
}

trait Limit {
    fn controller(&self) -> &'static str;
    /// The files that set it, and their texts.
    fn files(&self, version: Version) -> Vec<(&'static str, String)>;
}

/// Thousandths of a processor.
struct ProcessorLimit(u32);

impl Limit for ProcessorLimit {
    fn controller(&self) -> &'static str {
        "cpu"
    }

    fn files(&self, version: Version) -> Vec<(&'static str, String)> {
        let quota_us = u64::from(self.0) * PERIOD_US / 1000;
        match version {
            Version::One => {
                vec![("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", quota_us.to_string())]
            }
            Version::Two => vec![("cpu.max", format!("{quota_us} {PERIOD_US}"))],
        }
    }
}

/// Bytes, beyond which the kernel kills what runs there.
struct MemoryLimit(u64);

impl Limit for MemoryLimit {
    fn controller(&self) -> &'static str {
        "memory"
    }

    fn files(&self, version: Version) -> Vec<(&'static str, String)> {
        match version {
            Version::One => vec![("memory.limit_in_bytes", self.0.to_string())],
            Version::Two => vec![("memory.max", self.0.to_string()), ("memory.swap.max", "0".into())],
        }
    }
}

/// Where control groups are mounted.
pub(super) const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
const NAME: &str = "squall-lab-";
/// The period in which a share of the processors is used up, as containers have it.
const PERIOD_US: u64 = 100_000;
const REMOVALS: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, as a machine has them where its control groups are mounted.
    fn machine(test: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("squall-limits-{test}-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        root
    }

    fn plan() -> HostPlan {
        HostPlan { processor_thousandths: Some(500), memory: Some(64 << 20), ..HostPlan::default() }
    }

    #[test]
    fn version_two_has_one_group_for_all_limits() {
        let files = [
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("cgroup.subtree_control", "cpu memory\n"),
        ];
        let root = machine("two", &files);
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
        let limits = HostLimits::make(&root, "h", &plan()).unwrap();
        assert_eq!(limits.entrances(), [root.join("h/cgroup.procs")]);
        assert_eq!((read("h/cpu.max"), read("h/memory.max")), ("50000 100000".into(), "67108864".into()));
        assert_eq!(read("cgroup.subtree_control"), "cpu memory\n");
        std::mem::forget(limits);
        std::fs::remove_dir_all(root).unwrap();
    }

    /// What the groups below do not have yet is asked for.
    #[test]
    fn version_two_is_made_to_hand_its_controllers_down() {
        let files = [("cgroup.controllers", "cpu memory\n"), ("cgroup.subtree_control", "memory\n")];
        let root = machine("down", &files);
        let plan = HostPlan { memory: None, ..plan() };
        std::mem::forget(HostLimits::make(&root, "h", &plan).unwrap());
        assert_eq!(std::fs::read_to_string(root.join("cgroup.subtree_control")).unwrap(), "+cpu");
        std::fs::remove_dir_all(root).unwrap();
    }

    /// The second version may be mounted beside the first one, without the controllers that this one has.
    #[test]
    fn version_one_has_a_group_for_each_limit() {
        let files =
            [("unified/cgroup.controllers", ""), ("cpu/cgroup.procs", ""), ("memory/cgroup.procs", "")];
        let root = machine("one", &files);
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
        let limits = HostLimits::make(&root, "h", &plan()).unwrap();
        assert_eq!(
            limits.entrances(),
            ["cpu", "memory"].map(|folder| root.join(folder).join("h/cgroup.procs"))
        );
        assert_eq!(
            (read("cpu/h/cpu.cfs_period_us"), read("cpu/h/cpu.cfs_quota_us")),
            ("100000".into(), "50000".into())
        );
        assert_eq!(read("memory/h/memory.limit_in_bytes"), "67108864");
        std::mem::forget(limits);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_machine_without_them_is_named() {
        let root = machine("none", &[("pids/cgroup.procs", "")]);
        let error = HostLimits::make(&root, "h", &plan()).err().unwrap();
        assert!(error.to_string().contains("`cpu`"), "{error}");
        std::fs::remove_dir_all(root).unwrap();
    }
}
