//! Participants and clients that die, with real groups and processes: what they have announced ends, and a client that was only cut off continues.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use squall::Config;
use squall::config::StorageConfig;
use squall::object::Replicated as _;

use crate::qos::{DurabilityService, HistoryKind};
use crate::registry::TopicRegistry;
use crate::{ClientReader, DomainClient, DomainParticipant, Qos, TopicStore};

const PATIENCE: Duration = Duration::from_secs(60);
/// The variable that makes this program a client of members that listen there.
const CLIENT: &str = "SQUALL_DDS_LEASES_CLIENT";

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The topic keeps the last sample only.
fn short(qos: Qos) -> Qos {
    let last = DurabilityService { history: HistoryKind::KeepLast(1), samples_max: 9 };
    Qos { durability_service: Some(last), max_blocking_time: PATIENCE, ..qos }
}

fn patient(qos: Qos) -> Qos {
    Qos { max_blocking_time: PATIENCE, ..qos }
}

fn start(config: &Config, store: TopicStore) -> DomainParticipant {
    DomainParticipant::builder(config.clone()).run_time_topics(store).join().expect("it joins")
}

fn connect(config: &Config, store: TopicStore) -> DomainClient {
    let mut config = config.clone();
    config.contacts = vec![config.listen.clone()];
    DomainClient::connect(config, store, PATIENCE).expect("a member answers")
}

fn inspect<R>(participant: &DomainParticipant, look: impl FnOnce(&TopicRegistry) -> R) -> R {
    let store = participant.run_time_store().expect("it has topics of later");
    store.keeper.object.inspect(0, |_, registry| look(registry)).expect("the state is here")
}

/// Returns how many announcements the first topic has, and how many clients have leases; a joiner would get the same.
fn announced(participant: &DomainParticipant) -> (usize, usize) {
    let count = |registry: &TopicRegistry| {
        let history = registry.history(0).expect("it keeps");
        (history.announcements(0).count(), registry.presence().leases.len())
    };
    inspect(participant, |registry| {
        let mut state = Vec::new();
        registry.snapshot().write(&mut state).expect("memory takes it");
        assert_eq!(count(&TopicRegistry::restore(&mut &*state).expect("it is a state")), count(registry));
        count(registry)
    })
}

/// A client whose process has died: nothing is said of it any more.
fn forget(client: DomainClient, parts: impl Sized) {
    client.set_silent(true);
    std::mem::forget((client, parts));
}

