//! The board on which the polling thread writes its figures, and from which others read them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::{lock, unless_held};
use squall_log::WriteTally;
use squall_protocols::genuine::ShardProgress;
use squall_protocols::group::HoldUp;
use squall_protocols::multicast::{MulticastCounters, WindowTimes};
use squall_transports::{PeerTraffic, Waker};

use crate::durable::ProcessLog;
use crate::error::GroupError;
use crate::operate::missing::MissingData;
use crate::operate::trace;
use crate::slot::SubgroupSlot;
use crate::status::GroupStatus;

/// What the polling thread knows about its member. Its vectors keep their space from time to time.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberFigures {
    /// When this was written; `None`: not yet, because the member has not joined.
    pub(crate) written: Option<Instant>,
    pub(crate) view: u64,
    /// Messages flow.
    pub(crate) ready: bool,
    /// The view is ending.
    pub(crate) wedged: bool,
    /// This member waits for a majority.
    pub(crate) lacks_majority: bool,
    /// The members' numbers and ranks.
    pub(crate) members: Vec<(NodeId, u64)>,
    pub(crate) changes: ChangeCounts,
    /// By id; those that the member is not in have only totals.
    pub(crate) subgroups: Vec<SubgroupFigures>,
    /// What the log has written; `None`: it has none.
    pub(crate) log: Option<WriteTally>,
    /// What the transport has carried between this member and each other one.
    pub(crate) traffic: Vec<PeerTraffic>,
    /// `None`: the group has no shards, or is in no view.
    pub(crate) shards: Option<ShardFigures>,
}

impl MemberFigures {
    /// Returns the rank of a member.
    pub(crate) fn rank(&self, node: NodeId) -> Option<u64> {
        self.members.iter().find(|(member, _)| *member == node).map(|(_, rank)| *rank)
    }
}

/// What the polling thread knows about a subgroup.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubgroupFigures {
    pub(crate) totals: MulticastCounters,
    /// How many messages are in this member's window, and how many it has space for.
    pub(crate) window: Option<(u64, u64)>,
    /// How far each member is behind.
    pub(crate) lags: Vec<(NodeId, u64)>,
    /// The member that holds this one up, and since when.
    pub(crate) held_up_by: Option<(NodeId, Instant)>,
    /// The member that this one waits for the most, and why.
    pub(crate) hold_up: Option<HoldUp>,
    /// Since when this member's own consumer has taken nothing.
    pub(crate) stood_still: Option<Instant>,
    pub(crate) unpersisted: Option<u64>,
    /// How long some of this member's own messages took, and for how long its window was full.
    pub(crate) times: WindowTimes,
}

/// What the polling thread knows about the shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardFigures {
    /// Messages that this member has sent to shards, and how many of them are under way.
    pub(crate) sent: u64,
    pub(crate) under_way: usize,
    /// The own shard's name, and how far it is; `None`: this member is in no shard.
    pub(crate) own: Option<(String, ShardProgress)>,
    /// How many messages wait here for each member.
    pub(crate) behind: Vec<(NodeId, u64)>,
    /// The own shard, if this member does not have its state yet.
    pub(crate) lacked_state: Option<String>,
}

/// The view changes so far, by their duration: from the first suspicion or the wedge to the instant at which messages flow again.
#[derive(Clone, Debug)]
pub(crate) struct ChangeCounts {
    /// The changes to views up to this one are counted.
    upto: u64,
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    /// How many took at most as long as the limit, and longer than the one before it.
    pub(crate) buckets: [(f64, u64); LIMITS.len()],
}

/// In seconds: a death costs milliseconds, a member that hangs `suspicion_after_ms`.
const LIMITS: [f64; 13] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

impl Default for ChangeCounts {
    fn default() -> Self {
        Self { upto: 0, count: 0, seconds: 0.0, buckets: LIMITS.map(|limit| (limit, 0)) }
    }
}

impl ChangeCounts {
    /// Counts the change to view `to`, if it is not counted yet. A member's first view is no change: `None`.
    pub(crate) fn note(&mut self, to: u64, duration: Option<Duration>) {
        if to <= self.upto {
            return;
        }
        self.upto = to;
        let Some(seconds) = duration.map(|duration| duration.as_secs_f64()) else { return };
        self.count += 1;
        self.seconds += seconds;
        if let Some((_, count)) = self.buckets.iter_mut().find(|(limit, _)| seconds <= *limit) {
            *count += 1;
        }
    }
}

