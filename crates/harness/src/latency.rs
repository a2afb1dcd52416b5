//! Latencies: recorded in constant memory, merged over members, reported as percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::terminal::units;

/// Counts of latencies, three digits exact, up to a minute.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

const LATENCY_NS_MAX: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("the bounds are in order"))
    }
}

impl Latencies {
    /// Notes one latency; more than a minute counts as a minute.
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// `None` if nothing was recorded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Percentiles {
            min: self.0.min(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
        })
    }
}

/// Percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [self.min, self.p50, self.p99, self.p999, self.max];
        let [min, p50, p99, p999, max] = all.map(units::nanos);
        write!(f, "min {min}, p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}")
    }
}

/// As a list of values and counts, for the pipe.
#[derive(Serialize, Deserialize)]
struct Counts(Vec<(u64, u64)>);

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let recorded = self.0.iter_recorded();
        let counts = recorded.map(|step| (step.value_iterated_to(), step.count_at_value()));
        Counts(counts.collect()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut latencies = Self::default();
        for (value, count) in Counts::deserialize(deserializer)?.0 {
            latencies.0.saturating_record_n(value, count);
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_survive_the_pipe_and_merge() {
        let mut fast = Latencies::default();
        let mut slow = Latencies::default();
        assert_eq!(fast.percentiles(), None);
        (0..999).for_each(|_| fast.record(Duration::from_nanos(500)));
        slow.record(Duration::from_secs(3600));
        let pipe = serde_json::to_string(&fast).unwrap();
        let mut all: Latencies = serde_json::from_str(&pipe).unwrap();
        all.merge(&slow);
        let percentiles = all.percentiles().unwrap();
        assert_eq!((percentiles.min, percentiles.p50, percentiles.p99), (500, 500, 500));
        assert!(percentiles.max >= LATENCY_NS_MAX, "more than a minute counts as a minute");
    }
}
