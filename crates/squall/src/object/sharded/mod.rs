//! One replicated object in the shards of a group, with updates of several shards (RamCast §2.2; Derecho app. A).
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use squall::config::GenuineConfig;
//! use squall::object::{Replicated, Snapshot, restored};
//! use squall::{Config, Group};
//!
//! #[derive(Default)]
//! struct Accounts(BTreeMap<String, i64>);
//!
//! impl Replicated for Accounts {
//!     type Update = (String, i64);
//!     type Query = String;
//!     type Reply = i64;
//!     fn apply(&mut self, (account, change): (String, i64)) -> i64 {
//!         let balance = self.0.entry(account).or_default();
//!         *balance += change;
//!         *balance
//!     }
//!     fn query(&self, account: String) -> i64 {
//!         self.0.get(&account).copied().unwrap_or(0)
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
//! let mut config = Config::local(&format!("doc-sharded-{}", std::process::id()), 1);
//! config.genuine = Some(GenuineConfig { object: true, ..GenuineConfig::default().shard("a", &[0]) });
//! let mut group = Group::join(config)?;
//! let accounts = group.sharded_object(Accounts::default)?;
//! let transfer = [(&b"ann"[..], &("ann".to_string(), -5)), (&b"bob"[..], &("bob".to_string(), 5))];
//! assert_eq!(accounts.update_many(transfer)?.wait()?.replies, [-5, 5]); // both at one position
//! assert_eq!(accounts.query_many([(&b"ann"[..], &"ann".to_string())])?.wait()?.replies, [-5]);
//! # Ok(())
//! # }
//! ```
//!
//! - **One order.** All updates go by genuine multicast to the shards that they concern, those of one key too. So there is one order of all
//!   of them, [`ManyReplies::position`], and each shard applies its own part at that place.
//! - **Once.** An update is applied once by each of its shards, whatever fails: in all of them, or, if this member dies, perhaps in none.
//!   A reply waits until all shards of the update have applied it; if a member dies that was to answer, another one of its shard does.
//! - **Joiners** take over the state of their shard from another member, with the place in the order up to which it has everything.
//! - **Loss.** A shard survives all but one of its members, while a majority of the view lives. When all that hold its state are
//!   gone, the state is lost, and updates that concern it fail with [`ObjectError::StateLost`], when all their other shards have
//!   applied them; the other shards continue. A member whose part panics, or cannot read the state that it needs, leaves the
//!   group, as if it had died.
//! - **Limits.** One object in a group, in memory only; updates are made by members, at most 1,024 of which wait for their replies
//!   at a member: further ones of all its threads wait.

mod joining;
mod line;
mod part;
mod serving;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use squall_fabric::NodeId;
use squall_fabric::mutex::{lock, unpoisoned};
use squall_protocols::genuine::{
    GenuinePosition, PART_HEADER_BYTES, PartKind, PartReplies, ReplyGathering, ReplyState, ShardedOutcome,
    ShardedUpdate, UPDATE_HEADER_BYTES, UpdatePart, UpdateReplies,
};
use squall_protocols::replica::shard_of_key;
use squall_transports::log;

use super::bell::Bell;
use super::machine::{Replicated, TypedMachine};
use super::pending::{self, Pending};
use super::remote::Directory;
use super::service::ObjectService;
use super::{ObjectError, wire};
use crate::config::{Config, GenuineConfig};
use crate::error::SendError;
use crate::handle::genuine::MulticastSender;
use crate::handle::node_handle::NodeHandle;
use crate::slot::ShardFeed;

use part::{PartDriver, PartState};
use serving::ServedPart;

/// The replies to an update or a query with several keys.
///
/// ```
/// use squall::object::{ManyReplies, ObjectError, Replicated, ShardedObject};
///
/// /// Makes two updates at one position.
/// fn both<T: Replicated<Update = u64>>(object: &ShardedObject<T>) -> Result<ManyReplies<T::Reply>, ObjectError> {
///     object.update_many([(&b"one"[..], &1), (&b"other"[..], &2)])?.wait()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManyReplies<R> {
    /// Its place in the order of all updates of all shards.
    pub position: GenuinePosition,
    /// A reply for each key, in the order of the keys.
    pub replies: Vec<R>,
}

/// A handle of the object in the shards of a group; clones refer to the same object. See [the module](self).
///
/// ```
/// use squall::object::{ObjectError, Replicated, ShardedObject};
///
/// fn count<T: Replicated<Update = u64, Reply = u64>>(object: &ShardedObject<T>) -> Result<u64, ObjectError> {
///     println!("{} is in shard {}", "key", object.shard(b"key"));
///     Ok(object.update(b"key", &1)?.wait()?.replies[0])
/// }
/// ```
pub struct ShardedObject<T: Replicated> {
    shared: Arc<ShardedShared<T>>,
}

