//! Clients outside the group (Derecho app. A): they use any member, follow the view, and survive failures of members.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::multicast::DeliveryMode;
use squall_protocols::replica::HEADER_BYTES;

use super::driver::shards_of;
use super::machine::Replicated;
use super::pending::{self, Pending};
use super::remote::{Directory, RemoteShards};
use super::remote_job::RemoteJob;
use super::{ObjectError, shard_of, wire};
use crate::config::Config;
use crate::error::HandleError;

/// A client of an object, in a process that is not a member. Up to 256 updates to one shard are in flight at a time;
/// they are applied in the order in which they were begun, and each once, although it may be sent several times when
/// members fail. Queries are independent of them: to make a query see an update, wait for the update's reply first.
///
/// A client follows the group even while it is idle: it asks a member for the list of members every two seconds, and
/// sooner when an answer comes from a later view than it knows. So all members can be replaced one by one.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// use squall::object::Client;
/// use std::time::Duration;
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
/// # let config = Config::local(&format!("doc-client-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let _count = group.object("count", Count::default)?; // at each member
/// let client = Client::<Count>::connect(&config, "count")?; // in any process
/// assert_eq!(client.update(b"key", &5)?.wait()?, 5);
/// let patient = Client::<Count>::connect_with(&config, "count", Duration::from_secs(60))?;
/// assert_eq!(patient.query(b"key", &())?.wait()?, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client<T: Replicated> {
    remote: RemoteShards,
    shards: usize,
    /// The length of the longest update in bytes.
    update_bytes_max: usize,
    /// Whether the subgroups are durable.
    is_durable: bool,
    object: PhantomData<fn(T) -> T>,
}

/// What happens to a client's connections ([`Client::on_event`]).
///
/// ```
/// use squall::object::ClientEvent;
///
/// fn report(event: ClientEvent) {
///     match event {
///         ClientEvent::Connected { shard, node } => println!("shard {shard}: at {node}"),
///         ClientEvent::Lost { shard, node, cause } => println!("shard {shard}: lost {node} ({cause}), trying another member"),
///         event => println!("{event:?}"),
///     }
/// }
/// # report(ClientEvent::Connected { shard: 0, node: squall::NodeId(7) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientEvent {
    /// Requests to a shard go to this member now.
    Connected {
        /// The shard.
        shard: usize,
        /// The member.
        node: NodeId,
    },
    /// The member does not answer any more, or has left: another one is asked.
    Lost {
        /// The shard.
        shard: usize,
        /// The member.
        node: NodeId,
        /// Why, as far as the client knows.
        cause: String,
    },
}

impl<T: Replicated> Client<T> {
    /// Connects a client of the object `name`. `config` is the members' configuration, of which cluster, secret,
    /// contacts and subgroups matter; any contact that answers is sufficient.
    ///
    /// # Errors
    /// [`HandleError::UnknownSubgroup`] if the configuration has no such subgroup, and [`HandleError::Contact`] if no
    /// contact answers.
    pub fn connect(config: &Config, name: &str) -> Result<Self, HandleError> {
        Self::connect_with(config, name, Duration::from_secs(10))
    }

    /// Connects like [`Client::connect`]; an update or query is tried for `timeout`.
    ///
    /// # Errors
    /// The errors of [`Client::connect`].
    pub fn connect_with(config: &Config, name: &str, timeout: Duration) -> Result<Self, HandleError> {
        let config = Arc::new(config.clone().with_shards());
        let subgroups: Vec<String> = shards_of(name, &config.subgroups).into_iter().map(Into::into).collect();
        if subgroups.is_empty() {
            return Err(HandleError::UnknownSubgroup(name.into()));
        }
        let shards = subgroups.len();
        let first = config.subgroups.get(&subgroups[0]);
        let message_max = first.map_or(0, |subgroup| subgroup.message_max);
        let is_durable = first.is_some_and(|subgroup| subgroup.mode == DeliveryMode::Durable);
        let update_bytes_max = message_max.saturating_sub(HEADER_BYTES);
        let directory = Directory::of_client(&config, name, subgroups, timeout);
        directory.follow().map_err(|cause| HandleError::Contact { cause })?;
        Ok(Self {
            remote: RemoteShards::new(Arc::new(directory)),
            shards,
            update_bytes_max,
            is_durable,
            object: PhantomData,
        })
    }

    /// Calls `on_event` when this client connects to a member or loses it, on the threads that converse with members, or wait for a reply. It replaces the
    /// function that was given before. The client connects to another member by itself, and updates are not lost.
    pub fn on_event(&self, on_event: impl Fn(ClientEvent) + Send + Sync + 'static) {
        self.remote.directory().set_on_event(Arc::new(on_event));
    }

    /// Ends this client when everything that it was asked has its reply, or its time-out has passed. Dropping the client has the same
    /// effect, without waiting.
    pub fn close(self) {
        self.remote.close();
    }

    /// Returns the shard of a key.
    #[must_use]
    pub fn shard(&self, key: &[u8]) -> usize {
        shard_of(key, self.shards)
    }

    /// Updates the object in `key`'s shard. Returns at once, unless a thousand updates are already waiting. The reply
    /// can be waited for, awaited, or dropped through the returned value.
    ///
    /// ```no_run
    /// # use squall::object::{Client, ObjectError, Replicated};
    /// # fn append<T: Replicated<Update = u64>>(client: &Client<T>) -> Result<(), ObjectError> {
    /// // All are in flight at once, and applied in this order.
    /// let pending: Result<Vec<_>, _> = (0..64).map(|number| client.update(b"list", &number)).collect();
    /// for reply in pending? {
    ///     reply.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the update cannot be serialised, and [`ObjectError::TooLong`].
    pub fn update(&self, key: &[u8], update: &T::Update) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(update)?;
        if bytes.len() > self.update_bytes_max {
            return Err(ObjectError::TooLong { bytes: bytes.len(), bytes_max: self.update_bytes_max });
        }
        let (pending, completion) = pending::pair(self.is_durable);
        Ok(pending.got_by(self.remote.push(RemoteJob::update::<T>(self.shard(key), bytes, completion))))
    }

    /// Queries the object in `key`'s shard at one of its members. The answer reflects what that member has applied, which
    /// may be less than has been acknowledged: [`Client::query_latest`] waits for that.
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the query cannot be serialised.
    pub fn query(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let (pending, completion) = pending::pair(self.is_durable);
        Ok(pending.got_by(self.remote.push(RemoteJob::query::<T>(
            self.shard(key),
            None,
            wire::encode(query)?,
            completion,
        ))))
    }

    /// Queries the latest state of the object in `key`'s shard: the answer reflects every update that was
    /// acknowledged to any caller before. The query takes its place in the shard's total order, so it costs as much
    /// as an update.
    ///
    /// # Errors
    /// The errors of [`Client::update`].
    pub fn query_latest(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(query)?;
        if bytes.len() > self.update_bytes_max {
            return Err(ObjectError::TooLong { bytes: bytes.len(), bytes_max: self.update_bytes_max });
        }
        let (pending, completion) = pending::pair(self.is_durable);
        Ok(pending.got_by(self.remote.push(RemoteJob::query_latest::<T>(self.shard(key), bytes, completion))))
    }
}
