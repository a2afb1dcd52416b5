//! Placement: which members of a view form which shard, and who leads it (RamCast §2.2, §3.2) \[G1\].

/// The most shards: a set of destinations is one word, in records as well.
pub const SHARDS_MAX: usize = u64::BITS as usize;

/// The shards of a view, by number. They have no common members; a shard may have none, and a member may be in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPlacement {
    /// The ranks of each shard's members, ascending.
    shards: Vec<Vec<usize>>,
    /// The shards that have members, as a set of bits.
    populated: u64,
}

impl ShardPlacement {
    /// The shards with these members, given by their ranks in the view.
    ///
    /// # Panics
    /// If there are more than [`SHARDS_MAX`], or a rank is in two shards.
    #[must_use]
    pub fn new(mut shards: Vec<Vec<usize>>) -> Self {
        assert!(shards.len() <= SHARDS_MAX, "{} shards", shards.len());
        shards.iter_mut().for_each(|ranks| ranks.sort_unstable());
        let mut all = shards.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "a member is in two shards: {shards:?}");
        let bit = |(shard, ranks): (usize, &Vec<usize>)| u64::from(!ranks.is_empty()) << shard;
        let populated = shards.iter().enumerate().map(bit).sum();
        Self { shards, populated }
    }

    /// How many shards there are, those without members among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The shard of the member with this rank, if it is in one.
    #[must_use]
    pub fn shard_of(&self, rank: usize) -> Option<usize> {
        self.shards.iter().position(|ranks| ranks.contains(&rank))
    }

    /// The ranks of a shard's members, ascending; none if there is no such shard.
    #[must_use]
    pub fn members(&self, shard: usize) -> &[usize] {
        self.shards.get(shard).map_or(&[], Vec::as_slice)
    }

    /// The member that sequences a shard: the lowest rank.
    #[must_use]
    pub fn leader(&self, shard: usize) -> Option<usize> {
        self.members(shard).first().copied()
    }

    /// Takes all members out of a shard.
    pub(crate) fn clear(&mut self, shard: usize) {
        self.shards[shard].clear();
        self.populated &= !(1 << shard);
    }

    /// Whether the member with this rank leads a shard.
    #[must_use]
    pub fn leads(&self, rank: usize) -> bool {
        self.shard_of(rank).is_some_and(|shard| self.leader(shard) == Some(rank))
    }

    /// The shards that have members, as a set of bits. Only these count as destinations.
    #[must_use]
    pub const fn populated(&self) -> u64 {
        self.populated
    }
}

/// The shards of a set of bits, ascending.
pub(super) fn shards_of(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let shard = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (shard < SHARDS_MAX).then_some(shard)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_of_a_shard_leads_it() {
        let placement = ShardPlacement::new(vec![vec![4, 1], vec![], vec![0, 3]]);
        assert_eq!([0, 1, 2].map(|shard| placement.leader(shard)), [Some(1), None, Some(0)]);
        assert_eq!(
            (placement.populated(), placement.shard_of(3), placement.shard_of(2)),
            (0b101, Some(2), None)
        );
        assert!(placement.leads(0) && placement.leads(1) && !placement.leads(3) && !placement.leads(2));
        assert_eq!(shards_of(0b1010).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(shards_of(1 << 63 | 1).collect::<Vec<_>>(), [0, 63]);
    }
}
