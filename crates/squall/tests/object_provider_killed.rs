//! A state provider that is killed with SIGKILL in the middle of a state: the joiner gets the whole state from
//! another member (Derecho §3.3).

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{PartitionSafety, SubgroupConfig};
use squall::object::{Client, ObjectOptions, Replicated, Snapshot, Transfer};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};

/// The variable that makes this program a member; its value has the name of the group and the member's rank.
const ROLE: &str = "SQUALL_PROVIDER_KILLED";
/// What a provider prints when half of the state is written.
const HALF: &str = "half is written";
const READY: &str = "ready";
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 64 << 10;
const BYTES: u64 = (BLOCKS * BLOCK_BYTES) as u64;
const UPDATES: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(60);
/// Groups whose names begin with this suspect a member after `SUSPICION_AFTER`.
const HALTED: &str = "provider-halted";
const SUSPICION_AFTER: Duration = Duration::from_secs(1);

/// Whether a provider may write the second half.
static MAY_CONTINUE: AtomicBool = AtomicBool::new(false);

/// Blocks, each filled with one byte.
struct Blocks(Vec<u8>);

impl Replicated for Blocks {
    /// A block, and the byte with which it is filled.
    type Update = (u32, u8);
    type Query = ();
    type Reply = Vec<u8>;

    fn apply(&mut self, (block, byte): (u32, u8)) -> Vec<u8> {
        self.0[block as usize % BLOCKS] = byte;
        Vec::new()
    }

    fn query(&self, (): ()) -> Vec<u8> {
        self.0.clone()
    }

