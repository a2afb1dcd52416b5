//! A member or a joiner that hangs while a view opens does not affect other members (Derecho §2; \[V10\]).

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use squall::config::{SubgroupConfig, Transport};
use squall::{Config, Group, SendError};
use squall_fabric::atomics::{AtomicUsize, Ordering};

const SUSPICION_AFTER: Duration = Duration::from_millis(1000);

/// How a member ends: the number of members of its last view and of the messages that it has delivered, or why it
/// stopped.
type End = Result<(usize, usize), String>;

/// Starts a member that sends a message every 5 ms until `end`, and stays a little longer. Its polling thread stalls
/// for `hang` as soon as it has installed view 1.
fn member(config: Config, hang: Duration, end: Instant) -> JoinHandle<End> {
    thread::spawn(move || {
        let on_view = move |view: &squall::View| {
            if view.id == 1 {
                thread::sleep(hang);
            }
        };
        let delivered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&delivered);
        let on_message = move |_: squall::Message<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let joined = Group::builder(config).on_view(on_view).on_message("log", on_message).join();
        let mut group = joined.map_err(|error| error.to_string())?;
        let mut sender = group.subgroup("log").unwrap().sender().unwrap();
        while Instant::now() < end {
            match sender.send(8, |bytes| bytes.fill(1)) {
                Err(SendError::Group(error)) => return Err(error.to_string()),
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
        let members = group.view().members.len();
        thread::sleep(SUSPICION_AFTER / 2);
        Ok((members, delivered.load(Ordering::Relaxed)))
    })
}

fn configs(transport: Transport, name: &str) -> Vec<Config> {
    let subgroup = SubgroupConfig { message_max: 100, window: 64, ..SubgroupConfig::default() };
    crate::common::configs(transport, name, SUSPICION_AFTER, ("log", subgroup))
}

/// Runs three members and a joiner, of which `who` hangs for `hang`; returns how the three and the joiner end.
fn run(configs: &[Config], who: usize, hang: Duration) -> (Vec<End>, End) {
    let hangs = |rank| if rank == who { hang } else { Duration::ZERO };
    let end = Instant::now() + hang + 3 * SUSPICION_AFTER;
    let first: Vec<_> = (0..3).map(|rank| member(configs[rank].clone(), hangs(rank), end)).collect();
    thread::sleep(SUSPICION_AFTER / 4);
    let joiner = member(configs[3].clone(), hangs(3), end);
    (first.into_iter().map(|member| member.join().unwrap()).collect(), joiner.join().unwrap())
}

#[test]
fn a_joiner_that_hangs_for_long_is_removed_and_rejoins() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (members, joiner) = run(&configs(transport, "hang-long"), 3, 3 * SUSPICION_AFTER);
        // A joiner that takes no messages would hold up all other members.
        let continues = |end: &End| matches!(end, Ok((4, delivered)) if *delivered > 100);
        assert!(members.iter().all(continues), "{transport:?}: {members:?}, {joiner:?}");
        assert!(continues(&joiner), "{transport:?}: {joiner:?}");
    }
}

#[test]
fn a_joiner_that_hangs_briefly_stays() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (members, joiner) = run(&configs(transport, "hang-brief"), 3, SUSPICION_AFTER / 2);
        assert!(members.iter().all(Result::is_ok), "{transport:?}: {members:?}");
        assert!(joiner.is_ok(), "{transport:?}: {joiner:?}");
    }
}

#[test]
fn a_member_that_hangs_while_a_joiner_comes_is_removed_alone() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (members, joiner) = run(&configs(transport, "hang-member"), 1, 3 * SUSPICION_AFTER);
        let stay: Vec<_> = [0, 2].into_iter().map(|rank| members[rank].clone()).collect();
        assert!(stay.iter().all(Result::is_ok), "{transport:?}: {members:?}");
        assert!(members[1].is_err() && joiner.is_ok(), "{transport:?}: {members:?}, {joiner:?}");
    }
}
