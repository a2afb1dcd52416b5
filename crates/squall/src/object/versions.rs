//! Earlier versions of a durable object, made from this member's log (Derecho §3.4, persistent mode).
//!
//! [`VersionReplay`] decides what belongs to a version. The thread that asks makes the state: it applies the messages of the log to a
//! fresh object, to that of a checkpoint, or to the one that was made last, whichever of those that are earlier is the latest. It borrows the log for one piece after the other, and holds the
//! core's lock only to read how far updates are applied; so neither the thread that applies updates nor the polling thread waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;
use squall_protocols::replica::{
    LogPart, ShardPosition, StateRecovery, TimedPosition, VersionFault, VersionPoint, VersionReplay,
};

use super::checkpoint::{self, ReadCheckpoint};
use super::machine::{Replicated, TypedMachine};
use super::recovery::has_ended;
use super::shard::{SETTINGS, Shard};
use super::{Object, ObjectError, wire};
use crate::durable::{BorrowedLog, LogRange, time_ns};
use crate::error::GroupError;
use crate::error::HistoryError;
use crate::handle::history::{self, KnownLog, StoredMessage};
use crate::slot::Position;

squall_fabric::debug_as_text!(VersionError);

/// An earlier version of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// After all updates before a position, and before all others. It is the same at all members.
    Position(Position),
    /// After all updates that the member that is asked had received up to a time by its clock, and before all others. Members have
    /// received the same updates at other times, a network delay and the difference of their clocks apart; [`Versioned::position`] names the
    /// version for all of them. A version that was read stays the same. If the clock was set back while the member was down, updates after that
    /// count as received at the latest time before.
    Time(SystemTime),
}

/// An answer from an earlier version.
///
/// ```
/// use squall::object::Versioned;
///
/// fn describe(balance: &Versioned<i64>) -> String {
///     format!("{} before position {:?}", balance.value, balance.position)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versioned<R> {
    /// The answer.
    pub value: R,
    /// The position of the version: it has all updates before.
    pub position: Position,
    /// When the member had received these updates; `None` if there are none.
    pub time: Option<SystemTime>,
}

/// Why an earlier version cannot be read.
///
/// ```
/// use squall::object::VersionError;
///
/// /// Whether it helps to ask again, here.
/// fn comes(error: &VersionError) -> bool {
///     matches!(error, VersionError::NotYet { .. } | VersionError::Incomplete(_))
/// }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// The version has not come yet at this member.
    #[error(
        "this version has not come yet: this member has delivered everything before position {} of view {}; ask again later",
        newest.sequence, newest.view
    )]
    NotYet {
        /// The newest version that can be read.
        newest: Position,
    },
    /// The log begins later.
    #[error(
        "this version is older than what the log of this member keeps, which is from position {} of view {} on: ask for that or a later one",
        oldest.sequence, oldest.view
    )]
    Compacted {
        /// The oldest version that can be read.
        oldest: Position,
    },
    /// This member has joined later, or was away, and has not got from the others yet what the version is made from.
    #[error(transparent)]
    Incomplete(#[from] HistoryError),
    /// This member has no replica of the shard.
    #[error(
        "this member has no state of shard {shard}: if it is one of its members, wait until it has it (`wait_ready`); else ask at a member of the shard"
    )]
    NotHere {
        /// The shard's number.
        shard: usize,
    },
    /// The object is not durable, the query cannot be read, or the group has ended here.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// An object as it was at an earlier version; obtained by [`Object::at`], where there is an example.
///
/// The version is made from this member's log, by the thread that asks: it applies all updates up to the version to a fresh object,
/// which takes as long as a restart, while updates and other queries continue. The state that was made is kept, so that a query of the same or a
/// later version begins there: ask at rising versions, and free it by [`Object::forget_versions`]. Callers that ask at the same time
/// wait for each other.
#[derive(Debug)]
pub struct ObjectVersion<'a, T: Replicated> {
    object: &'a Object<T>,
    version: Version,
}

impl<'a, T: Replicated> ObjectVersion<'a, T> {
    pub(super) const fn new(object: &'a Object<T>, version: Version) -> Self {
        Self { object, version }
    }

