//! Minimum vertex covers: the fewest members without which the others hear each other (Derecho §2).

use super::RankSet;

/// Returns a minimum set that contains an end of each link; of several the one with the greatest number, which has
/// the younger members.
pub(super) fn least_cover(links: &[RankSet]) -> RankSet {
    let all = RankSet::all(links.len());
    let linked = all.iter().filter(|rank| !links[*rank].is_empty()).collect::<RankSet>();
    // The first cover is found within a step for each member.
    let most = (STEPS_MAX * 64 / links.len().max(64)).max(2 * links.len());
    let mut search = Search { links, best: all, steps: 0, most };
    search.extend(linked, RankSet::EMPTY);
    search.best
}

/// The number of steps after which the best cover found so far is used; fewer in views of more than 64 members. Links among 64 members
/// that fail at random take some thousands of steps; each costs less than a microsecond.
const STEPS_MAX: usize = 20_000;

struct Search<'a> {
    links: &'a [RankSet],
    best: RankSet,
    steps: usize,
    /// The most steps.
    most: usize,
}

impl Search<'_> {
    /// Searches the covers that contain `chosen` and, besides it, only members of `open`.
    fn extend(&mut self, open: RankSet, chosen: RankSet) {
        self.steps += 1;
        let degree = |rank: usize| (self.links[rank] & open).len();
        let busiest = open.iter().max_by_key(|rank| degree(*rank)).map(|rank| (rank, degree(rank)));
        let Some((rank, most)) = busiest.filter(|(_, most)| *most > 1) else {
            // Links without common ends: the younger end of each.
            let has_older =
                |rank: &usize| (self.links[*rank] & open).first().is_some_and(|other| other < *rank);
            return self.offer(chosen | open.iter().filter(has_older).collect());
        };
        let links = open.iter().map(degree).sum::<usize>() / 2;
        let least = chosen.len() + links.div_ceil(most);
        if least > self.best.len() || self.steps > self.most {
            return;
        }
        let others = self.links[rank] & open;
        self.extend(open.without(rank), chosen.with(rank));
        self.extend(open.without(rank) - others, chosen | others);
    }

    fn offer(&mut self, cover: RankSet) {
        let (size, best) = (cover.len(), self.best.len());
        if size < best || (size == best && cover > self.best) {
            self.best = cover;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(bits: &[u64]) -> Vec<RankSet> {
        bits.iter().map(|bits| RankSet::from_bits(*bits)).collect()
    }

    fn bits(set: RankSet) -> u64 {
        set.words(64).sum()
    }

    #[test]
    fn covers_are_minimal_in_every_small_graph() {
        for graph in 0..1_u32 << 15 {
            let pairs = (0..6_usize).flat_map(|a| (a + 1..6).map(move |b| (a, b)));
            let mut links = vec![0_u64; 6];
            for (_, (a, b)) in pairs.enumerate().filter(|(i, _)| graph >> i & 1 == 1) {
                links[a] |= 1 << b;
                links[b] |= 1 << a;
            }
            let covers = |set: &u64| (0..6).all(|rank| set >> rank & 1 == 1 || links[rank] & !set == 0);
            let best = (0..64_u64).filter(covers).min_by_key(|set| (set.count_ones(), u64::MAX - set));
            assert_eq!(Some(bits(least_cover(&sets(&links)))), best, "{links:?}");
        }
    }

    #[test]
    fn views_of_all_sizes_are_searched_within_bounds() {
        let mut state = 1_u64;
        for members in [63, 64, 65, 200] {
            for density in [2, 5, 20] {
                let mut links = vec![RankSet::EMPTY; members];
                for a in 0..members {
                    for b in 0..a {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        if (state >> 33) % 64 < density {
                            links[a].insert(b);
                            links[b].insert(a);
                        }
                    }
                }
                let cover = least_cover(&links);
                assert!((RankSet::all(members) - cover).iter().all(|rank| links[rank].is_subset(&cover)));
                assert!(cover.len() < members, "the search has found one");
            }
        }
    }
}
