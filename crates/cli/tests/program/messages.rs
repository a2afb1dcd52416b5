//! `squall send` and `squall recv` with real nodes: clients of a member, which change no view and delay no member; what was
//! accepted is delivered, and what is lost is reported.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

use super::trouble_page::assert_seen;

const SOON: Duration = Duration::from_secs(40);

/// Nodes of a group on this host, ended with it.
struct Nodes {
    folder: PathBuf,
    nodes: Vec<Child>,
    /// Where they listen.
    addresses: Vec<String>,
}

impl Nodes {
    /// Two nodes over shared memory.
    fn start(test: &str) -> Self {
        Self::start_with(test, 2, "shm")
    }

    fn start_with(test: &str, count: usize, transport: &str) -> Self {
        Self::start_as(test, count, transport, false)
    }

    /// Two nodes over shared memory, which keep what is delivered.
    fn start_durable(test: &str) -> Self {
        Self::start_as(test, 2, "shm", true)
    }

    fn start_as(test: &str, count: usize, transport: &str, is_durable: bool) -> Self {
        let name = format!("squall-{test}-{transport}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        let address = |rank: usize| match transport {
            "tcp" => format!("127.0.0.1:{}", reserve_port().unwrap()),
            _ => format!("unix:@{name}-{rank}"),
        };
        let addresses: Vec<String> = (0..count).map(address).collect();
        let mut nodes = Self { folder, nodes: Vec::new(), addresses: addresses.clone() };
        for (rank, address) in addresses.iter().enumerate() {
            let (storage, mode) = match is_durable {
                true => {
                    (format!("[storage]\npath = {:?}\n", nodes.folder.join("logs")), "mode = \"durable\"\n")
                }
                false => (String::new(), ""),
            };
            let text = format!(
                "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\ntransport = \"{transport}\"\n\
                 listen = \"{address}\"\ncontacts = {addresses:?}\nmembers = {count}\n\
                 [subgroups.log]\nmessage_max = 100\nwindow = 16\n{mode}{storage}"
            );
            std::fs::write(nodes.folder.join(format!("{rank}.toml")), text).unwrap();
            let node =
                nodes.squall(rank, "node").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            nodes.nodes.push(node);
        }
        nodes
    }

    fn squall(&self, rank: usize, command: &str) -> Command {
        let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
        squall.arg(command).arg("-c").arg(self.folder.join(format!("{rank}.toml")));
        squall
    }

    /// A reader that sees what is sent from now on: its log begins with its member and the view.
    fn recv(&self, more: &[&str]) -> (Child, BufReader<ChildStderr>) {
        let (child, _, stderr) = self.recv_through(more);
        (child, stderr)
    }

    /// As [`Nodes::recv`], with the rank of the node that it reads through.
    fn recv_through(&self, more: &[&str]) -> (Child, usize, BufReader<ChildStderr>) {
        let mut recv = self.squall(0, "recv");
        recv.args(["log", "--timeout", "40s"]).args(more).env("RUST_LOG", "squall=info");
        let mut child = recv.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("reads through the member at") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        let through = self.addresses.iter().position(|address| line.trim_end().ends_with(address));
        let through = through.unwrap_or_else(|| panic!("{line}"));
        while !line.contains(": view ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        (child, through, stderr)
    }

    /// The number of the view, and how many members it has.
    fn view(&self) -> (u64, usize) {
        let status = self.squall(0, "status").arg("--json").output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        let statuses = report["members"].as_array().unwrap().iter().map(|member| &member["status"]);
        let views = statuses
            .filter_map(|status| Some((status["view"].as_u64()?, status["members"].as_array()?.len())));
        views.max().expect("a member answers")
    }

    /// Gives `input` to `squall send`; returns its exit status, and what it prints to standard error.
    fn send(&self, input: &[u8]) -> (Option<i32>, String) {
        let mut send = self.squall(1, "send");
        send.args(["log", "--timeout", "40s"]);
        let mut child =
            send.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // It may end before it has read all.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Stops a process as `kill -STOP` does, or lets it continue.
fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < deadline, "it still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The lines of a stream until it ends, each of which has to come soon.
fn lines_soon(stream: impl BufRead + Send + 'static) -> impl Iterator<Item = String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || stream.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
    let deadline = Instant::now() + SOON;
    std::iter::from_fn(move || {
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("a stream has not ended after {SOON:?}"),
        }
    })
}

fn lines(from: u64, to: u64) -> Vec<u8> {
    (from..=to).flat_map(|number| format!("text {number}\n").into_bytes()).collect()
}

/// What others have sent does not move the cursor of a terminal; as JSON it is as it was sent.
#[test]
fn control_characters_of_messages_are_escaped() {
    let nodes = Nodes::start("escapes");
    let (text, _stderr) = nodes.recv(&["--count", "1"]);
    let (json, _stderr_too) = nodes.recv(&["--count", "1", "--json"]);
    assert_eq!(nodes.send("\u{1b}[2Jgone\ttab\r\u{9b}\n".as_bytes()), (Some(0), String::new()));
    let printed = |child: Child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(printed(text), "\\u{1b}[2Jgone\ttab\\r\\u{9b}\n");
    let json: serde_json::Value = serde_json::from_str(&printed(json)).unwrap();
    assert_eq!(json["message"], "\u{1b}[2Jgone\ttab\r\u{9b}");
}

/// A line that cannot be sent affects no other: the lines before it are delivered, and the error names the line.
#[test]
fn a_bad_line_loses_none_before_it() {
    let nodes = Nodes::start("bad-line");
    let (recv, _stderr) = nodes.recv(&["--count", "41", "--json"]);
    let mut input = lines(1, 20);
    input.extend(b"bad \xff\nlost\n");
    let (code, stderr) = nodes.send(&input);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("message 21 was not sent, nor any after it; the 20 before it were"), "{stderr}");
    let mut input = lines(21, 40);
    input.extend([b'x'; 101]);
    input.extend(b"\nlost\n");
    let (code, stderr) = nodes.send(&input);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("message 21 was not sent") && stderr.contains("longer than 100 bytes"),
        "{stderr}"
    );
    assert_eq!(nodes.send(b"last\n"), (Some(0), String::new()));

