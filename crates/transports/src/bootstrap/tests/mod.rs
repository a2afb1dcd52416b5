//! Members of one process meet over real sockets.

mod deaths;
#[path = "../../../tests/joins/join.rs"]
mod join;
mod meeting;
mod newcomers;
mod refusals;
mod strangers;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};

use self::join::{TestJoined, join};
use super::message::{Answer, Request};
use super::wire::Wire;
use super::*;
use crate::bootstrap;

type Outcome<S> = Result<Assembly<<S as Link>::Secured>, BootstrapError>;

/// An address in the abstract namespace that no other test has.
fn unix_address() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Abstract(format!("squall-test-{}-{count}", std::process::id()))
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// A plan for `members` members whose coordinator listens at `contact`. Long waits would hide a fault, so all
/// limits are short enough to notice and long enough for a busy machine.
fn plan(members: u32, contact: &Address) -> Plan {
    let secret = Secret::new("the secret of the tests").unwrap();
    let mut plan = Plan::new("tests", &secret, members);
    plan.contacts = vec![contact.clone()];
    plan.timeout = Duration::from_secs(20);
    plan.handshake_timeout = Duration::from_millis(600);
    plan
}

/// A process of the cluster, run by a thread.
struct Process<S: Link> {
    address: Address,
    thread: JoinHandle<Outcome<S>>,
    events: Receiver<Progress>,
    /// What has come out of `events`.
    seen: Vec<Progress>,
}

impl<S: Link> Process<S> {
    /// The process that coordinates `members` members; `change` alters its plan.
    fn coordinate(members: u32, listen: &Address, change: impl FnOnce(&mut Plan)) -> Self {
        let listener = Listener::bind(listen).unwrap();
        let mut plan = plan(members, &listener.address().clone());
        change(&mut plan);
        Self::run(plan, listener)
    }

    /// A member that joins the coordinator at `contact`; `change` alters its plan.
    fn join(members: u32, contact: &Address, change: impl FnOnce(&mut Plan)) -> Self {
        let listen = if contact.is_unix() { unix_address() } else { any_port() };
        let mut plan = plan(members, contact);
        change(&mut plan);
        Self::run(plan, Listener::bind(&listen).unwrap())
    }

    fn run(plan: Plan, listener: Listener<S>) -> Self {
        let address = listener.address().clone();
        let (sender, events) = std::sync::mpsc::channel();
        let thread =
            std::thread::spawn(move || assemble(&plan, &listener, &mut |event| sender.send(event).unwrap()));
        Self { address, thread, events, seen: Vec::new() }
    }

    /// Waits until so many have joined, as far as this process knows.
    fn await_joined(&mut self, count: u32) {
        self.await_event(|event| matches!(event, Progress::Joined { joined, .. } if *joined == count));
    }

    fn await_event(&mut self, expected: impl Fn(&Progress) -> bool) {
        while !self.seen.iter().any(&expected) {
            self.seen.push(self.events.recv_timeout(Duration::from_secs(10)).unwrap());
        }
    }

    fn outcome(mut self) -> (Outcome<S>, Vec<Progress>) {
        let outcome = self.thread.join().unwrap();
        self.seen.extend(self.events.iter());
        (outcome, self.seen)
    }

    fn assembly(self) -> Assembly<S::Secured> {
        self.outcome().0.unwrap()
    }

    fn error(self) -> BootstrapError {
        self.outcome().0.unwrap_err()
    }
}

/// Asserts that all agree on who they are, and that each pair shares one stream, on which nothing has come yet.
fn assert_meshed<S: Read + Write>(mut assemblies: Vec<Assembly<S>>) {
    assemblies.sort_by_key(|assembly| assembly.node);
    let nodes: Vec<_> = (0..).map(NodeId).take(assemblies.len()).collect();
    for (node, assembly) in nodes.iter().zip(&mut assemblies) {
        assert_eq!(assembly.node, *node);
        assert_eq!(assembly.members.iter().map(|member| member.node).collect::<Vec<_>>(), nodes);
        let peers: Vec<_> = assembly.streams.iter().map(|(peer, _)| *peer).collect();
        assert_eq!(peers, nodes.iter().copied().filter(|peer| peer != node).collect::<Vec<_>>());
        for (peer, stream) in &mut assembly.streams {
            stream.write_all(&[node.0, peer.0].map(u32::to_be_bytes).concat()).unwrap();
        }
    }
    let session = assemblies[0].session;
    for assembly in &mut assemblies {
        assert_eq!(assembly.session, session);
        for (peer, stream) in &mut assembly.streams {
            let mut greeting = [0; 8];
            stream.read_exact(&mut greeting).unwrap();
            assert_eq!(greeting[..], [peer.0, assembly.node.0].map(u32::to_be_bytes).concat());
        }
    }
}

/// A member that follows the protocol only as far as the test wants.
struct Puppet {
    /// Kept open.
    _wire: Wire<UnixStream>,
    /// Where it can be reached, until the test takes that away.
    listener: Option<Listener<UnixStream>>,
}

impl Puppet {
    /// Joins and is accepted.
    fn join(plan: &Plan, rank: Option<u32>) -> Self {
        let listener = Listener::bind(&unix_address()).unwrap();
        let stream = <UnixStream as Link>::connect(&plan.contacts[0], soon(), None).unwrap();
        let mut wire = Wire::new(stream).unwrap();
        wire.prove(&plan.proof(), soon().into()).unwrap();
        let listen = listener.address().to_string();
        let request = Request::Join { members: plan.members, rank, agreement: plan.agreement, listen };
        wire.write_frame(&request, soon()).unwrap();
        assert_eq!(wire.read_frame::<Answer>(soon()).unwrap(), Answer::Accepted);
        Self { _wire: wire, listener: Some(listener) }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Waits until `address` answers, as a member would that starts early.
fn connect_tcp(address: &Address) -> TcpStream {
    let stream = <TcpStream as Link>::connect(address, soon(), None).unwrap();
    Link::set_nonblocking(&stream, false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}