/// The board of a member.
#[derive(Debug)]
pub(crate) struct FiguresBoard {
    /// The subgroups' names, by id.
    names: Vec<String>,
    /// Where the subgroups' windows are, by id.
    slots: Vec<Arc<SubgroupSlot>>,
    /// The log, once it is open, if there is one.
    log: OnceLock<Arc<ProcessLog>>,
    status: Arc<GroupStatus>,
    figures: Mutex<MemberFigures>,
    /// How often the polling thread has looked whether to write.
    looks: AtomicU64,
    /// Wakes the polling thread, once there is one.
    waker: OnceLock<Waker>,
}

impl FiguresBoard {
    pub(crate) fn new(names: Vec<String>, slots: Vec<Arc<SubgroupSlot>>, status: Arc<GroupStatus>) -> Self {
        let (figures, looks, waker) = (Mutex::default(), AtomicU64::new(0), OnceLock::new());
        Self { names, slots, log: OnceLock::new(), status, figures, looks, waker }
    }

    pub(crate) fn set_log(&self, log: Option<Arc<ProcessLog>>) {
        log.map(|log| self.log.get_or_init(|| log));
    }

    /// Returns what of its data the member does not have yet; `figures` are those that were read last.
    pub(crate) fn missing(&self, figures: &MemberFigures) -> MissingData {
        let log = self.log.get().map(AsRef::as_ref);
        let mut missing = MissingData::of_member(self.names.iter().zip(&self.slots), log);
        let shard = figures.shards.as_ref().and_then(|shards| shards.lacked_state.clone());
        missing.objects.extend(shard);
        missing
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        self.waker.get_or_init(|| waker);
    }

    /// Shows that the polling thread lives. Only that thread calls it.
    #[inline]
    pub(crate) fn look(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the figures, to be written; `None` while a reader has them.
    pub(crate) fn try_write(&self) -> Option<MutexGuard<'_, MemberFigures>> {
        unless_held(self.figures.try_lock())
    }

    /// Returns the figures that were written last.
    pub(crate) fn read(&self) -> MemberFigures {
        lock(&self.figures).clone()
    }

    /// Returns the names of the subgroups, by id.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns how many messages and bytes of the subgroup with this id the application has pulled.
    pub(crate) fn pulled(&self, id: usize) -> (u64, u64) {
        self.slots.get(id).map_or((0, 0), |slot| slot.tally().taken())
    }

    /// Returns what the member has noticed lately, as a trace.
    pub(crate) fn trace(&self) -> String {
        trace::of_records(&[self.status.flight_record()])
    }

    /// Returns why the group has ended here, if it has.
    pub(crate) fn failure(&self) -> Option<GroupError> {
        self.status.failure()
    }

    /// Returns whether the polling thread lives, or there is none yet, because the member has not joined. It waits for a sign of life
    /// for `patience` at most; a thread that is parked is woken once.
    pub(crate) fn lives(&self, patience: Duration) -> bool {
        let Some(waker) = self.waker.get() else { return true };
        let (before, began) = (self.looks.load(Ordering::Relaxed), Instant::now());
        waker.ring();
        while self.looks.load(Ordering::Relaxed) == before {
            if began.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        true
    }
}

/// Between looks whether the polling thread has given a sign of life.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A change counts once, however often the timeline is read, and the first view is no change.
    #[test]
    fn changes_are_counted_once_by_their_duration() {
        let mut changes = ChangeCounts::default();
        changes.note(3, None);
        for _ in 0..2 {
            changes.note(4, Some(Duration::from_micros(1500)));
            changes.note(5, Some(Duration::from_secs(20)));
        }
        assert_eq!(changes.count, 2);
        assert!((changes.seconds - 20.0015).abs() < 1e-9, "{}", changes.seconds);
        let full: Vec<_> = changes.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(full, [&(0.002, 1)]);
    }

    /// A reader never delays the polling thread.
    #[test]
    fn a_board_that_is_read_is_not_written() {
        let board = FiguresBoard::new(Vec::new(), Vec::new(), Arc::default());
        let reading = board.figures.lock().expect("no thread has panicked");
        assert!(board.try_write().is_none());
        drop(reading);
        board.try_write().expect("no thread reads").view = 7;
        assert_eq!(board.read().view, 7);
        assert!(board.lives(Duration::ZERO), "a member that joins lives");
    }
}
