//! A service of three members: each has jobs, and all divide them among themselves, without a leader and without a lock. A job of a
//! member that dies is done by another one.
//!
//! ```text
//! cargo run -- squall.toml 127.0.0.1:7400 127.0.0.1:9460
//! ```

mod jobs;

use std::convert::Infallible;
use std::error::Error;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use jobs::{JobId, JobMessage, OpenJobs};
use squall::config::MetricsConfig;
use squall::{Config, Deliveries, DeliveryEvent, Departure, Group, Member, Sender};

type Failure = Box<dyn Error + Send + Sync>;

/// Why the member ends.
enum Ending {
    /// Ctrl-C or SIGTERM.
    Asked,
    /// The group has ended at this member.
    Failed(Failure),
}

/// A job that this member has done, and its result.
type DoneJob = (JobId, u64);

/// Between two jobs that come to a member.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, listen, metrics] = arguments.as_slice() else {
        return Err("use: jobs FILE LISTEN METRICS, like squall.toml 127.0.0.1:7400 127.0.0.1:9460".into());
    };

    // ANCHOR: join
    let mut config = Config::load_for(file, Some(listen.parse()?), None)?;
    config.metrics = Some(MetricsConfig { listen: metrics.parse()? });
    let mut group = Group::join(config)?;
    let own = group.node().0;
    let jobs = group.subgroup("jobs")?;
    let (sender, deliveries) = (jobs.sender()?, jobs.deliveries()?);
    // ANCHOR_END: join

    // ANCHOR: run
    let (end, ends) = mpsc::channel();
    let (asked, failed) = (end.clone(), end.clone());
    ctrlc::set_handler(move || drop(asked.send(Ending::Asked)))?;
    let (done, results) = mpsc::channel();
    thread::spawn(move || {
        let Err(error) = send(sender, &results);
        failed.send(Ending::Failed(error))
    });
    let receiving = thread::spawn(move || {
        let Err(error) = receive(deliveries, own, &done);
        end.send(Ending::Failed(error))
    });

    match ends.recv()? {
        Ending::Failed(error) => Err(error), // the process ends; whatever watches over it starts it again
        Ending::Asked => {
            let departure = group.leave(Duration::from_secs(10));
            drop(receiving.join()); // what has been delivered is taken
            match departure {
                Departure::InOrder => Ok(()),
                departure => Err(format!("it could not leave in order: {departure:?}").into()),
            }
        }
    }
    // ANCHOR_END: run
}

// ANCHOR: send
/// Sends a job occasionally, and the results of this member; returns only when that fails.
fn send(mut sender: Sender, results: &Receiver<DoneJob>) -> Result<Infallible, Failure> {
    let mut next = 0;
    loop {
        let message = match results.recv_timeout(PAUSE) {
            Ok((job, result)) => JobMessage::Done { job, result },
            Err(RecvTimeoutError::Timeout) => {
                next += 1;
                JobMessage::Job { number: next, integer: next * 1_000_003 }
            }
            Err(error) => return Err(error.into()),
        };
        let bytes = postcard::to_stdvec(&message)?;
        sender.send_blocking(bytes.len(), |message| message.copy_from_slice(&bytes))?;
    }
}
// ANCHOR_END: send

// ANCHOR: receive
/// Takes views and messages as they come, does the jobs of this member, and prints what happens; returns only when that fails.
fn receive(
    mut deliveries: Deliveries,
    own: u32,
    done: &mpsc::Sender<DoneJob>,
) -> Result<Infallible, Failure> {
    let (mut open, mut members) = (OpenJobs::default(), Vec::new());
    loop {
        match deliveries.next_event()? {
            DeliveryEvent::View(view) => {
                members = view.members.clone();
                println!("view {} of nodes {:?}", view.id, nodes(&members));
                for (job, node) in open.handle_view(nodes(&members)) {
                    println!("job {job:?} is done by node {node} now");
                    do_job(&open, job, node == own, done)?;
                }
            }
            DeliveryEvent::Message(message) => {
                let (node, rank) = (message.node.0, members[message.sender].tag);
                match postcard::from_bytes(message.bytes)? {
                    JobMessage::Job { number, integer } => {
                        let by = open.handle_job((node, number), integer);
                        println!("job {:?} of member {rank} is done by node {by}", (node, number));
                        do_job(&open, (node, number), by == own, done)?;
                    }
                    JobMessage::Done { job, result } => {
                        let known = if open.handle_done(job) { "" } else { ", from before" };
                        println!("member {rank} has done {job:?}: {result}{known}");
                    }
                }
            }
            _ => {}
        }
    }
}
// ANCHOR_END: receive

/// Does a job, if it is this member's, and has the result sent.
fn do_job(open: &OpenJobs, job: JobId, is_own: bool, done: &mpsc::Sender<DoneJob>) -> Result<(), Failure> {
    if let Some(integer) = open.integer(job).filter(|_| is_own) {
        done.send((job, jobs::least_divisor(integer)))?;
    }
    Ok(())
}

fn nodes(members: &[Member]) -> Vec<u32> {
    members.iter().map(|member| member.node.0).collect()
}
