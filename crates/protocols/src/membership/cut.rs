//! The cut: which members are removed when some do not hear each other (Derecho §2).
//!
//! A link that fails between two members is noticed only by these two, and each accuses the other. If members adopted
//! accusations as they arrive, in any order, both ends could be removed, and with several bad links a healthy
//! majority would fall apart. So an accusation removes no member by itself. The leader collects the accusations of
//! all members that it hears and removes a smallest set of members that contains an end of each bad link: the members
//! that stay hear each other \[V11\].
//!
//! - A member that is accused by all members that the leader hears, including the leader, is gone as far as they
//!   know: it is in the cut.
//! - For the rest, the cut is a *minimum vertex cover* of the graph of accusations; of several, the one with the
//!   younger members. So of two members that accuse only each other, the younger one is removed.
//! - A member that *concedes* an accusation (`concession.rs`) is removed rather than its accuser: of all covers, the
//!   cut takes one with the fewest members that do not concede. So a member that has accused several that stalled is
//!   not mistaken for their common cause \[V15\]. If no majority would be left, concessions do not count.
//! - A report that is still missing matters only if it could say that a member that stays does not hear another that
//!   stays. Every other report adds a link that the cut already covers, and with such links the cut remains a minimum
//!   cover. So the leader waits only for the former: a member either accuses a disputed member, or vouches for it.
//! - The leader also waits until each member that it accuses itself, and that would stay, is vouched for by a member
//!   that it hears. Such a member stays only if the cover contains the leader instead. If no other member hears it
//!   either, it is dead, and the leader must not be removed for its sake: the reports that put it into the cut have
//!   not arrived yet.
//!
//! The aim is that of Rapid's cut detection (Suresh et al. 2018); the method differs, since here every member hears
//! every other and a view has few members.

use crate::coverage::{Point, reach};

/// What the members of a view report about each other; sets of ranks are bit sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HearingReports {
    /// By rank: the members that this member does not hear.
    pub(super) accused: Vec<u64>,
    /// By rank: the members that were accused by any member, and have answered this one after that.
    pub(super) vouched: Vec<u64>,
    /// The ranks that have published that they concede.
    pub(super) concedes: u64,
}

impl HearingReports {
    /// Returns the ranks to remove, as the member with rank `own` has to determine them; `None` while a report is
    /// missing that could change them. `suffice` returns whether that many members may continue.
    pub(super) fn cut(&self, own: usize, suffice: impl Fn(u32) -> bool) -> Option<u64> {
        let members = self.accused.len();
        let heard = everybody(members) & !self.accused[own];
        let accused = |rank: usize| self.accused[rank];
        let forced = ranks(heard).fold(self.accused[own], |forced, rank| forced & accused(rank));
        let conceding = forced | self.cover(!forced, self.concedes);
        let counts = suffice((everybody(members) & !conceding).count_ones());
        let cut = if counts { conceding } else { forced | self.cover(!forced, 0) };
        let disputed = (0..members).map(accused).fold(0, |all, these| all | these) & everybody(members);
        let is_missing =
            |rank: usize| disputed & !cut & !(1 << rank) & !self.accused[rank] & !self.vouched[rank] != 0;
        let is_clear =
            !ranks(heard & !cut).any(is_missing) && self.answers_for(self.accused[own] & !cut, heard);
        if is_clear && cut != forced {
            reach(Point::CutByCover);
        }
        if is_clear && cut != forced | self.cover(!forced, 0) {
            reach(Point::CutByConcession);
        }
        is_clear.then_some(cut)
    }

    /// Returns a set that contains an end of each bad link among `among`, and as few members that do not concede as
    /// possible: a minimum set for the links between members that do not concede; then all members that concede to
    /// one of these that is left; then a minimum set for the links that are left between members that concede.
    fn cover(&self, among: u64, conceded: u64) -> u64 {
        let cover = least_cover(&self.links(among & !conceded));
        let links = self.links(among & !cover);
        let yields = |rank: &usize| links.get(*rank).is_some_and(|links| links & !conceded != 0);
        let cover = ranks(conceded & among).filter(yields).fold(cover, |cover, rank| cover | 1 << rank);
        cover | least_cover(&self.links(among & conceded & !cover))
    }

    /// Returns whether some member of `heard` vouches for each of `accused`. A member for which none vouches may
    /// still be forced into the cut: until that is known, its accuser is not removed for its sake.
    fn answers_for(&self, accused: u64, heard: u64) -> bool {
        let vouched = ranks(heard).fold(0, |all, rank| all | self.vouched[rank]);
        accused & !vouched == 0
    }

    /// Returns the bad links among `among`: by rank, the other ends.
    fn links(&self, among: u64) -> Vec<u64> {
        let members = self.accused.len();
        let mut links = vec![0; members];
        for rank in ranks(everybody(members) & among) {
            for other in ranks(self.accused[rank] & everybody(members) & among & !(1 << rank)) {
                links[rank] |= 1 << other;
                links[other] |= 1 << rank;
            }
        }
        links
    }
}

