//! Writers of topics (OMG DDS 1.4 §2.2.2.4.2).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use squall::Payload;

use crate::cache::ChangeKind;
use crate::data::TopicData;
use crate::error::WriteError;
use crate::peers::PeerTable;
use crate::pending_write::PendingWrite;
use crate::port::TopicPort;
use crate::qos::Qos;
use crate::sample::{EndpointId, InstanceHandle, now_ns};
use crate::set::SetSlot;
use crate::status::{CountStatus, IncompatibleQosStatus, MatchedPeer, MatchedStatus, StatusKind};
use crate::wait_set::{Condition, ConditionKind};
use crate::wire::{ChangeHeader, EndpointAnnouncement};

/// A writer of a topic; dropping it ends it. It may be used from several threads.
///
/// In topics that keep nothing, a write returns when the sample is in this member's window; others return when all members have
/// the sample and it is in the history, if the topic is logged also on the disks. [`DataWriter::write_async`] does not wait for that, so that
/// many samples may be on their way.
///
/// ```
/// # use std::time::Duration;
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-writer-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("pixels", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("pixels")?;
/// let writer = participant.writer(&topic, Qos::ATOMIC)?;
/// writer.write(&vec![1, 2, 3])?;
/// // Bytes can be written where the other members read them.
/// writer.write_in_place(4096, |pixels| pixels.fill(0x80))?;
/// writer.wait_for_acknowledgments(Duration::from_secs(10))?;
/// # Ok(())
/// # }
/// ```
pub struct DataWriter<T> {
    port: Arc<TopicPort>,
    announcement: EndpointAnnouncement,
    /// Of the publisher, if a publisher has created it.
    sets: Option<Arc<SetSlot>>,
    of: PhantomData<fn(T)>,
}

impl<T: TopicData> DataWriter<T> {
    /// Writes a sample. Waits for space, at most the `max_blocking_time` of the policies. In topics that keep samples this is the time for
    /// the outcome, too, and the write may also wait for this member's window.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn write(&self, sample: &T) -> Result<(), WriteError> {
        let (key, bytes) = (sample.key_bytes()?, sample.to_sample()?);
        self.send(ChangeKind::Data, &key, bytes.len(), |data| data.put(&bytes))
    }

    /// Writes a sample as [`DataWriter::write`] does, but returns as soon as it is on its way: a writer of a topic that keeps samples may have
    /// as many under way as this member's window holds. They are in the history in the order in which one thread wrote them. The
    /// outcome of each is known by what is returned, and [`DataWriter::wait_for_acknowledgments`] waits for all of them. In topics that
    /// keep nothing, and in a coherent set, it is the same as [`DataWriter::write`].
    ///
    /// # Errors
    /// [`WriteError`], with what to do next; nothing was written then.
    pub fn write_async(&self, sample: &T) -> Result<PendingWrite, WriteError> {
        let (key, bytes) = (sample.key_bytes()?, sample.to_sample()?);
        self.begin(ChangeKind::Data, &key, bytes.len(), |data| data.put(&bytes))
    }

    /// Returns the instance of a sample. Nothing has to be sent for that: an instance exists for readers from its first sample on.
    ///
    /// # Errors
    /// [`WriteError::Data`] if its key cannot be serialised.
    pub fn register_instance(&self, sample: &T) -> Result<InstanceHandle, WriteError> {
        Ok(InstanceHandle::of(sample)?)
    }

    /// Disposes of the instance of a sample: it does not exist any more, until it is written again.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn dispose(&self, sample: &T) -> Result<(), WriteError> {
        self.send(ChangeKind::Dispose, &sample.key_bytes()?, 0, |_| ())
    }

    /// Says that this writer does not write the instance of a sample any more; disposes of it before, unless
    /// `autodispose_unregistered_instances` is `false`.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn unregister_instance(&self, sample: &T) -> Result<(), WriteError> {
        if self.qos().autodispose_unregistered_instances {
            self.dispose(sample)?;
        }
        self.send(ChangeKind::Unregister, &sample.key_bytes()?, 0, |_| ())
    }
}

