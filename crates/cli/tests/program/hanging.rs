//! A member that nothing reads: its log, its views, its trace and its metrics. It takes part in its group as ever, and ends when it is
//! asked to.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

const SOON: Duration = Duration::from_secs(40);
const MEMBERS: usize = 4;
/// The member that is killed.
const VICTIM: usize = 2;
/// The member whose views are read.
const WITNESS: usize = 3;

/// A member, and both ends of the pipes that it writes to.
struct PipedNode {
    child: Child,
    output: Option<BufReader<PipeReader>>,
    /// Not read.
    _log: PipeReader,
    writers: [PipeWriter; 2],
}

impl PipedNode {
    fn start(file: &Path, metrics: u16) -> Self {
        let ((output, to_output), (log, to_log)) = (pipe().unwrap(), pipe().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["node", "-v", "--metrics", &format!("127.0.0.1:{metrics}"), "--config"])
            .arg(file)
            .stdout(Stdio::from(to_output.try_clone().unwrap()))
            .stderr(Stdio::from(to_log.try_clone().unwrap()))
            .spawn()
            .unwrap();
        Self { child, output: Some(BufReader::new(output)), _log: log, writers: [to_output, to_log] }
    }

    fn next_line(&mut self) -> String {
        let mut output = self.output.take().expect("no line is late");
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            // The test may have failed meanwhile.
            let _ = send.send((line, output));
        });
        let (line, output) = receive.recv_timeout(SOON).expect("a line in time");
        self.output = Some(output);
        line.trim_end().into()
    }

    /// Fills the pipes, and keeps them full, until nothing could read them any more.
    fn fill_pipes(&self) {
        for writer in &self.writers {
            let mut writer = writer.try_clone().unwrap();
            let (full, is_full) = mpsc::channel();
            thread::spawn(move || while writer.write_all(b"x").is_ok() && full.send(()).is_ok() {});
            // A pipe that takes nothing in this time is full.
            while is_full.recv_timeout(Duration::from_millis(200)).is_ok() {}
        }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

/// Ends all members with the test.
struct PipedNodes {
    folder: PathBuf,
    nodes: Vec<PipedNode>,
}

impl Drop for PipedNodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns free ports.
fn ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| reserve_port().unwrap()).collect()
}

/// Starts the members, which all report their first view.
fn start(metrics: &[u16]) -> PipedNodes {
    let name = format!("squall-hanging-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    std::fs::create_dir_all(&folder).unwrap();
    let addresses: Vec<String> = ports(MEMBERS).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut all = PipedNodes { folder, nodes: Vec::new() };
    for (rank, listen) in addresses.iter().enumerate() {
        let file = all.folder.join(format!("{rank}.toml"));
        let text = format!(
            "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\ntransport = \"tcp\"\nlisten = \"{listen}\"\n\
             contacts = {addresses:?}\nmembers = {MEMBERS}\nrank = {rank}\nflight_record = \"{rank}.json\"\n[subgroups.log]\n"
        );
        std::fs::write(&file, text).unwrap();
        all.nodes.push(PipedNode::start(&file, metrics[rank]));
    }
    for (rank, node) in all.nodes.iter_mut().enumerate() {
        assert_eq!(node.next_line(), format!("view 0: members 0, 1, 2, 3; this is member {rank}"));
    }
    all
}

/// Pipes without readers take the place of the files of a member's traces.
fn block_traces(folder: &Path, rank: usize) {
    for file in [format!("{rank}.json"), format!("{rank}.json.part")] {
        let file = folder.join(file);
        let _ = std::fs::remove_file(&file);
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    }
}

/// Two of four members have nothing but readers that hang when another member is killed: the next view has both of them, and
/// messages are delivered in it. Asked to end, they end.
#[test]
fn members_that_nothing_reads_take_part() {
    let metrics = ports(MEMBERS);
    let mut all = start(&metrics);
    let mut clients = Vec::new();
    for rank in [0, 1] {
        all.nodes[rank].fill_pipes();
        block_traces(&all.folder, rank);
        all.nodes[rank].signal("-USR1");
        let mut client = TcpStream::connect(("127.0.0.1", metrics[rank])).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        clients.push(client);
    }

    let killed = Instant::now();
    all.nodes[VICTIM].child.kill().unwrap();
    assert_eq!(all.nodes[WITNESS].next_line(), format!("view 1: members 0, 1, 3; this is member {WITNESS}"));
    // A member that hung would be in no view before it is suspected, after 5 s.
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    let file = all.folder.join(format!("{WITNESS}.toml"));
    let mut send = Command::new(env!("CARGO_BIN_EXE_squall"));
    let sent = send.arg("send").arg("-c").arg(file).args(["log", "one", "two", "--timeout", "20s"]).output();
    let sent = sent.unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));

    for rank in [0, 1] {
        all.nodes[rank].signal("-TERM");
        let asked = Instant::now();
        let status = loop {
            if let Some(status) = all.nodes[rank].child.try_wait().unwrap() {
                break status;
            }
            assert!(asked.elapsed() < SOON, "member {rank} has not ended");
            thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(0), "member {rank}");
    }
}
