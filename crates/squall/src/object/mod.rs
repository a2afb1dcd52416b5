//! Replicated objects: an application's type, replicated at the members of a subgroup (Derecho app. A).
//!
//! ```
//! use std::collections::BTreeMap;
//! use squall::config::SubgroupConfig;
//! use squall::object::{Replicated, Snapshot, restored};
//! use squall::{Config, Group};
//!
//! #[derive(Default)]
//! struct Kv(BTreeMap<String, String>);
//!
//! impl Replicated for Kv {
//!     type Update = (String, String);
//!     type Query = String;
//!     type Reply = Option<String>;
//!     fn apply(&mut self, (key, value): (String, String)) -> Option<String> {
//!         self.0.insert(key, value)
//!     }
//!     fn query(&self, key: String) -> Option<String> {
//!         self.0.get(&key).cloned()
//!     }
//!     fn snapshot(&self) -> Snapshot {
//!         Snapshot::of(self.0.clone())
//!     }
//!     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
//!         restored(source).map(Self)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kv = SubgroupConfig { shards: 4, replicas: 1, ..SubgroupConfig::default() };
//! let config = Config::local(&format!("doc-objects-{}", std::process::id()), 1).subgroup("kv", kv);
//! let mut group = Group::join(config)?;
//! let kv = group.object("kv", Kv::default)?;
//! kv.update(b"colour", &("colour".into(), "blue".into()))?.wait()?;
//! assert_eq!(kv.query(b"colour", &"colour".into())?.wait()?, Some("blue".into()));
//! # Ok(())
//! # }
//! ```
//!
//! - An **update** is applied by all members of its shard in one order; the reply is this member's, or, if this
//!   member is not in the shard, that of the member that it asked. If an update's view ends and it gets no reply, its
//!   outcome is reported: [`ObjectError::NotDelivered`] or [`ObjectError::Unknown`]. Updates of one thread to one shard are applied
//!   in the order in which it submitted them \[A17\].
//! - A **query** is answered by one member from its state, which includes all updates that were acknowledged there,
//!   and all updates of the views before the caller's. It need not be the latest state: a caller that needs that uses
//!   [`Object::query_latest`], which is linearizable together with updates.
//! - A **watcher** waits until this member's replica of a shard changes: [`Object::watch`].
//! - A **joiner** gets the state from a member that holds it, while updates continue. It requests the state by
//!   itself.
//! - **Keys** choose shards ([`Object::shard`]); the view determines the members of each shard. A member that holds a
//!   state stays in the shard until enough others hold it, and one that leaves in order ([`crate::Group::leave`])
//!   hands its states over first. So only failures can lose a state, and [`ObjectError::StateLost`] names the members
//!   that failed.
//! - **Durable** objects, in subgroups with `mode = "durable"`, outlive all their members: an update is acknowledged when
//!   it is on the disks of all members of its shard, and after a restart each member makes the state from its log. Members write
//!   checkpoints occasionally (`checkpoint_bytes`), behind which the log is not needed any more. Earlier versions can be read, too, as far
//!   as the log is kept for them (`retain`): [`Object::at`].
//! - **Clients** outside the group use [`Client`], which may have many updates in flight. A shard remembers about the
//!   last thousand active clients, so that an update that is sent again counts once, with replies of up to 64 KiB; a
//!   client that was forgotten meanwhile gets [`ObjectError::Unknown`].

mod bell;
mod checkpoint;
mod client;
mod driver;
mod error;
mod frame_stream;
mod known;
mod machine;
mod options;
mod pending;
mod recovery;
mod remote;
mod remote_job;
mod remote_worker;
mod service;
mod shard;
pub mod sharded;
mod transfer;
mod versions;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::window::Payload;
use squall_protocols::replica::{ShardPosition as Position, UpdateSource, shard_of_key};

pub use crate::slot::{Snapshot, restored};
pub use client::{Client, ClientEvent};
pub use error::ObjectError;
pub use machine::Replicated;
pub use options::ObjectOptions;
pub use pending::Pending;
pub use sharded::{ManyReplies, ShardedObject};
pub use transfer::Transfer;
pub use versions::{ObjectVersion, Version, VersionError, Versioned};
pub use watch::ObjectWatch;
#[doc(hidden)]
pub use wire::read_foreign;

