//! A bank whose accounts are spread over shards: transfers that concern several shards, by `update_many`, while members are killed.
//!
//! `cargo run --example bank -- [shm|tcp] [SECONDS] [stops]` starts four members as processes, each with a teller, kills one after
//! the other with kill -9 and starts it again, and checks that the total never changes and that each reported transfer was carried
//! out once.

mod bank {
    pub(crate) mod branches;
    pub(crate) mod ledger;
    pub(crate) mod teller;
}

use std::process::Command;
use std::time::Duration;

use bank::branches::{BankReport, Disturbance, ROLE, configuration};
use squall::config::Transport;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(role) = std::env::var(ROLE) {
        let (config, joins) = configuration(&role);
        return bank::teller::run(config, joins);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let transport = if words.iter().any(|word| word == "tcp") { Transport::Tcp } else { Transport::Shm };
    let seconds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(5);
    let stops = words.iter().any(|word| word == "stops");
    let disturbance = Disturbance { transport, duration: Duration::from_secs(seconds), stops };
    let program = std::env::current_exe()?;
    let report = bank::branches::run(disturbance, || Command::new(&program));
    let BankReport { paid, done, kills, stops } = report;
    println!("{kills} kills, {stops} stops; {paid} transfers were reported, and {done} carried out");
    println!("the total is what it was, and each reported transfer was carried out once at both accounts");
    Ok(())
}
