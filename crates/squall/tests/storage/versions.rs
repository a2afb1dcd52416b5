//! Earlier versions of durable objects: in a running group, after the end of all members, and at a joiner (Derecho §3.4, persistent mode).

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::accounts::{AccountBook, configs, run};
use crate::storage::PATIENCE;
use squall::Position;
use squall::config::{Config, Transport};
use squall::object::{Object, Version, VersionError, Versioned};
use squall_log::{FileDisk, LogSettings, Storage};

/// How many updates each member makes in a run.
const UPDATES: u64 = 30;

/// A state, and where it was.
#[derive(Clone, Debug)]
struct Seen {
    position: Position,
    state: AccountBook,
}

/// Updates the account of this member, and returns what its replica was after each update.
fn deposit(rank: usize, accounts: &Object<AccountBook>) -> Vec<Seen> {
    let account = u32::try_from(rank).unwrap();
    let one = |_| {
        accounts.update(b"", &(account, 1)).expect("it is sent").wait().expect("it is applied");
        let seen = accounts.inspect(0, |(view, sequence), state| Seen {
            position: Position { view, sequence },
            state: state.clone(),
        });
        seen.expect("it has a replica")
    };
    (0..UPDATES).map(one).collect()
}

/// Reads a version; waits for what this member has not got from the others, or not delivered, yet.
pub(crate) fn state_at(accounts: &Object<AccountBook>, version: Version) -> Versioned<AccountBook> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match accounts.at(version).inspect(0, AccountBook::clone) {
            Ok(then) => return then,
            Err(VersionError::NotYet { .. } | VersionError::Incomplete(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{version:?}: {error}"),
        }
    }
}

/// Every state that any member has seen is read again at this one: at rising positions, and at falling ones.
fn read_again(accounts: &Object<AccountBook>, seen: &[Seen]) {
    let mut seen: Vec<&Seen> = seen.iter().collect();
    seen.sort_by_key(|seen| seen.position);
    for Seen { position, state } in seen.iter().copied().chain(seen.iter().rev().step_by(17).copied()) {
        let then = state_at(accounts, Version::Position(*position));
        assert_eq!((then.position, &then.value), (*position, state));
    }
    let newest = accounts.position(0).expect("it has the state");
    let (later, hour) = (Position { view: newest.view + 50, sequence: 0 }, Duration::from_secs(3600));
    for version in [Version::Position(later), Version::Time(SystemTime::now() + hour)] {
        // A member that has joined gets the views before from the others meanwhile.
        let deadline = Instant::now() + PATIENCE;
        let found = loop {
            match accounts.at(version).query(b"", &0) {
                Err(VersionError::Incomplete(_)) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(2))
                }
                found => break found,
            }
        };
        match found {
            Err(VersionError::NotYet { newest: found }) => assert!((newest..later).contains(&found)),
            other => panic!("{version:?}: {other:?}"),
        }
    }
}

/// Versions by time: they have all that was acknowledged here before, are ordered, and stay the same.
fn read_by_time(rank: usize, accounts: &Object<AccountBook>) {
    let account = u32::try_from(rank).unwrap();
    let mut noted = Vec::new();
    for _ in 0..UPDATES {
        let balance = accounts.update(b"", &(account, 1)).expect("it is sent").wait().expect("it is applied");
        // Others update at the same time, so some of these are about moments at which something is under way.
        let now = SystemTime::now();
        let then = (noted.len() % 3 == 0).then(|| state_at(accounts, Version::Time(now)));
        noted.push((now, balance, then));
    }
    let mut last = Position::default();
    for (time, balance, then) in noted {
        let again = state_at(accounts, Version::Time(time));
        assert_eq!(
            again.value.0.get(&account),
            Some(&balance),
            "each knows when its own update was acknowledged"
        );
        assert!(again.position >= last && again.time.expect("it has updates") <= time);
        let same = state_at(accounts, Version::Position(again.position));
        assert_eq!(same.value, again.value);
        if let Some(then) = then {
            assert_eq!((then.value, then.time), (again.value, again.time), "the version has changed");
        }
        last = again.position;
    }
    let before = state_at(accounts, Version::Time(SystemTime::UNIX_EPOCH));
    assert_eq!((before.value, before.time), (AccountBook::default(), None));
}

fn versions_are_read_again(transport: Transport, test: &str) {
    let (_root, configs) = configs(transport, test);
    let seen = run(&configs[..3], |rank, accounts| {
        let seen = deposit(rank, accounts);
        read_again(accounts, &seen);
        seen
    });
    let mut seen: Vec<Seen> = seen.into_iter().flatten().collect();
    let more = run(&configs[..3], |rank, accounts| {
        read_again(accounts, &seen);
        let more = deposit(rank, accounts);
        read_by_time(rank, accounts);
        accounts.forget_versions();
        more
    });
    seen.extend(more.into_iter().flatten());
    // The fourth one has never been there.
    run(&configs, |_, accounts| read_again(accounts, &seen));
}

#[test]
fn versions_are_read_again_on_shm() {
    versions_are_read_again(Transport::Shm, "versions-shm");
}

#[test]
fn versions_are_read_again_on_tcp() {
    versions_are_read_again(Transport::Tcp, "versions-tcp");
}

/// How often the log of a running member has an update, in a message of its object.
fn logged(config: &Config, update: &[u8]) -> usize {
    let folder = config.log_folder().expect("it has one");
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).expect("there is a log");
    let mut found = 0;
    let recovered = storage.recover(&mut |_, record| {
        found += record.bytes.windows(update.len()).filter(|bytes| *bytes == update).count();
    });
    recovered.map(|_| found).expect("it can be listed")
}

/// When a reply arrives, the update is in the logs of all members.
#[test]
fn a_reply_says_that_the_update_is_on_all_disks() {
    let (_root, configs) = configs(Transport::Tcp, "versions-reply");
    run(&configs[..3], |rank, accounts| {
        for number in 0..10_u64 {
            // No other bytes are like this.
            let update = (7 + u32::try_from(rank).unwrap(), 0x5a5a_1234_5678 + number);
            let reply = accounts.update(b"", &update).expect("it is sent");
            reply.durable().expect("the object is durable").wait().expect("it is applied");
            let bytes = postcard::to_stdvec(&update).expect("it can be written");
            for config in &configs[..3] {
                assert_eq!(logged(config, &bytes), 1, "update {number} of {rank}");
            }
        }
    });
}
