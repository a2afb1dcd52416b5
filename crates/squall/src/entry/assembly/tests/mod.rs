//! Processes that meet over real sockets; each process is a thread.

mod deaths;
mod meeting;
mod refusals;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_transports::bootstrap::{
    self as frame, Agreement, CoordinatorNotice, Refusal, ReleaseFrame, Secret,
};

use super::*;

type AssemblyOutcome<S> = Result<MeetOutcome<<S as LinkSocket>::Secured>, BootstrapError>;

/// Returns an address in the abstract namespace that no other test uses.
fn unix_address() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Abstract(format!("squall-assembly-{}-{count}", std::process::id()))
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns a plan with timeouts that are short enough to notice a fault and long enough for a busy machine.
fn plan(members: u32, contacts: &[Address]) -> BootstrapPlan {
    let secret = Secret::new("the secret of the tests").unwrap();
    let mut plan = BootstrapPlan::new("tests", &secret, members);
    plan.contacts = contacts.to_vec();
    plan.timeout = Duration::from_secs(30);
    plan.handshake_timeout = Duration::from_millis(600);
    plan
}

/// A process, which runs as a thread.
struct TestProcess<S: LinkSocket> {
    address: Address,
    thread: JoinHandle<AssemblyOutcome<S>>,
    events: Receiver<BootstrapProgress>,
    /// The events that have been received.
    seen: Vec<BootstrapProgress>,
}

impl<S: LinkSocket> TestProcess<S> {
    /// Starts one of `members` that listens at `listen` and is the only contact; `change` alters its plan.
    fn coordinate(members: u32, listen: &Address, change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let listener = BootstrapListener::bind(listen).unwrap();
        let mut plan = plan(members, &[listener.address().clone()]);
        change(&mut plan);
        Self::run(plan, listener)
    }

    /// Starts one of `members` that asks the only contact; `change` alters its plan.
    fn join(members: u32, contact: &Address, change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let mut plan = plan(members, std::slice::from_ref(contact));
        change(&mut plan);
        Self::outside(plan)
    }

    /// Starts a process that is not a contact.
    fn outside(plan: BootstrapPlan) -> Self {
        let listen = if plan.contacts[0].is_unix() { unix_address() } else { any_port() };
        Self::run(plan, BootstrapListener::bind(&listen).unwrap())
    }

    /// Starts a process that listens at an address.
    fn at(listen: &Address, plan: BootstrapPlan) -> Self {
        Self::run(plan, BootstrapListener::bind(listen).unwrap())
    }

    fn run(plan: BootstrapPlan, listener: BootstrapListener<S>) -> Self {
        let address = listener.address().clone();
        let (sender, events) = channel();
        let run = move || meet(&plan, &listener, &mut |event| sender.send(event).unwrap());
        Self { address, thread: std::thread::spawn(run), events, seen: Vec::new() }
    }

    /// Waits until `count` processes have joined, as far as this process knows.
    fn await_joined(&mut self, count: u32) {
        self.await_event(
            |event| matches!(event, BootstrapProgress::Joined { joined, .. } if *joined == count),
        );
    }

    fn await_event(&mut self, expected: impl Fn(&BootstrapProgress) -> bool) {
        while !self.seen.iter().any(&expected) {
            self.seen.push(self.events.recv_timeout(Duration::from_secs(20)).unwrap());
        }
    }

    fn outcome(mut self) -> (AssemblyOutcome<S>, Vec<BootstrapProgress>) {
        let outcome = self.thread.join().unwrap();
        self.seen.extend(self.events.iter());
        (outcome, self.seen)
    }

    fn assembly(self) -> ConnectedGroup<S::Secured> {
        match self.outcome().0.unwrap() {
            MeetOutcome::Assembled(assembly) => assembly,
            MeetOutcome::Running(contact) => panic!("a group runs at {contact}"),
        }
    }

    fn error(self) -> BootstrapError {
        self.outcome().0.unwrap_err()
    }
}

/// Asserts that all members agree on the roster, and that each pair shares one stream, on which nothing has been sent
/// yet.
fn assert_meshed<S: Read + Write>(mut assemblies: Vec<ConnectedGroup<S>>) {
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

fn assert_all_meshed<S: LinkSocket>(processes: impl IntoIterator<Item = TestProcess<S>>) {
    assert_meshed(processes.into_iter().map(TestProcess::assembly).collect());
}

/// A process that has been accepted, and does nothing more until it dies.
struct Puppet {
    /// Dropped to end it.
    life: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Puppet {
    /// Claims a rank at the plan's only contact. It announces `listen` as its address, or else its real address.
    fn join(plan: &BootstrapPlan, rank: u32, listen: Option<Address>) -> Self {
        let (life, end) = channel();
        let (accepted, is_accepted) = channel();
        let plan = plan.clone();
        let thread = std::thread::spawn(move || {
            let listener = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
            let listen = listen.unwrap_or_else(|| listener.address().clone());
            let (members, agreement) = (plan.members, plan.agreement.clone());
            let claim = frame::ClaimFrame { members, rank: Some(rank), agreement, listen, contact: None };
            let held = MeetingPoint::with(&plan, &listener, |point| {
                point.ask(&plan.contacts[0], claim, plan.timeout, soon());
                assert!(matches!(next(point), MeetingEvent::Answered(frame::ClaimAnswer::Accepted)));
                point.keep();
                accepted.send(()).unwrap();
                assert!(end.recv().is_err(), "nothing is sent");
            });
            held.unwrap();
        });
        is_accepted.recv().unwrap();
        Self { life: Some(life), thread: Some(thread) }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.life = None;
        let _ = self.thread.take().unwrap().join();
    }
}

/// Waits for the next event.
fn next<S: LinkSocket>(point: &mut MeetingPoint<'_, S>) -> MeetingEvent {
    loop {
        if let Some(event) = point.poll(soon(), &mut |_| ()).unwrap().pop() {
            return event;
        }
    }
}

/// Accepts the next process that claims to be one of the first members.
fn accept(point: &mut MeetingPoint<'_, UnixStream>) -> (u64, frame::ClaimFrame) {
    let MeetingEvent::Claimed { visitor, claim } = next(point) else { panic!("expected a claim") };
    point.answer(visitor, frame::ClaimAnswer::Accepted, &mut |_| ());
    (visitor, claim)
}

/// Runs `play` as the coordinator at `contact` of one other process, with that process's number and claim.
fn with_coordinator(
    contact: &Address,
    members: u32,
    play: impl FnOnce(&mut MeetingPoint<'_, UnixStream>, u64, frame::ClaimFrame),
) {
    let listener = BootstrapListener::<UnixStream>::bind(contact).unwrap();
    let plan = plan(members, std::slice::from_ref(contact));
    let played = MeetingPoint::with(&plan, &listener, |point| {
        let (visitor, claim) = accept(point);
        play(point, visitor, claim);
    });
    played.unwrap();
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
