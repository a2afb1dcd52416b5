//! The application at one node: sends what the plan says, checks what it is given.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::Prng;
use squall_fabric::window::{ReserveError, WindowWriter};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{
    GroupApplication, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{RankSet, View};
use squall_protocols::multicast::{DeliveryMode, Message, MessageLog, Pull};
use squall_protocols::restart::{DurableView, Register};

use super::plan::{GroupPlan, has};
use super::program::{GroupScene, NodeProgram, RunChecks};
use crate::message_disk::MessageDisk;
use crate::run::Violation;

/// Nodes that send messages, and nothing around them.
pub(crate) struct SendersOnly {
    plan: Rc<GroupPlan>,
    watch: Rc<RefCell<RunChecks>>,
}

impl SendersOnly {
    pub(super) fn new(plan: &GroupPlan, watch: &Rc<RefCell<RunChecks>>) -> Self {
        plan.subgroups
            .iter()
            .for_each(|subgroup| watch.borrow_mut().views.allow(subgroup.id, subgroup.settings.longest()));
        watch.borrow_mut().durable.expect_shards(plan.durable());
        Self { plan: Rc::new(plan.clone()), watch: Rc::clone(watch) }
    }
}

impl GroupScene for SendersOnly {
    type Program = GroupApp;

    fn program(&mut self, _place: u32, node: NodeId) -> GroupApp {
        GroupApp::new(node, &self.plan, &self.watch)
    }

    fn layout(&self) -> Box<dyn SubgroupLayout + Send> {
        let subgroups = self.plan.subgroups.clone();
        Box::new(move |view: &View| GroupPlan::place(&subgroups, view))
    }

    fn delivered(&self) -> u64 {
        self.watch.borrow().views.total()
    }

    /// \[V7\] Everything that members of the last view have sent is delivered by all of them.
    fn check_complete(&self, present: &[(NodeId, &GroupApp)]) -> Result<(), Violation> {
        let watch = self.watch.borrow();
        for subgroup in
            self.plan.subgroups.iter().filter(|subgroup| subgroup.settings.mode != DeliveryMode::Raw)
        {
            let members = || present.iter().map(|(node, _)| *node).filter(|node| has(subgroup.nodes, *node));
            for member in members() {
                for sender in members() {
                    let is_first = member.0 < self.plan.members;
                    watch.views.check_complete(member, subgroup.id, sender, is_first)?;
                }
            }
        }
        Ok(())
    }
}

/// The application at one node.
pub(crate) struct GroupApp {
    node: NodeId,
    plan: Rc<GroupPlan>,
    watch: Rc<RefCell<RunChecks>>,
    view: Option<View>,
    /// Its process is a member.
    is_in: bool,
    slots: BTreeMap<SubgroupId, AppSlot>,
    next_send: Instant,
    blocked: bool,
    next_consume: Instant,
    disk: MessageDisk,
}

/// A subgroup that the node belongs to.
#[derive(Default)]
struct AppSlot {
    writer: Option<WindowWriter>,
    succession: Succession,
    unsent: u64,
    /// The receiving ends of the views that are not yet consumed, with their views.
    pulls: VecDeque<(u64, Pull)>,
}

type Upcall = Box<dyn FnMut(Message<'_>)>;

impl GroupApp {
    pub(super) fn new(node: NodeId, plan: &Rc<GroupPlan>, watch: &Rc<RefCell<RunChecks>>) -> Self {
        let start = Instant::from_nanos(0);
        let (plan, watch) = (Rc::clone(plan), Rc::clone(watch));
        let slots = BTreeMap::new();
        let (view, is_in, blocked) = (None, false, false);
        let disk = format_disk(node, &plan);
        watch.borrow_mut().durable.add(node, &disk);
        Self { node, plan, watch, view, is_in, slots, next_send: start, blocked, next_consume: start, disk }
    }
}

impl GroupApp {
    pub(super) const fn disk(&self) -> &MessageDisk {
        &self.disk
    }
}

/// The disk of a node that was in no view yet.
fn format_disk(node: NodeId, plan: &GroupPlan) -> MessageDisk {
    let disk = MessageDisk::default();
    let shards = vec![RankSet::EMPTY; plan.durable().len()];
    if !shards.is_empty() {
        disk.format(Register::new(plan.seed, node, DurableView { shards, ..DurableView::default() }));
    }
    disk
}

impl NodeProgram for GroupApp {
    fn come_as(&mut self, node: NodeId) {
        (self.node, self.view) = (node, None);
        self.disk = format_disk(node, &self.plan);
        self.watch.borrow_mut().durable.add(node, &self.disk);
    }

    fn arrive(&mut self) {
        self.is_in = true;
    }

    /// Commits a burst in each subgroup, if it is time and the windows have space.
    fn send(&mut self, now: Instant, prng: &mut Prng) -> bool {
        if now < self.next_send {
            return false;
        }
        let mut sent = false;
        self.blocked = false;
        for (id, slot) in &mut self.slots {
            for _ in 0..1 + prng.below(self.plan.burst) {
                if slot.unsent == 0 {
                    break;
                }
                if slot.writer.is_none() {
                    slot.writer = slot.succession.take_writer();
                }
                let Some(writer) = &mut slot.writer else {
                    self.blocked = true;
                    break;
                };
                let mut watch = self.watch.borrow_mut();
                let number = watch.views.sent(*id, self.node);
                let length = watch.views.length(*id, self.node, number);
                match writer.send(length, |bytes| watch.views.fill(*id, self.node, number, bytes)) {
                    Ok(()) => {
                        watch.views.on_send(*id, self.node);
                        slot.unsent -= 1;
                        sent = true;
                    }
                    Err(ReserveError::Closed) => slot.writer = None,
                    Err(ReserveError::Full) => self.blocked = true,
                    Err(ReserveError::TooLong { .. }) => unreachable!("the plan's messages fit"),
                }
                if self.blocked {
                    break;
                }
            }
        }
        if !self.blocked {
            self.next_send =
                now + Duration::from_nanos(1 + prng.below(1 + self.plan.gap_max.as_nanos() as u64));
        }
        sent
    }

    /// Takes some of what there is to pull.
    fn consume(&mut self, now: Instant, prng: &mut Prng) -> bool {
        if now < self.next_consume {
            return false;
        }
        let mut worked = false;
        for (id, slot) in &mut self.slots {
            let has_next = slot.pulls.len() > 1;
            let Some((view, pull)) = slot.pulls.front_mut() else { continue };
            let is_over = pull.is_closed() && has_next;
            let most = 1 + prng.below(30);
            if most.is_multiple_of(2) {
                // Some of them at once, until the application wants no more; errors appear below, too.
                let (mut left, mut watch) = (most / 2, self.watch.borrow_mut());
                worked |= pull.consume_while(u64::MAX, |message| {
                    let takes = left > 0;
                    if takes {
                        left -= 1;
                        watch.on_delivery(self.node, *id, &message);
                    }
                    takes
                }) == Ok(true);
            }
            for _ in 0..most {
                let mut watch = self.watch.borrow_mut();
                match pull.next_message() {
                    Ok(Some(message)) => {
                        watch.on_delivery(self.node, *id, &message);
                        worked = true;
                    }
                    Ok(None) => {
                        if is_over {
                            let result = watch.views.on_view_end(self.node, *id, *view);
                            watch.take(result);
                            slot.pulls.pop_front();
                            worked = true;
                        }
                        break;
                    }
                    Err(corrupt) => {
                        let text = format!("[O6] {} pulls: {corrupt}", self.node);
                        watch.take(Err(Violation { checker: "failure", text }));
                        break;
                    }
                }
            }
            if let Some((_, pull)) = slot.pulls.front_mut() {
                worked |= pull.owes_release();
                pull.release();
            }
        }
        if worked {
            self.next_consume =
                now + Duration::from_nanos(prng.below(1 + self.plan.consumer_pause_max.as_nanos() as u64));
        }
        worked
    }

    fn flush(&mut self, now: Instant, prng: &mut Prng) -> bool {
        let has_ended = self.disk.poll(now, self.plan.flush_max, prng);
        if has_ended && let Some(register) = self.disk.register() {
            let mut watch = self.watch.borrow_mut();
            let result = watch.durable.on_recorded(self.node, &register);
            watch.take(result);
            drop(watch);
            // Not by the run's own source of chance, so that nothing else depends on it.
            let view = register.view().number;
            let mut of_view = Prng::new(self.plan.seed ^ view << 8 ^ u64::from(self.node.0));
            if self.has_whole_log() && register.is_member() && of_view.chance(300) {
                self.disk.cover_before(view);
            }
        }
        has_ended
    }

    fn next_flush(&self) -> Option<Instant> {
        self.disk.next_deadline()
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let has_window = |slot: &AppSlot| slot.writer.is_some() || slot.succession.has_window();
        let can_send = self.slots.values().any(|slot| slot.unsent > 0 && has_window(slot));
        let send = (can_send && !self.blocked).then_some(self.next_send);
        let pulls = self.slots.values().any(|slot| !slot.pulls.is_empty());
        let consume = Some(self.next_consume).filter(|next| pulls && *next > now);
        [send, consume].into_iter().flatten().min()
    }

    /// Whether everything is sent and taken.
    fn is_done(&self) -> bool {
        self.slots.values().all(|slot| slot.unsent == 0 && slot.pulls.len() <= 1)
    }
}

impl GroupApplication for GroupApp {
    type Deliver = Upcall;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Upcall> {
        let plan = self.plan.subgroups.iter().find(|plan| plan.id == id).expect("the plan has it");
        if has(plan.pullers, self.node) {
            return SubgroupOutlet::Pull;
        }
        let (node, watch) = (self.node, Rc::clone(&self.watch));
        SubgroupOutlet::Upcall(Box::new(move |message: Message<'_>| {
            watch.borrow_mut().on_delivery(node, id, &message);
        }))
    }

    fn install(&mut self, view: &View, placements: &[Placement], _unplaced: &[Unplaced]) {
        let mut watch = self.watch.borrow_mut();
        if let Some(before) = self.view.as_ref().filter(|_| self.is_in) {
            // Those with upcalls have delivered all of the view before; pulls end when they are consumed.
            for id in self.slots.iter().filter(|(_, slot)| slot.pulls.is_empty()).map(|(id, _)| *id) {
                let result = watch.views.on_view_end(self.node, id, before.id);
                watch.take(result);
            }
        }
        let result = watch.views.on_install(self.node, view, placements);
        watch.take(result);
        let result = watch.durable.on_install(view);
        watch.take(result);
        for placement in placements.iter().filter(|placement| placement.members.contains(&self.node)) {
            let plan = self.plan.subgroups.iter().find(|plan| plan.id == placement.id);
            let sends = plan.is_some_and(|plan| has(plan.senders, self.node));
            let unsent = if sends { self.plan.messages } else { 0 };
            self.slots.entry(placement.id).or_insert_with(|| AppSlot { unsent, ..AppSlot::default() });
        }
        self.view = Some(view.clone());
        // There may be windows again.
        self.blocked = false;
    }

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.slots.get_mut(&id).expect("a subgroup of the view").succession
    }

    fn take_pull(&mut self, id: SubgroupId, pull: Pull) {
        let view = self.view.as_ref().expect("it is installed first").id;
        self.slots.get_mut(&id).expect("a subgroup of the view").pulls.push_back((view, pull));
    }

    fn log(&mut self, id: SubgroupId, view: u64) -> Box<dyn MessageLog + Send> {
        self.disk.log(view, id)
    }

    fn register(&mut self) -> Option<Register> {
        self.disk.register()
    }

    fn write_register(&mut self, register: &Register) {
        self.disk.write_register(register);
    }

    fn take_register_written(&mut self) -> bool {
        self.disk.take_written()
    }

    /// A joiner does not fetch what was before it.
    fn has_whole_log(&self) -> bool {
        self.node.0 < self.plan.members
    }

    fn log_base(&self) -> u64 {
        self.disk.base()
    }

    fn leave_subgroup(&mut self, id: SubgroupId, _deliver: Option<Self::Deliver>) {
        self.slots.remove(&id);
    }
}
