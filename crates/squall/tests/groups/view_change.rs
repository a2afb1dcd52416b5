//! Senders during view changes: what an application sees between two windows (Derecho §3.4).

use squall_fabric::atomics::{AtomicUsize, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Address, Config, SubgroupConfig, Transport};
use squall::{Deliveries, DeliveryEvent, Group, MessageOutcome, Node, SendError, Sender, SubgroupView};
use squall_transports::reserve_port;

const PATIENCE: Duration = Duration::from_secs(30);

type ByRank = Box<dyn Fn(usize) -> Config + Send + Sync>;

fn shm(test: &str) -> ByRank {
    let base = Config::local(&format!("change-{test}-{}", std::process::id()), 3);
    let base = base.subgroup("log", SubgroupConfig::default());
    Box::new(move |rank| base.clone().for_rank(rank))
}

fn tcp(test: &str) -> ByRank {
    let ports = [(); 3].map(|()| reserve_port().unwrap());
    let base = shm(test);
    let address = move |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
    Box::new(move |rank| Config {
        transport: Transport::Tcp,
        listen: address(rank),
        contacts: (0..3).map(&address).collect(),
        ..base(rank)
    })
}

/// Waits until `is_so` returns true; `what` is the panic message if that takes too long.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A barrier with a timeout, in case one of the threads panics.
struct Meeting(AtomicUsize, usize);

impl Meeting {
    fn of(threads: usize) -> Self {
        Self(AtomicUsize::new(0), threads)
    }

    fn wait(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        wait_until("all threads meet", || self.0.load(Ordering::SeqCst) == self.1);
    }
}

/// Starts a member with a thread of its own, which counts the messages that it delivers.
fn member(config: Config) -> (Group, Sender, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let upcall = move |_: squall::Message<'_>| {
        counting.fetch_add(1, Ordering::SeqCst);
    };
    let mut group = Group::builder(config).on_message("log", upcall).join().expect("it joins");
    let sender = group.subgroup("log").unwrap().sender().unwrap();
    (group, sender, count)
}

/// Starts a member that is polled until messages flow, and then halts until it is dropped.
fn halted(config: Config) -> (Group, Node) {
    let builder = Group::builder(config).on_message("log", |_| ());
    let (group, mut node) = builder.join_polled().expect("it joins");
    let deadline = Instant::now() + PATIENCE;
    while !node.is_ready() {
        assert!(Instant::now() < deadline, "the group does not begin");
        node.poll();
    }
    // The others have not seen yet that this one is ready.
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        node.poll();
    }
    (group, node)
}

