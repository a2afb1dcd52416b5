//! Joins to running groups: joiners, and members that rejoin, the leader among them (Derecho §3.3).

mod rdma;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use squall::config::{Address, PartitionSafety, SubgroupConfig, Transport};
use squall::{Config, Deliver, Group, JoinError, Message, SendError};
use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::reserve_port;

/// The messages that a member has delivered, with their views.
type Log = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

struct Writer {
    view: u64,
    log: Log,
}

impl Deliver for Writer {
    fn begin_view(&mut self, view: u64, _members: &[NodeId]) {
        self.view = view;
    }

    fn deliver(&mut self, message: Message<'_>) {
        self.log.lock().unwrap().push((self.view, message.bytes.to_vec()));
    }
}

/// A member that sends numbered messages until it is asked to leave.
struct Running {
    log: Log,
    leave: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Running {
    /// Joins the group, sends, and leaves it when asked to. `leave` returns its first view.
    fn start(config: Config) -> Self {
        let log = Log::default();
        let leave = Arc::new(AtomicBool::new(false));
        let (theirs, reported) = (Arc::clone(&log), Arc::clone(&leave));
        let thread = thread::spawn(move || {
            let writer = Writer { view: 0, log: theirs };
            let mut group =
                Group::builder(config).on_deliver("log", writer).join().expect("the member joins");
            let first = group.view().id;
            let rank = group.rank();
            let mut sender = group.subgroup("log").unwrap().sender().unwrap();
            let mut number = 0u64;
            while !reported.load(Ordering::Relaxed) {
                let text = format!("{rank}: {number}");
                match sender.send(text.len(), |bytes| bytes.copy_from_slice(text.as_bytes())) {
                    Ok(()) => number += 1,
                    Err(error) if error.is_passing() => thread::sleep(Duration::from_micros(200)),
                    Err(SendError::Group(error)) => panic!("member {rank}: {error}"),
                    Err(error) => panic!("{error}"),
                }
                if number.is_multiple_of(16) {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            first
        });
        Self { log, leave, thread }
    }

    fn leave(self) -> (u64, Vec<(u64, Vec<u8>)>) {
        self.leave.store(true, Ordering::Relaxed);
        let first = self.thread.join().unwrap();
        (first, std::mem::take(&mut self.log.lock().unwrap()))
    }

    /// Waits until a new message of each of these ranks has been delivered here.
    fn await_from(&self, ranks: &[usize]) {
        let from = self.log.lock().unwrap().len();
        let deadline = Instant::now() + Duration::from_secs(30);
        for rank in ranks {
            let prefix = format!("{rank}: ");
            while !self.log.lock().unwrap()[from..]
                .iter()
                .any(|(_, text)| text.starts_with(prefix.as_bytes()))
            {
                assert!(!self.thread.is_finished(), "the member has gone");
                assert!(Instant::now() < deadline, "nothing of {rank} since {from}");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Asserts that two members have delivered the same in all views that both were in until their ends.
fn agree(one: &(u64, Vec<(u64, Vec<u8>)>), other: &(u64, Vec<(u64, Vec<u8>)>)) {
    let last = |log: &[(u64, Vec<u8>)]| log.last().map_or(0, |(view, _)| *view);
    let (from, to) = (one.0.max(other.0), last(&one.1).min(last(&other.1)));
    let of = |log: &[(u64, Vec<u8>)]| -> Vec<(u64, Vec<u8>)> {
        log.iter().filter(|(view, _)| (from..to).contains(view)).cloned().collect()
    };
    assert!(of(&one.1) == of(&other.1), "logs of views {from}..{to} differ");
}

fn shm(test: &str, members: usize) -> impl Fn(usize) -> Config {
    let base = Config::local(&format!("{test}-{}", std::process::id()), members);
    move |rank| finish(base.clone().for_rank(rank))
}

fn tcp(test: &str, members: usize) -> impl Fn(usize) -> Config {
    networked(test, members, Transport::Tcp)
}

/// Returns the configuration over the devices of the virtual machine; `None` elsewhere.
fn verbs(test: &str, members: usize) -> Option<impl Fn(usize) -> Config> {
    let config = networked(test, members, Transport::Verbs);
    rdma::is_wanted().then_some(move |rank| Config { verbs: rdma::settings(rank), ..config(rank) })
}

/// Each pair uses the best transport, which is shared memory here.
fn auto(test: &str, members: usize) -> impl Fn(usize) -> Config {
    networked(test, members, Transport::Auto)
}

fn networked(test: &str, members: usize, transport: Transport) -> impl Fn(usize) -> Config {
    let ports = [(); 8].map(|()| reserve_port().unwrap());
    let base = Config::local(&format!("{test}-{}", std::process::id()), members);
    move |rank| {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        let mut config = base.clone().for_rank(rank);
        config.transport = transport;
        config.listen = address(rank);
        config.contacts = (0..members).map(address).collect();
        finish(config)
    }
}

fn finish(mut config: Config) -> Config {
    config.partition_safety = PartitionSafety::Off;
    config.timeout = Duration::from_secs(30);
    config.subgroup("log", SubgroupConfig { message_max: 100, window: 64, ..SubgroupConfig::default() })
}

fn a_joiner_receives_and_sends(config: &impl Fn(usize) -> Config) {
    let first: Vec<_> = (0..3).map(|rank| Running::start(config(rank))).collect();
    first[0].await_from(&[0, 1, 2]);
    let joiner = Running::start(Config { rank: None, ..config(3) });
    joiner.await_from(&[0, 1, 2, 3]);
    first.iter().for_each(|member| member.await_from(&[3]));
    let logs: Vec<_> = first.into_iter().chain([joiner]).map(Running::leave).collect();
    assert_eq!(logs[3].0, 1, "one view for the joiner");
    logs.iter().for_each(|log| agree(&logs[0], log));
    logs.iter().for_each(|log| agree(&logs[3], log));
}

#[test]
fn a_joiner_receives_and_sends_on_shared_memory() {
    a_joiner_receives_and_sends(&shm("joiner", 3));
}

#[test]
fn a_joiner_receives_and_sends_on_tcp() {
    a_joiner_receives_and_sends(&tcp("joiner", 3));
}

#[test]
fn a_joiner_receives_and_sends_by_rdma() {
    if let Some(config) = verbs("joiner-verbs", 3) {
        a_joiner_receives_and_sends(&config);
    }
}

#[test]
fn a_joiner_receives_and_sends_by_the_best_transport() {
    a_joiner_receives_and_sends(&auto("joiner-auto", 3));
}

/// The first member is alone at first, so there is no other member by which it could choose its transports.
#[test]
fn a_group_of_one_is_joined_by_the_best_transport() {
    let config = auto("one", 1);
    let mut members = vec![Running::start(config(0))];
    members[0].await_from(&[0]);
    for place in 1..3 {
        members.push(Running::start(Config { rank: None, ..config(place) }));
        members.iter().for_each(|member| member.await_from(&(0..=place).collect::<Vec<_>>()));
    }
    let logs: Vec<_> = members.into_iter().map(Running::leave).collect();
    for one in &logs {
        logs.iter().for_each(|other| agree(one, other));
    }
}

/// Each member leaves and rejoins under its rank, the leader and coordinator first; the next leader admits it.
fn members_rejoin(config: &impl Fn(usize) -> Config) {
    let mut members: Vec<_> = (0..3).map(|rank| Some(Running::start(config(rank)))).collect();
    let mut gone = Vec::new();
    for rank in [0, 1, 2, 0] {
        members.iter().flatten().for_each(|member| member.await_from(&[0, 1, 2]));
        gone.push(members[rank].take().unwrap().leave());
        let other = members.iter().flatten().next().unwrap();
        other.await_from(&[(rank + 1) % 3, (rank + 2) % 3]);
        members[rank] = Some(Running::start(config(rank)));
    }
    members.iter().flatten().for_each(|member| member.await_from(&[0, 1, 2]));
    let logs: Vec<_> = members.into_iter().flatten().map(Running::leave).chain(gone).collect();
    for one in &logs {
        logs.iter().for_each(|other| agree(one, other));
    }
}

#[test]
fn members_rejoin_on_shared_memory() {
    members_rejoin(&shm("again", 3));
}

#[test]
fn members_rejoin_on_tcp() {
    members_rejoin(&tcp("again", 3));
}

#[test]
fn members_rejoin_by_rdma() {
    if let Some(config) = verbs("again-verbs", 3) {
        members_rejoin(&config);
    }
}

#[test]
fn members_rejoin_by_the_best_transport() {
    members_rejoin(&auto("again-auto", 3));
}

/// Four processes join at once: all are admitted, and none gets another's rank.
fn a_storm_of_joiners(config: &impl Fn(usize) -> Config) {
    let mut members: Vec<_> = (0..2).map(|rank| Running::start(config(rank))).collect();
    members[0].await_from(&[0, 1]);
    members.extend((2..6).map(|place| Running::start(Config { rank: None, ..config(place) })));
    members.iter().for_each(|member| member.await_from(&[0, 1, 2, 3, 4, 5]));
    let logs: Vec<_> = members.into_iter().map(Running::leave).collect();
    for one in &logs {
        logs.iter().for_each(|other| agree(one, other));
    }
}

#[test]
fn a_storm_of_joiners_on_shared_memory() {
    a_storm_of_joiners(&shm("storm", 2));
}

#[test]
fn a_storm_of_joiners_by_rdma() {
    if let Some(config) = verbs("storm-verbs", 2) {
        a_storm_of_joiners(&config);
    }
}

/// A process that asks for the rank of a live member gets an error, and no member loses anything.
#[test]
fn a_rank_belongs_to_one_member() {
    let config = shm("rank", 2);
    let members: Vec<_> = (0..2).map(|rank| Running::start(config(rank))).collect();
    members[0].await_from(&[0, 1]);
    let mut double = Config { rank: Some(1), ..config(2) };
    double.timeout = Duration::from_secs(3);
    let error = Group::join(double).expect_err("rank 1 is taken");
    assert!(error.to_string().contains("has rank 1"), "{error}");
    members.iter().for_each(|member| member.await_from(&[0, 1]));
    members.into_iter().for_each(|member| drop(member.leave()));
}

/// A group with other subgroups is not this process's group.
#[test]
fn another_configuration_is_refused() {
    let config = shm("other", 1);
    let member = Running::start(config(0));
    member.await_from(&[0]);
    let other = config(1).subgroup("more", SubgroupConfig::default());
    let error = Group::join(Config { rank: None, ..other }).expect_err("it has another layout");
    assert!(matches!(error, JoinError::Bootstrap(_)) && error.to_string().contains("subgroups"), "{error}");
    drop(member.leave());
}

/// A member that is left alone continues, and others can join it again.
#[test]
fn the_last_member_continues() {
    let config = shm("alone", 2);
    let members: Vec<_> = (0..2).map(|rank| Running::start(config(rank))).collect();
    members[0].await_from(&[0, 1]);
    let mut members = members.into_iter();
    let (first, second) = (members.next().unwrap(), members.next().unwrap());
    drop(first.leave());
    second.await_from(&[1]);
    let again = Running::start(config(0));
    again.await_from(&[0, 1]);
    drop(again.leave());
    drop(second.leave());
}

/// Any member reports which members are in its view.
#[test]
fn members_can_be_asked() {
    let config = shm("asked", 2);
    let members: Vec<_> = (0..2).map(|rank| Running::start(config(rank))).collect();
    members[0].await_from(&[0, 1]);
    for rank in 0..2 {
        let status = squall::ask_status(&config(rank), &config(rank).listen).unwrap();
        assert!(status.ready && status.rank == rank as u64 && status.view == 0, "{status:?}");
        let addresses: Vec<String> = status.members.iter().map(|member| member.address.clone()).collect();
        assert_eq!(addresses, [config(0).listen.to_string(), config(1).listen.to_string()]);
        assert!(status.subgroups.iter().all(|subgroup| subgroup.name == "log"), "{status:?}");
    }
    members.into_iter().for_each(|member| drop(member.leave()));
    assert!(squall::ask_status(&config(0), &config(0).listen).is_err(), "no process listens any more");
}