impl<T: Replicated> Clone for ShardedObject<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Replicated> std::fmt::Debug for ShardedObject<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedObject").field("own", &self.shared.own).finish_non_exhaustive()
    }
}

/// What waits for an update.
type Waiter = Box<dyn FnOnce(Result<BTreeMap<usize, PartReplies>, ObjectError>) + Send>;

/// Shared by the handles and the threads.
struct ShardedShared<T: Replicated> {
    config: Arc<GenuineConfig>,
    directory: Directory,
    link: NodeHandle,
    /// This member's shard.
    own: Option<usize>,
    feed: Arc<ShardFeed>,
    /// Locked before `gathering`.
    part: Mutex<PartState<T>>,
    gathering: Mutex<ReplyGathering<Waiter>>,
    /// Updates have been completed.
    completed: Condvar,
    sender: Mutex<MulticastSender>,
    /// The threads that ask shards of other members.
    lines: Mutex<BTreeMap<usize, Arc<Bell>>>,
    /// Why the object has ended here, if it has.
    ended: Mutex<Option<ObjectError>>,
}

impl<T: Replicated> ShardedObject<T> {
    /// Returns the number of the shard of a key, in the order of the shards' names.
    #[must_use]
    pub fn shard(&self, key: &[u8]) -> usize {
        let shards = self.shared.config.shards.len();
        shard_of_key(key, u32::try_from(shards).expect("shards are few")) as usize
    }

    /// Updates the object in `key`'s shard, as [`ShardedObject::update_many`] does.
    ///
    /// # Errors
    /// Those of that method.
    pub fn update(
        &self,
        key: &[u8],
        update: &T::Update,
    ) -> Result<Pending<ManyReplies<T::Reply>>, ObjectError> {
        self.update_many([(key, update)])
    }

    /// Updates the object in the shards of all keys, at one position: each shard applies the updates whose keys it has, in
    /// the order given. Blocks while this member's window is full. It must not be called on the thread that polls the group.
    ///
    /// # Errors
    /// [`ObjectError::TooLong`] if the updates together are longer than `message_max`, [`ObjectError::Form`] if there are none, or an
    /// error that says that the group or the object has ended.
    /// The outcome may also be [`ObjectError::StateLost`].
    pub fn update_many<'k>(
        &self,
        updates: impl IntoIterator<Item = (&'k [u8], &'k T::Update)>,
    ) -> Result<Pending<ManyReplies<T::Reply>>, ObjectError>
    where
        T::Update: 'k,
    {
        let parts = updates.into_iter().map(|(key, update)| Ok((self.shard(key), wire::encode(update)?)));
        self.submit(PartKind::Update, parts.collect::<Result<_, ObjectError>>()?)
    }

    /// Queries the object in the shards of all keys, at one position in the order of updates: the answers are of one moment, and
    /// reflect every update that was acknowledged to any caller before.
    ///
    /// # Errors
    /// Those of [`ShardedObject::update_many`].
    pub fn query_many<'k>(
        &self,
        queries: impl IntoIterator<Item = (&'k [u8], &'k T::Query)>,
    ) -> Result<Pending<ManyReplies<T::Reply>>, ObjectError>
    where
        T::Query: 'k,
    {
        let parts = queries.into_iter().map(|(key, query)| Ok((self.shard(key), wire::encode(query)?)));
        self.submit(PartKind::Query, parts.collect::<Result<_, ObjectError>>()?)
    }

    /// Queries every shard at one position; the replies are in the order of the shards. It fails when the state of any shard is
    /// lost: query the keys of the others then.
    ///
    /// # Errors
    /// Those of [`ShardedObject::update_many`].
    pub fn query_all(&self, query: &T::Query) -> Result<Pending<ManyReplies<T::Reply>>, ObjectError> {
        let bytes = wire::encode(query)?;
        let shards = 0..self.shared.config.shards.len();
        self.submit(PartKind::Query, shards.map(|shard| (shard, bytes.clone())).collect())
    }

    /// Reads this member's part: `read` gets the position up to which all updates are applied, `None` before the first one, and the
    /// part. Returns `None` if this member has no part, or waits for its state. Updates wait meanwhile, so `read` must not use the object.
    pub fn inspect<R>(&self, read: impl FnOnce(Option<GenuinePosition>, &T) -> R) -> Option<R> {
        let part = self.shared.part();
        part.machine.as_ref().map(|machine| read(part.position, &machine.0))
    }

    fn submit(
        &self,
        kind: PartKind,
        parts: Vec<(usize, Vec<u8>)>,
    ) -> Result<Pending<ManyReplies<T::Reply>>, ObjectError> {
        let shared = &self.shared;
        let order: Vec<usize> = parts.iter().map(|(shard, _)| *shard).collect();
        if order.is_empty() {
            return Err(ObjectError::Form("no key: an update or a query needs at least one".into()));
        }
        // Before it has a number, for which others would be asked.
        let part_bytes = parts.iter().map(|(_, bytes)| PART_HEADER_BYTES + bytes.len());
        let (bytes, bytes_max) = (UPDATE_HEADER_BYTES + part_bytes.sum::<usize>(), shared.config.message_max);
        if bytes > bytes_max {
            return Err(ObjectError::TooLong { bytes, bytes_max });
        }
        let set = order.iter().fold(0, |set, shard| set | 1 << shard);
        let (pending, completion) = pending::pair(false);
        let waiter: Waiter = Box::new(move |outcome| {
            completion.complete(outcome.and_then(|replies| ordered(&order, replies)))
        });
        // Updates are sent in the order of their numbers.
        let mut sender = lock(&shared.sender);
        let (number, known) = {
            let mut gathering = shared.gathering();
            while gathering.open() >= OPEN_MAX && !shared.has_ended() {
                gathering = unpoisoned(shared.completed.wait(gathering));
            }
            // Under the lock: what begins before the end is failed by it, and nothing begins after it.
            if let Some(error) = shared.end_error() {
                return Err(error);
            }
            let number = gathering.begin(set, waiter);
            (number, gathering.known())
        };
        let parts = parts.iter().map(|(shard, bytes)| UpdatePart { shard: *shard, kind, bytes });
        let bytes = ShardedUpdate::encode(number, known, parts);
        let sent = sender.send_to_blocking(set, &bytes);
        drop(sender);
        if let Err(error) = sent {
            shared.gathering().cancel(number);
            return Err(shared.explain(error));
        }
        shared.ask_for(set);
        Ok(pending)
    }
}

