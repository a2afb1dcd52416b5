//! The state of an object as bytes, before it is written (Derecho §3.2).

use std::fmt;
use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

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
/// written and read in parts. Not fuzzed: the type is the application's.
///
/// # Errors
/// The source's error, or an error that the bytes are not a state.
pub fn restored<T: DeserializeOwned>(source: &mut dyn Read) -> io::Result<T> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

const BUFFER_BYTES: usize = 64 << 10;