    fn snapshot(&self) -> Snapshot {
        let blocks = self.0.clone();
        let write = move |sink: &mut dyn Write| {
            for (number, byte) in blocks.into_iter().enumerate() {
                if number == BLOCKS / 2 {
                    println!("{HALF}");
                    while !MAY_CONTINUE.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                sink.write_all(&[byte; BLOCK_BYTES])?;
            }
            Ok(())
        };
        Snapshot::new(write).with_bytes(BYTES)
    }

    fn restore(source: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let blocks = bytes.chunks(BLOCK_BYTES).map(|block| {
            let is_whole = block.len() == BLOCK_BYTES && block.iter().all(|byte| *byte == block[0]);
            if is_whole { Ok(block[0]) } else { Err(io::ErrorKind::InvalidData.into()) }
        });
        blocks.collect::<io::Result<_>>().map(Self)
    }
}

fn config(name: &str, rank: usize) -> Config {
    let config = Config::local(name, 2).subgroup("blocks", SubgroupConfig::default());
    let suspicion_after = Some(SUSPICION_AFTER).filter(|_| name.starts_with(HALTED));
    let suspicion_after = suspicion_after.or(config.suspicion_after);
    Config { partition_safety: PartitionSafety::Off, suspicion_after, ..config.for_rank(rank) }
}

fn first() -> Blocks {
    Blocks(vec![1; BLOCKS])
}

/// A member in a process of its own; dropping it kills it.
struct Member {
    child: Child,
    input: ChildStdin,
}

impl Member {
    /// Starts it; `reports` gets its rank with each line that it prints.
    fn start(name: &str, rank: usize, reports: &Sender<(usize, String)>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_provider", "--nocapture"])
            .env(ROLE, format!("{name} {rank}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        let (input, reports) = (child.stdin.take().unwrap(), reports.clone());
        // The thread ends with the process.
        thread::spawn(move || {
            lines.lines().map_while(Result::ok).for_each(|line| drop(reports.send((rank, line))));
        });
        Self { child, input }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may be killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: what a provider does until it is killed.
#[test]
fn the_provider() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, rank) = role.split_once(' ').unwrap();
    let mut group = Group::join(config(name, rank.parse().unwrap())).expect("the member joins");
    let blocks = group.object("blocks", first).unwrap();
    blocks.wait_ready(PATIENCE).expect("it begins with the state");
    println!("{READY}");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a line to continue, or the process is killed");
    MAY_CONTINUE.store(true, Ordering::Relaxed);
    while group.failure().is_none() {
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{:?}", group.failure());
}

/// Starts two members that have the state; returns them and the lines that they print.
fn start_two(name: &str) -> ([Member; 2], Receiver<(usize, String)>) {
    let (sender, reports) = channel();
    let members = [0, 1].map(|rank| Member::start(name, rank, &sender));
    for _ in &members {
        wait_for(READY, &reports);
    }
    (members, reports)
}

/// Returns the rank of the next member that prints `what`.
fn wait_for(what: &str, reports: &Receiver<(usize, String)>) -> usize {
    loop {
        let (rank, line) = reports.recv_timeout(PATIENCE).expect("a member prints a line");
        if line.ends_with(what) {
            return rank;
        }
    }
}

#[test]
fn another_sends_the_whole_state() {
    let name = format!("provider-killed-{}", std::process::id());
    let (mut members, reports) = start_two(&name);
    let reported = Arc::new(Mutex::new(Vec::<Transfer>::new()));
    let joiner = thread::spawn({
        let (name, reported) = (name.clone(), Arc::clone(&reported));
        move || {
            let on_transfer = Box::new(move |transfer| reported.lock().unwrap().push(transfer));
            let options = ObjectOptions { on_transfer, ..ObjectOptions::default() };
            let mut group = Group::join(config(&name, 2)).expect("the member joins");
            let blocks = group.object_with("blocks", first, options).unwrap();
            blocks.wait_ready(PATIENCE).expect("it gets the state");
            (group, blocks)
        }
    });
    let provider = wait_for(HALF, &reports);
    let client = Client::<Blocks>::connect_with(&config(&name, 0), "blocks", PATIENCE).unwrap();
    let write = |updates: std::ops::Range<u32>| {
        for update in updates {
            client.update(b"", &(update, update as u8)).unwrap().wait().expect("some member takes it");
        }
    };
    // These updates are in the state of the other provider, and the joiner keeps them.
    write(0..UPDATES / 2);
    members[provider].kill();
    writeln!(members[1 - provider].input, "continue").unwrap();
    write(UPDATES / 2..UPDATES);
    let (group, blocks) = joiner.join().unwrap();
    let mut expected = vec![1; BLOCKS];
    (0..UPDATES).for_each(|update| expected[update as usize % BLOCKS] = update as u8);
    let own = group.view().members.last().expect("it is in the view").node;
    // An update of its own comes after all others.
    blocks.update(b"", &(0, 200)).unwrap().wait().unwrap();
    expected[0] = 200;
    assert_eq!(blocks.query_at(own, 0, &()).unwrap().wait().unwrap(), expected);
    let reported = reported.lock().unwrap();
    let [begun, .., done] = reported[..] else { panic!("two transfers: {reported:?}") };
    assert!(done.is_done && done.bytes == BYTES && done.from != begun.from, "{reported:?}");
    assert!(!reported.iter().any(|transfer| transfer.from == begun.from && transfer.is_done), "{reported:?}");
}

/// A joiner does not wait for a state provider that is halted in the middle of a state for much longer than it takes to
/// suspect it.
#[test]
fn a_halted_provider_is_replaced_soon() {
    let name = format!("{HALTED}-{}", std::process::id());
    let (mut members, reports) = start_two(&name);
    let mut group = Group::join(config(&name, 2)).expect("the member joins");
    let blocks = group.object("blocks", first).unwrap();
    let provider = wait_for(HALF, &reports);
    let pid = members[provider].child.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let halted = Instant::now();
    writeln!(members[1 - provider].input, "continue").unwrap();
    blocks.wait_ready(PATIENCE).expect("it gets the state");
    let took = halted.elapsed();
    assert!(took < 5 * SUSPICION_AFTER, "{took:?}");
}
