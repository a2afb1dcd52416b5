//! Samples that a reader of the RTPS domain has confirmed, and that RustDDS does not hand over.
//!
//! RustDDS hands over a sample of a reliable writer when all before it have come. When a writer goes, it forgets how far those of that writer
//! have come, and so hands over none of them any more, confirmed or not: what the application had not taken by then is lost. A second view of
//! the same cache ([`crate::inbox`]) shows these samples. Here is what becomes of them.
//!
//! Invariants, for each writer:
//! - No sample is handed over twice, and the numbers of those that are handed over grow.
//! - `waiting` has samples only with greater numbers than the last one that was handed over.
//! - When the writer has gone, nothing of it waits. Nothing waits for longer than [`UNREPAIRED_MAX`], and no more than `waiting_max` in all.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::rtps::RtpsEndpointBytes;

/// What has been handed over of each writer, and what waits.
#[derive(Debug)]
pub(crate) struct WithheldSamples<S> {
    /// The number of the last sample that was handed over.
    last: BTreeMap<RtpsEndpointBytes, i64>,
    waiting: BTreeMap<(RtpsEndpointBytes, i64), WaitingSample<S>>,
    /// The oldest sample that waits gives way to one more than this.
    waiting_max: usize,
    /// Writers that have gone, oldest first. RustDDS may offer samples of one of these again when it comes back.
    gone: VecDeque<RtpsEndpointBytes>,
}

#[derive(Debug)]
struct WaitingSample<S> {
    since: Instant,
    sample: S,
}

impl<S> WithheldSamples<S> {
    pub(crate) const fn new(waiting_max: usize) -> Self {
        Self { last: BTreeMap::new(), waiting: BTreeMap::new(), waiting_max, gone: VecDeque::new() }
    }

    /// Notes that RustDDS offers this sample; returns whether it is to be handed over.
    pub(crate) fn admit(&mut self, writer: RtpsEndpointBytes, number: i64) -> bool {
        if self.last.get(&writer).is_some_and(|last| number <= *last) {
            return false;
        }
        self.last.insert(writer, number);
        // What waits before it was passed over.
        let passed = self.numbers(writer).take_while(|waiting| *waiting <= number).collect::<Vec<_>>();
        for number in passed {
            self.waiting.remove(&(writer, number));
        }
        true
    }

    /// Notes a sample that has come, whether it is offered or not.
    pub(crate) fn hold(&mut self, writer: RtpsEndpointBytes, number: i64, sample: S, now: Instant) {
        if self.last.get(&writer).is_some_and(|last| number <= *last) {
            return;
        }
        self.waiting.entry((writer, number)).or_insert(WaitingSample { since: now, sample });
        if self.waiting.len() > self.waiting_max {
            let oldest = self.waiting.iter().min_by_key(|(_, waiting)| waiting.since).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.waiting.remove(&oldest));
        }
    }

    /// Returns what waits of a writer that has gone, in order: it is handed over now.
    pub(crate) fn release(&mut self, writer: RtpsEndpointBytes) -> Vec<(i64, S)> {
        self.gone.retain(|gone| *gone != writer);
        self.gone.push_back(writer);
        let released = self.hand_over(writer);
        if self.gone.len() > GONE_MAX {
            let oldest = self.gone.pop_front();
            oldest.and_then(|oldest| self.last.remove(&oldest));
        }
        released
    }

    /// Returns what has waited for too long, in the order of each writer: that it has gone was not reported, since RustDDS holds only a few
    /// reports.
    pub(crate) fn release_overdue(&mut self, now: Instant) -> Vec<(RtpsEndpointBytes, i64, S)> {
        let is_overdue = |waiting: &WaitingSample<S>| now.duration_since(waiting.since) >= UNREPAIRED_MAX;
        let overdue = self.waiting.iter().filter(|(_, waiting)| is_overdue(waiting));
        let writers: std::collections::BTreeSet<_> = overdue.map(|((writer, _), _)| *writer).collect();
        let of_writer =
            |writer| self.hand_over(writer).into_iter().map(move |(number, s)| (writer, number, s));
        writers.into_iter().flat_map(of_writer).collect()
    }

    fn hand_over(&mut self, writer: RtpsEndpointBytes) -> Vec<(i64, S)> {
        let numbers: Vec<_> = self.numbers(writer).collect();
        if let Some(last) = numbers.last() {
            self.last.insert(writer, *last);
        }
        let take = |number| self.waiting.remove(&(writer, number)).map(|waiting| (number, waiting.sample));
        numbers.into_iter().filter_map(take).collect()
    }

    /// Returns the numbers of what waits of a writer.
    fn numbers(&self, writer: RtpsEndpointBytes) -> impl Iterator<Item = i64> {
        self.waiting.range((writer, i64::MIN)..=(writer, i64::MAX)).map(|((_, number), _)| *number)
    }
}

