//! Subscribers: readers of several topics that are in one order (OMG DDS 1.4 §2.2.2.5.2, access with the scope of groups).

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use squall_fabric::mutex::lock;

use crate::data::TopicData;
use crate::error::{EntityError, ReadError};
use crate::gate::{GateHold, OrderGate};
use crate::participant::{DomainParticipant, Topic};
use crate::port::TopicPort;
use crate::qos::{PresentationScope, Qos};
use crate::reader::DataReader;
use crate::sample::{EndpointId, Position, Sample};

/// Readers of topics with PRESENTATION [`PresentationScope::Group`], whose samples are in one order over all of them. All have to be in the
/// same one: topics of profile [`crate::Profile::Atomic`], or kept ones.
///
/// [`crate::TopicPublisher`] has an example.
pub struct TopicSubscriber<'p> {
    participant: &'p DomainParticipant,
    readers: Mutex<GroupedReaders>,
}

/// The readers of a subscriber, those that have been dropped included.
#[derive(Clone, Default)]
struct GroupedReaders {
    gate: Option<Arc<OrderGate>>,
    /// The ports and numbers.
    readers: Vec<(Arc<TopicPort>, u16)>,
}

/// Access to a subscriber's readers while nothing comes to them: the samples that are there are a prefix of the order, and sets are there as a
/// whole. What comes waits until this is dropped, in the end the writers; so it should be short. A second access to topics of the same order waits
/// for the first one to be dropped: a thread that has one must not begin another.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Presentation, Qos, TopicStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-access-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// let qos = Qos { presentation: Presentation::GROUP_COHERENT, ..Qos::KEPT };
/// let topic = participant.create_topic::<Vec<u8>>("orders", qos.clone())?;
/// let subscriber = participant.subscriber();
/// let reader = subscriber.reader(&topic, qos)?;
/// let access = subscriber.begin_access();
/// assert!(access.readers().is_empty());
/// assert!(access.take(&reader, 9)?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// The participant cannot end while it is there:
///
/// ```compile_fail,E0505
/// # fn end(participant: squall_dds::DomainParticipant) {
/// let subscriber = participant.subscriber();
/// let access = subscriber.begin_access();
/// drop(participant);
/// drop(access);
/// # }
/// ```
pub struct GroupAccess<'s> {
    readers: Vec<(Arc<TopicPort>, u16)>,
    /// Samples from here on are not shown: a reader has not got all before them.
    limit: Option<Position>,
    _hold: Option<GateHold>,
    of: PhantomData<&'s DomainParticipant>,
}

impl DomainParticipant {
    /// Creates a subscriber.
    #[must_use]
    pub fn subscriber(&self) -> TopicSubscriber<'_> {
        TopicSubscriber { participant: self, readers: Mutex::default() }
    }
}

impl TopicSubscriber<'_> {
    /// Creates a reader, as [`DomainParticipant::reader`] does, of a topic that is in one order with others. It is read through
    /// [`TopicSubscriber::begin_access`] only.
    ///
    /// # Errors
    /// [`EntityError::NotGrouped`] if the topic or the policies do not have the scope of groups; [`EntityError::OtherOrder`] if the
    /// subscriber has a reader of a topic that is not in one order with it; or the errors of that method.
    pub fn reader<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataReader<T>, EntityError> {
        let gate = topic.port.gate.as_ref().filter(|_| qos.presentation.scope == PresentationScope::Group);
        let gate = gate.ok_or_else(|| EntityError::NotGrouped(topic.name().into()))?;
        let mut present = lock(&self.readers);
        if !Arc::ptr_eq(present.gate.get_or_insert_with(|| Arc::clone(gate)), gate) {
            return Err(EntityError::OtherOrder(topic.name().into()));
        }
        let reader = self.participant.member.open_reader(topic, qos)?;
        present.readers.push((Arc::clone(reader.port()), reader.id().number));
        Ok(reader)
    }

    /// Begins an access (`begin_access`): nothing comes to the readers until it is dropped (`end_access`). Waits while
    /// there is another access to topics of the same order, without end if that is this thread's.
    #[must_use]
    pub fn begin_access(&self) -> GroupAccess<'_> {
        let GroupedReaders { gate, readers } = lock(&self.readers).clone();
        let hold = gate.map(|gate| gate.hold());
        let behind = |(port, number): &(Arc<TopicPort>, u16)| port.state().readers.get(number)?.behind_at;
        let limit = readers.iter().filter_map(behind).min();
        let limit = limit.map(|sequence| Position { view: 0, sequence });
        GroupAccess { readers, limit, _hold: hold, of: PhantomData }
    }
}

impl GroupAccess<'_> {
    /// Returns the readers in the order in which their samples are to be taken, a reader as often as it has samples that were not read
    /// (`get_datareaders`).
    #[must_use]
    pub fn readers(&self) -> Vec<EndpointId> {
        let mut places = Vec::new();
        for (port, number) in &self.readers {
            if let Some(reader) = port.state().readers.get(number) {
                places.extend(reader.cache.unread_places(self.limit).map(|place| (place, reader.id)));
            }
        }
        places.sort();
        places.into_iter().map(|(_, reader)| reader).collect()
    }

    /// Takes at most `samples_max` samples of a reader of the subscriber, oldest first.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn take<T: TopicData>(
        &self,
        reader: &DataReader<T>,
        samples_max: usize,
    ) -> Result<Vec<Sample<T>>, ReadError> {
        reader.select_before(samples_max, self.limit, true)
    }

    /// Reads at most `samples_max` samples of a reader of the subscriber, oldest first, and leaves them.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn read<T: TopicData>(
        &self,
        reader: &DataReader<T>,
        samples_max: usize,
    ) -> Result<Vec<Sample<T>>, ReadError> {
        reader.select_before(samples_max, self.limit, false)
    }
}

impl fmt::Debug for TopicSubscriber<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicSubscriber").field("readers", &lock(&self.readers).readers.len()).finish()
    }
}

impl fmt::Debug for GroupAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupAccess").field("limit", &self.limit).finish_non_exhaustive()
    }
}
