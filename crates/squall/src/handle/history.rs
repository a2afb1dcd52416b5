//! What was delivered before: the messages of a durable subgroup in this member's log (Derecho §3.4, "durable" mode).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use squall_log::RecordKind;
use squall_protocols::group::SubgroupId;
use squall_protocols::replica::{CountedLog, ShardPosition};
use squall_protocols::restart::{LogStart, ViewChain};

use crate::durable::{LogRange, ProcessLog};
use crate::error::HistoryError;
use crate::slot::Position;

/// The messages of a durable subgroup that were delivered before this member entered its group this time, in order. The deliveries of
/// this run follow them, without a gap.
///
/// A group that restarts from its logs continues where it was: every member has the same history then. A member reads it from its own
/// disk, one piece at a time, while the group runs. A member that has joined gets what its log lacks from the others in the meantime; until it
/// has that, its history ends in [`HistoryError`]. What is not kept (`retain` in the configuration) is said first. Obtained by [`crate::SubgroupHandle::history`], where there is an example.
///
/// ```
/// use squall::config::{StorageConfig, SubgroupConfig};
/// use squall::{Config, DeliveryMode, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = std::env::temp_dir().join(format!("doc-history-type-{}", std::process::id()));
/// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
/// let mut config = Config::local(&format!("doc-history-type-{}", std::process::id()), 1).subgroup("orders", orders);
/// config.storage = Some(StorageConfig::new(&path));
/// let mut group = Group::join(config)?;
/// for message in group.subgroup("orders")?.history()? {
///     println!("{:?}", message?.bytes); // of earlier runs
/// }
/// # drop(group);
/// # std::fs::remove_dir_all(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct History {
    log: Arc<ProcessLog>,
    subgroup: SubgroupId,
    /// The first view of the list, if there were others before, until that was said.
    earlier: Option<u64>,
    /// Where the log begins, if that is not its beginning any more, until that was said.
    compacted: Option<LogStart>,
    /// The views that are still to be read, each with the number of sequences that count.
    ended: VecDeque<(u64, u64)>,
    /// The next sequence of the first of them.
    next: u64,
    read: VecDeque<StoredMessage>,
}

/// A message of a durable subgroup, as it is in a log.
///
/// ```
/// use squall::config::{StorageConfig, SubgroupConfig};
/// use squall::{Config, DeliveryMode, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = std::env::temp_dir().join(format!("doc-stored-{}", std::process::id()));
/// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
/// let mut config = Config::local(&format!("doc-stored-{}", std::process::id()), 1).subgroup("orders", orders);
/// config.storage = Some(StorageConfig::new(&path));
/// let mut group = Group::join(config)?;
/// for message in group.subgroup("orders")?.history()?.flatten() {
///     println!("{} of view {}: {} bytes", message.sequence, message.view, message.bytes.len());
/// }
/// # drop(group);
/// # std::fs::remove_dir_all(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredMessage {
    /// The view in which it was delivered.
    pub view: u64,
    /// Its place in the order of this view. Nulls have places, too.
    pub sequence: u64,
    /// The rank of its sender in the subgroup, in that view.
    pub sender: usize,
    /// When this member received it, or the one from which it has the message.
    pub received: SystemTime,
    /// The message.
    pub bytes: Vec<u8>,
}

impl History {
    /// The history of a subgroup, the `shard`-th durable one, by what the register says of the views before.
    pub(crate) fn new(log: Arc<ProcessLog>, subgroup: SubgroupId, shard: usize) -> Self {
        let entered = log.entered().unwrap_or(0);
        let (register, unknown) = (log.present(), ViewChain::new(entered));
        let chain = register.as_ref().map_or(&unknown, |register| &register.record.chain);
        let is_earlier = |(view, _): &(u64, u64)| *view < entered;
        let ended = chain.of_shard(shard).filter(is_earlier).collect();
        let known = chain.known_since(shard);
        let earlier = (known.min(entered) > 0).then_some(known);
        let begin = log.begin_of(subgroup);
        // A checkpoint says how the views before it have ended.
        let earlier = earlier.filter(|first| *first > begin.view);
        let compacted = (begin > LogStart::default()).then_some(begin);
        let mut history = Self { log, subgroup, earlier, compacted, ended, next: 0, read: VecDeque::new() };
        history.skip_to(begin);
        history
    }

    /// The history behind a checkpoint.
    pub(crate) fn behind(log: Arc<ProcessLog>, subgroup: SubgroupId, shard: usize, begin: LogStart) -> Self {
        let mut history = Self::new(log, subgroup, shard);
        if history.compacted.is_some_and(|oldest| oldest <= begin) {
            history.compacted = None;
        }
        if history.earlier.is_some_and(|first| first <= begin.view) {
            history.earlier = None;
        }
        history.skip_to(begin);
        history
    }

