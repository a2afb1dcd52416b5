//! Whether members whose folders have no log begin a new group (Derecho §3.4).

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use squall::config::{Address, NewGroup, StorageConfig, Transport};
use squall::{Config, Group, JoinError, LogFolderError, MessageOutcome};
use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_transports::reserve_port;

use crate::storage::{TestFolder, configs, wait_until};
use crate::trouble_page;

/// Three members whose folders are named by their addresses.
fn nameless(test: &str, folder: &TestFolder) -> Vec<Config> {
    let configs = configs(Transport::Tcp, test, folder, "orders").into_iter().take(3);
    configs.map(|config| Config { rank: None, ..config }).collect()
}

/// The same members at other addresses.
fn moved(configs: &[Config]) -> Vec<Config> {
    let contacts: Vec<Address> = configs
        .iter()
        .map(|_| Address::Tcp { host: "127.0.0.1".into(), port: reserve_port().unwrap() })
        .collect();
    let move_to = |(config, listen): (&Config, &Address)| Config {
        listen: listen.clone(),
        contacts: contacts.clone(),
        timeout: Duration::from_secs(2),
        ..config.clone()
    };
    configs.iter().zip(&contacts).map(move_to).collect()
}

fn with(config: &Config, change: impl FnOnce(&mut StorageConfig)) -> Config {
    let mut config = config.clone();
    config.storage.iter_mut().for_each(|storage| storage.folder = None);
    change(config.storage.as_mut().expect("it has logs"));
    config
}

/// Starts these members at the same time; each sends a message, and returns how many were delivered before.
fn start(configs: &[Config]) -> Vec<Result<usize, JoinError>> {
    let done = AtomicUsize::new(0);
    let member = |config: &Config| {
        let mut group = Group::builder(config.clone()).on_message("orders", |_| ()).join()?;
        wait_until("all are in the view", || group.members() == configs.len());
        let orders = group.subgroup("orders").expect("it is in it");
        let before = orders.history().expect("it has a log").count();
        let mut sender = orders.sender().expect("it is the first");
        sender.send_blocking(8, |space| space.copy_from_slice(b"an order")).expect("it is sent");
        assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
        done.fetch_add(1, Ordering::SeqCst);
        wait_until("all have sent", || done.load(Ordering::SeqCst) == configs.len());
        Ok(before)
    };
    thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

fn counts(started: Vec<Result<usize, JoinError>>) -> Vec<usize> {
    started.into_iter().map(|started| started.expect("the group starts")).collect()
}

fn folders(configs: &[Config]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = configs.iter().filter_map(Config::log_folder).collect();
    folders.sort();
    folders
}

/// Members whose addresses have changed find empty folders: they do not begin anew in silence, and continue when their folders are named.
#[test]
fn members_at_other_addresses_do_not_begin_anew() {
    let folder = TestFolder::new("begin-moved");
    let configs = nameless("begin-moved", &folder);
    assert_eq!(counts(start(&configs)), [0; 3]);
    let moved = moved(&configs);
    for refused in start(&moved) {
        let error = refused.expect_err("its folder is empty");
        let text = error.to_string();
        let JoinError::Log(LogFolderError::Beside { others, .. }) = error else { panic!("{text}") };
        assert_eq!(others, folders(&configs));
        assert!(text.contains("write `begin = \"new\"`"), "{text}");
        trouble_page::assert_seen("address changed", "the log", &text);
    }
    let name = |config: &Config| {
        let folder = config.log_folder().expect("it has a log");
        folder.file_name().and_then(|name| name.to_str()).map(String::from)
    };
    let named: Vec<Config> = configs
        .iter()
        .zip(&moved)
        .map(|(before, now)| Config {
            timeout: before.timeout,
            ..with(now, |storage| storage.folder = name(before))
        })
        .collect();
    assert_eq!(counts(start(&named)), [3; 3], "the group continues");
    let anew: Vec<Config> = moved
        .iter()
        .zip(&configs)
        .map(|(now, before)| Config {
            timeout: before.timeout,
            ..with(now, |storage| storage.begin = NewGroup::New)
        })
        .collect();
    assert_eq!(counts(start(&anew)), [0; 3], "that is meant");
}

/// The same if ranks are given to members that had none.
#[test]
fn members_that_are_given_ranks_do_not_begin_anew() {
    let folder = TestFolder::new("begin-ranks");
    let configs = nameless("begin-ranks", &folder);
    assert_eq!(counts(start(&configs)), [0; 3]);
    let ranked = |(rank, config): (usize, &Config)| Config {
        rank: Some(rank),
        timeout: Duration::from_secs(2),
        ..config.clone()
    };
    let ranked: Vec<Config> = configs.iter().enumerate().map(ranked).collect();
    for refused in start(&ranked) {
        let text = refused.expect_err("its folder is empty").to_string();
        assert!(folders(&configs).iter().all(|folder| text.contains(&*folder.to_string_lossy())), "{text}");
    }
}

/// A member whose log must be there begins no group without it, and joins one that runs.
#[test]
fn a_member_that_never_begins_a_group_joins_one() {
    let folder = TestFolder::new("begin-never");
    let mut configs = nameless("begin-never", &folder);
    let elsewhere =
        |path: &Path| StorageConfig { begin: NewGroup::Never, ..StorageConfig::new(path.join("volume")) };
    let never: Vec<Config> = configs
        .iter()
        .map(|config| Config {
            storage: Some(elsewhere(&folder.0)),
            timeout: Duration::from_secs(2),
            ..config.clone()
        })
        .collect();
    for refused in start(&never) {
        let text = refused.expect_err("its folder is empty").to_string();
        assert!(text.contains("begin = \"never\"") && text.contains("volume is mounted"), "{text}");
    }
    // The last of these is a joiner.
    let joiner = crate::storage::configs(Transport::Tcp, "begin-never", &folder, "orders")
        .pop()
        .expect("there are four");
    let contacts = configs[0].contacts.clone();
    configs.push(Config { contacts, storage: Some(elsewhere(&folder.0)), ..joiner });
    assert_eq!(counts(start(&configs)), [0; 4]);
}
