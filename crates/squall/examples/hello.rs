//! A member of the group that `squall.toml` describes: it says hello, and prints what all members deliver.
//!
//! ```text
//! cargo run -p squall --example hello 127.0.0.1:7400
//! ```

// ANCHOR: program
use squall::{Config, Group};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).ok_or("give the address of this member, like 127.0.0.1:7400")?;
    let mut group = Group::join(Config::load_for("squall.toml", Some(listen.parse()?), None)?)?;
    println!("member {} of {}", group.rank(), group.view());

    let log = group.subgroup("log")?;
    let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
    sender.send_bytes(b"hello, all")?;
    loop {
        let message = deliveries.next()?;
        println!("{}: {}", message.node, String::from_utf8_lossy(message.bytes));
    }
}
// ANCHOR_END: program