/// Returns the set of all ranks of a view.
pub(super) const fn everybody(members: usize) -> u64 {
    u64::MAX >> (super::MEMBERS_MAX - members)
}

/// Returns the ranks of a set, the lowest first. It takes a step for each of them, not for each of the
/// [`super::MEMBERS_MAX`] that a view may have: an evaluation iterates over several sets, and most are small.
pub(crate) fn ranks(set: u64) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let rank = (left != 0).then_some(left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        rank
    })
}

/// Returns a minimum set that contains an end of each link; of several the one with the greatest number, which has
/// the younger members.
fn least_cover(links: &[u64]) -> u64 {
    let mut search = Search { links, best: everybody(links.len()), steps: 0 };
    search.extend(everybody(links.len()), 0);
    search.best
}

/// The number of steps after which the best cover found so far is used. Links among 64 members that fail at random
/// take some thousands of steps; each costs less than a microsecond.
const STEPS_MAX: u32 = 20_000;

struct Search<'a> {
    links: &'a [u64],
    best: u64,
    steps: u32,
}

impl Search<'_> {
    /// Searches the covers that contain `chosen` and, besides it, only members of `open`.
    fn extend(&mut self, open: u64, chosen: u64) {
        self.steps += 1;
        let degree = |rank: usize| (self.links[rank] & open).count_ones();
        let busiest = ranks(open).max_by_key(|rank| degree(*rank)).map(|rank| (rank, degree(rank)));
        let Some((rank, most)) = busiest.filter(|(_, most)| *most > 1) else {
            // Links without common ends: the younger end of each.
            let single = ranks(open).filter(|rank| self.links[*rank] & open & ((1 << rank) - 1) != 0);
            return self.offer(single.fold(chosen, |cover, rank| cover | 1 << rank));
        };
        let links: u32 = ranks(open).map(degree).sum::<u32>() / 2;
        let least = chosen.count_ones() + links.div_ceil(most);
        if least > self.best.count_ones() || self.steps > STEPS_MAX {
            return;
        }
        let others = self.links[rank] & open;
        self.extend(open & !(1 << rank), chosen | 1 << rank);
        self.extend(open & !(1 << rank) & !others, chosen | others);
    }

    fn offer(&mut self, cover: u64) {
        let (size, best) = (cover.count_ones(), self.best.count_ones());
        if size < best || (size == best && cover > self.best) {
            self.best = cover;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(accused: &[u64], vouched: &[u64]) -> HearingReports {
        HearingReports { accused: accused.to_vec(), vouched: vouched.to_vec(), concedes: 0 }
    }

    impl HearingReports {
        fn cut_of_majority(&self, own: usize) -> Option<u64> {
            self.cut(own, |stay| 2 * stay as usize > self.accused.len())
        }
    }

    #[test]
    fn ranks_are_those_of_the_set() {
        for set in [0, 1, 0b1010, 1 << 63, 1 << 63 | 0b101, u64::MAX] {
            let each: Vec<usize> = (0..64).filter(|rank| set >> rank & 1 == 1).collect();
            assert_eq!(ranks(set).collect::<Vec<_>>(), each, "{set:b}");
        }
    }

    #[test]
    fn a_death_that_all_report_removes_the_dead() {
        assert_eq!(reports(&[0b100, 0b100, 0], &[0; 3]).cut_of_majority(0), Some(0b100));
        // The second leader learns of the first one's death before the others do.
        assert_eq!(reports(&[0, 0b001, 0], &[0; 3]).cut_of_majority(1), None);
        assert_eq!(reports(&[0, 0b001, 0b001], &[0; 3]).cut_of_majority(1), Some(0b001));
    }

    #[test]
    fn of_two_that_accuse_each_other_the_younger_is_removed() {
        let accused = [0, 0b0100, 0b0010, 0];
        assert_eq!(reports(&accused, &[0b0110, 0, 0, 0b0110]).cut_of_majority(0), Some(0b0100));
        // The other two have not reported yet which members they hear.
        assert_eq!(reports(&accused, &[0b0110, 0, 0, 0]).cut_of_majority(0), None);
        assert_eq!(
            reports(&accused, &[0b0010, 0, 0, 0b0010]).cut_of_majority(0),
            Some(0b0100),
            "a covered link needs no report"
        );
    }

    #[test]
    fn a_leader_with_several_bad_links_is_removed_itself() {
        let accused = [0b00110, 0b00001, 0b00001, 0, 0];
        let vouched = [0, 0, 0, 0b00111, 0b00111];
        assert_eq!(reports(&accused, &vouched).cut_of_majority(0), Some(0b00001));
        assert_eq!(reports(&accused, &[0; 5]).cut_of_majority(0), None);
    }

    /// Two members die at once: the member that noticed it first is not mistaken for the cause.
    #[test]
    fn two_deaths_at_once_wait_for_the_others_reports() {
        let accused = [0b00110, 0, 0, 0, 0];
        assert_eq!(reports(&accused, &[0; 5]).cut_of_majority(0), None);
        let accused = [0b00110, 0, 0, 0b00110, 0b00110];
        assert_eq!(reports(&accused, &[0; 5]).cut_of_majority(0), Some(0b00110));
    }

    /// The last member of four learns of the others' deaths one by one.
    #[test]
    fn an_accuser_is_not_removed_for_members_that_no_other_hears() {
        assert_eq!(reports(&[0b1000, 0b0101, 0, 0], &[0; 4]).cut_of_majority(1), None);
        assert_eq!(reports(&[0b1000, 0b1101, 0, 0], &[0; 4]).cut_of_majority(1), Some(0b1101));
    }

    /// The first of three stalled: the second accuses it, and the third has heard it again.
    #[test]
    fn a_member_that_concedes_is_removed_and_not_its_accuser() {
        let blamed = reports(&[0, 0b001, 0], &[0b001, 0, 0b001]);
        assert_eq!(blamed.cut_of_majority(0), Some(0b010), "a bad link like any other");
        let conceded = HearingReports { concedes: 0b001, ..blamed };
        assert_eq!([0, 1].map(|own| conceded.cut_of_majority(own)), [Some(0b001); 2]);
        let unheard = HearingReports { vouched: vec![0; 3], concedes: 0, ..conceded };
        assert_eq!(unheard.cut_of_majority(1), None, "whether it concedes is not known");
    }

    #[test]
    fn several_that_concede_are_removed_for_one_accuser() {
        let accused = [0, 0, 0b00011, 0, 0];
        let vouched = [0b00011; 5];
        assert_eq!(reports(&accused, &vouched).cut_of_majority(0), Some(0b00100));
        let conceded = HearingReports { concedes: 0b00011, ..reports(&accused, &vouched) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00011));
        // The accuser also does not hear one that has not stalled, and is removed for that reason.
        let conceded = HearingReports { concedes: 0b00001, ..reports(&accused, &vouched) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00100));
        // An accusation by another member is not excused by that.
        let conceded =
            HearingReports { concedes: 0b00001, ..reports(&[0, 0, 0b00011, 0, 0b00001], &vouched) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00101));
    }

    #[test]
    fn concessions_cost_no_majority() {
        let accused = [0, 0, 0, 0b00111, 0];
        let conceded = HearingReports { concedes: 0b00111, ..reports(&accused, &[0b00111; 5]) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b01000));
        assert_eq!(conceded.cut(0, |_| true), Some(0b00111), "partition safety is off");
    }

    /// Two stalled, and the one that resumed first found the other one silent.
    #[test]
    fn of_two_that_concede_to_each_other_the_younger_is_removed() {
        let conceded = HearingReports { concedes: 0b011, ..reports(&[0b010, 0, 0], &[0b010; 3]) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b010));
        let conceded = HearingReports { concedes: 0b111, ..reports(&[0, 0b001, 0], &[0b001; 3]) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b010), "all stalled");
    }

    /// Of all sets that cover all links, none has fewer members that do not concede.
    #[test]
    fn covers_have_the_fewest_members_that_do_not_concede() {
        for graph in 0..1_u32 << 10 {
            let pairs = (0..5_usize).flat_map(|a| (a + 1..5).map(move |b| (a, b)));
            let mut accused = [0_u64; 5];
            for (_, (a, b)) in pairs.enumerate().filter(|(i, _)| graph >> i & 1 == 1) {
                accused[a] |= 1 << b;
            }
            let reports = reports(&accused, &[0; 5]);
            let links = reports.links(u64::MAX);
            let covers = |set: &u64| (0..5).all(|rank| set >> rank & 1 == 1 || links[rank] & !set == 0);
            for conceded in 0..32_u64 {
                let cover = reports.cover(u64::MAX, conceded);
                let least = (0..32).filter(covers).map(|set| (set & !conceded).count_ones()).min();
                assert!(
                    covers(&cover) && Some((cover & !conceded).count_ones()) == least,
                    "{links:?} {conceded:b}"
                );
            }
        }
    }

    #[test]
    fn each_of_two_separated_parts_removes_the_other() {
        assert_eq!(reports(&[0b10, 0b01], &[0; 2]).cut_of_majority(0), Some(0b10));
        assert_eq!(reports(&[0b10, 0b01], &[0; 2]).cut_of_majority(1), Some(0b01));
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
            assert_eq!(Some(least_cover(&links)), best, "{links:?}");
        }
    }

    #[test]
    fn views_of_all_sizes_are_searched_within_bounds() {
        let mut state = 1_u64;
        for members in [63, 64] {
            for density in [2, 5, 20] {
                let mut links = vec![0_u64; members];
                for a in 0..members {
                    for b in 0..a {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        if (state >> 33) % 64 < density {
                            links[a] |= 1 << b;
                            links[b] |= 1 << a;
                        }
                    }
                }
                let cover = least_cover(&links);
                assert!(ranks(everybody(members) & !cover).all(|rank| links[rank] & !cover == 0));
            }
        }
    }
}