/// Puts the replies of shards into the order of the keys, whose shards these are.
fn ordered<R: serde::de::DeserializeOwned>(
    order: &[usize],
    replies: BTreeMap<usize, PartReplies>,
) -> Result<ManyReplies<R>, ObjectError> {
    let missing = || ObjectError::Form("a member has answered something else".into());
    let position = replies.values().next().ok_or_else(missing)?.position;
    let mut parts: BTreeMap<usize, _> =
        replies.into_iter().map(|(shard, part)| (shard, part.replies.into_iter())).collect();
    let reply = |shard: &usize| {
        let bytes = parts.get_mut(shard).and_then(Iterator::next).ok_or_else(missing)?;
        wire::decode_reply(&bytes)
    };
    Ok(ManyReplies { position, replies: order.iter().map(reply).collect::<Result<_, _>>()? })
}

impl<T: Replicated> ShardedShared<T> {
    fn part(&self) -> MutexGuard<'_, PartState<T>> {
        lock(&self.part)
    }

    fn gathering(&self) -> MutexGuard<'_, ReplyGathering<Waiter>> {
        lock(&self.gathering)
    }

    fn end_error(&self) -> Option<ObjectError> {
        lock(&self.ended).clone()
    }

    fn has_ended(&self) -> bool {
        lock(&self.ended).is_some()
    }

    fn explain(&self, error: SendError) -> ObjectError {
        match error {
            SendError::Group(error) => ObjectError::Group(error),
            other => self.end_error().unwrap_or_else(|| ObjectError::Form(other.to_string())),
        }
    }

    /// Asks all shards of a set for what is open there.
    fn ask_for(self: &Arc<Self>, set: u64) {
        // A shard may have been lost before.
        let lost = self.gathering().poll_lost();
        lost.into_iter().for_each(|outcome| self.complete(Some(outcome)));
        for shard in (0..self.config.shards.len()).filter(|shard| set >> shard & 1 == 1) {
            if self.own == Some(shard) { self.ask_own(shard) } else { self.ring(shard) }
        }
    }

    /// Wakes the thread that asks a shard; there is one from the first update on.
    fn ring(self: &Arc<Self>, shard: usize) {
        let mut lines = lock(&self.lines);
        let bell = match lines.entry(shard) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(line) => match self.start_line(shard) {
                Ok(started) => line.insert(started),
                Err(error) => {
                    return log::error!(%error, "failed to start a thread: it will be tried again");
                }
            },
        };
        bell.ring();
    }

    fn start_line(self: &Arc<Self>, shard: usize) -> io::Result<Arc<Bell>> {
        let bell = Arc::new(Bell::default());
        let worker = line::ShardLineWorker { shared: Arc::clone(self), shard, bell: Arc::clone(&bell) };
        thread::Builder::new().name("squall ask".into()).spawn(move || worker.run())?;
        Ok(bell)
    }

    /// Looks whether this member's part has applied what is open.
    fn ask_own(&self, own: usize) {
        loop {
            let asked = self.gathering().poll_ask(own);
            let Some(asked) = asked else { return };
            let part = self.part();
            self.take_own(&part.replies, own, asked.number);
        }
    }

    /// Takes the replies of this member's part, if the update is applied.
    fn take_own(&self, replies: &UpdateReplies, own: usize, number: u64) {
        let outcome = match replies.reply(self.link.node, number) {
            ReplyState::Replies(replies) => self.gathering().handle_replies(own, number, replies.clone()),
            ReplyState::Forgotten => self.gathering().handle_forgotten(own, number),
            ReplyState::NotYet => None,
        };
        self.complete(outcome);
    }

    /// The state has come, with updates in it that were applied elsewhere.
    fn ask_own_again(&self) {
        let Some(own) = self.own else { return };
        self.gathering().ask_again(own);
        self.ask_own(own);
    }

    /// A view begins, with these members in each shard.
    fn begin_view(self: &Arc<Self>, members: Vec<Vec<NodeId>>) {
        let lost = self.gathering().begin_view(members);
        lost.into_iter().for_each(|outcome| self.complete(Some(outcome)));
        let lines: Vec<usize> = lock(&self.lines).keys().copied().collect();
        lines.into_iter().chain(self.own).for_each(|shard| self.ask_for(1 << shard));
    }

    fn complete(&self, outcome: Option<(Waiter, ShardedOutcome)>) {
        let Some((waiter, outcome)) = outcome else { return };
        self.completed.notify_all();
        waiter(match outcome {
            ShardedOutcome::Replies(replies) => Ok(replies),
            ShardedOutcome::Lost(shard) => Err(ObjectError::StateLost { shard, holders: Vec::new() }),
            ShardedOutcome::Forgotten(_) => Err(ObjectError::Unknown),
        });
    }

    fn fail_all(&self, error: &ObjectError) {
        let waiters = self.gathering().end();
        self.completed.notify_all();
        waiters.into_iter().for_each(|waiter| waiter(Err(error.clone())));
    }

    /// The object cannot continue here: this member leaves its group, as if it had died, so that the others do not count on it.
    fn fail(&self, cause: &str) {
        log::error!(cause, "the object in the shards ends at this member");
        self.feed.fail(cause.into());
        self.link.waker.wake();
    }

    /// Ends the object here.
    fn end(&self, error: &ObjectError) {
        lock(&self.ended).get_or_insert_with(|| error.clone());
        self.feed.end();
        self.fail_all(error);
        lock(&self.lines).values().for_each(|bell| bell.ring());
    }
}

