//! Processes that meet, although some are missing.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use squall_transports::Waker;
use squall_transports::bootstrap::{AdmissionEvent, AdmissionListener, Proof};

use super::*;
use crate::entry::admission::JoinDriver;
use crate::error::JoinError;

fn all_meet<S: LinkSocket>(members: u32, listen: &Address) {
    let first = TestProcess::<S>::coordinate(members, listen, |_| {});
    let contact = first.address.clone();
    let others = (1..members).map(|_| TestProcess::<S>::join(members, &contact, |_| {}));
    assert_all_meshed(std::iter::once(first).chain(others).collect::<Vec<_>>());
}

#[test]
fn members_meet_over_unix_sockets() {
    for members in [1, 2, 3, 9] {
        all_meet::<UnixStream>(members, &unix_address());
    }
}

#[test]
fn members_meet_over_tcp() {
    for members in [1, 2, 3, 9] {
        all_meet::<TcpStream>(members, &any_port());
    }
}

/// A process that asks for a rank gets it, the coordinator too; the others fill the gaps in the order of arrival.
#[test]
fn ranks_are_given_as_asked_and_by_arrival() {
    let mut first = TestProcess::<UnixStream>::coordinate(5, &unix_address(), |plan| plan.rank = Some(2));
    let mut members = Vec::new();
    for (joined, rank) in (2..).zip([None, Some(1), Some(4), None]) {
        members.push(TestProcess::<UnixStream>::join(5, &first.address, |plan| plan.rank = rank));
        first.await_joined(joined);
    }
    let asked: Vec<_> = members.iter().map(|member| member.address.clone()).collect();
    let assembly = first.assembly();
    assert_eq!(assembly.node, NodeId(2));
    let at = |node: usize| &assembly.members[node].address;
    assert_eq!((at(0), at(1), at(4), at(3)), (&asked[0], &asked[1], &asked[2], &asked[3]));
    for (member, node) in members.into_iter().zip([0, 1, 4, 3]) {
        assert_eq!(member.assembly().node, NodeId(node));
    }
}

#[test]
fn a_member_may_start_before_the_coordinator_and_another_late() {
    let contact = unix_address();
    let mut early = TestProcess::<UnixStream>::join(3, &contact, |_| {});
    std::thread::sleep(Duration::from_millis(100));
    let first = TestProcess::<UnixStream>::coordinate(3, &contact, |_| {});
    early.await_joined(2);
    let late = TestProcess::<UnixStream>::join(3, &contact, |_| {});

    let (early, progress) = early.outcome();
    let calling = BootstrapProgress::Calling { contact, cause: "no process listens there".into() };
    assert!(matches!(progress[0], BootstrapProgress::Listening { .. }));
    assert_eq!(progress[1], calling);
    let joined = |joined| BootstrapProgress::Joined { joined, members: 3 };
    assert_eq!(progress[2..], [joined(2), joined(3)], "a member is notified of how many have joined");
    let MeetOutcome::Assembled(early) = early.unwrap() else { panic!("no group runs") };
    assert_meshed(vec![early, first.assembly(), late.assembly()]);
}

/// A process that listens at all addresses is announced to the others at the address from which it was seen to
/// connect.
#[test]
fn a_wildcard_address_is_replaced_by_the_one_seen() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let listener = BootstrapListener::<TcpStream>::bind(&everywhere).unwrap();
    let Address::Tcp { port, .. } = *listener.address() else { unreachable!() };
    let contact = Address::Tcp { host: "127.0.0.1".into(), port };
    assert!(listener.is_at(&contact) && !listener.is_at(&"192.0.2.1:1".parse().unwrap()));

    let contacts = [contact];
    let first = TestProcess::run(plan(3, &contacts), listener);
    let others: Vec<_> = (0..2)
        .map(|_| {
            TestProcess::run(plan(3, &contacts), BootstrapListener::<TcpStream>::bind(&everywhere).unwrap())
        })
        .collect();
    let mut assemblies = vec![first.assembly()];
    assemblies.extend(others.into_iter().map(TestProcess::assembly));
    for member in assemblies[0].members.iter().filter(|member| member.node != assemblies[0].node) {
        assert!(member.address.to_string().starts_with("127.0.0.1:"), "{}", member.address);
    }
    for member in &assemblies[1].members {
        let is_own = member.node == assemblies[1].node;
        assert!(is_own || member.address.to_string().starts_with("127.0.0.1:"), "{}", member.address);
    }
    assert_meshed(assemblies);
}

/// All members listen at contacts and call each other at the same time.
#[test]
fn all_members_are_contacts() {
    let contacts: Vec<_> = (0..5).map(|_| unix_address()).collect();
    let members = contacts.iter().map(|contact| TestProcess::<UnixStream>::at(contact, plan(5, &contacts)));
    assert_all_meshed(members.collect::<Vec<_>>());
}

/// Any contact can coordinate: the first one never starts.
#[test]
fn the_first_contact_never_starts() {
    let contacts = [(); 3].map(|()| unix_address());
    let second = TestProcess::<UnixStream>::at(&contacts[1], plan(3, &contacts));
    let third = TestProcess::at(&contacts[2], plan(3, &contacts));
    assert_all_meshed([second, third, TestProcess::outside(plan(3, &contacts))]);
}

/// The first contact hangs: the kernel accepts the connection, but no process answers.
#[test]
fn a_first_contact_that_hangs_delays_no_member() {
    let contacts = [(); 3].map(|()| unix_address());
    let Address::Abstract(name) = &contacts[0] else { unreachable!() };
    let silent = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let begun = Instant::now();
    let second = TestProcess::<UnixStream>::at(&contacts[1], plan(3, &contacts));
    let third = TestProcess::at(&contacts[2], plan(3, &contacts));
    assert_all_meshed([second, third, TestProcess::outside(plan(3, &contacts))]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "it was called");
}

