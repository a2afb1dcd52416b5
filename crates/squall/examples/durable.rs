//! A group with a durable subgroup that ends and starts again: what was delivered before is in the history of all members.
//!
//! ```text
//! cargo run -p squall --example durable
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::{fs, thread};

use squall::config::{StorageConfig, SubgroupConfig};
use squall::{Config, DeliveryMode, Group, MessageOutcome};

type Failure = Box<dyn Error + Send + Sync>;

const MEMBERS: usize = 3;

// ANCHOR: config
fn config(name: &str, folder: &Path, rank: usize) -> Config {
    let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let mut config = Config::local(name, MEMBERS).subgroup("orders", orders).for_rank(rank);
    config.storage = Some(StorageConfig::new(folder)); // each member has a folder of its own in it
    config
}
// ANCHOR_END: config

/// Runs one member once; `end` is where all of them end.
fn run(config: Config, run: usize, end: &Barrier) -> Result<(), Failure> {
    // ANCHOR: run
    let mut group = Group::builder(config).on_message("orders", |_| ()).join()?;
    let rank = group.rank();
    let orders = group.subgroup("orders")?;
    for message in orders.history()? {
        let message = message?; // an error says what this member still has to get from the others
        println!("run {run}, member {rank}: {}", String::from_utf8_lossy(&message.bytes));
    }
    let mut sender = orders.sender()?;
    sender.send_bytes(format!("order {run} of member {rank}").as_bytes())?;
    assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered); // it is on the disks of all members
    // ANCHOR_END: run
    end.wait();
    Ok(())
}

fn main() -> Result<(), Failure> {
    let name = format!("durable-example-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    for number in 0..2 {
        let end = Arc::new(Barrier::new(MEMBERS));
        let threads: Vec<_> = (0..MEMBERS)
            .map(|rank| {
                let (config, end) = (config(&name, &folder, rank), Arc::clone(&end));
                thread::spawn(move || run(config, number, &end))
            })
            .collect();
        for thread in threads {
            thread.join().expect("a member does not panic")?;
        }
        println!("run {number}: all members have ended");
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}
