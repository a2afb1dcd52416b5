//! Readers of topics (OMG DDS 1.4 §2.2.2.5.3).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{SampleBytes, Selection};
use crate::data::TopicData;
use crate::error::{DataError, ReadError};
use crate::port::TopicPort;
use crate::qos::{PresentationScope, Qos};
use crate::reader_core::ReaderCore;
use crate::sample::{EndpointId, InstanceHandle, Position, Sample, StateMask, now_ns};
use crate::status::{
    CountStatus, IncompatibleQosStatus, MatchedPeer, MatchedStatus, SampleRejectedStatus, StatusKind,
};
use crate::wait_set::{Condition, ConditionKind};
use crate::wire::EndpointAnnouncement;

/// A reader of a topic. It holds the samples that came until they are taken, as far as its policies say; dropping it ends it.
///
/// A sample is a copy of its own: it remains valid as long as the application wants. Bytes that are no value of `T` are left out,
/// and count in [`DataReader::sample_lost`].
///
/// ```
/// use std::time::Duration;
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-reader-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).topic("news", Qos::KEPT).join()?;
/// let topic = participant.topic::<Vec<u8>>("news")?;
/// let writer = participant.writer(&topic, Qos { max_blocking_time: Duration::from_secs(10), ..Qos::KEPT })?;
/// writer.write(&vec![1])?;
/// // The topic is kept, so a reader that comes later gets what was written before.
/// let reader = participant.reader(&topic, Qos::KEPT)?;
/// reader.wait_for_historical_data(Duration::from_secs(10))?;
/// assert_eq!(reader.read(10)?.len(), 1);
/// assert_eq!(reader.take(10)?.len(), 1);
/// assert_eq!(reader.take(10)?.len(), 0);
/// # Ok(())
/// # }
/// ```
pub struct DataReader<T> {
    port: Arc<TopicPort>,
    announcement: EndpointAnnouncement,
    of: PhantomData<fn() -> T>,
}

impl<T: TopicData> DataReader<T> {
    /// Returns at most `samples_max` samples, oldest first, and leaves them.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn read(&self, samples_max: usize) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, ..ALL })
    }

    /// Reads or takes samples before a position, during an access to a subscriber's readers.
    pub(crate) fn select_before(
        &self,
        samples_max: usize,
        before: Option<Position>,
        takes: bool,
    ) -> Result<Vec<Sample<T>>, ReadError> {
        self.select_in_access(Selection { samples_max, takes, before, ..ALL })
    }

    /// Takes at most `samples_max` samples, oldest first.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn take(&self, samples_max: usize) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, takes: true, ..ALL })
    }

    /// Takes the next sample that was not read before.
    ///
    /// # Errors
    /// [`ReadError`] if there is none, nor will be.
    pub fn take_next_sample(&self) -> Result<Option<Sample<T>>, ReadError> {
        let next = Selection { samples_max: 1, states: StateMask::NOT_READ, takes: true, ..ALL };
        Ok(self.select(next)?.pop())
    }

    /// Reads samples in these states, as [`DataReader::read`] does.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn read_states(&self, samples_max: usize, states: StateMask) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, states, ..ALL })
    }

    /// Takes samples in these states, as [`DataReader::take`] does.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn take_states(&self, samples_max: usize, states: StateMask) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, states, takes: true, ..ALL })
    }

    /// Reads samples of an instance, as [`DataReader::read`] does.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn read_instance(
        &self,
        samples_max: usize,
        instance: &InstanceHandle,
    ) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, instance: Some(instance), ..ALL })
    }

    /// Takes samples of an instance, as [`DataReader::take`] does.
    ///
    /// # Errors
    /// [`ReadError`] if there are none, nor will be.
    pub fn take_instance(
        &self,
        samples_max: usize,
        instance: &InstanceHandle,
    ) -> Result<Vec<Sample<T>>, ReadError> {
        self.select(Selection { samples_max, instance: Some(instance), takes: true, ..ALL })
    }

    fn select(&self, selection: Selection<'_>) -> Result<Vec<Sample<T>>, ReadError> {
        if self.announcement.qos.presentation.scope == PresentationScope::Group {
            return Err(ReadError::NeedsAccess);
        }
        self.select_in_access(selection)
    }

    fn select_in_access(&self, selection: Selection<'_>) -> Result<Vec<Sample<T>>, ReadError> {
        let mut state = self.port.state();
        let end = state.end.clone();
        let found = self.core(&mut state.readers).cache.select(selection, now_ns());
        drop(state);
        if selection.takes && !found.is_empty() && !self.port.outlet.keeps() {
            // The topic's thread may wait for space.
            self.port.bell.ring();
        }
        // Samples may also have expired, which makes space, too.
        let bytes = found.iter().filter_map(|sample| sample.data.as_ref()).map(|data| data.len()).sum();
        self.port.outlet.note_taken(found.len(), bytes);
        // Into the same memory, if a value takes no more than its bytes.
        let samples = found.into_iter().filter_map(|Sample { data, info }| {
            let data = data.map(value_of).transpose();
            data.inspect_err(|_| self.with(|reader| reader.lost.add(1)))
                .ok()
                .map(|data| Sample { data, info })
        });
        let samples: Vec<Sample<T>> = samples.collect();
        match end {
            Some(end) if samples.is_empty() && !self.has(StateMask::ANY) => {
                Err(end.map_or(ReadError::Left, ReadError::Group))
            }
            _ => Ok(samples),
        }
    }

    /// Waits until there are samples that were not read.
    ///
    /// # Errors
    /// [`ReadError::Timeout`]; or another error if nothing more comes.
    pub fn wait_for_data(&self, timeout: Duration) -> Result<(), ReadError> {
        self.wait(timeout, |reader| reader.cache.has_unread())
    }

    /// Waits until everything that the topic keeps, and that was written before the reader came, can be read. If the reader has less
    /// space than that (RESOURCE_LIMITS), it has to be taken meanwhile. Topics that keep nothing have no such samples.
    ///
    /// # Errors
    /// [`ReadError::Timeout`]; [`ReadError::ReaderFull`] if there was no space at the end of that time; or another error if nothing more
    /// comes.
    pub fn wait_for_historical_data(&self, timeout: Duration) -> Result<(), ReadError> {
        self.wait(timeout, |reader| reader.has_history).map_err(|error| {
            let held = self.with(|reader| reader.is_full.then(|| reader.cache.data_count()));
            held.filter(|_| matches!(error, ReadError::Timeout(_))).map_or(error, ReadError::ReaderFull)
        })
    }

    fn wait(&self, timeout: Duration, is_so: impl Fn(&ReaderCore) -> bool) -> Result<(), ReadError> {
        let outcome = self.port.changed.wait_for(timeout, || {
            let mut state = self.port.state();
            let end = state.end.clone();
            match end {
                _ if is_so(self.core(&mut state.readers)) => Some(Ok(())),
                Some(end) => Some(Err(end.map_or(ReadError::Left, ReadError::Group))),
                None => None,
            }
        });
        outcome.unwrap_or(Err(ReadError::Timeout(timeout)))
    }

    /// Returns whether there is a sample in one of these states.
    #[must_use]
    pub fn has(&self, states: StateMask) -> bool {
        self.core(&mut self.port.state().readers).cache.has(states)
    }
}

