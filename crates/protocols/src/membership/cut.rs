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
//!
//! `Deviation:` (§3.4) Derecho's members take over each other's suspicions; here the leader weighs them.

use super::RankSet;
use crate::coverage::{Point, reach};
use crate::members::{Cover, least_cover};
use crate::mutation;

/// What the members of a view report about each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HearingReports {
    /// By rank: the members that this member does not hear.
    pub(super) accused: Vec<RankSet>,
    /// By rank: the members that were accused by any member, and have answered this one after that.
    pub(super) vouched: Vec<RankSet>,
    /// The ranks that have published that they concede.
    pub(super) concedes: RankSet,
}

impl HearingReports {
    /// Returns the ranks to remove, as the member with rank `own` has to determine them; `None` while a report is
    /// missing that could change them. `suffice` returns whether that many members may continue.
    pub(super) fn cut(&self, own: usize, suffice: impl Fn(usize) -> bool) -> Option<RankSet> {
        let all = RankSet::all(self.accused.len());
        let heard = all - self.accused[own];
        let accused = |rank: usize| self.accused[rank];
        let forced = heard.iter().fold(self.accused[own], |forced, rank| forced & accused(rank));
        let rest = all - forced;
        let usual = self.cover(rest, RankSet::EMPTY);
        let conceding = if self.concedes.is_empty() { usual } else { self.cover(rest, self.concedes) };
        let concessions_count = suffice((all - forced - conceding.members).len());
        let cover = if concessions_count { conceding } else { usual };
        let cut = forced | cover.members;
        let disputed = self.accused.iter().fold(RankSet::EMPTY, |all, these| all | *these) & all;
        // With more reports, another cover may be smaller than one that is not known to be a minimum.
        let is_least = cover.is_least && conceding.is_least || mutant!(CutUnproven);
        let (matters, reporters) = if is_least { (disputed - cut, heard - cut) } else { (disputed, heard) };
        let is_missing =
            |rank: usize| !(matters - self.accused[rank] - self.vouched[rank]).without(rank).is_empty();
        let is_clear = !reporters.iter().any(is_missing) && self.answers_for(self.accused[own] - cut, heard);
        if is_clear && !cover.members.is_empty() {
            reach(Point::CutByCover);
        }
        if is_clear && cover != usual {
            reach(Point::CutByConcession);
        }
        is_clear.then_some(cut)
    }

    /// Returns a set that contains an end of each bad link among `among`, and as few members that do not concede as
    /// possible: a minimum set for the links between members that do not concede; then all members that concede to
    /// one of these that is left; then a minimum set for the links that are left between members that concede.
    fn cover(&self, among: RankSet, conceded: RankSet) -> Cover {
        let others = least_cover(&self.links(among - conceded));
        let links = self.links(among - others.members);
        let yields = |rank: &usize| links.get(*rank).is_some_and(|links| !links.is_subset(&conceded));
        let members = others.members | (conceded & among).iter().filter(yields).collect();
        let rest = least_cover(&self.links((among & conceded) - members));
        Cover { members: members | rest.members, is_least: others.is_least && rest.is_least }
    }

    /// Returns whether some member of `heard` vouches for each of `accused`. A member for which none vouches may
    /// still be forced into the cut: until that is known, its accuser is not removed for its sake.
    fn answers_for(&self, accused: RankSet, heard: RankSet) -> bool {
        let vouched = heard.iter().fold(RankSet::EMPTY, |all, rank| all | self.vouched[rank]);
        accused.is_subset(&vouched)
    }

    /// Returns the bad links among `among`: by rank, the other ends.
    fn links(&self, among: RankSet) -> Vec<RankSet> {
        let members = self.accused.len();
        let among = among & RankSet::all(members);
        let mut links = vec![RankSet::EMPTY; members];
        for rank in among.iter() {
            for other in (self.accused[rank] & among).without(rank).iter() {
                links[rank].insert(other);
                links[other].insert(rank);
            }
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(accused: &[u64], vouched: &[u64]) -> HearingReports {
        HearingReports { accused: sets(accused), vouched: sets(vouched), concedes: RankSet::EMPTY }
    }

    fn sets(bits: &[u64]) -> Vec<RankSet> {
        bits.iter().map(|bits| RankSet::from_bits(*bits)).collect()
    }

    fn bits(set: RankSet) -> u64 {
        set.words(64).sum()
    }

    impl HearingReports {
        fn cut_of_majority(&self, own: usize) -> Option<u64> {
            self.cut(own, |stay| 2 * stay > self.accused.len()).map(bits)
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
        let conceded = HearingReports { concedes: RankSet::of(0), ..blamed };
        assert_eq!([0, 1].map(|own| conceded.cut_of_majority(own)), [Some(0b001); 2]);
        let unheard = HearingReports { vouched: sets(&[0; 3]), concedes: RankSet::EMPTY, ..conceded };
        assert_eq!(unheard.cut_of_majority(1), None, "whether it concedes is not known");
    }

    #[test]
    fn several_that_concede_are_removed_for_one_accuser() {
        let accused = [0, 0, 0b00011, 0, 0];
        let vouched = [0b00011; 5];
        assert_eq!(reports(&accused, &vouched).cut_of_majority(0), Some(0b00100));
        let conceded =
            HearingReports { concedes: RankSet::from_bits(0b00011), ..reports(&accused, &vouched) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00011));
        // The accuser also does not hear one that has not stalled, and is removed for that reason.
        let conceded =
            HearingReports { concedes: RankSet::from_bits(0b00001), ..reports(&accused, &vouched) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00100));
        // An accusation by another member is not excused by that.
        let conceded = HearingReports {
            concedes: RankSet::from_bits(0b00001),
            ..reports(&[0, 0, 0b00011, 0, 0b00001], &vouched)
        };
        assert_eq!(conceded.cut_of_majority(0), Some(0b00101));
    }

    #[test]
    fn concessions_cost_no_majority() {
        let accused = [0, 0, 0, 0b00111, 0];
        let conceded =
            HearingReports { concedes: RankSet::from_bits(0b00111), ..reports(&accused, &[0b00111; 5]) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b01000));
        assert_eq!(conceded.cut(0, |_| true).map(bits), Some(0b00111), "partition safety is off");
    }

