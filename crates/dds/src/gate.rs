//! The lock that keeps samples of topics in one order from coming while an application looks at several of their readers.

use std::sync::{Arc, Condvar, Mutex};

use squall_fabric::mutex::{lock, unpoisoned};

/// A lock whose guard may be kept: one for all topics that are in one order.
#[derive(Debug, Default)]
pub(crate) struct OrderGate {
    is_held: Mutex<bool>,
    released: Condvar,
}

/// Holds the gate until it is dropped.
#[derive(Debug)]
pub(crate) struct GateHold(Arc<OrderGate>);

impl OrderGate {
    /// Waits until the gate is free, and holds it.
    pub(crate) fn hold(self: &Arc<Self>) -> GateHold {
        let held = self.released.wait_while(lock(&self.is_held), |is_held| *is_held);
        *unpoisoned(held) = true;
        GateHold(Arc::clone(self))
    }
}

impl Drop for GateHold {
    fn drop(&mut self) {
        *lock(&self.0.is_held) = false;
        self.0.released.notify_one();
    }
}
