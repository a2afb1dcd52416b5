//! A whole group, one member of which may die at any word, in explored schedules: its applications send and receive
//! while views change (Derecho §3.3–3.4).

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::Arc;

use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};
use squall_fabric::explore::sync::Mutex;
use squall_fabric::explore::{draw, explore, finds_failure, thread, yield_now};
use squall_fabric::window::{ReserveError, WindowWriter};
use squall_fabric::{Core, Fabric, NodeId, Shortage};

use super::{MemoryFabric, MemoryWorld, StoreVisibility};
use crate::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use crate::membership::{self, Member, View};
use crate::multicast::{self, Message, Pull};
use crate::mutation::{GroupMutation, with};

const MEMBERS: u32 = 3;
const MESSAGES: usize = 3;
/// This member takes its messages by pull.
const PULLER: u32 = 1;
/// A member that dies does so when it has pushed fewer words than this; most runs have a few hundred.
const DEATH_MAX: usize = 150;

fn length(node: NodeId, number: usize) -> usize {
    [9, 0, 16][(node.0 as usize + number) % 3]
}

fn byte(node: NodeId, number: usize) -> u8 {
    u8::try_from(1 + node.0 as usize * 50 + number).expect("few messages")
}

/// The messages that a member has got: \[O2\] \[O3\] \[V7\] all messages of each sender, once, in order and complete.
#[derive(Debug, Default)]
struct Log(Vec<(NodeId, usize)>);

impl Log {
    fn count(&self, node: NodeId) -> usize {
        self.0.iter().filter(|(other, _)| *other == node).count()
    }

    fn note(&mut self, message: &Message<'_>) {
        let (node, number) = (message.node, self.count(message.node));
        let is_whole = message.bytes.iter().all(|found| *found == byte(node, number));
        assert!(is_whole && message.bytes.len() == length(node, number), "message {number} of {node}");
        self.0.push((node, number));
    }
}

/// The state that a member's threads share.
#[derive(Default)]
struct TestSlot {
    succession: Mutex<Succession>,
    pulls: Mutex<VecDeque<Pull>>,
    log: Mutex<Log>,
    /// Whether the member has died.
    ended: AtomicBool,
}

struct App {
    node: NodeId,
    slot: Arc<TestSlot>,
}

type Upcall = Box<dyn FnMut(Message<'_>) + Send>;

impl GroupApplication for App {
    type Deliver = Upcall;

    fn outlet(&mut self, _: SubgroupId) -> SubgroupOutlet<Upcall> {
        if self.node.0 == PULLER {
            return SubgroupOutlet::Pull;
        }
        let slot = Arc::clone(&self.slot);
        SubgroupOutlet::Upcall(Box::new(move |message| slot.log.lock().expect("no panic").note(&message)))
    }

    fn install(&mut self, _: &View, _: &[Placement], _: &[Unplaced]) {}

    fn succession(&mut self, _: SubgroupId) -> impl DerefMut<Target = Succession> {
        self.slot.succession.lock().expect("no panic")
    }

    fn try_succession(&mut self, _: SubgroupId) -> Option<impl DerefMut<Target = Succession>> {
        self.slot.succession.try_lock().ok()
    }

    fn take_pull(&mut self, _: SubgroupId, pull: Pull) {
        self.slot.pulls.lock().expect("no panic").push_back(pull);
    }

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Upcall>) {}
}

struct Run {
    world: Arc<MemoryWorld>,
    /// The member that dies, if any.
    doomed: Option<u32>,
    done: AtomicUsize,
}

impl Run {
    fn survivors(&self) -> impl Iterator<Item = u32> {
        (0..MEMBERS).filter(|node| self.doomed != Some(*node))
    }

    fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.survivors().count()
    }

    /// \[V7\] Returns whether a log has everything that the survivors have sent.
    fn has_all(&self, log: &Log) -> bool {
        self.survivors().all(|node| log.count(NodeId(node)) == MESSAGES)
    }
}

/// Runs the application's sending thread, which takes the next window when the previous one is closed.
fn send_all(node: NodeId, slot: &TestSlot) {
    let (mut writer, mut number): (Option<WindowWriter>, _) = (None, 0);
    while number < MESSAGES && !slot.ended.load(Ordering::Relaxed) {
        if writer.is_none() {
            writer = slot.succession.lock().expect("no panic").take_writer();
        }
        let sent = writer.as_mut().map_or(Err(ReserveError::Full), |writer| {
            writer.send(length(node, number), |bytes| bytes.fill(byte(node, number)))
        });
        match sent {
            Ok(()) => number += 1,
            Err(ReserveError::Closed) => writer = None,
            Err(_) => yield_now(),
        }
    }
}

/// Runs the application's receiving thread, which takes the remaining messages of a view before it turns to the next
/// one.
fn pull_all(slot: &TestSlot, run: &Run) {
    let mut pull: Option<Pull> = None;
    while !run.is_over() && !slot.ended.load(Ordering::Relaxed) {
        // This is read before the messages, so that no message delivered until then is missed.
        let is_closed = pull.as_ref().is_none_or(Pull::is_closed);
        let message = pull.as_mut().and_then(|pull| pull.next_message().expect("nothing is corrupt"));
        if let Some(message) = message {
            slot.log.lock().expect("no panic").note(&message);
            continue;
        }
        pull.iter_mut().for_each(Pull::release);
        if is_closed && let Some(next) = slot.pulls.lock().expect("no panic").pop_front() {
            pull = Some(next);
        }
        yield_now();
    }
}

