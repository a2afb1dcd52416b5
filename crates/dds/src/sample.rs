//! Samples and what is known about them (OMG DDS 1.4 §2.2.2.5.1, `SampleInfo`).

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::BitOr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A writer or a reader: the member of the group that it belongs to, and its number there.
///
/// ```
/// let id = squall_dds::EndpointId { node: 3, number: 1 };
/// assert_eq!(id.to_string(), "3.1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndpointId {
    /// The member's node in the group. Nodes are never used again.
    pub node: u32,
    /// The number of the endpoint in its participant, from 0.
    pub number: u16,
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.number)
    }
}

/// An instance of a topic: its key, as bytes. All samples of a topic without keys are of one instance.
///
/// ```
/// use squall_dds::{InstanceHandle, TopicData};
///
/// assert_eq!(InstanceHandle::of(&vec![1u8, 2, 3])?.key(), b"", "bytes have no key");
/// assert_eq!(InstanceHandle::from_key(b"a key").key(), b"a key");
/// # Ok::<(), squall_dds::DataError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceHandle(
    /// `None` if the key is empty: samples without keys count no references.
    Option<Arc<[u8]>>,
);

// Order and hash are those of the keys.
impl Borrow<[u8]> for InstanceHandle {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Hash for InstanceHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for InstanceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InstanceHandle").field(&self.key()).finish()
    }
}

impl InstanceHandle {
    /// Returns the instance with this key.
    #[must_use]
    pub fn from_key(key: &[u8]) -> Self {
        Self((!key.is_empty()).then(|| key.into()))
    }

    /// Returns the key as it is in messages.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &[u8] {
        // `memcmp` is slow with addresses where there is no memory, which empty slices mostly have.
        self.0.as_deref().unwrap_or_else(|| NO_KEY.split_at(0).0)
    }
}

/// The memory of an empty key.
static NO_KEY: [u8; 1] = [0];

/// Whether a sample has been read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleState {
    /// It was returned by an earlier read.
    Read,
    /// It was not.
    NotRead,
}

/// Whether the application has seen samples of the present life of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewState {
    /// It has not, since the instance was first written or became alive again.
    New,
    /// It has.
    NotNew,
}

/// Whether an instance is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstanceState {
    /// It has been written, and a writer has it.
    Alive,
    /// A writer has disposed of it.
    NotAliveDisposed,
    /// All its writers have unregistered it, or are gone.
    NotAliveNoWriters,
}

/// A set of states, which selects samples to read.
///
/// ```
/// use squall_dds::{InstanceState, SampleState, StateMask, ViewState};
///
/// let fresh = StateMask::NOT_READ | StateMask::ALIVE;
/// assert!(fresh.accepts(SampleState::NotRead, ViewState::New, InstanceState::Alive));
/// assert!(!fresh.accepts(SampleState::Read, ViewState::New, InstanceState::Alive));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateMask(u8);

impl StateMask {
    /// Every sample.
    pub const ANY: Self = Self(0);
    /// Samples that were read before.
    pub const READ: Self = Self(1);
    /// Samples that were not.
    pub const NOT_READ: Self = Self(2);
    /// Samples of instances that are new to the application.
    pub const NEW: Self = Self(4);
    /// Samples of other instances.
    pub const NOT_NEW: Self = Self(8);
    /// Samples of instances that are alive.
    pub const ALIVE: Self = Self(16);
    /// Samples of instances that were disposed of.
    pub const NOT_ALIVE_DISPOSED: Self = Self(32);
    /// Samples of instances without writers.
    pub const NOT_ALIVE_NO_WRITERS: Self = Self(64);

    /// Returns whether a sample is selected. Of each of the three kinds of states, a mask that names none accepts all.
    #[must_use]
    pub const fn accepts(self, sample: SampleState, view: ViewState, instance: InstanceState) -> bool {
        let sample = match sample {
            SampleState::Read => Self::READ,
            SampleState::NotRead => Self::NOT_READ,
        };
        let view = match view {
            ViewState::New => Self::NEW,
            ViewState::NotNew => Self::NOT_NEW,
        };
        let instance = match instance {
            InstanceState::Alive => Self::ALIVE,
            InstanceState::NotAliveDisposed => Self::NOT_ALIVE_DISPOSED,
            InstanceState::NotAliveNoWriters => Self::NOT_ALIVE_NO_WRITERS,
        };
        self.has(0b11, sample) && self.has(0b1100, view) && self.has(0b111_0000, instance)
    }

