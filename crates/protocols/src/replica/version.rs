//! Earlier versions: which messages of a log belong to a state as it was, and how a reader follows the log (Derecho
//! §3.4, persistent mode).
//!
//! **State.** [`CountedLog`] says what of a member's log counts: the views that have ended, each with the number of sequences
//! that count, and how far the present one is delivered here. [`VersionReplay`] makes a version: it begins at a state that is there
//! (the initial one, or the last version that was made), and applies messages up to the version.
//!
//! **Order.** [`VersionReplay::begin`]; then for each [`LogPart`] of [`VersionReplay::next_part`]: the messages of the log in it, in
//! order, each to [`VersionReplay::take`], which says whether it is to be applied; after the last one of a part
//! [`VersionReplay::end_part`]; at the end [`VersionReplay::finish`]. It may be cut off at any step: the state is then at
//! [`VersionReplay::at`].
//!
//! **Times.** The time of a position is the greatest time of the messages before it, by the log of the member that is
//! asked; other members have received the same messages at other times, so a version by time is one of this member's. A version
//! by time is readable when nothing can get into it any more: a later message is delivered, or all that was received up to
//! that time is (`CountedLog::settled`).

use super::{ShardPosition, mutation};

/// An earlier version of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionPoint {
    /// All messages before this position.
    Position(ShardPosition),
    /// All messages before the first one that this member received after this time, in nanoseconds.
    Time(u64),
}

/// A position, and the greatest time of the messages before it; 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedPosition {
    /// The position.
    pub position: ShardPosition,
    /// The time in nanoseconds.
    pub time: u64,
}

impl TimedPosition {
    /// Whether all messages before it belong to a version.
    #[must_use]
    pub fn is_in(&self, version: VersionPoint) -> bool {
        match version {
            VersionPoint::Position(position) => self.position <= position,
            VersionPoint::Time(time) => self.time <= time,
        }
    }
}

/// Why a version cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionFault {
    /// It has not come yet.
    NotYet {
        /// The newest position that can be read.
        newest: ShardPosition,
    },
    /// What it consists of is not in the log any more.
    Compacted {
        /// The oldest position that can be read.
        oldest: ShardPosition,
    },
}

/// What of a member's log of a shard counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedLog {
    /// The views before `newest.view` in which something counts, ascending, each with its number of sequences.
    ended: Vec<(u64, u64)>,
    /// Everything before is delivered here.
    newest: ShardPosition,
    /// All that this member received up to this time, in nanoseconds, is before `newest`; what it receives later gets a later time.
    settled: u64,
}

/// Sequences of a view in a log: `from < to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// The view.
    pub view: u64,
    /// The first sequence.
    pub from: u64,
    /// One more than the last.
    pub to: u64,
}

impl CountedLog {
    /// Returns the log of a member that has delivered everything before `newest`, where `ended` has the numbers of sequences that
    /// count of the views before, as far as they are known. A view that has ended and of which this member has not delivered everything
    /// yet counts as far as that goes.
    #[must_use]
    pub fn new(ended: impl IntoIterator<Item = (u64, u64)>, newest: ShardPosition, settled: u64) -> Self {
        let is_before = |(view, _): &(u64, u64)| *view < newest.view;
        let ended = ended.into_iter().filter(is_before);
        let ended = ended.map(|(view, count)| (view, if mutant!(ReadBeyondTrim) { u64::MAX } else { count }));
        Self { ended: ended.collect(), newest, settled }
    }

    /// Returns the position up to which everything is delivered.
    #[must_use]
    pub const fn newest(&self) -> ShardPosition {
        self.newest
    }

    /// Returns the time up to which all that was received is delivered.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns the first part of the log between two positions, of which the second one is not after the newest.
    #[must_use]
    pub fn part(&self, from: ShardPosition, to: ShardPosition) -> Option<LogPart> {
        let present = [(self.newest.view, self.newest.sequence)];
        let views = self.ended.iter().copied().chain(present);
        let mut parts =
            views.filter(|(view, _)| (from.view..=to.view).contains(view)).map(|(view, count)| {
                let first = if view == from.view { from.sequence } else { 0 };
                let last = if view == to.view { count.min(to.sequence) } else { count };
                LogPart { view, from: first, to: last }
            });
        parts.find(|part| part.from < part.to)
    }
}

