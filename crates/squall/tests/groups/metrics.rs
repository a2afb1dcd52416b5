//! What members show those who watch over them, over HTTP: metrics, and whether they live and are ready.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Config, GenuineConfig, MetricsConfig, StorageConfig, SubgroupConfig};
use squall::{DeliveryMode, Group, JoinError};
use squall_transports::reserve_port;

const PATIENCE: Duration = Duration::from_secs(30);
const MESSAGES: u64 = 100;

fn config(test: &str, members: usize) -> Config {
    let name = format!("{test}-{}", std::process::id());
    let mut config = Config::local(&name, members).subgroup("log", SubgroupConfig::default());
    config.metrics = Some(MetricsConfig { listen: "127.0.0.1:0".parse().unwrap() });
    config
}

fn address(group: &Group) -> SocketAddr {
    group.metrics_address().expect("it is configured")
}

/// Sends `request`, and returns everything that comes back.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the member listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).expect("the member reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the member answers");
    answer
}

/// Returns status and body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    assert_eq!(length, Some(body.len().to_string().as_str()), "{head}");
    (status_of(head), body.into())
}

fn status_of(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

/// Returns the value of the sample that begins with `name`, labels included.
fn sample(address: SocketAddr, name: &str) -> Option<f64> {
    let (status, text) = get(address, "/metrics");
    assert_eq!(status, 200);
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn wait_for(address: SocketAddr, name: &str, value: f64) {
    let deadline = Instant::now() + PATIENCE;
    while sample(address, name) != Some(value) {
        assert!(Instant::now() < deadline, "{name} is {value}\n{}", get(address, "/metrics").1);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Joins all members of a group, the last of which pulls its messages.
fn join(config: &Config) -> Vec<Group> {
    let members = config.members;
    let join = |rank: usize| {
        let builder = Group::builder(config.clone().for_rank(rank));
        let builder = if rank + 1 == members { builder } else { builder.on_message("log", |_| ()) };
        builder.join().expect("it joins")
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..members).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Totals grow from view to view, whether messages are pulled or not; a death is a view change of a certain length.
#[test]
fn totals_go_on_when_a_member_dies() {
    let mut groups = join(&config("metrics-totals", 3));
    let mut pulled = groups[2].subgroup("log").unwrap().deliveries().unwrap();
    let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
    let mut send = || {
        for _ in 0..MESSAGES {
            sender.send_blocking(8, |bytes| bytes.fill(7)).expect("it is sent");
            assert_eq!(pulled.next().expect("it comes").bytes, [7; 8]);
        }
        drop(pulled.try_next());
    };
    send();
    for (rank, group) in groups.iter().enumerate() {
        let address = address(group);
        let sent = if rank == 0 { MESSAGES } else { 0 };
        wait_for(address, "squall_sent_total{subgroup=\"log\"}", sent as f64);
        wait_for(address, "squall_delivered_total{subgroup=\"log\"}", MESSAGES as f64);
        wait_for(address, "squall_delivered_bytes_total{subgroup=\"log\"}", 8.0 * MESSAGES as f64);
        wait_for(address, "squall_members", 3.0);
        wait_for(address, "squall_ready", 1.0);
        wait_for(address, "squall_view_changes_total", 0.0);
        wait_for(address, "squall_stability_lag{subgroup=\"log\",member=\"1\"}", 0.0);
        wait_for(address, "squall_window_used_ratio{subgroup=\"log\"}", 0.0);
        assert_eq!(get(address, "/readyz"), (200, "messages flow\n".into()));
        assert_eq!(get(address, "/healthz"), (200, "this member lives\n".into()));
    }
    drop(groups.remove(1));
    send();
    for group in &groups {
        let address = address(group);
        wait_for(address, "squall_members", 2.0);
        wait_for(address, "squall_view_changes_total", 1.0);
        wait_for(address, "squall_view_change_seconds_count", 1.0);
        wait_for(address, "squall_delivered_total{subgroup=\"log\"}", 2.0 * MESSAGES as f64);
        let seconds = sample(address, "squall_view_change_seconds_sum").unwrap();
        assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    }
    // One of two is no majority: what is left says so, as long as its handle exists.
    drop(groups.remove(0));
    let last = address(&groups[0]);
    let deadline = Instant::now() + PATIENCE;
    while groups[0].failure().is_none() {
        assert!(Instant::now() < deadline, "the group ends");
        thread::sleep(Duration::from_millis(5));
    }
    for path in ["/healthz", "/readyz"] {
        let (status, text) = get(last, path);
        assert!(status == 503 && text.contains("majority"), "{status} {text}");
    }
    wait_for(last, "squall_ready", 0.0);
    wait_for(last, "squall_delivered_total{subgroup=\"log\"}", 2.0 * MESSAGES as f64);
}

/// A sender measures some of its messages, in all views; a log measures its writes. Others have no such samples.
#[test]
fn latencies_and_writes_of_the_log_are_counted() {
    let mut config = config("metrics-times", 3);
    let path = std::env::temp_dir().join(format!("squall-metrics-times-{}", std::process::id()));
    config = config.subgroup("disk", SubgroupConfig { mode: DeliveryMode::Durable, ..Default::default() });
    let folder = |rank: usize| path.join(rank.to_string());
    let mut groups: Vec<Group> = thread::scope(|scope| {
        let join = |rank| {
            let mut config = config.clone().for_rank(rank);
            config.storage = Some(StorageConfig::new(folder(rank)));
            Group::builder(config)
                .on_message("log", |_| ())
                .on_message("disk", |_| ())
                .join()
                .expect("it joins")
        };
        let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let measured = |address, subgroup: &str| {
        sample(address, &format!("squall_delivery_latency_seconds_count{{subgroup=\"{subgroup}\"}}"))
    };
    let (sending, other) = (address(&groups[0]), address(&groups[1]));
    for subgroup in ["log", "disk"] {
        let mut sender = groups[0].subgroup(subgroup).unwrap().sender().unwrap();
        let mut send_until = |count: f64| {
            let deadline = Instant::now() + PATIENCE;
            while measured(sending, subgroup).is_none_or(|measured| measured < count) {
                assert!(Instant::now() < deadline, "{}", get(sending, "/metrics").1);
                let _ = sender.send_blocking(8, |bytes| bytes.fill(7));
            }
        };
        send_until(3.0);
        if subgroup == "disk" {
            drop(groups.remove(2));
            let before = measured(sending, subgroup).expect("there were some");
            send_until(before + 3.0);
        }
        assert_eq!(measured(other, subgroup), None, "it sends nothing");
        let sum = format!("squall_delivery_latency_seconds_sum{{subgroup=\"{subgroup}\"}}");
        let seconds = sample(sending, &sum).expect("it is there");
        assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    }
    for address in [sending, other] {
        assert!(sample(address, "squall_log_write_seconds_count").is_some_and(|count| count >= 3.0));
        assert!(sample(address, "squall_log_write_seconds_sum").is_some_and(|seconds| seconds > 0.0));
        let frames = sample(address, "squall_log_frames_total").expect("it has a log");
        let bytes = sample(address, "squall_log_bytes_total").expect("it has a log");
        assert!(frames >= 3.0 && bytes >= 512.0 * frames, "{bytes} bytes in {frames} frames");
    }
    drop(groups);
    std::fs::remove_dir_all(path).unwrap();
}

/// A member that takes no messages is the one that holds the sender up; the sender and the member itself show it.
#[test]
fn the_member_that_holds_others_up_is_named() {
    let mut config = config("metrics-slow", 2);
    config.subgroups.get_mut("log").unwrap().window = 8;
    let mut groups = join(&config);
    let mut pulled = groups[1].subgroup("log").unwrap().deliveries().unwrap();
    let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
    while sender.send(1, |bytes| bytes[0] = 1).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    let (fast, slow) = (address(&groups[0]), address(&groups[1]));
    let has = |address, name: &str| sample(address, name).is_some_and(|seconds| seconds > 0.3);
    let deadline = Instant::now() + PATIENCE;
    while !has(fast, "squall_held_up_seconds{subgroup=\"log\",member=\"1\"}")
        || !has(slow, "squall_consumer_standstill_seconds{subgroup=\"log\"}")
    {
        assert!(Instant::now() < deadline, "{}{}", get(fast, "/metrics").1, get(slow, "/metrics").1);
        thread::sleep(Duration::from_millis(20));
    }
    wait_for(fast, "squall_window_used_ratio{subgroup=\"log\"}", 1.0);
    let full = "squall_window_full_seconds_total{subgroup=\"log\"}";
    while !has(fast, full) {
        assert!(Instant::now() < deadline, "{}", get(fast, "/metrics").1);
        thread::sleep(Duration::from_millis(20));
    }
    let status = groups[0].status().expect("the member answers itself");
    assert!(status.subgroups[0].window_full_millis > 300, "{status:?}");
    assert_eq!(sample(slow, full), Some(0.0), "it sends nothing");
    while pulled.try_next().expect("the group lives").is_some() {}
    wait_for(slow, "squall_consumer_standstill_seconds{subgroup=\"log\"}", 0.0);
    wait_for(fast, "squall_window_used_ratio{subgroup=\"log\"}", 0.0);
    // Each look counts for the time before it: this one may be the first that finds space.
    thread::sleep(Duration::from_millis(1200));
    let before = sample(fast, full);
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(sample(fast, full), before, "there is space");
}

/// What members of other hosts exchange is counted at both ends; members that share memory exchange nothing.
#[test]
fn the_bytes_between_members_are_counted() {
    let mut config = config("metrics-bytes", 2);
    config.transport = squall::config::Transport::Tcp;
    let contact = |_| format!("127.0.0.1:{}", reserve_port().unwrap()).parse().unwrap();
    config.contacts = (0..2).map(contact).collect();
    let mut groups = thread::scope(|scope| {
        let join = |rank: usize| {
            let mut config = config.clone().for_rank(rank);
            config.listen = config.contacts[rank].clone();
            let builder = Group::builder(config);
            let builder = if rank == 1 { builder } else { builder.on_message("log", |_| ()) };
            builder.join().expect("it joins")
        };
        let threads: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Vec<_>>()
    });
    let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
    let mut pulled = groups[1].subgroup("log").unwrap().deliveries().unwrap();
    for _ in 0..MESSAGES {
        sender.send_blocking(1000, |bytes| bytes.fill(7)).expect("it is sent");
        assert_eq!(pulled.next().expect("it comes").bytes.len(), 1000);
    }
    let least = 1000.0 * MESSAGES as f64;
    let carried = |rank: usize, other: usize, direction: &str| {
        let labels = format!("{{member=\"{other}\",transport=\"tcp\",direction=\"{direction}\"}}");
        sample(address(&groups[rank]), &format!("squall_transport_bytes_total{labels}"))
    };
    let deadline = Instant::now() + PATIENCE;
    while carried(0, 1, "sent").is_none_or(|bytes| bytes < least)
        || carried(1, 0, "received").is_none_or(|bytes| bytes < least)
    {
        assert!(Instant::now() < deadline, "{}", get(address(&groups[0]), "/metrics").1);
        thread::sleep(Duration::from_millis(10));
    }
    assert!(carried(1, 0, "sent").is_some_and(|bytes| bytes > 0.0 && bytes < least), "it only acknowledges");
    let status = groups[0].status().expect("the member answers itself");
    assert!(status.traffic.len() == 1 && status.traffic[0].sent as f64 >= least, "{status:?}");
    assert_eq!(status.log, None);
}

/// Whatever a client sends, and however slowly, messages flow and other clients are answered.
#[test]
fn clients_that_misbehave_are_refused_and_delay_nothing() {
    let mut group = Group::join(config("metrics-clients", 1)).expect("it joins");
    let address = address(&group);
    let log = group.subgroup("log").unwrap();
    let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("GET /other HTTP/1.1\r\n\r\n", 404),
        ("\x16\x03\x01\x02 hello\r\n\r\n", 400),
        (&format!("GET /metrics HTTP/1.1\r\n{}", "a: bbbbbbbbbbbbbbbbbbbbbbbb\r\n".repeat(1000)), 431),
    ] {
        let answer = exchange(address, request);
        assert_eq!(status_of(&answer), status, "{answer}");
    }
    let head = exchange(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(status_of(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");

    // As many as there may be, each of which sends a byte occasionally and never comes to an end.
    let began = Instant::now();
    // The connections before may count for a while, and one too many is closed.
    let connect = |_| loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let waits =
            |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        if stream.read(&mut [0; 1]).is_err_and(|error| waits(&error)) {
            return stream;
        }
        assert!(began.elapsed() < PATIENCE, "there is space for eight");
    };
    let mut slow: Vec<TcpStream> = (0..8).map(connect).collect();
    let is_full = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A connection too many is closed, with or without a reset.
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").is_err()
            || matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
    };
    while !is_full() {
        assert!(began.elapsed() < Duration::from_secs(4), "eight connections are enough");
    }
    let mut answers = vec![String::new(); slow.len()];
    for text in b"GET /metrics HTTP/1.1\r\nX: ".iter().cycle() {
        for (stream, answer) in slow.iter_mut().zip(&mut answers) {
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let _ = stream.write_all(&[*text]);
            let mut part = [0; 1000];
            if let Ok(count) = stream.read(&mut part) {
                answer.push_str(&String::from_utf8_lossy(&part[..count]));
            }
        }
        sender.send_blocking(1, |bytes| bytes[0] = *text).expect("it is sent");
        assert_eq!(deliveries.next().expect("it comes").bytes, [*text]);
        if answers.iter().all(|answer| !answer.is_empty()) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{answers:?}");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(began.elapsed() >= Duration::from_secs(4), "they were cut off after {:?}", began.elapsed());
    for answer in answers {
        // Some have sent a whole line that is no header, before their time was over.
        assert!([408, 400].contains(&status_of(&answer)), "{answer}");
    }
    drop(slow);
    while is_full() {
        assert!(began.elapsed() < PATIENCE, "they have gone");
    }
    assert_eq!(get(address, "/healthz").0, 200);
}

/// An address that another process has is known at the start, before anyone waits for other members.
#[test]
fn an_address_in_use_is_an_error_at_the_start() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let mut config = config("metrics-address", 3);
    config.metrics = Some(MetricsConfig { listen: address.to_string().parse().unwrap() });
    let error = Group::join(config).expect_err("it is in use");
    assert!(matches!(error, JoinError::Metrics { .. }), "{error}");
    let text = error.to_string();
    let expected = format!("cannot show metrics at {address}: Address already in use");
    assert!(text.starts_with(&expected) && text.contains("another `listen` in [metrics]"), "{text}");
}

/// A polling thread that hangs is no sign of life, and it lives again when it continues.
#[test]
fn a_polling_thread_that_hangs_is_not_healthy() {
    let (group, mut node) = Group::builder(config("metrics-hangs", 1)).join_polled().expect("it joins");
    let address = address(&group);
    let (status, text) = get(address, "/healthz");
    assert!(status == 503 && text.contains("the polling thread has not run"), "{status} {text}");
    assert_eq!(get(address, "/readyz").0, 503);
    let asked = thread::spawn(move || {
        let lives = get(address, "/healthz").0;
        // It lives before it has begun its first view and shown that.
        let until = Instant::now() + PATIENCE;
        let mut ready = get(address, "/readyz").0;
        while ready != 200 && Instant::now() < until {
            ready = get(address, "/readyz").0;
        }
        (lives, ready)
    });
    while !asked.is_finished() {
        node.step();
    }
    assert_eq!(asked.join().unwrap(), (200, 200));
}

/// A member that waits for others lives and is not ready.
#[test]
fn a_member_that_joins_lives_and_is_not_ready() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reserve_port().unwrap()));
    let mut config = config("metrics-joins", 2);
    config.timeout = Duration::from_secs(4);
    config.metrics = Some(MetricsConfig { listen: address.to_string().parse().unwrap() });
    let joining = thread::spawn(move || Group::join(config).expect_err("it is alone").to_string());
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "it listens");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(get(address, "/healthz").0, 200);
    assert_eq!(get(address, "/readyz"), (503, "this member has not joined its group yet\n".into()));
    assert_eq!(sample(address, "squall_ready"), Some(0.0));
    joining.join().unwrap();
    assert!(TcpStream::connect(address).is_err(), "it does not listen any more");
}

/// A member of a shard whose polling thread hangs is named, with the number of messages that wait for it; what is delivered is
/// counted, and its status says the same.
#[test]
fn shards_show_what_they_have_delivered_and_for_whom_they_wait() {
    let mut config = config("shards", 2);
    config.subgroups.clear();
    config.suspicion_after = None;
    config.genuine = Some(GenuineConfig::default().shard("a", &[0]).shard("b", &[1]));
    let (release, released) = std::sync::mpsc::channel::<()>();
    let other = config.clone().for_rank(1);
    let other = thread::spawn(move || {
        let upcall = move |_: squall::genuine::GenuineMessage<'_>| released.recv().unwrap_or(());
        Group::builder(other).on_multicast(upcall).join().expect("the member joins")
    });
    let mut group = Group::builder(config).on_multicast(|_| ()).join().expect("the member joins");
    let other = other.join().unwrap();
    // Dropped first, so that the other member's thread ends also if this test fails.
    let release = release;
    let address = address(&group);
    let mut sender = group.multicast_sender().unwrap();
    sender.send(&["a", "b"], b"first").unwrap();
    wait_for(address, "squall_shard_delivered_total{shard=\"a\"}", 1.0);
    for _ in 0..4 {
        sender.send(&["b", "a"], b"more").unwrap();
    }
    wait_for(address, "squall_shard_behind{shard=\"a\",member=\"1\"}", 4.0);
    wait_for(address, "squall_shard_pending{shard=\"a\"}", 4.0);
    wait_for(address, "squall_shards_sent_total", 5.0);
    let shards = group.status().unwrap().shards.expect("there are shards");
    let own = shards.own.expect("it is in one");
    assert_eq!((own.name.as_str(), own.leads, own.delivered_total, own.pending), ("a", true, 1, 4));
    assert_eq!(shards.lags.iter().map(|lag| (lag.node, lag.behind)).collect::<Vec<_>>(), [(1, 4)]);
    drop(release);
    wait_for(address, "squall_shard_delivered_total{shard=\"a\"}", 5.0);
    wait_for(address, "squall_shard_pending{shard=\"a\"}", 0.0);
    wait_for(address, "squall_shards_under_way", 0.0);
    assert_eq!(sample(address, "squall_shard_behind{shard=\"a\",member=\"1\"}"), None);
    drop(other);
}
