//! Probes: the writer notes when it sends one message of many, so that others can tell how long messages take.
//!
//! The polling thread asks for the time of one message, the first one from a certain record on; the writer stores the time before it
//! commits that message; the polling thread finds it when it publishes the message. Neither waits. The writer's attention is called
//! when it may soon come to that message, so that others cost nothing but the load that shows whether the window is closed.

use super::{ASKED, WindowPublisher, WindowWriter};
use crate::Instant;
use crate::atomics::{AtomicU64, Ordering};

/// What the writer and the publisher of a window share for this, in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ProbeLine {
    /// The first record whose time is wanted, stored by the publisher; 0: none yet.
    from: AtomicU64,
    /// The record whose time is stored, and the time, by the writer. They are covered by `ready`: the publisher uses them when the record
    /// is committed.
    record: AtomicU64,
    nanos: AtomicU64,
    /// The question, that is `from`, to which these are the answer, stored after them: an answer to an earlier question, which was void,
    /// may be within the range of the present one.
    question: AtomicU64,
}

/// What the writer knows of probes.
#[derive(Debug, Default)]
pub(super) struct WriterProbes {
    /// The question that is answered: the record of one that it asked for is committed.
    answered: u64,
    /// The question for which a time is stored, and the record.
    noted: (u64, u64),
}

impl WindowWriter {
    /// Returns whether the time at which the next message is sent is wanted: see [`WindowWriter::note_time`]. It is not, unless
    /// [`WindowWriter::needs_attention`].
    #[must_use]
    pub fn wants_time(&self) -> bool {
        let from = self.shared.probe.from.load(Ordering::Relaxed);
        from != self.probes.answered && self.reserved >= from
    }

    /// Notes that the next message is sent at `now`. If the message finds no space, call it again when it is tried again.
    #[cold]
    pub fn note_time(&mut self, now: Instant) {
        let probe = &self.shared.probe;
        let from = probe.from.load(Ordering::Relaxed);
        if self.reserved < from {
            // A question has just taken the place of the one that was seen.
            return;
        }
        let (question, record) = self.probes.noted;
        if question == from && record < self.reserved {
            self.probes.answered = from;
            return;
        }
        self.probes.noted = (from, self.reserved);
        probe.nanos.store(now.as_nanos(), Ordering::Relaxed);
        probe.record.store(self.reserved, Ordering::Relaxed);
        // SYNC: pairs with the load in `WindowPublisher::take_time`, which finds this record, or a later one, behind it.
        probe.question.store(from, Ordering::Release);
    }
}

impl WindowPublisher {
    /// Asks for the time at which a message is sent: the first one after `later` more, but not the first of the window. The previous
    /// question, if it is open, is void.
    pub fn ask_time(&mut self, later: u64) {
        self.probed_from = (self.published + later).max(1);
        self.shared.probe.from.store(self.probed_from, Ordering::Relaxed);
        self.has_called = false;
        self.call();
    }

    /// Calls the writer's attention if it may come to the record before the next look here, or has passed it.
    fn call(&mut self) {
        let is_near = self.probed_from <= self.published + self.geometry.records_max as u64;
        if is_near != self.has_called {
            self.has_called = is_near;
            self.shared.set_attention(ASKED, is_near);
        }
    }

