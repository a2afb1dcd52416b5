//! Durations, counted by their length.

use std::ops::AddAssign;

use crate::Duration;

/// Counts durations by their length, in buckets whose limits double. It is a plain value of fixed size: to count costs a few
/// instructions and no allocation.
///
/// ```
/// use std::time::Duration;
///
/// use squall_fabric::DurationHistogram;
///
/// let mut times = DurationHistogram::default();
/// (0..99).for_each(|_| times.note(Duration::from_micros(3)));
/// times.note(Duration::from_millis(7));
/// assert_eq!(times.count(), 100);
/// assert_eq!(times.quantile(0.5), Some(Duration::from_nanos(4096)));
/// assert!(times.quantile(1.0) > Some(Duration::from_millis(7)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// Durations of at most [`limit`] of the index, and more than the limit before it; the last bucket has no limit.
    buckets: [u64; BUCKETS + 1],
    nanos: u64,
}

impl DurationHistogram {
    /// Counts a duration.
    #[inline]
    pub fn note(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BITS) as usize;
        self.buckets[bucket.min(BUCKETS)] += 1;
        self.nanos = self.nanos.saturating_add(nanos);
    }

    /// Returns how many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns the limit of each bucket that has one, and how many durations are at most as long as it and longer than the limit before
    /// it.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = (Duration, u64)> {
        self.buckets[..BUCKETS].iter().enumerate().map(|(bucket, count)| (limit(bucket), *count))
    }

    /// Returns the limit of the bucket that has the duration which the part `share` of all does not exceed: at most twice as much as
    /// that. Returns `None` if nothing was counted. A duration beyond all limits counts as the last limit.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let mut below = 0;
        let bucket = self.buckets.iter().position(|bucket| {
            below += bucket;
            *bucket > 0 && below as f64 >= share * count as f64
        });
        bucket.map(|bucket| limit(bucket.min(BUCKETS - 1)))
    }

    /// Returns what was counted since `earlier`, an earlier value of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (count, earlier) in since.buckets.iter_mut().zip(earlier.buckets) {
            *count = count.saturating_sub(earlier);
        }
        since.nanos = since.nanos.saturating_sub(earlier.nanos);
        since
    }
}

impl AddAssign<&Self> for DurationHistogram {
    fn add_assign(&mut self, other: &Self) {
        for (count, other) in self.buckets.iter_mut().zip(other.buckets) {
            *count += other;
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

/// Returns the greatest duration of a bucket.
const fn limit(bucket: usize) -> Duration {
    Duration::from_nanos(1 << (FIRST_BITS as usize + bucket))
}

/// The first bucket ends at 1024 ns: less than a message takes between two processes.
const FIRST_BITS: u32 = 10;

/// The last limit is 17 s: longer than any time-out of a group by default.
const BUCKETS: usize = 25;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanos: &[u64]) -> DurationHistogram {
        let mut histogram = DurationHistogram::default();
        nanos.iter().for_each(|nanos| histogram.note(Duration::from_nanos(*nanos)));
        histogram
    }

    #[test]
    fn a_duration_is_in_the_bucket_that_ends_with_it() {
        for (nanos, limit) in [(0, 1024), (1024, 1024), (1025, 2048), (2048, 2048), (3_000_000, 1 << 22)] {
            let (least, _) = of(&[nanos]).buckets().find(|(_, count)| *count > 0).expect("it has a limit");
            assert_eq!(least, Duration::from_nanos(limit), "{nanos}");
        }
        let (last, _) = DurationHistogram::default().buckets().last().expect("there are buckets");
        let long = of(&[u64::MAX, 18_000_000_000]);
        assert_eq!((long.count(), long.buckets().map(|(_, count)| count).sum()), (2, 0));
        assert_eq!(long.quantile(0.5), Some(last));
    }

    #[test]
    fn a_quantile_is_the_limit_of_its_bucket() {
        let histogram = of(&[100, 200, 5000, 1_000_000]);
        let at = |share| histogram.quantile(share).map(|limit| limit.as_nanos());
        assert_eq!([0.0, 0.5, 0.75, 1.0].map(at), [1024, 1024, 8192, 1 << 20].map(Some));
        assert_eq!(DurationHistogram::default().quantile(0.5), None);
    }

    #[test]
    fn histograms_add_up_and_differ() {
        let (first, second) = (of(&[1, 5000]), of(&[7000]));
        let mut sum = first;
        sum += &second;
        assert_eq!((sum.count(), sum.sum()), (3, Duration::from_nanos(12_001)));
        assert_eq!(sum.since(&first), second);
    }
}
