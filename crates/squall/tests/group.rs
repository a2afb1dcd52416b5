//! Groups as applications use them: threads of one process as members, over both transports (Derecho §2).

mod rdma;

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use squall::config::{Carrier, Config, SubgroupConfig, Transport};
use squall::{
    DeliveryMode, Group, GroupError, HandleError, MessageOutcome, ReceiveError, SendError, StopReason,
};
use squall_transports::reserve_port;

/// Returns a name that no other test uses on this host.
fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

fn config(
    test: &str,
    members: usize,
    subgroup: SubgroupConfig,
) -> impl Fn(usize) -> Config + Clone + Send + 'static {
    let base = Config::local(&name(test), members).subgroup("log", subgroup);
    move |rank| base.clone().for_rank(rank)
}

/// Runs `member` as each member of a group, each in a thread, and returns what they return.
fn members<T: Send + 'static>(
    config: impl Fn(usize) -> Config + Clone + Send + 'static,
    count: usize,
    member: impl Fn(Group) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let threads: Vec<_> = (0..count)
        .map(|rank| {
            let (config, member) = (config.clone(), member.clone());
            thread::spawn(move || member(Group::join(config(rank)).expect("the group starts")))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
}

/// Each member sends and pulls; all see the same order, and a blocking sender with a small window finishes.
#[test]
fn all_members_deliver_the_same_order() {
    let subgroup = SubgroupConfig { window: 8, message_max: 100, ..SubgroupConfig::default() };
    let barrier = Arc::new(Barrier::new(3));
    let logs = members(config("order", 3, subgroup), 3, move |mut group| {
        let rank = group.rank();
        let log = group.subgroup("log").unwrap();
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        let sending = thread::spawn(move || {
            for number in 0..2000u32 {
                sender.send_blocking(4, |bytes| bytes.copy_from_slice(&number.to_le_bytes())).unwrap();
            }
        });
        let mut seen = Vec::new();
        let mut counts = [0u32; 3];
        while seen.len() < 6000 {
            let message = deliveries.next().unwrap();
            let number = u32::from_le_bytes(message.bytes.try_into().unwrap());
            assert_eq!(number, counts[message.sender], "FIFO from {} at {rank}", message.sender);
            counts[message.sender] += 1;
            seen.push((message.sender, number));
        }
        sending.join().unwrap();
        barrier.wait();
        seen
    });
    assert!(logs[0] == logs[1] && logs[1] == logs[2]);
}

/// One member sends, messages are unordered, and upcalls take batches; other members cannot take a sender.
#[test]
fn one_sender_and_batches() {
    let subgroup = SubgroupConfig {
        senders: squall::config::Ranks::These(vec![1]),
        mode: DeliveryMode::Unordered,
        ..SubgroupConfig::default()
    };
    let config = config("batch", 2, subgroup);
    let threads: Vec<_> = (0..2)
        .map(|rank| {
            let config = config(rank);
            thread::spawn(move || {
                let (send, receive) = mpsc::channel();
                let mut group = Group::builder(config)
                    .on_batch("log", move |batch| {
                        batch.for_each(|message| send.send(message.bytes.to_vec()).unwrap())
                    })
                    .join()
                    .unwrap();
                let log = group.subgroup("log").unwrap();
                assert!(matches!(log.deliveries(), Err(HandleError::Upcall(_))));
                if rank == 0 {
                    assert!(matches!(log.sender(), Err(HandleError::NotASender(_))));
                } else {
                    let mut sender = log.sender().unwrap();
                    assert!(matches!(log.sender(), Err(HandleError::Taken { .. })));
                    for number in 0..100u8 {
                        sender.send_blocking(1, |bytes| bytes[0] = number).unwrap();
                    }
                    assert!(matches!(sender.send(20_000, |_| ()), Err(SendError::TooLong { .. })));
                }
                let seen: Vec<u8> =
                    (0..100).map(|_| receive.recv_timeout(Duration::from_secs(20)).unwrap()[0]).collect();
                assert!(seen.into_iter().eq(0..100));
                thread::sleep(Duration::from_millis(50));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// One of two is not a majority: the member that is left stops and reports why [V5].
#[test]
fn a_minority_stops() {
    let barrier = Arc::new(Barrier::new(2));
    let outcomes = members(config("lost", 2, SubgroupConfig::default()), 2, move |mut group| {
        barrier.wait();
        if group.rank() == 1 {
            return None;
        }
        let log = group.subgroup("log").unwrap();
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        let error = deliveries.next().map(|_| ()).unwrap_err();
        assert!(matches!(sender.send(1, |_| ()), Err(SendError::Group(_))));
        assert_eq!((sender.sent(), sender.wait_for_outcome(0)), (0, MessageOutcome::Unknown));
        Some(error)
    });
    let stop = StopReason::Minority { lost: 1, members: 2 };
    assert!(matches!(&outcomes[0], Some(ReceiveError::Group(GroupError::Stopped(found))) if *found == stop));
}

/// A member leaves in the middle: the others continue in the next view, and none of their messages is lost or
/// duplicated.
#[test]
fn the_others_continue_without_a_member_that_leaves() {
    const EACH: u32 = 3000;
    let subgroup = SubgroupConfig { window: 8, message_max: 100, ..SubgroupConfig::default() };
    let barrier = Arc::new(Barrier::new(2));
    let logs = members(config("survive", 3, subgroup), 3, move |mut group| {
        let rank = group.rank();
        let log = group.subgroup("log").unwrap();
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        let count = if rank == 1 { 100 } else { EACH };
        let sending = thread::spawn(move || {
            for number in 0..count {
                let message = [rank as u32, number].map(u32::to_le_bytes).concat();
                sender.send_blocking(8, |bytes| bytes.copy_from_slice(&message)).unwrap();
                assert_eq!(sender.sent(), u64::from(number) + 1);
                // All messages but those in the window have been delivered.
                let delivered = sender.outcome(u64::from(number.saturating_sub(8)));
                assert!(
                    number < 8 || delivered == MessageOutcome::Delivered,
                    "{number} at {rank}: {delivered:?}"
                );
            }
            // This includes the messages that were carried into the next view.
            for number in 0..count.into() {
                assert_eq!(sender.wait_for_outcome(number), MessageOutcome::Delivered, "{number} at {rank}");
            }
        });
        let mut seen = Vec::new();
        let mut counts = [0; 3];
        while counts[rank] < count || rank != 1 && (counts[0], counts[2]) < (EACH, EACH) {
            let message = deliveries.next().unwrap();
            let word = |i: usize| u32::from_le_bytes(message.bytes[4 * i..][..4].try_into().unwrap());
            let (from, number) = (word(0), word(1));
            assert_eq!(number, counts[from as usize], "FIFO from {from} at {rank}");
            counts[from as usize] += 1;
            seen.push((message.view, from, number));
        }
        deliveries.release();
        sending.join().unwrap();
        if rank != 1 {
            barrier.wait();
            assert_eq!((group.view().id, group.members()), (1, 2));
        }
        seen
    });
    assert!(logs[0] == logs[2], "the survivors have one log");
    assert!(logs[0].starts_with(&logs[1]), "and it continues the log of the member that left");
}

/// Tasks can send and receive by `await`, on any executor.
#[test]
fn tasks_can_wait() {
    let subgroup = SubgroupConfig { window: 2, message_max: 8, ..SubgroupConfig::default() };
    let counts = members(config("await", 2, subgroup), 2, |mut group| {
        let log = group.subgroup("log").unwrap();
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        let sending = thread::spawn(move || {
            futures_executor::block_on(async {
                for _ in 0..500 {
                    sender.send_async(8, |bytes| bytes.fill(1)).await.unwrap();
                }
            });
        });
        let count = futures_executor::block_on(async {
            let mut count = 0;
            while count < 1000 {
                count += deliveries.next_async().await.unwrap().bytes.len() / 8;
            }
            count
        });
        sending.join().unwrap();
        thread::sleep(Duration::from_millis(100));
        count
    });
    assert_eq!(counts, [1000, 1000]);
}

/// Messages above `message_max` take their place in the order, unchanged, whichever member sends them and by
/// whichever carrier; the window for them is small, so memory is reused many times.
#[test]
fn large_messages_take_their_place() {
    let network = if rdma::is_wanted() { Transport::Verbs } else { Transport::Tcp };
    for (test, transport, carrier) in [
        ("large-shm", Transport::Shm, None),
        ("large-network", network, None),
        ("large-pushed", network, Some(Carrier::Pushed)),
        ("large-relayed", Transport::Shm, Some(Carrier::Relayed)),
    ] {
        let subgroup = SubgroupConfig {
            window: 8,
            message_max: 100,
            large_max: Some(3 << 20),
            large_window_bytes: Some(4 << 20),
            large_carrier: carrier,
            ..SubgroupConfig::default()
        };
        let base = Config { transport, ..Config::local(&name(test), 3) }.subgroup("log", subgroup);
        let free = format!("127.0.0.1:{}", reserve_port().unwrap());
        let config = move |rank: usize| {
            let mut config = base.clone().for_rank(rank);
            if transport != Transport::Shm {
                config.verbs = rdma::settings(rank);
                config.contacts = vec![free.parse().unwrap()];
                config.listen =
                    if rank == 0 { config.contacts[0].clone() } else { "127.0.0.1:0".parse().unwrap() };
            }
            config
        };
        let barrier = Arc::new(Barrier::new(3));
        let member = move |mut group: Group| {
            let seen = take_large(&mut group);
            // No member leaves before all have everything.
            barrier.wait();
            seen
        };
        let logs = members(config, 3, member);
        assert!(logs[0] == logs[1] && logs[1] == logs[2], "{test}: the orders differ");
    }
}

/// Sends small and large messages, checks all that is delivered, and returns the order of delivery.
fn take_large(group: &mut Group) -> Vec<(usize, usize)> {
    let log = group.subgroup("log").unwrap();
    let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    assert_eq!(sender.message_max(), 3 << 20);
    let sending = thread::spawn(move || {
        for number in 0..NUMBERS {
            sender.send_blocking(length(number), |bytes| bytes.fill(number as u8)).unwrap();
        }
        sender
    });
    let mut seen = Vec::new();
    let mut next = [0; 3];
    while seen.len() < 3 * NUMBERS {
        let message = deliveries.next().unwrap();
        let number = next[message.sender];
        assert_eq!(message.bytes.len(), length(number), "message {number} of {}", message.sender);
        assert!(message.bytes.iter().all(|byte| *byte == number as u8), "message {number}");
        next[message.sender] += 1;
        seen.push((message.sender, number));
    }
    deliveries.release();
    sending.join().unwrap();
    seen
}

/// The number of messages that each member sends.
const NUMBERS: usize = 40;

/// Returns the length of a message. One in four is large: one byte too long for the window, the longest, and some in
/// between.
fn length(number: usize) -> usize {
    match number % 12 {
        3 => 101,
        7 => 3 << 20,
        11 => 100_000 + 7 * number,
        _ => number,
    }
}
