//! What topics that are created at run time cost: how long creating one takes, and how much fifty idle ones cost an active one. Two domains of
//! two members each, one of which has the idle topics, are measured in turn.
//!
//! ```text
//! cargo run --release -p squall-dds --example idle_topics
//! ```

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use squall::Config;
use squall_dds::{DataReader, DataWriter, DomainParticipant, Qos, TopicStore};

const IDLE_TOPICS: usize = 50;
const ROUNDS: usize = 9;
/// Samples of a round, and the bytes of each.
const SAMPLES: usize = 100_000;
const SAMPLE_BYTES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

/// A domain of two members, with an active topic from one to the other.
struct Domain {
    members: Vec<DomainParticipant>,
    reader: DataReader<Vec<u8>>,
    writer: DataWriter<Vec<u8>>,
}

fn patient(qos: Qos) -> Qos {
    Qos { max_blocking_time: PATIENCE, ..qos }
}

impl Domain {
    fn start(name: &str) -> Result<Self, Failure> {
        let config = Config::local(&format!("idle-{name}-{}", std::process::id()), 2);
        let join = |rank: usize| {
            DomainParticipant::builder(config.clone().for_rank(rank))
                .run_time_topics(TopicStore::Memory)
                .join()
        };
        let members = thread::scope(|scope| {
            let threads: Vec<_> = [0, 1].map(|rank| scope.spawn(move || join(rank))).into_iter().collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no thread panics"))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let topic = members[0].create_topic::<Vec<u8>>("active", Qos::ATOMIC)?;
        let writer = members[0].writer(&topic, patient(Qos::ATOMIC))?;
        let topic = members[1].find_topic::<Vec<u8>>("active", PATIENCE)?;
        let reader = members[1].reader(&topic, Qos::ATOMIC)?;
        while writer.matched_subscriptions().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { members, reader, writer })
    }

    /// Writes and reads the samples of a round; returns how many in a second.
    fn run(&self) -> Result<f64, Failure> {
        let begun = Instant::now();
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                (0..SAMPLES).try_for_each(|_| self.writer.write_in_place(SAMPLE_BYTES, |bytes| bytes.fill(1)))
            });
            let mut left = SAMPLES;
            while left > 0 {
                self.reader.wait_for_data(PATIENCE)?;
                left -= self.reader.take(left)?.len();
            }
            Ok(writing.join().expect("no thread panics")?)
        })
        .map(|()| SAMPLES as f64 / begun.elapsed().as_secs_f64())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Failure> {
    let (plain, crowded) = (Domain::start("plain")?, Domain::start("crowded")?);
    let view = crowded.members[0].view();
    let (mut times, mut idle) = (Vec::new(), Vec::new());
    for number in 0..IDLE_TOPICS {
        let qos = [Qos::UNORDERED, Qos::ATOMIC, Qos::KEPT][number % 3].clone();
        let begun = Instant::now();
        let topic = crowded.members[0].create_topic::<Vec<u8>>(&format!("idle-{number}"), qos.clone())?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        idle.push((
            crowded.members[0].writer(&topic, patient(qos.clone()))?,
            crowded.members[0].reader(&topic, qos)?,
        ));
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    println!("creating a topic: median {:.0} µs, longest {longest:.0} µs", median(times));
    println!("view before {view:?}, after {:?}", crowded.members[0].view());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(plain.run()?);
        with.push(crowded.run()?);
    }
    let (without, with) = (median(without), median(with));
    println!(
        "samples of {SAMPLE_BYTES} B in a second: {without:.0} without idle topics, {with:.0} with {IDLE_TOPICS}"
    );
    println!("the idle topics cost {:.1} %", 100.0 * (1.0 - with / without));
    Ok(())
}
