//! Minimum vertex covers: the fewest members without which the others hear each other (Derecho §2).
//!
//! Covers are searched within a number of steps ([`Search`]). That is enough for few bad links, and for all that can fail among some dozens
//! of members. When a group of a hundred parts, and its members notice that one by one, there are more covers of one size than
//! any search sees; but such a graph is nearly bipartite, and there the optimum of the linear relaxation, in which a member may
//! also be half in the cover, is whole. So where the search ends too early, it begins again with what a *reduction*
//! leaves of the graph (Nemhauser and Trotter 1975): some minimum cover contains all members that an optimum of the relaxation
//! has wholly in it, and none that it has wholly out. The relaxation's value is half the size of a maximum matching in the
//! graph that has each member twice, on the left and on the right, and each link between both of its ends (König 1931).
//! So a member can be wholly in the cover if the matching without it is smaller by two. What is left when these are taken has
//! one optimum, in which each member is half in the cover: cycles of odd length, links that fail at random.

use super::RankSet;
use crate::coverage::{Point, reach};
use crate::mutation;

/// A set of members that contains an end of each bad link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    pub(crate) members: RankSet,
    /// Whether no smaller set contains an end of each link. If not, no *part* of it does.
    pub(crate) is_least: bool,
}

/// Returns a minimum set that contains an end of each link, if it is found within bounds; of several, if they are few, the one with the
/// greatest number, which has the younger members. `links` has by rank the other ends.
pub(crate) fn least_cover(links: &[RankSet]) -> Cover {
    let found = Search::run(links, FIRST_STEPS_MAX);
    if found.is_least || mutant!(SearchCutShort) {
        return Cover { is_least: true, ..found };
    }
    reach(Point::CutReduced);
    let found = cover_by_reduction(links);
    Cover { members: without_needless(links, found.members), ..found }
}

/// Returns a set that contains an end of each link, a minimum one if what the reduction leaves of the links can be searched.
fn cover_by_reduction(links: &[RankSet]) -> Cover {
    let mut matching = Matching::new(links);
    let taken = matching.reduce();
    let rest: Vec<RankSet> = (0..links.len()).map(|rank| matching.links(rank)).collect();
    let found = Search::run(&rest, STEPS_MAX);
    Cover { members: taken | found.members, ..found }
}

/// Returns `cover` without members all of whose links end in it, the older ones first.
fn without_needless(links: &[RankSet], cover: RankSet) -> RankSet {
    let keep =
        |rest: RankSet, rank: usize| if links[rank].is_subset(&rest) { rest.without(rank) } else { rest };
    cover.iter().fold(cover, keep)
}

/// A maximum matching of the graph that has each member twice, on the left and on the right.
#[derive(Clone)]
struct Matching<'a> {
    links: &'a [RankSet],
    /// The members that have not been removed and have links.
    present: RankSet,
    /// For both sides, by rank: the rank on the other side.
    partners: [Vec<Option<usize>>; 2],
    size: usize,
}

const LEFT: usize = 0;
const RIGHT: usize = 1;

impl<'a> Matching<'a> {
    fn new(links: &'a [RankSet]) -> Self {
        let present = (0..links.len()).filter(|rank| !links[*rank].is_empty()).collect::<RankSet>();
        let nobody = vec![None; links.len()];
        let mut matching = Self { links, present, partners: [nobody.clone(), nobody], size: 0 };
        present.iter().for_each(|rank| matching.augment(LEFT, rank));
        matching
    }

    /// Returns the members that a member hears badly, of those that are left.
    fn links(&self, rank: usize) -> RankSet {
        if self.present.contains(rank) { self.links[rank] & self.present } else { RankSet::EMPTY }
    }

    /// Removes each member that the relaxation can have wholly in the cover, the younger ones first, and returns them.
    fn reduce(&mut self) -> RankSet {
        let mut taken = RankSet::EMPTY;
        let mut ranks: Vec<usize> = self.present.iter().collect();
        while let Some(rank) = ranks.pop() {
            if self.links(rank).is_empty() {
                continue;
            }
            let mut rest = self.clone();
            rest.remove(rank);
            if rest.size + 2 == self.size {
                taken.insert(rank);
                *self = rest;
            }
        }
        taken
    }

    /// Removes a member with all of its links; the matching is a maximum of what is left.
    fn remove(&mut self, rank: usize) {
        self.present = self.present.without(rank);
        let left =
            [LEFT, RIGHT].map(|side| self.partners[side][rank].take().map(|partner| (1 - side, partner)));
        for (side, partner) in left.into_iter().flatten() {
            self.partners[side][partner] = None;
            self.size -= 1;
        }
        left.into_iter().flatten().for_each(|(side, partner)| self.augment(side, partner));
    }

    /// Matches the member with this rank on the given side, if that makes the matching larger.
    fn augment(&mut self, side: usize, rank: usize) {
        if self.partners[side][rank].is_some() {
            return;
        }
        let mut unseen = self.present;
        // By rank on the other side: the member by whose link it was found.
        let mut found_by = vec![usize::MAX; self.links.len()];
        let mut open = vec![rank];
        while let Some(here) = open.pop() {
            let new = self.links[here] & unseen;
            unseen = unseen - new;
            for there in new.iter() {
                found_by[there] = here;
                match self.partners[1 - side][there] {
                    Some(next) => open.push(next),
                    None => return self.turn(side, there, &found_by),
                }
            }
        }
    }

    /// Exchanges the links in the matching with the others, along the path that ends in `there`.
    fn turn(&mut self, side: usize, mut there: usize, found_by: &[usize]) {
        self.size += 1;
        loop {
            let here = found_by[there];
            self.partners[1 - side][there] = Some(here);
            match self.partners[side][here].replace(there) {
                Some(before) => there = before,
                None => return,
            }
        }
    }
}

