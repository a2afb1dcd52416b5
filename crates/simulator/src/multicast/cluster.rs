//! The cluster of a run: nodes with their cores, writers and consumers, and the checkers that watch them.

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::window::WindowWriter;
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, MirrorKey, NodeId};
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::{DeliveryMode, Message, NoUpcall, Pull, Subgroup, ViewStart};

use super::MulticastPlan;
use crate::checker::{Delivery, DeliveryCounts, DeliveryOrder, Stability};
use crate::message_disk::MessageDisk;
use crate::payload;
use crate::run::{RunOutcome, Violation};

/// The name of the subgroup on its members' disks.
const SUBGROUP: SubgroupId = SubgroupId(0);

/// The virtual time after the last fault within which everything must be delivered and all members quiet.
const SETTLE: Duration = Duration::from_secs(2);

/// The maximum number of turns. The members need far fewer: the busiest of ten thousand seeds takes a tenth.
const STEPS_MAX: u32 = 100_000;

/// The whole cluster.
pub(super) struct MulticastCluster<'a> {
    plan: &'a MulticastPlan,
    world: SimWorld,
    nodes: Vec<Node>,
    watch: Rc<RefCell<Watch>>,
    prng: Prng,
}

/// The shared state of the checkers, because deliveries come from within the cores.
struct Watch {
    contents: DeliveryCounts,
    order: Option<DeliveryOrder>,
    stability: Option<Stability>,
    /// The disks of the members of a durable subgroup.
    disks: Vec<MessageDisk>,
    violation: Option<Violation>,
}

struct Node {
    rank: usize,
    fabric: SimFabric,
    core: AnyCore,
    writer: Option<WindowWriter>,
    /// The number of messages that this member still has to send, and when it may send again.
    unsent: u64,
    next_send: Instant,
    /// Whether the window was full, which only other members can change.
    blocked: bool,
    consumer: Option<Puller>,
    disk: MessageDisk,
}

struct Puller {
    pull: Pull,
    pause_max: Duration,
    next: Instant,
}