    /// Queries `key`'s shard as it was. It must not be called on the thread that polls the group, or by the object's own code.
    ///
    /// # Errors
    /// [`VersionError`], with what to do next.
    pub fn query(&self, key: &[u8], query: &T::Query) -> Result<Versioned<T::Reply>, VersionError> {
        // Not fuzzed: the query's type is the application's, and this process has just written it.
        let query = wire::encode(query)?;
        let read = |state: &T| postcard::from_bytes(&query).map(|query| state.query(query));
        let Versioned { value, position, time } = self.inspect(self.object.shard(key), read)?;
        let value = value.map_err(ObjectError::from)?;
        Ok(Versioned { value, position, time })
    }

    /// Reads a shard as it was: `read` gets the object. As for [`ObjectVersion::query`].
    ///
    /// # Errors
    /// [`VersionError`], with what to do next.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn inspect<R>(&self, shard: usize, read: impl FnOnce(&T) -> R) -> Result<Versioned<R>, VersionError> {
        let shard = &self.object.shards[shard];
        let version = match self.version {
            Version::Position(position) => VersionPoint::Position(position),
            Version::Time(time) => VersionPoint::Time(time_ns(time)),
        };
        let mut made = lock(&shard.versions.made);
        let at = make(shard, version, &mut made)?;
        let state = made.as_ref().expect("it has just been made");
        let time = (at.time > 0).then(|| UNIX_EPOCH + Duration::from_nanos(at.time));
        Ok(Versioned { value: read(&state.recovery.machine().0), position: at.position, time })
    }
}

/// Makes the initial state of a shard.
pub(super) type FirstState<T> = Arc<Mutex<Box<dyn Fn() -> T + Send>>>;

/// What earlier versions of a shard are made from.
pub(super) struct Versions<T: Replicated> {
    first: FirstState<T>,
    made: Mutex<Option<MadeVersion<T>>>,
    /// The greatest time of the messages in the newest checkpoint.
    checkpoint_time: AtomicU64,
}

/// A version that was made.
struct MadeVersion<T: Replicated> {
    recovery: StateRecovery<TypedMachine<T>>,
    at: TimedPosition,
}

impl<T: Replicated> Versions<T> {
    pub(super) const fn new(first: FirstState<T>) -> Self {
        Self { first, made: Mutex::new(None), checkpoint_time: AtomicU64::new(0) }
    }

    /// Returns the greatest time of the messages in the newest checkpoint.
    pub(super) fn checkpoint_time(&self) -> u64 {
        self.checkpoint_time.load(Ordering::Relaxed)
    }

    /// Notes a checkpoint with messages up to this time.
    pub(super) fn note_checkpoint(&self, time: u64) {
        self.checkpoint_time.fetch_max(time, Ordering::Relaxed);
    }

    /// Returns a new initial state.
    pub(super) fn first(&self) -> T {
        lock(&self.first)()
    }

    pub(super) fn forget(&self) {
        *lock(&self.made) = None;
    }
}

/// Makes a version in `made`, from what is there if that is earlier.
fn make<T: Replicated>(
    shard: &Shard<T>,
    version: VersionPoint,
    made: &mut Option<MadeVersion<T>>,
) -> Result<TimedPosition, VersionError> {
    let KnownLog { counted, begin, .. } = counted_log(shard, version)?;
    let checkpoints = checkpoints(shard)?;
    let oldest = checkpoints.iter().copied().find(|at| at.position == begin);
    let base = oldest.unwrap_or(TimedPosition { position: begin, ..BASE });
    let before = made.take();
    let later = before.iter().map(|made| made.at).chain(checkpoints).filter(|at| at.is_in(version));
    let later = later.max_by_key(|at| at.position);
    let begun = VersionReplay::begin(version, counted, base, later);
    let mut replay = match begun {
        Ok(replay) => replay,
        Err(fault) => {
            *made = before;
            return Err(fault.into());
        }
    };
    let fresh = || MadeVersion {
        recovery: StateRecovery::new(TypedMachine(shard.versions.first()), SETTINGS),
        at: BASE,
    };
    let mut state = match before.filter(|made| made.at == replay.at()) {
        Some(made) => made,
        None if replay.at().position == BASE.position => fresh(),
        None => {
            let log = borrow(shard)?;
            let read = checkpoint::read(&log, shard.id, checkpoint::start_of(replay.at().position));
            // It may have been removed meanwhile.
            let compacted =
                || VersionError::Compacted { oldest: checkpoint::position_of(log.begin_of(shard.id)) };
            let ReadCheckpoint { recovery, at, .. } = read.map_err(|_| compacted())?;
            MadeVersion { recovery, at }
        }
    };
    let mut read = VecDeque::new();
    let mut replayed = Ok(());
    while let Some(part) = replay.next_part().filter(|_| replayed.is_ok()) {
        replayed = replay_piece(shard, part, &mut replay, &mut state, &mut read);
    }
    state.at = replay.at();
    let finished = replayed.and_then(|()| Ok(replay.finish()?));
    if let Ok(at) = &finished {
        state.at = *at;
    }
    *made = Some(state);
    finished
}

