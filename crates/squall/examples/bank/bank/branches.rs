//! Starts the members as processes, kills and stops some while they make transfers, and checks what the accounts say in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use squall::Config;
use squall::config::{Address, GenuineConfig, Transport};
use squall_transports::reserve_port;

/// The variable that makes a process a member: name, rank, ports, and whether it joins.
pub(crate) const ROLE: &str = "SQUALL_BANK_MEMBER";
/// The members of the shards, by rank.
const SHARDS: [(&str, &[usize]); 2] = [("east", &[0, 1]), ("west", &[2, 3])];
const MEMBERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done to the members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) transport: Transport,
    /// For how long.
    pub(crate) duration: Duration,
    /// Members are stopped for a while, too, not only killed.
    pub(crate) stops: bool,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BankReport {
    /// Transfers that a teller has reported.
    pub(crate) paid: usize,
    /// Transfers that were carried out.
    pub(crate) done: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
}

/// The configuration of a member, as `ROLE` describes it.
pub(crate) fn configuration(role: &str) -> (Config, bool) {
    let words: Vec<&str> = role.split(' ').collect();
    let (name, rank, joins) = (words[0], words[1].parse().expect("a rank"), words[2] == "join");
    let ports: Vec<u16> = words[3..].iter().map(|port| port.parse().expect("a port")).collect();
    let mut config = Config::local(name, MEMBERS).for_rank(rank);
    if !ports.is_empty() {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        config.transport = Transport::Tcp;
        config.listen = address(rank);
        config.contacts = (0..MEMBERS).map(address).collect();
    }
    let shard = |genuine: GenuineConfig, (name, ranks): (&str, &[usize])| genuine.shard(name, ranks);
    let shards = SHARDS.into_iter().fold(GenuineConfig::default(), shard);
    config.genuine = Some(GenuineConfig { object: true, ..shards });
    (config, joins)
}

/// A member's process. Dropping it kills it.
struct Branch {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Branch {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Branch {
    fn start(mut command: Command, role: &str) -> std::io::Result<Self> {
        let mut child = command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (found, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if found.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, lines })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Writes a command; it has no effect if the member has ended.
    fn command(&mut self, command: &str) {
        let _ = self.input.write_all(command.as_bytes());
    }

    /// Sends it a signal.
    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().expect("`kill` runs");
    }
}

/// What the members have printed.
#[derive(Default)]
struct BankRecord {
    paid: BTreeSet<String>,
    done: BTreeMap<String, u32>,
    faults: Vec<String>,
}

impl BankRecord {
    /// Takes a line; returns it, if it is neither of these.
    fn take(&mut self, line: String) -> Option<String> {
        if let Some(transfer) = line.strip_prefix("paid ") {
            if !self.paid.insert(transfer.into()) {
                self.faults.push(format!("reported twice: {transfer}"));
            }
        } else if let Some((count, transfer)) =
            line.strip_prefix("done ").and_then(|rest| rest.split_once(' '))
        {
            *self.done.entry(transfer.into()).or_default() += count.parse::<u32>().expect("a count");
        } else if line.starts_with("surplus ") {
            self.faults.push(line);
        } else {
            return Some(line);
        }
        None
    }

    /// Waits until a member prints `expected`; returns false if it ends.
    fn await_line(&mut self, branch: &mut Branch, expected: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "a member does not print `{expected}`");
            match branch.lines.recv_timeout(left.min(Duration::from_millis(100))) {
                Ok(line) => {
                    if self.take(line).as_deref() == Some(expected) {
                        return true;
                    }
                }
                Err(_) if branch.has_ended() => return false,
                Err(_) => {}
            }
        }
    }

    /// Waits until a member that was stopped has ended, because others took it for dead, or has made a few transfers, which need the
    /// others: the next one that is killed could be its partner, and the state of their shard be lost.
    fn await_transfers(&mut self, branch: &mut Branch) {
        let (deadline, before) = (Instant::now() + PATIENCE, self.paid.len());
        while self.paid.len() < before + 3 && !branch.has_ended() {
            assert!(Instant::now() < deadline, "a member that continues makes no transfers");
            if let Ok(line) = branch.lines.recv_timeout(Duration::from_millis(100)) {
                self.take(line);
            }
        }
    }

    fn take_all(&mut self, branch: &Branch) {
        while let Ok(line) = branch.lines.try_recv() {
            self.take(line);
        }
    }
}

