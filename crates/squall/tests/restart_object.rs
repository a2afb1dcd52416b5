//! Durable objects: all members end, and each makes its state again from its log (Derecho §3.4, "Total failures").

mod common;
#[path = "common/storage.rs"]
mod storage;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use squall::config::Transport;
use squall::object::{Client, Object, Replicated, Snapshot, restored};
use squall::{Config, Group};
use storage::{PATIENCE, TestFolder, wait_until};

/// Accounts: an update adds to one and returns what is in it then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Accounts(BTreeMap<u32, u64>);

impl Replicated for Accounts {
    type Update = (u32, u64);
    type Query = u32;
    type Reply = u64;

    fn apply(&mut self, (account, amount): (u32, u64)) -> u64 {
        let balance = self.0.entry(account).or_default();
        *balance += amount;
        *balance
    }

    fn query(&self, account: u32) -> u64 {
        self.0.get(&account).copied().unwrap_or(0)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

/// Three members with a durable object, and a joiner.
fn configs(transport: Transport, test: &str) -> (TestFolder, Vec<Config>) {
    let folder = TestFolder::new(test);
    let configs = storage::configs(transport, test, &folder, "accounts").into_iter().enumerate();
    let configs = configs.map(|(rank, config)| Config { rank: Some(rank), ..config }).collect();
    (folder, configs)
}

/// Has each of these members do something with the object when all are in one view; they end at the same time, without leaving.
fn run<R: Send>(configs: &[Config], act: impl Fn(usize, &Object<Accounts>) -> R + Sync) -> Vec<R> {
    let all = Barrier::new(configs.len());
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let accounts = group.object("accounts", Accounts::default).expect("it can carry one");
        wait_until("all are in the view", || group.members() == configs.len());
        accounts.wait_ready(PATIENCE).expect("it has the state");
        all.wait();
        let result = act(group.rank(), &accounts);
        all.wait();
        result
    };
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(|| member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// Updates the account of this member.
fn deposit(rank: usize, accounts: &Object<Accounts>, count: u64) -> Accounts {
    let account = u32::try_from(rank).unwrap();
    let pending: Vec<_> =
        (0..count).map(|_| accounts.update(b"", &(account, 1)).expect("it is sent")).collect();
    for pending in pending {
        pending.wait().expect("it is applied");
    }
    balances(accounts)
}

fn balances(accounts: &Object<Accounts>) -> Accounts {
    accounts.inspect(0, |_, state| state.clone()).expect("it has a replica")
}

fn expected(counts: [u64; 3]) -> Accounts {
    let counts = (0..3).zip(counts).filter(|(_, count)| *count > 0);
    Accounts(counts.collect())
}

fn a_state_survives_the_end_of_all_members(transport: Transport, test: &str) {
    let (_root, configs) = configs(transport, test);
    for number in 0..4 {
        let found = run(&configs[..3], |rank, accounts| {
            let found = balances(accounts);
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
        || Client::<Accounts>::connect_with(&configs[0], "accounts", PATIENCE).expect("the group runs");
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
    assert!(found.iter().all(|state| *state == Accounts(BTreeMap::from([(7, deposits)]))), "{found:?}");
}
