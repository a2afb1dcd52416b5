//! What members have noticed lately: suspicions and views, stalls, ends and panics, by each way to read it.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{MetricsConfig, SubgroupConfig};
use squall::{Config, Departure, FlightRecord, Group};

const PATIENCE: Duration = Duration::from_secs(30);

fn config(test: &str, members: usize) -> Config {
    let name = format!("flight-{test}-{}", std::process::id());
    Config::local(&name, members).subgroup("log", SubgroupConfig::default())
}

fn file(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("squall-flight-{test}-{}.json", std::process::id()))
}

fn join(config: &Config) -> Vec<Group> {
    let join = |rank: usize| {
        let config = config.clone().for_rank(rank);
        thread::spawn(move || Group::builder(config).on_message("log", |_| ()).join().expect("it joins"))
    };
    let joining: Vec<_> = (0..config.members).map(join).collect();
    joining.into_iter().map(|group| group.join().unwrap()).collect()
}

/// Waits until a record has a line that contains `text`.
fn wait_for(text: &str, mut record: impl FnMut() -> FlightRecord) -> FlightRecord {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = record();
        if found.lines.iter().any(|line| line.text.contains(text)) {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing of `{text}` in {found:#?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The survivors of a death have noticed what has led to the next view, in this order, and others can ask for it.
#[test]
fn a_death_is_in_the_records_of_the_others() {
    let config = config("death", 3);
    let mut groups = join(&config);
    drop(groups.pop()); // as if it had died
    let record = wait_for("of view 1 have attached", || groups[0].flight_record());
    let events = record.lines.iter().filter(|line| line.lasted_nanos.is_none());
    let kinds: Vec<&str> = events.map(|line| line.kind.as_str()).collect();
    let in_order = [
        "view begins",
        "messages flow",
        "connection lost",
        "accuses",
        "wedges",
        "votes",
        "decides",
        "trim",
        "view begins",
        "messages flow",
    ];
    let mut rest = kinds.iter();
    assert!(in_order.iter().all(|kind| rest.any(|found| found == kind)), "{kinds:?}");
    assert!(record.lines.iter().any(|line| line.text.starts_with("subgroup log: ")), "{record:#?}");
    assert!(
        record.lines.iter().any(|line| line.kind == "to view 1" && line.lasted_nanos.is_some()),
        "{record:#?}"
    );
    let asked = squall::ask_flight_record(&config, &config.listen).expect("the member answers");
    assert_eq!(asked.rank, 0);
    assert!(
        asked.lines.len() >= record.lines.len(),
        "{} lines, and before {}",
        asked.lines.len(),
        record.lines.len()
    );
    let status = groups[0].status().expect("the member answers itself");
    assert_eq!((status.rank, status.view), (0, 1));
}

/// A member that is not polled for a while has stalled, and says so; a slow consumer is named, and its release, too.
#[test]
fn a_stall_is_recorded() {
    let (group, mut node) = Group::builder(config("stall", 1)).join_polled().expect("it joins");
    while !node.is_ready() {
        node.step();
    }
    // The next sign of life is due within a quarter of suspicion_after.
    thread::sleep(Duration::from_millis(1500));
    let record = wait_for("later than it had asked for", || {
        node.poll();
        group.flight_record()
    });
    let stalls = record.lines.iter().filter(|line| line.kind == "stall").count();
    // On a busy machine there may be others.
    assert!(stalls >= 1, "{record:#?}");
}

/// The file is there when the group has ended, and says why; the one before it is kept.
#[test]
fn an_end_writes_the_file() {
    let file = file("end");
    let mut config = config("end", 1);
    config.flight_record = Some(file.clone());
    for _ in 0..2 {
        let group = Group::builder(config.clone()).on_message("log", |_| ()).join().expect("it joins");
        assert!(matches!(group.leave(PATIENCE), Departure::InOrder));
    }
    let mut old = file.clone().into_os_string();
    old.push(".old");
    let deadline = Instant::now() + PATIENCE;
    for file in [file, old.into()] {
        let has_left = |text: &str| {
            let trace: serde_json::Value = serde_json::from_str(text).ok()?;
            let last = trace.as_array()?.last()?;
            Some(last["args"]["what"] == "this member has left the group")
        };
        // It is written when the end is known to all that wait for it.
        while !std::fs::read_to_string(&file).is_ok_and(|text| has_left(&text) == Some(true)) {
            assert!(Instant::now() < deadline, "{} has no record", file.display());
            thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(file).unwrap();
    }
}

/// A panic of the polling thread, here in an upcall, is the last event, over HTTP and in the file.
#[test]
fn a_panic_leaves_a_record() {
    let file = file("panic");
    let mut config = config("panic", 1);
    config.flight_record = Some(file.clone());
    config.metrics = Some(MetricsConfig { listen: "127.0.0.1:0".parse().unwrap() });
    let builder = Group::builder(config).on_message("log", |_| panic!("an upcall that panics"));
    let mut group = builder.join().expect("it joins");
    group.subgroup("log").unwrap().sender().unwrap().send_bytes(b"hello").unwrap();
    let record = wait_for("has panicked", || group.flight_record());
    assert_eq!(record.ended.as_deref(), Some("its polling thread has panicked"));
    let address = group.metrics_address().expect("it is configured");
    let trace = http(&address.to_string(), "/trace");
    assert!(trace.starts_with("HTTP/1.1 200 OK") && trace.contains("has panicked"), "{trace}");
    let deadline = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains("has panicked")) {
        assert!(Instant::now() < deadline, "the file has no record");
        thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_file(file).unwrap();
}

fn http(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).expect("the member listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the member answers");
    answer
}

/// A file that cannot be written is an error when that can still be corrected.
#[test]
fn a_wrong_file_is_found_at_the_start() {
    let mut config = config("wrong", 1);
    config.flight_record = Some("/a/folder/that/does/not/exist/flight.json".into());
    let error = Group::join(config).unwrap_err().to_string();
    assert!(
        error.contains("/a/folder/that/does/not/exist/flight.json") && error.contains("flight_record"),
        "{error}"
    );
}