/// Runs the bank; `command` makes the process that becomes a member by [`ROLE`].
///
/// # Panics
/// If the total has changed, or a reported transfer was not carried out once at both accounts.
pub(crate) fn run(disturbance: Disturbance, command: impl Fn() -> Command) -> BankReport {
    let Disturbance { transport, duration, stops } = disturbance;
    let count = if transport == Transport::Tcp { MEMBERS } else { 0 };
    let ports: String = (0..count).map(|_| format!(" {}", reserve_port().expect("a port"))).collect();
    let name = format!("bank-{transport:?}-{}", std::process::id());
    let start = |rank: usize, how: &str| {
        Branch::start(command(), &format!("{name} {rank} {how}{ports}")).expect("the program starts")
    };
    let mut branches: Vec<Branch> = (0..MEMBERS).map(|rank| start(rank, "begin")).collect();
    let (mut record, mut report) = (BankRecord::default(), BankReport::default());
    for branch in &mut branches {
        assert!(record.await_line(branch, "ready"), "a member has ended");
    }
    let end = Instant::now() + duration;
    for round in 0.. {
        thread::sleep(Duration::from_millis(700));
        // Others may have taken one for dead meanwhile: if its partner is killed too, their shard's state is lost.
        restart(&mut branches, &mut record, &start);
        branches.iter().for_each(|branch| record.take_all(branch));
        // Each rank in turn, the leaders among them.
        let rank = round * 3 % MEMBERS;
        if stops && round % 3 == 2 {
            branches[rank].signal("-STOP");
            thread::sleep(Duration::from_millis(if round % 2 == 0 { 50 } else { 1500 }));
            record.take_all(&branches[rank]);
            branches[rank].signal("-CONT");
            record.await_transfers(&mut branches[rank]);
            report.stops += 1;
        } else {
            branches[rank].signal("-KILL");
            report.kills += 1;
        }
        thread::sleep(Duration::from_millis(300));
        restart(&mut branches, &mut record, &start);
        if Instant::now() >= end {
            break;
        }
    }
    for branch in &mut branches {
        branch.command("stop\n");
        assert!(record.await_line(branch, "stopped"), "a member has ended");
    }
    branches[0].command("audit\n");
    assert!(record.await_line(&mut branches[0], "audited"), "a member has ended");
    check(&record);
    for (shard, ranks) in SHARDS {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found: Vec<String> = ranks.iter().map(|rank| part(&mut branches[*rank])).collect();
            // A replica may have answered for the last update, and the other not have applied it yet.
            if found[0].len() > 100 && found[0] == found[1] {
                break;
            }
            assert!(Instant::now() < deadline, "the replicas of shard {shard} differ: {found:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    BankReport { paid: record.paid.len(), done: record.done.len(), ..report }
}

/// Starts those again that were killed, and those that others took for dead.
fn restart(branches: &mut [Branch], record: &mut BankRecord, start: &impl Fn(usize, &str) -> Branch) {
    for (rank, branch) in branches.iter_mut().enumerate() {
        while branch.has_ended() {
            record.take_all(branch);
            *branch = start(rank, "join");
            record.await_line(branch, "ready");
        }
    }
}

/// What a member's replica has.
fn part(branch: &mut Branch) -> String {
    branch.command("part\n");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let line = branch.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let line = line.expect("a member says what its replica has");
        if let Some(part) = line.strip_prefix("part ") {
            return part.into();
        }
    }
}

fn check(record: &BankRecord) {
    assert!(
        record.faults.is_empty(),
        "the total has changed, or a transfer was reported twice: {:?}",
        record.faults
    );
    let half: Vec<_> = record.done.iter().filter(|(_, count)| **count != 2).collect();
    assert!(half.is_empty(), "not carried out once at both accounts: {half:?}");
    let lost: Vec<_> = record.paid.iter().filter(|transfer| !record.done.contains_key(*transfer)).collect();
    assert!(lost.is_empty(), "reported and not carried out: {lost:?}");
}
