//! External clients: they receive and send messages without a view change, the group never waits for them, and
//! messages that they lose are counted.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{PartitionSafety, SubgroupConfig, Transport};
use squall::external::{ExternalError, Observed, Observer, ObserverOptions, Publisher, Replay};
use squall::stream::{Secret, Stream, StreamOptions};
use squall::{Config, Group, Position};
use squall_transports::bootstrap::pair::PairService;
use squall_transports::reserve_port;

const PATIENCE: Duration = Duration::from_secs(30);
const BOTH: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn config(test: &str, members: usize, transport: Transport) -> Config {
    let name = format!("external-{test}-{transport:?}-{}", std::process::id()).to_lowercase();
    let subgroup = SubgroupConfig { window: 16, message_max: 1000, ..SubgroupConfig::default() };
    let mut config = Config::local(&name, members).subgroup("log", subgroup);
    config.partition_safety = PartitionSafety::Off;
    if transport == Transport::Tcp {
        config.transport = transport;
        let address = |_| format!("127.0.0.1:{}", reserve_port().unwrap()).parse().unwrap();
        config.contacts = (0..members).map(address).collect();
    }
    config
}

fn of_rank(config: &Config, rank: usize) -> Config {
    let mut own = config.clone();
    (own.listen, own.rank) = (config.contacts[rank].clone(), Some(rank));
    own
}

/// Starts members that discard all messages, as `squall node` does.
fn members(config: &Config) -> Vec<Group> {
    let join = |rank| {
        let config = of_rank(config, rank);
        thread::spawn(move || Group::builder(config).on_message("log", |_| ()).join().expect("it joins"))
    };
    let joins: Vec<_> = (0..config.members).map(join).collect();
    joins.into_iter().map(|join| join.join().unwrap()).collect()
}

/// Returns the next message, and how many were lost before it; gaps of unknown size count as `u64::MAX`.
fn next_message(observer: &mut Observer) -> (u64, String) {
    let mut lost: u64 = 0;
    loop {
        match observer.next().expect("there is a member") {
            Observed::Message { bytes, .. } => return (lost, String::from_utf8(bytes).unwrap()),
            Observed::Lost { messages, .. } => lost = lost.saturating_add(messages.unwrap_or(u64::MAX)),
            _ => {}
        }
    }
}

/// All observers see what is published in its order, with its sender; and the view never changes.
#[test]
fn clients_change_no_view() {
    for transport in BOTH {
        let config = config("view", 2, transport);
        let members = members(&config);
        let mut observers: Vec<Observer> =
            (0..2).map(|_| Observer::connect(&config, "log").expect("a member serves it")).collect();
        let texts: Vec<String> = (0..3000).map(|number| format!("message {number}")).collect();
        let mut publisher = Publisher::connect(&config, "log").expect("a member serves it");
        publisher.publish(&texts).expect("all live");
        for observer in &mut observers {
            assert!(
                matches!(observer.next().unwrap(), Observed::View { id: 0, members } if members.len() == 2)
            );
            for text in &texts {
                let Observed::Message { view, rank, bytes, .. } = observer.next().unwrap() else {
                    panic!("nothing is lost, and there is one view")
                };
                assert_eq!((view, rank, &*bytes), (0, Some(0), text.as_bytes()), "{transport:?}");
            }
        }
        drop((observers, publisher));
        assert!(members.iter().all(|member| member.view().id == 0 && member.failure().is_none()));
    }
}

