//! What a member answers to questions that come to its admission listener.

use std::cmp::Reverse;
use std::sync::Arc;

use squall_fabric::atomics::Ordering;
use squall_fabric::{Duration, DurationHistogram, Fabric as _, Instant, NodeId};
use squall_log::WriteTally;
use squall_protocols::genuine::GenuineMember;
use squall_protocols::group::{SubgroupId, ViewChange};
use squall_protocols::membership::{Member, Membership, ViewChangeStep};
use squall_transports::bootstrap::{Address, Asker, wall_clock_millis};
use squall_transports::{PeerTraffic, TransportFabric as _};

use super::{Stack, figures};
use crate::durable::ProcessLog;
use crate::entry::restart::{answer_fetch, answer_of_member};
use crate::operate::calls::{FetchCall, FetchReply, RestartAnswer, RestartCall, RestartProcess};
use crate::operate::inquiry::{
    self, HeldUpLine, LAGS_MAX, LagLine, LatencyLine, LogLine, MemberLine, MemberStatus, ShardLine,
    ShardsLine, SlowestLine, StatusQuestion, SubgroupLine, TrafficLine, ViewChangeLine, WindowLine,
};
use crate::operate::metrics::ShardFigures;
use crate::operate::missing::MissingData;

impl Stack {
    /// Answers a question that came to the admission listener.
    #[cold]
    pub(super) fn answer(&self, asker: Asker, question: &[u8]) {
        match inquiry::read_question(question) {
            None => asker.answer(Vec::new()),
            Some(StatusQuestion::Service) => asker.answer(inquiry::write(&self.status.serves_objects())),
            Some(StatusQuestion::Clients) => match &*self.status.hub() {
                Some(hub) => Arc::clone(hub).answer(asker),
                None => asker.answer(inquiry::write(&false)),
            },
            Some(StatusQuestion::Status) => asker.answer(inquiry::write(&self.report())),
            Some(StatusQuestion::Restart(call)) => asker.answer(inquiry::write(&self.answer_restart(&call))),
            Some(StatusQuestion::Fetch(call)) => self.answer_fetch(asker, call),
            Some(StatusQuestion::Flight) => {
                asker.answer(inquiry::write(&self.status.flight_record()));
            }
        }
    }

    /// Answers a process that lacks a part of the log, by a thread of its own, since that reads the disk.
    fn answer_fetch(&self, asker: Asker, call: FetchCall) {
        match self.lender.as_ref().zip(self.group.register()) {
            Some((log, register)) => answer_fetch(log, &self.durable, register, asker, call),
            None => asker.answer(inquiry::write(&FetchReply::Nothing)),
        }
    }

    /// Answers a process that restarts, whose group runs \[T10\].
    fn answer_restart(&self, call: &RestartCall) -> RestartAnswer {
        let Some(register) = self.group.register() else { return RestartAnswer::OtherSubgroups };
        let roster = self.status.roster();
        let (own, rank) = (self.fabric.node().0, register.tag);
        let address = roster.get(&self.fabric.node()).map(Address::to_string).unwrap_or_default();
        let sender = RestartProcess { node: own, starts: register.starts, rank, address };
        answer_of_member(register, self.fabric.now().as_nanos(), sender, Vec::new(), call, true)
    }

    /// Returns this member's status, as it is sent to a process that asks for it.
    fn report(&self) -> MemberStatus {
        let membership = self.group.membership();
        let view = membership.map(Membership::view);
        let roster = self.status.roster();
        let line = |member: &Member| MemberLine {
            node: member.node.0,
            rank: member.tag,
            address: roster.get(&member.node).map(Address::to_string).unwrap_or_default(),
        };
        let members: Vec<MemberLine> =
            view.map(|view| view.members.iter().map(line).collect()).unwrap_or_default();
        let own = self.fabric.node().0;
        let now = self.fabric.now();
        let subgroup = |(name, id): (&String, SubgroupId)| self.subgroup_line(name, id, &members, now);
        MemberStatus {
            group: self.status.session(),
            node: own,
            rank: members.iter().find(|member| member.node == own).map_or(0, |member| member.rank),
            view: view.map_or(0, |view| view.id),
            ready: self.group.is_ready(),
            without_majority: self.group.lacks_majority(),
            missing: self.missing(),
            leaving: view.map_or_else(Vec::new, |view| view.leaving.iter().collect()),
            holders: view
                .map_or_else(Vec::new, |view| view.holders.iter().map(|set| set.iter().collect()).collect()),
            subgroups: self.names.iter().zip((0..).map(SubgroupId)).filter_map(subgroup).collect(),
            changes: self.group.timeline().filter_map(|change| change_line(change, now)).collect(),
            members,
            traffic: self.traffic(),
            log: self.log.as_ref().map(|log| log_line(log)),
            shards: self.shard_figures().map(shards),
            clock_millis: wall_clock_millis(),
        }
    }

