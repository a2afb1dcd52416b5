//! Random logs and versions of them \[A14\] (Derecho §3.4, persistent mode): views that end at any trim, clocks that are set back between views, messages that are
//! received and not delivered, reading in pieces, and queries at rising and falling versions.

use squall_fabric::sim::Prng;

use super::world::{WorldFault, ensure};
use crate::replica::{
    CountedLog, LogPart, ShardPosition, TimedPosition, VersionFault, VersionPoint, VersionReplay,
};

/// A message of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Logged {
    at: ShardPosition,
    time: u64,
    is_delivered: bool,
}

/// The log of a member at one moment.
struct LogModel {
    messages: Vec<Logged>,
    ended: Vec<(u64, u64)>,
    newest: ShardPosition,
    now: u64,
    /// The oldest checkpoint: what is before is not in the log any more.
    base: MadeState,
}

/// A state that was made, by the messages in it.
#[derive(Clone, Default)]
struct MadeState {
    at: TimedPosition,
    messages: Vec<ShardPosition>,
}

fn log(prng: &mut Prng) -> LogModel {
    let (mut messages, mut ended) = (Vec::new(), Vec::new());
    let (mut view, mut clock, mut latest) = (prng.below(2), 100, 100);
    for left in (0..1 + prng.below(4)).rev() {
        let count = prng.below(10);
        let delivered = if prng.chance(400) { count } else { prng.below(count + 1) };
        // The clock may be set back between two runs.
        clock = if prng.chance(300) { clock - prng.below(clock / 2) } else { clock };
        let mut newest = ShardPosition::start_of(view);
        for sequence in (0..count).filter(|_| prng.chance(700)).collect::<Vec<_>>() {
            clock += 1 + prng.below(20);
            let (at, is_delivered) = (ShardPosition { view, sequence }, sequence < delivered);
            messages.push(Logged { at, time: clock, is_delivered });
            if is_delivered {
                newest.sequence = sequence + 1;
            }
        }
        latest = latest.max(clock);
        if left == 0 {
            return LogModel {
                messages,
                ended,
                newest,
                now: latest + prng.below(3),
                base: MadeState::default(),
            };
        }
        if delivered > 0 {
            ended.push((view, delivered));
        }
        view += 1 + prng.below(3);
    }
    unreachable!("the last view has returned")
}

impl LogModel {
    /// What the driver of a member knows.
    fn counted(&self) -> CountedLog {
        let is_open = |message: &Logged| message.at.view == self.newest.view && !message.is_delivered;
        let settled = if self.messages.iter().any(is_open) { 0 } else { self.now };
        CountedLog::new(self.ended.iter().copied(), self.newest, settled)
    }

    /// The messages that belong to a version, if `counts` are the ones that are delivered.
    fn expected(&self, version: VersionPoint, counts: impl Fn(&Logged) -> bool) -> Vec<ShardPosition> {
        let mut latest = 0;
        let is_in = |message: &&Logged| {
            latest = message.time.max(latest);
            match version {
                VersionPoint::Position(position) => message.at < position,
                VersionPoint::Time(time) => latest <= time,
            }
        };
        let counted = self.messages.iter().filter(|message| counts(message));
        counted.take_while(is_in).map(|message| message.at).collect()
    }

    /// Makes a version from a state, as the driver does; stops after some pieces if `pieces` says so.
    fn make(
        &self,
        version: VersionPoint,
        made: &mut MadeState,
        prng: &mut Prng,
    ) -> Result<Option<TimedPosition>, VersionFault> {
        let known = Some(made.at).filter(|_| !made.messages.is_empty());
        let mut replay = VersionReplay::begin(version, self.counted(), self.base.at, known)?;
        if known != Some(replay.at()) {
            *made = self.base.clone();
        }
        while let Some(part) = replay.next_part() {
            if prng.chance(30) {
                made.at = replay.at();
                return Ok(None);
            }
            self.read(part, 1 + prng.index(4), &mut replay, &mut made.messages);
        }
        made.at = replay.at();
        made.at = replay.finish()?;
        Ok(Some(made.at))
    }

    /// Makes a checkpoint, and removes what is before it.
    fn compact(&mut self, prng: &mut Prng) {
        let view = prng.below(self.newest.view + 1);
        let version = VersionPoint::Position(ShardPosition { view, sequence: prng.below(12) });
        let mut made = MadeState::default();
        if let Ok(Some(_)) = self.make(version, &mut made, prng) {
            self.base = made;
        }
    }

