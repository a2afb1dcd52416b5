//! `squall dds` with real processes: a node is the domain, writers and readers are its clients. They come and go, are killed and halted,
//! which changes nothing for others, and each sample of a kept topic comes once and in order.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A member that is silent for this long would be excluded.
const SUSPICION_MS: u64 = 1000;

/// A domain of one node, which ends with it.
struct Domain {
    folder: PathBuf,
    node: Child,
    lines: BufReader<ChildStdout>,
}

impl Domain {
    fn start(test: &str, transport: &str) -> Self {
        let name = format!("squall-dds-{test}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("it is made");
        let address = match transport {
            "tcp" => format!("127.0.0.1:{}", reserve_port().expect("there is a port")),
            _ => format!("unix:@{name}"),
        };
        let text = format!(
            "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\ntransport = \"{transport}\"\n\
             listen = \"{address}\"\ncontacts = [\"{address}\"]\nmembers = 1\nsuspicion_after_ms = {SUSPICION_MS}\n{}",
            // A domain adds what it needs, and takes settings for it.
            if transport == "tcp" { "" } else { "[subgroups.dds-topics]\n" },
        );
        std::fs::write(folder.join("squall.toml"), text).expect("it is written");
        let mut node = dds(&folder, "node", &["--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(node.stdout.take().expect("it is piped"));
        let mut domain = Self { folder, node, lines };
        assert!(domain.next_line().contains("\"participants\":1"));
        domain
    }

    /// What the node prints next.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it can be read");
        line
    }

    fn dds(&self, command: &str, more: &[&str]) -> Command {
        dds(&self.folder, command, more)
    }

    /// Runs a command to its end.
    fn run(&self, command: &str, more: &[&str]) -> Output {
        self.dds(command, more).output().expect("it runs")
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn dds(folder: &std::path::Path, command: &str, more: &[&str]) -> Command {
    let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
    squall.args(["dds", command, "-c"]).arg(folder.join("squall.toml")).args(more);
    if !more.contains(&"--timeout") {
        squall.args(["--timeout", "60s"]);
    }
    squall.stdin(Stdio::null());
    squall
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("it is text")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("it runs");
    assert!(status.success());
}

fn interrupt(child: &mut Child) -> Option<i32> {
    signal(child, "-INT");
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return status.code();
        }
        assert!(Instant::now() < deadline, "it still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A reader that comes while a writer writes, and one that comes after it has left, get each sample of a kept topic once and in order.
fn late_readers_get_each_sample_once(transport: &str) {
    let domain = Domain::start(&format!("late-{transport}"), transport);
    let profile = ["--profile", "kept"];
    let arguments =
        [&profile[..], &["log", "line {i}", "--repeat", "600", "--rate", "400", "--json"]].concat();
    let mut writer = domain.dds("pub", &arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    // It has begun when another process reads its first sample.
    let first = domain.run("sub", &["--profile", "kept", "log", "--count", "1"]);
    assert_eq!(text(&first), "line 0\n");
    let during = domain.run("sub", &["log", "--count", "600"]);
    let expected: String = (0..600).map(|number| format!("line {number}\n")).collect();
    assert_eq!(text(&during), expected);
    assert!(writer.wait().expect("it ends").success());
    let mut report = String::new();
    writer.stdout.take().expect("it is piped").read_to_string(&mut report).expect("it is text");
    assert!(report.contains("\"written\":600") && report.contains("\"error\":null"), "{report}");
    let after = domain.run("sub", &["log", "--count", "600"]);
    assert_eq!(text(&after), expected);
}

#[test]
fn late_readers_get_each_sample_once_on_shm() {
    late_readers_get_each_sample_once("shm");
}

#[test]
fn late_readers_get_each_sample_once_on_tcp() {
    late_readers_get_each_sample_once("tcp");
}

#[test]
fn topics_are_listed_shown_and_measured() {
    let mut domain = Domain::start("list", "shm");
    assert_eq!(text(&domain.run("list", &["--json"])), "{\"topics\":[]}\n");
    text(&domain.run("pub", &["--profile", "kept", "news", "hello, all", "and more"]));
    let arguments = ["ticks", "tick {i}", "--repeat", "1000000", "--rate", "50", "--json"];
    let mut ticks = domain.dds("pub", &arguments).stdout(Stdio::piped()).spawn().expect("it starts");

    let echo = text(&domain.run("echo", &["ticks", "--count", "2"]));
    let lines: Vec<&str> = echo.lines().collect();
    assert!(lines[0].starts_with("--- writer ") && lines[1].starts_with("tick "), "{echo}");
    let hz = text(&domain.run("hz", &["ticks", "--seconds", "1", "--json"]));
    let hz: serde_json::Value = serde_json::from_str(&hz).expect("it is JSON");
    assert!(hz["samples"].as_u64().is_some_and(|samples| samples > 0), "{hz}");
    assert!(hz["bytes"].as_u64() >= hz["samples"].as_u64().map(|samples| samples * 6), "{hz}");

    let row = |topic: &serde_json::Value| {
        format!("{} {} {} {}", topic["name"], topic["type"], topic["profile"], topic["writers"])
    };
    let expected = ["\"news\" \"bytes\" \"kept\" 0", "\"ticks\" \"bytes\" \"atomic\" 1"];
    let deadline = Instant::now() + SOON;
    // A process that has just joined may not have learned of all writers.
    loop {
        let list = text(&domain.run("list", &["--json"]));
        let list: serde_json::Value = serde_json::from_str(&list).expect("it is JSON");
        let rows: Vec<_> = list["topics"].as_array().expect("it is a list").iter().map(row).collect();
        if rows == expected {
            break;
        }
        assert!(Instant::now() < deadline, "{rows:?}");
    }
    let table = text(&domain.run("list", &[]));
    assert!(table.lines().next().is_some_and(|line| line.contains("profile")), "{table}");

    // Ctrl-C leaves in order, and says what was written.
    assert_eq!(interrupt(&mut ticks), Some(130));
    let mut report = String::new();
    ticks.stdout.take().expect("it is piped").read_to_string(&mut report).expect("it is text");
    assert!(report.contains("\"written\":"), "{report}");
    assert_eq!(interrupt(&mut domain.node), Some(0));
}

#[test]
fn what_does_not_fit_ends_with_what_to_do() {
    let domain = Domain::start("errors", "shm");
    let fails = |command: &str, more: &[&str], part: &str| {
        let output = domain.run(command, more);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(part), "{message}");
    };
    text(&domain.run("pub", &["atomic", "one"]));
    fails(
        "pub",
        &["--profile", "kept", "atomic", "two"],
        "topic `atomic` exists with other policies: profile atomic",
    );
    fails("pub", &["--profile", "logged", "other", "one"], "this domain keeps histories in memory");
    fails("echo", &["missing", "--timeout", "5s"], "there was no topic `missing`");
    fails("pub", &["\u{1b}[2J", "one"], "is no name of a topic");
    fails("pub", &["atomic", &"x".repeat(20_000)], "longer than the limit");
    for rate in ["0", "1e-20", "1e-310"] {
        fails("pub", &["atomic", "one", "--rate", rate], "give a number of samples per second");
    }
    // Nothing of that has harmed the domain.
    text(&domain.run("pub", &["atomic", "three"]));
}

impl Domain {
    /// Waits until the topic has this many readers.
    fn await_readers(&self, topic: &str, count: u64) {
        let deadline = Instant::now() + SOON;
        loop {
            let list = text(&self.run("list", &["--json"]));
            let list: serde_json::Value = serde_json::from_str(&list).expect("it is JSON");
            let topics = list["topics"].as_array().expect("it is a list");
            let readers = topics.iter().find(|each| each["name"] == topic).map(|each| &each["readers"]);
            if readers.and_then(serde_json::Value::as_u64) == Some(count) {
                return;
            }
            assert!(Instant::now() < deadline, "{topic}: {list}");
        }
    }

    fn spawn(&self, command: &str, more: &[&str]) -> Child {
        let mut command = self.dds(command, more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }
}

/// Readers and writers that are killed, or halted for longer than a member may be, change nothing: the node is in its first view, what
/// was kept stays, and one that was halted continues.
#[test]
fn killed_and_halted_clients_change_nothing() {
    let mut domain = Domain::start("killed", "tcp");
    text(&domain.run("pub", &["--profile", "kept", "log", "one", "two"]));
    text(&domain.run("pub", &["ticks", "none reads this"]));
    for topic in ["log", "ticks"] {
        let mut killed = domain.spawn("echo", &[topic]);
        domain.await_readers(topic, 1);
        killed.kill().expect("it runs");
        killed.wait().expect("it ends");
    }
    // The end of the connection is noticed at once.
    domain.await_readers("ticks", 0);
    let mut writer = domain.spawn("pub", &["ticks", "a", "--repeat", "1000000", "--rate", "100"]);
    let mut halted = domain.spawn("sub", &["ticks"]);
    let mut lines = BufReader::new(halted.stdout.take().expect("it is piped"));
    let mut next_line = || {
        let mut line = String::new();
        lines.read_line(&mut line).expect("it can be read");
        line
    };
    assert_eq!(next_line(), "a\n");
    signal(&halted, "-STOP");
    let begun = Instant::now();
    while begun.elapsed() < 3 * Duration::from_millis(SUSPICION_MS) {
        // Others write and read meanwhile.
        text(&domain.run("pub", &["log", "three"]));
        text(&domain.run("sub", &["ticks", "--count", "1"]));
    }
    writer.kill().expect("it runs");
    writer.wait().expect("it ends");
    signal(&halted, "-CONT");
    let mut last = domain.spawn("pub", &["ticks", "b", "--repeat", "1000000", "--rate", "100"]);
    while next_line() != "b\n" {}
    assert_eq!((interrupt(&mut halted), interrupt(&mut last)), (Some(130), Some(130)));
    assert_eq!(text(&domain.run("sub", &["log", "--count", "3"])), "one\ntwo\nthree\n");
    assert_eq!(interrupt(&mut domain.node), Some(0));
    let mut views = String::new();
    domain.lines.read_to_string(&mut views).expect("it can be read");
    assert_eq!(views, "", "there was no other view");
}

/// A reader whose output is not taken, as before `| less`, delays no writer. When it is taken, the log says how many samples are missing.
#[test]
fn a_reader_whose_output_is_not_taken_delays_no_writer() {
    let domain = Domain::start("slow", "shm");
    text(&domain.run("pub", &["ticks", "none reads this"]));
    let mut slow = domain.spawn("sub", &["ticks"]);
    domain.await_readers("ticks", 1);
    let long = format!("{{i}} {}", "x".repeat(1000));
    let report = text(&domain.run("pub", &["ticks", &long, "--repeat", "100000", "--json"]));
    assert!(report.contains("\"written\":100000") && report.contains("\"error\":null"), "{report}");

    let mut lines = BufReader::new(slow.stdout.take().expect("it is piped")).lines();
    let mut end = domain.spawn("pub", &["ticks", "the end", "--repeat", "1000000", "--rate", "100"]);
    let came = lines.by_ref().take_while(|line| line.as_ref().expect("it is text") != "the end").count();
    assert_eq!(interrupt(&mut end), Some(130));
    assert_eq!(interrupt(&mut slow), Some(130));
    let mut log = String::new();
    slow.stderr.take().expect("it is piped").read_to_string(&mut log).expect("it is text");
    assert!(came > 0 && came < 100_000, "{came} came: {log}");
    assert!(log.contains("samples are lost here: read the output faster"), "{log}");
}

/// Without a node there is no domain: the error says where one was looked for, and how to start it.
#[test]
fn without_a_node_there_is_an_error() {
    let name = format!("squall-dds-alone-{}", std::process::id());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let address = format!("127.0.0.1:{}", reserve_port().expect("there is a port"));
    std::fs::create_dir_all(&folder).expect("it is made");
    let text = format!(
        "cluster = \"alone\"\nsecret = \"at least sixteen bytes\"\ncontacts = [\"{address}\"]\nmembers = 1\n"
    );
    std::fs::write(folder.join("squall.toml"), text).expect("it is written");
    for arguments in [&["pub", "t", "one"][..], &["sub", "t"], &["echo", "t"], &["list"], &["hz", "t"]] {
        let mut command = dds(&folder, arguments[0], &[&arguments[1..], &["--timeout", "300ms"]].concat());
        let output = command.output().expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        let expected =
            format!("no node of the domain serves this command at {address}: start one by `squall dds node");
        assert!(message.contains(&expected), "{message}");
    }
    let _ = std::fs::remove_dir_all(folder);
}
