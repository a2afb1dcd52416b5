//! The log of a process, and the signals between its threads and the polling thread (Derecho §3.4, persistent mode).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering, fence};
use squall_fabric::mutex::lock;
use squall_log::{Disk, DurableLog, LogRecord, Recovered, Storage, StorageError, WatchedDisk, WriteTally};
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::RankSet;
use squall_protocols::replica::ShardPosition;
use squall_protocols::restart::{DurableView, LogStart, Register, ViewChain};
use squall_transports::Waker;

use super::found::{LogWalk, NO_BASE};
use super::index::LogIndex;
use super::log_signals::LogSignals;
use super::register_file::RegisterFile;
use super::register_thread::RegisterThread;
use super::subgroup_log::SubgroupLog;
use super::subgroups::{FolderPlan, SubgroupNumbers};
use crate::error::{GroupError, LogFolderError};

/// The disk of a log: a folder, or in tests a simulated one.
pub(crate) type SharedDisk = WatchedDisk<Arc<dyn Disk + Send + Sync>>;

/// The log of a process. The polling thread appends; dropping the log waits until everything that it has taken is written, or has
/// failed, unless the disk hangs.
pub(crate) struct ProcessLog {
    /// Ends before the log, whose folder has the register.
    register: RegisterThread,
    /// How many registers were to be written, and the last one of which the group knows that it is on the disk. Only the polling thread
    /// uses them.
    registers: [AtomicU64; 2],
    log: Arc<DurableLog<SharedDisk>>,
    file: Arc<RegisterFile>,
    /// The numbers that records have.
    numbers: SubgroupNumbers,
    /// The register that was found, or that a restart has left.
    found: Mutex<Option<Register>>,
    /// The register that is on the disk while the group runs, and the one that is being written.
    present: Mutex<Option<Arc<Register>>>,
    writing: Mutex<Option<Arc<Register>>>,
    /// The view in which this process has entered its group; [`NOT_ENTERED`] before.
    entered: AtomicU64,
    /// How earlier views have ended, as another process says, for the register.
    earlier: Mutex<Option<ViewChain>>,
    has_earlier: AtomicBool,
    /// How many messages of earlier views the log lacks, as far as is known; [`WHOLE`](super::found::WHOLE): none.
    pub(super) lacking: AtomicU64,
    /// The view before which the log needs nothing; [`NO_BASE`] if there is no log of a subgroup. Written under `progress`.
    pub(super) base: AtomicU64,
    /// Whether the tail of the log was found damaged.
    is_damaged: bool,
    /// How many records were found.
    records: u64,
    /// What is known of them.
    walk: Mutex<LogWalk>,
    folder: PathBuf,
    /// How long the disk may take for one operation.
    timeout: std::time::Duration,
    signals: Arc<LogSignals>,
    /// How far each subgroup is in its latest view, for reports and for versions by time.
    pub(super) progress: Mutex<BTreeMap<SubgroupId, Arc<LogProgress>>>,
    /// Up to where this member's readers from a position on, also those that were dropped, have returned messages; it may be less than
    /// that.
    pub(super) readers: Mutex<BTreeMap<SubgroupId, LogStart>>,
    /// The latest time up to which a version was read: what is received later gets a later time.
    passed: AtomicU64,
    clock: LogClock,
}

/// The clock of a log: returns the nanoseconds since 1970.
pub(super) type LogClock = Box<dyn Fn() -> u64 + Send + Sync>;

/// A member, as its register names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogMember {
    /// The number of its group, by which one that begins anew differs.
    pub(crate) group: u64,
    /// The member.
    pub(crate) node: NodeId,
    /// Its rank in the configuration.
    pub(crate) tag: u64,
    /// The number of durable subgroups.
    pub(crate) shards: usize,
    /// A digest of which these are.
    pub(crate) layout: u64,
}

/// How far the log of a subgroup is in a view, in sequences: `persisted <= messages`.
#[derive(Debug, Default)]
pub(super) struct LogProgress {
    /// The view.
    pub(super) view: u64,
    /// One more than the sequence of the last message.
    pub(super) messages: AtomicU64,
    /// Everything below is on the disk.
    pub(super) persisted: AtomicU64,
    /// All members have everything below on their disks: `stable <= persisted`.
    pub(super) stable: AtomicU64,
    /// This member's application has taken everything below: `delivered <= stable`.
    pub(super) delivered: AtomicU64,
}