fn layout(view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
    let members = view.nodes();
    let settings =
        multicast::SubgroupSettings { window: 2, ..multicast::SubgroupSettings::new(members.len(), 16) };
    (vec![Placement { id: SubgroupId(0), members, settings }], Vec::new())
}

fn step(fabric: &mut MemoryFabric, group: &mut GroupCore<App>) -> usize {
    let mut events = Vec::new();
    let work = fabric.poll(&mut |event| events.push(event));
    events.iter().for_each(|event| group.handle_event(fabric, event));
    work + group.poll(fabric)
}

/// Runs the polling thread of a member until all members have everything, or this one dies.
fn poll(node: NodeId, slot: &Arc<TestSlot>, run: &Run) {
    let mut fabric = run.world.fabric(node.0);
    let is_doomed = run.doomed == Some(node.0);
    if is_doomed {
        fabric.die_after(1 + draw(DEATH_MAX));
    }
    let membership =
        membership::MembershipSettings { suspicion_after: None, ..membership::MembershipSettings::default() };
    let settings = GroupSettings { membership, ..GroupSettings::default() };
    let view = View::first((0..MEMBERS).map(|node| Member { node: NodeId(node), tag: 0 }).collect());
    let app = App { node, slot: Arc::clone(slot) };
    let mut group = GroupCore::begin(&mut fabric, view, Box::new(layout), settings, app);
    let mut is_done = false;
    while !run.is_over() {
        let Ok(work) = Shortage::catch(|| step(&mut fabric, &mut group)) else { break };
        assert_eq!(group.ended(), None, "{node}");
        if !is_done && run.has_all(&slot.log.lock().expect("no panic")) {
            if is_doomed {
                break;
            }
            is_done = true;
            run.done.fetch_add(1, Ordering::Relaxed);
        }
        if work == 0 {
            yield_now();
        }
    }
    if is_doomed {
        run.world.crash(node);
        slot.ended.store(true, Ordering::Relaxed);
    }
}

fn member(node: u32, run: &Arc<Run>) -> Vec<(NodeId, usize)> {
    let (node, slot) = (NodeId(node), Arc::new(TestSlot::default()));
    let (sending, receiving) = (Arc::clone(&slot), (Arc::clone(&slot), Arc::clone(run)));
    let sending = thread::spawn(move || send_all(node, &sending));
    let receiving = (node.0 == PULLER).then(|| thread::spawn(move || pull_all(&receiving.0, &receiving.1)));
    poll(node, &slot, run);
    for application in std::iter::once(sending).chain(receiving) {
        application.join().expect("no panic");
    }
    std::mem::take(&mut slot.log.lock().expect("no panic").0)
}

/// Runs a group of three members, of which one may die.
fn group(landing: StoreVisibility, doomed: Option<u32>) {
    let run = Arc::new(Run { world: MemoryWorld::new(landing, MEMBERS), doomed, done: AtomicUsize::new(0) });
    let member = |node| {
        let run = Arc::clone(&run);
        thread::spawn(move || member(node, &run))
    };
    let members: Vec<_> = (0..MEMBERS).map(member).collect();
    while !run.is_over() {
        if landing != StoreVisibility::Later || !run.world.land() {
            yield_now();
        }
    }
    run.world.close();
    let logs: Vec<_> = members.into_iter().map(|member| member.join().expect("no panic")).collect();
    let longest = logs.iter().max_by_key(|log| log.len()).expect("members");
    assert!(logs.iter().all(|log| longest.starts_with(log)), "[O1] [V2] [V3] {logs:?}");
}

const LANDINGS: [StoreVisibility; 3] =
    [StoreVisibility::Shared, StoreVisibility::Pushed, StoreVisibility::Later];

/// [V1] [V2] [V3] [V7] Whenever a member dies, and in whatever order words land, the survivors deliver the same
/// messages, including everything that they have sent, even if it was in flight or partly sent when the view ended.
#[test]
fn survivors_agree_whichever_member_dies_at_any_time() {
    for landing in LANDINGS {
        explore(200, move || group(landing, None));
        explore(1000, move || group(landing, Some(u32::try_from(draw(3)).expect("few"))));
    }
}

/// These mutations show only when a view ends in the middle of an operation.
#[test]
fn mutations_are_found() {
    for mutation in [
        GroupMutation::NoResend,
        GroupMutation::DeliverUnstable,
        GroupMutation::DeliverBeyondTrim,
        GroupMutation::TrimWithDead,
        GroupMutation::TrimOfOne,
    ] {
        let is_found = |landing| {
            let test = move || group(landing, Some(u32::try_from(draw(3)).expect("few")));
            with(mutation, || finds_failure(600, test))
        };
        assert!(LANDINGS.into_iter().any(is_found), "{mutation:?}");
    }
}
