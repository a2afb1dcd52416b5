//! `squall send` and `squall recv` with real nodes: what was taken is delivered, and nobody waits for a reader.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(40);

/// Two nodes of a group over shared memory, ended with it.
struct Nodes {
    folder: PathBuf,
    nodes: Vec<Child>,
}

impl Nodes {
    fn start(test: &str) -> Self {
        let name = format!("squall-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut nodes = Self { folder, nodes: Vec::new() };
        for rank in 0..2 {
            let text = format!(
                "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@{name}-{rank}\"\n\
                 contacts = [\"unix:@{name}-0\", \"unix:@{name}-1\"]\nmembers = 2\n\
                 [subgroups.log]\nmessage_max = 100\nwindow = 16\n"
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

    /// A reader that is in the group: `status` shows three members.
    fn recv(&self, more: &[&str]) -> Child {
        let mut recv = self.squall(0, "recv");
        recv.arg("log").args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = recv.spawn().unwrap();
        let deadline = Instant::now() + SOON;
        while !self.has_three() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        child
    }

    /// Whether there are three members, and all is well.
    fn has_three(&self) -> bool {
        let status = self.squall(0, "status").arg("--json").output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        let members = report["members"][0]["status"]["members"].as_array().map_or(0, Vec::len);
        members == 3 && report["well"] == true
    }

    /// Gives `input` to `squall send`; its exit status and what it says.
    fn send(&self, input: &[u8]) -> (Option<i32>, String) {
        let mut send = self.squall(1, "send");
        send.arg("log").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = send.spawn().unwrap();
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

/// A line that cannot be sent takes nothing with it: what came before is delivered, and the error names the line.
#[test]
fn a_bad_line_loses_none_before_it() {
    let nodes = Nodes::start("bad-line");
    let recv = nodes.recv(&["--count", "41", "--json"]);
    let mut input: Vec<u8> = (1..=20).flat_map(|number| format!("text {number}\n").into_bytes()).collect();
    input.extend(b"bad \xff\nlost\n");
    let (code, said) = nodes.send(&input);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("message 21 was not sent, nor any after it; the 20 before it were"), "{said}");
    let mut input: Vec<u8> = (21..=40).flat_map(|number| format!("text {number}\n").into_bytes()).collect();
    input.extend([b'x'; 101]);
    input.extend(b"\nlost\n");
    let (code, said) = nodes.send(&input);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("message 21 was not sent") && said.contains("101 bytes"), "{said}");
    assert_eq!(nodes.send(b"last\n"), (Some(0), String::new()));

    let output = recv.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    let expected: Vec<String> =
        (1..=40).map(|number| format!("text {number}")).chain(["last".into()]).collect();
    assert_eq!(texts, expected);
    // The senders were three processes, each of them a node of its own.
    let of = |line: usize| (lines[line]["rank"].as_u64(), lines[line]["node"].as_u64());
    assert!(of(0) == of(19) && of(20) == of(39) && of(0).1 != of(20).1 && of(20).1 != of(40).1);
    assert!(of(0).0 >= Some(2) && of(0).1.is_some(), "{}", lines[0]);
}

/// As in `squall recv log | less`: the group goes on, and the reader is out of it, and says why.
#[test]
fn nobody_waits_for_a_reader() {
    let nodes = Nodes::start("reader");
    let mut recv = nodes.recv(&["--queue", "10kB"]);
    // Far more than the pipe and the queue hold.
    let input: Vec<u8> = (0..4000).flat_map(|number| format!("{number:0>90}\n").into_bytes()).collect();
    assert_eq!(nodes.send(&input), (Some(0), String::new()));
    let deadline = Instant::now() + SOON;
    while recv.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the reader still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (mut said, mut printed) = (String::new(), 0);
    recv.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("nobody reads the output") && said.contains("--queue"), "{said}");
    for (number, line) in BufReader::new(recv.stdout.take().unwrap()).lines().enumerate() {
        let line = line.unwrap();
        assert!(line.len() < 90 || line.trim_start_matches('0').parse().unwrap_or(0) == number, "{line}");
        printed += 1;
    }
    assert!(printed > 100, "what fits into the pipe is there: {printed}");
    assert_eq!(recv.wait().unwrap().code(), Some(1));
}
