//! Round-robin order: the arithmetic of sequences and indexes (Derecho §3.4, Spindle §2.1).

use crate::mutation;

/// Returns the number of complete sequences when the sender of each rank has sent `indexes[rank]` indexes: the
/// greatest `s` such that every sequence below `s` has been sent.
#[inline]
#[must_use]
pub fn sequences_complete(indexes: &[u64]) -> u64 {
    let rounds = indexes.iter().copied().min().unwrap_or(0);
    let ahead = indexes.iter().take_while(|indexes| **indexes > rounds).count();
    rounds * indexes.len() as u64 + ahead as u64 + u64::from(mutant!(CompleteTooSoon))
}

/// Returns how many indexes of the sender with rank `rank` among `senders` have sequences below `sequences`.
#[inline]
#[must_use]
pub const fn indexes_below(sequences: u64, rank: usize, senders: usize) -> u64 {
    (sequences + senders as u64 - 1 - rank as u64) / senders as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_means_every_earlier_sequence_is_there() {
        assert_eq!(sequences_complete(&[0, 0, 0]), 0);
        assert_eq!(sequences_complete(&[1, 0, 1]), 1);
        assert_eq!(sequences_complete(&[1, 1, 1]), 3);
        assert_eq!(sequences_complete(&[5, 2, 9]), 7);
        assert_eq!(sequences_complete(&[3]), 3);
    }

    /// Compares the function with its definition, by enumeration.
    #[test]
    fn indexes_below_counts_the_sequences_of_one_sender() {
        for senders in 1..6 {
            for rank in 0..senders {
                for sequences in 0..40 {
                    let counted = (0..sequences).filter(|s| s % senders as u64 == rank as u64).count();
                    assert_eq!(indexes_below(sequences, rank, senders), counted as u64);
                }
            }
        }
    }
}
