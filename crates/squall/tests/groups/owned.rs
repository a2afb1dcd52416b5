//! Deliveries as copies: an iterator, a stream of futures, and a future of a join.

use std::time::Duration;

use squall::config::SubgroupConfig;
use squall::{Config, Group};

fn config(test: &str) -> Config {
    let name = format!("owned-{test}-{}", std::process::id());
    Config::local(&name, 1).subgroup("log", SubgroupConfig { window: 4, ..SubgroupConfig::default() })
}

/// All messages come, although the window has space for few, and the iterator ends when the member has left.
#[test]
fn an_iterator_ends_with_the_group() {
    let mut group = Group::join(config("iterator")).expect("it joins");
    let log = group.subgroup("log").unwrap();
    let (mut sender, deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    let reader = std::thread::spawn(move || -> Vec<u64> {
        let read =
            |message: squall::OwnedMessage| squall::read_value(&message.bytes).expect("it is a number");
        deliveries.owned().map(|message| read(message.expect("the group was left in order"))).collect()
    });
    for number in 0..100_u64 {
        while sender.send_value(&number).is_err_and(|error| error.is_passing()) {
            std::thread::yield_now();
        }
    }
    while !sender.is_drained() {
        std::thread::yield_now();
    }
    group.leave(Duration::from_secs(10));
    assert_eq!(reader.join().unwrap(), (0..100).collect::<Vec<_>>());
}

/// A future of a join that is dropped leaves the group, so that its name is free again.
#[test]
fn a_join_that_is_given_up_leaves_the_group() {
    let config = config("join");
    for _ in 0..3 {
        drop(Box::pin(Group::join_async(config.clone())));
        let group = futures_executor::block_on(Group::join_async(config.clone())).expect("the name is free");
        assert_eq!(group.members(), 1);
    }
    use std::future::Future as _;
    let mut joining = Box::pin(Group::join_async(config.clone()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(joining.as_mut().poll(&mut context).is_pending(), "a thread of its own joins");
    drop(joining);
    // The thread that was given up may still have the name for a moment.
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while let Err(error) = Group::join(config.clone()) {
        assert!(std::time::Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A panic while the group is joined reaches the task that awaits it, which would wait without end otherwise.
#[test]
fn a_panic_in_a_join_reaches_its_task() {
    let builder = Group::builder(config("panic")).on_progress(|_| panic!("the display is gone"));
    let task = std::thread::spawn(move || futures_executor::block_on(builder.join_async()).map(drop));
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !task.is_finished() {
        assert!(std::time::Instant::now() < until, "the task still waits");
        std::thread::sleep(Duration::from_millis(10));
    }
    let panic = task.join().expect_err("the closure has panicked");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the display is gone"));
}

#[cfg(feature = "futures")]
#[test]
fn a_stream_wakes_its_task() {
    use futures_core::Stream as _;
    let mut group = Group::join(config("stream")).expect("it joins");
    let log = group.subgroup("log").unwrap();
    let (mut sender, deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        sender.send_bytes(b"hello").expect("there is space");
        sender
    });
    let mut stream = std::pin::pin!(deliveries.owned());
    let mut next =
        || futures_executor::block_on(std::future::poll_fn(|context| stream.as_mut().poll_next(context)));
    assert_eq!(next().expect("it has not ended").expect("the group lives").bytes, b"hello");
    writer.join().unwrap();
    group.leave(Duration::from_secs(10));
    assert!(next().is_none(), "the group was left in order");
    assert!(next().is_none(), "and stays so");
}