    const fn has(self, kind: u8, state: Self) -> bool {
        self.0 & kind == 0 || self.0 & state.0 != 0
    }
}

impl BitOr for StateMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What is known about a sample.
///
/// ```
/// # use squall_dds::{DomainParticipant, Qos, StateMask};
/// # use squall::Config;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-info-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// # let (reader, mut writer) = (participant.reader(&topic, Qos::ATOMIC)?, participant.writer(&topic, Qos::ATOMIC)?);
/// writer.write(&b"hello".to_vec())?;
/// reader.wait_for_data(std::time::Duration::from_secs(10))?;
/// let info = &reader.take(1)?[0].info;
/// assert_eq!(info.publication, writer.id());
/// assert!(info.is_valid);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SampleInfo {
    /// Whether it was read before.
    pub sample_state: SampleState,
    /// Whether its instance is new to the application.
    pub view_state: ViewState,
    /// Whether its instance is alive now.
    pub instance_state: InstanceState,
    /// How often the instance had become alive after a disposal when the sample came.
    pub disposed_generation_count: u32,
    /// How often it had become alive after it had no writers.
    pub no_writers_generation_count: u32,
    /// How many samples of the same instance follow in what was returned.
    pub sample_rank: usize,
    /// How many lives of the instance began between this sample and the last one of the same instance in what was returned.
    pub generation_rank: u32,
    /// How many began between this sample and now.
    pub absolute_generation_rank: u32,
    /// When it was written, by the clock of the writer's host.
    pub source_timestamp: SystemTime,
    /// When it arrived here.
    pub reception_timestamp: SystemTime,
    /// Its instance.
    pub instance: InstanceHandle,
    /// Its writer.
    pub publication: EndpointId,
    /// Its place in the order of the topic.
    pub position: Position,
    /// Whether it has data. If not, it reports a change of its instance's state.
    pub is_valid: bool,
}

/// The place of a sample in the order of its topic, the same at all readers, except in [`crate::Profile::Unordered`], where the order
/// is that of each writer.
///
/// ```
/// use squall_dds::Position;
///
/// assert!(Position { view: 1, sequence: 0 } > Position { view: 0, sequence: 9 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The view of the group in which it was delivered; 0 for topics that have a history, whose numbers do not begin again.
    pub view: u64,
    /// Its number there, with gaps.
    pub sequence: u64,
}

/// A sample: data, or a change of its instance's state, with what is known about it.
///
/// ```
/// fn show(sample: &squall_dds::Sample<String>) -> String {
///     match &sample.data {
///         Some(text) => text.clone(),
///         None => format!("{:?}", sample.info.instance_state),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample<T> {
    /// The data; `None` if the sample reports a change of its instance's state.
    pub data: Option<T>,
    /// What is known about it.
    pub info: SampleInfo,
}

/// Returns the time of day in nanoseconds since 1970.
///
/// Each write asks for it; [`SystemTime::now`] takes half as long again.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    match (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) => seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
        // A clock that is set to a time before 1970.
        _ => 0,
    }
}

/// Returns a duration in nanoseconds; those of more than 500 years are cut.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time at this number of nanoseconds after 1970.
pub(crate) fn system_time(nanoseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    /// It can be looked up by its key, in maps of any kind, with and without bytes.
    #[test]
    fn an_instance_is_as_its_key() {
        let keys: [&[u8]; 4] = [b"", &[0], &[0, 0], &[1]];
        let state = RandomState::new();
        for first in keys {
            let handle = InstanceHandle::from_key(first);
            assert_eq!((handle.key(), state.hash_one(&handle)), (first, state.hash_one(first)));
            for second in keys {
                assert_eq!(handle.cmp(&InstanceHandle::from_key(second)), first.cmp(second));
            }
        }
    }
}
