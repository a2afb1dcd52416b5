//! The plan of a run: the sizes of a log, and its lives, each of which ends in a crash.

use std::fmt;

use squall_fabric::sim::Prng;
use squall_log::{DiskFault, LogSettings};

use crate::explain::Shrink;

/// A run: one folder on one disk, opened again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPlan {
    /// What else is drawn, is drawn from it.
    pub seed: u64,
    /// The sizes.
    pub settings: LogSettings,
    /// Subgroups that append.
    pub subgroups: u32,
    /// Whether earlier versions are wanted.
    pub keeps_versions: bool,
    /// The lives, one after the other; then the log is recovered once more.
    pub lives: Vec<LogLife>,
}

/// A life: the folder is opened and written, and the machine crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLife {
    /// Events: appends, writes that end, checkpoints, changes of the register.
    pub steps: u32,
    /// Bytes of a record at most.
    pub record_bytes_max: u64,
    /// How many of a thousand events are appends.
    pub appends_per_mille: u32,
    /// How many of a thousand events are checkpoints or changes of the register.
    pub checkpoints_per_mille: u32,
    /// The operation of the disk in which the machine stops; else it does so after the events.
    pub stop_after: Option<u64>,
    /// Whether all that was appended has to be persisted before the crash.
    pub settles: bool,
    /// Before which event a backup is made, during which more of them happen.
    pub backup_at: Option<u32>,
    /// What the disk does wrong meanwhile.
    pub fault: Option<LifeFault>,
    /// What happens to the disk while the machine is off.
    pub rest: Option<RestFault>,
}

/// What the disk does wrong during a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeFault {
    /// A write of a frame, after this many others.
    Frame(DiskFault, u64),
    /// Every second write of a checkpoint is lost.
    Checkpoints,
    /// There is space for this many more bytes.
    Full(u64),
}

/// What happens while the machine is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestFault {
    /// Bits of the log, a number of frames before its end.
    RotFrame(u64),
    /// Bits of a copy of the register.
    RotRegister(u64),
    /// Bits of the newest checkpoint of a subgroup.
    RotCheckpoint(u32),
    /// A block of the log cannot be read, a number of frames before its end.
    Unreadable(u64),
    /// The next recovery reads a wrong bit.
    ReadRot(u64),
    /// A segment is replaced by that of a copy of the folder that has lived this life differently.
    OtherCopy,
    /// A new log is begun in the folder.
    Anew,
}

impl LogPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x109);
        let few = |prng: &mut Prng, most: u64| u32::try_from(prng.below(most + 1)).expect("few");
        let block = 64 << prng.below(3);
        let settings = LogSettings {
            block,
            segment_bytes: u32::try_from(block).expect("short") * (4 + few(&mut prng, 20)),
            frame_bytes: 64 + prng.index(512),
            in_flight_max: 1 + prng.index(4),
            queue_frames_max: 1 + prng.index(6),
        };
        // Some runs have no damage: their logs have to be clean or torn.
        let is_damaged = prng.chance(700);
        let subgroups = 1 + few(&mut prng, 2);
        let lives = (0..1 + prng.below(6)).map(|_| LogLife::draw(&mut prng, &settings, is_damaged));
        let mut lives: Vec<LogLife> = lives.collect();
        let mut backups = Prng::new(seed ^ 0xbac0);
        for life in &mut lives {
            life.backup_at = backups.chance(250).then(|| few(&mut backups, u64::from(life.steps)));
        }
        let keeps_versions = prng.chance(400);
        Self { seed, settings, subgroups, keeps_versions, lives }
    }

    /// What can happen in the run, by kinds.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let kinds = self.lives.iter().flat_map(|life| {
            let stop =
                if life.stop_after.is_some() { "crash at an operation" } else { "crash between operations" };
            let backup = life.backup_at.map(|_| "backup while the log is written");
            let settled = life.settles.then_some("settled before the crash");
            let fault = life.fault.map(|fault| match fault {
                LifeFault::Checkpoints => "checkpoints that are lost",
                LifeFault::Full(_) => "append while the disk is full",
                LifeFault::Frame(DiskFault::WriteError, _) => "write that fails",
                LifeFault::Frame(DiskFault::ShortWrite, _) => "write cut short",
                LifeFault::Frame(DiskFault::MisdirectedWrite, _) => "write that goes elsewhere",
                LifeFault::Frame(..) => "write that is lost",
            });
            let rest = life.rest.map(|rest| match rest {
                RestFault::RotFrame(_) | RestFault::RotRegister(_) | RestFault::RotCheckpoint(_) => {
                    "bits that rot"
                }
                RestFault::Unreadable(_) => "block that cannot be read",
                RestFault::ReadRot(_) => "read that rots",
                RestFault::OtherCopy => "segment of another copy of the folder",
                RestFault::Anew => "log that begins anew",
            });
            [Some(stop), backup, settled, fault, rest].into_iter().flatten()
        });
        kinds.chain(self.keeps_versions.then_some("wanted versions")).collect()
    }
}

