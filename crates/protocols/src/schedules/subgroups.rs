//! One subgroup in one view, in explored schedules: members send and receive concurrently, by upcall and by pull
//! (Derecho §3.4, Spindle §3).

use std::sync::Arc;

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_fabric::explore::{draw, explore, finds_failure, point, thread, yield_now};
use squall_fabric::window::{ReserveError, WindowWriter};
use squall_fabric::{Core, Fabric, MirrorKey, NodeId};

use super::fabric::TICK;
use super::{MemoryFabric, MemoryWorld, StoreVisibility};
use crate::multicast::{
    Carrier, Deliver, LargeMessages, Message, Pull, Subgroup, SubgroupSettings, ViewStart,
};
use crate::mutation::{GroupMutation, with};

const MEMBERS: u32 = 3;
/// Rank 2 sends nothing, and pulls.
const SENDERS: usize = 2;
/// The number of messages of each sender; the other sender fills rounds.
const MESSAGES: [usize; SENDERS] = [5, 2];
const ALL_MESSAGES: usize = MESSAGES[0] + MESSAGES[1];
const KEY: MirrorKey = MirrorKey(1);

fn settings(express: bool) -> SubgroupSettings {
    let large = LargeMessages { message_max: 40, window: 2, window_bytes: 0, carrier: Carrier::Pushed };
    SubgroupSettings {
        window: 2,
        window_bytes: 0,
        express,
        large: Some(large),
        senders: (0..SENDERS).collect(),
        ..SubgroupSettings::new(MEMBERS as usize, 16)
    }
}

/// Returns a length: empty, short or large, shifted from member to member.
fn length(sender: usize, number: usize) -> usize {
    [9, 0, 33, 16][(sender + number) % 4]
}

fn byte(sender: usize, number: usize) -> u8 {
    u8::try_from(1 + sender * 100 + number).expect("few messages")
}

/// The messages that one member has got, and checks of them: \[O1\] \[O2\] \[O3\].
#[derive(Default)]
struct Log(Vec<(usize, usize)>);

impl Log {
    fn note(&mut self, message: &Message<'_>) {
        let (sender, number) =
            (message.sender, self.0.iter().filter(|(other, _)| *other == message.sender).count());
        assert_eq!(message.bytes.len(), length(sender, number), "message {number} of {sender}");
        for (at, found) in message.bytes.iter().enumerate() {
            if at % 8 == 0 {
                point();
            }
            assert_eq!(*found, byte(sender, number), "message {number} of {sender}");
        }
        self.0.push((sender, number));
    }
}

impl Deliver for Log {
    fn deliver(&mut self, message: Message<'_>) {
        self.note(&message);
    }
}

/// The state that the threads of a run share.
struct Run {
    world: Arc<MemoryWorld>,
    /// The number of members that have everything.
    done: AtomicUsize,
}

impl Run {
    fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed) == MEMBERS as usize
    }

    fn finish(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn send_all(mut writer: WindowWriter, sender: usize) {
    for number in 0..MESSAGES[sender] {
        let length = length(sender, number);
        while let Err(error) = writer.send_written(length, |payload| {
            for at in 0..length {
                if at % 8 == 0 {
                    point();
                }
                payload.put(&[byte(sender, number)]);
            }
        }) {
            assert_eq!(error, ReserveError::Full);
            yield_now();
        }
    }
}

/// Polls a member until all members have everything; `has_all` returns whether this one has.
fn poll<D: Deliver>(
    fabric: &mut MemoryFabric,
    mut subgroup: Subgroup<D>,
    run: &Run,
    mut has_all: impl FnMut(&mut Subgroup<D>) -> bool,
) -> Subgroup<D> {
    let mut is_done = false;
    while !run.is_over() {
        let mut events = Vec::new();
        let mut work = fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| subgroup.handle_event(fabric, event));
        work += subgroup.poll(fabric);
        subgroup.look_at_consumers(fabric.now());
        assert_eq!(subgroup.failure(), None);
        if !is_done && has_all(&mut subgroup) {
            is_done = true;
            run.finish();
        }
        if work == 0 {
            yield_now();
        }
    }
    subgroup
}

