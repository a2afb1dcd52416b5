//! The durable object of the tests: accounts, at three members and a joiner.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use squall::config::Transport;
use squall::object::{Object, Replicated, Snapshot, restored};
use squall::{Config, Group};

use crate::storage::{self, PATIENCE, TestFolder, wait_until};

/// AccountBook: an update adds to one and returns what is in it then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountBook(pub(crate) BTreeMap<u32, u64>);

impl Replicated for AccountBook {
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
pub(crate) fn configs(transport: Transport, test: &str) -> (TestFolder, Vec<Config>) {
    let folder = TestFolder::new(test);
    let configs = storage::configs(transport, test, &folder, "accounts").into_iter().enumerate();
    let configs = configs.map(|(rank, config)| Config { rank: Some(rank), ..config }).collect();
    (folder, configs)
}

/// Has each of these members do something with the object when all are in one view; they end at the same time, without leaving.
pub(crate) fn run<R: Send>(
    configs: &[Config],
    act: impl Fn(usize, &Object<AccountBook>) -> R + Sync,
) -> Vec<R> {
    let all = Barrier::new(configs.len());
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let accounts = group.object("accounts", AccountBook::default).expect("it can carry one");
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
