//! Disks of members that are slow, full, frozen, failing or gone, one at a time. A member that ends by its disk has to name the cause; its
//! disk is mended then, and it comes back with what is left of its log.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::ChaosRun;
use super::fault::FaultKind;
use crate::cluster::churn::ProcessState;
use crate::lab::{
    DISK, DiskConditions, LabHost, LabMap, WireRequest, ask_from_inside, command_in, repair_disk,
};
use crate::member::churn::FOLDER;

/// A disk with which something is wrong.
pub(super) struct BrokenDisk {
    /// The process whose disk it is, and its host.
    number: usize,
    host: usize,
    kind: FaultKind,
    /// When it is mended, if the member has not ended; then until when the member may still end.
    until: Instant,
    is_mended: bool,
}

impl BrokenDisk {
    /// Whether no member can continue with it.
    const fn is_fatal(&self) -> bool {
        matches!(self.kind, FaultKind::FailingDisk | FaultKind::GoneDisk)
    }

    /// What a member says that ends by this.
    const fn causes(&self) -> &'static [&'static str] {
        match self.kind {
            FaultKind::FullDisk => &["No space left"],
            FaultKind::FrozenDisk => &["the disk hangs"],
            _ => &["Input/output error", "Read-only file system", "it is not there any more"],
        }
    }
}

impl ChaosRun {
    /// Whether something is wrong with the disk of this process, which no other fault is to meet.
    pub(super) fn has_broken_disk(&self, number: usize) -> bool {
        self.broken_disk.as_ref().is_some_and(|broken| broken.number == number)
    }

    /// Whether something is wrong with a disk, or was with that of a member that has yet to come back: one is at a time.
    const fn is_a_disk_bad(&self) -> bool {
        self.slow_disk.is_some() || self.broken_disk.is_some() || self.returning.is_some()
    }

    /// Makes the disk of a member slow, for some time.
    pub(super) fn slow_disk(&mut self, lasts: Duration) -> Result<bool> {
        if self.is_a_disk_bad() {
            return Ok(false);
        }
        let running = self.pool.running();
        let place = usize::try_from(self.dice.below(running.len() as u64))?;
        let Some(number) = running.get(place) else { return Ok(false) };
        let delay = Duration::from_millis(1 + self.dice.below(50));
        self.say(format_args!("  by {delay:?}, of process {number}"));
        let host = self.pool.lives[*number].place;
        set_disk(host, DiskConditions { delay, ..DiskConditions::default() })?;
        self.slow_disk = Some((host, Instant::now() + lasts));
        Ok(true)
    }

    /// Does something worse to the disk of a member, for some time, or until the member has ended.
    pub(super) fn break_disk(&mut self, kind: FaultKind, lasts: Duration) -> Result<bool> {
        if self.is_a_disk_bad() {
            return Ok(false);
        }
        let Some(number) = self.victim() else { return Ok(false) };
        let (rank, host) = (self.pool.lives[number].rank, self.pool.lives[number].place);
        let none = DiskConditions::default();
        let removes_folder = kind == FaultKind::GoneDisk && self.dice.chance(500);
        let what = if removes_folder { "the folder of" } else { "the disk of" };
        self.say(format_args!("  {what} process {number} of rank {rank}"));
        self.pool.reserve(Some(host));
        self.excuses.insert(number, Instant::now() + Duration::from_secs(1 << 20));
        match kind {
            FaultKind::FullDisk => set_disk(host, DiskConditions { is_full: true, ..none })?,
            FaultKind::FrozenDisk => set_disk(host, DiskConditions { is_frozen: true, ..none })?,
            FaultKind::FailingDisk => set_disk(host, DiskConditions { fails: true, ..none })?,
            _ if removes_folder => remove_folders(&lab_host(host)?)?,
            _ => set_disk(host, DiskConditions { is_gone: true, ..none })?,
        }
        let until = Instant::now() + lasts;
        self.broken_disk = Some(BrokenDisk { number, host, kind, until, is_mended: false });
        Ok(true)
    }

