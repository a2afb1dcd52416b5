//! Groups whose node is polled by the threads that wait.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::SubgroupConfig;
use squall::{Config, Deliveries, Departure, Group, PolledBy, Sender, SharedPoller};
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

struct Member {
    group: Group,
    poller: SharedPoller,
    sender: Sender,
    deliveries: Deliveries,
}

fn members(test: &str, count: usize) -> Vec<Member> {
    let name = format!("shared-{test}-{}", std::process::id());
    let join = move |rank| {
        let config = Config::local(&name, count).for_rank(rank);
        let (mut group, poller) = Group::builder(config.subgroup("log", SubgroupConfig::default()))
            .join_shared()
            .expect("it joins");
        let log = group.subgroup("log").expect("it is there");
        let (sender, deliveries) = (log.sender().expect("it sends"), log.deliveries().expect("it is pulled"));
        Member { group, poller, sender, deliveries }
    };
    thread::scope(|scope| {
        let joins: Vec<_> = (0..count)
            .map(|rank| {
                scope.spawn({
                    let join = join.clone();
                    move || join(rank)
                })
            })
            .collect();
        joins.into_iter().map(|join| join.join().expect("no panic")).collect()
    })
}

/// Waits for the next message, which is a number.
fn next(poller: &SharedPoller, deliveries: &mut Deliveries) -> Option<u64> {
    poller.wait_until(PATIENCE, || {
        let message = deliveries.try_next().expect("the group lives")?;
        Some(u64::from_le_bytes(message.bytes.try_into().expect("eight bytes")))
    })
}

/// Two members take turns, so that in each the thread that sends is the one that waits.
#[test]
fn messages_pass_between_threads_that_wait() {
    let mut members = members("turns", 2);
    let rounds = 2000;
    let run = |member: &mut Member, rank: u64| {
        for round in 0..rounds {
            if round % 2 == rank {
                member
                    .poller
                    .assist(|| member.sender.send_bytes(&round.to_le_bytes()))
                    .expect("there is space");
            }
            assert_eq!(next(&member.poller, &mut member.deliveries), Some(round));
        }
    };
    let (one, other) = members.split_at_mut(1);
    thread::scope(|scope| {
        scope.spawn(|| run(&mut one[0], 0));
        run(&mut other[0], 1);
    });
}

/// The standby thread polls while the application does something else, also after it has waited for long.
#[test]
fn a_member_that_does_not_wait_holds_up_no_other() {
    let mut members = members("absent", 2);
    let [one, other] = &mut members[..] else { unreachable!("there are two") };
    for pause in [0, 5, 50] {
        // A turn that ends quickly, and one that takes long: nothing comes.
        let nothing: Option<()> = other.poller.wait_until(Duration::from_millis(pause), || None);
        assert_eq!(nothing, None);
        let begun = Instant::now();
        one.sender.send_bytes(&pause.to_le_bytes()).expect("there is space");
        // Only a poll of the other member makes it stable, and this one waits without polling.
        while one.deliveries.try_next().expect("the group lives").is_none() {
            assert!(begun.elapsed() < PATIENCE, "the other member does not acknowledge");
            thread::sleep(Duration::from_micros(50));
        }
        assert_eq!(next(&other.poller, &mut other.deliveries), Some(pause));
    }
}

/// What no poll shows wakes a thread that waits: the one that has the turn and sleeps, and one behind it.
#[test]
fn a_notice_wakes_all_that_wait() {
    let members = members("notice", 1);
    let poller = &members[0].poller;
    let (level, woken) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for wanted in 1..=20 {
                    let found = poller
                        .wait_until(PATIENCE, || (level.load(Ordering::SeqCst) >= wanted).then_some(()));
                    assert!(found.is_some(), "no thread has woken it");
                    woken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for wanted in 1..=20 {
            thread::sleep(Duration::from_millis(1 + wanted % 3));
            level.store(wanted, Ordering::SeqCst);
            poller.notify();
        }
    });
    assert_eq!(woken.load(Ordering::SeqCst), 60);
}

/// What a poll moves wakes a thread that waits while another one polls, and waits for something else.
#[test]
fn a_poll_wakes_those_that_wait_behind() {
    let mut members = members("behind", 2);
    let [one, other] = &mut members[..] else { unreachable!("there are two") };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let poller = one.poller.clone();
        let is_over = &is_over;
        scope.spawn(move || {
            poller.wait_until_notified(PATIENCE, || is_over.load(Ordering::SeqCst).then_some(()))
        });
        thread::sleep(Duration::from_millis(20));
        for round in 0..20 {
            let begun = Instant::now();
            other.sender.send_bytes(&u64::to_le_bytes(round)).expect("there is space");
            assert_eq!(next(&one.poller, &mut one.deliveries), Some(round));
            assert!(begun.elapsed() < PATIENCE / 4, "no thread has woken it");
        }
        is_over.store(true, Ordering::SeqCst);
        one.poller.notify();
    });
}

/// A thread that sends much polls in the place of the standby thread, which takes over again for what is left at the end.
#[test]
fn a_thread_that_relieves_leaves_nothing_behind() {
    let mut members = members("relieve", 2);
    let [one, other] = &mut members[..] else { unreachable!("there are two") };
    let rounds = 2010;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                assert_eq!(next(&other.poller, &mut other.deliveries), Some(round));
            }
        });
        for round in 0..rounds {
            while let Err(error) = one.sender.send_bytes(&round.to_le_bytes()) {
                assert!(error.is_passing(), "{error}");
                one.poller.relieve();
                while one.deliveries.try_next().expect("the group lives").is_some() {}
            }
            if round % 32 == 0 {
                one.poller.relieve();
            }
        }
    });
}

#[test]
fn a_wait_ends_in_time() {
    let members = members("time", 1);
    for limit in [0, 1, 30] {
        let (limit, begun) = (Duration::from_millis(limit), Instant::now());
        let nothing: Option<()> = members[0].poller.wait_until(limit, || None);
        assert_eq!(nothing, None);
        assert!(begun.elapsed() >= limit && begun.elapsed() < limit + PATIENCE);
    }
}

/// The group ends in order although a thread waits, which then sees that.
#[test]
fn a_group_ends_while_a_thread_waits() {
    let mut members = members("end", 1);
    let Member { group, poller, sender: _sender, mut deliveries } = members.pop().expect("there is one");
    let (told, has_ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let telling = Arc::clone(&told);
    poller.on_news(move |by| telling.lock().expect("no panic").push(by));
    thread::scope(|scope| {
        scope.spawn(|| {
            let ended = poller.wait_until(PATIENCE, || deliveries.try_next().err());
            has_ended.store(ended.is_some(), Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(matches!(group.leave(PATIENCE), Departure::InOrder));
    });
    assert!(has_ended.load(Ordering::SeqCst));
    assert_eq!(told.lock().expect("no panic").last(), Some(&PolledBy::NoThread));
}

const PATIENCE: Duration = Duration::from_secs(20);
