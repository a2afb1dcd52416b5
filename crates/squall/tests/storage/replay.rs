//! Readers of a durable subgroup that begin at an earlier position: from the log, then live (Derecho §3.4, "durable" mode).

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::storage::{PATIENCE, TestFolder, wait_until};
use squall::config::{Config, Transport};
use squall::external::{Publisher, Replay};
use squall::{
    Deliveries, DeliveriesFrom, Group, MessageOutcome, Position, ReplayError, Sender, StoredMessage,
};

/// The number of messages that each member sends in a run.
const NUMBERS: usize = 60;

/// A message, where it was, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    position: Position,
    sender: usize,
    bytes: Vec<u8>,
}

fn content(run: usize, rank: usize, number: usize) -> Vec<u8> {
    let length = if number % 20 == 7 { 200_000 } else { 3 + number };
    let mut bytes: Vec<u8> = (0..length).map(|at| (at + 3 * number + rank) as u8).collect();
    bytes[..3].copy_from_slice(&[run as u8, rank as u8, number as u8]);
    bytes
}

fn take(deliveries: &mut Deliveries) -> Entry {
    let message = deliveries.next().expect("the group lives");
    let position = Position { view: message.view, sequence: message.sequence };
    Entry { position, sender: message.sender, bytes: message.bytes.to_vec() }
}