/// A writer that is there sends again what is missing within this time.
const UNREPAIRED_MAX: Duration = Duration::from_secs(30);
/// Writers that have gone and are remembered.
const GONE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: RtpsEndpointBytes = [1; 16];
    const OTHER: RtpsEndpointBytes = [2; 16];

    #[test]
    fn what_a_writer_left_is_handed_over_once() {
        let (mut withheld, now) = (WithheldSamples::new(8), Instant::now());
        for number in 1..=5 {
            withheld.hold(ONE, number, number, now);
        }
        withheld.hold(OTHER, 1, 1, now);
        assert!(withheld.admit(ONE, 1) && withheld.admit(ONE, 2));
        assert_eq!(withheld.release(ONE), [(3, 3), (4, 4), (5, 5)]);
        assert_eq!(withheld.release(ONE), []);
        assert!(
            (1..=5).all(|number| !withheld.admit(ONE, number)),
            "it comes back, and RustDDS offers them again"
        );
        assert!(withheld.admit(ONE, 6) && withheld.admit(OTHER, 1));
    }

    #[test]
    fn what_waits_for_too_long_is_handed_over() {
        let (mut withheld, now) = (WithheldSamples::new(8), Instant::now());
        withheld.hold(ONE, 4, 'a', now);
        withheld.hold(ONE, 5, 'b', now + UNREPAIRED_MAX / 2);
        withheld.hold(OTHER, 1, 'c', now + UNREPAIRED_MAX / 2);
        assert_eq!(withheld.release_overdue(now + UNREPAIRED_MAX / 2), []);
        assert_eq!(withheld.release_overdue(now + UNREPAIRED_MAX), [(ONE, 4, 'a'), (ONE, 5, 'b')]);
        assert!(!withheld.admit(ONE, 3), "it would come after later ones");
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut withheld, now) = (WithheldSamples::new(2), Instant::now());
        for (number, at) in [(3, 0), (1, 1), (2, 2)] {
            withheld.hold(ONE, number, (), now + Duration::from_secs(at));
        }
        assert_eq!(withheld.release(ONE), [(1, ()), (2, ())], "the oldest one gave way");
        for number in 0..2 * u16::try_from(GONE_MAX).expect("few") {
            let mut writer = ONE;
            writer[..2].copy_from_slice(&number.to_le_bytes());
            withheld.admit(writer, 1);
            withheld.release(writer);
        }
        assert!(withheld.last.len() <= GONE_MAX + 1 && withheld.gone.len() <= GONE_MAX);
    }

    proptest! {
        /// RustDDS offers a part of what has come, and the writer goes at any moment, and may come back: all that has come is handed over,
        /// once and in order.
        #[test]
        fn all_that_has_come_is_handed_over_in_order(
            steps in proptest::collection::vec((0u8..5, 0usize..3), 0..80),
        ) {
            let now = Instant::now();
            let mut withheld = WithheldSamples::new(usize::MAX);
            // Of each writer: how many have come, how many RustDDS has offered, and what was handed over.
            let mut writers = vec![(0i64, 0i64, Vec::new()); 3];
            let id = |writer: usize| [u8::try_from(writer).expect("few"); 16];
            let end = (0..3).map(|writer| (4, writer));
            for (step, writer) in steps.into_iter().chain(end) {
                let (come, offered, handed) = &mut writers[writer];
                match step {
                    0 | 1 => {
                        *come += 1;
                        withheld.hold(id(writer), *come, *come, now);
                    }
                    2 if offered < come => {
                        *offered += 1;
                        handed.extend(withheld.admit(id(writer), *offered).then_some(*offered));
                    }
                    // It is looked at again.
                    3 => (1..=*come).for_each(|number| withheld.hold(id(writer), number, number, now)),
                    4 => handed.extend(withheld.release(id(writer)).into_iter().map(|(number, _)| number)),
                    _ => {}
                }
            }
            for (come, _, handed) in writers {
                prop_assert_eq!(handed, (1..=come).collect::<Vec<_>>());
            }
            prop_assert!(withheld.waiting.is_empty());
        }
    }
}
