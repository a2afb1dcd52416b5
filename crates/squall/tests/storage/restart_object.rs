//! Durable objects: all members end, and each makes its state again from its log (Derecho §3.4, "Total failures").

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::accounts::{AccountBook, configs, run};
use crate::storage::{PATIENCE, wait_until};
use squall::config::{SubgroupConfig, Transport};
use squall::object::{Client, Object};
use squall::{Config, Group};

/// Updates the account of this member.
fn deposit(rank: usize, accounts: &Object<AccountBook>, count: u64) -> AccountBook {
    let account = u32::try_from(rank).unwrap();
    let pending: Vec<_> =
        (0..count).map(|_| accounts.update(b"", &(account, 1)).expect("it is sent")).collect();
    for pending in pending {
        pending.wait().expect("it is applied");
    }
    balances(accounts)
}

fn balances(accounts: &Object<AccountBook>) -> AccountBook {
    accounts.inspect(0, |_, state| state.clone()).expect("it has a replica")
}

fn expected(counts: [u64; 3]) -> AccountBook {
    let counts = (0..3).zip(counts).filter(|(_, count)| *count > 0);
    AccountBook(counts.collect())
}

fn a_state_survives_the_end_of_all_members(transport: Transport, test: &str) {
    let (_root, configs) = configs(transport, test);
    for number in 0..4 {
        // All look before any of them changes the state.
        let looked = Barrier::new(3);
        let found = run(&configs[..3], |rank, accounts| {
            let found = balances(accounts);
            looked.wait();
            deposit(rank, accounts, 100);
            found
        });
        let all = expected([100 * number; 3]);
        assert!(found.iter().all(|state| *state == all), "run {number}: {found:?}");
    }
}

#[test]
fn a_state_survives_the_end_of_all_members_on_shm() {
    a_state_survives_the_end_of_all_members(Transport::Shm, "restart-object-shm");
}

#[test]
fn a_state_survives_the_end_of_all_members_on_tcp() {
    a_state_survives_the_end_of_all_members(Transport::Tcp, "restart-object-tcp");
}

/// A member that was away gets the state from the others, a new one too, and both make it again from their logs later.
#[test]
fn joiners_have_the_state_after_the_next_restart() {
    let (_root, configs) = configs(Transport::Tcp, "restart-object-join");
    run(&configs[..3], |rank, accounts| deposit(rank, accounts, 10));
    run(&configs[1..3], |rank, accounts| deposit(rank, accounts, 10));
    let all = expected([10, 20, 20]);
    // The first one was away, and the joiner was never there.
    let found = run(&configs, |_, accounts| balances(accounts));
    assert!(found.iter().all(|state| *state == all), "{found:?}");
    let found = run(&configs, |_, accounts| balances(accounts));
    assert!(found.iter().all(|state| *state == all), "{found:?}");
}

/// A client outside the group sends an update again when the group is back, and it counts once.
#[test]
fn a_client_outlives_the_members() {
    let (_root, configs) = configs(Transport::Tcp, "restart-object-client");
    let connect =
        || Client::<AccountBook>::connect_with(&configs[0], "accounts", PATIENCE).expect("the group runs");
    let client =
        run(&configs[..3], |rank, _| (rank == 0).then(connect)).swap_remove(0).expect("rank 0 has it");
    let (deposits, mut runs) = (40, 0);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for _ in 0..deposits {
                thread::sleep(Duration::from_millis(20));
                client.update(b"", &(7, 1)).expect("it can be sent").wait().expect("it is applied once");
            }
        });
        // Each run ends while updates are under way.
        while !sending.is_finished() {
            run(&configs[..3], |_, _| thread::sleep(Duration::from_millis(150)));
            runs += 1;
        }
        sending.join().expect("every update has an outcome");
    });
    assert!(runs > 1, "the client was done in one run");
    let found = run(&configs[..3], |_, accounts| balances(accounts));
    assert!(found.iter().all(|state| *state == AccountBook(BTreeMap::from([(7, deposits)]))), "{found:?}");
}

