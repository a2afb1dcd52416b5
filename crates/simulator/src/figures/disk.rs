//! The disk of a durable subgroup in an experiment (Spindle §4.6, "logged storage"): it takes bytes at a constant rate, and confirms each message some time after it has
//! taken its last byte. Writes under way overlap, as they do where many wait in a device's queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::{Duration, Instant};
use squall_protocols::multicast::{Message, MessageLog};

/// The hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// The bytes that it takes in a microsecond; not zero.
    pub bytes_per_us: u32,
    /// The time from a message's last byte to its confirmation.
    pub confirms_after: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    now: Instant,
    /// When the disk has taken everything.
    free_at: Instant,
    /// How many sequences are there, and from when on: both never decrease.
    under_way: VecDeque<(u64, Instant)>,
    persisted: u64,
}

/// The log of one member.
#[derive(Clone, Debug)]
pub(super) struct ModelLog {
    disk: DiskModel,
    queue: Arc<Mutex<Queue>>,
}

impl ModelLog {
    pub(super) fn new(disk: DiskModel) -> Self {
        Self { disk, queue: Arc::default() }
    }

    /// Lets time pass. Returns when the disk confirms the next message, if there is one.
    pub(super) fn pass(&self, now: Instant) -> Option<Instant> {
        let queue = &mut *self.lock();
        queue.now = now;
        while let Some(&(sequences, at)) = queue.under_way.front()
            && at <= now
        {
            queue.persisted = sequences;
            queue.under_way.pop_front();
        }
        queue.under_way.front().map(|(_, at)| *at)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no thread has panicked")
    }
}

impl MessageLog for ModelLog {
    fn append(&mut self, message: Message<'_>) {
        let taken = message.bytes.len() as u64 * 1000 / u64::from(self.disk.bytes_per_us);
        let queue = &mut *self.lock();
        queue.free_at = queue.free_at.max(queue.now) + Duration::from_nanos(taken);
        let confirmed = queue.free_at + self.disk.confirms_after;
        queue.under_way.push_back((message.sequence + 1, confirmed));
    }

    fn persisted(&self) -> u64 {
        self.lock().persisted
    }
}
