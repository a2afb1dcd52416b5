//! Sets of ranks: the members that are accused, that have wedged, that are removed (Derecho §3.4, Table 1).

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

use super::MEMBERS_MAX;

const WORDS: usize = MEMBERS_MAX.div_ceil(64);

/// A set of ranks of a view: numbers below [`MEMBERS_MAX`].
///
/// A set has a bit for each rank that there may be, so that it is copied like a number. In rows and files it takes [`RankSet::words_for`] words of 64 bits,
/// the lowest ranks first: one word in views of up to 64 members. Sets in rows only grow, and a reader that sees some words of a new
/// value beside others of an earlier one sees a set between the two. Sets are ordered as the numbers that their bits form.
///
/// ```
/// use squall_protocols::membership::RankSet;
///
/// let gone: RankSet = [1, 70].into_iter().collect();
/// assert!(gone.contains(70) && !gone.contains(2));
/// assert_eq!((RankSet::all(72) - gone).len(), 70);
/// assert_eq!(gone.iter().collect::<Vec<_>>(), [1, 70]);
/// assert_eq!(gone.to_string(), "1, 70");
/// ```
#[derive(Clone, Copy, Default, Eq)]
pub struct RankSet([u64; WORDS]);

impl PartialEq for RankSet {
    /// Sets are compared in each evaluation of a view: without a call, and without a branch for each word.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (here, there)| differs | (here ^ there)) == 0
    }
}

impl RankSet {
    /// The set without ranks.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Returns the set of one rank.
    ///
    /// # Panics
    /// If `rank >= MEMBERS_MAX`.
    #[must_use]
    pub const fn of(rank: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(rank);
        set
    }

    /// Returns the set of the ranks below `members`, which are all ranks of a view with that many members.
    ///
    /// # Panics
    /// If `members > MEMBERS_MAX`.
    #[must_use]
    pub const fn all(members: usize) -> Self {
        assert!(members <= MEMBERS_MAX, "a view has at most MEMBERS_MAX members");
        let mut set = Self::EMPTY;
        let mut word = 0;
        while 64 * word < members {
            let rest = members - 64 * word;
            set.0[word] = if rest >= 64 { u64::MAX } else { (1 << rest) - 1 };
            word += 1;
        }
        set
    }

    /// Returns the set of the ranks below 64 whose bits are set.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let mut set = Self::EMPTY;
        set.0[0] = bits;
        set
    }

    /// Returns the set whose words are these, the lowest ranks first; words beyond [`MEMBERS_MAX`] ranks are not taken.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut set = Self::EMPTY;
        set.0.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        set
    }

    /// Returns the number of words that a set of ranks of a view with `members` members takes.
    #[must_use]
    pub const fn words_for(members: usize) -> usize {
        members.div_ceil(64)
    }

    /// Returns the words of the set in a view of `members` members, the lowest ranks first.
    pub fn words(&self, members: usize) -> impl Iterator<Item = u64> + '_ {
        self.0[..Self::words_for(members)].iter().copied()
    }

    /// Returns whether the set contains `rank`; none that is too large.
    #[must_use]
    pub const fn contains(&self, rank: usize) -> bool {
        rank < MEMBERS_MAX && self.0[rank / 64] >> (rank % 64) & 1 == 1
    }

    /// Adds a rank.
    ///
    /// # Panics
    /// If `rank >= MEMBERS_MAX`.
    pub const fn insert(&mut self, rank: usize) {
        self.0[rank / 64] |= 1 << (rank % 64);
    }

    /// Returns the set and this rank.
    ///
    /// # Panics
    /// If `rank >= MEMBERS_MAX`.
    #[must_use]
    pub const fn with(mut self, rank: usize) -> Self {
        self.insert(rank);
        self
    }

    /// Returns the set without this rank.
    #[must_use]
    pub fn without(self, rank: usize) -> Self {
        if rank < MEMBERS_MAX { self - Self::of(rank) } else { self }
    }

    /// Returns whether there is no rank in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        let (mut word, mut any) = (0, 0);
        while word < WORDS {
            any |= self.0[word];
            word += 1;
        }
        any == 0
    }

    /// Returns the number of ranks in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether all ranks of this set are in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(here, there)| here & !there == 0)
    }

    /// Returns the lowest rank in the set.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// Returns the ranks, the lowest first. It takes a step for each of them, not for each rank that there may be.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.0;
        let mut word = 0;
        std::iter::from_fn(move || {
            while left[word] == 0 {
                word += 1;
                if word == WORDS {
                    word -= 1;
                    return None;
                }
            }
            let rank = 64 * word + left[word].trailing_zeros() as usize;
            left[word] &= left[word] - 1;
            Some(rank)
        })
    }

    fn zip(mut self, other: Self, merge: impl Fn(u64, u64) -> u64) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(here, there)| *here = merge(*here, there));
        self
    }
}