impl LogLife {
    fn draw(prng: &mut Prng, settings: &LogSettings, is_damaged: bool) -> Self {
        let most = [0, 40, 300, u64::from(settings.segment_bytes)][prng.index(4)];
        let mut life = Self {
            steps: u32::try_from(1 + prng.below(150)).expect("few"),
            record_bytes_max: most,
            appends_per_mille: 300 + u32::try_from(prng.below(600)).expect("few"),
            checkpoints_per_mille: [0, 20, 100][prng.index(3)],
            stop_after: prng.chance(500).then(|| [10, 40, 150][prng.index(3)]).map(|most| prng.below(most)),
            settles: prng.chance(400),
            backup_at: None,
            fault: None,
            rest: None,
        };
        if prng.chance(150) {
            life.fault = Some(LifeFault::Full(prng.below(4 * u64::from(settings.segment_bytes))));
        }
        if !is_damaged {
            return life;
        }
        if prng.chance(400) {
            let kinds = [
                DiskFault::WriteError,
                DiskFault::WriteError,
                DiskFault::ShortWrite,
                DiskFault::LostWrite,
                DiskFault::MisdirectedWrite,
            ];
            let frame = LifeFault::Frame(kinds[prng.index(5)], prng.below(30));
            life.fault = Some(if prng.chance(250) { LifeFault::Checkpoints } else { frame });
        }
        if prng.chance(500) {
            let back = |prng: &mut Prng| [2, 5, 40][prng.index(3)].min(1 + prng.below(40));
            life.rest = Some(match prng.below(10) {
                0..3 => RestFault::RotFrame(back(prng)),
                3 => RestFault::RotRegister(prng.below(2)),
                4 => RestFault::RotCheckpoint(u32::try_from(prng.below(3)).expect("few")),
                5 => RestFault::Unreadable(back(prng)),
                6 => RestFault::ReadRot(prng.below(4)),
                7..9 => RestFault::OtherCopy,
                _ => RestFault::Anew,
            });
        }
        life
    }
}

impl Shrink for LogPlan {
    fn smaller(&self) -> Vec<Self> {
        let with = |lives: Vec<LogLife>| Self { lives, ..self.clone() };
        let mut plans = Vec::new();
        for i in 0..self.lives.len() {
            let mut lives = self.lives.clone();
            lives.remove(i);
            plans.push(with(lives));
        }
        for i in 0..self.lives.len() {
            let mut change = |change: &dyn Fn(&mut LogLife)| {
                let mut lives = self.lives.clone();
                change(&mut lives[i]);
                if lives != self.lives {
                    plans.push(with(lives));
                }
            };
            change(&|life| life.steps /= 2);
            change(&|life| life.fault = None);
            change(&|life| life.rest = None);
            change(&|life| life.stop_after = None);
            change(&|life| life.backup_at = None);
            change(&|life| life.checkpoints_per_mille = 0);
            change(&|life| life.record_bytes_max = life.record_bytes_max.min(8));
        }
        plans
    }
}

impl fmt::Display for LogPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, settings, subgroups, keeps_versions, lives } = self;
        writeln!(f, "seed {seed}: {subgroups} subgroups, keeps versions: {keeps_versions}, {settings:?}")?;
        lives.iter().enumerate().try_for_each(|(i, life)| writeln!(f, "  life {i}: {life:?}"))
    }
}
