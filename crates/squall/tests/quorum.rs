//! A follower of a shard that is stopped, and then killed, with a majority for quorum and with all (RamCast §2.2).

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use squall::config::{Address, GenuineConfig, QuorumRule, Transport};
use squall::genuine::{GenuinePosition, MulticastSender};
use squall::{Config, Group, MessageOutcome};
use squall_transports::reserve_port;

/// What a member has delivered, in order.
type Log = Arc<Mutex<Vec<(GenuinePosition, Vec<u8>)>>>;

/// The variable that makes this program the member that is stopped; its value has what `member_config` takes.
const ROLE: &str = "SQUALL_QUORUM_STOPPED";
const STOPPED: usize = 2;
const WINDOW: usize = 8;
/// Members are suspected later than any test lasts, unless they die.
const SUSPICION_AFTER: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(60);

fn member_config(name: &str, rank: usize, quorum: QuorumRule, ports: &[u16]) -> Config {
    let mut config = Config::local(name, 5).for_rank(rank);
    if !ports.is_empty() {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        config.transport = Transport::Tcp;
        config.listen = address(rank);
        config.contacts = (0..5).map(address).collect();
    }
    config.suspicion_after = Some(SUSPICION_AFTER);
    let shards = GenuineConfig::default().shard("a", &[0, 1, STOPPED]).shard("b", &[3, 4]);
    config.genuine = Some(GenuineConfig { window: WINDOW, message_max: 64, quorum, ..shards });
    config
}

struct Member {
    rank: usize,
    _group: Group,
    sender: MulticastSender,
    log: Log,
}

fn join(config: Config) -> Member {
    let log = Log::default();
    let theirs = Arc::clone(&log);
    let builder = Group::builder(config)
        .on_multicast(move |message| theirs.lock().unwrap().push((message.position, message.bytes.to_vec())));
    let mut group = builder.join().expect("the member joins");
    let (rank, sender) = (group.rank(), group.multicast_sender().unwrap());
    Member { rank, _group: group, sender, log }
}

/// The member that is stopped; it is killed in any case.
struct Stopped(Child);

impl Stopped {
    fn start(name: &str, quorum: QuorumRule, ports: &[u16]) -> Self {
        let list: Vec<String> = ports.iter().map(u16::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_stopped_member", "--nocapture"])
            .env(ROLE, format!("{name} {} {}", quorum == QuorumRule::Majority, list.join(",")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Stops it; all its threads are stopped when this returns, which may be some time after the signal was sent.
    fn stop(&self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::STOP).expect("it is not yet reaped");
        let status = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("it is a child");
        assert!(status.is_some_and(|status| status.stopped()), "it is stopped");
    }

    fn continue_it(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("it is not yet reaped");
    }

    fn kill(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a test by itself: what the member does that is stopped.
#[test]
fn the_stopped_member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [name, by_majority, ports] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let quorum = if by_majority == "true" { QuorumRule::Majority } else { QuorumRule::All };
    let ports: Vec<u16> = ports.split_terminator(',').map(|port| port.parse().unwrap()).collect();
    let _member = join(member_config(name, STOPPED, quorum, &ports));
    thread::sleep(SUSPICION_AFTER);
}

/// A group of five, of which rank 2 is a process of its own; the other members, by rank.
fn begin(name: &str, quorum: QuorumRule, transport: Transport) -> (Stopped, Vec<Member>) {
    let name = format!("quorum-{name}-{transport:?}-{}", std::process::id());
    let count = if transport == Transport::Tcp { 5 } else { 0 };
    let ports: Vec<u16> = (0..count).map(|_| reserve_port().unwrap()).collect();
    let stopped = Stopped::start(&name, quorum, &ports);
    let start = |rank| {
        let config = member_config(&name, rank, quorum, &ports);
        thread::spawn(move || join(config))
    };
    let threads = [0, 1, 3, 4].map(start);
    (stopped, threads.map(|thread| thread.join().unwrap()).into())
}

/// Sends this many messages to both shards.
fn send(member: &mut Member, count: usize) {
    for _ in 0..count {
        let text = format!("{} {}", member.rank, member.sender.sent());
        member.sender.send(&["a", "b"], text.as_bytes()).expect("the window has space");
    }
}

fn delivered(members: &[Member]) -> Vec<usize> {
    members.iter().map(|member| member.log.lock().unwrap().len()).collect()
}

fn await_delivery(members: &[Member], count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while delivered(members).iter().any(|delivered| *delivered < count) {
        assert!(Instant::now() < deadline, "{:?} of {count} are delivered", delivered(members));
        thread::sleep(Duration::from_millis(1));
    }
    let logs: Vec<_> = members.iter().map(|member| member.log.lock().unwrap().clone()).collect();
    assert!(logs.iter().all(|log| *log == logs[0]), "in one order");
}

fn sender_knows(member: &mut Member) {
    let last = member.sender.sent() - 1;
    assert_eq!(member.sender.wait_for_outcome(last), MessageOutcome::Delivered);
}

/// \[G6\] \[G11\] The others deliver as many messages as the windows have space for. When the follower continues, it delivers them, too, and
/// senders have space again. When it is killed, the others continue in a view without it.
fn a_stopped_follower_delays_nothing(transport: Transport) {
    let (mut follower, mut members) = begin("majority", QuorumRule::Majority, transport);
    members.iter_mut().for_each(|member| send(member, 1));
    await_delivery(&members, 4);
    members.iter_mut().for_each(sender_knows);

    follower.stop();
    members.iter_mut().for_each(|member| send(member, WINDOW));
    await_delivery(&members, 4 + 4 * WINDOW);
    let full = members[0].sender.send(&["a"], b"more");
    assert!(full.is_err(), "[G8] no place is free before the follower has delivered");

    follower.continue_it();
    members.iter_mut().for_each(sender_knows);

    follower.stop();
    members.iter_mut().for_each(|member| send(member, WINDOW / 2));
    await_delivery(&members, 4 + 6 * WINDOW);
    follower.kill();
    members.iter_mut().for_each(sender_knows);
    members.iter_mut().for_each(|member| send(member, WINDOW));
    await_delivery(&members, 4 + 10 * WINDOW);
    members.iter_mut().for_each(sender_knows);
    let views: Vec<u64> = members[0].log.lock().unwrap().iter().map(|(position, _)| position.view).collect();
    assert_eq!((views[4 + 6 * WINDOW - 1], views.last()), (0, Some(&1)), "one view has ended");
}

#[test]
fn a_stopped_follower_delays_nothing_over_shm() {
    a_stopped_follower_delays_nothing(Transport::Shm);
}

#[test]
fn a_stopped_follower_delays_nothing_over_tcp() {
    a_stopped_follower_delays_nothing(Transport::Tcp);
}

/// The other rule, beside which the first one is to be seen: nothing is delivered before the follower continues.
#[test]
fn with_all_for_quorum_a_stopped_follower_is_waited_for() {
    let (follower, mut members) = begin("all", QuorumRule::All, Transport::Shm);
    members.iter_mut().for_each(|member| send(member, 1));
    await_delivery(&members, 4);
    follower.stop();
    members.iter_mut().for_each(|member| send(member, 2));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(delivered(&members), [4; 4]);
    follower.continue_it();
    await_delivery(&members, 12);
}
