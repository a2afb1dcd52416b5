//! Consumers that stop taking messages: the member that holds the others up is known, and they wait for it or exclude
//! it.

use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Config, SlowConsumer, SubgroupConfig};
use squall::{Deliveries, Group, GroupError, MemberStatus, ReceiveError, ask_status};

const PATIENCE: Duration = Duration::from_secs(30);

fn config(test: &str, slow_consumer: SlowConsumer) -> Config {
    let subgroup = SubgroupConfig {
        window: 8,
        slow_consumer,
        slow_after: Duration::from_millis(600),
        ..SubgroupConfig::default()
    };
    Config::local(&format!("slow-{test}-{}", std::process::id()), 3).subgroup("log", subgroup)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs ranks 0 and 1, which deliver by upcall; rank 0 sends all the time. `with` gets the deliveries of rank 2, and
/// the number of messages that rank 0 has sent.
fn with_a_consumer(config: &Config, with: impl FnOnce(&Group, Deliveries, &AtomicU64) + Send) {
    let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (sent, is_over) = (&sent, &is_over);
        for rank in 0..2 {
            let config = config.clone().for_rank(rank);
            scope.spawn(move || {
                let mut group = Group::builder(config).on_message("log", |_| ()).join().expect("it joins");
                let mut sender = group.subgroup("log").unwrap().sender().unwrap();
                let deadline = Instant::now() + 2 * PATIENCE;
                while !is_over.load(Ordering::SeqCst) && Instant::now() < deadline {
                    if rank == 0 && sender.send(1, |bytes| bytes[0] = 1).is_ok() {
                        sent.fetch_add(1, Ordering::SeqCst);
                    }
                    // The last member to leave finds the others gone.
                    let failure = group.failure();
                    assert!(failure.is_none() || is_over.load(Ordering::SeqCst), "{failure:?}");
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let config = config.clone().for_rank(2);
        scope.spawn(move || {
            let mut group = Group::join(config).expect("it joins");
            let deliveries = group.subgroup("log").unwrap().deliveries().unwrap();
            with(&group, deliveries, sent);
            is_over.store(true, Ordering::SeqCst);
        });
    });
}

fn status(config: &Config, rank: usize) -> MemberStatus {
    let config = config.clone().for_rank(rank);
    ask_status(&config, &config.listen).expect("the member answers")
}

/// Under `wait` all members stall, and both those that wait and the slow one report which member holds them up; when
/// it takes messages again, all continue.
#[test]
fn the_member_that_holds_up_a_subgroup_is_named() {
    let config = config("named", SlowConsumer::Wait);
    with_a_consumer(&config, |group, mut deliveries, sent| {
        thread::sleep(Duration::from_millis(1500));
        let before = sent.load(Ordering::SeqCst);
        let (sender, slow) = (status(&config, 0), status(&config, 2));
        let held = sender.subgroups[0].held_up_by.expect("it is held up");
        assert!(held.rank == 2 && (800..20_000).contains(&held.millis), "{held:?}");
        let slowest = sender.subgroups[0].slowest.as_ref().expect("it waits");
        assert_eq!((slowest.rank, &*slowest.cause, slowest.percent), (2, "consumer", 100));
        assert!(slow.subgroups[0].stood_still_millis.is_some_and(|millis| millis >= 800), "{slow:?}");
        assert_eq!(status(&config, 1).subgroups[0].stood_still_millis, None, "it takes its messages");
        assert_eq!(sent.load(Ordering::SeqCst), before, "the window is full");
        let mut taken = 0;
        while taken < before + 100 {
            deliveries.next().expect("no member is removed");
            taken += 1;
        }
        assert_eq!(group.members(), 3);
    });
}

/// Under `exclude` the others continue, and the slow member gets an error that says why.
#[test]
fn the_member_that_holds_up_the_others_is_excluded() {
    let config = config("excluded", SlowConsumer::Exclude);
    with_a_consumer(&config, |group, mut deliveries, sent| {
        wait_until("the member is excluded", || group.failure().is_some());
        let before = sent.load(Ordering::SeqCst);
        wait_until("the others continue", || sent.load(Ordering::SeqCst) > before + 50);
        let error = loop {
            match deliveries.next() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let ReceiveError::Group(GroupError::Slow { subgroup, stood_still, .. }) = &error else {
            panic!("{error}")
        };
        assert!(subgroup == "log" && *stood_still >= Duration::from_millis(600), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("excluded: this member's consumer of subgroup `log` took no message for")
        );
    });
}

/// The others wait for a consumer that is slow but makes progress: it takes messages occasionally, fewer than it
/// releases at once.
#[test]
fn a_consumer_that_makes_progress_is_not_excluded() {
    let config = config("moves", SlowConsumer::Exclude);
    let config = config.subgroup("log", SubgroupConfig { window: 64, ..config_of("moves") });
    with_a_consumer(&config, |group, mut deliveries, _| {
        for _ in 0..12 {
            deliveries.next().expect("it is not excluded");
            thread::sleep(Duration::from_millis(250));
        }
        assert_eq!((group.members(), group.failure().is_none()), (3, true));
    });
}

fn config_of(test: &str) -> SubgroupConfig {
    config(test, SlowConsumer::Exclude).subgroups["log"].clone()
}
