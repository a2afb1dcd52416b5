//! Clients outside the group (Derecho app. A): they reach any member, follow the view, and survive failures.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use squall_protocols::replica::HEADER_BYTES;

use super::driver::shards_of;
use super::machine::Replicated;
use super::pending::{self, Pending};
use super::remote::{Directory, RemoteJob, RemoteShards};
use super::{ObjectError, shard_of, wire};
use crate::config::Config;
use crate::error::HandleError;

/// A client of an object, in a process that is no member. Up to 256 updates to one shard are under way at a time; they are applied
/// in the order in which they were begun, each once, although it may be sent several times when members fail. Queries go beside
/// them: one that is to see an update waits for its reply first.
///
/// A client follows the group, also while it is idle: it asks a member every two seconds who the members are, and sooner when
/// an answer comes from a later view than it knows. So all members can be replaced one by one.
#[derive(Debug)]
pub struct Client<T: Replicated> {
    remote: RemoteShards,
    shards: usize,
    /// The longest update in bytes.
    update_bytes_max: usize,
    object: PhantomData<fn(T) -> T>,
}

impl<T: Replicated> Client<T> {
    /// A client of the object `name`. `config` is the members' configuration: cluster, secret, contacts and subgroups
    /// count; any contact that answers will do.
    ///
    /// # Errors
    /// [`HandleError::UnknownSubgroup`] if the configuration has no such subgroup, and [`HandleError::Contact`] if no
    /// contact answers.
    pub fn connect(config: &Config, name: &str) -> Result<Self, HandleError> {
        Self::connect_with(config, name, Duration::from_secs(10))
    }

    /// As [`Client::connect`]; an update or query is tried for `timeout`.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(config: &Config, name: &str, timeout: Duration) -> Result<Self, HandleError> {
        let config = Arc::new(config.clone().with_shards());
        let subgroups: Vec<String> = shards_of(name, &config.subgroups).into_iter().map(Into::into).collect();
        if subgroups.is_empty() {
            return Err(HandleError::UnknownSubgroup(name.into()));
        }
        let shards = subgroups.len();
        let message_max = config.subgroups.get(&subgroups[0]).map_or(0, |subgroup| subgroup.message_max);
        let update_bytes_max = message_max.saturating_sub(HEADER_BYTES);
        let directory = Directory::of_client(&config, name, subgroups, timeout);
        directory.follow().map_err(|cause| HandleError::Contact { cause })?;
        Ok(Self {
            remote: RemoteShards::new(Arc::new(directory)),
            shards,
            update_bytes_max,
            object: PhantomData,
        })
    }

    /// The shard of a key.
    #[must_use]
    pub fn shard(&self, key: &[u8]) -> usize {
        shard_of(key, self.shards)
    }

    /// Updates the object of `key`'s shard. Returns at once, unless a thousand updates wait already; the reply is waited for,
    /// awaited, or let go of with what is returned.
    ///
    /// ```no_run
    /// # use squall::object::{Client, ObjectError, Replicated};
    /// # fn append<T: Replicated<Update = u64>>(client: &Client<T>) -> Result<(), ObjectError> {
    /// // All are under way at once, and applied in this order.
    /// let pending: Result<Vec<_>, _> = (0..64).map(|number| client.update(b"list", &number)).collect();
    /// for reply in pending? {
    ///     reply.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the update cannot be written, and [`ObjectError::TooLong`].
    pub fn update(&self, key: &[u8], update: &T::Update) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(update)?;
        if bytes.len() > self.update_bytes_max {
            return Err(ObjectError::TooLong { bytes: bytes.len(), bytes_max: self.update_bytes_max });
        }
        let (pending, completion) = pending::pair();
        self.remote.push(RemoteJob::update::<T>(self.shard(key), bytes, completion));
        Ok(pending)
    }

    /// Asks the object of `key`'s shard.
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the query cannot be written.
    pub fn query(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let (pending, completion) = pending::pair();
        self.remote.push(RemoteJob::query::<T>(self.shard(key), None, wire::encode(query)?, completion));
        Ok(pending)
    }

    /// Asks the object of `key`'s shard as it is now: the answer includes all that was acknowledged to anybody before. It goes
    /// through the order of the shard, so it costs as much as an update.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub fn query_latest(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let bytes = wire::encode(query)?;
        if bytes.len() > self.update_bytes_max {
            return Err(ObjectError::TooLong { bytes: bytes.len(), bytes_max: self.update_bytes_max });
        }
        let (pending, completion) = pending::pair();
        self.remote.push(RemoteJob::query_latest::<T>(self.shard(key), bytes, completion));
        Ok(pending)
    }
}