impl DataWriter<Vec<u8>> {
    /// Writes a sample of `length` bytes, all zeros at first, that `fill` writes: in this member's window, where members on the same host
    /// read it, or into a buffer if the topic keeps samples. `fill` must not write to the topic itself.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn write_in_place(&self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), WriteError> {
        self.write_payload(length, |data| fill(data.zeros(length)))
    }

    /// Writes a sample as [`DataWriter::write_in_place`] does, but returns as soon as it is on its way: see [`DataWriter::write_async`].
    /// `fill` writes in this member's window in all topics, unless the sample belongs to a coherent set.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next; nothing was written then.
    pub fn write_in_place_async(
        &self,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<PendingWrite, WriteError> {
        self.write_payload_async(length, |data| fill(data.zeros(length)))
    }

    /// Writes a sample of `length` bytes that `fill` writes from its beginning to its end, where [`DataWriter::write_in_place`] does. The
    /// memory is not cleared before, so that each byte is stored once. Bytes that `fill` leaves out become zeros.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use squall::Config;
    /// # use squall_dds::{DomainParticipant, Qos};
    /// # let config = Config::local(&format!("doc-payload-{}", std::process::id()), 1);
    /// # let participant = DomainParticipant::builder(config).topic("rows", Qos::ATOMIC).join()?;
    /// # let topic = participant.topic::<Vec<u8>>("rows")?;
    /// # let (reader, writer) = (participant.reader(&topic, Qos::ATOMIC)?, participant.writer(&topic, Qos::ATOMIC)?);
    /// writer.write_payload(8, |row| {
    ///     row.put(b"0123");
    ///     row.put_repeated(b'-', 2);
    /// })?;
    /// reader.wait_for_data(Duration::from_secs(10))?;
    /// assert_eq!(reader.take(1)?[0].data.as_deref(), Some(&b"0123--\0\0"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    ///
    /// # Panics
    /// If `fill` writes more than `length` bytes; nothing is sent then.
    pub fn write_payload(
        &self,
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), WriteError> {
        self.send(ChangeKind::Data, b"", length, fill)
    }

    /// Writes a sample as [`DataWriter::write_payload`] does, but returns as soon as it is on its way: see [`DataWriter::write_async`].
    ///
    /// # Errors
    /// [`WriteError`], with what to do next; nothing was written then.
    ///
    /// # Panics
    /// If `fill` writes more than `length` bytes; nothing is sent then.
    pub fn write_payload_async(
        &self,
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Result<PendingWrite, WriteError> {
        self.begin(ChangeKind::Data, b"", length, fill)
    }
}

impl<T> DataWriter<T> {
    pub(crate) const fn new(port: Arc<TopicPort>, announcement: EndpointAnnouncement) -> Self {
        Self { port, announcement, sets: None, of: PhantomData }
    }

    /// Returns the writer, whose changes belong to open sets.
    pub(crate) fn with_sets(mut self, sets: Arc<SetSlot>) -> Self {
        self.sets = Some(sets);
        self
    }

    /// Writes a change of which key and data are known as bytes.
    pub(crate) fn write_change(&self, kind: ChangeKind, key: &[u8], data: &[u8]) -> Result<(), WriteError> {
        self.send(kind, key, data.len(), |space| space.put(data))
    }

    /// Returns the length of the topic's longest message, if it keeps nothing.
    pub(crate) fn length_max(&self) -> usize {
        self.port.outlet.message_max()
    }

    /// Returns how many messages this participant has sent in what carries the topic.
    pub(crate) fn sent(&self) -> u64 {
        self.port.outlet.sent()
    }

    /// Waits until the first `sent` of these messages were delivered at all members.
    pub(crate) fn wait_for_outcome(&self, sent: u64, timeout: Duration) -> Result<(), WriteError> {
        self.port.outlet.wait_for_outcome(sent, timeout)
    }

    fn send(
        &self,
        kind: ChangeKind,
        key: &[u8],
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), WriteError> {
        let (outlet, patience) = (&self.port.outlet, self.qos().max_blocking_time);
        self.put(kind, key, length, fill, (), |header, fill| outlet.write(header, length, fill, patience))
    }

    fn begin(
        &self,
        kind: ChangeKind,
        key: &[u8],
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> Result<PendingWrite, WriteError> {
        let (outlet, patience) = (&self.port.outlet, self.qos().max_blocking_time);
        let begin = |header: &ChangeHeader<'_>, fill: &mut dyn FnMut(&mut Payload<'_>)| {
            outlet.begin_write(header, length, fill, patience)
        };
        self.put(kind, key, length, fill, PendingWrite::done(), begin)
    }

    /// Adds a change to the open set, and returns `added`; if there is none, writes it by `write`.
    fn put<R>(
        &self,
        kind: ChangeKind,
        key: &[u8],
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
        added: R,
        write: impl FnOnce(&ChangeHeader<'_>, &mut dyn FnMut(&mut Payload<'_>)) -> Result<R, WriteError>,
    ) -> Result<R, WriteError> {
        let topic = self.port.outlet.topic();
        let header = ChangeHeader { kind, topic, writer: self.id(), source_time: now_ns(), key };
        let Some(sets) = self.sets.as_ref().filter(|sets| sets.is_open()) else {
            let mut fill = Some(fill);
            return write(&header, &mut |space| fill.take().into_iter().for_each(|fill| fill(space)));
        };
        let mut change = vec![0; header.length_with(length)];
        header.put(&mut Payload::over(&mut change), fill);
        if sets.add(&self.port, self.qos(), &change)? {
            return Ok(added);
        }
        // It has been committed meanwhile.
        let (_, data) = change.split_at(change.len() - length);
        write(&header, &mut |space| space.put(data))
    }

    /// Waits until everything that this participant has written in the topic was delivered at all members: it is handed to their readers,
    /// or waits for these alone.
    ///
    /// # Errors
    /// [`WriteError::Timeout`]; [`WriteError::Group`] if the group has ended.
    pub fn wait_for_acknowledgments(&self, timeout: Duration) -> Result<(), WriteError> {
        self.port.outlet.drain(timeout, || self.port.state().end.clone().flatten())
    }

    /// Returns the writer's number in the domain.
    #[must_use]
    pub const fn id(&self) -> EndpointId {
        self.announcement.id
    }

    /// Returns the policies.
    #[must_use]
    pub const fn qos(&self) -> &Qos {
        &self.announcement.qos
    }

    fn with<R>(&self, act: impl FnOnce(&mut PeerTable) -> R) -> R {
        let mut state = self.port.state();
        act(state.writers.get_mut(&self.id().number).expect("a writer is open until it is dropped"))
    }

    /// Returns PUBLICATION_MATCHED: how many readers match.
    #[must_use]
    pub fn publication_matched(&self) -> MatchedStatus {
        self.with(|peers| peers.matched.report())
    }

    /// Returns OFFERED_INCOMPATIBLE_QOS: how many readers request more than this writer offers.
    #[must_use]
    pub fn offered_incompatible_qos(&self) -> IncompatibleQosStatus {
        self.with(|peers| peers.incompatible.report())
    }

    /// Returns INCONSISTENT_TOPIC: how many readers have a type with another name.
    #[must_use]
    pub fn inconsistent_topic(&self) -> CountStatus {
        self.with(|peers| peers.inconsistent.report())
    }

    /// Returns the readers that match now.
    #[must_use]
    pub fn matched_subscriptions(&self) -> Vec<MatchedPeer> {
        self.with(|peers| peers.present())
    }

    /// Returns the condition that a status has changed since it was asked for last. Writers have no statuses of samples.
    #[must_use]
    pub fn status_condition(&self, kind: StatusKind) -> Condition {
        Condition::new(Arc::clone(&self.port), self.id().number, ConditionKind::WriterStatus(kind))
    }
}

impl<T> fmt::Debug for DataWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataWriter").field("topic", &self.port.name).field("id", &self.id()).finish()
    }
}

impl<T> Drop for DataWriter<T> {
    fn drop(&mut self) {
        self.port.close(&self.announcement);
    }
}
