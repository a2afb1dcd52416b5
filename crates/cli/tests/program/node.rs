//! `squall node`: one configuration file for all members, each with an address and a rank of its own.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(40);

/// A configuration file, and the nodes that run with it; both end with it.
struct Nodes {
    file: PathBuf,
    nodes: Vec<Child>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}

fn node(file: &Path, more: &[&str]) -> Command {
    let mut node = Command::new(env!("CARGO_BIN_EXE_squall"));
    node.arg("node").arg("--config").arg(file).args(more);
    node
}

/// The first line that a node prints.
fn first_line(node: &mut Child) -> String {
    let output = BufReader::new(node.stdout.take().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
    receive.recv_timeout(SOON).expect("it prints its first view soon")
}

#[test]
fn a_file_needs_no_address_if_the_command_has_one() {
    let name = format!("squall-node-{}", std::process::id());
    let addresses = [0, 1].map(|rank| format!("unix:@{name}-{rank}"));
    let file = std::env::temp_dir().join(format!("{name}.toml"));
    let mut nodes = Nodes { file: file.clone(), nodes: Vec::new() };
    let text = format!(
        "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\ncontacts = [\"{}\"]\nmembers = 2\nrank = 0\n[subgroups.log]\n",
        addresses[0]
    );
    std::fs::write(&file, text).unwrap();
    let stderr = node(&file, &["--rank", "0"]).output().unwrap();
    let text = String::from_utf8_lossy(&stderr.stderr);
    assert!(stderr.status.code() == Some(1) && text.contains("`listen` is missing"), "{text}");

    // The one at the first contact may have any rank.
    for (rank, address) in addresses.iter().rev().enumerate() {
        let mut node = node(&file, &["--listen", address, "--rank", &rank.to_string()]);
        nodes.nodes.push(node.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    }
    for (rank, node) in nodes.nodes.iter_mut().enumerate() {
        assert_eq!(first_line(node), format!("view 0: members 0, 1; this is member {rank}"));
    }
}

/// A service manager that has started a node gets to know when it has joined, in which view, and that it leaves.
#[test]
fn a_service_manager_is_notified() {
    let name = format!("squall-notify-{}", std::process::id());
    let (file, socket) =
        (std::env::temp_dir().join(format!("{name}.toml")), std::env::temp_dir().join(&name));
    let mut nodes = Nodes { file: file.clone(), nodes: Vec::new() };
    let text = format!(
        "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\ncontacts = [\"unix:@{name}\"]\nmembers = 1\n[subgroups.log]\n"
    );
    std::fs::write(&file, text).unwrap();
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let mut node = node(&file, &["--listen", &format!("unix:@{name}")]);
    let node =
        node.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let process = node.id();
    nodes.nodes.push(node);
    let next = || {
        let mut bytes = [0; 200];
        let length = manager.recv(&mut bytes).expect("it reports soon");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let until = |line: &str| {
        let mut before = Vec::new();
        loop {
            let lines = next();
            if lines.lines().any(|one| one == line) {
                return before;
            }
            before.push(lines);
        }
    };
    let before = until("READY=1");
    assert!(before.iter().all(|lines| lines.starts_with("STATUS=")), "{before:?}");
    until("STATUS=view 0: members 0; this is member 0");
    let kill = Command::new("kill").args(["-TERM", &process.to_string()]).status().unwrap();
    assert!(kill.success());
    until("STOPPING=1");
    assert!(nodes.nodes[0].wait().unwrap().success());
    std::fs::remove_file(&socket).unwrap();
}

/// A node that gets SIGUSR1 writes a trace, in which messages are divided into their stages, and continues.
#[test]
fn a_signal_writes_a_trace() {
    let name = format!("squall-usr1-{}", std::process::id());
    let [file, trace] = ["toml", "json"].map(|ending| std::env::temp_dir().join(format!("{name}.{ending}")));
    let mut nodes = Nodes { file: file.clone(), nodes: Vec::new() };
    let text = format!(
        "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@{name}\"\nmembers = 1\n[subgroups.log]\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut node = node(&file, &["--trace", trace.to_str().expect("it is text")]);
    nodes.nodes.push(node.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    first_line(&mut nodes.nodes[0]);
    let process = nodes.nodes[0].id().to_string();
    let deadline = Instant::now() + SOON;
    let slices = loop {
        let mut send = Command::new(env!("CARGO_BIN_EXE_squall"));
        assert!(send.args(["send", "log", "hello", "-c"]).arg(&file).status().unwrap().success());
        assert!(Command::new("kill").args(["-USR1", &process]).status().unwrap().success());
        let events: Vec<serde_json::Value> = std::fs::read_to_string(&trace)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let names: Vec<String> = events.iter().map(|event| event["name"].to_string()).collect();
        if names.iter().any(|name| name == "\"delivery\"") {
            break names;
        }
        // A message is measured, and copied to the record, a little after it was delivered.
        assert!(Instant::now() < deadline, "no message in {names:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    for stage in ["message", "in the window", "to all members", "view begins"] {
        assert!(slices.contains(&format!("\"{stage}\"")), "{stage}: {slices:?}");
    }
    assert_eq!(nodes.nodes[0].try_wait().unwrap(), None, "it continues");
    std::fs::remove_file(&trace).unwrap();
}