    /// Returns what this member reports of a subgroup; `None` if it is not in it.
    fn subgroup_line(
        &self,
        name: &str,
        id: SubgroupId,
        members: &[MemberLine],
        now: Instant,
    ) -> Option<SubgroupLine> {
        let millis_since = |since: Instant| millis(now.since(since));
        let counters = self.group.counters(id)?;
        let rank = |node: NodeId| {
            members.iter().find(|member| member.node == node.0).map_or(0, |member| member.rank)
        };
        let held = self.group.held_up_by(id).map(|held| HeldUpLine {
            node: held.member.0,
            rank: rank(held.member),
            millis: millis_since(held.since),
        });
        let slowest = self.group.hold_up(id, now).map(|hold_up| SlowestLine {
            node: hold_up.member.0,
            rank: rank(hold_up.member),
            cause: hold_up.cause.to_string(),
            percent: hold_up.percent,
        });
        let (totals, times) = (self.group.totals(id), self.group.times(id));
        let mut lags = Vec::new();
        self.group.lags(id, |node, behind| {
            if behind > 0 {
                lags.push(LagLine { node: node.0, behind });
            }
        });
        lags.sort_by_key(|lag| Reverse(lag.behind));
        lags.truncate(LAGS_MAX);
        Some(SubgroupLine {
            name: name.to_owned(),
            sent: counters.messages_sent,
            delivered: counters.messages_delivered,
            held_up_by: held,
            slowest,
            stood_still_millis: self.group.stands_still_since(id).map(millis_since),
            unpersisted: self.log.as_ref().and_then(|log| log.unpersisted(id)),
            sent_total: totals.messages_sent,
            delivered_total: totals.messages_delivered + self.group.application_ref().pulled(id),
            window: self.group.window_use(id).map(|(used, size)| WindowLine { used, size }),
            window_full_millis: millis(times.full),
            latency: latency(&times.latencies),
            lags,
        })
    }

    /// Returns what of its data this member does not have yet.
    fn missing(&self) -> MissingData {
        let slots = self.names.iter().zip(self.group.application_ref().slots());
        let mut missing = MissingData::of_member(slots, self.log.as_deref());
        let shard = self.group.genuine_member().and_then(GenuineMember::lacked_state);
        missing.objects.extend(shard.map(|shard| self.shards[shard].clone()));
        missing
    }

    /// Returns what the transport has carried between this member and each other one.
    fn traffic(&self) -> Vec<TrafficLine> {
        let mut lines = Vec::new();
        self.fabric.traffic(&mut |PeerTraffic { peer, sent, received, .. }| {
            lines.push(TrafficLine { node: peer.0, sent, received });
        });
        lines
    }
}

/// Sums up a view change; `None` if messages do not flow yet.
fn change_line(change: &ViewChange, now: Instant) -> Option<ViewChangeLine> {
    let ready = change.steps.at(ViewChangeStep::Ready)?;
    let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    Some(ViewChangeLine {
        to: change.to,
        members: change.members as u64,
        removed: change.removed as u64,
        joined: change.joined as u64,
        ago_millis: millis(now.since(ready)),
        took_micros: figures::duration(change).map(micros),
    })
}

fn millis(passed: Duration) -> u64 {
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}

/// Sums up what a log has written.
fn log_line(log: &ProcessLog) -> LogLine {
    let WriteTally { frames, bytes, .. } = log.tally();
    LogLine { frames, bytes, is_short: log.shortage().load(Ordering::Relaxed) }
}

/// Returns what a member answers about the shards.
fn shards(figures: ShardFigures) -> ShardsLine {
    let ShardFigures { sent, under_way, own, behind, lacked_state: _ } = figures;
    let mut lags: Vec<LagLine> =
        behind.into_iter().map(|(node, behind)| LagLine { node: node.0, behind }).collect();
    lags.sort_by_key(|lag| Reverse(lag.behind));
    lags.truncate(LAGS_MAX);
    let own = own.map(|(name, progress)| ShardLine {
        name,
        leads: progress.leads,
        delivered_total: progress.delivered,
        pending: progress.pending,
        clock: progress.clock,
    });
    ShardsLine { sent_total: sent, under_way: under_way as u64, own, lags }
}

/// Sums up how long messages took.
fn latency(times: &DurationHistogram) -> Option<LatencyLine> {
    let nanos = |share| Some(u64::try_from(times.quantile(share)?.as_nanos()).unwrap_or(u64::MAX));
    Some(LatencyLine { measured: times.count(), p50_nanos: nanos(0.5)?, p99_nanos: nanos(0.99)? })
}
