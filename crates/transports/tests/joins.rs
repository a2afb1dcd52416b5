//! Real processes: three form a group, others join it, over shared memory and over TCP. Some are killed on
//! the way.

#[path = "peers/backend.rs"]
mod backend;
#[path = "joins/join.rs"]
mod join;
#[path = "joins/member.rs"]
mod member;

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_transports::bootstrap::{self, Address};
use squall_transports::reserve_port;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;

use backend::PATIENCE;
use member::DieAt;

/// The role of a process that the tests below start; not a test of its own.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn process() {
    let argument = |name: &str| std::env::var(name).expect("started by another test");
    let listen: Address = argument(LISTEN).parse().expect("an address");
    let contacts: Vec<Address> =
        argument(CONTACTS).split(' ').map(|text| text.parse().expect("an address")).collect();
    let role = argument(ROLE);
    let die_at = match role.as_str() {
        "first" | "first holding" => {
            let holds = role == "first holding";
            return match listen.is_unix() {
                true => member::first::<ShmFabric>(&listen, contacts, holds),
                false => member::first::<TcpFabric>(&listen, contacts, holds),
            };
        }
        "dies admitted" => DieAt::Admitted,
        "dies joined" => DieAt::Joined,
        "dies attaching" => DieAt::Attaching(0),
        "dies later" => DieAt::Attaching(20),
        _ => DieAt::Never,
    };
    match listen.is_unix() {
        true => member::joiner::<ShmFabric>(&listen, contacts, die_at),
        false => member::joiner::<TcpFabric>(&listen, contacts, die_at),
    }
}

const LISTEN: &str = "SQUALL_JOINS_LISTEN";
const CONTACTS: &str = "SQUALL_JOINS_CONTACTS";
const ROLE: &str = "SQUALL_JOINS_ROLE";

/// A process and its output; killed when dropped.
struct Process {
    child: Child,
    address: Address,
    lines: Receiver<String>,
}

impl Process {
    fn start(role: &str, listen: &Address, contacts: &[&Address]) -> Self {
        let contacts: Vec<_> = contacts.iter().map(ToString::to_string).collect();
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["process", "--exact", "--ignored", "--nocapture"])
            .env(LISTEN, listen.to_string())
            .env(CONTACTS, contacts.join(" "))
            .env(ROLE, role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Self { child, address: listen.clone(), lines }
    }

    /// Waits until it prints this line.
    fn expect(&self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        while heard.last().is_none_or(|line| line != wanted) {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            heard.push(line.unwrap_or_else(|_| panic!("waited for `{wanted}`, got {heard:?}")));
        }
    }

    /// Waits until it prints its number.
    fn number(&self) -> u32 {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("it prints its number");
            if let Some(number) = line.strip_prefix("node ") {
                return number.parse().expect("a number");
            }
        }
    }

    /// Waits for its end.
    fn wait(&mut self) {
        self.child.wait().expect("our child");
    }

    fn kill(mut self) {
        self.child.kill().expect("our child");
    }

    /// Returns the processor time that it has used, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it is running");
        let fields: Vec<_> = stat.rsplit(") ").next().expect("a name").split(' ').collect();
        [11, 12].iter().map(|n| fields[*n].parse::<u64>().expect("a number")).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address that nothing else uses.
fn address(tcp: bool) -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if tcp {
        return Address::Tcp { host: "127.0.0.1".into(), port: reserve_port().expect("there is a port") };
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Abstract(format!("squall-joins-{}-{count}", std::process::id()))
}

/// Starts three members and waits until they see each other; returns them in the order of their numbers.
fn group(tcp: bool, role: &str) -> Vec<Process> {
    let addresses = [(); 3].map(|()| address(tcp));
    let contacts: Vec<_> = addresses.iter().collect();
    let members: Vec<_> = addresses.iter().map(|listen| Process::start(role, listen, &contacts)).collect();
    for (rank, (member, others)) in members.iter().zip(["1 2", "0 2", "0 1"]).enumerate() {
        member.expect(&format!("node {rank}"));
        member.expect(&format!("sees {others}"));
    }
    members
}