/// A member that pulls its messages and sends itself serves observers, and redirects publishers to another member.
#[test]
fn applications_keep_their_own_ends() {
    let config = config("pulls", 2, Transport::Shm);
    let other = of_rank(&config, 1);
    let other = thread::spawn(move || Group::builder(other).on_message("log", |_| ()).join().unwrap());
    let mut group = Group::join(of_rank(&config, 0)).expect("it joins");
    let other = other.join().unwrap();
    // Until its application takes messages, it has none to show, but the other member has.
    let mut observer = Observer::connect(&config, "log").expect("the other member serves it");
    let log = group.subgroup("log").unwrap();
    let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    let mut own = Observer::connect(&config, "log").expect("now it serves, too");
    thread::scope(|scope| {
        let taken = scope.spawn(move || {
            let texts: Vec<Vec<u8>> = (0..2).map(|_| deliveries.next().unwrap().bytes.to_vec()).collect();
            // Only now are they delivered here.
            deliveries.release();
            (texts, deliveries)
        });
        sender.send_bytes(b"own").unwrap();
        let mut publisher = Publisher::connect(&config, "log").expect("the other member takes it");
        assert_eq!(next_message(&mut observer), (0, "own".into()));
        publisher.publish(&["foreign"]).expect("both live");
        assert_eq!(next_message(&mut observer), (0, "foreign".into()));
        assert_eq!(taken.join().unwrap().0, [b"own".to_vec(), b"foreign".to_vec()]);
    });
    assert_eq!([next_message(&mut own), next_message(&mut own)], [(0, "own".into()), (0, "foreign".into())]);
    // The application takes the sending end from the clients.
    let mut group = other;
    let mut sender = group.subgroup("log").unwrap().sender().expect("it is not the application's yet");
    sender.send_bytes(b"taken back").unwrap();
    assert_eq!(sender.sent(), 2);
    let error = Publisher::connect_with(&config, "log", Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("sends there itself"), "{error}");
}

/// An observer that reads nothing holds up no member; when it reads again, it gets the number of messages that it has
/// missed, in their place.
#[test]
fn a_slow_observer_learns_how_many_messages_it_lost() {
    for transport in BOTH {
        let config = config("slow", 2, transport);
        let _members = members(&config);
        let options = ObserverOptions { queue_bytes: 10_000, ..ObserverOptions::default() };
        let mut observer = Observer::connect_with(&config, "log", options).expect("a member serves it");
        let text = |number: usize| format!("{number:0>900}");
        let texts: Vec<String> = (0..10_000).map(text).collect();
        let begun = Instant::now();
        Publisher::connect(&config, "log").unwrap().publish(&texts).expect("all live");
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        let (mut next, mut all_lost) = (0, 0);
        // The last message may be among the lost ones, which are counted, too.
        while next < texts.len() {
            match observer.next().unwrap() {
                Observed::Message { bytes, .. } => {
                    assert_eq!(bytes, texts[next].as_bytes(), "{transport:?}: a gap of another length");
                    next += 1;
                }
                Observed::Lost { messages, .. } => {
                    let lost = usize::try_from(messages.expect("the connection holds")).unwrap();
                    (next, all_lost) = (next + lost, all_lost + lost);
                }
                _ => {}
            }
        }
        assert!(next == texts.len() && all_lost > 5000, "{all_lost} of {}", texts.len());
        Publisher::connect(&config, "log").unwrap().publish(&["and on"]).unwrap();
        assert_eq!(next_message(&mut observer), (0, "and on".into()));
    }
}

/// When the member of a client dies, another one takes over: the gap is reported, and no message is delivered twice.
#[test]
fn clients_survive_their_member() {
    for transport in BOTH {
        let config = config("dies", 3, transport);
        let mut members = members(&config);
        let mut observer = Observer::connect(&config, "log").unwrap();
        let mut publisher = Publisher::connect(&config, "log").unwrap();
        publisher.publish(&["before"]).unwrap();
        assert_eq!(next_message(&mut observer), (0, "before".into()));
        drop(members.remove(0));
        // The observer is connected again before anything is sent that it should see.
        let deadline = Instant::now() + PATIENCE;
        let gap = loop {
            match observer.next_within(Duration::from_millis(100)).expect("others live") {
                Some(Observed::Lost { messages, cause }) => break (messages, cause),
                _ => assert!(Instant::now() < deadline, "{transport:?}: no gap is reported"),
            }
        };
        assert!(gap.0.is_none() && !gap.1.is_empty(), "{gap:?}");
        publisher.publish(&["after"]).expect("nothing was in flight");
        assert_eq!(next_message(&mut observer), (0, "after".into()), "{transport:?}");
    }
}

