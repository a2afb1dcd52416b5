//! The axis of time of a drawing: stretched where much happens, so that a run of microseconds is readable although a second
//! of silence follows.

/// Where the instants of a run are on an axis.
#[derive(Clone, Debug)]
pub(super) struct TimeAxis {
    /// Instants and their places, both ascending.
    places: Vec<(u64, f64)>,
}

impl TimeAxis {
    /// The axis from `left` to `right` for these instants, in any order.
    pub(super) fn new(mut instants: Vec<u64>, left: f64, right: f64) -> Self {
        instants.sort_unstable();
        instants.dedup();
        let gaps: Vec<f64> = instants.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let limit = limit_of(&gaps);
        let shown: f64 = gaps.iter().map(|gap| gap.min(limit)).sum();
        let (evenly, by_time) =
            ((right - left) * EVENLY / gaps.len() as f64, (right - left) * (1.0 - EVENLY));
        let mut place = left;
        let widths = gaps.iter().map(|gap| evenly + by_time * gap.min(limit) / shown);
        let places = [0.0].into_iter().chain(widths).map(|width| {
            place += width;
            place
        });
        Self { places: instants.iter().copied().zip(places).collect() }
    }

    /// The place of an instant: between its neighbours if it is not one of those of [`TimeAxis::new`].
    pub(super) fn place(&self, at_ns: u64) -> f64 {
        let after = self.places.partition_point(|(instant, _)| *instant < at_ns);
        match (after.checked_sub(1).map(|before| self.places[before]), self.places.get(after).copied()) {
            (Some((before, left)), Some((next, right))) => {
                left + (right - left) * (at_ns - before) as f64 / (next - before) as f64
            }
            (Some((_, place)), None) | (None, Some((_, place))) => place,
            (None, None) => 0.0,
        }
    }

    /// Instants with their places, at least `apart` from each other.
    pub(super) fn ticks(&self, apart: f64) -> Vec<(u64, f64)> {
        let mut ticks: Vec<(u64, f64)> = Vec::new();
        for tick in &self.places {
            if ticks.last().is_none_or(|(_, last)| last + apart <= tick.1) {
                ticks.push(*tick);
            }
        }
        ticks
    }
}

/// The length at which longer gaps are cut, so that none of several has more than its share of the axis.
fn limit_of(gaps: &[f64]) -> f64 {
    let mut limit = gaps.iter().copied().fold(0.0, f64::max);
    let share = GAP_SHARE.max(2.0 / gaps.len() as f64);
    for _ in 0..ROUNDS {
        limit = limit.min(share * gaps.iter().map(|gap| gap.min(limit)).sum::<f64>());
    }
    limit
}

/// The part of the axis that all gaps share evenly.
const EVENLY: f64 = 0.4;
/// The part of the rest that a gap may have.
const GAP_SHARE: f64 = 0.15;
/// Each makes the limit smaller; after these it no longer changes by a pixel.
const ROUNDS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of silence does not hide what happens within microseconds, and the order is kept.
    #[test]
    fn long_gaps_are_cut() {
        let axis = TimeAxis::new(vec![1_000_000_000, 0, 1000, 2000, 3000, 3000], 100.0, 1100.0);
        let places: Vec<f64> = [0, 1000, 2000, 3000, 1_000_000_000].map(|at| axis.place(at)).into();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert!((places[0] - 100.0).abs() < 1e-6 && (places[4] - 1100.0).abs() < 1e-6, "{places:?}");
        assert!(places[1] - places[0] > 100.0, "{places:?}");
        assert!((axis.place(1500) - f64::midpoint(places[1], places[2])).abs() < 1e-6);
        assert!((axis.place(2_000_000_000) - 1100.0).abs() < 1e-6);
    }

    #[test]
    fn ticks_keep_their_distance() {
        let axis = TimeAxis::new((0..1000).collect(), 0.0, 1000.0);
        let ticks = axis.ticks(99.0);
        assert!((9..=11).contains(&ticks.len()), "{ticks:?}");
        assert!(ticks.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 99.0));
    }

    #[test]
    fn an_axis_may_have_one_instant_or_none() {
        assert!(TimeAxis::new(vec![], 0.0, 10.0).ticks(1.0).is_empty());
        let one = TimeAxis::new(vec![7], 5.0, 10.0);
        assert!((one.place(7) - 5.0).abs() < 1e-6 && one.ticks(1.0).len() == 1);
    }
}
