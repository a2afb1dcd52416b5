//! A chat of several processes: each channel is a topic that is created when a process enters it first, and kept, so that people who come
//! later read what was written before.
//!
//! ```text
//! cargo run --release -p squall-dds --example chat              # three threads talk
//! cargo run --release -p squall-dds --example chat -- ann       # a process; the first one holds the domain
//! cargo run --release -p squall-dds --example chat -- bob       # another one
//! ```

use std::error::Error;
use std::io::BufRead as _;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use squall::Config;
use squall_dds::{
    DataReader, DataWriter, DomainParticipant, Keyed, ParticipantError, Qos, ReadError, TopicStore,
};

#[derive(Serialize, Deserialize)]
struct Line {
    person: String,
    text: String,
}

/// Each person is an instance: a channel that keeps the last lines only would keep the last ones of each person.
impl Keyed for Line {
    const TYPE_NAME: &'static str = "Line";
    type Key = String;

    fn key(&self) -> String {
        self.person.clone()
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
const CHANNEL: &str = "lobby";

type Failure = Box<dyn Error + Send + Sync>;

fn channel_qos() -> Qos {
    Qos { max_blocking_time: PATIENCE, ..Qos::KEPT }
}

/// Joins the domain, in which channels are created at any time.
fn join(config: Config) -> Result<DomainParticipant, ParticipantError> {
    DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()
}

/// Enters a channel: processes that name the same one read each other.
fn enter(
    participant: &DomainParticipant,
    channel: &str,
) -> Result<(DataReader<Line>, DataWriter<Line>), Failure> {
    let topic = participant.create_topic::<Line>(channel, channel_qos())?;
    Ok((participant.reader(&topic, channel_qos())?, participant.writer(&topic, channel_qos())?))
}

/// Shows what comes, until `left` lines have; `name` is the name of the reading person.
fn show(reader: &DataReader<Line>, name: &str, mut left: usize) -> Result<(), Failure> {
    while left > 0 {
        match reader.wait_for_data(PATIENCE) {
            Err(ReadError::Timeout(_)) => continue,
            waited => waited?,
        }
        for Line { person, text } in reader.take(left)?.into_iter().filter_map(|sample| sample.data) {
            println!("[{name}] {person}: {text}");
            left -= 1;
        }
    }
    Ok(())
}

/// Three people, as threads: each says two lines, and reads all six in the same order.
fn demonstrate() -> Result<(), Failure> {
    let people = ["ann", "bob", "cleo"];
    let config = Config::local(&format!("chat-{}", std::process::id()), people.len());
    let talk = |(rank, name): (usize, &'static str)| -> Result<(), Failure> {
        let participant = join(config.clone().for_rank(rank))?;
        let (reader, writer) = enter(&participant, CHANNEL)?;
        for text in ["hello, all", "good to see you"] {
            writer.write(&Line { person: name.into(), text: text.into() })?;
        }
        show(&reader, name, 2 * people.len())?;
        drop((reader, writer));
        drop(participant.leave(PATIENCE));
        Ok(())
    };
    thread::scope(|scope| {
        let talk = &talk;
        let threads: Vec<_> =
            people.into_iter().enumerate().map(|person| scope.spawn(move || talk(person))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

/// A person, as a process: lines of standard input go to the channel.
fn chat(name: &str) -> Result<(), Failure> {
    // The first process is at this address, and others find it there.
    let first = Config::local("chat-example", 1);
    let participant = match join(first.clone()) {
        Ok(participant) => participant,
        Err(_) => {
            let mut config = first.for_rank(std::process::id() as usize);
            config.rank = None;
            join(config)?
        }
    };
    println!("{name} is in `{CHANNEL}`, with {} others", participant.participants() - 1);
    let (reader, writer) = enter(&participant, CHANNEL)?;
    let own = name.to_owned();
    // Ends with the process.
    thread::spawn(move || show(&reader, &own, usize::MAX));
    for text in std::io::stdin().lock().lines() {
        writer.write(&Line { person: name.into(), text: text? })?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    match std::env::args().nth(1) {
        None => demonstrate(),
        Some(name) => chat(&name),
    }
}
