//! A durable object as it was: three members, which end and start again, read earlier versions from their logs.
//!
//! ```text
//! cargo run -p squall --example versions
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};
use std::{fs, thread};

use squall::config::{StorageConfig, SubgroupConfig};
use squall::object::{Object, Replicated, Snapshot, Version, VersionError, restored};
use squall::{Config, DeliveryMode, Group, Position};

type Failure = Box<dyn Error + Send + Sync>;

const MEMBERS: usize = 3;

/// An account; an update adds to it.
struct Account(i64);

impl Replicated for Account {
    type Update = i64;
    type Query = ();
    type Reply = i64;

    fn apply(&mut self, amount: i64) -> i64 {
        self.0 += amount;
        self.0
    }

    fn query(&self, (): ()) -> i64 {
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0)
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

fn config(name: &str, folder: &Path, rank: usize) -> Config {
    let account = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let mut config = Config::local(name, MEMBERS).subgroup("account", account).for_rank(rank);
    config.storage = Some(StorageConfig::new(folder));
    config
}

/// Rank 0 adds to the account, and returns the position behind each update.
fn deposit(account: &Object<Account>, amounts: &[i64]) -> Result<Vec<Position>, Failure> {
    let mut positions = Vec::new();
    for amount in amounts {
        // ANCHOR: write
        account.update(b"", amount)?.durable()?.wait()?; // it is on the disks of all members
        // ANCHOR_END: write
        positions.extend(account.position(0));
    }
    Ok(positions)
}

fn show(rank: usize, account: &Object<Account>, positions: &[Position]) -> Result<(), Failure> {
    // ANCHOR: versions
    for position in positions {
        let then = account.at(Version::Position(*position)).query(b"", &())?;
        println!("member {rank}, after {} of view {}: {}", position.sequence, position.view, then.value);
    }
    let future = Position { view: u64::MAX, sequence: 0 };
    match account.at(Version::Position(future)).query(b"", &()) {
        Err(VersionError::NotYet { newest }) => println!("member {rank}: view {} is not over", newest.view),
        other => println!("member {rank}: {other:?}"),
    }
    // ANCHOR_END: versions
    Ok(())
}

/// Runs one member once, from one meeting of all to the next.
fn run(config: Config, notes: &Mutex<Vec<Position>>, all: &Barrier) -> Result<(), Failure> {
    let mut group = Group::join(config)?;
    let (rank, account) = (group.rank(), group.object("account", || Account(0))?);
    account.wait_ready(std::time::Duration::from_secs(10))?;
    if rank == 0 {
        let positions = deposit(&account, &[100, -30])?;
        notes.lock().expect("no member panics").extend(positions);
    }
    all.wait();
    let positions = notes.lock().expect("no member panics").clone();
    if rank == 1 {
        // It may still have to apply what rank 0 has seen.
        while account.position(0) < positions.last().copied() {
            thread::yield_now();
        }
        show(rank, &account, &positions)?;
    }
    all.wait();
    Ok(())
}

fn main() -> Result<(), Failure> {
    let name = format!("versions-example-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    let notes = Arc::new(Mutex::new(Vec::new()));
    for number in 0..2 {
        let all = Arc::new(Barrier::new(MEMBERS));
        let member = |rank| {
            let (config, notes, all) = (config(&name, &folder, rank), Arc::clone(&notes), Arc::clone(&all));
            thread::spawn(move || run(config, &notes, &all))
        };
        let threads: Vec<_> = (0..MEMBERS).map(member).collect();
        for thread in threads {
            thread.join().expect("a member does not panic")?;
        }
        println!("run {number}: all members have ended");
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}
