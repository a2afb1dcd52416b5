//! Two processes outside a group: one sends messages to a subgroup and one reads them. Here they are threads of the
//! process that is the group's only member.
//!
//! ```text
//! cargo run -p squall --example external
//! ```

use std::error::Error;
use std::thread;

use squall::config::SubgroupConfig;
use squall::external::{Observed, Observer, Publisher};
use squall::{Config, Group};

type Failure = Box<dyn Error + Send + Sync>;

/// Reads until a message says that it is the last one.
fn observe(mut observer: Observer) -> Result<(), Failure> {
    // ANCHOR: observer
    loop {
        match observer.next()? {
            Observed::View { id, members, .. } => println!("view {id}: {} members", members.len()),
            Observed::Message { bytes, .. } if bytes == b"last" => return Ok(()),
            Observed::Message { bytes, .. } => println!("{}", String::from_utf8_lossy(&bytes)),
            Observed::Lost { messages: Some(number), .. } => println!("{number} messages did not fit"),
            Observed::Lost { cause, .. } => println!("connected again: {cause}"),
            _ => {}
        }
    }
    // ANCHOR_END: observer
}

fn main() -> Result<(), Failure> {
    let config = Config::local(&format!("external-example-{}", std::process::id()), 1)
        .subgroup("log", SubgroupConfig::default());
    // ANCHOR: member
    // The application has an upcall and does not take the sending end, so that publishers can use it.
    let _group = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
    // ANCHOR_END: member
    let observer = Observer::connect(&config, "log")?;
    let reader = thread::spawn(move || observe(observer));
    // ANCHOR: publisher
    let mut publisher = Publisher::connect(&config, "log")?;
    publisher.publish(&["first", "second", "last"])?; // returns when all members have delivered them
    // ANCHOR_END: publisher
    reader.join().expect("the reader does not panic")
}