impl ProcessLog {
    /// Begins a life of the log in `folder`, with what was found in it: its register, as planned, and its records. One whose tail is damaged continues
    /// behind it, if its register knows a view: that remembers the damage from now on, so that others repair what is missing \[T9\].
    pub(super) fn start(
        storage: Storage<SharedDisk>,
        FolderPlan { register: mut found, numbers, pending, .. }: FolderPlan,
        (mut recovered, index): (Recovered, LogIndex),
        folder: PathBuf,
        timeout: std::time::Duration,
        clock: LogClock,
    ) -> Result<Arc<Self>, LogFolderError> {
        let failed =
            |cause: StorageError| LogFolderError::Storage { folder: folder.clone(), cause: Box::new(cause) };
        let signals = Arc::<LogSignals>::default();
        let (reported, records) = (Arc::clone(&signals), recovered.records);
        let is_damaged = !recovered.is_usable();
        if is_damaged {
            let register = found.as_mut().filter(|register| !register.view().members.is_empty());
            let register = register.ok_or(LogFolderError::Damaged { folder: folder.clone(), records })?;
            register.damaged_in = Some(register.view().number);
            let protocol = register.encode();
            storage.change_register(|register| register.set_protocol(protocol)).map_err(failed)?;
            recovered = recovered.into_repaired(storage.settings());
        }
        let walk = Mutex::new(LogWalk::new(recovered.clone(), index));
        let log = DurableLog::start_reporting(storage, recovered, move |answer| reported.note(answer));
        let log = Arc::new(log.map_err(failed)?);
        let file = RegisterFile::new(Arc::clone(&log), numbers.clone(), found.as_ref(), pending);
        let file = Arc::new(file);
        let (reported, writer) = (Arc::clone(&signals), Arc::clone(&file));
        let write = move |register: &Register| reported.note_register(writer.write(register));
        let register = RegisterThread::start(write).map_err(|error| failed(error.into()))?;
        let registers = Default::default();
        let this = Self {
            register,
            registers,
            log,
            file,
            numbers,
            found: Mutex::new(found),
            present: Mutex::default(),
            writing: Mutex::default(),
            entered: AtomicU64::new(NOT_ENTERED),
            earlier: Mutex::default(),
            has_earlier: AtomicBool::new(false),
            lacking: AtomicU64::new(0),
            base: AtomicU64::new(NO_BASE),
            is_damaged,
            records,
            walk,
            folder,
            timeout,
            signals,
            progress: Mutex::default(),
            readers: Mutex::default(),
            passed: AtomicU64::new(0),
            clock,
        };
        this.note_base();
        Ok(Arc::new(this))
    }

    /// Returns the register for a process that enters a group \[T8\]: what was found continues if it is of the same group, with the same
    /// durable subgroups.
    pub(crate) fn register(&self, identity: &LogMember) -> Register {
        let LogMember { group, node, tag, shards, layout } = *identity;
        let none = DurableView { shards: vec![RankSet::EMPTY; shards], ..DurableView::default() };
        let is_of = |found: &&Register| (found.group, found.layout) == (group, layout);
        let found = self.found().as_ref().filter(is_of).cloned();
        // One with another node is not on the disk yet.
        *lock(&self.present) = found.clone().filter(|found| found.node == node).map(Arc::new);
        match found {
            Some(found) => Register { node, tag, ..found },
            None => Register { tag, layout, ..Register::new(group, node, none) },
        }
    }

