//! Clients outside the group reach it after all members that they knew have been replaced one by one \[A10\] (Derecho app. A:
//! external clients).

use std::thread;
use std::time::Duration;

use squall::config::{Address, PartitionSafety, SubgroupConfig};
use squall::object::{Client, ClientEvent, Object, Replicated, Snapshot, restored};
use squall::{Config, Departure, Group};

const PATIENCE: Duration = Duration::from_secs(60);

/// A sum.
struct Sum(u64);

impl Replicated for Sum {
    type Update = u64;
    type Query = ();
    type Reply = u64;

    fn apply(&mut self, more: u64) -> u64 {
        self.0 += more;
        self.0
    }

    fn query(&self, (): ()) -> u64 {
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0)
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

/// Returns the configuration of the member of this number, which knows only the previous one.
fn config(test: &str, number: usize) -> Config {
    let mut config = Config::local(&format!("clients-{test}-{}", std::process::id()), 1);
    let address = |number: usize| Address::Abstract(format!("squall-{}-{number}", config.cluster));
    let (listen, contact) = (address(number), address(number.saturating_sub(1)));
    (config.listen, config.contacts) = (listen, vec![contact]);
    config.rank = (number == 0).then_some(0);
    config.partition_safety = PartitionSafety::Off;
    config.subgroup("sum", SubgroupConfig { window: 16, message_max: 1000, ..SubgroupConfig::default() })
}

fn join(test: &str, number: usize) -> (Group, Object<Sum>) {
    let mut group = Group::join(config(test, number)).expect("the member joins");
    let object = group.object("sum", || Sum(0)).expect("it is configured");
    object.wait_ready(PATIENCE).expect("it gets the state");
    (group, object)
}

/// Replaces the only member `times` times; each old member stays for `step` together with the next one.
fn replace(
    test: &str,
    mut member: (Group, Object<Sum>),
    times: usize,
    step: Duration,
) -> (Group, Object<Sum>) {
    for number in 1..=times {
        let next = join(test, number);
        thread::sleep(step);
        let (left, _) = std::mem::replace(&mut member, next);
        let departure = left.leave(PATIENCE);
        assert!(matches!(departure, Departure::InOrder), "{departure:?}");
    }
    member
}

#[test]
fn an_idle_client_follows_the_members() {
    let first = join("idle-client", 0);
    let client = Client::<Sum>::connect(&config("idle-client", 0), "sum").unwrap();
    assert_eq!(client.update(b"", &1).unwrap().wait().unwrap(), 1);
    let last = replace("idle-client", first, 2, Duration::from_secs(3));
    assert_eq!(client.update(b"", &2).unwrap().wait().unwrap(), 3);
    drop(last);
}

/// A busy client asks for the members when answers come from later views, which is sooner than an idle client would.
#[test]
fn a_busy_client_follows_the_members() {
    let first = join("busy-client", 0);
    let client = Client::<Sum>::connect(&config("busy-client", 0), "sum").unwrap();
    thread::scope(|scope| {
        let members = scope.spawn(|| replace("busy-client", first, 4, Duration::from_millis(400)));
        let mut sum = 0;
        while !members.is_finished() {
            sum += 1;
            assert_eq!(client.update(b"", &1).unwrap().wait().unwrap(), sum);
            thread::sleep(Duration::from_millis(10));
        }
        drop(members.join().unwrap());
    });
}

/// A client reports where its requests go, and a close waits for what is under way.
#[test]
fn a_client_reports_its_connections_and_closes_in_order() {
    let first = join("events-client", 0);
    let client = Client::<Sum>::connect(&config("events-client", 0), "sum").unwrap();
    let (sender, events) = std::sync::mpsc::channel();
    client.on_event(move |event| drop(sender.send(event)));
    client.update(b"", &1).unwrap().wait().unwrap();
    let ClientEvent::Connected { node, .. } = events.recv_timeout(PATIENCE).unwrap() else {
        panic!("it is connected first")
    };
    let last = replace("events-client", first, 1, Duration::from_secs(3));
    client.update(b"", &2).unwrap().wait().unwrap();
    let lost = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(lost, ClientEvent::Lost { node: lost, .. } if lost == node), "{lost:?}");
    let again = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(again, ClientEvent::Connected { node: other, .. } if other != node), "{again:?}");
    let pending: Vec<_> = (0..100).map(|_| client.update(b"", &1).unwrap()).collect();
    client.close();
    assert_eq!(last.1.inspect(0, |_, sum| sum.0), Some(103), "a close waits for all of them");
    assert!(pending.into_iter().all(|reply| reply.wait().is_ok()));
}

/// A watcher sees each change that comes after the last one that it has seen, and the end of the group.
#[test]
fn a_watcher_sees_the_latest_state_and_the_end() {
    let (group, object) = join("watch", 0);
    let mut watch = object.watch(0);
    let watcher = object.clone();
    let watching = thread::spawn(move || {
        let mut seen = 0;
        while seen < 50 {
            watch.changed().expect("the group lives");
            seen = watcher.inspect(0, |_, sum| sum.0).expect("it has the state");
        }
        // A view without updates is no end.
        loop {
            if let Err(error) = watch.changed() {
                return error.to_string();
            }
        }
    });
    for _ in 0..50 {
        object.update(b"", &1).unwrap().wait().unwrap();
    }
    group.leave(PATIENCE);
    let end = watching.join().unwrap();
    assert!(end.contains("left the group"), "{end}");
}

/// A client's thread that panics leaves no caller waiting.
#[test]
fn a_panic_in_the_function_for_events_ends_the_requests() {
    let (_group, _object) = join("panics", 0);
    let client = Client::<Sum>::connect(&config("panics", 0), "sum").expect("the member answers");
    client.on_event(|_| panic!("on purpose"));
    for _ in 0..2 {
        let outcome = futures_executor::block_on(client.update(b"", &1).expect("it is short"));
        assert!(matches!(outcome, Err(squall::object::ObjectError::Stopped)), "{outcome:?}");
    }
}

/// A caller that waits for its reply fetches it itself; one that does something else has it fetched at once, not when it would have been
/// waited for.
#[test]
fn replies_come_however_they_are_awaited() {
    const ROUNDS: u64 = 400;
    let (_group, _object) = join("awaited", 0);
    let client = Client::<Sum>::connect(&config("awaited", 0), "sum").expect("the member answers");
    let update = || client.update(b"", &1).expect("it is short");
    let begun = std::time::Instant::now();
    for round in 0..ROUNDS {
        assert_eq!(update().wait().expect("it is applied"), 5 * round + 1);
        assert_eq!(futures_executor::block_on(update()).expect("it is applied"), 5 * round + 2);
        assert_eq!(update().wait().expect("it is applied"), 5 * round + 3);
        let mut pending = update();
        let reply = loop {
            match pending.try_wait() {
                Ok(reply) => break reply,
                Err(not_yet) => pending = not_yet,
            }
            thread::yield_now();
        };
        assert_eq!(reply.expect("it is applied"), 5 * round + 4);
        // It counts, although nothing takes the reply.
        drop(update());
    }
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(2), "{ROUNDS} rounds took {taken:?}");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| assert!(update().wait().is_ok())));
        }
    });
    assert_eq!(client.query_latest(b"", &()).unwrap().wait().unwrap(), 9 * ROUNDS);
}
