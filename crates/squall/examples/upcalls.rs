//! Two other ways to take messages: upcalls on the polling thread, and a loop of the application that polls the group
//! itself, without any thread of the library.
//!
//! ```text
//! cargo run -p squall --example upcalls
//! ```

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use squall::config::SubgroupConfig;
use squall::{Config, Group};

type Failure = Box<dyn Error + Send + Sync>;

/// Joins with upcalls, and sends when asked to.
fn called(config: Config) -> Result<(), Failure> {
    // ANCHOR: upcalls
    let (deliver, delivered) = mpsc::channel();
    let mut group = Group::builder(config)
        .on_view(|view| println!("called: {view}"))
        .on_batch("log", move |batch| {
            batch.for_each(|message| {
                let _ = deliver.send(message.bytes.len()); // it fails when main has what it waits for
            });
        })
        .join()?;
    // ANCHOR_END: upcalls
    group.subgroup("log")?.sender()?.send_bytes(b"hello")?;
    println!("called: a message of {} bytes", delivered.recv()?);
    group.leave(Duration::from_secs(10));
    Ok(())
}

/// Joins without a thread, and polls until a message has come.
fn polled(config: Config) -> Result<(), Failure> {
    // ANCHOR: polled
    let (mut group, mut node) = Group::builder(config).join_polled()?;
    let mut deliveries = group.subgroup("log")?.deliveries()?;
    let text = loop {
        node.step(); // does all that can be done now, and rests as `idle` in the configuration says if that is nothing
        if let Some(message) = deliveries.try_next()? {
            break String::from_utf8_lossy(message.bytes).into_owned();
        }
    };
    // ANCHOR_END: polled
    println!("polled: {text}");
    deliveries.release();
    group.leave(Duration::from_secs(10)); // begins to leave
    while node.failure().is_none() {
        node.step();
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let config = Config::local(&format!("upcalls-example-{}", std::process::id()), 2)
        .subgroup("log", SubgroupConfig::default());
    let other = config.clone().for_rank(1);
    let other = thread::spawn(move || polled(other));
    called(config)?;
    other.join().expect("a member does not panic")
}