/// What the object needs of its group.
pub(crate) struct ShardedPlace {
    pub(crate) rank: usize,
    pub(crate) feed: Arc<ShardFeed>,
    pub(crate) sender: MulticastSender,
}

/// Starts the object at this member.
pub(crate) fn start<T: Replicated>(
    ShardedPlace { rank, feed, sender }: ShardedPlace,
    config: &Arc<Config>,
    genuine: &Arc<GenuineConfig>,
    link: &NodeHandle,
    service: &ObjectService,
    first: impl FnOnce() -> T,
) -> io::Result<ShardedObject<T>> {
    let own = genuine.shards.values().position(|ranks| ranks.contains(&rank));
    let has_state = feed.standing().has_state && own.is_some();
    let machine = has_state.then(|| TypedMachine(first()));
    let directory = Directory::of_member(config, link, SERVICE, Vec::new(), config.timeout);
    let shared = Arc::new(ShardedShared {
        config: Arc::clone(genuine),
        directory,
        link: link.clone(),
        own,
        feed,
        part: Mutex::new(PartState::new(machine, UpdateReplies::default())),
        gathering: Mutex::new(ReplyGathering::new(link.node)),
        completed: Condvar::new(),
        sender: Mutex::new(sender),
        lines: Mutex::default(),
        ended: Mutex::default(),
    });
    service.add_served(SERVICE, Arc::new(ServedPart(Arc::clone(&shared))));
    let driver = PartDriver { shared: Arc::clone(&shared) };
    thread::Builder::new().name("squall shard".into()).spawn(move || driver.run())?;
    if !has_state {
        let joiner = Arc::clone(&shared);
        thread::Builder::new().name("squall fetch".into()).spawn(move || joining::fetch(&joiner))?;
    }
    shared.feed.open();
    link.waker.wake();
    Ok(ShardedObject { shared })
}

/// The name by which members ask each other about the object: no subgroup has it.
const SERVICE: &str = "[genuine]";
/// The most updates of a member that have no reply yet.
const OPEN_MAX: usize = 1024;
