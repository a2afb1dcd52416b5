//! What a log need not keep is discarded by itself, where the configuration says so (Derecho §3.4, persistent mode)
//! ([`Retention::automatic`](crate::config::Retention::automatic)).
//!
//! **Order.** Whenever the log begins to fill another segment, a thread marks in each of these subgroups what this member's application
//! has taken and `retain` does not keep. When marks are behind all that is in a segment, its file takes the place of the next one that is
//! needed: a log all of whose messages are discarded as they come is written over, some segments long.
//!
//! **What counts as taken** the core says ([`taken`]). A reader by position in this
//! process keeps what it has not returned, also after it was dropped. Nothing is marked while records of earlier views are fetched, since
//! what `retain` keeps of them is not known.
//!
//! A mark has no state, and the register knows its position when segments have been removed: one that is lost is made again when the
//! log is opened ([`renew`]). So one is enough, unlike of checkpoints, and a subgroup that has become silent holds up no segment.
//!
//! A subgroup in which the application does not send or take messages is left alone: there may be an object, whose state is made of
//! its messages.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;

use squall_fabric::atomics::Ordering;
use squall_fabric::mutex::lock;
use squall_log::{CheckpointError, Disk, DiskError, LogBegin, Storage};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogStart, TakenCounts, taken};
use squall_transports::log;

use super::found::{begin_of, behind};
use super::lender::LogBorrower;
use super::process_log::ProcessLog;
use super::subgroups::{SubgroupNumbers, shards};
use crate::config::{Config, Retention};
use crate::slot::SubgroupSlot;

/// A subgroup whose messages are discarded.
pub(super) struct Discarded {
    pub(super) id: SubgroupId,
    pub(super) slot: Arc<SubgroupSlot>,
    pub(super) retention: Retention,
}

/// Starts the thread, if there are such subgroups; `slots` are those of all subgroups. It ends with the log.
pub(crate) fn start(
    borrower: Option<LogBorrower>,
    config: &Config,
    slots: &[Arc<SubgroupSlot>],
) -> io::Result<()> {
    let Some(borrower) = borrower else { return Ok(()) };
    let slot = |id: SubgroupId| Arc::clone(&slots[id.0 as usize]);
    let all = subgroups(config).into_iter();
    let all: Vec<_> = all.map(|(id, retention)| Discarded { id, slot: slot(id), retention }).collect();
    let Some(log) = borrower.borrow().filter(|_| !all.is_empty()) else { return Ok(()) };
    // A turn during the marks is followed by another round of them.
    let (turned, turns) = sync_channel(1);
    log.report_segments(turned);
    drop(log);
    Builder::new().name("squall discarder".into()).spawn(move || discard(&borrower, &all, &turns)).map(drop)
}

/// Makes marks again that are lost. Where a checkpoint is lost that had a state there was an object: that is not for a mark to replace.
pub(super) fn renew<D: Disk>(
    storage: &Storage<D>,
    config: &Config,
    numbers: &SubgroupNumbers,
) -> Result<(), CheckpointError> {
    for (id, _) in subgroups(config) {
        let number = numbers.of(id);
        if let LogBegin::Lost(position) = storage.begin_of(number)
            && storage.has_marks_only(number)?
        {
            log::warn!(
                subgroup = %id,
                "the mark of what was discarded is lost, and is made again from the register"
            );
            storage.replace_by_mark(number, position)?;
        }
    }
    Ok(())
}

/// Returns where the log of a subgroup begins when the folder is opened, since marks that are lost are made again then ([`renew`]).
pub(crate) fn begin_when_opened<D: Disk>(
    storage: &Storage<D>,
    config: &Config,
    (id, number): (SubgroupId, u32),
) -> Result<Option<LogStart>, DiskError> {
    let is_renewed = match storage.begin_of(number) {
        LogBegin::Lost(position) if discards(config, id) && storage.has_marks_only(number)? => Some(position),
        _ => None,
    };
    Ok(is_renewed.map(behind).or_else(|| begin_of(storage, number)))
}

/// Returns whether the messages of a subgroup are discarded by themselves.
pub(super) fn discards(config: &Config, id: SubgroupId) -> bool {
    subgroups(config).iter().any(|(other, _)| *other == id)
}

/// The subgroups that are discarded by themselves, and what of them is kept.
fn subgroups(config: &Config) -> Vec<(SubgroupId, Retention)> {
    let retention = |name: &str| config.subgroups[name].retain.filter(|retention| retention.automatic);
    shards(config).iter().filter_map(|(name, (id, _))| Some((*id, retention(name)?))).collect()
}

fn discard(borrower: &LogBorrower, all: &[Discarded], turns: &Receiver<()>) {
    while turns.recv().is_ok() {
        for one in all.iter().filter(|one| one.slot.is_for_messages()) {
            let Some(log) = borrower.borrow() else { return };
            if let Err(error) = log.mark(one) {
                log::warn!(subgroup = %one.id, %error, "failed to discard messages: the log keeps them");
            }
        }
    }
}

impl ProcessLog {
    /// Marks what of a subgroup need not be kept.
    fn mark(&self, one: &Discarded) -> Result<(), CheckpointError> {
        // A reader that begins meanwhile waits, and finds what the mark leaves.
        let readers = lock(&self.readers);
        let Some(taken) = self.taken(one).filter(|_| self.is_whole()) else { return Ok(()) };
        let start = readers.get(&one.id).map_or(taken, |reader| taken.min(*reader));
        self.write_mark(one.id, start, &one.retention)
    }

    /// The position of a subgroup before which this member's application has taken all messages, so that all members have them on
    /// their disks. `None` if nothing is known of it in the present view.
    pub(super) fn taken(&self, Discarded { id, slot, .. }: &Discarded) -> Option<LogStart> {
        let progress = lock(&self.progress).get(id).cloned()?;
        let view = progress.view;
        // SYNC: pairs with `SubgroupLog::note_stable`: messages below were appended before, so they are counted here.
        let stable = progress.stable.load(Ordering::Acquire);
        taken(TakenCounts {
            view,
            messages: progress.messages.load(Ordering::Relaxed),
            stable,
            delivered: progress.delivered.load(Ordering::Relaxed),
            has_taken_before: slot.has_taken_before(view),
            is_recorded: self.present().is_some_and(|register| register.view().number >= view),
        })
    }

    /// Notes that a reader of a subgroup needs what is at `position` and behind, or that there is none any more.
    pub(crate) fn note_reader(&self, id: SubgroupId, position: Option<LogStart>) {
        let mut readers = lock(&self.readers);
        match position {
            Some(position) => drop(readers.insert(id, position)),
            None => drop(readers.remove(&id)),
        }
    }
}
