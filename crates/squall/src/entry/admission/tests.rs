//! A process that joins over real sockets, through admission listeners of members that answer as the test demands.

use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_transports::Waker;
use squall_transports::bootstrap::{
    Address, Admission, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, BootstrapError,
    BootstrapListener, BootstrapMember, BootstrapPlan, BootstrapProgress, Joined, Refusal, Secret,
};

use super::JoinDriver;
use crate::error::JoinError;
use crate::operate::inquiry::JoinToken;

/// Returns an address in the abstract namespace that no other test uses.
fn address() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Address::Abstract(format!("squall-admission-{}-{count}", std::process::id()))
}

fn plan(contacts: &[&Address]) -> BootstrapPlan {
    let secret = Secret::new("the secret of the tests").unwrap();
    let mut plan = BootstrapPlan::new("tests", &secret, 3);
    plan.contacts = contacts.iter().copied().cloned().collect();
    plan.timeout = Duration::from_secs(20);
    plan.handshake_timeout = Duration::from_millis(600);
    plan
}

/// A member of a running group: its admission listener, and the listener's events.
struct TestMember {
    admission: Option<AdmissionListener>,
    address: Address,
    events: AdmissionEvents<UnixStream>,
}

impl TestMember {
    fn open() -> Self {
        let listener = BootstrapListener::<UnixStream>::bind(&address()).unwrap();
        let address = listener.address().clone();
        let (admission, events) = AdmissionListener::open(
            std::sync::Arc::new(listener),
            &plan(&[&address]),
            77,
            Waker::new().unwrap(),
        )
        .unwrap();
        Self { admission: Some(admission), address, events }
    }

    fn event(&mut self) -> AdmissionEvent<UnixStream> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(event) = self.events.poll_event() {
                return event;
            }
            assert!(Instant::now() < deadline, "no event at {}", self.address);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn asked(&mut self) -> Asker {
        match self.event() {
            AdmissionEvent::JoinAsked { asker, .. } => asker,
            other => panic!("{other:?}"),
        }
    }