use driver::Applier;
pub(crate) use driver::{ShardSubgroup, shards_of, start};
use remote::RemoteShards;
use remote_job::RemoteJob;
pub(crate) use service::ObjectService;
use shard::{RefusedUpdate, Shard};

/// A handle of a replicated object at a member. Clones refer to the same object. The member keeps its replica until
/// it leaves the group, whether or not there are handles.
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
/// # let config = Config::local(&format!("doc-object-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let count = group.object("count", Count::default)?; // `Count` is an application's type
/// assert_eq!(count.update(b"key", &2)?.wait()?, 2);
/// assert_eq!(count.query(b"key", &())?.wait()?, 2); // of this member's replica
/// assert_eq!(count.query_latest(b"key", &())?.wait()?, 2); // linearizable
/// assert!(count.holds(count.shard(b"key")));
/// assert_eq!(count.inspect(0, |_, count| count.0), Some(2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Object<T: Replicated> {
    shards: Arc<[Arc<Shard<T>>]>,
    remote: Arc<RemoteShards>,
    applier: Arc<Applier<T>>,
}

impl<T: Replicated> Clone for Object<T> {
    fn clone(&self) -> Self {
        let (shards, remote) = (Arc::clone(&self.shards), Arc::clone(&self.remote));
        Self { shards, remote, applier: Arc::clone(&self.applier) }
    }
}

impl<T: Replicated> Object<T> {
    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the shard of a key.
    #[must_use]
    pub fn shard(&self, key: &[u8]) -> usize {
        shard_of(key, self.shards.len())
    }

    /// Updates the object in `key`'s shard, as [`Object::update_shard`] does.
    ///
    /// # Errors
    /// The errors of that method.
    pub fn update(&self, key: &[u8], update: &T::Update) -> Result<Pending<T::Reply>, ObjectError> {
        self.update_shard(self.shard(key), update)
    }