/// Returns the checkpoints of a shard, ascending.
fn checkpoints<T: Replicated>(shard: &Shard<T>) -> Result<Vec<TimedPosition>, VersionError> {
    let log = borrow(shard)?;
    let timed = |start| {
        let time = checkpoint::read_time(&log, shard.id, start).ok()?;
        Some(TimedPosition { position: checkpoint::position_of(start), time })
    };
    Ok(log.checkpoints(shard.id).into_iter().filter_map(timed).collect())
}

/// Applies a piece of the log.
fn replay_piece<T: Replicated>(
    shard: &Shard<T>,
    part: LogPart,
    replay: &mut VersionReplay,
    state: &mut MadeVersion<T>,
    read: &mut VecDeque<StoredMessage>,
) -> Result<(), VersionError> {
    let range = LogRange { subgroup: shard.id, view: part.view, from: part.from, to: part.to };
    let log = borrow(shard)?;
    let next = history::read_piece(&log, range, read)?;
    drop(log);
    for StoredMessage { view, sequence, received, bytes, .. } in read.drain(..) {
        if replay.take(view, sequence, time_ns(received)) {
            state.recovery.apply(view, sequence, &bytes);
        }
    }
    // What was read may have no message at its end, or none at all.
    replay.end_part(LogPart { to: next, ..part });
    Ok(())
}

/// Returns what counts of the log of this member.
fn counted_log<T: Replicated>(shard: &Shard<T>, version: VersionPoint) -> Result<KnownLog, VersionError> {
    let durable = shard.durable.ok_or(ObjectError::NotDurable)?;
    // Nothing gets into the future yet.
    let passed = match version {
        VersionPoint::Time(time) if time <= time_ns(SystemTime::now()) => Some(time),
        _ => None,
    };
    loop {
        let log = borrow(shard)?;
        let received = passed.and_then(|time| log.pass(shard.id, time));
        let newest = shard.core().replica.position();
        let newest = newest.ok_or(VersionError::NotHere { shard: shard.number })?;
        let is_settled = received.is_some_and(|received| received <= newest);
        let settled = passed.filter(|_| is_settled).unwrap_or(0);
        if let Some(known) = history::counted(&log, (shard.id, durable), newest, settled) {
            let is_whole = known.oldest <= known.begin;
            return if is_whole { Ok(known) } else { Err(known.is_earlier(&log).into()) };
        }
        drop(log);
        std::thread::sleep(RECORD_PAUSE);
    }
}

fn borrow<T: Replicated>(shard: &Shard<T>) -> Result<BorrowedLog, ObjectError> {
    let log = shard.link.log.as_ref().filter(|_| !has_ended(shard));
    let ended = || ObjectError::Group(shard.link.status.failure().unwrap_or(GroupError::Left));
    log.and_then(|log| log.borrow()).ok_or_else(|| shard.end().unwrap_or_else(ended))
}

impl From<VersionFault> for VersionError {
    fn from(fault: VersionFault) -> Self {
        match fault {
            VersionFault::NotYet { newest } => Self::NotYet { newest },
            VersionFault::Compacted { oldest } => Self::Compacted { oldest },
        }
    }
}

/// The initial state.
const BASE: TimedPosition = TimedPosition { position: ShardPosition { view: 0, sequence: 0 }, time: 0 };
/// Between looks whether a view that has begun is on the disk.
const RECORD_PAUSE: Duration = Duration::from_millis(1);
