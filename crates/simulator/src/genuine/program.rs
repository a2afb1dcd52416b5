//! The application at one node: sends what the plan says, reports what it is given.

use std::cell::RefCell;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Fabric, Instant, NodeId};
use squall_protocols::genuine::{
    GenuineMessage, GenuineSendError, ShardPlacement, ShardedUpdate, UpdateReplies,
};
use squall_protocols::group::{
    GroupApplication, GroupCore, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::View;
use squall_protocols::multicast::{Message, Pull};

use super::caller::UpdateCaller;
use super::checks::GenuineHistory;
use super::plan::GenuinePlan;

/// The application.
pub(super) struct GenuineApp {
    node: NodeId,
    history: Rc<RefCell<GenuineHistory>>,
    /// A message was delivered.
    pub(super) has_heard: bool,
    /// The shard whose part of an object is here, if shards have states.
    object: Option<usize>,
    /// What the object's shard keeps for callers.
    pub(super) replies: UpdateReplies,
    succession: Succession,
}

/// The layout of a plan: shards, and no subgroups.
pub(super) struct GenuineLayout {
    pub(super) shards: usize,
    /// The shard of each place, which is the tag of a member.
    pub(super) homes: Vec<Option<usize>>,
}

impl GenuineLayout {
    pub(super) fn new(plan: &GenuinePlan) -> Self {
        Self { shards: plan.shards, homes: plan.homes.clone() }
    }
}

impl SubgroupLayout for GenuineLayout {
    fn place(&self, _view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        (Vec::new(), Vec::new())
    }

    fn shards(&self, view: &View) -> ShardPlacement {
        let home = |tag: u64| usize::try_from(tag).ok().and_then(|place| *self.homes.get(place)?);
        let of = |shard: usize| {
            let ranks = view.members.iter().enumerate().filter(|(_, member)| home(member.tag) == Some(shard));
            ranks.map(|(rank, _)| rank).collect()
        };
        ShardPlacement::new((0..self.shards).map(of).collect())
    }
}

impl GroupApplication for GenuineApp {
    type Deliver = fn(Message<'_>);

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<fn(Message<'_>)> {
        unreachable!("{id}: there are shards only")
    }

    fn install(&mut self, view: &View, _placements: &[Placement], _unplaced: &[Unplaced]) {
        self.replies.retain(&view.nodes());
        let mut history = self.history.borrow_mut();
        let result = history.on_install(view);
        history.take(result);
    }

    fn succession(&mut self, _id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.succession
    }

    fn take_pull(&mut self, id: SubgroupId, _pull: Pull) {
        unreachable!("{id}: there are shards only")
    }

    fn leave_subgroup(&mut self, id: SubgroupId, _deliver: Option<fn(Message<'_>)>) {
        unreachable!("{id}: there are shards only")
    }

    fn deliver_genuine(&mut self, message: GenuineMessage<'_>) {
        self.has_heard = true;
        let (mut history, node) = (self.history.borrow_mut(), self.node);
        let Some(shard) = self.object else {
            let result = history.on_delivery(node, &message);
            return history.take(result);
        };
        let update = ShardedUpdate::decode(message.bytes).expect("it was written here");
        let part = update.parts(shard).next().expect("a part for each destination");
        let result = history.on_delivery(node, &GenuineMessage { bytes: part.bytes, ..message });
        history.take(result);
        self.replies.apply(message.sender, message.position, &update, || {
            let reply = history.on_apply(node, (message.sender, update.number));
            vec![reply.to_le_bytes().to_vec()]
        });
    }
}

impl GenuineApp {
    pub(super) fn new(node: NodeId, object: Option<usize>, history: &Rc<RefCell<GenuineHistory>>) -> Self {
        let (history, succession) = (Rc::clone(history), Succession::default());
        Self { node, history, has_heard: false, object, replies: UpdateReplies::default(), succession }
    }
}

/// What a process has yet to send.
#[derive(Debug)]
pub(super) struct Workload {
    unsent: u64,
    next: Instant,
    is_blocked: bool,
}

impl Workload {
    pub(super) fn new(plan: &GenuinePlan, place: u32) -> Self {
        let unsent = if plan.senders.contains(place as usize) { plan.group.messages } else { 0 };
        Self { unsent, next: Instant::from_nanos(0), is_blocked: false }
    }

    /// Sends a burst, if it is time and the windows have space.
    pub(super) fn send(
        &mut self,
        plan: &GenuinePlan,
        group: &mut GroupCore<GenuineApp>,
        caller: &mut UpdateCaller,
        fabric: &impl Fabric,
        prng: &mut Prng,
    ) -> bool {
        let now = fabric.now();
        if self.unsent == 0 || now < self.next || group.genuine_member().is_none() {
            return false;
        }
        let history = Rc::clone(&group.application_ref().history);
        self.is_blocked = false;
        let mut has_sent = false;
        for _ in 0..1 + prng.below(plan.group.burst) {
            if self.unsent == 0 {
                break;
            }
            let destinations = plan.destinations[prng.index(plan.destinations.len())];
            let number = plan.group.messages - self.unsent;
            let payload = history.borrow().payload(fabric.node(), number);
            let bytes = caller.begin(plan, destinations, payload);
            match group.multicast(destinations, &bytes) {
                Ok(sent) => {
                    assert_eq!(sent, number, "[G2] numbers follow each other");
                    history.borrow_mut().on_send((fabric.node(), number), destinations);
                }
                // No member is left there: what the application would do then is not the subject.
                Err(GenuineSendError::NoDestination) => {
                    caller.cancel();
                    self.unsent = 0;
                    break;
                }
                Err(GenuineSendError::Full | GenuineSendError::Closed) => {
                    caller.cancel();
                    self.is_blocked = true;
                    break;
                }
                Err(GenuineSendError::TooLong { .. }) => unreachable!("the plan's messages fit"),
            }
            self.unsent -= 1;
            has_sent = true;
        }
        if !self.is_blocked {
            self.next = now + Duration::from_nanos(1 + prng.below(1 + plan.group.gap_max.as_nanos() as u64));
        }
        has_sent
    }

    /// When it wants to send next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.unsent > 0 && !self.is_blocked).then_some(self.next)
    }

    /// Whether everything is sent.
    pub(super) const fn is_done(&self) -> bool {
        self.unsent == 0
    }
}