/// Makes a version; the module's documentation states its law.
#[derive(Clone, Debug)]
pub struct VersionReplay {
    version: VersionPoint,
    log: CountedLog,
    /// Where the state is.
    at: TimedPosition,
    /// The messages that follow are later than the version.
    is_reached: bool,
}

impl VersionReplay {
    /// Begins. `base` is the oldest state that can be made, behind which the log is kept, and `made` the position of another state that is
    /// there: one that was made before, or a later checkpoint.
    ///
    /// # Errors
    /// If the version has not come yet, or is older than `base`.
    pub fn begin(
        version: VersionPoint,
        log: CountedLog,
        base: TimedPosition,
        made: Option<TimedPosition>,
    ) -> Result<Self, VersionFault> {
        if !base.is_in(version) {
            return Err(VersionFault::Compacted { oldest: base.position });
        }
        if let VersionPoint::Position(position) = version
            && position > log.newest
        {
            return Err(VersionFault::NotYet { newest: log.newest });
        }
        let made = made.filter(|made| made.is_in(version) || mutant!(ContinueFromLater));
        // The log may have been compacted since it was made.
        let at =
            made.filter(|made| made.position >= base.position || mutant!(ReadBeforeBase)).unwrap_or(base);
        Ok(Self { version, log, at, is_reached: false })
    }

    /// Returns where the state is: at first, the position of the state with which it begins.
    #[must_use]
    pub const fn at(&self) -> TimedPosition {
        self.at
    }

    /// Returns the next part of the log to read.
    #[must_use]
    pub fn next_part(&self) -> Option<LogPart> {
        let part = self.log.part(self.at.position, self.end())?;
        Some(part).filter(|_| !self.is_reached)
    }

    /// The position behind which nothing is read.
    fn end(&self) -> ShardPosition {
        match self.version {
            VersionPoint::Position(position) if !mutant!(ReadToNewest) => position,
            _ => self.log.newest,
        }
    }

    /// Takes the next message of a part; returns whether it belongs to the version, and is to be applied.
    pub fn take(&mut self, view: u64, sequence: u64, time: u64) -> bool {
        let time = if mutant!(TrustEachTime) { time } else { time.max(self.at.time) };
        let is_later = matches!(self.version, VersionPoint::Time(last) if time > last);
        if self.is_reached {
            return false;
        }
        if is_later {
            self.at.position = ShardPosition { view, sequence };
            self.is_reached = true;
            return false;
        }
        self.at = TimedPosition { position: ShardPosition { view, sequence: sequence + 1 }, time };
        true
    }

    /// Notes that all messages of a part were taken, or of the beginning of one.
    pub fn end_part(&mut self, part: LogPart) {
        if !self.is_reached {
            let end = ShardPosition { view: part.view, sequence: part.to };
            self.at.position = self.at.position.max(end);
        }
    }

    /// Returns the position of the version, which has been reached.
    ///
    /// # Errors
    /// If a message may yet get into it.
    ///
    /// # Panics
    /// If there are messages left.
    pub fn finish(self) -> Result<TimedPosition, VersionFault> {
        assert!(self.next_part().is_none(), "[A14] the version ends before {:?}", self.end());
        match self.version {
            VersionPoint::Position(position) => Ok(TimedPosition { position, time: self.at.time }),
            VersionPoint::Time(_) if self.is_reached => Ok(self.at),
            VersionPoint::Time(time) if time <= self.log.settled || mutant!(ReadUnsettled) => {
                Ok(TimedPosition { position: self.log.newest, time: self.at.time })
            }
            VersionPoint::Time(_) => Err(VersionFault::NotYet { newest: self.log.newest }),
        }
    }
}
