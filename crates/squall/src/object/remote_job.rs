//! A task for a shard that is at other members, with the caller that waits for it (Derecho app. A).

use squall_fabric::NodeId;
use squall_protocols::replica::Task;

use super::machine::Replicated;
use super::pending::ReplySender;
use super::{ObjectError, wire};

/// A task for a shard that is at other members.
pub(super) struct RemoteJob {
    pub(super) shard: usize,
    /// The member that is to do it, if it has to be a certain one.
    pub(super) node: Option<NodeId>,
    pub(super) task: Task,
    pub(super) done: Done,
}

/// What takes the reply.
pub(super) type Done = Box<dyn FnOnce(Result<Vec<u8>, ObjectError>) + Send>;

impl RemoteJob {
    pub(super) fn update<T: Replicated>(shard: usize, update: Vec<u8>, done: ReplySender<T::Reply>) -> Self {
        Self { shard, node: None, task: Task::Update(update.into()), done: completing::<T>(done) }
    }

    /// Drops `value` before the caller gets the reply, or with the job.
    pub(super) fn holding(mut self, value: impl Send + 'static) -> Self {
        let done = self.done;
        self.done = Box::new(move |reply| {
            drop(value);
            done(reply);
        });
        self
    }

    pub(super) fn query_latest<T: Replicated>(
        shard: usize,
        query: Vec<u8>,
        done: ReplySender<T::Reply>,
    ) -> Self {
        Self { shard, node: None, task: Task::Latest(query.into()), done: completing::<T>(done) }
    }

    pub(super) fn query<T: Replicated>(
        shard: usize,
        node: Option<NodeId>,
        query: Vec<u8>,
        done: ReplySender<T::Reply>,
    ) -> Self {
        Self { shard, node, task: Task::Query(query.into()), done: completing::<T>(done) }
    }
}

fn completing<T: Replicated>(completion: ReplySender<T::Reply>) -> Done {
    Box::new(|reply| completion.complete(reply.and_then(|reply| wire::decode_reply(&reply))))
}