    let output = recv.wait_with_output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: Vec<&str> = printed.iter().map(|line| line["message"].as_str().unwrap()).collect();
    let expected: Vec<String> =
        (1..=40).map(|number| format!("text {number}")).chain(["last".into()]).collect();
    assert_eq!(texts, expected);
    // A member has sent them all, in one view.
    let is_of_a_member = |line: &serde_json::Value| line["rank"].as_u64() < Some(2) && line["view"] == 0;
    assert!(printed.iter().all(is_of_a_member), "{}", printed[0]);
    assert_eq!(nodes.view(), (0, 2));
}

/// As in `squall recv log | less`: the group continues, and the reader gets what was kept, and how much was not.
#[test]
fn nobody_waits_for_a_reader() {
    let nodes = Nodes::start("reader");
    let (mut recv, stderr) = nodes.recv(&["--queue", "10kB", "--json"]);
    // Far more than the pipe, the connection and the queue hold.
    assert_eq!(nodes.send(&numbers(0..20_000)), (Some(0), String::new()));
    assert!(check_gaps(recv.stdout.take().unwrap(), 20_000) > 0);
    drop(stderr);
    let _ = recv.kill();
    let _ = recv.wait();
    assert_eq!(nodes.view(), (0, 2));
}

/// Reads what `squall recv --json` prints of numbered messages until message `count` is printed or lost, or the output
/// ends; each gap is as long as reported. Returns how many are lost.
/// `squall recv | head -1` ends when `head` has its line, whether anything more is sent or not.
#[test]
fn a_reader_ends_with_the_reader_of_its_output() {
    let nodes = Nodes::start("piped");
    let (mut recv, _stderr) = nodes.recv(&[]);
    let mut output = BufReader::new(recv.stdout.take().unwrap());
    assert!(nodes.squall(0, "send").args(["log", "one"]).status().unwrap().success());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    drop(output);
    assert_eq!(wait(&mut recv), Some(141));
}

fn check_gaps(output: ChildStdout, count: u64) -> u64 {
    let (mut next, mut all_lost) = (0, 0);
    let mut output = BufReader::new(output).lines();
    while next < count {
        let Some(line) = output.next() else { break };
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(lost) = line["lost"].as_u64() {
            (next, all_lost) = (next + lost, all_lost + lost);
        } else {
            assert_eq!(line["message"].as_str().unwrap().parse(), Ok(next), "{line}");
            next += 1;
        }
    }
    all_lost
}

/// A reader that is stopped delays no member, over any transport; when it continues it reports its gap, and the exit status
/// is 1.
#[test]
fn a_stopped_reader_holds_nobody_up() {
    for transport in ["shm", "tcp"] {
        let nodes = Nodes::start_with("stopped", 2, transport);
        let (mut recv, mut stderr) = nodes.recv(&["--queue", "10kB", "--count", "20000", "--json"]);
        signal(&recv, "-STOP");
        let begun = Instant::now();
        assert_eq!(nodes.send(&numbers(0..20_000)), (Some(0), String::new()), "{transport}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        let status = nodes.squall(0, "status").output().unwrap();
        assert!(status.status.success(), "{status:?}");
        assert_seen("tool hung", "squall status", &String::from_utf8_lossy(&status.stdout));
        signal(&recv, "-CONT");
        let output = recv.stdout.take().unwrap();
        let reader = std::thread::spawn(move || check_gaps(output, u64::MAX));
        // What it has lost is missing at the end.
        let mut from = 20_000;
        while recv.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < 3 * SOON, "{transport}: it does not get 20000 messages");
            nodes.send(&numbers(from..from + 5000));
            from += 5000;
        }
        assert!(reader.join().unwrap() > 0, "{transport}");
        let mut all = String::new();
        stderr.read_to_string(&mut all).unwrap();
        assert_eq!(wait(&mut recv), Some(1), "{transport}: {all}");
        assert_seen("tool hung", "the log", &all);
        assert_eq!(nodes.view(), (0, 2), "{transport}");
    }
}

