//! The faults of `squall chaos` as data: a seed draws them, scripts name them, and the result counts them.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use squall_fabric::sim::Prng;

/// What can happen to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// A member is killed (-9)
    Kill,
    /// A member is halted (-STOP), for less or more than the suspicion time
    Halt,
    /// A process is halted some milliseconds after the group has admitted it
    JoinHalt,
    /// A member is killed, and another one halted some milliseconds later
    KillHalt,
    /// The link between two members is cut, both ways, until one of them is removed (TCP in a lab)
    Cut,
    /// As cut, but the packets of one direction still arrive
    CutOneWay,
    /// All links between members lose, delay, repeat, garble or reorder frames for a while (TCP in a lab)
    Network,
    /// All links between members fail, for less or more than the suspicion time, and come back at once (TCP in a lab)
    Outage,
    /// The disk of a member takes some milliseconds longer for each access for a while (TCP in a lab, as root); messages are durable then
    SlowDisk,
    /// The disk of a member is full for a while; what its log has already made can be used (as slow-disk)
    FullDisk,
    /// The disk of a member takes no writes for a while, for less or more than it may hang (as slow-disk)
    FrozenDisk,
    /// All writes to the disk of a member fail (as slow-disk)
    FailingDisk,
    /// The disk of a member cannot be read or written, or its folder is removed (as slow-disk)
    GoneDisk,
    /// A client outside the group is killed (-9), and another one begins
    KillClient,
    /// Other threads take the processors for a while
    Busy,
    /// Each member is replaced: a process joins, and the member leaves in order
    Restart,
    /// Processes without the secret connect: garbage, silence, floods, wrong secrets
    Strangers,
}

impl FaultKind {
    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How many times as often as others a seed draws it.
    const fn weight(self) -> u64 {
        match self {
            Self::Kill => 6,
            Self::Halt => 4,
            Self::JoinHalt | Self::KillHalt => 3,
            Self::Strangers | Self::Network | Self::SlowDisk | Self::KillClient => 2,
            Self::FullDisk | Self::FrozenDisk | Self::FailingDisk | Self::GoneDisk => 2,
            Self::Cut | Self::CutOneWay | Self::Outage | Self::Busy | Self::Restart => 1,
        }
    }

    /// Whether it needs a lab.
    pub(crate) const fn needs_lab(self) -> bool {
        matches!(self, Self::Cut | Self::CutOneWay | Self::Network | Self::Outage) || self.needs_disk()
    }

    /// Whether it needs members with logs on disks of their own.
    pub(crate) const fn needs_disk(self) -> bool {
        matches!(
            self,
            Self::SlowDisk | Self::FullDisk | Self::FrozenDisk | Self::FailingDisk | Self::GoneDisk
        )
    }

    /// The most members that the group loses by it.
    pub(crate) const fn victims(self) -> usize {
        match self {
            Self::Kill | Self::Halt | Self::Cut | Self::CutOneWay => 1,
            Self::FullDisk | Self::FrozenDisk | Self::FailingDisk | Self::GoneDisk => 1,
            // The joiner counts as soon as it is in a view.
            Self::JoinHalt => 1,
            Self::KillHalt => 2,
            Self::Busy
            | Self::Restart
            | Self::Strangers
            | Self::Network
            | Self::Outage
            | Self::SlowDisk
            | Self::KillClient => 0,
        }
    }
}

/// One fault, written `KIND`, `KIND@AFTER_MS`, `KIND~LASTS_MS` or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// Between its two parts, such as a member's death and the halt of another one.
    pub(crate) after_ms: u64,
    /// How long it lasts; `None`: a process that is halted never continues.
    pub(crate) lasts_ms: Option<u64>,
}