/// A fourth member joins through a member that does not lead, and a fifth after it; then all sleep.
fn others_join(tcp: bool) {
    let members = group(tcp, "first");
    let fourth = Process::start("joiner", &address(tcp), &[&members[2].address]);
    fourth.expect("node 3");
    fourth.expect("sees 0 1 2");
    members[0].expect("sees 1 2 3");
    members[1].expect("sees 0 2 3");
    members[2].expect("sees 0 1 3");
    let fifth = Process::start("joiner", &address(tcp), &[&address(tcp), &members[0].address]);
    fifth.expect("node 4");
    fifth.expect("sees 0 1 2 3");
    fourth.expect("sees 0 1 2 4");
    members[1].expect("sees 0 2 3 4");
    let all = || members.iter().chain([&fourth, &fifth]);
    std::thread::sleep(Duration::from_millis(200));
    let before: Vec<_> = all().map(Process::ticks).collect();
    std::thread::sleep(Duration::from_secs(1));
    for (process, before) in all().zip(before) {
        let used = process.ticks() - before;
        assert!(used <= 2, "an idle member ran for {used} ticks of 10 ms in a second");
    }
    let plan = member::plan(Vec::new());
    let status = match tcp {
        true => bootstrap::ask::<TcpStream>(&plan, &members[1].address, b""),
        false => bootstrap::ask::<UnixStream>(&plan, &members[1].address, b""),
    };
    assert_eq!(status.expect("an answer"), b"node 1 with 4 peers", "asked while it sleeps");
    fourth.kill();
    members[0].expect("sees 1 2 4");
    fifth.expect("sees 0 1 2");
}

#[test]
fn others_join_over_shared_memory() {
    others_join(false);
}

#[test]
fn others_join_over_tcp() {
    others_join(true);
}

/// However far a joiner has progressed when it dies, the members lose it, continue, and admit the next one.
fn joiners_die_midway(tcp: bool) {
    let members = group(tcp, "first");
    for role in ["dies admitted", "dies joined", "dies attaching", "dies later"] {
        let mut dying = Process::start(role, &address(tcp), &[&members[1].address]);
        dying.wait();
    }
    let next = Process::start("joiner", &address(tcp), &[&members[1].address]);
    // Attempts may fail while a member is still listed that has just died.
    let node = next.number();
    assert!(node >= 7, "node {node}, although four numbers are used");
    next.expect("sees 0 1 2");
    for (member, others) in members.iter().zip(["1 2", "0 2", "0 1"]) {
        member.expect(&format!("sees {others} {node}"));
    }
}

#[test]
fn joiners_die_midway_over_shared_memory() {
    joiners_die_midway(false);
}

#[test]
fn joiners_die_midway_over_tcp() {
    joiners_die_midway(true);
}

/// The leader is killed while it keeps a joiner waiting: the joiner turns to another contact, which leads by
/// then.
fn a_leader_dies_while_a_joiner_waits(tcp: bool) {
    let mut members = group(tcp, "first holding");
    let contacts: Vec<_> = members.iter().map(|member| member.address.clone()).collect();
    let contacts: Vec<_> = contacts.iter().collect();
    let joiner = Process::start("joiner", &address(tcp), &contacts);
    members[0].expect("asked");
    members.remove(0).kill();
    // The next leader keeps it waiting as well, and dies, too; the last one is alone.
    members[0].expect("asked");
    members.remove(0).kill();
    members[0].expect("asked");
    drop(joiner);
}

#[test]
fn a_leader_dies_while_a_joiner_waits_over_shared_memory() {
    a_leader_dies_while_a_joiner_waits(false);
}

#[test]
fn a_leader_dies_while_a_joiner_waits_over_tcp() {
    a_leader_dies_while_a_joiner_waits(true);
}

/// The same, and the next leader admits the joiner.
#[test]
fn a_joiner_is_admitted_by_the_next_leader() {
    let addresses = [(); 3].map(|()| address(false));
    let contacts: Vec<_> = addresses.iter().collect();
    let first = Process::start("first holding", &addresses[0], &contacts);
    let others = [1, 2].map(|rank| Process::start("first", &addresses[rank], &contacts));
    first.expect("sees 1 2");
    let joiner = Process::start("joiner", &address(false), &contacts);
    first.expect("asked");
    first.kill();
    joiner.expect("node 3");
    joiner.expect("sees 1 2");
    for other in &others {
        let deadline = Instant::now() + PATIENCE;
        while !other.lines.recv_timeout(PATIENCE).expect("it continues").ends_with(" 3") {
            assert!(Instant::now() < deadline, "it does not see the new member");
        }
    }
}
