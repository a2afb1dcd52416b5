//! Recovery: a member makes the state of a durable shard again from its log, when its group restarts (Derecho §3.4, "Total
//! failures").
//!
//! [`StateRecovery`] says how. The log of each member of the view with which a group restarts has all messages of the views before
//! \[T15\] \[T17\]. The thread that applies updates reads them, so updates and queries of this shard wait meanwhile.

use std::time::{Duration, Instant};

use squall_protocols::replica::StateRecovery;

use super::machine::{Replicated, TypedMachine};
use super::shard::{SETTINGS, Shard};
use crate::history::{History, HistoryError};

/// Makes the state, before the first view. Returns whether it is made; if not, the group has ended here.
pub(super) fn recover<T: Replicated>(shard: &Shard<T>) -> bool {
    let mut has_warned = false;
    loop {
        match replay(shard, shard.versions.first()) {
            Some(Ok(recovery)) => {
                shard.core().replica.recover(recovery);
                return true;
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(shard = shard.number, %error, "the state waits for the rest of this member's log");
                }
                shard.link.status.wait_for_change(AGAIN, || has_ended(shard).then_some(()));
            }
            None => return false,
        }
    }
}

/// Applies all messages of the views before the present one; `None` if the group has ended here.
fn replay<T: Replicated>(
    shard: &Shard<T>,
    first: T,
) -> Option<Result<StateRecovery<TypedMachine<T>>, HistoryError>> {
    let begun = Instant::now();
    let loan = shard.link.log.as_ref()?.borrow()?;
    let mut recovery = StateRecovery::new(TypedMachine(first), SETTINGS);
    let mut messages = 0_u64;
    for message in History::new(loan.share(), shard.id, shard.durable?) {
        match message {
            Ok(message) => recovery.apply(message.view, message.sequence, &message.bytes),
            Err(error) => return Some(Err(error)),
        }
        messages += 1;
        if messages.is_multiple_of(CHECK) && has_ended(shard) {
            return None;
        }
    }
    let took = begun.elapsed();
    tracing::info!(shard = shard.number, messages, ?took, "made the state from the log");
    Some(Ok(recovery))
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
