//! The change from one view to the next: subgroups deliver their trims and begin anew (Derecho §3.4).

use std::collections::BTreeMap;

use squall_fabric::window::WindowWriter;
use squall_fabric::{Fabric, Instant, NodeId};

use super::active::{ActiveSubgroup, AnySubgroup, UpcallGate, either};
use super::core::{GroupCore, GroupStage, PresentView, SKIP};
use super::layout::segments;
use super::register::view_end;
use super::rota::SubgroupRota;
use super::succession::Successions;
use super::{FlightEvent, GroupApplication, GroupEnd, Placement, SubgroupId, SubgroupOutlet, ViewChange};
use crate::coverage::{Point, reach};
use crate::genuine::{GenuineCarryover, QuorumRule};
use crate::membership::{MembershipSettings, Proposal, SenderSegment, StopReason, View};
use crate::multicast::{Deliver, DeliveryMode, Subgroup, SubgroupFailure, ViewStart};
use crate::mutation;

/// What the subgroups of an ended view leave to the next one.
type Carryovers<D> = BTreeMap<SubgroupId, Carryover<D>>;

/// What one subgroup leaves: its upcall, if it has one, and the value of [`ViewStart::known`].
type Carryover<D> = (Option<D>, Vec<(NodeId, u64)>);

impl<A: GroupApplication> GroupCore<A> {
    /// Ends the view as decided and begins the next one.
    pub(super) fn change_view<F: Fabric>(&mut self, fabric: &mut F, present: PresentView<A::Deliver>) {
        let PresentView { membership, mut subgroups, shards, .. } = present;
        self.relays.end_view();
        let decision = membership.decision().expect("it has been decided").clone();
        let rank = membership.view().rank(self.passage.node()).expect("it is a member of its own view");
        let next = membership.view().next(&decision);
        self.timeline.add(ViewChange::decided(&membership, &decision));
        // A member that was considered dead is not asked how much it has, so the trim may be beyond that.
        let covers = subgroups.iter().all(|active| active.covers(&decision))
            && shards.as_ref().is_none_or(|shards| shards.covers(&decision));
        if decision.removes(rank) && !covers {
            reach(Point::ExcludedShort);
            subgroups.iter_mut().for_each(ActiveSubgroup::stop);
            subgroups.iter().for_each(|active| self.add_totals(active.id, active.totals()));
            self.left.extend(subgroups.into_iter().map(ActiveSubgroup::into_deliver));
            return self.end(GroupEnd::Stopped(StopReason::Excluded));
        }
        let has_shards = shards.is_some();
        let carryovers = match self.end_subgroups(subgroups, &decision, fabric.now()) {
            Ok(carryovers) => carryovers,
            Err(ended) => return self.end(ended),
        };
        let before = match self.end_shards(shards, &decision) {
            Ok(before) => before,
            Err(ended) => {
                self.left.extend(carryovers.into_iter().map(|(id, (deliver, _))| (id, deliver)));
                return self.end(ended);
            }
        };
        if decision.removes(rank) {
            let leaves = membership.is_leaving();
            reach(if leaves { Point::Left } else { Point::ExcludedWhole });
            if has_shards {
                reach(if leaves { Point::GenuineLeft } else { Point::GenuineExcluded });
            }
            self.left.extend(carryovers.into_iter().map(|(id, (deliver, _))| (id, deliver)));
            return self.end(GroupEnd::Stopped(if leaves { StopReason::Left } else { StopReason::Excluded }));
        }
        let trims = self.register.as_mut().map_or_else(Vec::new, |register| {
            let segments = membership.segments();
            let end = view_end(register.shards(), &*self.layout, membership.view(), segments, &decision);
            register.end_view(&end);
            end.trims
        });
        self.passage.end_view(fabric, &membership, &decision, &next, &trims);
        self.install(fabric, next, carryovers, before);
        if let GroupStage::Present(present) = &mut self.stage {
            present.membership.follow(&membership);
        }
        self.passage.remember(membership);
    }

    /// Ends the subgroups, each of which delivers its trim.
    fn end_subgroups(
        &mut self,
        subgroups: Vec<ActiveSubgroup<A::Deliver>>,
        decision: &Proposal,
        now: Instant,
    ) -> Result<Carryovers<A::Deliver>, GroupEnd> {
        let mut carryovers = BTreeMap::new();
        for ActiveSubgroup { id, core, segment } in subgroups {
            let trim = &decision.trims[segment.trims..segment.trims + segment.senders];
            self.flight.note(now, FlightEvent::Trims(id, trim.iter().sum()));
            let failed = |failure: SubgroupFailure| GroupEnd::Failed(id, failure);
            let (deliver, known, backlog, mirror, totals) = match core {
                AnySubgroup::Upcall(core) => {
                    let end = core.finish(trim).map_err(failed)?;
                    let deliver = end.deliver.map(UpcallGate::into_deliver);
                    (deliver, end.known, end.backlog, end.mirror, (end.counters, end.times))
                }
                AnySubgroup::Pulled(core) => {
                    let end = core.finish(trim).map_err(failed)?;
                    (None, end.known, end.backlog, end.mirror, (end.counters, end.times))
                }
            };
            self.passage.keep(mirror);
            self.add_totals(id, totals);
            if backlog.as_ref().is_some_and(|backlog| backlog.left() > 0) {
                reach(Point::Resent);
            }
            self.application.succession(id).end_view(backlog);
            carryovers.insert(id, (deliver, known));
        }
        Ok(carryovers)
    }

