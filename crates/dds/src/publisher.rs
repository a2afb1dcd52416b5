//! Publishers: writers whose changes can become visible together (OMG DDS 1.4 §2.2.2.4.1).

use std::sync::Arc;

use crate::data::TopicData;
use crate::error::{EntityError, WriteError};
use crate::participant::{DomainParticipant, Topic};
use crate::qos::Qos;
use crate::set::SetSlot;
use crate::writer::DataWriter;

/// Writers that can write coherent sets: changes which readers with PRESENTATION `coherent_access` get all at once.
///
/// With [`crate::PresentationScope::Group`] a set extends over all topics of the publisher's writers, which have to be in one order: created at
/// run time with that scope, and all of profile [`crate::Profile::Atomic`], or all kept. With another scope, the changes of each
/// topic are a set of their own.
///
/// ```
/// use std::time::Duration;
/// # use squall::Config;
/// use squall_dds::{DomainParticipant, Presentation, Qos, TopicStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-publisher-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// let qos = Qos { presentation: Presentation::GROUP_COHERENT, ..Qos::ATOMIC };
/// let debits = participant.create_topic::<Vec<u8>>("debits", qos.clone())?;
/// let credits = participant.create_topic::<Vec<u8>>("credits", qos.clone())?;
/// let subscriber = participant.subscriber();
/// let (read_debits, read_credits) = (subscriber.reader(&debits, qos.clone())?, subscriber.reader(&credits, qos.clone())?);
///
/// let publisher = participant.publisher();
/// let (debit, credit) = (publisher.writer(&debits, qos.clone())?, publisher.writer(&credits, qos)?);
/// let transfer = publisher.coherent_changes()?;
/// debit.write(&b"5 from ann".to_vec())?;
/// credit.write(&b"5 to bob".to_vec())?;
/// transfer.commit()?;
///
/// read_credits.wait_for_data(Duration::from_secs(10))?;
/// let access = subscriber.begin_access();
/// assert_eq!(access.readers(), [read_debits.id(), read_credits.id()]); // one for each sample, in their order
/// assert_eq!((access.take(&read_debits, 9)?.len(), access.take(&read_credits, 9)?.len()), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TopicPublisher<'p> {
    participant: &'p DomainParticipant,
    set: Arc<SetSlot>,
}

/// Changes that are written together: everything that the publisher's writers write from any thread, until it is committed. Dropping it
/// discards them.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Presentation, Qos, StateMask};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-set-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let qos = Qos { presentation: Presentation { coherent_access: true, ..Presentation::TOPIC_ORDERED }, ..Qos::ATOMIC };
/// let reader = participant.reader(&topic, qos.clone())?;
/// let publisher = participant.publisher();
/// let writer = publisher.writer(&topic, qos)?;
/// let set = publisher.coherent_changes()?;
/// writer.write(&vec![1])?;
/// drop(set);
/// writer.write(&vec![2])?; // by itself
/// reader.wait_for_data(std::time::Duration::from_secs(10))?;
/// assert_eq!(reader.take(9)?[0].data, Some(vec![2]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it discards what is written"]
pub struct CoherentSet<'p> {
    slot: &'p SetSlot,
}

impl DomainParticipant {
    /// Creates a publisher.
    #[must_use]
    pub fn publisher(&self) -> TopicPublisher<'_> {
        TopicPublisher { participant: self, set: Arc::default() }
    }
}

impl TopicPublisher<'_> {
    /// Creates a writer, as [`DomainParticipant::writer`] does. Its changes belong to the publisher's open set, if there is one.
    ///
    /// # Errors
    /// The errors of that method.
    pub fn writer<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataWriter<T>, EntityError> {
        let writer = self.participant.writer(topic, qos)?;
        Ok(writer.with_sets(Arc::clone(&self.set)))
    }

    /// Begins a coherent set (`begin_coherent_changes`).
    ///
    /// # Errors
    /// [`WriteError::SetOpen`] if the publisher has an open set.
    pub fn coherent_changes(&self) -> Result<CoherentSet<'_>, WriteError> {
        if self.set.open() { Ok(CoherentSet { slot: &self.set }) } else { Err(WriteError::SetOpen) }
    }
}

impl CoherentSet<'_> {
    /// Sends the set (`end_coherent_changes`): with the scope of groups all of it or nothing, else the changes of each topic.
    ///
    /// # Errors
    /// [`WriteError::TooLong`] if the set is longer than a message of its topics may be; or another error, with what to do next.
    pub fn commit(self) -> Result<(), WriteError> {
        self.slot.commit()
    }
}

impl Drop for CoherentSet<'_> {
    fn drop(&mut self) {
        self.slot.discard();
    }
}
