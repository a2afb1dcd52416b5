//! `squall node`: one configuration file for all members, each with an address and a rank of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

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
