//! Null-sends: how far a sender without messages must raise its announcement, so that others need not wait (Spindle
//! §3.3).
//!
//! Message `k` of rank `j` is preceded in the order by indexes `0..=k` of ranks below `j` and by `0..k` of ranks
//! above. So a sender that has received `a` indexes of rank `j` owes `a` indexes if its own rank is below `j`, else
//! `a − 1`.
//!
//! `Deviation:` Spindle sends one null per received message and proves by induction that this is enough. With
//! batches it is not [N5]: the whole gap is filled at once.

/// Returns how many indexes the sender of rank `own` owes in total, when the sender of each rank has sent
/// `indexes[rank]`.
#[inline]
#[must_use]
pub fn indexes_owed(own: usize, indexes: &[u64]) -> u64 {
    let above = indexes[own + 1..].iter().copied().max().unwrap_or(0);
    let below = indexes[..own].iter().copied().max().unwrap_or(0);
    above.max(below.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::sequences_complete;

    /// Compares the function with its definition: with fewer indexes the latest message waits, with that many it does
    /// not.
    #[test]
    fn exactly_the_gap_is_owed() {
        for own in 0..3 {
            for a in 0..5 {
                for b in 0..5 {
                    let mut indexes = vec![a, b];
                    indexes.insert(own, 0);
                    let owed = indexes_owed(own, &indexes);
                    let waits = |sent: u64| {
                        let mut others = vec![u64::MAX; 3];
                        others[own] = sent;
                        let complete = sequences_complete(&others);
                        (0..3)
                            .filter(|rank| *rank != own && indexes[*rank] > 0)
                            .any(|rank| (indexes[rank] - 1) * 3 + rank as u64 >= complete)
                    };
                    assert!(!waits(owed), "own {own}, {indexes:?}: {owed} are not enough");
                    assert!(owed == 0 || waits(owed - 1), "own {own}, {indexes:?}: {owed} are too many");
                }
            }
        }
    }

    /// [N4] Once every sender has sent what it owes, none owes more: nulls alone do not cause nulls forever.
    #[test]
    fn nulls_end() {
        let mut indexes = vec![0, 7, 3, 0];
        for _ in 0..3 {
            for own in 0..4 {
                indexes[own] = indexes[own].max(indexes_owed(own, &indexes));
            }
        }
        let settled = indexes.clone();
        for own in 0..4 {
            assert!(indexes_owed(own, &settled) <= settled[own]);
        }
        assert_eq!(settled, [7, 7, 6, 6]);
    }
}
