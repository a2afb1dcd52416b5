//! Coherent sets: changes that become visible together (OMG DDS 1.4 §2.2.2.4.1.10 and §2.2.3.6, PRESENTATION).
//!
//! A set is one message: all members have all of it or nothing, whatever dies; it has one place in the order; and a history takes
//! it by one update.
//!
//! So a set does not exist for others before it is committed, and dropping it leaves nothing.

use std::sync::{Arc, Mutex};

use squall_fabric::mutex::lock;

use crate::error::WriteError;
use crate::port::TopicPort;
use crate::qos::{PresentationScope, Qos};
use crate::wire::{begin_set, extend_set};

/// The open set of a publisher, if there is one: its writers add to it.
#[derive(Debug, Default)]
pub(crate) struct SetSlot(Mutex<Option<Vec<SetPart>>>);

/// The changes of a set that travel together: those of one topic, or of all topics that are in one order.
#[derive(Debug)]
struct SetPart {
    port: Arc<TopicPort>,
    is_grouped: bool,
    message: Vec<u8>,
    qos: Qos,
}

impl SetSlot {
    /// Opens a set. Returns whether there was none.
    pub(crate) fn open(&self) -> bool {
        let mut slot = lock(&self.0);
        let is_free = slot.is_none();
        slot.get_or_insert_with(Vec::new);
        is_free
    }

    /// Returns whether there is a set.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Discards the set.
    pub(crate) fn discard(&self) {
        lock(&self.0).take();
    }

    /// Adds a change to the open set. Returns `false` if there is none.
    pub(crate) fn add(&self, port: &Arc<TopicPort>, qos: &Qos, change: &[u8]) -> Result<bool, WriteError> {
        let mut slot = lock(&self.0);
        let Some(parts) = slot.as_mut() else { return Ok(false) };
        if !qos.presentation.coherent_access {
            return Err(WriteError::NotCoherent);
        }
        let is_grouped = qos.presentation.scope == PresentationScope::Group;
        let is_same = |part: &&mut SetPart| match is_grouped {
            true => part.is_grouped,
            false => Arc::ptr_eq(&part.port, port),
        };
        if let Some(part) = parts.iter_mut().find(is_same) {
            if is_grouped && !part.port.outlet.is_in_order_with(&port.outlet) {
                return Err(WriteError::OtherOrder);
            }
            extend_set(&mut part.message, change);
        } else {
            let mut message = begin_set();
            extend_set(&mut message, change);
            parts.push(SetPart { port: Arc::clone(port), is_grouped, message, qos: qos.clone() });
        }
        Ok(true)
    }

    /// Sends the set: one message for each topic, or one for all topics that are in one order.
    pub(crate) fn commit(&self) -> Result<(), WriteError> {
        let parts = lock(&self.0).take().unwrap_or_default();
        parts
            .into_iter()
            .try_for_each(|part| part.port.outlet.send(&part.message, part.qos.max_blocking_time))
    }
}
