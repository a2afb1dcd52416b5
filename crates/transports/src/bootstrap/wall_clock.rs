//! The wall clocks of two members, compared when one asks the other for a link. No protocol uses them; the times of logs, of earlier versions
//! and of topics are theirs.

use std::time::{SystemTime, UNIX_EPOCH};

use super::message::BootstrapRequest;

/// Returns the time by this host's clock, in milliseconds since 1970.
#[must_use]
pub fn wall_clock_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns by how many milliseconds `clock` is ahead of `other`; below 0: behind.
#[must_use]
pub fn clock_lead_millis(clock: u64, other: u64) -> i64 {
    let apart = |more: u64, less: u64| i64::try_from(more - less).unwrap_or(i64::MAX);
    if clock >= other { apart(clock, other) } else { -apart(other, clock) }
}

/// Returns a lead in words, as in `7200.0 s ahead of`, unless it is as short as a message may take.
#[must_use]
pub fn described_lead(lead_millis: i64) -> Option<String> {
    let seconds = lead_millis.unsigned_abs() as f64 / 1000.0;
    let side = if lead_millis > 0 { "ahead of" } else { "behind" };
    (lead_millis.unsigned_abs() >= CLOCKS_APART_MILLIS).then(|| format!("{seconds:.1} s {side}"))
}

/// Warns if the caller's clock differs from this one's.
pub(super) fn compare_clocks(request: &BootstrapRequest, peer: &str) {
    let (BootstrapRequest::Link { node, clock, .. } | BootstrapRequest::Hello { node, clock, .. }) = request
    else {
        return;
    };
    if let Some(lead) = described_lead(clock_lead_millis(*clock, wall_clock_millis())) {
        crate::log::warn!(
            node,
            peer,
            "a member's clock is {lead} this host's: have both follow a time server"
        );
    }
}

/// Clocks that follow a time server are closer, and a request that waits for a busy process is not as late.
const CLOCKS_APART_MILLIS: u64 = 5000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_described() {
        let lead = |clock, other| described_lead(clock_lead_millis(clock, other));
        assert_eq!(lead(10_000_000, 2_800_000).as_deref(), Some("7200.0 s ahead of"));
        assert_eq!(lead(0, 6_500).as_deref(), Some("6.5 s behind"));
        assert!(lead(u64::MAX, 0).is_some_and(|text| text.ends_with(" s ahead of")));
        assert!(lead(0, u64::MAX).is_some_and(|text| text.ends_with(" s behind")));
        assert_eq!((lead(5_000, 1), lead(1, 5_000), lead(7, 7)), (None, None, None));
    }
}