    /// Returns the index of the message that was asked for and when it was sent, once, when it has been published just now.
    #[must_use]
    pub fn take_time(&mut self) -> Option<(u64, Instant)> {
        let probe = &self.shared.probe;
        if self.probed_from == 0 {
            return None;
        }
        // SYNC: pairs with the store in `WindowWriter::note_time`.
        let is_answer = probe.question.load(Ordering::Acquire) == self.probed_from;
        let record = probe.record.load(Ordering::Relaxed);
        if !is_answer || !(self.probed_from..self.published).contains(&record) {
            self.call();
            return None;
        }
        self.probed_from = 0;
        self.has_called = false;
        self.shared.set_attention(ASKED, false);
        // If a question became void while it was answered, this may be the time of a later message, and the latency too short.
        let nanos = probe.nanos.load(Ordering::Relaxed);
        Some((record + self.nulls(), Instant::from_nanos(nanos)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{WindowGeometry, WindowPublisher, WindowWriter};
    use crate::{Region, RegionId, trusted};

    fn ring() -> (WindowWriter, WindowPublisher) {
        let geometry = WindowGeometry::new(0, 8, 8, 4096);
        let region = Region::heap(RegionId(1), geometry.words());
        trusted::window(&region, geometry, None)
    }

    /// Sends a message at `now`; returns whether its time was wanted.
    fn send(writer: &mut WindowWriter, now: u64) -> bool {
        let is_wanted = writer.wants_time();
        if is_wanted {
            writer.note_time(Instant::from_nanos(now));
        }
        writer.send(8, |bytes| bytes.fill(1)).is_ok() && is_wanted
    }

    /// Only the message that was asked for costs anything, and its index counts the nulls before it.
    #[test]
    fn the_message_that_was_asked_for_is_found_once() {
        let (mut writer, mut publisher) = ring();
        assert!(!send(&mut writer, 1), "not asked");
        publisher.publish(8, |_| ());
        assert_eq!(publisher.take_time(), None);
        publisher.ask_time(1);
        publisher.raise(4);
        assert_eq!([2, 3, 4, 5].map(|now| send(&mut writer, now)), [false, true, true, false]);
        publisher.publish(2, |_| ());
        assert_eq!(publisher.take_time(), Some((5, Instant::from_nanos(3))));
        publisher.publish(8, |_| ());
        assert_eq!(publisher.take_time(), None);
        publisher.ask_time(0);
        assert!(send(&mut writer, 6));
        assert_eq!(publisher.take_time(), None, "not published");
        publisher.publish(8, |_| ());
        assert_eq!(publisher.take_time(), Some((8, Instant::from_nanos(6))));
    }

    /// The time of a message that found no space is that of the try at which it was sent.
    #[test]
    fn a_message_is_sent_when_it_finds_space() {
        let (mut writer, mut publisher) = ring();
        publisher.ask_time(8);
        (0..8).for_each(|now| assert!(!send(&mut writer, now)));
        publisher.publish(8, |_| ());
        assert!(!send(&mut writer, 8), "the window is full");
        publisher.free(8);
        assert!(send(&mut writer, 9));
        publisher.publish(8, |_| ());
        assert_eq!(publisher.take_time(), Some((8, Instant::from_nanos(9))));
    }

    /// A writer that is far from the message that was asked for sends without a look; the call comes before it can have passed it.
    #[test]
    fn attention_is_called_when_the_message_is_near() {
        let (mut writer, mut publisher) = ring();
        publisher.ask_time(20);
        let mut called = Vec::new();
        for now in 0..24 {
            called.push(writer.needs_attention());
            assert!(writer.needs_attention() || now != 20, "it passes the record");
            send(&mut writer, now);
            publisher.publish(1, |_| ());
            publisher.free(now + 1);
            let time = publisher.take_time();
            assert_eq!(time, (now == 20).then_some((20, Instant::from_nanos(20))));
        }
        // The window holds 8 records.
        let expected: Vec<bool> = (0..24).map(|record| (12..=20).contains(&record)).collect();
        assert_eq!(called, expected);
        publisher.close();
        assert!(writer.needs_attention() && writer.is_closed());
    }

    /// A question that a slow sender has not reached may be asked again, for an earlier message.
    #[test]
    fn a_question_can_be_asked_again() {
        let (mut writer, mut publisher) = ring();
        publisher.ask_time(1000);
        assert!(!send(&mut writer, 1));
        publisher.publish(8, |_| ());
        publisher.ask_time(0);
        assert!(send(&mut writer, 2));
        publisher.publish(8, |_| ());
        assert_eq!(publisher.take_time(), Some((1, Instant::from_nanos(2))));
    }
}
