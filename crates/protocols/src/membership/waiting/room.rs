//! What a member has while it waits for a majority, what it hears from others and says to them (Derecho §3.4) \[V17\].

use std::sync::Arc;

use squall_fabric::{Fabric, Instant};

use super::board::{WaitingReport, WaitingRow};
use super::values::WaitingValues;
use crate::ends::{EndReports, EndSettings, WaitingMember};
use crate::membership::{LogPeers, Proposal, RankSet, SenderSegment, Subgroups};
use crate::sst::StateTable;

/// What a member has while it waits.
#[derive(Debug)]
pub(in crate::membership) struct WaitingRoom {
    pub(super) table: StateTable,
    pub(super) row: WaitingRow,
    /// In a group with durable subgroups nothing is given up for silence.
    pub(super) settings: EndSettings,
    pub(super) values: WaitingValues,
    pub(super) member: WaitingMember,
    pub(super) reports: EndReports,
    /// The latest beat of each member, and the number of its latest report that was taken, by rank.
    pub(super) seen: Vec<(u64, u64)>,
    /// The members that know how the view ends.
    pub(super) informed: RankSet,
    /// What it has said last.
    pub(super) said: WaitingReport,
    pub(super) beat_at: Instant,
    /// The members that were dead at the last evaluation, and since when these are.
    pub(super) dead: (RankSet, Instant),
    /// By rank what a member counts, once it has reported.
    pub(super) counts: Vec<Option<Vec<u64>>>,
    /// What this member has of what it counts, with what it has got from others since.
    pub(super) held: Vec<u64>,
    /// How the view ends, as soon as this member has what that keeps.
    pub(super) end: Option<Proposal>,
}

impl WaitingRoom {
    /// Returns whether another member has posted a beat, as it does after each report.
    pub(super) fn hears_news(&self) -> bool {
        let rows = self.table.rows().iter().zip(&self.seen).enumerate();
        let mut others = rows.filter(|(rank, _)| *rank != self.table.rank());
        others.any(|(_, (row, (beat, _)))| self.row.beat.load(row) != *beat)
    }

    /// Takes beats and reports; returns what another member says has been decided, with its rank.
    pub(super) fn hear(&mut self, now: Instant) -> Option<(usize, Proposal)> {
        let mut ended = None;
        for rank in self.values.view().ranks().without(self.table.rank()).iter() {
            let (row, node) = (self.table.row(rank), self.values.view().members[rank].node);
            let (beat, number) = &mut self.seen[rank];
            let shown = self.row.beat.load(row);
            if shown != *beat {
                *beat = shown;
                self.reports.hear(now, node);
            }
            if self.row.number(row) == *number {
                continue;
            }
            let Some(report) = self.row.load(row) else { continue };
            *number = report.number;
            if report.has_ended {
                self.informed.insert(rank);
                ended = report.proposal.clone().map(|asking| (rank, asking.proposal));
            }
            self.counts[rank] = Some(report.counts.clone());
            self.values.note_states(rank, &report.holds);
            self.reports.take(now, node, Arc::new(self.values.report(report)));
        }
        ended
    }

    /// Puts the own report where the member and the others see it.
    pub(super) fn say(&mut self, now: Instant, hears: RankSet, decision: Option<&Proposal>) {
        let register = &self.member.register;
        let lead = self.member.lead();
        let led = lead.and_then(|lead| lead.proposal.as_ref());
        let of = |proposal: &crate::ends::EndProposal| self.values.asking(proposal);
        let report = WaitingReport {
            number: self.said.number,
            hears,
            promise: register.promise(),
            lead: lead.map(|lead| lead.ballot),
            proposal: decision.map(|end| self.values.decision(end)).or_else(|| led.map(of)),
            vote: register.vote().map(|vote| (vote.ballot, of(&vote.proposal))),
            has_ended: decision.is_some(),
            ..self.said.clone()
        };
        if report != self.said || report.number == 0 || self.table.take_late_reader() {
            self.said = WaitingReport { number: report.number + 1, ..report };
            self.row.store(self.table.own(), &self.said);
            self.table.append(self.row.report());
            self.beat();
        }
        let own = self.values.view().members[self.table.rank()].node;
        self.reports.take(now, own, Arc::new(self.values.report(self.said.clone())));
        self.reports.hear(now, own);
    }

    /// Notes that this member has what the trims of a proposal hold of its shards.
    pub(super) fn hold(&mut self, segments: &[SenderSegment], proposal: &Proposal) {
        let own = self.table.rank();
        for SenderSegment { counts, trims, senders, ranks, .. } in segments {
            let trims = proposal.trims[*trims..trims + senders].iter().filter(|_| ranks.contains(&own));
            for (held, trim) in self.held[*counts..].iter_mut().zip(trims) {
                *held = (*held).max(*trim);
            }
        }
    }

    /// Returns the members that are heard at present, with this one.
    pub(super) fn heard(&self, now: Instant) -> RankSet {
        self.reports.heard(self.values.view(), now, self.settings.silence).with(self.table.rank())
    }

    /// Returns the words with which members ask for logs, by rank.
    pub(super) fn asks(&self) -> Vec<u64> {
        self.table.rows().iter().map(|row| self.row.asks.load(row)).collect()
    }

    /// Gets from others what this member lacks, and sends them what they lack \[G11\]. Those that know how the view ends may be in the
    /// next one, where they serve, and are heard no more.
    pub(super) fn exchange_log<F: Fabric>(
        &mut self,
        fabric: &mut F,
        subgroups: &mut impl Subgroups<F>,
        heard: RankSet,
    ) -> usize {
        let able = (heard | self.informed) - self.dead.0;
        let count = |rank: usize, column: usize| {
            let counts = self.counts[rank].as_ref().filter(|_| able.contains(rank));
            counts?.get(column).copied()
        };
        let peers = LogPeers { asks: &self.asks(), count: &count };
        let (asks, work) = subgroups.exchange_log(fabric, &peers);
        if asks > self.row.asks.load(self.table.own()) {
            self.table.raise(self.row.asks, asks);
            self.beat();
        }
        work
    }

    pub(super) fn beat(&mut self) {
        let beat = self.row.beat.load(self.table.own()) + 1;
        self.table.renew(self.row.beat, beat);
    }
}