    /// Returns whether the tail of the log was found damaged \[T9\].
    pub(crate) const fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    pub(super) fn found(&self) -> MutexGuard<'_, Option<Register>> {
        lock(&self.found)
    }

    pub(super) fn walk(&self) -> MutexGuard<'_, LogWalk> {
        lock(&self.walk)
    }

    pub(super) fn log(&self) -> &DurableLog<SharedDisk> {
        &self.log
    }

    pub(super) fn file(&self) -> &RegisterFile {
        &self.file
    }

    /// Returns the number that a subgroup has in the log.
    pub(super) fn number(&self, id: SubgroupId) -> u32 {
        self.numbers.of(id)
    }

    /// Returns how many records were found.
    pub(crate) const fn records(&self) -> u64 {
        self.records
    }

    /// Returns its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether the process may enter the group with this number, which it begins (`is_first`) or joins. Records
    /// are known by their views, so what is in the log has to be of the same group.
    ///
    /// # Errors
    /// With what to do instead.
    pub(crate) fn check_group(&self, group: u64, is_first: bool) -> Result<(), LogFolderError> {
        let (folder, records) = (self.folder.clone(), self.records);
        let has_view = self.found_register().is_some();
        match &*self.found() {
            _ if records == 0 && !has_view => Ok(()),
            _ if is_first => Err(LogFolderError::EarlierRun { folder, records }),
            Some(found) if found.group == group => Ok(()),
            _ => Err(LogFolderError::OtherGroup { folder, records }),
        }
    }

    /// Begins to write the register.
    pub(crate) fn write_register(&self, register: &Register) {
        let begun = &self.registers[0];
        begun.store(begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let register = Arc::new(register.clone());
        *lock(&self.writing) = Some(Arc::clone(&register));
        self.register.write(register);
    }

    /// Returns whether the register that was to be written last has come to the disk, once. One that an attempt to join has left
    /// behind does not count for the next attempt's.
    #[inline]
    pub(crate) fn take_register_written(&self) -> bool {
        let [begun, known] = &self.registers;
        let written = self.signals.registers.load(Ordering::Relaxed);
        let is_news = written == begun.load(Ordering::Relaxed) && written != known.load(Ordering::Relaxed);
        if is_news {
            known.store(written, Ordering::Relaxed);
            *lock(&self.present) = lock(&self.writing).take();
        }
        is_news
    }

    /// Returns the register that is on the disk, if the process is in a group.
    pub(crate) fn present(&self) -> Option<Arc<Register>> {
        lock(&self.present).clone()
    }

    /// Notes that a view begins; the first one is that in which the process enters its group.
    pub(crate) fn note_view(&self, view: u64) {
        // Only the polling thread writes it.
        if self.entered().is_none() {
            self.entered.store(view, Ordering::Relaxed);
        }
    }

    /// Notes that the process tries to enter a group.
    pub(crate) fn forget_entry(&self) {
        self.entered.store(NOT_ENTERED, Ordering::Relaxed);
        self.lacking.store(0, Ordering::Relaxed);
    }

    /// Returns the view in which the process has entered its group.
    pub(crate) fn entered(&self) -> Option<u64> {
        Some(self.entered.load(Ordering::Relaxed)).filter(|view| *view != NOT_ENTERED)
    }

    /// Has the polling thread put into the register how earlier views have ended.
    pub(crate) fn offer_earlier(&self, chain: ViewChain) {
        *lock(&self.earlier) = Some(chain);
        self.has_earlier.store(true, Ordering::Relaxed);
        lock(&self.signals.waker).iter().for_each(Waker::wake);
    }

    /// Returns whether [`ProcessLog::take_earlier`] has something.
    #[inline]
    pub(crate) fn has_earlier(&self) -> bool {
        self.has_earlier.load(Ordering::Relaxed)
    }

    /// Returns what [`ProcessLog::offer_earlier`] was given, once.
    pub(crate) fn take_earlier(&self) -> Option<ViewChain> {
        if !self.has_earlier() {
            return None;
        }
        self.has_earlier.store(false, Ordering::Relaxed);
        lock(&self.earlier).take()
    }

    /// Has `turned` learn when the log begins to fill another segment.
    pub(super) fn report_segments(&self, turned: SyncSender<()>) {
        *lock(&self.signals.segments) = Some(turned);
    }

    /// Wakes the polling thread by `waker` from now on.
    pub(crate) fn set_waker(&self, waker: Waker) {
        *lock(&self.signals.waker) = Some(waker);
    }

    /// Returns the log of a subgroup for a view that begins.
    pub(crate) fn subgroup(self: &Arc<Self>, id: SubgroupId, view: u64) -> SubgroupLog {
        let progress = Arc::new(LogProgress { view, ..LogProgress::default() });
        let mut all = lock(&self.progress);
        all.insert(id, Arc::clone(&progress));
        // It may be new here.
        let base = self.base.load(Ordering::Relaxed).min(self.begin_of(id).view);
        self.base.store(base, Ordering::Relaxed);
        drop(all);
        SubgroupLog::new(Arc::clone(self), self.number(id), view, progress)
    }

    /// Has every message that this member receives from now on get a later time than `time`, and returns the position behind
    /// the last message of a subgroup that it has received before \[A14\]; `None` if it has not been in the subgroup.
    pub(crate) fn pass(&self, id: SubgroupId, time: u64) -> Option<ShardPosition> {
        // SYNC: pairs with `SubgroupLog::append`: this store, then the fence, then the look at the messages. Either the message that
        // is being appended is seen here, or its time will be later.
        self.passed.fetch_max(time, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let progress = lock(&self.progress).get(&id).cloned()?;
        let sequence = progress.messages.load(Ordering::Relaxed);
        Some(ShardPosition { view: progress.view, sequence })
    }

    /// Returns the position of a subgroup before which all members have everything on their disks, in its latest view, so that it is
    /// delivered everywhere; `None` if this member has not been in the subgroup.
    pub(crate) fn stable(&self, id: SubgroupId) -> Option<ShardPosition> {
        let progress = lock(&self.progress).get(&id).cloned()?;
        // SYNC: pairs with `SubgroupLog::note_stable`.
        let sequence = progress.stable.load(Ordering::Acquire);
        Some(ShardPosition { view: progress.view, sequence })
    }

    /// Returns the time by the log's clock.
    pub(super) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Returns the latest time that was passed.
    #[inline]
    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Takes a record, and returns how many records are on the disk when it is; `None` if the log has failed.
    pub(super) fn append(&self, record: &LogRecord<'_>) -> Option<u64> {
        match self.log.append(record) {
            Ok(records) => Some(records),
            Err(failure) => {
                self.signals.fail(failure);
                None
            }
        }
    }

    /// Returns how many records are on the disk, with all before them.
    #[inline]
    pub(super) fn persisted(&self) -> u64 {
        self.signals.persisted.load(Ordering::Relaxed)
    }

    /// Ends the log if its disk hangs: nothing waits any more for what it has taken.
    pub(crate) fn check_disk(&self) {
        if let Some(error) = self.log.storage().disk().overdue(self.timeout) {
            self.signals.hangs.store(true, Ordering::Relaxed);
            self.log.abandon();
            self.register.abandon();
            self.signals.fail(error.into());
        }
    }

    /// Returns whether the disk hangs, so that threads that use it return when it answers, and not before.
    pub(super) fn hangs(&self) -> bool {
        self.signals.hangs.load(Ordering::Relaxed)
    }

    /// Returns what the log has written since this process has opened it.
    pub(crate) fn tally(&self) -> WriteTally {
        self.log.tally()
    }

    /// Returns whether the disk is nearly full, so that no new message is to be sent; it may be less full again.
    pub(crate) fn shortage(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.signals.is_short)
    }

    /// Returns whether the log takes and writes nothing more.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.signals.has_failed.load(Ordering::Relaxed)
    }

    /// Returns why the member has to leave its group, if the log has failed.
    pub(crate) fn failure(&self) -> Option<GroupError> {
        let cause = lock(&self.signals.failure).clone()?;
        Some(GroupError::Log { folder: self.folder.clone().into(), cause: cause.into() })
    }

    /// Returns how many sequences of a subgroup, up to the last message that this member has received in its view, are not on its disk
    /// yet; `None` if the subgroup is not durable.
    pub(crate) fn unpersisted(&self, id: SubgroupId) -> Option<u64> {
        let progress = lock(&self.progress).get(&id).cloned()?;
        let persisted = progress.persisted.load(Ordering::Relaxed);
        Some(progress.messages.load(Ordering::Relaxed).saturating_sub(persisted))
    }
}

impl Drop for ProcessLog {
    fn drop(&mut self) {
        let is_settled = |log: &Self| {
            let written = log.signals.registers.load(Ordering::Relaxed);
            let is_written = log.has_failed()
                || log.register.has_ended()
                || written == log.registers[0].load(Ordering::Relaxed);
            is_written && log.log.is_settled() && log.log.storage().disk().is_idle()
        };
        // The threads are joined after this, unless the disk hangs.
        while !is_settled(self) && !self.hangs() {
            std::thread::sleep(SETTLE_PAUSE);
            self.check_disk();
        }
    }
}

impl fmt::Debug for ProcessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLog").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// No view has this number.
const NOT_ENTERED: u64 = u64::MAX;

/// Between looks whether the disk has written everything.
const SETTLE_PAUSE: std::time::Duration = std::time::Duration::from_micros(200);
