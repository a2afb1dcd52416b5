//! The row of a member that waits: its report, which others read whole or not at all (Derecho §3.4).
//!
//! A report takes the place of the one before, word by word, so a reader may see parts of two. Each has a digest of all its words: a
//! reader takes no report whose digest is another, and looks again.

use std::ops::Range;

use squall_fabric::{Column, Region, RowLayout};

use crate::ends::Ballot;
use crate::membership::{MembershipRow, Proposal, RankSet};

/// A proposal with the copies that it asks for, by subgroup \[H10\].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskingProposal {
    pub(super) proposal: Proposal,
    /// How many of those that it keeps have to vote for it under its ballot.
    pub(super) need: Vec<u64>,
    /// The least that is known to be asked for under any ballot.
    pub(super) carry: Vec<u64>,
}

/// What a member that waits says to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingReport {
    /// Rises with each report of the member in its view; a member that does not wait has none.
    pub(super) number: u64,
    /// The members that it hears, itself included.
    pub(super) hears: RankSet,
    /// The states that it holds, as in its row of the view.
    pub(super) holds: Vec<u64>,
    /// Its final counts, as in its row of the view.
    pub(super) counts: Vec<u64>,
    pub(super) promise: Option<Ballot>,
    /// The ballot that it leads.
    pub(super) lead: Option<Ballot>,
    /// What it proposes under that ballot; once the view has ended, what has been decided.
    pub(super) proposal: Option<AskingProposal>,
    pub(super) vote: Option<(Ballot, AskingProposal)>,
    /// It knows how the view ends.
    pub(super) has_ended: bool,
}

/// The layout of the row.
#[derive(Clone, Debug)]
pub(super) struct WaitingRow {
    /// Rises while the member waits, and after each report.
    pub(super) beat: Column<u64>,
    /// What it asks others for ([`LogPeers`](crate::membership::LogPeers)).
    pub(super) asks: Column<u64>,
    /// The first word of the report.
    first: usize,
    members: usize,
    subgroups: usize,
    trims: usize,
    states: usize,
    holds: usize,
    counts: usize,
    /// The number of words of the whole row.
    pub(super) words: usize,
}

/// Number, digest, flags, and the three ballots, of two words each.
const HEAD_WORDS: usize = 9;

impl WaitingRow {
    /// Returns the layout in a view of `members` members with `subgroups` subgroups, whose table has the rows `row`.
    pub(super) fn new(members: usize, subgroups: usize, row: &MembershipRow) -> Self {
        let mut layout = RowLayout::new();
        let (beat, asks) = (layout.column(), layout.column());
        let (holds, counts) = (row.holds.count(), row.counts.count());
        let lists = RankSet::words_for(members) + holds + counts;
        let proposals = 2 * (Proposal::words(members, row.trims, row.states) + 2 * subgroups);
        let first = layout.block(HEAD_WORDS + lists + proposals);
        let (trims, states) = (row.trims, row.states);
        Self { beat, asks, first, members, subgroups, trims, states, holds, counts, words: layout.words() }
    }

    /// Returns the words of the report.
    pub(super) fn report(&self) -> Range<usize> {
        self.first..self.proposal(2)
    }

    /// Returns the number of the report in `row`, of which not all may be there.
    pub(super) fn number(&self, row: &Region) -> u64 {
        row.load(self.first)
    }

    fn proposal(&self, place: usize) -> usize {
        let lists = RankSet::words_for(self.members) + self.holds + self.counts;
        self.first + HEAD_WORDS + lists + place * (self.copies() + 2 * self.subgroups)
    }

    /// Returns where, after the first word of a proposal, the copies are that it asks for.
    const fn copies(&self) -> usize {
        Proposal::words(self.members, self.trims, self.states)
    }

    fn store_proposal(&self, row: &Region, place: usize, asking: &AskingProposal) {
        let first = self.proposal(place);
        asking.proposal.store(row, first, 0, self.members);
        let copies = asking.need.iter().chain(&asking.carry).enumerate();
        copies.for_each(|(i, copies)| row.store(first + self.copies() + i, *copies));
    }

    fn load_proposal(&self, row: &Region, place: usize) -> Option<AskingProposal> {
        let first = self.proposal(place);
        let proposal = Proposal::load(row, first, self.members, self.trims, self.states)?;
        let copies = |first: usize| (first..first + self.subgroups).map(|word| row.load(word)).collect();
        let copies_at = first + self.copies();
        Some(AskingProposal { proposal, need: copies(copies_at), carry: copies(copies_at + self.subgroups) })
    }

    /// Writes a report into the member's own row.
    pub(super) fn store(&self, row: &Region, report: &WaitingReport) {
        let ballots = [report.promise, report.lead, report.vote.as_ref().map(|(ballot, _)| *ballot)];
        let is_there = ballots.map(|ballot| ballot.is_some());
        let flags = [is_there[0], is_there[1], is_there[2], report.proposal.is_some(), report.has_ended];
        let flags = flags.iter().rev().fold(0, |word, flag| word << 1 | u64::from(*flag));
        let words =
            |ballot: Option<Ballot>| ballot.map_or([0; 2], |ballot| [ballot.round, ballot.place.into()]);
        let lists = report.hears.words(self.members).chain(report.holds.iter().copied());
        let lists = lists.chain(report.counts.iter().copied());
        let head = [report.number, 0, flags].into_iter().chain(ballots.into_iter().flat_map(words));
        for (i, word) in head.chain(lists).enumerate() {
            row.store(self.first + i, word);
        }
        let proposals = [report.vote.as_ref().map(|(_, proposal)| proposal), report.proposal.as_ref()];
        for (place, proposal) in proposals.into_iter().enumerate() {
            proposal.into_iter().for_each(|proposal| self.store_proposal(row, place, proposal));
        }
        row.store(self.first + 1, self.digest(row));
    }

