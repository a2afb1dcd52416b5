//! What a log need not keep is discarded by itself, where the configuration says so (Derecho §3.4, persistent mode)
//! ([`Retention::automatic`](crate::config::Retention::automatic)).
//!
//! **Order.** Whenever the log begins to fill another segment, a thread marks in each of these subgroups what all members have delivered;
//! as [`DeliveriesFrom::discard_log`](crate::DeliveriesFrom::discard_log) does, and with what `retain` keeps. When two marks are
//! behind a segment, its file takes the place of the next one that is needed. So a log whose messages are discarded as fast as they come
//! is written over, some segments long.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;

use squall_protocols::group::SubgroupId;
use squall_protocols::replica::ShardPosition;
use squall_protocols::restart::LogStart;

use super::{LogBorrower, LogLender, ProcessLog, shards};
use crate::config::{Config, Retention};

/// Starts the thread, if there are such subgroups. It ends with the log.
pub(crate) fn start(lender: &LogLender, config: &Config) -> io::Result<()> {
    let (borrower, subgroups) = (lender.borrower(), subgroups(config));
    let Some(log) = borrower.borrow().filter(|_| !subgroups.is_empty()) else { return Ok(()) };
    // A turn during the marks is followed by another round of them.
    let (turned, turns) = sync_channel(1);
    log.report_segments(turned);
    drop(log);
    let run = move || discard(&borrower, &subgroups, &turns);
    Builder::new().name("squall discarder".into()).spawn(run).map(drop)
}

/// The subgroups that are discarded by themselves, and what of them is kept.
fn subgroups(config: &Config) -> Vec<(SubgroupId, Retention)> {
    let retention = |name: &str| config.subgroups[name].retain.filter(|retention| retention.automatic);
    shards(config).iter().filter_map(|(name, (id, _))| Some((*id, retention(name)?))).collect()
}

fn discard(borrower: &LogBorrower, subgroups: &[(SubgroupId, Retention)], turns: &Receiver<()>) {
    while turns.recv().is_ok() {
        for (subgroup, retention) in subgroups {
            let Some(log) = borrower.borrow() else { return };
            if let Err(error) = mark(&log, *subgroup, retention) {
                tracing::warn!(%subgroup, %error, "failed to discard messages: the log keeps them");
            }
        }
    }
}

fn mark(log: &ProcessLog, subgroup: SubgroupId, retention: &Retention) -> io::Result<()> {
    // A view in which nothing was delivered yet says nothing new.
    let delivered = log.stable(subgroup).filter(|position| position.sequence > 0);
    let Some(ShardPosition { view, sequence }) = delivered else { return Ok(()) };
    log.write_checkpoint(subgroup, LogStart { view, sequence }, retention, &mut |_| Ok(()))
        .map_err(io::Error::other)
}
