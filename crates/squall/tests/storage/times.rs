//! What a log has of messages that come alone: one record each, in one write, with the time at which it came (Derecho §3.4, persistent
//! mode).

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::accounts;
use crate::durable::{Meeting, members};
use crate::storage::{TestFolder, configs, wait_until};
use squall::config::{Config, Transport};
use squall::object::Version;
use squall::{Group, StoredMessage};
use squall_log::{FileDisk, LogSettings, RecordKind, Recovered, Storage, TailVerdict};

/// Enough of them that the other senders are idle after it, and send nulls ahead.
const BURST: usize = 25;
/// What comes alone, after a pause each.
const LONE: usize = 10;
/// Longer than anything that a log does about what has come before; a machine that is busy makes it longer.
const PAUSE: Duration = Duration::from_millis(20);

/// When a message was about to be sent, and when it was delivered here.
#[derive(Clone, Copy)]
struct Delivered {
    number: u8,
    at: SystemTime,
}

/// One member sends, each message when the one before is delivered; all note when they get it. Returns when each was sent, and what
/// each member has noted.
fn send_alone(configs: &[Config]) -> (Vec<SystemTime>, Vec<Vec<Delivered>>) {
    let all = Meeting::of(3);
    let found = members(configs, |mut group| {
        let is_first = group.rank() == 0;
        wait_until("all are in the view", || group.members() == 3);
        let log = group.subgroup("log").expect("it is there");
        let (mut sender, mut deliveries) =
            (log.sender().expect("it is free"), log.deliveries().expect("they are free"));
        let (mut sent, mut delivered) = (Vec::new(), Vec::new());
        all.wait();
        for number in 0..BURST + LONE {
            if is_first {
                if number >= BURST {
                    thread::sleep(PAUSE);
                }
                sent.push(SystemTime::now());
                sender.send_bytes(&[number as u8]).expect("there is space");
            }
            let number = deliveries.next().expect("the group lives").bytes[0];
            deliveries.release();
            delivered.push(Delivered { number, at: SystemTime::now() });
            all.wait();
        }
        (sent, delivered)
    });
    let (sent, delivered): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    (sent.into_iter().find(|sent| !sent.is_empty()).expect("the first member sends"), delivered)
}

/// The records of messages in a log, with their times; and the log.
fn records(config: &Config) -> (Vec<(u8, SystemTime)>, Recovered) {
    let folder = config.log_folder().expect("it has one");
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).expect("there is a log");
    let mut found = Vec::new();
    let recovered = storage.recover(&mut |_, record| {
        if record.kind == RecordKind::Message {
            found.push((record.bytes[0], UNIX_EPOCH + Duration::from_nanos(record.time)));
        }
    });
    let recovered = recovered.expect("it can be listed");
    assert_eq!(recovered.verdict, TailVerdict::Clean);
    (found, recovered)
}

/// A message has one record, whose time is between those at which it was sent and delivered; the nulls of the other senders have none. What
/// a joiner fetches keeps its times.
#[test]
fn a_lone_message_has_one_record_with_its_own_time() {
    let folder = TestFolder::new("times-alone");
    let configs = configs(Transport::Shm, "times-alone", &folder, "log");
    let (sent, delivered) = send_alone(&configs[..3]);
    let mut times = Vec::new();
    for (config, delivered) in configs.iter().zip(&delivered) {
        let (records, log) = records(config);
        assert_eq!(records.len(), BURST + LONE);
        assert_eq!(log.records as usize, records.len(), "nothing else is recorded");
        // One more opens the log.
        assert!(
            log.frames as usize <= 1 + records.len(),
            "{} writes of {} messages",
            log.frames,
            records.len()
        );
        for (((number, time), sent), delivered) in records.iter().zip(&sent).zip(delivered) {
            assert_eq!(*number, delivered.number);
            let late = time.duration_since(*sent).map_err(|error| error.duration());
            assert!(late.is_ok(), "message {number} was recorded {late:?} before it was sent");
            assert!(*time <= delivered.at, "message {number} was recorded when it had been delivered");
        }
        assert!(records.windows(2).all(|pair| pair[0].1 < pair[1].1), "times grow");
        times.push(records);
    }
    let all = Meeting::of(4);
    let fetched = members(&configs, |mut group| {
        let is_joiner = group.rank() == 3;
        let read = |group: &mut Group| -> Option<Vec<StoredMessage>> {
            let history = group.subgroup("log").expect("it is there").history().expect("it is durable");
            history.collect::<Result<Vec<_>, _>>().ok().filter(|read| read.len() == BURST + LONE)
        };
        let mut found = None;
        if is_joiner {
            wait_until("it gets what was delivered before", || {
                found = read(&mut group);
                found.is_some()
            });
        }
        all.wait();
        found
    });
    let fetched: Vec<StoredMessage> = fetched.into_iter().flatten().next().expect("one has joined");
    for (place, message) in fetched.iter().enumerate() {
        let known = times.iter().any(|records| records[place] == (message.bytes[0], message.received));
        assert!(known, "the joiner has {message:?}, and no member has received it then");
    }
}

/// The version at a time before an update that came alone does not have it, at any member, and the one at a time after its reply has.
#[test]
fn a_version_before_a_lone_update_does_not_have_it() {
    let (_folder, configs) = accounts::configs(Transport::Shm, "times-version");
    let (before, after) = (OnceLock::new(), OnceLock::new());
    let updates = BURST as u64;
    accounts::run(&configs[..3], |rank, accounts| {
        if rank == 0 {
            let deposit =
                || accounts.update(b"", &(1, 1)).expect("it is sent").wait().expect("it is applied");
            for _ in 0..updates {
                deposit();
            }
            thread::sleep(PAUSE);
            before.set(SystemTime::now()).expect("once");
            deposit();
        }
        let balance = || accounts.inspect(0, |_, state| state.0.get(&1).copied()).expect("it has a replica");
        wait_until("the update is applied", || balance() == Some(updates + 1));
        if rank == 0 {
            after.set(SystemTime::now()).expect("once");
        }
        wait_until("the first member knows when", || after.get().is_some());
        for (time, expected) in [(&before, updates), (&after, updates + 1)] {
            let time = Version::Time(*time.get().expect("it was set before"));
            let then = crate::versions::state_at(accounts, time);
            // The clock of all members is the same.
            assert_eq!(then.value.0.get(&1), Some(&expected), "rank {rank}: {then:?}");
        }
    });
}