/// There are enough processes, but only one of three contacts: it waits for another one, which is then among the
/// members.
#[test]
fn a_quorum_of_the_contacts_is_awaited() {
    let contacts = [(); 3].map(|()| unix_address());
    let mut first = TestProcess::<UnixStream>::at(&contacts[0], plan(3, &contacts));
    let others = [(); 2].map(|()| TestProcess::<UnixStream>::outside(plan(3, &contacts)));
    first.await_event(|event| matches!(event, BootstrapProgress::NoQuorum { present: 1, needed: 2, .. }));
    let second = TestProcess::<UnixStream>::at(&contacts[1], plan(3, &contacts));
    let mut assemblies = vec![first.assembly(), second.assembly()];
    let mut released = Vec::new();
    for other in others {
        match other.outcome().0.unwrap() {
            MeetOutcome::Assembled(assembly) => assemblies.push(assembly),
            MeetOutcome::Running(contact) => released.push(contact),
        }
    }
    assert_meshed(assemblies);
    assert_eq!(released.len(), 1, "one of four learns that the group runs");
    assert!(contacts.contains(&released[0]));
}

#[test]
fn a_missing_quorum_is_named() {
    let contacts = [(); 3].map(|()| unix_address());
    let mut brief = plan(2, &contacts);
    brief.timeout = Duration::from_secs(2);
    let lonely = TestProcess::<UnixStream>::at(&contacts[2], brief.clone());
    let other = TestProcess::<UnixStream>::outside(plan(2, &contacts));
    let error = lonely.error();
    let BootstrapError::NoQuorum { present: 1, needed: 2, .. } = &error else { panic!("{error:?}") };
    assert!(error.to_string().contains(&contacts[0].to_string()), "{error}");
    let mut first = TestProcess::<UnixStream>::at(&contacts[0], plan(2, &contacts));
    first.await_event(|event| matches!(event, BootstrapProgress::NoQuorum { present: 1, needed: 2, .. }));
    let second = TestProcess::at(&contacts[1], plan(2, &contacts));
    let (outcome, _) = other.outcome();
    assert!(matches!(outcome, Ok(MeetOutcome::Running(_))), "both contacts are needed: {outcome:?}");
    assert_all_meshed([first, second]);
}

/// A contact that is named twice counts once.
#[test]
fn a_contact_counts_once() {
    let contact = unix_address();
    let contacts = [contact.clone(), contact.clone(), contact.clone()];
    let first = TestProcess::<UnixStream>::at(&contact, plan(2, &contacts));
    assert_all_meshed([first, TestProcess::outside(plan(2, &contacts))]);
}

/// Answers everybody, until the test ends.
fn answer_http(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
    }
}

#[test]
fn what_is_not_squall_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let contact: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || answer_http(&listener));
    let brief = |plan: &mut BootstrapPlan| plan.timeout = Duration::from_secs(1);
    let error = TestProcess::<TcpStream>::join(2, &contact, brief).error();
    assert!(matches!(error, BootstrapError::NotSquall { address } if address == contact));
}

/// Another service listens at a member's former address: a member that returns nevertheless finds its group, and
/// soon.
#[test]
fn a_stranger_at_the_first_contact_stops_no_member() {
    let other_cluster = |listener: TcpListener| {
        let secret = Secret::new("the secret of some other cluster").unwrap();
        let proof = Proof::new(&secret, "others");
        for stream in listener.incoming() {
            let _ = proof.demand(&mut stream.unwrap(), None, &[]);
        }
    };
    let silent = |listener: TcpListener| {
        let streams: Vec<_> = listener.incoming().collect();
        drop(streams);
    };
    let strangers: [fn(TcpListener); 3] = [|listener| answer_http(&listener), other_cluster, silent];
    for (number, stranger) in strangers.into_iter().enumerate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let first: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        std::thread::spawn(move || stranger(listener));
        let member = BootstrapListener::<TcpStream>::bind(&any_port()).unwrap();
        let mut plan = plan(2, &[first, member.address().clone()]);
        plan.timeout = Duration::from_secs(8);
        let (admission, mut events) =
            AdmissionListener::open(std::sync::Arc::new(member), &plan, 7, Waker::new().unwrap()).unwrap();
        let begun = Instant::now();
        let entering = std::thread::spawn(move || {
            let own = BootstrapListener::<TcpStream>::bind(&any_port()).unwrap();
            let MeetOutcome::Running(contact) = meet(&plan, &own, &mut |_| ()).unwrap() else {
                panic!("the group is running")
            };
            let mut joining = JoinDriver::new(&plan, &own, Some(&contact)).unwrap();
            joining.link("joiner", &own, &mut |_| ()).map(|_| ()).unwrap_err()
        });
        let asker = loop {
            match events.poll_event() {
                Some(AdmissionEvent::JoinAsked { asker, .. }) => break asker,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "stranger {number}: it does not ask the member"
            );
        };
        assert!(begun.elapsed() < Duration::from_secs(4), "stranger {number}: {:?}", begun.elapsed());
        asker.refuse("the test has ended");
        let error = entering.join().unwrap();
        drop(admission);
        assert!(
            !matches!(error, JoinError::Bootstrap(BootstrapError::Unreachable { .. })),
            "stranger {number}: {error}"
        );
    }
}
