//! Readers whose samples are read where they are, in the window of the member that wrote them: an upcall in place of a cache
//! (Spindle §3.5 and §4.6; OMG DDS 1.4 has copies or loans in its place).
//!
//! The topic's thread makes the upcall for each change in the order of the topic, and without the lock of the topic's readers, so an upcall
//! may use all of the API. While it runs nothing else of the subgroup is taken, and once the window is full its writers wait.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use squall_fabric::mutex::lock;

use crate::cache::ChangeKind;
use crate::data::TopicData;
use crate::error::DataError;
use crate::reader_core::ArrivedChange;
use crate::sample::{EndpointId, InstanceState, Position, system_time};

/// A sample that is valid during the upcall of a reader in place: see [`crate::DomainParticipant::reader_in_place`].
///
/// ```
/// # use std::sync::mpsc;
/// # use std::time::Duration;
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-in-place-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("pixels", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("pixels")?;
/// let (seen, sums) = mpsc::channel();
/// let _reader = participant.reader_in_place(&topic, Qos::ATOMIC, move |sample| {
///     let sum: u64 = sample.bytes.unwrap_or_default().iter().map(|byte| u64::from(*byte)).sum();
///     let _ = seen.send(sum); // the channel's other end may be gone
/// })?;
/// let writer = participant.writer(&topic, Qos::ATOMIC)?;
/// writer.write_in_place(1000, |pixels| pixels.fill(2))?;
/// assert_eq!(sums.recv_timeout(Duration::from_secs(10))?, 2000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct InPlaceSample<'a, T> {
    /// The sample as it is in the message; `None` if it says that its writer has disposed of the instance, or unregistered it.
    pub bytes: Option<&'a [u8]>,
    /// The key of its instance as it is in the message; empty if the topic has no keys.
    pub key: &'a [u8],
    /// What its writer has done: written, disposed ([`InstanceState::NotAliveDisposed`]), or unregistered
    /// ([`InstanceState::NotAliveNoWriters`], although there may be other writers). No sample reports that a writer is gone.
    pub instance_state: InstanceState,
    /// Its writer.
    pub publication: EndpointId,
    /// Its place in the order of the topic.
    pub position: Position,
    /// When it was written, by the clock of the writer's host.
    pub source_timestamp: SystemTime,
    of: PhantomData<fn() -> T>,
}

impl<T: TopicData> InPlaceSample<'_, T> {
    /// Returns the value, if it has one.
    ///
    /// # Errors
    /// [`DataError`] if the bytes are no value of the type.
    pub fn decode(&self) -> Result<Option<T>, DataError> {
        self.bytes.map(T::from_sample).transpose()
    }
}

/// The upcall of a reader.
#[derive(Clone)]
pub(crate) struct ReaderUpcall(Arc<Mutex<Option<Upcall>>>);

type Upcall = Box<dyn FnMut(&ArrivedChange<'_>, Position) + Send>;

impl ReaderUpcall {
    pub(crate) fn new<T>(mut upcall: impl FnMut(InPlaceSample<'_, T>) + Send + 'static) -> Self {
        let upcall = move |change: &ArrivedChange<'_>, position: Position| {
            let (header, bytes) = (&change.header, change.data);
            let (bytes, instance_state) = match header.kind {
                ChangeKind::Data => (Some(bytes), InstanceState::Alive),
                ChangeKind::Dispose => (None, InstanceState::NotAliveDisposed),
                ChangeKind::Unregister => (None, InstanceState::NotAliveNoWriters),
            };
            upcall(InPlaceSample {
                bytes,
                key: header.key,
                instance_state,
                publication: header.writer,
                position,
                source_timestamp: system_time(header.source_time),
                of: PhantomData,
            });
        };
        Self(Arc::new(Mutex::new(Some(Box::new(upcall)))))
    }

    /// Makes the upcall, unless an earlier one has panicked: the topic's thread has to continue, or the group would wait for it.
    pub(crate) fn call(&self, change: &ArrivedChange<'_>, position: Position) {
        let mut upcall = lock(&self.0);
        if let Some(call) = &mut *upcall
            && catch_unwind(AssertUnwindSafe(|| call(change, position))).is_err()
        {
            *upcall = None;
        }
    }
}

impl fmt::Debug for ReaderUpcall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderUpcall").finish_non_exhaustive()
    }
}