impl BitOr for RankSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.zip(other, |here, there| here | there)
    }
}

impl BitOrAssign for RankSet {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl BitAnd for RankSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.zip(other, |here, there| here & there)
    }
}

impl Sub for RankSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |here, there| here & !there)
    }
}

impl FromIterator<usize> for RankSet {
    /// # Panics
    /// If a rank is [`MEMBERS_MAX`] or greater.
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> Self {
        ranks.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl PartialOrd for RankSet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankSet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rank) in self.iter().enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn listed(set: RankSet) -> BTreeSet<usize> {
        set.iter().collect()
    }

    /// Sets of several sizes: the multiples of a step from a first rank on.
    fn sets() -> Vec<BTreeSet<usize>> {
        let steps = [(0, 1), (0, 2), (1, 3), (63, 64), (5, 131), (MEMBERS_MAX - 1, 1), (MEMBERS_MAX, 1)];
        let progressions = steps.map(|(first, step)| (first..MEMBERS_MAX).step_by(step).collect());
        let short = [0..1, 3..7, 0..64, 60..70, 64..65].map(|ranks| ranks.collect());
        progressions.into_iter().chain(short).collect()
    }

    /// It does what a set of numbers does.
    #[test]
    fn a_set_of_ranks_is_a_set() {
        for a in sets() {
            let x: RankSet = a.iter().copied().collect();
            assert!(x.iter().eq(a.iter().copied()), "ascending");
            assert_eq!((x.len(), x.is_empty(), x.first()), (a.len(), a.is_empty(), a.first().copied()));
            for rank in [0, 1, 63, 64, MEMBERS_MAX - 1] {
                assert_eq!(x.contains(rank), a.contains(&rank), "{rank} in {x}");
                assert_eq!(listed(x.without(rank)), &a - &BTreeSet::from([rank]));
                assert_eq!(listed(x.with(rank)), &a | &BTreeSet::from([rank]));
            }
            for b in sets() {
                let y: RankSet = b.iter().copied().collect();
                assert_eq!((listed(x | y), listed(x & y), listed(x - y)), (&a | &b, &a & &b, &a - &b));
                assert_eq!((x.is_subset(&y), x == y), (a.is_subset(&b), a == b));
                assert_eq!(x.cmp(&y), a.iter().rev().cmp(b.iter().rev()), "as numbers: {x} and {y}");
            }
        }
    }

    #[test]
    fn a_set_is_as_long_as_its_view() {
        for members in [0, 1, 3, 63, 64, 65, 128, 1000, MEMBERS_MAX] {
            let all = RankSet::all(members);
            assert_eq!(listed(all), (0..members).collect());
            for set in sets() {
                let within = set.iter().copied().collect::<RankSet>() & all;
                let words: Vec<u64> = within.words(members).collect();
                assert_eq!((words.len(), RankSet::from_words(words)), (RankSet::words_for(members), within));
            }
        }
    }

    #[test]
    fn a_rank_that_is_too_large_is_in_no_set() {
        assert!(!RankSet::all(MEMBERS_MAX).contains(MEMBERS_MAX) && !RankSet::EMPTY.contains(usize::MAX));
        assert_eq!(RankSet::all(MEMBERS_MAX).without(usize::MAX).len(), MEMBERS_MAX);
    }
}
