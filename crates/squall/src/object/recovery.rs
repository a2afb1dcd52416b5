//! Recovery: a member makes the state of a durable shard again from its log, when its group restarts (Derecho §3.4, "Total
//! failures").
//!
//! It begins with the newest checkpoint that can be read, and applies the messages behind it ([`StateRecovery`]). The log of each
//! member of the view with which a group restarts has all messages of the views before \[T15\] \[T17\]. The thread that applies
//! updates reads them, so updates and queries of this shard wait meanwhile.

use std::time::{Duration, Instant};

use squall_protocols::replica::{StateRecovery, TimedPosition};
use squall_protocols::restart::LogStart;
use squall_transports::log;

use super::ObjectError;
use super::checkpoint::{self, ReadCheckpoint};
use super::machine::{Replicated, TypedMachine};
use super::shard::{SETTINGS, Shard};
use crate::durable::ProcessLog;
use crate::error::HistoryError;
use crate::handle::history::History;

/// Makes the state, before the first view. Returns whether it is made; if not, the group has ended here.
pub(super) fn recover<T: Replicated>(shard: &Shard<T>) -> bool {
    let mut has_warned = false;
    loop {
        match replay(shard) {
            Some(Ok(recovery)) => {
                shard.core().replica.recover(recovery);
                return true;
            }
            Some(Err(error @ HistoryError::Compacted { .. })) => {
                // Nothing that could come would help.
                let text = format!("none of the checkpoints of this object can be read, and {error}");
                log::error!(shard = shard.number, "{text}");
                shard.stop(&ObjectError::Form(text));
                return false;
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut has_warned, true) {
                    log::warn!(shard = shard.number, %error, "the state waits for the rest of this member's log");
                }
                shard.link.status.wait_for_change(AGAIN, || has_ended(shard).then_some(()));
            }
            None => return false,
        }
    }
}

/// Applies all messages of the views before the present one; `None` if the group has ended here.
fn replay<T: Replicated>(shard: &Shard<T>) -> Option<Result<StateRecovery<TypedMachine<T>>, HistoryError>> {
    let begun = Instant::now();
    let loan = shard.link.log.as_ref()?.borrow()?;
    let ReadCheckpoint { mut recovery, at, bytes } = newest(shard, &loan);
    let from = at.position;
    shard.core().checkpoints.note_found(bytes);
    shard.versions.note_checkpoint(at.time);
    let mut messages = 0_u64;
    for message in History::behind(loan.share(), shard.id, shard.durable?, checkpoint::start_of(from)) {
        match message {
            Ok(message) => {
                shard.core().checkpoints.note(message.bytes.len());
                recovery.apply(message.view, message.sequence, &message.bytes);
            }
            Err(error) => return Some(Err(error)),
        }
        messages += 1;
        if messages.is_multiple_of(CHECK) && has_ended(shard) {
            return None;
        }
    }
    let took = begun.elapsed();
    let (view, sequence) = (from.view, from.sequence);
    log::info!(
        shard = shard.number,
        view,
        sequence,
        messages,
        ?took,
        "made the state from the log behind this position"
    );
    Some(Ok(recovery))
}

/// The newest checkpoint that can be read, or the initial state if there is none: then the log reaches back to that, or the history
/// says that it does not.
fn newest<T: Replicated>(shard: &Shard<T>, log: &ProcessLog) -> ReadCheckpoint<T> {
    for start in log.checkpoints(shard.id).into_iter().rev() {
        match checkpoint::read(log, shard.id, start) {
            Ok(checkpoint) => return checkpoint,
            Err(error) => {
                let LogStart { view, sequence } = start;
                log::warn!(shard = shard.number, view, sequence, %error, "cannot read a checkpoint: an older one is tried");
            }
        }
    }
    let recovery = StateRecovery::new(TypedMachine(shard.versions.first()), SETTINGS);
    ReadCheckpoint { recovery, at: TimedPosition::default(), bytes: 0 }
}

/// Returns whether the group has ended here.
pub(super) fn has_ended<T: Replicated>(shard: &Shard<T>) -> bool {
    let status = &shard.link.status;
    status.is_stopping() || status.failure().is_some()
}

/// Between attempts: the rest of the log comes from the other members.
const AGAIN: Duration = Duration::from_millis(200);
/// After this many messages it looks whether the group has ended.
const CHECK: u64 = 1024;
