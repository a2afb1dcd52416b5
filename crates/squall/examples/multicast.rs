//! Three members send and deliver messages in one order. Members are threads here; as processes they would use the same
//! code, each with `Config::load`.
//!
//! ```text
//! cargo run -p squall --example multicast
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use squall::config::SubgroupConfig;
use squall::{Config, DeliveryEvent, Group, MessageOutcome};

type Failure = Box<dyn Error + Send + Sync>;

/// The number of messages that each member sends.
const MESSAGES: usize = 3;

/// Runs one member; returns what it has delivered.
fn run(config: Config) -> Result<Vec<String>, Failure> {
    // ANCHOR: join
    let mut group = Group::join(config)?; // returns when all members have joined
    let rank = group.rank();
    let log = group.subgroup("log")?;
    let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
    // ANCHOR_END: join

    // ANCHOR: send
    for number in 0..MESSAGES {
        let text = format!("message {number} of member {rank}");
        sender.send_blocking(text.len(), |bytes| bytes.copy_from_slice(text.as_bytes()))?;
    }
    // ANCHOR_END: send

    // ANCHOR: deliver
    let (mut members, mut delivered) = (Vec::new(), Vec::new());
    while delivered.len() < 3 * MESSAGES {
        match deliveries.next_event()? {
            DeliveryEvent::View(view) => members = view.members.clone(),
            DeliveryEvent::Message(message) => {
                assert_eq!(members[message.sender].node, message.node);
                delivered.push(String::from_utf8_lossy(message.bytes).into_owned());
            }
            _ => {}
        }
    }
    // ANCHOR_END: deliver

    // ANCHOR: outcome
    deliveries.release(); // the last message, which the others may wait for
    let last = sender.sent() - 1;
    assert_eq!(sender.wait_for_outcome(last), MessageOutcome::Delivered); // by all members
    // ANCHOR_END: outcome

    // ANCHOR: leave
    group.leave(Duration::from_secs(10)); // in order: the others continue
    // ANCHOR_END: leave
    Ok(delivered)
}

fn main() -> Result<(), Failure> {
    let config = Config::local(&format!("multicast-example-{}", std::process::id()), 3)
        .subgroup("log", SubgroupConfig::default());
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let config = config.clone().for_rank(rank);
            thread::spawn(move || run(config))
        })
        .collect();
    let mut orders = Vec::new();
    for thread in threads {
        orders.push(thread.join().expect("a member does not panic")?);
    }
    assert!(orders.iter().all(|order| *order == orders[0]), "one order at all members");
    orders[0].iter().for_each(|message| println!("{message}"));
    Ok(())
}
