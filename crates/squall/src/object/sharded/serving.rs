//! What a member answers about the object in the shards: callers at other members, and joiners (RamCast §2.2) \[G14\] \[G19\].

use std::sync::{Arc, mpsc};
use std::time::Duration;

use squall_protocols::replica::{ShardAnswer, ShardPosition, ShardRequest};

use super::ShardedShared;
use crate::object::machine::Replicated;
use crate::object::service::{RemoteCall, Serve};
use crate::slot::Snapshot;
use crate::status::GroupStatus;

/// Serves the callers at other members, and joiners.
pub(super) struct ServedPart<T: Replicated>(pub(super) Arc<ShardedShared<T>>);

impl<T: Replicated> Serve for ServedPart<T> {
    fn serve(&self, shard: usize, request: ShardRequest, call: RemoteCall) {
        match request {
            ShardRequest::Replies { caller, number } if self.0.own == Some(shard) && !self.0.has_ended() => {
                self.0.part().ask(caller, number, call);
            }
            ShardRequest::Replies { .. } => call.answer(ShardAnswer::NotYet),
            _ => {
                call.answer(ShardAnswer::Refused("the object in the shards takes updates of members".into()))
            }
        }
    }

    fn flush(&self, _shard: usize) {}

    fn state(&self, shard: usize, since: u64) -> (ShardAnswer, Option<Snapshot>) {
        let standing = self.0.feed.standing();
        if self.0.own != Some(shard) || !standing.has_state || standing.view < since {
            return (ShardAnswer::NotYet, None);
        }
        let (to, provided) = mpsc::sync_channel(1);
        self.0.feed.want_state(to);
        self.0.link.waker.wake();
        match provided.recv_timeout(PROVIDE_MAX) {
            Ok(state) => {
                let snapshot = state.into_snapshot();
                let position = ShardPosition::start_of(standing.view);
                let answer = ShardAnswer::State { position, sessions: Vec::new(), bytes: snapshot.bytes() };
                (answer, Some(snapshot))
            }
            Err(_) => (ShardAnswer::NotYet, None),
        }
    }

    fn view(&self) -> u64 {
        self.0.link.status.view_id()
    }

    fn status(&self) -> Arc<GroupStatus> {
        Arc::clone(&self.0.link.status)
    }
}

/// How long a joiner's request may wait for the thread that applies updates.
const PROVIDE_MAX: Duration = Duration::from_secs(3);