/// The number of steps after which a search of all links ends; fewer in views of more than 64 members. Each step costs about a microsecond,
/// and members that find a partition one by one search again and again.
const FIRST_STEPS_MAX: usize = 1_000;

/// The same for what the reduction leaves. Links among 64 members that fail at random take some thousands of steps.
const STEPS_MAX: usize = 20_000;

struct Search<'a> {
    links: &'a [RankSet],
    best: RankSet,
    steps: usize,
    /// The most steps.
    most: usize,
}

impl<'a> Search<'a> {
    fn run(links: &'a [RankSet], steps_max: usize) -> Cover {
        let linked = (0..links.len()).filter(|rank| !links[*rank].is_empty()).collect::<RankSet>();
        // The first cover is found within a step for each member.
        let most = (steps_max * 64 / links.len().max(64)).max(2 * links.len());
        let mut search = Search { links, best: linked, steps: 0, most };
        search.extend(linked, RankSet::EMPTY);
        Cover { members: search.best, is_least: search.steps <= most }
    }

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

    /// Returns the links between six members, one for each bit that is set.
    fn small_graph(graph: u32) -> [u64; 6] {
        let pairs = (0..6_usize).flat_map(|a| (a + 1..6).map(move |b| (a, b)));
        let mut links = [0_u64; 6];
        for (_, (a, b)) in pairs.enumerate().filter(|(i, _)| graph >> i & 1 == 1) {
            links[a] |= 1 << b;
            links[b] |= 1 << a;
        }
        links
    }

    /// Returns numbers below a bound that are the same in each run.
    fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 1_u64;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        }
    }

    #[test]
    fn covers_are_minimal_in_every_small_graph() {
        for graph in 0..1_u32 << 15 {
            let links = sets(&small_graph(graph));
            let covers = |set: &RankSet| (0..6).all(|rank| set.contains(rank) || links[rank].is_subset(set));
            let all = (0..64).map(RankSet::from_bits).filter(covers);
            let best = all.min_by_key(|set| (set.len(), std::cmp::Reverse(*set)));
            assert_eq!(Some(least_cover(&links).members), best, "{links:?}");
        }
    }

    /// The sizes alone: of several covers of one size, it need not find the one with the greatest number.
    #[test]
    fn covers_by_reduction_are_minimal_in_every_small_graph() {
        for graph in 0..1_u32 << 15 {
            let links = sets(&small_graph(graph));
            let found = cover_by_reduction(&links);
            let covers =
                (0..6).all(|rank| found.members.contains(rank) || links[rank].is_subset(&found.members));
            assert!(covers && found.is_least, "{links:?}");
            assert_eq!(found.members.len(), least_cover(&links).members.len(), "{links:?}");
        }
    }

    /// Links between two parts of a group fail at random, and some members die: as many are in the cover as links without common ends
    /// can be found between the parts (König 1931), and those that have died.
    #[test]
    fn covers_of_a_parted_group_are_minimal_whatever_its_size() {
        let mut below = random();
        for (members, parted) in [(20, 9), (64, 31), (100, 49), (160, 79), (300, 149)] {
            for (percent, dead) in [(1, 0), (3, 0), (10, 0), (50, 0), (100, 0), (100, 5)] {
                let mut links = vec![RankSet::EMPTY; members];
                for a in 0..members {
                    for b in 0..a {
                        let is_between = (a < parted) != (b < parted) || a >= members - dead;
                        if is_between && below(100) < percent {
                            links[a].insert(b);
                            links[b].insert(a);
                        }
                    }
                }
                let cover = least_cover(&links);
                assert!(
                    (RankSet::all(members) - cover.members)
                        .iter()
                        .all(|i| links[i].is_subset(&cover.members))
                );
                let least = if dead > 0 {
                    parted.min(members - parted - dead) + dead
                } else {
                    matched(&links, parted)
                };
                assert!(cover.is_least, "{members} members, {parted} parted, {percent} %");
                assert_eq!(cover.members.len(), least, "{members} members, {parted} parted, {percent} %");
            }
        }
    }

    /// The largest number of links without common ends between the ranks below `parted` and the others.
    fn matched(links: &[RankSet], parted: usize) -> usize {
        fn place(links: &[RankSet], of: usize, by: &mut [Option<usize>], unseen: &mut RankSet) -> bool {
            links[of].iter().any(|other| {
                let is_new = unseen.contains(other);
                *unseen = unseen.without(other);
                let is_free = is_new && by[other].is_none_or(|earlier| place(links, earlier, by, unseen));
                is_free && by[other].replace(of).is_none_or(|_| true)
            })
        }
        let mut by = vec![None; links.len()];
        (0..parted).filter(|of| place(links, *of, &mut by, &mut RankSet::all(links.len()))).count()
    }

    #[test]
    fn views_of_all_sizes_are_searched_within_bounds() {
        let mut below = random();
        for members in [63, 64, 65, 200] {
            for density in [2, 5, 20] {
                let mut links = vec![RankSet::EMPTY; members];
                for a in 0..members {
                    for b in 0..a {
                        if below(64) < density {
                            links[a].insert(b);
                            links[b].insert(a);
                        }
                    }
                }
                let Cover { members: cover, .. } = least_cover(&links);
                assert!((RankSet::all(members) - cover).iter().all(|rank| links[rank].is_subset(&cover)));
                let is_needed = |rank: usize| !links[rank].is_subset(&cover);
                assert!(cover.iter().all(is_needed), "no part of it is a cover");
            }
        }
    }
}