    /// Updates the object in a shard. Blocks while this member's window is full, and, once this member holds the state, until earlier
    /// updates that other members were asked for have their outcomes. The reply can be waited for, awaited, or dropped through the
    /// returned value. Updates from one thread to one shard are applied in the order of the calls, unless an earlier one's outcome is
    /// [`ObjectError::Unknown`], which may be applied later.
    ///
    /// # Errors
    /// [`ObjectError::TooLong`], or an error that says that the group has ended.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn update_shard(&self, shard: usize, update: &T::Update) -> Result<Pending<T::Reply>, ObjectError> {
        wire::with_encoded(update, |bytes| {
            self.submit(shard, UpdateSource::Own, bytes.len(), |space| space.put(bytes))
        })?
    }

    /// Updates the object in a shard as [`Object::update_shard`] does; `write` writes the update's serialised form, `length` bytes, where
    /// the other members read it if there is space, so that long updates are not copied before. Bytes that it leaves out become zeros.
    /// It is called once, with this member's part of the shard locked, so it must use neither the object nor the group. What members
    /// cannot read as an update is skipped by all of them, and its reply is an error.
    ///
    /// The serialised form is that of `postcard`: of [`bytes::Bytes`](https://docs.rs/bytes), for instance, the length as a varint, and the
    /// bytes.
    ///
    /// ```
    /// # use squall::config::SubgroupConfig;
    /// # use squall::object::{Replicated, Snapshot, restored};
    /// # use squall::{Config, Group};
    /// # #[derive(Default)]
    /// # struct Texts(Vec<String>);
    /// # impl Replicated for Texts {
    /// #     type Update = String;
    /// #     type Query = ();
    /// #     type Reply = usize;
    /// #     fn apply(&mut self, text: String) -> usize { self.0.push(text); self.0.len() }
    /// #     fn query(&self, (): ()) -> usize { self.0.len() }
    /// #     fn snapshot(&self) -> Snapshot { Snapshot::of(self.0.clone()) }
    /// #     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> { restored(source).map(Self) }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = Config::local(&format!("doc-written-{}", std::process::id()), 1).subgroup("texts", SubgroupConfig::default());
    /// # let mut group = Group::join(config)?;
    /// let texts = group.object("texts", Texts::default)?; // its updates are strings
    /// let pending = texts.update_written(0, 6, |update| {
    ///     update.put(&[5]); // the length
    ///     update.put(b"hello");
    /// })?;
    /// assert_eq!(pending.wait()?, 1);
    /// assert_eq!(texts.inspect(0, |_, texts| texts.0[0].clone()).as_deref(), Some("hello"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Object::update_shard`].
    ///
    /// # Panics
    /// If there is no such shard, or if `write` writes more than `length` bytes.
    pub fn update_written(
        &self,
        shard: usize,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<Pending<T::Reply>, ObjectError> {
        self.submit(shard, UpdateSource::Own, length, write)
    }

    /// Sends an update or a query to a shard, or asks another member to.
    fn submit(
        &self,
        shard: usize,
        source: UpdateSource,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<Pending<T::Reply>, ObjectError> {
        let (pending, completion) = pending::pair(self.is_durable(shard));
        let mut write = Some(write);
        match self.shards[shard].submit_own(source, length, &mut write, completion) {
            Ok(()) => {}
            Err((RefusedUpdate::NotHere, completion)) => {
                let mut bytes = vec![0; length];
                if let Some(write) = write {
                    write(&mut Payload::over(&mut bytes));
                }
                let job = match source {
                    UpdateSource::Query => RemoteJob::query_latest::<T>(shard, bytes, completion),
                    _ => RemoteJob::update::<T>(shard, bytes, completion),
                };
                let job = job.holding(self.shards[shard].note_elsewhere());
                return Ok(pending.got_by(self.remote.push(job)));
            }
            Err((RefusedUpdate::Error(error), _)) => return Err(error),
        }
        Ok(pending)
    }

    /// Queries the object in `key`'s shard at this member, if it is in the shard and has the state, else at a member
    /// that has it.
    ///
    /// The answer reflects what that member has applied, which may be less than has been acknowledged: [`Object::query_latest`]
    /// waits for that.
    ///
    /// # Errors
    /// [`ObjectError`] if the query cannot be serialised.
    pub fn query(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        self.query_shard(self.shard(key), query)
    }

    /// Queries the object in a shard, as [`Object::query`] does.
    ///
    /// # Errors
    /// The errors of that method.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn query_shard(&self, shard: usize, query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(query)?;
        if let Some(reply) = self.shards[shard].query_here(&bytes) {
            return Ok(Pending::ready(reply, self.is_durable(shard)));
        }
        let (pending, completion) = pending::pair(self.is_durable(shard));
        Ok(pending.got_by(self.remote.push(RemoteJob::query::<T>(shard, None, bytes, completion))))
    }

    /// Queries the latest state of the object in `key`'s shard: the answer reflects every update that was
    /// acknowledged to any caller before. The query takes its place in the shard's total order, so it costs as much
    /// as an update.
    ///
    /// # Errors
    /// The errors of [`Object::update_shard`].
    pub fn query_latest(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        wire::with_encoded(query, |bytes| {
            self.submit(self.shard(key), UpdateSource::Query, bytes.len(), |space| space.put(bytes))
        })?
    }

    /// Queries the object in a shard at the member `node`. The answer reflects what that member has applied so far.
    ///
    /// # Errors
    /// [`ObjectError`] if the query cannot be serialised.
    pub fn query_at(
        &self,
        node: NodeId,
        shard: usize,
        query: &T::Query,
    ) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(query)?;
        let (pending, completion) = pending::pair(self.is_durable(shard));
        Ok(pending.got_by(self.remote.push(RemoteJob::query::<T>(shard, Some(node), bytes, completion))))
    }

    /// Returns whether this member is in the shard and has its state.
    #[must_use]
    pub fn holds(&self, shard: usize) -> bool {
        self.shards[shard].core().replica.position().is_some()
    }

    /// Reads this member's replica of a shard: `read` gets the view and the sequence number up to which all updates
    /// are applied, and the object. Returns `None` if this member has no replica. Updates wait meanwhile.
    pub fn inspect<R>(&self, shard: usize, read: impl FnOnce((u64, u64), &T) -> R) -> Option<R> {
        self.shards[shard].core().read(read)
    }

    /// Reads this member's replica of a shard, as [`Object::inspect`] does, unless another thread reads it or applies updates: then it returns
    /// `None`, too.
    pub fn try_inspect<R>(&self, shard: usize, read: impl FnOnce((u64, u64), &T) -> R) -> Option<R> {
        self.shards[shard].try_core()?.read(read)
    }

    /// Applies the updates that were delivered, on this thread; returns whether there were any. For an object that is served
    /// ([`ObjectOptions::poller`]): threads that poll the group call it, in [`crate::SharedPoller::on_news`], and once after they have
    /// begun to. Then replies come without waking the object's thread. Updates should be short, since the group is not polled meanwhile, and
    /// must not panic, which would end the group at this member.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use squall::config::SubgroupConfig;
    /// # use squall::object::{ObjectOptions, Replicated, Snapshot, restored};
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
    /// # let config = Config::local(&format!("doc-served-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
    /// let (mut group, poller) = Group::builder(config).join_shared()?;
    /// let options = ObjectOptions { poller: Some(poller.clone()), ..ObjectOptions::default() };
    /// let count = group.object_with("count", Count::default, options)?; // `Count` is an application's type
    /// let served = count.clone();
    /// poller.on_news(move |_| {
    ///     served.apply_delivered();
    /// });
    /// count.apply_delivered();
    /// let mut pending = Some(count.update(b"key", &2)?);
    /// let reply = poller.wait_until(Duration::from_secs(10), || {
    ///     pending.take().and_then(|reply| reply.try_wait().map_err(|early| pending = Some(early)).ok())
    /// });
    /// assert_eq!(reply.transpose()?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply_delivered(&self) -> bool {
        self.applier.apply_delivered()
    }

    /// Returns the object as it was at an earlier version, if its subgroup is durable.
    ///
    /// ```
    /// # use squall::config::{StorageConfig, SubgroupConfig};
    /// use squall::object::{Replicated, Snapshot, Version, restored};
    /// # use squall::{Config, DeliveryMode, Group};
    ///
    /// struct Counter(u64);
    ///
    /// impl Replicated for Counter {
    ///     type Update = u64;
    ///     type Query = ();
    ///     type Reply = u64;
    ///     fn apply(&mut self, update: u64) -> u64 {
    ///         self.0 += update;
    ///         self.0
    ///     }
    ///     fn query(&self, (): ()) -> u64 {
    ///         self.0
    ///     }
    ///     fn snapshot(&self) -> Snapshot {
    ///         Snapshot::of(self.0)
    ///     }
    ///     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
    ///         restored(source).map(Self)
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let name = format!("doc-versions-{}", std::process::id());
    /// # let path = std::env::temp_dir().join(&name);
    /// let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    /// # let mut config = Config::local(&name, 1).subgroup("counter", durable);
    /// # config.storage = Some(StorageConfig::new(&path));
    /// # let mut group = Group::join(config)?;
    /// let counter = group.object("counter", || Counter(0))?;
    /// counter.update(b"", &5)?.wait()?;
    /// let five = counter.position(0).expect("this member has the state");
    /// counter.update(b"", &2)?.wait()?;
    /// let then = counter.at(Version::Position(five)).query(b"", &())?;
    /// assert_eq!((then.value, counter.query(b"", &())?.wait()?), (5, 7));
    /// # drop(group);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn at(&self, version: Version) -> ObjectVersion<'_, T> {
        ObjectVersion::new(self, version)
    }

    /// Returns the position of this member's replica of a shard: all updates before it are applied. `None` if this member has no replica.
    #[must_use]
    pub fn position(&self, shard: usize) -> Option<Position> {
        self.shards[shard].core().replica.position()
    }

    /// Frees the state that [`Object::at`] keeps of each shard for the next query of a later version.
    pub fn forget_versions(&self) {
        self.shards.iter().for_each(|shard| shard.versions.forget());
    }

    /// Returns whether a shard is in a durable subgroup.
    fn is_durable(&self, shard: usize) -> bool {
        self.shards[shard].durable.is_some()
    }

    /// Waits until this member has the state of all shards that it is in.
    ///
    /// # Errors
    /// [`ObjectError::StateLost`]; [`ObjectError::Unreachable`] if the time runs out; or an error that says that the
    /// group has ended.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), ObjectError> {
        let deadline = Instant::now() + timeout;
        self.shards.iter().try_for_each(|shard| shard.wait_ready(deadline))
    }
}

/// Returns the shard of a key among `shards`.
fn shard_of(key: &[u8], shards: usize) -> usize {
    shard_of_key(key, u32::try_from(shards).expect("shards are few")) as usize
}