/// Runs `survivor` at ranks 0 and 1 while rank 2 halts and is suspected; returns their results.
fn with_one_halted<T: Send>(
    test: &str,
    survivor: impl Fn(Group, Sender, Arc<AtomicUsize>, &Meeting) -> T + Sync,
) -> Vec<T> {
    let config = shm(test);
    let config = |rank| Config { suspicion_after: Some(Duration::from_millis(500)), ..config(rank) };
    let (all_are_here, all_are_done) = (Meeting::of(3), Meeting::of(3));
    thread::scope(|scope| {
        scope.spawn(|| {
            let kept = halted(config(2));
            all_are_here.wait();
            all_are_done.wait();
            drop(kept);
        });
        let (config, survivor, all_are_here, all_are_done) =
            (&config, &survivor, &all_are_here, &all_are_done);
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let (group, sender, count) = member(config(rank));
                    all_are_here.wait();
                    survivor(group, sender, count, all_are_done)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Sends as soon as messages flow in the new view; until then, the only error is that the view is changing.
fn send_when_view_begins(sender: &mut Sender) {
    wait_until("messages flow", || match sender.send(1, |bytes| bytes[0] = 2) {
        Ok(_) => true,
        Err(SendError::ViewChanging) => false,
        Err(error) => panic!("nothing is in flight: {error:?}"),
    });
}

/// After a view change with nothing in flight there is space: the first send succeeds, although the application has
/// not used its sender since the previous view.
fn the_first_send_finds_space(config: fn(&str) -> ByRank, rounds: usize) {
    for round in 0..rounds {
        let config = Arc::new(config(&format!("space-{round}")));
        let meetings = Arc::new([Meeting::of(2), Meeting::of(2)]);
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let (config, meetings) = (Arc::clone(&config), Arc::clone(&meetings));
                thread::spawn(move || {
                    let (group, mut sender, count) = member(config(rank));
                    sender.send(1, |bytes| bytes[0] = 1).expect("the first window is empty");
                    wait_until("all three are delivered", || count.load(Ordering::SeqCst) >= 3);
                    if rank == 0 {
                        group.leave(PATIENCE);
                        return;
                    }
                    wait_until("a view of two", || group.members() == 2);
                    send_when_view_begins(&mut sender);
                    meetings[0].wait();
                    wait_until("both are delivered", || count.load(Ordering::SeqCst) >= 5);
                    meetings[1].wait();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the member does not panic"));
    }
}

#[test]
fn the_first_send_after_a_view_change_finds_space_on_shm() {
    the_first_send_finds_space(shm, 10);
}

#[test]
fn the_first_send_after_a_view_change_finds_space_on_tcp() {
    the_first_send_finds_space(tcp, 5);
}

/// The outcome of a message that was in flight when its view ended is known when all members have delivered it,
/// whether or not the sender sends again. The first query returns it.
#[test]
fn an_outcome_is_known_without_another_send() {
    with_one_halted("outcome", |group, mut sender, count, all_are_done| {
        let sends = group.rank() == 1;
        if sends {
            sender.send(1, |bytes| bytes[0] = 7).unwrap();
            assert_eq!(sender.outcome(0), MessageOutcome::Pending, "one member halts");
        }
        wait_until("a view of two", || group.members() == 2);
        wait_until("it is delivered", || count.load(Ordering::SeqCst) >= 1);
        thread::sleep(Duration::from_millis(300));
        if sends {
            assert_eq!(sender.outcome(0), MessageOutcome::Delivered);
            assert!(sender.is_drained());
        }
        all_are_done.wait();
    });
}

/// A message that was reserved before its view ended, and committed long after the next view began, is delivered,
/// although its sender is not used again [V7].
#[test]
fn a_message_that_is_built_across_a_view_change_is_delivered() {
    with_one_halted("slot", |group, mut sender, count, all_are_done| {
        let sends = group.rank() == 1;
        let mut slot = sends.then(|| sender.reserve(1).expect("there is space"));
        wait_until("a view of two", || group.members() == 2);
        thread::sleep(Duration::from_millis(100));
        if let Some(mut slot) = slot.take() {
            slot[0] = 7;
            slot.commit();
        }
        wait_until("it is delivered", || count.load(Ordering::SeqCst) >= 1);
        if sends {
            wait_until("its outcome", || sender.outcome(0) == MessageOutcome::Delivered);
            sender.send(1, |bytes| bytes[0] = 8).expect("there is space");
        }
        wait_until("the next one", || count.load(Ordering::SeqCst) >= 2);
        all_are_done.wait();
    });
}

/// While a view changes there is no window, and the error says so; a window that is not full is never reported as
/// full.
#[test]
fn a_changing_view_is_not_a_full_window() {
    let mut seen = BTreeSet::new();
    for round in 0..10 {
        let errors = with_one_halted(&format!("changing-{round}"), |group, mut sender, _, all_are_done| {
            let mut errors = BTreeSet::new();
            let deadline = Instant::now() + PATIENCE;
            while group.members() == 3 {
                assert!(Instant::now() < deadline, "a view of two");
                if let Err(error) = sender.reserve(1) {
                    assert!(matches!(error, SendError::ViewChanging), "{error}");
                    assert!(error.is_passing() && error.to_string().contains("send_blocking"));
                    errors.insert(error.to_string());
                }
            }
            // A blocking send never fails because of that.
            sender.send_blocking(1, |bytes| bytes[0] = 1).expect("it waits");
            all_are_done.wait();
            errors
        });
        seen.extend(errors.into_iter().flatten());
        if !seen.is_empty() {
            return;
        }
    }
    panic!("no view was seen changing");
}

/// Takes what a member delivers until it has taken `messages` messages in a view of `members` members; returns those views
/// (the number of members) and messages (the byte), in order. Each message belongs to the view before it. Messages come one by one, or
/// in batches, which end before a view that was not asked for.
fn take_events(
    deliveries: &mut Deliveries,
    members: usize,
    messages: usize,
    in_batches: bool,
) -> Vec<(usize, Option<u8>)> {
    let (mut taken, mut last) = (Vec::new(), 0);
    let mut view = None::<Arc<SubgroupView>>;
    while last < messages {
        if let Some(view) = view.as_ref().filter(|_| in_batches) {
            let handed = deliveries.try_batch(|message| {
                assert_eq!((view.id, view.members[message.sender].node), (message.view, message.node));
                taken.push((view.members.len(), Some(message.bytes[0])));
            });
            let handed = handed.expect("the group lives");
            last += if view.members.len() == members { handed } else { 0 };
            if handed > 0 {
                continue;
            }
        }
        match deliveries.next_event().expect("the group lives") {
            DeliveryEvent::View(next) => {
                last = 0;
                taken.push((next.members.len(), None));
                view = Some(next);
            }
            DeliveryEvent::Message(message) => {
                let view = view.as_ref().expect("a view comes first");
                assert_eq!((view.id, view.members[message.sender].node), (message.view, message.node));
                taken.push((view.members.len(), Some(message.bytes[0])));
                last += usize::from(view.members.len() == members);
            }
            event => panic!("{event:?}"),
        }
    }
    taken
}

/// Consumers that pull see the views between the messages, at the same places at all members, one by one or in batches [V8].
#[test]
fn events_are_views_and_messages_in_order() {
    const EACH: u8 = 20;
    let config = Arc::new(shm("events"));
    let threads: Vec<_> = (0..3u8)
        .map(|rank| {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                let mut group = Group::join(config(usize::from(rank))).expect("it joins");
                let log = group.subgroup("log").expect("it is configured");
                let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
                (0..EACH)
                    .for_each(|_| sender.send_blocking(1, |bytes| bytes[0] = rank).expect("there is space"));
                if rank == 2 {
                    for _ in 0..3 * EACH {
                        deliveries.next().expect("the group lives");
                    }
                    group.leave(PATIENCE);
                    return Vec::new();
                }
                wait_until("a view of two", || group.members() == 2);
                sender.send_blocking(1, |bytes| bytes[0] = 10 + rank).expect("there is space");
                if rank == 1 {
                    // By then the messages of both views are here, and a batch could go from one to the other.
                    thread::sleep(Duration::from_millis(100));
                }
                take_events(&mut deliveries, 2, 2, rank == 1)
            })
        })
        .collect();
    let [first, second, _]: [_; 3] = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(first, second);
    let views = |taken: &[(usize, Option<u8>)]| taken.iter().filter(|taken| taken.1.is_none()).count();
    assert_eq!((first[0], views(&first)), ((3, None), 2), "{first:?}");
    let of_three = first.iter().filter(|(members, byte)| *members == 3 && byte.is_some()).count();
    assert_eq!(of_three, 3 * usize::from(EACH), "{first:?}");
}
