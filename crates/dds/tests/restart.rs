//! Total restart with real processes: all participants are killed while they write a logged topic that was created at run time, and start
//! again. The topic is there, and each reader gets everything that was acknowledged, each sample once and in one order.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use common::{DomainFolder, PATIENCE, Reading, configs, open_domain, patient};
use squall::Config;
use squall::config::{Address, StorageConfig, Transport};
use squall_dds::{Qos, TopicStore, WriteError};

/// The variable that has a process's run, cluster, rank, folder and addresses.
const ROLE: &str = "SQUALL_DDS_RESTARTED";
const MEMBERS: usize = 3;
const RUNS: usize = 3;
/// How many samples of each process are acknowledged at least before all are killed: together more than a reader is handed at once.
const SAMPLES: u32 = 150;
const ORDERS: &str = "orders";

/// A process, and the lines that it prints.
struct Writer {
    process: Child,
    lines: Receiver<String>,
}

impl Writer {
    fn start(run: usize, config: &Config, folder: &Path) -> Self {
        let rank = config.rank.expect("it has one").to_string();
        let folder = folder.to_str().expect("it is text").to_owned();
        let contacts = config.contacts.iter().map(ToString::to_string);
        let own = [run.to_string(), config.cluster.clone(), rank, folder, config.listen.to_string()];
        let words: Vec<String> = own.into_iter().chain(contacts).collect();
        let mut process = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(ROLE, words.join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let (send, lines) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
        Self { process, lines }
    }

    /// What it prints next, of what it says to this test.
    fn next(&self) -> (String, Vec<u32>) {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("it prints more");
            if let Some(message) = line.strip_prefix("> ") {
                let mut words = message.split(' ');
                let kind = words.next().unwrap_or_default().to_owned();
                return (kind, words.map(|word| word.parse().expect("it is a number")).collect());
            }
        }
    }

    /// What the reader of this process has found in the history.
    fn history(&self) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        loop {
            match self.next() {
                (kind, numbers) if kind == "found" => found.push((numbers[0], numbers[1])),
                _ => return found,
            }
        }
    }

    /// Reads until this many writes are acknowledged; returns the number of the last one.
    fn acknowledged(&self, count: u32) -> u32 {
        (0..count).fold(0, |_, _| self.next().1[0])
    }

    /// Kills the process; returns the number of the last sample that it has reported as acknowledged.
    fn kill(mut self, mut last: u32) -> u32 {
        self.process.kill().expect("it runs");
        let _ = self.process.wait();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            if let Some(number) = line.strip_prefix("> written ") {
                last = number.parse().unwrap_or(last);
            }
        }
        last
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test by itself: what the other processes do. Each reads the history, then writes until it is killed.
#[test]
fn the_other_process() {
    let Ok(text) = std::env::var(ROLE) else { return };
    let [run, cluster, rank, folder, listen, contacts @ ..] = &text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let address = |text: &str| text.parse::<Address>().expect("it is an address");
    let rank: u32 = rank.parse().expect("it is a rank");
    let mut config = Config::local(cluster, MEMBERS).for_rank(rank as usize);
    config.listen = address(listen);
    config.contacts = contacts.iter().map(|contact| address(contact)).collect();
    config.storage = Some(StorageConfig::new(folder));
    config.timeout = PATIENCE;
    if matches!(config.listen, Address::Tcp { .. }) {
        config.transport = Transport::Tcp;
    }
    let participant = open_domain(&[config], TopicStore::Disk).remove(0);
    let topic = match *run {
        "0" => participant.create_topic::<Reading>(ORDERS, Qos::LOGGED).expect("it is created"),
        _ => participant.topic::<Reading>(ORDERS).expect("the list of topics is on disk"),
    };
    // Lines of the test's own framework may come before.
    println!();
    let say = |text: String| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "> {text}").and_then(|()| stdout.flush()).expect("the test reads");
    };
    let reader = participant.reader(&topic, Qos::LOGGED).expect("it is created");
    reader.wait_for_historical_data(PATIENCE).expect("the history comes");
    let found = reader.take(usize::MAX).expect("the topic lives");
    // This process's writers of earlier runs have gone, although they were killed.
    let own = reader.id().node;
    assert!(reader.matched_publications().iter().all(|peer| peer.id.node != own), "run {run}: {rank}");
    let found: Vec<Reading> = found.into_iter().filter_map(|sample| sample.data).collect();
    // What others write in this run may be among it; it is not of the history.
    let first = found.iter().filter(|reading| reading.sensor == rank).map(|reading| reading.number + 1).max();
    found.iter().for_each(|reading| say(format!("found {} {}", reading.sensor, reading.number)));
    say("end".into());
    let writer = participant.writer(&topic, patient(Qos::LOGGED)).expect("it is created");
    for number in first.unwrap_or(0).. {
        match writer.write(&Reading { sensor: rank, number }) {
            Ok(()) => say(format!("written {number}")),
            // The others have been killed before this one.
            Err(WriteError::Group(_) | WriteError::Unknown) => break,
            Err(error) => panic!("{rank}: {number}: {error}"),
        }
    }
    thread::sleep(PATIENCE);
}

fn all_are_killed_and_start_again(transport: Transport, test: &str) {
    let folder = DomainFolder::new(test);
    let configs = configs(transport, test, MEMBERS, 0);
    // By process, the last sample that was acknowledged in the runs so far.
    let mut acknowledged = BTreeMap::<u32, u32>::new();
    let mut before = Vec::new();
    for run in 0..RUNS {
        let writers: Vec<_> = configs.iter().map(|config| Writer::start(run, config, &folder.0)).collect();
        let histories: Vec<_> = writers.iter().map(Writer::history).collect();
        let shortest = histories.iter().map(Vec::len).min().expect("there are some");
        for history in &histories {
            // A process may see the first samples of this run, too.
            assert!(history[..shortest] == histories[0][..shortest], "run {run}: one order");
            assert!(history.starts_with(&before), "run {run}: what was read before is there, in its order");
            for (sensor, last) in &acknowledged {
                let numbers: Vec<u32> =
                    history.iter().filter(|each| each.0 == *sensor).map(|each| each.1).collect();
                assert!(numbers.len() > *last as usize, "run {run}: {sensor}: {} of {last}", numbers.len());
                let count = u32::try_from(numbers.len()).expect("few");
                assert!(numbers.into_iter().eq(0..count), "run {run}: {sensor}: each once, in order");
            }
        }
        before = histories[0][..shortest].to_vec();
        let last: Vec<u32> = writers.iter().map(|writer| writer.acknowledged(SAMPLES)).collect();
        for ((sensor, writer), last) in (0..).zip(writers).zip(last) {
            acknowledged.insert(sensor, writer.kill(last));
        }
    }
    assert!(before.len() >= (RUNS - 1) * MEMBERS * SAMPLES as usize, "{}", before.len());
}

#[test]
fn a_logged_topic_outlives_all_processes_on_shm() {
    all_are_killed_and_start_again(Transport::Shm, "restart-shm");
}

#[test]
fn a_logged_topic_outlives_all_processes_on_tcp() {
    all_are_killed_and_start_again(Transport::Tcp, "restart-tcp");
}
