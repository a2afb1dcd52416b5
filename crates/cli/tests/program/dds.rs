//! `squall dds` with real processes: a node holds the domain, writers and readers come and go, and each sample of a kept topic comes once
//! and in order.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

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
             listen = \"{address}\"\ncontacts = [\"{address}\"]\nmembers = 1\n{}",
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

fn interrupt(child: &mut Child) -> Option<i32> {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("it runs");
    assert!(status.success());
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
    fails("echo", &["missing", "--timeout", "200ms"], "there was no topic `missing`");
    fails("pub", &["atomic", &"x".repeat(20_000)], "longer than the limit");
    for rate in ["0", "1e-20", "1e-310"] {
        fails("pub", &["atomic", "one", "--rate", rate], "give a number of samples per second");
    }
    // Nothing of that has harmed the domain.
    text(&domain.run("pub", &["atomic", "three"]));
}
