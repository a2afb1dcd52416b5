//! Clients outside the group (Derecho app. A): they reach any member, follow the view, and survive failures.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::driver::shards_of;
use super::machine::Replicated;
use super::pending::{self, Pending};
use super::remote::{Directory, Job, Remote};
use super::{ObjectError, shard_of, wire};
use crate::config::Config;
use crate::error::HandleError;

/// A client of an object, in a process that is no member. Updates to one shard go one after the other; each is applied
/// once, although it may be sent several times when members fail.
///
/// A client follows the group, also while it is idle: it asks a member every two seconds who the members are, and sooner when
/// an answer comes from a later view than it knows. So all members can be replaced one by one.
#[derive(Debug)]
pub struct Client<T: Replicated> {
    remote: Remote,
    shards: usize,
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
        let directory = Directory::of_client(&config, name, subgroups, timeout);
        directory.follow().map_err(|cause| HandleError::Contact { cause })?;
        Ok(Self { remote: Remote::new(Arc::new(directory)), shards, object: PhantomData })
    }

    /// The shard of a key.
    #[must_use]
    pub fn shard(&self, key: &[u8]) -> usize {
        shard_of(key, self.shards)
    }

    /// Updates the object of `key`'s shard.
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the update cannot be written.
    pub fn update(&self, key: &[u8], update: &T::Update) -> Result<Pending<T::Reply>, ObjectError> {
        let (pending, completion) = pending::pair();
        self.remote.push(Job::update::<T>(self.shard(key), wire::encode(update)?, completion));
        Ok(pending)
    }

    /// Asks the object of `key`'s shard.
    ///
    /// # Errors
    /// [`ObjectError::Form`] if the query cannot be written.
    pub fn query(&self, key: &[u8], query: &T::Query) -> Result<Pending<T::Reply>, ObjectError> {
        let (pending, completion) = pending::pair();
        self.remote.push(Job::query::<T>(self.shard(key), None, wire::encode(query)?, completion));
        Ok(pending)
    }
}