    /// Mends what is due, and brings a member back that has ended by its disk.
    pub(super) fn look_at_disks(&mut self, now: Instant) -> Result<()> {
        if let Some((host, until)) = self.slow_disk
            && now >= until
        {
            self.slow_disk = None;
            set_disk(host, DiskConditions::default())?;
        }
        if let Some(broken) = self.broken_disk.take() {
            self.broken_disk = self.look_at(broken, now)?;
        }
        let has_left = |number: &usize| !self.pool.view().1.contains(&self.pool.lives[*number].rank);
        if let Some(number) = self.returning.take_if(|number| has_left(number)) {
            let back = self.pool.bring_back(number)?;
            self.pool.reserve(None);
            self.say(format_args!("  process {back} is what process {number} was"));
        }
        Ok(())
    }

    fn look_at(&mut self, mut broken: BrokenDisk, now: Instant) -> Result<Option<BrokenDisk>> {
        let BrokenDisk { number, host, .. } = broken;
        match &self.pool.lives[number].state {
            ProcessState::Failed(why) => {
                let is_named =
                    why.contains("its log in") && broken.causes().iter().any(|cause| why.contains(cause));
                ensure!(
                    is_named,
                    "process {number} does not say that it ends by a {}: {why}",
                    broken.kind.name()
                );
                self.say(format_args!("  process {number} has ended: {why}"));
                self.outcome.ended_by_disk += 1;
                self.mend(&broken)?;
                self.returning = Some(number);
                return Ok(None);
            }
            state if !state.is_present() => {
                self.mend(&broken)?;
                self.pool.reserve(None);
                return Ok(None);
            }
            _ if now < broken.until => {}
            _ if broken.is_fatal() => {
                let limit = self.outage_max();
                if now >= broken.until + limit {
                    bail!(
                        "process {number} has not noticed for {limit:?} that its disk is broken: {}",
                        broken.kind.name()
                    );
                }
            }
            _ if broken.is_mended => {
                self.excuses.remove(&number);
                self.pool.reserve(None);
                return Ok(None);
            }
            // It may be about to end.
            _ => {
                set_disk(host, DiskConditions::default())?;
                (broken.is_mended, broken.until) = (true, now + NOTICED_AFTER);
            }
        }
        Ok(Some(broken))
    }

    /// The process has ended: its disk is as new, with all that is on it.
    fn mend(&mut self, broken: &BrokenDisk) -> Result<()> {
        let BrokenDisk { number, host, .. } = *broken;
        if !broken.is_mended {
            set_disk(host, DiskConditions::default())?;
        }
        // It waits for a command after its last report.
        self.pool.kill(number);
        self.excuses.remove(&number);
        repair_disk(&lab_host(host)?).with_context(|| format!("the disk of host {host}"))
    }

    /// Waits until nothing is wrong with a disk any more, and the member that has ended by its disk has been started again.
    pub(super) fn settle_disks(&mut self) -> Result<()> {
        let now = Instant::now();
        self.slow_disk = self.slow_disk.map(|(host, _)| (host, now));
        if let Some(broken) = self.broken_disk.as_mut().filter(|broken| !broken.is_mended) {
            broken.until = broken.until.min(now);
        }
        self.await_that("all disks are well", 2 * self.outage_max(), |run| {
            run.slow_disk.is_none() && run.broken_disk.is_none() && run.returning.is_none()
        })
    }
}

fn set_disk(host: usize, conditions: DiskConditions) -> Result<()> {
    ask_from_inside(&WireRequest::SetDisk { host: Some(host), conditions })
}

fn lab_host(host: usize) -> Result<LabHost> {
    let map = LabMap::of_this_process()?.context("this process is in no lab")?;
    map.hosts.get(host).cloned().context("the lab has no such host")
}

/// Removes the folders of processes on a host while one of them is in use.
fn remove_folders(host: &LabHost) -> Result<()> {
    let mut remove: Command = command_in(host, "sh");
    remove.args(["-c", &format!("rm -r {DISK}/{FOLDER}*")]).stdin(Stdio::null()).stdout(Stdio::null());
    let output = remove.output()?;
    // A file that the log makes meanwhile may keep a folder.
    ensure!(
        output.status.success() || String::from_utf8_lossy(&output.stderr).contains("not empty"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// How long a member may take to end by what its disk has done before.
const NOTICED_AFTER: Duration = Duration::from_secs(3);