impl<T> DataReader<T> {
    pub(crate) const fn new(port: Arc<TopicPort>, announcement: EndpointAnnouncement) -> Self {
        Self { port, announcement, of: PhantomData }
    }

    fn core<'a>(&self, readers: &'a mut std::collections::BTreeMap<u16, ReaderCore>) -> &'a mut ReaderCore {
        readers.get_mut(&self.announcement.id.number).expect("a reader is open until it is dropped")
    }

    fn with<R>(&self, act: impl FnOnce(&mut ReaderCore) -> R) -> R {
        act(self.core(&mut self.port.state().readers))
    }

    /// Returns the reader's number in the domain.
    #[must_use]
    pub const fn id(&self) -> EndpointId {
        self.announcement.id
    }

    /// Returns the policies.
    #[must_use]
    pub const fn qos(&self) -> &Qos {
        &self.announcement.qos
    }

    /// Returns SUBSCRIPTION_MATCHED: how many writers match.
    #[must_use]
    pub fn subscription_matched(&self) -> MatchedStatus {
        self.with(|reader| reader.peers.matched.report())
    }

    /// Returns REQUESTED_INCOMPATIBLE_QOS: how many writers offer less than this reader requests.
    #[must_use]
    pub fn requested_incompatible_qos(&self) -> IncompatibleQosStatus {
        self.with(|reader| reader.peers.incompatible.report())
    }

    /// Returns INCONSISTENT_TOPIC: how many writers have a type with another name.
    #[must_use]
    pub fn inconsistent_topic(&self) -> CountStatus {
        self.with(|reader| reader.peers.inconsistent.report())
    }

    /// Returns SAMPLE_LOST: samples that a short history replaced before they came here, and bytes that are no sample.
    #[must_use]
    pub fn sample_lost(&self) -> CountStatus {
        self.with(|reader| reader.lost.report())
    }

    /// Returns SAMPLE_REJECTED: samples for which this reader had no space.
    #[must_use]
    pub fn sample_rejected(&self) -> SampleRejectedStatus {
        self.with(|reader| reader.rejected.report())
    }

    /// Returns the writers that match now.
    #[must_use]
    pub fn matched_publications(&self) -> Vec<MatchedPeer> {
        self.with(|reader| reader.peers.present())
    }

    /// Returns the condition that there is a sample in one of these states.
    #[must_use]
    pub fn read_condition(&self, states: StateMask) -> Condition {
        self.condition(ConditionKind::Read(states))
    }

    /// Returns the condition that a status has changed since it was asked for last.
    #[must_use]
    pub fn status_condition(&self, kind: StatusKind) -> Condition {
        self.condition(ConditionKind::ReaderStatus(kind))
    }

    fn condition(&self, kind: ConditionKind) -> Condition {
        Condition::new(Arc::clone(&self.port), self.announcement.id.number, kind)
    }

    pub(crate) fn status_has_changed(&self, kind: StatusKind) -> bool {
        self.with(|reader| reader.has_changed(kind))
    }

    pub(crate) const fn port(&self) -> &Arc<TopicPort> {
        &self.port
    }
}

impl<T> fmt::Debug for DataReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataReader").field("topic", &self.port.name).field("id", &self.id()).finish()
    }
}

impl<T> Drop for DataReader<T> {
    fn drop(&mut self) {
        self.port.close(&self.announcement);
    }
}

/// Returns the value of a sample's bytes.
pub(crate) fn value_of<T: TopicData>(bytes: SampleBytes) -> Result<T, DataError> {
    match bytes {
        SampleBytes::Own(bytes) => T::from_owned(bytes),
        SampleBytes::Shared(bytes) => T::from_shared(bytes),
    }
}

/// Everything, left where it is.
const ALL: Selection<'static> =
    Selection { samples_max: usize::MAX, states: StateMask::ANY, instance: None, takes: false, before: None };
