//! One member sends a large object to two others, which take it in two ways.
//!
//! ```text
//! cargo run -p squall --example bulk
//! ```

use std::error::Error;
use std::thread;

use squall::Config;
use squall::bulk::Session;

type Failure = Box<dyn Error + Send + Sync>;

const BYTES: usize = 16 << 20;

/// The root: sends one object.
fn send(config: &Config) -> Result<(), Failure> {
    // ANCHOR: root
    let mut session = Session::join(config)?; // rank 0 is the root
    let mut object = session.buffer(BYTES); // reuse it for the next object
    object.fill(7);
    session.send(&mut object)?; // returns when all remaining receivers have it
    println!("root: sent {} bytes", object.len());
    // ANCHOR_END: root
    Ok(())
}

/// A receiver with memory of its own.
fn receive(config: &Config) -> Result<(), Failure> {
    // ANCHOR: receive
    let mut session = Session::join(config)?;
    let mut memory = vec![0; BYTES];
    let bytes = session.receive_into(&mut memory)?; // on one host this is the only copy
    // ANCHOR_END: receive
    println!("copied: {bytes} bytes, the last one is {}", memory[bytes - 1]);
    Ok(())
}

/// A receiver that reads where the root wrote.
fn read(config: &Config) -> Result<(), Failure> {
    // ANCHOR: in-place
    let mut session = Session::join(config)?;
    let object = session.receive_in_place()?; // no copy on one host; the root waits until it is dropped
    println!("in place: {} bytes, the last one is {}", object.len(), object[object.len() - 1]);
    // ANCHOR_END: in-place
    Ok(())
}

fn main() -> Result<(), Failure> {
    let config = Config::local(&format!("bulk-example-{}", std::process::id()), 3);
    let (second, third) = (config.clone().for_rank(1), config.clone().for_rank(2));
    let receivers = [thread::spawn(move || receive(&second)), thread::spawn(move || read(&third))];
    send(&config)?;
    for receiver in receivers {
        receiver.join().expect("a receiver does not panic")?;
    }
    Ok(())
}
