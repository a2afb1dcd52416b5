//! The application's type, and how its state is written and read (Derecho app. A).

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;
use squall_protocols::replica::Machine;

use crate::slot::Snapshot;

/// A type whose objects are replicated. All members must run the same code: the effect and the reply of `apply` must
/// be a function of the state and the update alone, never of time, randomness or the member.
///
/// ```
/// use squall::object::{Replicated, Snapshot, restored};
///
/// #[derive(Default)]
/// struct Count(u64);
///
/// impl Replicated for Count {
///     type Update = u64;
///     type Query = ();
///     type Reply = u64;
///     fn apply(&mut self, more: u64) -> u64 {
///         self.0 += more;
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
/// let mut bytes = Vec::new();
/// Count(7).snapshot().write(&mut bytes).unwrap();
/// assert_eq!(Count::restore(&mut bytes.as_slice()).unwrap().0, 7);
/// ```
pub trait Replicated: Sized + Send + 'static {
    /// An operation that changes it.
    type Update: Serialize + DeserializeOwned;
    /// An operation that reads it.
    type Query: Serialize + DeserializeOwned;
    /// The reply to an update or a query.
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// Applies an update.
    fn apply(&mut self, update: Self::Update) -> Self::Reply;

    /// Answers a query.
    fn query(&self, query: Self::Query) -> Self::Reply;

    /// Returns the state as it is now, to be written by another thread while updates continue. It should return at
    /// once, because the shard's updates wait at this member. A persistent map, or parts behind [`std::sync::Arc`],
    /// can be cloned quickly.
    fn snapshot(&self) -> Snapshot;

    /// Reads a state that [`Snapshot`] has written.
    ///
    /// # Errors
    /// The source's error, or an error that the bytes are not a state. Another member is asked then.
    fn restore(source: &mut dyn Read) -> io::Result<Self>;
}

/// The type as the core sees it. Not fuzzed: updates and queries are of the application's types.
#[derive(Debug)]
pub(super) struct TypedMachine<T>(pub(super) T);

impl<T: Replicated> Machine for TypedMachine<T> {
    /// `None` for bytes that are not an update of this type, as all members find in the same way.
    type Reply = Option<T::Reply>;
    type Snapshot = Snapshot;

    fn apply(&mut self, update: &[u8]) -> Self::Reply {
        postcard::from_bytes(update).ok().map(|update| self.0.apply(update))
    }

    fn encode(reply: &Self::Reply) -> Vec<u8> {
        let written = reply.as_ref().and_then(|reply| postcard::to_stdvec(reply).ok());
        // The first byte says whether there is a reply at all.
        written.map_or_else(|| vec![0], |bytes| [&[1], &bytes[..]].concat())
    }

    fn query(&self, query: &[u8]) -> Vec<u8> {
        Self::encode(&postcard::from_bytes(query).ok().map(|query| self.0.query(query)))
    }

    fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }
}
