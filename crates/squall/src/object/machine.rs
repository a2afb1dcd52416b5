//! The application's type, and how its state is written and read (Derecho app. A).

use std::fmt;
use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use squall_protocols::replica::Machine;

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

/// Writes a snapshot.
type Writing = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// A state that has not been written yet.
///
/// ```
/// use squall::object::{Snapshot, restored};
///
/// # fn main() -> std::io::Result<()> {
/// let mut bytes = Vec::new();
/// Snapshot::of(vec![1u64, 2]).write(&mut bytes)?;
/// assert_eq!(restored::<Vec<u64>>(&mut bytes.as_slice())?, [1, 2]);
///
/// // In parts, for a state that should not be in memory twice:
/// let large = Snapshot::new(|sink| (0..1000u64).try_for_each(|number| sink.write_all(&number.to_le_bytes())));
/// assert_eq!(large.with_bytes(8000).bytes(), Some(8000));
/// # Ok(())
/// # }
/// ```
pub struct Snapshot {
    bytes: Option<u64>,
    write: Writing,
}

impl Snapshot {
    /// Returns a state that `write` writes, in parts of any size, so that it need not be in memory twice.
    pub fn new(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Self {
        Self { bytes: None, write: Box::new(write) }
    }

    /// Returns a state that is written by serialising `state`; [`restored`] reads it.
    pub fn of(state: impl Serialize + Send + 'static) -> Self {
        Self::new(move |sink| {
            // This turns many small writes into few chunks.
            let mut sink = io::BufWriter::with_capacity(BUFFER_BYTES, sink);
            postcard::to_io(&state, &mut sink).map_err(io::Error::other)?;
            sink.flush()
        })
    }

    /// Sets the number of bytes that it will have, so that progress can be shown.
    #[must_use]
    pub const fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Returns the number of bytes that it will have, if that is known.
    #[must_use]
    pub const fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Writes it.
    ///
    /// # Errors
    /// The sink's error.
    pub fn write(self, sink: &mut dyn Write) -> io::Result<()> {
        (self.write)(sink)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Reads a state that [`Snapshot::of`] has written. It is in memory twice for a moment; large states are better
/// written and read in parts. Not fuzzed: the type is the application's, like those of updates and queries below.
///
/// # Errors
/// The source's error, or an error that the bytes are not a state.
pub fn restored<T: DeserializeOwned>(source: &mut dyn Read) -> io::Result<T> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

const BUFFER_BYTES: usize = 64 << 10;

/// The type as the core sees it.
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
