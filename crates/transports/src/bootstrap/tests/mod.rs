//! Processes call each other over real sockets; the crate `squall` tests their reactions, together with the
//! core.

#[path = "../../../tests/joins/join.rs"]
mod join;
mod joiners;
mod meeting;
#[path = "../../../tests/patience/mod.rs"]
mod patience;
mod strangers;
mod versions;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

use self::join::{TestJoined, join};
use self::patience::patient;
use super::message::{BootstrapAnswer, BootstrapRequest};
use super::wire::FramedSocket;
use super::*;
use crate::bootstrap;

/// Returns an address in the abstract namespace that no other test uses.
fn unix_address() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Abstract(format!("squall-test-{}-{count}", std::process::id()))
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns a plan for `members` members, one of which listens at `contact`. Long waits would hide a fault, so
/// all limits are short enough to be noticed and long enough for a loaded machine.
fn plan(members: u32, contact: &Address) -> BootstrapPlan {
    let secret = Secret::new("the secret of the tests").unwrap();
    let mut plan = BootstrapPlan::new("tests", &secret, members);
    plan.contacts = vec![contact.clone()];
    plan.timeout = patient(Duration::from_secs(20));
    plan.handshake_timeout = patient(Duration::from_millis(600));
    plan
}

/// A process that receives others, run by a thread: it forwards events, and asks all claimants to come later.
struct Host<S: LinkSocket> {
    address: Address,
    over: Arc<AtomicBool>,
    thread: JoinHandle<(BootstrapListener<S>, Vec<BootstrapProgress>)>,
    events: Receiver<MeetingEvent>,
}

impl<S: LinkSocket> Host<S> {
    fn open(listen: &Address, change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let listener = BootstrapListener::<S>::bind(listen).unwrap();
        let address = listener.address().clone();
        let mut plan = plan(3, &address);
        change(&mut plan);
        let (sender, events) = std::sync::mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut progress = Vec::new();
            let served = MeetingPoint::with(&plan, &listener, |point| {
                while !ends.load(Ordering::Relaxed) {
                    let until = Instant::now() + Duration::from_millis(5);
                    for event in point.poll(until, &mut |event| progress.push(event)).unwrap() {
                        if let MeetingEvent::Claimed { visitor, .. } = event {
                            let later = ClaimAnswer::Later("the test has begun".into());
                            point.answer(visitor, later, &mut |_| ());
                        }
                        sender.send(event).unwrap();
                    }
                }
            });
            served.unwrap();
            (listener, progress)
        });
        Self { address, over, thread, events }
    }

    /// Waits for the next claim.
    fn claim(&self) -> ClaimFrame {
        match self.events.recv_timeout(patient(Duration::from_secs(10))).unwrap() {
            MeetingEvent::Claimed { claim, .. } => claim,
            other => panic!("{other:?}"),
        }
    }

    fn close(self) -> (BootstrapListener<S>, Vec<BootstrapProgress>) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn claim(plan: &BootstrapPlan, listen: &Address) -> ClaimFrame {
    ClaimFrame {
        members: plan.members,
        rank: plan.rank,
        agreement: plan.agreement.clone(),
        listen: listen.clone(),
        contact: None,
    }
}

/// Returns the event that follows a claim at the plan's contact.
fn claim_at<S: LinkSocket>(plan: &BootstrapPlan, change: impl FnOnce(&mut ClaimFrame)) -> MeetingEvent {
    let listen = if S::takes(&any_port()) { any_port() } else { unix_address() };
    let listener = BootstrapListener::<S>::bind(&listen).unwrap();
    MeetingPoint::with(plan, &listener, |point| {
        let mut claim = claim(plan, listener.address());
        change(&mut claim);
        point.ask(&plan.contacts[0], claim, plan.handshake_timeout, soon());
        next(point)
    })
    .unwrap()
}

/// Returns the next event.
fn next<S: LinkSocket>(point: &mut MeetingPoint<'_, S>) -> MeetingEvent {
    loop {
        if let Some(event) = point.poll(soon(), &mut |_| ()).unwrap().pop() {
            return event;
        }
    }
}

/// Asserts that a process that follows the protocol gets an answer.
fn assert_open<S: LinkSocket>(host: &Host<S>) {
    let event = claim_at::<S>(&plan(3, &host.address), |_| {});
    assert!(matches!(event, MeetingEvent::Answered(ClaimAnswer::Later(_))), "{event:?}");
    host.claim();
}

fn soon() -> Instant {
    Instant::now() + patient(Duration::from_secs(10))
}

/// Waits until `address` answers, as a member that starts early would.
fn connect_tcp(address: &Address) -> TcpStream {
    let stream = <TcpStream as LinkSocket>::connect(address, soon(), None).unwrap();
    LinkSocket::set_nonblocking(&stream, false).unwrap();
    stream.set_read_timeout(Some(patient(Duration::from_secs(10)))).unwrap();
    stream
}