/// A client with another secret, or that asks for an unknown subgroup, gets an error that says so.
#[test]
fn errors_say_why() {
    let config = config("errors", 1, Transport::Tcp);
    let _members = members(&config);
    let mut stranger = config.clone();
    stranger.secret = Secret::new("not the secret of this group").unwrap();
    let begun = Instant::now();
    let error = Observer::connect(&stranger, "log").unwrap_err();
    assert!(error.to_string().contains("secret"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(9), "it is final");
    let error = Publisher::connect(&config, "lag").unwrap_err();
    let known = "`log`".to_owned();
    assert_eq!(error, ExternalError::UnknownSubgroup { subgroup: "lag".into(), known });
    let error = Replay::connect(&config, "log", Position::default()).unwrap_err();
    assert_eq!(error, ExternalError::NoLog { subgroup: "log".into() });
    let mut publisher = Publisher::connect(&config, "log").unwrap();
    let error = publisher.publish(&["good", &"x".repeat(1001), "not sent"]).unwrap_err();
    assert_eq!((error.delivered, error.unknown), (1, 0));
    assert_eq!(error.cause, ExternalError::TooLong { length: 1001, message_max: 1000 });
    let mut nowhere = config;
    nowhere.contacts = vec!["127.0.0.1:1".parse().unwrap()];
    let error = Observer::connect_with(&nowhere, "log", test_options()).unwrap_err();
    assert!(error.to_string().contains("contacts"), "{error}");
}

fn test_options() -> ObserverOptions {
    ObserverOptions { timeout: Duration::from_millis(300), ..ObserverOptions::default() }
}

/// Connects to the first member's service for clients, to send arbitrary bytes.
fn raw(config: &Config) -> Stream {
    let options = StreamOptions::new(&config.cluster, &config.secret);
    let mut stream = Stream::connect_service(&config.contacts[0], PairService::Clients, &options).unwrap();
    stream.set_read_timeout(Some(PATIENCE));
    stream
}

fn send(stream: &mut Stream, frame: &[u8]) {
    let length = u32::try_from(frame.len()).unwrap().to_le_bytes();
    stream.write_all(&[&length, frame].concat()).unwrap();
}

fn receive(stream: &mut Stream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

/// Returns the first request of a publisher of `log`, which is new or has a number.
fn introduction(client: Option<u8>) -> Vec<u8> {
    let client = client.map_or(vec![0], |client| vec![1, client]);
    [&[1, 3][..], b"log", &client].concat()
}

/// Messages that the same client sends again over another connection count once, as if the first connection had
/// lasted.
#[test]
fn messages_that_are_sent_again_count_once() {
    let config = config("again", 1, Transport::Shm);
    let _members = members(&config);
    let mut observer = Observer::connect(&config, "log").unwrap();
    let batch = [&[2, 0, 2, 1, 1][..], b"ab"].concat();
    let mut first = raw(&config);
    send(&mut first, &introduction(None));
    let open = receive(&mut first);
    assert_eq!(open[1], 0, "the client has number 0: {open:?}");
    send(&mut first, &batch);
    assert_eq!(next_message(&mut observer), (0, "a".into()));
    // The answer is lost.
    first.abort();
    let mut second = raw(&config);
    send(&mut second, &introduction(Some(0)));
    assert_eq!(receive(&mut second), open);
    send(&mut second, &batch);
    let delivered = receive(&mut second);
    send(&mut second, &[&[2, 2, 1, 1][..], b"c"].concat());
    assert_ne!(receive(&mut second), delivered);
    assert_eq!(
        [next_message(&mut observer), next_message(&mut observer)],
        [(0, "b".into()), (0, "c".into())]
    );
}

/// Invalid bytes end their connection and nothing else: frames that are too long, malformed, or out of order.
#[test]
fn foreign_bytes_end_their_connection() {
    let config = config("foreign", 1, Transport::Shm);
    let members = members(&config);
    let mut observer = Observer::connect(&config, "log").unwrap();
    let attacks: [&[u8]; 4] =
        [&[255; 64], &[9, 0, 0, 0, 77, 1, 2, 3, 4, 5, 6, 7, 8], &[4, 0, 0, 0, 2, 0, 1, 9], &[0; 4]];
    for attack in attacks {
        let mut stream = raw(&config);
        stream.write_all(attack).unwrap();
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "{attack:?} is answered");
    }
    // Lengths that do not match the bytes, a number out of order, and a message that is too long.
    let batches = [vec![2, 0, 1, 9, 1], vec![2, 7, 1, 1, 1], [&[2, 0, 1, 0xe9, 7][..], &[0; 1001]].concat()];
    for batch in batches {
        let mut stream = raw(&config);
        send(&mut stream, &introduction(None));
        receive(&mut stream);
        send(&mut stream, &batch);
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "{:?} is answered", &batch[..4]);
    }
    Publisher::connect(&config, "log").unwrap().publish(&["good"]).unwrap();
    assert_eq!(next_message(&mut observer), (0, "good".into()));
    assert!(members[0].failure().is_none());
}