impl Fault {
    /// Draws one of `kinds`, which is not empty.
    pub(crate) fn draw(dice: &mut Prng, kinds: &[FaultKind], suspicion_ms: u64) -> Self {
        let all: u64 = kinds.iter().map(|kind| kind.weight()).sum();
        let mut place = dice.below(all);
        let is_drawn = |kind: &&FaultKind| {
            let is_here = place < kind.weight();
            place = place.saturating_sub(kind.weight());
            is_here
        };
        let kind = *kinds.iter().find(is_drawn).unwrap_or(&kinds[0]);
        // The first milliseconds are those in which a view opens.
        let after_ms = dice.below(12);
        let lasts_ms = match kind {
            // From a tenth of the suspicion time to three times as much.
            FaultKind::Halt | FaultKind::JoinHalt | FaultKind::KillHalt => {
                Some(suspicion_ms * (10 + dice.below(300)) / 100)
            }
            // In between, some of them may notice it and continue without another one.
            FaultKind::Outage => {
                let percent = if dice.chance(400) { 10 + dice.below(40) } else { 150 + dice.below(150) };
                Some(suspicion_ms * percent / 100)
            }
            FaultKind::Busy | FaultKind::Strangers | FaultKind::Network | FaultKind::SlowDisk => {
                Some(500 + dice.below(2500))
            }
            // The log has two segments at most, and a disk may hang for two seconds.
            FaultKind::FullDisk => Some(2000 + dice.below(8000)),
            FaultKind::FrozenDisk => Some(500 + dice.below(4000)),
            FaultKind::Kill
            | FaultKind::KillClient
            | FaultKind::Cut
            | FaultKind::CutOneWay
            | FaultKind::FailingDisk
            | FaultKind::GoneDisk
            | FaultKind::Restart => None,
        };
        Self { kind, after_ms, lasts_ms }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind.name())?;
        if matches!(self.kind, FaultKind::JoinHalt | FaultKind::KillHalt) {
            write!(f, "@{}", self.after_ms)?;
        }
        self.lasts_ms.map_or(Ok(()), |lasts| write!(f, "~{lasts}"))
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: Option<&str>| {
            let wrong = |part| format!("`{part}` in `{text}` is not a number of milliseconds");
            part.map(|part| part.parse::<u64>().map_err(|_| wrong(part))).transpose()
        };
        let (rest, lasts) = text.split_once('~').map_or((text, None), |(rest, lasts)| (rest, Some(lasts)));
        let (kind, after) = rest.split_once('@').map_or((rest, None), |(kind, after)| (kind, Some(after)));
        let names: Vec<String> = FaultKind::value_variants().iter().map(|kind| kind.name()).collect();
        let unknown = |_| format!("`{kind}` is not a fault: write one of {}", names.join(", "));
        let kind = FaultKind::from_str(kind, false).map_err(unknown)?;
        Ok(Self { kind, after_ms: number(after)?.unwrap_or(0), lasts_ms: number(lasts)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in [
            "kill",
            "halt~1500",
            "join-halt@2",
            "kill-halt@8~3000",
            "cut-one-way",
            "busy~10",
            "slow-disk~900",
            "gone-disk",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in ["", "kil", "halt~", "join-halt@x", "kill-halt@1~-1"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }

    /// A seed draws all kinds, and the same ones each time.
    #[test]
    fn a_seed_draws_all_kinds() {
        let draw = || {
            let mut dice = Prng::new(7);
            (0..200).map(|_| Fault::draw(&mut dice, FaultKind::value_variants(), 1000)).collect::<Vec<_>>()
        };
        let faults = draw();
        assert_eq!(faults, draw());
        let is_drawn = |kind: &FaultKind| faults.iter().any(|fault| fault.kind == *kind);
        assert!(FaultKind::value_variants().iter().all(is_drawn));
        let halts: Vec<u64> = faults
            .iter()
            .filter(|fault| fault.kind == FaultKind::Halt)
            .filter_map(|fault| fault.lasts_ms)
            .collect();
        assert!(halts.iter().any(|ms| *ms < 1000) && halts.iter().any(|ms| *ms > 1000), "{halts:?}");
    }
}
