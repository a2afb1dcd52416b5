//! How fast data goes through the peer's ring, as its sender sees it (EXS §III: what buffering costs).
//!
//! `Deviation:` (EXS fig. 2) the paper's sender need not know. Here patience weighs direct transfer against the ring, and
//! that goes three times as fast on one machine as on another, or as between other two cores of the same machine.
//!
//! **State.** A *span*: since when, and what the peer has said since to be copied. The peer says that together for many
//! transfers, so a span goes from one such message to a later one. A span in which the sender had nothing to send or
//! waited tells nothing and is thrown away.

use squall_fabric::{Duration, Instant};

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct TransferPace {
    /// What is taken for true before it is measured.
    assumed: u64,
    /// At least 1.
    bytes_per_us: u64,
    /// The same the other way round, since to divide takes longer than all else that is done with it: the nanoseconds
    /// of `COST_BYTES`.
    cost: u64,
    is_measured: bool,
    /// When the span began.
    begin: Option<Instant>,
    /// Bytes copied in the span, in so many messages.
    bytes: u64,
    messages: u32,
    /// What of these came at a time that is not yet known.
    unclocked: u64,
}

impl TransferPace {
    pub(super) fn new(assumed: u64) -> Self {
        Self {
            assumed,
            bytes_per_us: assumed,
            cost: cost(assumed),
            is_measured: false,
            begin: None,
            bytes: 0,
            messages: 0,
            unclocked: 0,
        }
    }

    /// At least 1.
    pub(super) fn bytes_per_us(&self) -> u64 {
        self.bytes_per_us
    }

    /// How long so many bytes take.
    #[inline]
    pub(super) fn copying(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(self.cost) / COST_BYTES)
    }

    /// Whether [`TransferPace::on_time`] should be told the time.
    pub(super) fn needs_clock(&self) -> bool {
        self.unclocked >= UNCLOCKED_MAX
    }

    /// The peer says that it has copied so many bytes more.
    pub(super) fn on_freed(&mut self, bytes: u64) {
        if bytes > 0 {
            (self.bytes, self.messages) = (self.bytes + bytes, self.messages + 1);
            self.unclocked += bytes;
        }
    }

    /// Something goes through the ring.
    pub(super) fn on_time(&mut self, now: Instant) {
        if !self.needs_clock() {
            return;
        }
        self.unclocked = 0;
        let Some(begin) = self.begin else { return self.begin_span(now) };
        let span = now.since(begin);
        if self.messages >= MESSAGES_MIN && span >= SPAN_MIN {
            self.learn(self.bytes.saturating_mul(1000) / u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
            self.begin_span(now);
        }
    }

    /// The sender has nothing to send, or waits: the span does not count.
    pub(super) fn interrupt(&mut self) {
        self.begin = None;
    }

    fn begin_span(&mut self, now: Instant) {
        (self.begin, self.bytes, self.messages) = (Some(now), 0, 0);
    }

    fn learn(&mut self, sample: u64) {
        let mean = self.bytes_per_us;
        // Who lost the processor for a while copied little: that says nothing.
        let smoothed = ((WEIGHT - 1) * mean + sample.clamp(mean / 2, 2 * mean)) / WEIGHT;
        let (least, most) = (self.assumed / RANGE, self.assumed.saturating_mul(RANGE));
        self.bytes_per_us = if self.is_measured { smoothed } else { sample }.clamp(least.max(1), most);
        (self.cost, self.is_measured) = (cost(self.bytes_per_us), true);
    }
}

fn cost(bytes_per_us: u64) -> u64 {
    COST_BYTES * 1000 / bytes_per_us
}

/// A power of two, by which to divide takes nothing.
const COST_BYTES: u64 = 1 << 24;
/// A look at the clock takes as long as to send some hundred bytes.
const UNCLOCKED_MAX: u64 = 64 << 10;
/// Messages in a span: its ends are uncertain by a part of one.
const MESSAGES_MIN: u32 = 8;
const SPAN_MIN: Duration = Duration::from_micros(10);
/// A new span changes the mean by one part in so many of the difference.
const WEIGHT: u64 = 4;
/// A machine is no more than so many times as fast or as slow as assumed. What is slower is not the copy but the way, or
/// who waits for the data, and both are as slow if data goes directly.
const RANGE: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// A message about 64 KiB every so often.
    fn run(pace: &mut TransferPace, begin_us: u64, every_us: u64, messages: u64) {
        for i in 0..messages {
            pace.on_freed(64 << 10);
            assert!(pace.needs_clock());
            pace.on_time(at(begin_us + i * every_us));
        }
    }

    #[test]
    fn the_pace_is_learned() {
        let mut pace = TransferPace::new(4000);
        assert_eq!(pace.bytes_per_us(), 4000);
        run(&mut pace, 0, 32, 9);
        assert_eq!(pace.bytes_per_us(), 2048, "after one span");
        run(&mut pace, 1000, 64, 200);
        assert!(pace.bytes_per_us().abs_diff(1024) < 20, "{}", pace.bytes_per_us());
        run(&mut pace, 20_000, 1000, 100);
        assert_eq!(pace.bytes_per_us(), 1000, "no less than a quarter of what was assumed");
    }

    #[test]
    fn interrupted_spans_do_not_count() {
        let mut pace = TransferPace::new(4000);
        run(&mut pace, 0, 32, 9);
        for i in 1..10 {
            pace.interrupt();
            run(&mut pace, 100_000 * i, 32, 8);
        }
        assert_eq!(pace.bytes_per_us(), 2048);
        pace.on_time(at(2_000_000));
        assert_eq!(pace.bytes_per_us(), 2048, "nothing was said meanwhile");
    }
}