fn numbers(range: Range<u64>) -> Vec<u8> {
    range.flat_map(|number| format!("{number:0>90}\n").into_bytes()).collect()
}

/// When the member of a reader, and perhaps of a sender, is killed, both continue through others: the reader reports a gap,
/// the sender what is unknown, or nothing if nothing was under way.
#[test]
fn clients_of_a_killed_member_continue() {
    for transport in ["shm", "tcp"] {
        let mut nodes = Nodes::start_with("killed", 3, transport);
        let (mut recv, through, stderr) = nodes.recv_through(&["--json"]);
        let mut send = nodes.squall(0, "send");
        send.args(["log", "--resend", "--timeout", "40s"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut send = send.spawn().unwrap();
        let mut input = send.stdin.take().unwrap();
        input.write_all(b"0\n").unwrap();
        let mut output = lines_soon(BufReader::new(recv.stdout.take().unwrap()));
        let first: serde_json::Value = serde_json::from_str(&output.next().unwrap()).unwrap();
        assert!(first["message"] == "0" && first["rank"].as_u64().is_some_and(|rank| rank < 3), "{first}");
        nodes.nodes[through].kill().unwrap();
        nodes.nodes[through].wait().unwrap();
        // The gap is reported when the reader is connected again.
        let is_gap = |line: String| line.contains("messages may be missing here");
        assert!(lines_soon(stderr).any(is_gap), "{transport}: it has ended");
        input
            .write_all(&(1..=500).flat_map(|number| format!("{number}\n").into_bytes()).collect::<Vec<u8>>())
            .unwrap();
        drop(input);
        assert_eq!(wait(&mut send), Some(0), "{transport}");
        let numbers = output.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
        let numbers =
            numbers.filter_map(|line| line["message"].as_str().map(|text| text.parse::<u64>().unwrap()));
        // The first one may come twice: the member may die before it has answered.
        let numbers: Vec<u64> = numbers.filter(|number| *number > 0).take(500).collect();
        assert_eq!(numbers, (1..=500).collect::<Vec<_>>(), "{transport}");
        let _ = recv.kill();
        let _ = recv.wait();
    }
}

/// Without a group, or with another secret, the errors say what to do.
#[test]
fn errors_say_what_to_do() {
    let nodes = Nodes::start("errors");
    let (mut recv, _stderr) = nodes.recv(&[]);
    let run = |command: &str, config: &str, more: &[&str]| {
        let file = nodes.folder.join("other.toml");
        std::fs::write(&file, config).unwrap();
        let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
        let output = squall.arg(command).arg("-c").arg(file).args(more).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let good = std::fs::read_to_string(nodes.folder.join("0.toml")).unwrap();
    let (code, stderr) =
        run("recv", &good.replace("at least sixteen bytes", "another secret, as long"), &["log"]);
    assert!(code == Some(1) && stderr.contains("secret"), "{stderr}");
    let sent = nodes.squall(0, "send").args(["log", "a", "b", "--json"]).output().unwrap();
    let sent: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(sent, serde_json::json!({ "delivered": 2, "unknown": 0, "error": null }));
    let (code, stderr) = run("send", &good, &["lag", "text"]);
    assert!(code == Some(1) && stderr.contains("no subgroup `lag`: it has `log`"), "{stderr}");
    let nowhere = "cluster = \"none\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@squall-nowhere\"\nmembers = 1\n[subgroups.log]\n";
    let (code, stderr) = run("send", nowhere, &["log", "text", "--timeout", "200ms"]);
    assert!(code == Some(1) && stderr.contains("squall status"), "{stderr}");
    let _ = recv.kill();
    let _ = recv.wait();
}

/// A durable subgroup is printed from its beginning, and from a position on.
#[test]
fn a_durable_subgroup_is_read_from_a_position_on() {
    let nodes = Nodes::start_durable("replay");
    let texts: Vec<String> = (0..50).map(|number| format!("message {number}")).collect();
    assert_eq!(nodes.send(texts.join("\n").as_bytes()).0, Some(0));
    let recv = |more: &[&str]| {
        let output = nodes.squall(0, "recv").args(["log", "--timeout", "40s"]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let all = recv(&["--from", "start", "--count", "50"]);
    assert_eq!(all.lines().collect::<Vec<_>>(), texts);
    let json = recv(&["--from", "start", "--count", "20", "--json"]);
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(last["message"], "message 19");
    let behind = format!("{}/{}", last["view"], last["sequence"].as_u64().unwrap() + 1);
    assert_eq!(recv(&["--from", &behind, "--count", "30"]).lines().collect::<Vec<_>>(), texts[20..]);
    let wrong = nodes.squall(0, "recv").args(["log", "--from", "here"]).output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("VIEW/SEQUENCE"));
}