/// Has each of these members do something with its two objects, one durable and one in memory, when all are in one view.
fn run_both<R: Send>(
    configs: &[Config],
    act: impl Fn(usize, &Object<AccountBook>, &Object<AccountBook>) -> R + Sync,
) -> Vec<R> {
    let all = Barrier::new(configs.len());
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let accounts = group.object("accounts", AccountBook::default).expect("it can carry one");
        let cache = group.object("cache", AccountBook::default).expect("it can carry one");
        wait_until("all are in the view", || group.members() == configs.len());
        accounts.wait_ready(PATIENCE).expect("it has the state");
        cache.wait_ready(PATIENCE).expect("it has the state");
        all.wait();
        let result = act(group.rank(), &accounts, &cache);
        all.wait();
        result
    };
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(|| member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// \[A18\] An object in memory beside a durable one begins with nothing when its group begins again, also for clients of before: their sessions
/// are not those of clients that come later. It was lost forever once.
#[test]
fn an_object_in_memory_begins_with_nothing_beside_a_durable_one() {
    let (_root, configs) = configs(Transport::Tcp, "restart-object-memory");
    let configs: Vec<Config> =
        configs.into_iter().map(|config| config.subgroup("cache", SubgroupConfig::default())).collect();
    let client =
        || Client::<AccountBook>::connect_with(&configs[0], "cache", PATIENCE).expect("the group runs");
    let add = |client: &Client<AccountBook>| {
        client.update(b"", &(7, 1)).expect("it can be sent").wait().expect("it is applied")
    };
    let clients = run_both(&configs[..3], |rank, accounts, cache| {
        deposit(rank, accounts, 10);
        deposit(rank, cache, 10);
        let client = (rank == 0).then(client)?;
        assert_eq!((add(&client), add(&client)), (1, 2));
        Some(client)
    });
    let before = clients.into_iter().flatten().next().expect("rank 0 has it");
    // The joiner gets the state of both from the others.
    let looked = Barrier::new(configs.len());
    let found = run_both(&configs, |rank, accounts, cache| {
        let found = (balances(accounts), balances(cache));
        looked.wait();
        deposit(rank, cache, 10);
        if rank == 0 {
            let later = client();
            assert_eq!(add(&later), 1, "the state has begun anew");
            assert_eq!((add(&before), add(&later), add(&before)), (2, 3, 4), "each counts once");
        }
        found
    });
    let all = (expected([10; 3]), AccountBook::default());
    assert!(found.iter().all(|found| *found == all), "{found:?}");
}

/// An object in a durable subgroup that is added later begins with nothing, and is as durable as any other one; a joiner gets it.
#[test]
fn an_object_is_added_beside_logs() {
    let (_root, configs) = configs(Transport::Tcp, "restart-object-added");
    let settings = &configs[0].subgroups["accounts"];
    let only = |config: &Config| {
        Config { subgroups: BTreeMap::new(), ..config.clone() }.subgroup("zeal", settings.clone())
    };
    let both: Vec<Config> =
        configs.iter().map(|config| config.clone().subgroup("zeal", settings.clone())).collect();
    let all = Barrier::new(3);
    thread::scope(|scope| {
        for config in &configs[..3] {
            let (config, all) = (only(config), &all);
            scope.spawn(move || {
                let group = Group::join(config).expect("the group starts");
                wait_until("all are in the view", || group.members() == 3);
                all.wait();
            });
        }
    });
    let found = run(&both[..3], |rank, accounts| deposit(rank, accounts, 10));
    assert!(found.iter().all(|state| state.0.values().sum::<u64>() >= 10), "{found:?}");
    let found = run(&both, |_, accounts| balances(accounts));
    assert!(found.iter().all(|state| *state == expected([10; 3])), "{found:?}");
    let found = run(&both[1..], |_, accounts| balances(accounts));
    assert!(found.iter().all(|state| *state == expected([10; 3])), "{found:?}");
}
