//! What a member chooses for an object.

use std::time::Duration;

use super::Transfer;
use crate::shared_poller::SharedPoller;

/// The options of an object, which each member chooses for itself.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// use squall::object::ObjectOptions;
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
/// # let config = Config::local(&format!("doc-object-options-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let on_transfer = Box::new(|state: squall::object::Transfer| println!("shard {}: {} bytes", state.shard, state.bytes));
/// let options = ObjectOptions { on_transfer, ..ObjectOptions::default() };
/// let count = group.object_with("count", Count::default, options)?;
/// assert_eq!(count.shards(), 1);
/// # Ok(())
/// # }
/// ```
pub struct ObjectOptions {
    /// The bytes of updates that a joiner keeps until the state arrives; above that, senders wait. The remaining
    /// updates of a view that ends are kept in addition.
    pub waiting_bytes_max: usize,
    /// How long to look for a member that takes an update or answers a query, and how long a state provider may be
    /// silent before another one is asked.
    pub timeout: Duration,
    /// Called while the state is being received, by the thread that receives it.
    pub on_transfer: Box<dyn Fn(Transfer) + Send + Sync>,
    /// Called by the object's thread after updates were applied, or a state was taken over; it must not block.
    pub on_applied: Box<dyn Fn() + Send + Sync>,
    /// Of a group that the application's threads poll: they apply updates, by
    /// [`Object::apply_delivered`](super::Object::apply_delivered), and the object's thread does only what they leave; and a thread that
    /// waits for space polls meanwhile.
    pub poller: Option<SharedPoller>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            waiting_bytes_max: 256 << 20,
            timeout: Duration::from_secs(10),
            on_transfer: Box::new(|_| ()),
            on_applied: Box::new(|| ()),
            poller: None,
        }
    }
}

impl std::fmt::Debug for ObjectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectOptions").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