    pub(super) fn install<F: Fabric>(
        &mut self,
        fabric: &mut F,
        view: View,
        mut carryovers: Carryovers<A::Deliver>,
        before: GenuineCarryover,
    ) {
        let (mut placements, unplaced) = self.layout.place(&view);
        mutant!(LayoutOfOneMember if view.rank(self.passage.node()) == Some(1) => {
            placements.iter_mut().for_each(|placement| placement.members.reverse());
        });
        let shards = self.shards_that_count(&view);
        let quorum =
            self.settings.genuine.as_ref().map_or_else(QuorumRule::default, |genuine| genuine.quorum);
        let segments = segments(&view, &placements, &shards, quorum);
        self.application.install(&view, &placements, &unplaced);
        let has_register = self.register.is_some();
        let settings = MembershipSettings { has_register, ..self.settings.membership.clone() };
        let membership = self.passage.begin_view(fabric, &view, segments.clone(), settings);
        let shards = self.begin_shards(fabric, &view, shards, &segments[placements.len()..], before);
        let mut subgroups = Vec::new();
        for (placement, segment) in placements.into_iter().zip(segments) {
            if placement.members.contains(&self.passage.node()) {
                let before = carryovers.remove(&placement.id);
                subgroups.push(self.begin_subgroup(fabric, &view, placement, segment, before));
            }
        }
        for (id, (deliver, _)) in carryovers {
            reach(Point::LeftSubgroup);
            self.successions.remove(id, self.application.succession(id));
            self.application.leave_subgroup(id, deliver);
        }
        let now = fabric.now();
        self.timeline.install(&view, now);
        self.flight.begin_view(now, view.id, view.members.len());
        self.stage = GroupStage::Present(PresentView {
            membership,
            rota: SubgroupRota::new(subgroups.len()),
            subgroups,
            shards,
        });
        self.standstill = None;
        self.skipped = SKIP;
    }

    fn begin_subgroup<F: Fabric>(
        &mut self,
        fabric: &mut F,
        view: &View,
        placement: Placement,
        segment: SenderSegment,
        before: Option<Carryover<A::Deliver>>,
    ) -> ActiveSubgroup<A::Deliver> {
        let Placement { id, members, settings } = placement;
        let key = view.key(1 + id.0);
        let (outlet, known) = match before {
            Some((Some(deliver), known)) => (SubgroupOutlet::Upcall(deliver), known),
            Some((None, known)) => (SubgroupOutlet::Pull, known),
            None => (self.application.outlet(id), Vec::new()),
        };
        let start = ViewStart { view: view.id, known };
        let log = (settings.mode == DeliveryMode::Durable).then(|| self.application.log(id, view.id));
        let (mut core, writer): (_, Option<WindowWriter>) = match outlet {
            SubgroupOutlet::Upcall(deliver) => {
                let mut deliver = UpcallGate::new(deliver, self.passage.stands_by());
                deliver.begin_view(view.id, &members);
                let (core, writer) = Subgroup::new(fabric, key, &members, settings, start, deliver);
                (AnySubgroup::Upcall(core), writer)
            }
            SubgroupOutlet::Pull => {
                let (core, writer, pull) = Subgroup::pulled(fabric, key, &members, settings, start);
                self.application.take_pull(id, pull);
                (AnySubgroup::Pulled(core), writer)
            }
        };
        if let Some(log) = log {
            either!(&mut core, core => core.keep_log(log));
        }
        let succession = self.application.succession(id);
        match writer {
            Some(writer) => self.successions.begin_view(id, succession, writer),
            None => self.successions.remove(id, succession),
        }
        ActiveSubgroup { id, core, segment }
    }

    /// Ends the group here because membership has stopped, after it delivers what is stable \[V14\].
    pub(super) fn stop(&mut self, stop: StopReason) {
        if let GroupStage::Present(present) = &mut self.stage {
            let view = present.membership.view();
            // A view that is not on the disk has delivered nothing here [T8].
            if self.register.as_ref().is_none_or(|register| register.has_recorded(view)) {
                present.subgroups.iter_mut().for_each(ActiveSubgroup::stop);
            }
        }
        self.end(GroupEnd::Stopped(stop));
    }

    /// Ends the group here, as if its process had died: the others continue without it.
    pub fn close(&mut self) {
        if self.ended().is_none() {
            self.end(GroupEnd::Stopped(StopReason::Left));
        }
    }

    pub(super) fn end(&mut self, ended: GroupEnd) {
        if let GroupStage::Present(present) = std::mem::replace(&mut self.stage, GroupStage::Ended(ended)) {
            for mut active in present.subgroups {
                either!(&mut active.core, core => core.close());
                self.add_totals(active.id, active.totals());
                self.successions.remove(active.id, self.application.succession(active.id));
                self.left.push(active.into_deliver());
            }
        }
        self.successions = Successions::default();
    }
}
