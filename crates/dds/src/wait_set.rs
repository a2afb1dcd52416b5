//! Waiting for several conditions (OMG DDS 1.4 §2.2.2.1.6 and §2.2.4.4).

use std::sync::Arc;
use std::time::Duration;

use crate::error::{EntityError, ReadError};
use crate::port::TopicPort;
use crate::sample::StateMask;
use crate::signal::Signal;
use crate::status::StatusKind;

/// A condition of a reader or a writer. It is also true when nothing more comes, so that the next call to the reader reports why, and
/// when the reader or writer was dropped.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos, StatusKind};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-condition-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let reader = participant.reader(&topic, Qos::ATOMIC)?;
/// assert!(!reader.status_condition(StatusKind::SampleRejected).is_triggered());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Condition {
    port: Arc<TopicPort>,
    number: u16,
    kind: ConditionKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ConditionKind {
    Read(StateMask),
    ReaderStatus(StatusKind),
    WriterStatus(StatusKind),
}

impl Condition {
    pub(crate) const fn new(port: Arc<TopicPort>, number: u16, kind: ConditionKind) -> Self {
        Self { port, number, kind }
    }

    /// Returns whether the condition is true now.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        let state = self.port.state();
        let (reader, writer) = (state.readers.get(&self.number), state.writers.get(&self.number));
        state.end.is_some()
            || match self.kind {
                ConditionKind::Read(states) => reader.is_none_or(|reader| reader.cache.has(states)),
                ConditionKind::ReaderStatus(kind) => reader.is_none_or(|reader| reader.has_changed(kind)),
                ConditionKind::WriterStatus(kind) => writer.is_none_or(|writer| writer.has_changed(kind)),
            }
    }
}

/// Waits for any of several conditions of one participant.
///
/// ```
/// use std::time::Duration;
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos, StateMask, StatusKind};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-wait-set-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let reader = participant.reader(&topic, Qos::ATOMIC)?;
/// let mut wait_set = participant.wait_set();
/// let data = wait_set.attach(reader.read_condition(StateMask::NOT_READ))?;
/// let rejected = wait_set.attach(reader.status_condition(StatusKind::SampleRejected))?;
///
/// participant.writer(&topic, Qos::ATOMIC)?.write(&vec![1])?;
/// assert_eq!(wait_set.wait(Duration::from_secs(10))?, [data]);
/// # assert_ne!(data, rejected);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WaitSet {
    changed: Arc<Signal>,
    conditions: Vec<Condition>,
}

impl WaitSet {
    pub(crate) const fn new(changed: Arc<Signal>) -> Self {
        Self { changed, conditions: Vec::new() }
    }

    /// Adds a condition, and returns its number in this set.
    ///
    /// # Errors
    /// [`EntityError::OtherParticipant`] if it belongs to another participant than the set.
    pub fn attach(&mut self, condition: Condition) -> Result<usize, EntityError> {
        if !Arc::ptr_eq(&self.changed, &condition.port.changed) {
            return Err(EntityError::OtherParticipant);
        }
        self.conditions.push(condition);
        Ok(self.conditions.len() - 1)
    }

    /// Waits until at least one condition is true, and returns the numbers of all that are.
    ///
    /// # Errors
    /// [`ReadError::Timeout`] if none becomes true.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<usize>, ReadError> {
        let triggered = self.changed.wait_for(timeout, || {
            let conditions = self.conditions.iter().enumerate();
            let found: Vec<usize> =
                conditions.filter(|(_, condition)| condition.is_triggered()).map(|(at, _)| at).collect();
            (!found.is_empty()).then_some(found)
        });
        triggered.ok_or(ReadError::Timeout(timeout))
    }
}