type Upcall = Box<dyn FnMut(Message<'_>)>;

enum AnyCore {
    Upcall(Subgroup<Upcall>),
    Pulled(Subgroup<NoUpcall>),
}

squall_fabric::define_either! { $ either: AnyCore { Upcall, Pulled } }

impl Watch {
    fn on_delivery(&mut self, member: usize, message: Message<'_>) {
        if self.violation.is_some() {
            return;
        }
        let Message { sender, index, sequence, bytes, .. } = message;
        let delivery = Delivery { member, sender, index, sequence, bytes };
        let mut result = self.contents.on_delivery(&delivery);
        if let Some(order) = &mut self.order {
            result = result.and_then(|()| order.on_delivery(&delivery));
        }
        if let Some(stability) = &self.stability {
            result = result.and_then(|()| stability.on_delivery(&delivery));
        }
        let lacks = |disk: &MessageDisk| disk.persisted(0, SUBGROUP) <= sequence;
        if let Some(other) = self.disks.iter().position(lacks) {
            let text = format!(
                "[T2] member {member} delivers sequence {sequence}, which member {other} has not persisted"
            );
            result = result.and(Err(Violation { checker: "durability", text }));
        }
        self.violation = result.err();
    }
}

impl<'a> MulticastCluster<'a> {
    pub(super) fn new(plan: &'a MulticastPlan, config: SimConfig) -> Self {
        let members = plan.members;
        let world = SimWorld::new(plan.seed, config, u32::try_from(members).expect("few members"));
        let watch = Rc::new(RefCell::new(Watch {
            contents: DeliveryCounts::new(plan.seed, members, plan.settings.longest()),
            order: None,
            stability: None,
            disks: Vec::new(),
            violation: None,
        }));
        let nodes: Vec<Node> = (0..members).map(|rank| Node::new(plan, &world, rank, &watch)).collect();
        if plan.settings.mode == DeliveryMode::Durable {
            watch.borrow_mut().disks = nodes.iter().map(|node| node.disk.clone()).collect();
        }
        if plan.settings.mode.is_ordered() {
            let views =
                nodes.iter().map(|node| either!(&node.core, core => core.table().rows().to_vec())).collect();
            let row = either!(&nodes[0].core, core => core.row().clone());
            watch.borrow_mut().order = Some(DeliveryOrder::new(members));
            watch.borrow_mut().stability = Some(Stability::new(row, views));
        }
        Self { plan, world, nodes, watch, prng: Prng::new(plan.seed ^ 0xc105) }
    }

    pub(super) fn run(mut self) -> RunOutcome {
        // A long run has more than a thousand times as much work.
        let scale = if self.plan.is_long() { 100 } else { 1 };
        let until = Instant::from_nanos(0) + self.plan.last_fault() + SETTLE * scale;
        let mut steps = 0;
        while let Some(i) = self.world.next_poll(until) {
            steps += 1;
            if steps > STEPS_MAX * scale {
                let text = format!("[N4] the members are still busy after {steps} steps");
                self.watch.borrow_mut().violation = Some(Violation { checker: "quiescence", text });
            }
            let worked = self.step(i as usize);
            let deadline = self.nodes[i as usize].next_deadline();
            self.world.rest(i, worked, deadline);
            if self.watch.borrow().violation.is_some() {
                break;
            }
        }
        let found = self.watch.borrow_mut().violation.take();
        let violation = found.or_else(|| self.check_end());
        RunOutcome {
            violation,
            elapsed: self.world.now().since(Instant::from_nanos(0)),
            delivered: self.watch.borrow().contents.total(),
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace(),
        }
    }

    fn step(&mut self, i: usize) -> bool {
        let node = &mut self.nodes[i];
        let mut worked = node.send(self.plan, &self.watch, &mut self.prng);
        let mut events = Vec::new();
        worked |= node.fabric.poll(&mut |event| events.push(event)) > 0;
        for event in &events {
            worked = true;
            node.handle_event(event);
        }
        match node.poll() {
            Ok(work) => worked |= work > 0,
            Err(violation) => {
                self.watch.borrow_mut().violation.get_or_insert(violation);
            }
        }
        worked |= node.disk.poll(node.fabric.now(), self.plan.flush_max, &mut self.prng);
        worked |= node.consume(&self.watch, &mut self.prng);
        if let Some(failure) = either!(&node.core, core => core.failure()) {
            self.watch.borrow_mut().violation.get_or_insert(Violation {
                checker: "failure",
                text: format!("[O6] member {i} has failed: {failure}"),
            });
        }
        worked
    }

    /// Checks the end of the run: every member has delivered everything, and no member does any more work.
    fn check_end(&self) -> Option<Violation> {
        let watch = self.watch.borrow();
        if self.plan.has_crash() {
            return None;
        }
        for (place, sender) in self.plan.settings.senders.iter().enumerate() {
            for member in 0..self.plan.members {
                let delivered = watch.contents.delivered(member, *sender);
                if delivered != self.plan.messages[place] {
                    return Some(Violation {
                        checker: "liveness",
                        text: format!(
                            "[N3] member {member} has delivered {delivered} of {} messages of sender {sender}, {} sent, \
                             {SETTLE:?} after the last fault",
                            self.plan.messages[place],
                            watch.contents.sent(*sender)
                        ),
                    });
                }
            }
        }
        // The cluster must be quiet: nothing is in flight in the fabric, and no node needs a turn.
        if self.world.next_event_at().is_some() {
            let text = format!("[N4] there is still traffic {SETTLE:?} after the last message");
            return Some(Violation { checker: "quiescence", text });
        }
        None
    }
}

impl Node {
    fn new(plan: &MulticastPlan, world: &SimWorld, rank: usize, watch: &Rc<RefCell<Watch>>) -> Self {
        let mut fabric = world.fabric(u32::try_from(rank).expect("few members"));
        let members: Vec<NodeId> =
            (0..plan.members).map(|rank| NodeId(u32::try_from(rank).expect("few"))).collect();
        let (key, settings, start) = (MirrorKey(7), plan.settings.clone(), ViewStart::default());
        let (mut core, writer, consumer) = if let Some(pause_max) = plan.pulls[rank] {
            let (core, writer, pull) = Subgroup::pulled(&mut fabric, key, &members, settings, start);
            let puller = Puller { pull, pause_max, next: Instant::from_nanos(0) };
            (AnyCore::Pulled(core), writer, Some(puller))
        } else {
            let watch = Rc::clone(watch);
            let upcall: Upcall = Box::new(move |message| watch.borrow_mut().on_delivery(rank, message));
            let (core, writer) = Subgroup::new(&mut fabric, key, &members, settings, start, upcall);
            (AnyCore::Upcall(core), writer, None)
        };
        let disk = MessageDisk::default();
        if plan.settings.mode == DeliveryMode::Durable {
            either!(&mut core, core => core.keep_log(disk.log(0, SUBGROUP)));
        }
        let place = plan.settings.senders.iter().position(|sender| *sender == rank);
        let unsent = place.map_or(0, |place| plan.messages[place]);
        Self {
            rank,
            fabric,
            core,
            writer,
            unsent,
            next_send: Instant::from_nanos(0),
            blocked: false,
            consumer,
            disk,
        }
    }

    /// Runs the application, which commits a burst if it is time and the window has space. It may begin before the
    /// group is ready, as applications do.
    fn send(&mut self, plan: &MulticastPlan, watch: &Rc<RefCell<Watch>>, prng: &mut Prng) -> bool {
        let now = self.fabric.now();
        let Some(writer) = &mut self.writer else { return false };
        if self.unsent == 0 || now < self.next_send {
            return false;
        }
        let mut sent = false;
        for _ in 0..1 + prng.below(plan.burst) {
            let number = watch.borrow().contents.sent(self.rank);
            let length = payload::length(plan.seed, self.rank, number, plan.settings.longest());
            if prng.chance(50) {
                // The application abandons a reservation [N1].
                drop(writer.reserve(length));
            }
            if self.unsent == 0 {
                break;
            }
            let result = writer.send(length, |bytes| payload::fill(plan.seed, self.rank, number, bytes));
            self.blocked = result.is_err();
            if self.blocked {
                break;
            }
            watch.borrow_mut().contents.on_send(self.rank);
            self.unsent -= 1;
            sent = true;
        }
        if !self.blocked {
            self.next_send = now + Duration::from_nanos(1 + prng.below(1 + plan.gap_max.as_nanos() as u64));
        }
        sent
    }

    fn handle_event(&mut self, event: &FabricEvent) {
        either!(&mut self.core, core => core.handle_event(&mut self.fabric, event));
    }

    /// Polls the core. A core that reports no work must have done none; otherwise its thread would sleep while others
    /// wait for it ([`Core`]).
    fn poll(&mut self) -> Result<usize, Violation> {
        let posts = |core: &AnyCore| either!(core, core => core.counters().posts);
        let before = posts(&self.core);
        let had_message = self.has_message();
        let work = either!(&mut self.core, core => core.poll(&mut self.fabric));
        if work == 0 && (posts(&self.core) != before || self.has_message() != had_message) {
            let text = format!("member {} reports no work, but it has worked", self.rank);
            return Err(Violation { checker: "idleness", text });
        }
        Ok(work)
    }

    /// Returns whether there is a consumer with a message to take.
    fn has_message(&mut self) -> bool {
        // Corruption is reported when the consumer takes the message.
        self.consumer.as_mut().is_some_and(|consumer| consumer.pull.has_message().unwrap_or(false))
    }

    /// Runs the consumer, which takes some of the available messages in place and releases them.
    fn consume(&mut self, watch: &Rc<RefCell<Watch>>, prng: &mut Prng) -> bool {
        let now = self.fabric.now();
        let Some(Puller { pull, pause_max, next }) = &mut self.consumer else { return false };
        if now < *next {
            return false;
        }
        let mut worked = false;
        let most = 1 + prng.below(30);
        if most.is_multiple_of(2) {
            // Some of them at once, until the application wants no more; errors appear below, too.
            let mut left = most / 2;
            worked |= pull.consume_while(u64::MAX, |message| {
                let takes = left > 0;
                if takes {
                    left -= 1;
                    watch.borrow_mut().on_delivery(self.rank, message);
                }
                takes
            }) == Ok(true);
        }
        for _ in 0..most {
            match pull.next_message() {
                Ok(Some(message)) => watch.borrow_mut().on_delivery(self.rank, message),
                Ok(None) => break,
                Err(corrupt) => {
                    let text = format!("[O6] member {} pulls: {corrupt}", self.rank);
                    watch.borrow_mut().violation.get_or_insert(Violation { checker: "failure", text });
                }
            }
            worked = true;
        }
        if worked {
            *next = now + Duration::from_nanos(prng.below(1 + pause_max.as_nanos() as u64));
        }
        pull.release();
        worked
    }

    /// Returns when the application or the consumer acts next.
    fn next_deadline(&self) -> Option<Instant> {
        let send = (self.unsent > 0 && !self.blocked).then_some(self.next_send);
        let consume =
            self.consumer.as_ref().map(|consumer| consumer.next).filter(|next| *next > self.fabric.now());
        [send, consume, self.disk.next_deadline()].into_iter().flatten().min()
    }
}
