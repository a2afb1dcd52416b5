//! When a member writes a checkpoint of a durable shard (Derecho §3.4, persistent mode).
//!
//! **State.** How many bytes of messages were applied since the last checkpoint began, how long that was, and whether one is being
//! written.
//!
//! A checkpoint is due when the messages behind the last one have as many bytes as are set, and at least twice as many as that had: so
//! it never costs more than half of what the log has cost, and a restart reads at most that many bytes of messages.

/// Decides when a member writes a checkpoint. Each member decides for itself.
///
/// **Law.** [`Self::note`] for each message that was applied; when [`Self::poll`] says so, a checkpoint is begun, and ends by
/// [`Self::handle_written`] or [`Self::handle_failed`]. One is under way at a time.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointSchedule {
    every: u64,
    applied: u64,
    last: u64,
    is_under_way: bool,
}

impl CheckpointSchedule {
    /// A schedule for a checkpoint after `every` bytes of messages.
    #[must_use]
    pub const fn new(every: u64) -> Self {
        Self { every, applied: 0, last: 0, is_under_way: false }
    }

    /// A message with this many bytes was applied, now or in an earlier run after the last checkpoint.
    pub const fn note(&mut self, bytes: usize) {
        self.applied = self.applied.saturating_add(bytes as u64);
    }

    /// A checkpoint of this many bytes was found.
    pub const fn note_found(&mut self, bytes: u64) {
        self.last = bytes;
    }

    /// Whether to begin a checkpoint now; `holds` says whether the state is here, which a joiner waits for while messages come.
    pub fn poll(&mut self, holds: bool) -> bool {
        let is_due = holds && self.is_due();
        if is_due {
            (self.applied, self.is_under_way) = (0, true);
        }
        is_due
    }

    /// Whether [`Self::poll`] begins a checkpoint, if the state is here.
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.is_under_way && self.applied >= self.every.max(self.last.saturating_mul(2))
    }

    /// The checkpoint, of this many bytes, is on the disk.
    pub const fn handle_written(&mut self, bytes: u64) {
        (self.last, self.is_under_way) = (bytes, false);
    }

    /// The checkpoint was not written; the next one is due as if it was.
    pub const fn handle_failed(&mut self) {
        self.is_under_way = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A joiner once counted a checkpoint as begun that it could not write, and never wrote another one.
    #[test]
    fn a_joiner_begins_when_it_has_the_state() {
        let mut schedule = CheckpointSchedule::new(100);
        schedule.note(100);
        assert!(!schedule.poll(false) && schedule.poll(true));
    }

    #[test]
    fn a_checkpoint_costs_at_most_half_of_the_log() {
        let mut schedule = CheckpointSchedule::new(100);
        let log = |schedule: &mut CheckpointSchedule, bytes: u64| {
            (0..bytes).for_each(|_| schedule.note(1));
            schedule.poll(true)
        };
        assert!(!log(&mut schedule, 99) && log(&mut schedule, 1));
        assert!(!log(&mut schedule, 1000), "one is under way");
        schedule.handle_written(700);
        assert!(!log(&mut schedule, 399) && log(&mut schedule, 1), "1,400 bytes since the last one began");
        schedule.handle_failed();
        assert!(!log(&mut schedule, 1399) && log(&mut schedule, 1));
        let mut found = CheckpointSchedule::new(100);
        found.note_found(80);
        assert!(!log(&mut found, 159) && log(&mut found, 1));
    }
}