/// Clients come, write and die, again and again. What is announced is what the living one has announced, and the writer of the sample that is
/// kept; that it is so outlives the members, if the topic is on disk.
fn clients_die(store: TopicStore, qos: &Qos, test: &str) {
    let folder = std::env::temp_dir().join(format!("squall-dds-{test}-{}", std::process::id()));
    let mut config = Config::local(&format!("dds-{test}-{}", std::process::id()), 1);
    config.storage = (store == TopicStore::Disk).then(|| StorageConfig::new(&folder));
    let mut participant = start(&config, store);
    participant.create_topic::<Vec<u8>>("t", short(qos.clone())).expect("it is created");
    let living = connect(&config, store);
    let reader = living.reader::<Vec<u8>>("t", qos.clone()).expect("it is created");
    for number in 0..20 {
        let client = connect(&config, store);
        let writer = client.writer::<Vec<u8>>("t", patient(qos.clone())).expect("it is created");
        writer.write(&vec![number]).expect("it is written");
        let read = client.reader::<Vec<u8>>("t", qos.clone()).expect("it is created");
        forget(client, (writer, read));
    }
    // Of the last writer: that it came, and that it has gone.
    wait_until("the dead have ended", || announced(&participant) == (1 + 2, 1));
    assert_eq!(reader.take(9).expect("a member answers")[0].data.as_deref(), Some(&[19][..]));
    wait_until("none matches", || {
        assert!(reader.take(9).is_ok());
        reader.subscription_matched().current_count == 0
    });
    if store == TopicStore::Disk {
        // Clients that were there when all members ended, and do not return.
        let client = connect(&config, store);
        let writer = client.writer::<Vec<u8>>("t", patient(qos.clone())).expect("it is created");
        forget(client, writer);
        forget(living, reader);
        drop(participant);
        participant = start(&config, store);
        wait_until("the dead have ended", || announced(&participant) == (2, 0));
    }
    drop(participant);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn clients_of_a_kept_topic_die() {
    clients_die(TopicStore::Memory, &Qos::KEPT, "dead-clients-kept");
}

#[test]
fn clients_of_a_logged_topic_die() {
    clients_die(TopicStore::Disk, &Qos::LOGGED, "dead-clients-logged");
}

/// A client that was cut off for longer than its lease continues: its samples come once, and its reader and its writer match again.
#[test]
fn a_client_that_was_cut_off_continues() {
    let config = Config::local(&format!("dds-cut-client-{}", std::process::id()), 1);
    let participant = start(&config, TopicStore::Memory);
    let topic = participant.create_topic::<Vec<u8>>("t", Qos::KEPT).expect("it is created");
    let own = participant.reader(&topic, Qos::KEPT).expect("it is created");
    let own_writer = participant.writer(&topic, patient(Qos::KEPT)).expect("it is created");
    let client = connect(&config, TopicStore::Memory);
    let writer = client.writer::<Vec<u8>>("t", patient(Qos::KEPT)).expect("it is created");
    let late = Qos { durability: crate::DurabilityKind::Volatile, ..Qos::KEPT };
    let readers = [Qos::KEPT, late].map(|qos| client.reader::<Vec<u8>>("t", qos).expect("it is created"));
    let matches = |count: usize| {
        own.matched_publications().len() == count
            && own_writer.matched_subscriptions().len() == 1 + 2 * (count - 1)
    };
    let mut number = 0;
    let mut write = |by: &dyn Fn(&Vec<u8>)| {
        by(&vec![number]);
        number += 1;
    };
    let of_client = |sample: &Vec<u8>| writer.write(sample).expect("it is written");
    let of_member = |sample: &Vec<u8>| own_writer.write(sample).expect("it is written");
    for returns_by_writing in [true, false] {
        wait_until("all match", || matches(2));
        write(&of_client);
        client.set_silent(true);
        wait_until("the client has ended", || matches(1));
        write(&of_member);
        client.set_silent(false);
        if returns_by_writing {
            write(&of_client);
        }
    }
    wait_until("all match", || matches(2));
    write(&of_client);
    let expected: Vec<Vec<u8>> = (0..number).map(|number| vec![number]).collect();
    let take = |reader: &ClientReader<Vec<u8>>| reader.take(99).expect("a member answers");
    for reader in &readers {
        let mut taken = Vec::new();
        wait_until("all have come", || {
            taken.extend(take(reader).into_iter().filter_map(|sample| sample.data));
            taken.len() >= expected.len()
        });
        assert_eq!(taken, expected);
        assert_eq!(reader.subscription_matched().current_count, 2);
    }
    let mut taken = Vec::new();
    wait_until("all have come", || {
        taken.extend(own.take(99).unwrap_or_default().into_iter().filter_map(|sample| sample.data));
        taken.len() >= expected.len()
    });
    assert_eq!(taken, expected);
    drop((readers, writer, client));
    wait_until("the client has gone", || {
        inspect(&participant, |registry| registry.presence().leases.is_empty())
    });
}

/// Members die, the first one among them, which says who has gone.
#[test]
fn members_die() {
    let config = |rank| Config::local(&format!("dds-dead-members-{}", std::process::id()), 4).for_rank(rank);
    let mut participants: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|rank| scope.spawn(move || start(&config(rank), TopicStore::Memory))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it joins")).collect()
    });
    let mut endpoints = Vec::new();
    for participant in &participants {
        let topic = participant.create_topic::<Vec<u8>>("t", short(Qos::KEPT)).expect("it is created");
        let writer = participant.writer(&topic, patient(Qos::KEPT)).expect("it is created");
        writer.write(&vec![0]).expect("it is written");
        endpoints.push((writer, participant.reader(&topic, Qos::KEPT).expect("it is created")));
    }
    let members =
        |participant: &DomainParticipant| inspect(participant, |registry| registry.presence().members);
    for _ in 0..2 {
        // Its endpoints are not closed before it has ended.
        drop((participants.remove(0), endpoints.remove(0)));
        let here: BTreeSet<u32> = participants.iter().map(DomainParticipant::node).collect();
        for (participant, (_, reader)) in participants.iter().zip(&endpoints) {
            wait_until("its endpoints end", || members(participant) == here);
            wait_until("its writer matches no more", || reader.matched_publications().len() == here.len());
        }
    }
    // The last sample was written by one that lives.
    assert_eq!(announced(&participants[0]), (4, 0));
}

/// Not a test by itself: a client that is killed.
#[test]
fn the_client_process() {
    let Ok(text) = std::env::var(CLIENT) else { return };
    let (cluster, listen) = text.split_once(' ').expect("both are there");
    let mut config = Config::local(cluster, 1);
    config.listen = listen.parse().expect("it is an address");
    let client = connect(&config, TopicStore::Memory);
    let _writer = client.writer::<Vec<u8>>("t", patient(Qos::KEPT)).expect("it is created");
    println!("\nready");
    thread::sleep(PATIENCE);
}

#[test]
fn client_processes_are_killed() {
    let cluster = format!("dds-killed-clients-{}", std::process::id());
    let config = Config::local(&cluster, 1);
    let participant = start(&config, TopicStore::Memory);
    let topic = participant.create_topic::<Vec<u8>>("t", Qos::KEPT).expect("it is created");
    let reader = participant.reader(&topic, Qos::KEPT).expect("it is created");
    for _ in 0..3 {
        let mut process = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "leases::the_client_process", "--nocapture"])
            .env(CLIENT, format!("{cluster} {}", config.listen))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")), "it connects");
        process.kill().expect("it runs");
        process.wait().expect("it ends");
    }
    wait_until("the dead have ended", || announced(&participant) == (1, 0));
    wait_until("none matches", || reader.matched_publications().is_empty());
}