/// Runs a member that receives by upcall, and sends.
fn upcall_member(rank: usize, express: bool, run: &Run) -> Log {
    let mut fabric = run.world.fabric(u32::try_from(rank).expect("few"));
    let nodes: Vec<NodeId> = (0..MEMBERS).map(NodeId).collect();
    let start = ViewStart::default();
    let (subgroup, writer) =
        Subgroup::new(&mut fabric, KEY, &nodes, settings(express), start, Log::default());
    let application = thread::spawn(move || send_all(writer.expect("it sends"), rank));
    let has_all =
        |subgroup: &mut Subgroup<Log>| subgroup.deliver_mut().is_some_and(|log| log.0.len() == ALL_MESSAGES);
    let mut subgroup = poll(&mut fabric, subgroup, run, has_all);
    application.join().expect("no panic");
    std::mem::take(subgroup.deliver_mut().expect("an upcall"))
}

/// Takes every message in place, and releases them in batches.
fn pull_all(mut pull: Pull, run: &Run) -> Log {
    let mut log = Log::default();
    let mut held = 0;
    while log.0.len() < ALL_MESSAGES {
        match pull.next_message().expect("nothing is corrupt") {
            Some(message) => {
                log.note(&message);
                held += 1;
            }
            None => yield_now(),
        }
        if held > draw(4) || pull.is_urged() {
            pull.release();
            held = 0;
        }
    }
    pull.release();
    run.finish();
    log
}

fn pull_member(express: bool, run: &Arc<Run>) -> Log {
    let mut fabric = run.world.fabric(MEMBERS - 1);
    let nodes: Vec<NodeId> = (0..MEMBERS).map(NodeId).collect();
    let start = ViewStart::default();
    let (subgroup, _, pull) = Subgroup::pulled(&mut fabric, KEY, &nodes, settings(express), start);
    let consumer = Arc::clone(run);
    let consumer = thread::spawn(move || pull_all(pull, &consumer));
    let mut subgroup = poll(&mut fabric, subgroup, run, |_| false);
    let log = consumer.join().expect("no panic");
    subgroup.look_at_consumers(fabric.now() + 200 * TICK);
    assert_eq!(subgroup.stands_still_since(), None, "no member waits for a consumer that has everything");
    log
}

/// Runs three members with six threads, and one thread that makes words land.
fn all_deliver_the_same(landing: StoreVisibility, express: bool) {
    let run = Arc::new(Run { world: MemoryWorld::new(landing, MEMBERS), done: AtomicUsize::new(0) });
    let member = |rank: usize| {
        let run = Arc::clone(&run);
        thread::spawn(move || match rank {
            0..SENDERS => upcall_member(rank, express, &run),
            _ => pull_member(express, &run),
        })
    };
    let members: Vec<_> = (0..MEMBERS as usize).map(member).collect();
    while !run.is_over() {
        if landing != StoreVisibility::Later || !run.world.land() {
            yield_now();
        }
    }
    let logs = members.into_iter().map(|member| member.join().expect("no panic").0);
    let logs: Vec<_> = logs.collect();
    assert!(logs.windows(2).all(|logs| logs[0] == logs[1]), "[O1] {logs:?}");
}

const CASES: [(StoreVisibility, bool); 5] = [
    (StoreVisibility::Shared, false),
    (StoreVisibility::Shared, true),
    (StoreVisibility::Pushed, true),
    (StoreVisibility::Later, false),
    (StoreVisibility::Later, true),
];

/// [O1]–[O6] [N1] [N3] In whatever order words land, and whenever an application sends, takes and releases: all
/// members deliver everything, once, complete, and in one order.
#[test]
fn members_deliver_the_same_in_any_order_of_landing() {
    for (landing, express) in CASES {
        explore(1000, move || all_deliver_the_same(landing, express));
    }
}

/// These mutations show only when words land, or applications act, in the middle of an evaluation.
#[test]
fn mutations_are_found() {
    for mutation in [
        GroupMutation::GuardBeforeList,
        GroupMutation::OrderOfOneMember,
        GroupMutation::CompleteTooSoon,
        GroupMutation::KeepDelivered,
        GroupMutation::ReuseAfterOwnDelivery,
        GroupMutation::ReleaseUnread,
        GroupMutation::PartOfExpress,
        GroupMutation::HalfOfWrappedBatch,
        GroupMutation::NoNulls,
        GroupMutation::EmptyIsNull,
    ] {
        let is_found = |(landing, express): (StoreVisibility, bool)| {
            with(mutation, || finds_failure(400, move || all_deliver_the_same(landing, express)))
        };
        assert!(CASES.into_iter().any(is_found), "{mutation:?}");
    }
}