/// Takes the next message; waits for what this member has not got from the others yet.
fn take_from(reader: &mut DeliveriesFrom) -> Entry {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match reader.next() {
            Ok(message) => {
                let position = Position { view: message.view, sequence: message.sequence };
                return Entry { position, sender: message.sender, bytes: message.bytes.to_vec() };
            }
            Err(ReplayError::Compacted { .. } | ReplayError::Incomplete(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Has each of these members do something when all are in one view; they end at the same time, without leaving.
fn run<R: Send>(configs: &[Config], act: impl Fn(usize, Sender, Deliveries, &Barrier) -> R + Sync) -> Vec<R> {
    let all = Barrier::new(configs.len());
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        wait_until("all are in the view", || group.members() == configs.len());
        let rank = group.rank();
        let log = group.subgroup("log").expect("it is in it");
        let (sender, deliveries) = (log.sender().expect("it sends"), log.deliveries().expect("it pulls"));
        all.wait();
        let result = act(rank, sender, deliveries, &all);
        all.wait();
        result
    };
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(|| member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// Sends the messages of a run, on a thread of its own, while this thread does something else.
fn while_sending<R>(run: usize, rank: usize, mut sender: Sender, act: impl FnOnce() -> R) -> (R, Sender) {
    let sending = thread::spawn(move || {
        for number in 0..NUMBERS {
            let bytes = content(run, rank, number);
            sender.send_blocking(bytes.len(), |message| message.copy_from_slice(&bytes)).expect("it is sent");
        }
        sender
    });
    let result = act();
    (result, sending.join().expect("it does not panic"))
}

/// Takes messages until the last ones of all senders of a run are among them.
fn take_run(run: usize, senders: usize, mut next: impl FnMut() -> Entry) -> Vec<Entry> {
    let (mut entries, mut left) = (Vec::new(), senders);
    while left > 0 {
        let entry = next();
        left -= usize::from(entry.bytes[0] == run as u8 && usize::from(entry.bytes[2]) == NUMBERS - 1);
        entries.push(entry);
    }
    entries
}

fn configs(transport: Transport, test: &str) -> (TestFolder, Vec<Config>) {
    let folder = TestFolder::new(test);
    let configs = crate::storage::configs(transport, test, &folder, "log").into_iter().enumerate();
    let configs = configs.map(|(rank, config)| Config { rank: Some(rank), ..config }).collect();
    (folder, configs)
}

/// Three runs: readers begin at different positions of earlier runs, while all send.
fn readers_get_each_message_once(transport: Transport, test: &str) {
    let (_root, configs) = configs(transport, test);
    // The first run is read as it is delivered; one of the members begins anew in the middle of it.
    let first = run(&configs[..3], |rank, sender, mut deliveries, all| {
        let (entries, mut sender) = while_sending(0, rank, sender, || {
            if rank != 1 {
                return take_run(0, 3, || take(&mut deliveries));
            }
            let taken: Vec<Entry> = (0..NUMBERS).map(|_| take(&mut deliveries)).collect();
            let mut reader = deliveries.from(taken[5].position).expect("it is durable");
            let again = take_run(0, 3, || take_from(&mut reader));
            assert!(again[..NUMBERS - 5] == taken[5..], "what is in the log differs from what was delivered");
            reader.release();
            taken[..5].iter().cloned().chain(again).collect()
        });
        all.wait();
        // All were taken; what the readers have not released yet is delivered with the end of the views.
        let _ = sender.outcome(0);
        entries
    });
    assert!(first[0] == first[1] && first[1] == first[2], "the orders differ");

    let starts = [Position::default(), first[0][40].position, first[0][3 * NUMBERS - 1].position];
    let second = run(&configs[..3], |rank, sender, deliveries, all| {
        let mut reader = deliveries.from(starts[rank]).expect("it is durable");
        let (entries, mut sender) =
            while_sending(1, rank, sender, || take_run(1, 3, || take_from(&mut reader)));
        assert!(reader.is_live(), "all that was delivered is taken");
        reader.release();
        assert_eq!(sender.wait_for_outcome(NUMBERS as u64 - 1), MessageOutcome::Delivered);
        all.wait();
        assert!(reader.try_next().expect("the group lives").is_none(), "nothing comes twice");
        entries
    });
    assert!(second[0][..3 * NUMBERS] == first[0], "the earlier run differs");
    assert!(second[0].len() == 6 * NUMBERS, "some are missing, or came twice");
    for (rank, start) in starts.iter().enumerate() {
        let from = second[0].iter().position(|entry| entry.position >= *start).expect("it is there");
        assert!(second[rank] == second[0][from..], "reader {rank} got something else");
    }

    // A member that has never been there reads all of it, too; another one wants only what is new.
    let last = second[0].last().expect("there are many").position;
    let third = run(&configs, |rank, sender, deliveries, _| {
        let start =
            if rank == 0 { Position { sequence: last.sequence + 1, ..last } } else { Position::default() };
        let mut reader = deliveries.from(start).expect("it is durable");
        let (entries, _sender) = while_sending(2, rank, sender, || take_run(2, 4, || take_from(&mut reader)));
        reader.release();
        entries
    });
    assert!(third[1][..6 * NUMBERS] == second[0], "the earlier runs differ");
    assert!(third[1].len() == 10 * NUMBERS, "some are missing, or came twice");
    assert!(third[1] == third[2] && third[2] == third[3], "the orders differ");
    assert!(third[0] == third[1][6 * NUMBERS..], "what is new differs");
}

#[test]
fn readers_get_each_message_once_on_shm() {
    readers_get_each_message_once(Transport::Shm, "replay-shm");
}

#[test]
fn readers_get_each_message_once_on_tcp() {
    readers_get_each_message_once(Transport::Tcp, "replay-tcp");
}

/// Joins with members that take messages by an upcall, so that clients can send.
fn upcalled(configs: &[Config]) -> Vec<Group> {
    let join =
        |config: &Config| Group::builder(config.clone()).on_message("log", |_| ()).join().expect("it joins");
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(|| join(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// Ends members at the same time, without leaving.
fn end(groups: Vec<Group>) {
    let all = Barrier::new(groups.len());
    thread::scope(|scope| {
        for group in groups {
            let all = &all;
            scope.spawn(move || {
                all.wait();
                drop(group);
            });
        }
    });
}

/// Returns the next messages of a reader outside the group.
fn read(reader: &mut Replay, count: usize) -> Vec<Entry> {
    let mut take = || {
        let StoredMessage { view, sequence, sender, bytes, .. } = reader.next().expect("a member serves it");
        Entry { position: Position { view, sequence }, sender, bytes }
    };
    (0..count).map(|_| take()).collect()
}

/// A reader outside the group reads on while its member leaves, and over the end of all members and their restart.
fn a_reader_outside_gets_each_message_once(transport: Transport, test: &str) {
    let (_root, configs) = configs(transport, test);
    let members = &configs[..3];
    let client = Config {
        contacts: members.iter().map(|config| config.listen.clone()).collect(),
        ..configs[0].clone()
    };
    let text = |number: usize| format!("message {number}").into_bytes();
    let publish = |range: std::ops::Range<usize>| {
        let messages: Vec<_> = range.map(text).collect();
        Publisher::connect(&client, "log")
            .expect("a member serves it")
            .publish(&messages)
            .expect("it is sent");
    };
    let mut groups = upcalled(members);
    wait_until("all are in the view", || groups.iter().all(|group| group.members() == 3));
    publish(0..200);
    let mut reader = Replay::connect(&client, "log", Position::default()).expect("a member serves it");
    let mut entries = read(&mut reader, 100);
    let noted = reader.position();
    // The member that serves the reader leaves.
    let listens = reader.member().expect("it is connected").clone();
    let server = members.iter().position(|config| config.listen == listens).expect("it is a member");
    drop(groups.remove(server));
    // One at a time, so that there are many frames.
    let mut publisher = Publisher::connect(&client, "log").expect("a member serves it");
    (200..300).for_each(|number| publisher.publish(&[text(number)]).expect("it is sent"));
    drop(publisher);
    entries.extend(read(&mut reader, 200));
    assert!(reader.member().is_some_and(|member| *member != listens), "another member serves it");
    end(groups);
    let rest: Vec<Config> = members.iter().filter(|config| config.listen != listens).cloned().collect();
    let groups = upcalled(&rest);
    publish(300..400);
    entries.extend(read(&mut reader, 100));
    let texts: Vec<_> = entries.iter().map(|entry| entry.bytes.clone()).collect();
    assert_eq!(texts, (0..400).map(text).collect::<Vec<_>>(), "each once, in order");
    assert!(entries.windows(2).all(|pair| pair[0].position < pair[1].position));
    let mut again = Replay::connect(&client, "log", noted).expect("a member serves it");
    assert_eq!(read(&mut again, 300), entries[100..]);
    assert_eq!(again.next_within(Duration::from_millis(50)).expect("a member serves it"), None);
    assert_eq!(again.position(), reader.position());
    end(groups);
}

#[test]
fn a_reader_outside_gets_each_message_once_on_shared_memory() {
    a_reader_outside_gets_each_message_once(Transport::Shm, "replay-outside-shm");
}

#[test]
fn a_reader_outside_gets_each_message_once_over_tcp() {
    a_reader_outside_gets_each_message_once(Transport::Tcp, "replay-outside-tcp");
}