    /// Reads the report in `row`, if it is there whole.
    pub(super) fn load(&self, row: &Region) -> Option<WaitingReport> {
        let number = self.number(row);
        let words: Vec<u64> = self.report().map(|word| row.load(word)).collect();
        if number == 0 || words[0] != number || words[1] != digest(&words) {
            return None;
        }
        let copy = Region::heap(squall_fabric::RegionId(0), self.words);
        words.iter().enumerate().for_each(|(i, word)| copy.store(self.first + i, *word));
        let has = |flag: u32| words[2] >> flag & 1 == 1;
        let ballot = |nth: usize| {
            let (round, place) = (words[3 + 2 * nth], u32::try_from(words[4 + 2 * nth]).ok()?);
            Some(Ballot { round, place })
        };
        let ballot = |nth: u32| has(nth).then(|| ballot(nth as usize)).flatten();
        let proposal = |place| self.load_proposal(&copy, place);
        let each = RankSet::words_for(self.members);
        let (sets, lists) = words[HEAD_WORDS..].split_at(each);
        Some(WaitingReport {
            number,
            hears: RankSet::from_words(sets.iter().copied()),
            holds: lists[..self.holds].to_vec(),
            counts: lists[self.holds..self.holds + self.counts].to_vec(),
            promise: ballot(0),
            lead: ballot(1),
            vote: ballot(2).and_then(|ballot| Some((ballot, proposal(0)?))),
            proposal: has(3).then(|| proposal(1)).flatten(),
            has_ended: has(4),
        })
    }

    fn digest(&self, row: &Region) -> u64 {
        digest(&self.report().map(|word| row.load(word)).collect::<Vec<_>>())
    }
}

/// Returns a digest of a report's words but for the second one, which has it (FNV-1a, by words).
fn digest(words: &[u64]) -> u64 {
    let others = words[..1].iter().chain(&words[2..]);
    others.fold(0xcbf2_9ce4_8422_2325, |digest, word| {
        let mixed = (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ mixed >> 29
    })
}

#[cfg(test)]
mod tests {
    use squall_fabric::{NodeId, RegionId};

    use super::*;
    use crate::membership::{Member, SenderSegment};

    fn proposal(members: usize) -> AskingProposal {
        let proposal = Proposal {
            removed: RankSet::of(members - 1),
            leaving: RankSet::EMPTY,
            joins: vec![Member { node: NodeId(7), tag: 9 }],
            holders: vec![RankSet::of(1), RankSet::EMPTY],
            trims: vec![3, u64::MAX],
        };
        AskingProposal { proposal, need: vec![2], carry: vec![1] }
    }

    fn report(members: usize) -> WaitingReport {
        WaitingReport {
            number: 4,
            hears: [0, members - 1].into_iter().collect(),
            holds: vec![0b10],
            counts: vec![3, 0],
            promise: Some(Ballot::WAITS),
            lead: Some(Ballot { round: u64::MAX, place: u32::MAX }),
            proposal: Some(proposal(members)),
            vote: Some((Ballot::live(2), proposal(members))),
            has_ended: true,
        }
    }

    fn row(members: usize) -> (WaitingRow, Region) {
        let ranks = (0..members).collect();
        let segment =
            SenderSegment { counts: 0, trims: 0, senders: 2, ranks, durable: None, quorum: members };
        let row = WaitingRow::new(members, 1, &MembershipRow::new(members, &[segment], 2));
        let region = Region::heap(RegionId(1), row.words);
        (row, region)
    }

    #[test]
    fn a_report_is_loaded_as_it_was_stored() {
        for members in [2, 64, 65] {
            let (row, region) = row(members);
            assert_eq!(row.load(&region), None);
            for report in [report(members), WaitingReport { number: 5, ..empty() }] {
                row.store(&region, &report);
                assert_eq!(row.load(&region), Some(report));
            }
        }
    }

    fn empty() -> WaitingReport {
        WaitingReport { holds: vec![0], counts: vec![0, 0], ..WaitingReport::default() }
    }

    /// A reader that has some words of the next report takes none of it.
    #[test]
    fn a_torn_report_is_none() {
        let (row, region) = row(3);
        let (_, next) = self::row(3);
        row.store(&region, &report(3));
        row.store(&next, &WaitingReport { number: 5, promise: None, hears: RankSet::of(1), ..report(3) });
        let words: Vec<usize> = row.report().filter(|word| region.load(*word) != next.load(*word)).collect();
        assert!(words.len() > 3, "they differ in more than the number and the digest");
        for some in 1..words.len() {
            let (_, torn) = self::row(3);
            row.report().for_each(|word| torn.store(word, region.load(word)));
            words[..some].iter().for_each(|word| torn.store(*word, next.load(*word)));
            assert_eq!(row.load(&torn), None, "{some} words of the next one");
        }
    }
}