    /// Two stalled, and the one that resumed first found the other one silent.
    #[test]
    fn of_two_that_concede_to_each_other_the_younger_is_removed() {
        let conceded =
            HearingReports { concedes: RankSet::from_bits(0b011), ..reports(&[0b010, 0, 0], &[0b010; 3]) };
        assert_eq!(conceded.cut_of_majority(0), Some(0b010));
        let conceded =
            HearingReports { concedes: RankSet::from_bits(0b111), ..reports(&[0, 0b001, 0], &[0b001; 3]) };
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
            let all = RankSet::all(5);
            let links: Vec<u64> = reports.links(all).into_iter().map(bits).collect();
            let covers = |set: &u64| (0..5).all(|rank| set >> rank & 1 == 1 || links[rank] & !set == 0);
            for conceded in 0..32_u64 {
                let cover = bits(reports.cover(all, RankSet::from_bits(conceded)).members);
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

    /// Links of 200 members fail at random: the search of covers ends before it has seen all of them.
    #[test]
    fn a_cover_that_may_not_be_the_least_waits_for_all_reports() {
        let (members, mut below) = (200, random());
        let mut accused = vec![RankSet::EMPTY; members];
        for (a, b) in (0..members).flat_map(|a| (0..a).map(move |b| (a, b))) {
            if below(10) == 0 {
                accused[a].insert(b);
                accused[b].insert(a);
            }
        }
        let all = RankSet::all(members);
        let mut reports = HearingReports { accused, vouched: vec![all; members], concedes: RankSet::EMPTY };
        let cover = reports.cover(all, RankSet::EMPTY);
        assert!(!cover.is_least, "otherwise this shows nothing");
        let cut = |reports: &HearingReports| reports.cut(0, |_| true);
        assert_eq!(cut(&reports), Some(cover.members));
        // One report is missing: of two that hear each other so far, one of which the cover has.
        let link = |a: usize| (cover.members - reports.accused[a]).iter().find(|b| a != *b).map(|b| (a, b));
        let (a, b) =
            (all - cover.members - reports.accused[0]).iter().find_map(link).expect("not all links are bad");
        reports.vouched[a] = all.without(b);
        assert_eq!(cut(&reports), None);
        assert_eq!(mutation::with(mutation::Mutation::CutUnproven, || cut(&reports)), Some(cover.members));
    }

    /// Returns numbers below a bound that are the same in each run.
    fn random() -> impl FnMut(usize) -> usize {
        let mut state = 7_u64;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        }
    }

    /// Whatever has been reported so far, no member of the greater part is removed.
    #[test]
    fn no_member_of_the_greater_part_is_removed_while_reports_come() {
        let cases =
            [(9, 4, 0), (40, 19, 1), (64, 31, 0), (100, 49, 0), (130, 58, 3), (160, 79, 0), (256, 120, 6)];
        for (members, parted, dead) in cases {
            let removed = removed_as_reports_come(members, parted, dead);
            assert_eq!(removed, RankSet::EMPTY, "{members} members, {parted} parted, {dead} dead");
        }
        let caught = || !removed_as_reports_come(160, 79, 0).is_empty();
        assert!(mutation::with(mutation::Mutation::SearchCutShort, caught));
    }

    /// The network parts, some members die, and the others notice that link by link, in any order; in the end the cut has just those. Returns
    /// the members of the greater part that a cut had before that.
    fn removed_as_reports_come(members: usize, parted: usize, dead: usize) -> RankSet {
        let mut below = random();
        let mut ranks: Vec<usize> = (0..members).collect();
        (1..members).rev().for_each(|i| ranks.swap(i, below(i + 1)));
        let set = |ranks: &[usize]| ranks.iter().copied().collect::<RankSet>();
        let (dying, parted) = (set(&ranks[..dead]), set(&ranks[dead..dead + parted]));
        let stay = RankSet::all(members) - dying - parted;
        // Those that stay have answered each other; the parted ones may have noticed the deaths before the network parted.
        let vouched = (0..members).map(|i| if stay.contains(i) { stay } else { RankSet::EMPTY }).collect();
        let accused = vec![RankSet::EMPTY; members];
        let mut reports = HearingReports { accused, vouched, concedes: RankSet::EMPTY };
        let lost = |i: usize| if stay.contains(i) { dying | parted } else { dying };
        let mut links: Vec<(usize, usize)> =
            (stay | parted).iter().flat_map(|i| lost(i).iter().map(move |j| (i, j))).collect();
        (1..links.len()).rev().for_each(|i| links.swap(i, below(i + 1)));
        let cut = |reports: &HearingReports| {
            reports.cut(stay.first().expect("most stay"), |stay| 2 * stay > members)
        };
        let mut removed = RankSet::EMPTY;
        for some in links.chunks(links.len() / 20 + 1) {
            some.iter().for_each(|(i, j)| reports.accused[*i].insert(*j));
            removed |= cut(&reports).unwrap_or_default() & stay;
        }
        assert_eq!(cut(&reports).map(|cut| cut - stay), Some(dying | parted));
        removed
    }
}