    fn linked(&mut self) -> NodeId {
        match self.event() {
            AdmissionEvent::Peer { node, .. } => node,
            AdmissionEvent::LinkAsked { asker, node, .. } => {
                asker.take_link(node);
                self.linked()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn admission(node: u32, leader: u32, members: &[(u32, &Address)]) -> Admission {
    let member = |(node, address): &(u32, &Address)| BootstrapMember {
        node: NodeId(*node),
        address: (*address).clone(),
    };
    let token = postcard::to_stdvec(&JoinToken { rank: 5 }).unwrap();
    Admission {
        node: NodeId(node),
        leader: NodeId(leader),
        members: members.iter().map(member).collect(),
        token,
    }
}

type Outcome = Result<(Joined<UnixStream>, u64), JoinError>;

/// A process that joins, which runs as a thread, with the progress that it reports.
struct TestJoiner(JoinHandle<(Outcome, Vec<BootstrapProgress>)>);

impl TestJoiner {
    fn start(contacts: &[&Address], change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let mut plan = plan(contacts);
        change(&mut plan);
        Self(std::thread::spawn(move || {
            let listener = BootstrapListener::<UnixStream>::bind(&address()).unwrap();
            let mut progress = Vec::new();
            let joining = JoinDriver::new(&plan, &listener, None);
            let outcome = joining
                .and_then(|mut joining| joining.link("joiner", &listener, &mut |event| progress.push(event)));
            (outcome, progress)
        }))
    }

    fn joined(self) -> NodeId {
        let (joined, rank) = self.outcome().unwrap();
        assert_eq!(rank, 5);
        joined.node
    }

    fn outcome(self) -> Outcome {
        self.0.join().unwrap().0
    }

    fn error(self) -> BootstrapError {
        match self.outcome() {
            Err(JoinError::Bootstrap(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_joiner_that_is_told_to_wait_comes_again() {
    let (mut leader, mut other) = (TestMember::open(), TestMember::open());
    let joiner = TestJoiner::start(&[&other.address], |_| {});
    other.asked().redirect(&leader.address);
    leader.asked().wait("its view changes just now");
    // Without an answer it has to wait as well.
    drop(other.asked());
    other.asked().redirect(&leader.address);
    leader.asked().admit(&admission(64, 0, &[(0, &leader.address), (1, &other.address)]));
    assert_eq!((other.linked(), leader.linked()), (NodeId(64), NodeId(64)));
    let (outcome, progress) = joiner.0.join().unwrap();
    assert_eq!(outcome.unwrap().0.streams.len(), 2);
    let (contact, reason) = (leader.address.clone(), "its view changes just now".into());
    assert!(progress.contains(&BootstrapProgress::Waiting { contact, reason }), "{progress:?}");
    assert!(
        progress.contains(&BootstrapProgress::Redirected { leader: leader.address.clone() }),
        "{progress:?}"
    );
    assert!(progress.contains(&BootstrapProgress::Admitted { node: NodeId(64), members: 2 }), "{progress:?}");
}

/// The leader ends, first while the joiner waits for its answer, and then while the joiner links; another member
/// leads then. That member is not among the contacts: the joiner knows it from its admission.
#[test]
fn a_leader_that_dies_is_left_for_another_member() {
    let (mut leader, mut other) = (TestMember::open(), TestMember::open());
    let joiner = TestJoiner::start(&[&leader.address, &other.address], |_| {});
    drop((leader.asked(), leader.admission.take()));
    other.asked().admit(&admission(64, 1, &[(1, &other.address)]));
    assert_eq!(joiner.joined(), NodeId(64));

    let (mut leader, mut other) = (TestMember::open(), TestMember::open());
    let silent = BootstrapListener::<UnixStream>::bind(&address()).unwrap();
    let joiner = TestJoiner::start(&[&leader.address], |_| {});
    let members = [(0, &leader.address), (1, &other.address), (2, silent.address())];
    let first = admission(64, 0, &members);
    leader.asked().admit(&first);
    assert_eq!(other.linked(), NodeId(64));
    drop(leader.admission.take());
    other.asked().admit(&admission(128, 1, &[(1, &other.address)]));
    assert_eq!(joiner.joined(), NodeId(128));
}

/// A member that cannot be reached ends the attempt, and the leader is notified; the next attempt has another number.
#[test]
fn an_attempt_that_fails_is_followed_by_another() {
    let mut leader = TestMember::open();
    let joiner = TestJoiner::start(&[&leader.address], |_| {});
    let nowhere = address();
    leader.asked().admit(&admission(64, 0, &[(0, &leader.address), (1, &nowhere)]));
    assert!(matches!(leader.event(), AdmissionEvent::Gone { node: NodeId(64) }));
    leader.asked().admit(&admission(65, 0, &[(0, &leader.address)]));
    assert_eq!(joiner.joined(), NodeId(65));
}

/// A leader that considers a candidate lost closes its connection: the joiner asks again.
#[test]
fn a_candidate_that_is_dismissed_asks_again() {
    let mut leader = TestMember::open();
    let silent = BootstrapListener::<UnixStream>::bind(&address()).unwrap();
    let joiner = TestJoiner::start(&[&leader.address], |_| {});
    let begun = Instant::now();
    leader.asked().admit(&admission(64, 0, &[(0, &leader.address), (1, silent.address())]));
    leader.admission.as_ref().unwrap().dismiss(NodeId(64));
    leader.asked().admit(&admission(65, 0, &[(0, &leader.address)]));
    let waited = begun.elapsed();
    assert!(waited < Duration::from_millis(550), "it has waited for the silent member for {waited:?}");
    assert_eq!(joiner.joined(), NodeId(65));
}

#[test]
fn what_can_never_work_is_named() {
    let mut leader = TestMember::open();
    let contact = leader.address.clone();
    let error =
        TestJoiner::start(&[&contact], |plan| plan.agreement = plan.agreement.for_start(1, 1)).error();
    assert!(matches!(error, BootstrapError::Refused { refusal: Refusal::Agreement(_), .. }), "{error:?}");
    let secret = Secret::new("another secret of the tests").unwrap();
    let joiner = TestJoiner::start(&[&contact], |plan| {
        (plan.secret, plan.timeout) = (secret, Duration::from_millis(500));
    });
    let error = joiner.error();
    assert!(matches!(error, BootstrapError::SecretRefused { .. }), "{error:?}");
    let joiner = TestJoiner::start(&[&contact], |_| {});
    leader.asked().refuse("the group is full: enlarge it");
    let error = joiner.error();
    assert!(
        matches!(&error, BootstrapError::Denied { reason, .. } if reason.contains("enlarge")),
        "{error:?}"
    );
}

/// Members redirect to each other, and one contact cannot be reached: the joiner gives up when its time runs out,
/// with the reason.
#[test]
fn a_joiner_that_no_member_admits_gives_up_in_time() {
    let members = [(); 2].map(|()| TestMember::open());
    let addresses = members.each_ref().map(|member| member.address.clone());
    let nowhere = address();
    let joiner = TestJoiner::start(&[&nowhere, &addresses[0]], |plan| {
        plan.timeout = Duration::from_millis(1500);
    });
    let helpers = members.into_iter().zip([1, 0]).map(|(mut member, other)| {
        let other = addresses[other].clone();
        std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                if let Some(AdmissionEvent::JoinAsked { asker, .. }) = member.events.poll_event() {
                    asker.redirect(&other);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    });
    let helpers: Vec<_> = helpers.collect();
    let error = joiner.error();
    assert!(matches!(error, BootstrapError::NotAdmitted { .. }), "{error:?}");
    helpers.into_iter().for_each(|helper| helper.join().unwrap());
}