    /// Reads some messages of a part.
    fn read(
        &self,
        part: LogPart,
        messages_max: usize,
        replay: &mut VersionReplay,
        state: &mut Vec<ShardPosition>,
    ) {
        let is_in = |message: &&Logged| {
            let is_kept = message.at >= self.base.at.position;
            is_kept && message.at.view == part.view && (part.from..part.to).contains(&message.at.sequence)
        };
        let all: Vec<&Logged> = self.messages.iter().filter(is_in).collect();
        for message in all.iter().take(messages_max) {
            if replay.take(part.view, message.at.sequence, message.time) {
                state.push(message.at);
            }
        }
        if all.len() <= messages_max {
            replay.end_part(part);
        }
    }
}

/// One log, and some versions of it.
pub(super) fn run(seed: u64) -> Result<(), WorldFault> {
    let mut prng = Prng::new(seed);
    let mut log = log(&mut prng);
    let mut made = MadeState::default();
    for _ in 0..8 {
        if prng.chance(200) {
            log.compact(&mut prng);
        }
        let version = if prng.chance(500) {
            let view = prng.below(log.newest.view + 2);
            VersionPoint::Position(ShardPosition { view, sequence: prng.below(12) })
        } else {
            VersionPoint::Time(prng.below(log.now + 10))
        };
        let outcome = log.make(version, &mut made, &mut prng);
        let text = || format!("[A14] seed {seed}: {version:?} of {:?}: {outcome:?}", log.newest);
        let delivered = |message: &Logged| message.is_delivered;
        match (version, outcome) {
            (_, Ok(None)) => {}
            (_, Err(VersionFault::Compacted { oldest })) => {
                ensure!(oldest == log.base.at.position && !log.base.at.is_in(version), "{}", text());
            }
            (VersionPoint::Position(position), Ok(Some(at))) => {
                ensure!(position <= log.newest && at.position == position, "{}", text());
                ensure!(made.messages == log.expected(version, delivered), "{}", text());
            }
            (VersionPoint::Position(position), Err(fault)) => {
                ensure!(
                    fault == VersionFault::NotYet { newest: log.newest } && position > log.newest,
                    "{}",
                    text()
                );
            }
            (VersionPoint::Time(time), Ok(Some(at))) => {
                ensure!(made.messages == log.expected(version, delivered), "{}", text());
                // What is received and not delivered may be delivered later, and what is received later has a later time.
                let may_come = |message: &Logged| message.is_delivered || message.at.view == log.newest.view;
                ensure!(made.messages == log.expected(version, may_come), "{}", text());
                ensure!(
                    at.time <= time && made.messages.iter().all(|message| *message < at.position),
                    "{}",
                    text()
                );
                let same = log.expected(VersionPoint::Position(at.position), delivered);
                ensure!(made.messages == same, "{}", text());
            }
            (VersionPoint::Time(time), Err(fault)) => {
                let has_later = log.expected(version, delivered).len()
                    < log.messages.iter().filter(|message| message.is_delivered).count();
                ensure!(fault == VersionFault::NotYet { newest: log.newest } && !has_later, "{}", text());
                ensure!(time > log.counted().settled(), "{}", text());
            }
        }
    }
    Ok(())
}

#[test]
fn a_version_has_the_messages_before_it() {
    for seed in 0..20_000 {
        run(seed).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

/// A state that can only be made from a later base is not in the log any more.
#[test]
fn what_is_before_the_base_is_compacted() {
    let log = CountedLog::new([(3, 4)], ShardPosition { view: 5, sequence: 2 }, 90);
    let base = TimedPosition { position: ShardPosition { view: 3, sequence: 1 }, time: 50 };
    let begin = |version| VersionReplay::begin(version, log.clone(), base, None).map(|replay| replay.at());
    let compacted = Err(VersionFault::Compacted { oldest: base.position });
    for version in [VersionPoint::Position(ShardPosition { view: 3, sequence: 0 }), VersionPoint::Time(49)] {
        assert_eq!(begin(version), compacted);
    }
    for version in [VersionPoint::Position(base.position), VersionPoint::Time(50)] {
        assert_eq!(begin(version), Ok(base));
    }
}