    fn skip_to(&mut self, begin: LogStart) {
        while self.ended.pop_front_if(|(view, _)| *view < begin.view).is_some() {
            self.next = 0;
        }
        if let Some((_, to)) = self.ended.front().filter(|(view, _)| *view == begin.view) {
            self.next = self.next.max(begin.sequence).min(*to);
        }
    }

    /// Reads some messages.
    fn fill(&mut self) -> Result<(), HistoryError> {
        while let Some((view, to)) = self.ended.front().copied().filter(|_| self.read.is_empty()) {
            let Self { log, subgroup, next, read, .. } = self;
            let range = LogRange { subgroup: *subgroup, view, from: *next, to };
            if range.from < to {
                *next = read_piece(log, range, read).inspect_err(|_| self.ended.clear())?;
            }
            if *next == to {
                self.ended.pop_front();
                self.next = 0;
            }
        }
        Ok(())
    }
}

/// Appends to `read` the next messages of a range, about [`PIECE`] bytes of them, or none if there is none for a long way; returns the
/// first sequence that was not read.
///
/// # Errors
/// [`HistoryError::Missing`] if there is more in the range than the log has, and nothing was read.
pub(crate) fn read_piece(
    log: &ProcessLog,
    range: LogRange,
    read: &mut VecDeque<StoredMessage>,
) -> Result<u64, HistoryError> {
    let LogRange { view, from, to, .. } = range;
    let mut bytes = 0;
    let next = log.read(range, &mut |record| {
        if record.kind == RecordKind::Message {
            bytes += MESSAGE_BYTES + record.bytes.len();
            read.push_back(StoredMessage {
                view,
                sequence: record.position.sequence,
                sender: record.sender as usize,
                received: UNIX_EPOCH + Duration::from_nanos(record.time),
                bytes: record.bytes.to_vec(),
            });
        }
        bytes < PIECE
    });
    match next {
        Some(next) => Ok(next),
        None if log.is_compacted(range) => Err(HistoryError::compacted(log, range.subgroup)),
        None => Err(HistoryError::Missing { folder: log.folder().into(), view, from, to: to - 1 }),
    }
}

/// Returns what of a subgroup's log counts, the `shard`-th durable one, at a member that has delivered everything before `newest`, and
/// whose log [`CountedLog::settled`](squall_protocols::replica::CountedLog) describes. `None` until the view of that position is on its
/// disk: a message of the view comes later \[T8\].
pub(crate) fn counted(
    log: &ProcessLog,
    (subgroup, shard): (SubgroupId, usize),
    newest: ShardPosition,
    settled: u64,
) -> Option<KnownLog> {
    let register = log.present()?;
    let chain = &register.record.chain;
    let counted = CountedLog::new(chain.of_shard(shard), newest, settled);
    let LogStart { view, sequence } = log.begin_of(subgroup);
    let begin = ShardPosition { view, sequence };
    let oldest = begin.max(ShardPosition::start_of(chain.known_since(shard)));
    (chain.end() >= newest.view).then_some(KnownLog { counted, oldest, begin })
}

/// What of a subgroup's log counts.
pub(crate) struct KnownLog {
    pub(crate) counted: CountedLog,
    /// Of what is before this member does not know what counts, since it has joined later and has not got it from the others yet; or
    /// it is not kept.
    pub(crate) oldest: ShardPosition,
    /// Where the log begins: what is before is not kept.
    pub(crate) begin: ShardPosition,
}

impl KnownLog {
    /// Returns that this member lacks what is before `oldest`.
    pub(crate) fn is_earlier(&self, log: &ProcessLog) -> HistoryError {
        HistoryError::Earlier { folder: log.folder().into(), view: self.oldest.view }
    }
}

impl HistoryError {
    /// The log of a subgroup begins later.
    pub(crate) fn compacted(log: &ProcessLog, subgroup: SubgroupId) -> Self {
        let LogStart { view, sequence } = log.begin_of(subgroup);
        Self::Compacted { folder: log.folder().into(), oldest: Position { view, sequence } }
    }
}

impl Iterator for History {
    type Item = Result<StoredMessage, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(view) = self.earlier.take() {
            return Some(Err(HistoryError::Earlier { folder: self.log.folder().into(), view }));
        }
        if self.compacted.take().is_some() {
            return Some(Err(HistoryError::compacted(&self.log, self.subgroup)));
        }
        if let Err(missing) = self.fill() {
            return Some(Err(missing));
        }
        self.read.pop_front().map(Ok)
    }
}

/// How many bytes of messages are read at a time, at least.
const PIECE: usize = 1 << 20;
/// What a message takes besides its bytes.
const MESSAGE_BYTES: usize = size_of::<StoredMessage>();
