//! Waiting for changes of an object (Derecho app. A: queries reflect what a member has applied).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use squall_protocols::replica::ShardPosition as Position;

use super::machine::Replicated;
use super::shard::Shard;
use super::{Object, ObjectError};
use crate::wait::block_on;

/// Reports that this member's replica of a shard has changed. Changes that come while no caller waits are reported as one, so a slow
/// watcher misses states, but never the latest one.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// # #[derive(Default)]
/// # struct Count(u64);
/// # impl Replicated for Count {
/// #     type Update = u64;
/// #     type Query = ();
/// #     type Reply = u64;
/// #     fn apply(&mut self, more: u64) -> u64 { self.0 += more; self.0 }
/// #     fn query(&self, (): ()) -> u64 { self.0 }
/// #     fn snapshot(&self) -> Snapshot { Snapshot::of(self.0) }
/// #     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> { restored(source).map(Self) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-watch-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let count = group.object("count", Count::default)?; // `Count` is an application's type
/// let mut watch = count.watch(count.shard(b"key"));
/// let (writer, update) = (count.clone(), 5);
/// let writer = std::thread::spawn(move || writer.update(b"key", &update).unwrap().wait());
/// while count.inspect(0, |_, count| count.0) != Some(5) {
///     watch.changed()?; // returns when something was applied after the last call
/// }
/// # writer.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ObjectWatch<T: Replicated> {
    shard: Arc<Shard<T>>,
    /// What was reported last; `None`: this member had no replica.
    seen: Option<Position>,
}

impl<T: Replicated> Object<T> {
    /// Returns a watcher of this member's replica of a shard, from its present state on.
    ///
    /// # Panics
    /// If there is no such shard.
    #[must_use]
    pub fn watch(&self, shard: usize) -> ObjectWatch<T> {
        ObjectWatch { seen: self.position(shard), shard: Arc::clone(&self.shards[shard]) }
    }
}

impl<T: Replicated> ObjectWatch<T> {
    /// Blocks until the replica has changed since the last call, or since this watcher was made; returns the position before which all
    /// updates are applied. It must not be called on the thread that polls the group.
    ///
    /// # Errors
    /// The error that says why the group has ended here.
    pub fn changed(&mut self) -> Result<Position, ObjectError> {
        block_on(self.changed_async())
    }

    /// Awaits what [`ObjectWatch::changed`] blocks for, on any executor.
    ///
    /// # Errors
    /// The errors of that method.
    pub async fn changed_async(&mut self) -> Result<Position, ObjectError> {
        poll_fn(|context| {
            if let Some(news) = self.look() {
                return Poll::Ready(news);
            }
            self.shard.changes.register(context.waker());
            self.look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Returns the present position, if it is another one than was reported last.
    fn look(&mut self) -> Option<Result<Position, ObjectError>> {
        // Read before the state: what was applied before the end is reported first.
        let ended = self.shard.end();
        let position = self.shard.core().replica.position();
        if position != self.seen {
            self.seen = position;
            if let Some(position) = position {
                return Some(Ok(position));
            }
        }
        ended.map(Err)
    }
}
