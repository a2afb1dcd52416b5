//! Members that do all right.

use super::*;

fn meet<S: Link>(members: u32, listen: &Address) {
    let first = Process::<S>::coordinate(members, listen, |_| {});
    let others: Vec<_> = (1..members).map(|_| Process::<S>::join(members, &first.address, |_| {})).collect();
    let mut assemblies = vec![first.assembly()];
    assemblies.extend(others.into_iter().map(Process::assembly));
    assert_eq!(assemblies[0].node, NodeId(0), "the process at the first contact has rank 0");
    assert_meshed(assemblies);
}

#[test]
fn members_meet_over_unix_sockets() {
    for members in [1, 2, 3, 9] {
        meet::<UnixStream>(members, &unix_address());
    }
}

#[test]
fn members_meet_over_tcp() {
    for members in [1, 2, 3, 9] {
        meet::<TcpStream>(members, &any_port());
    }
}

/// Who asks for a rank gets it; the others fill the gaps in the order of arrival.
#[test]
fn ranks_are_given_as_asked_and_by_arrival() {
    let mut first = Process::<UnixStream>::coordinate(5, &unix_address(), |plan| plan.rank = Some(0));
    let mut members = Vec::new();
    for (joined, rank) in (2..).zip([None, Some(1), Some(4), None]) {
        members.push(Process::<UnixStream>::join(5, &first.address, |plan| plan.rank = rank));
        first.await_joined(joined);
    }
    let asked: Vec<_> = members.iter().map(|member| member.address.clone()).collect();
    let assembly = first.assembly();
    let at = |node: usize| &assembly.members[node].address;
    assert_eq!((at(2), at(1), at(4), at(3)), (&asked[0], &asked[1], &asked[2], &asked[3]));
    for (member, node) in members.into_iter().zip([2, 1, 4, 3]) {
        assert_eq!(member.assembly().node, NodeId(node));
    }
}

#[test]
fn a_member_may_start_before_the_coordinator_and_another_late() {
    let contact = unix_address();
    let mut early = Process::<UnixStream>::join(3, &contact, |_| {});
    std::thread::sleep(Duration::from_millis(100));
    let first = Process::<UnixStream>::coordinate(3, &contact, |_| {});
    early.await_joined(2);
    let late = Process::<UnixStream>::join(3, &contact, |_| {});

    let (early, progress) = early.outcome();
    let calling = Progress::Calling { contact, cause: "nobody listens there".into() };
    assert!(matches!(progress[0], Progress::Listening { .. }));
    assert_eq!(progress[1], calling);
    let joined = |joined| Progress::Joined { joined, members: 3 };
    assert_eq!(progress[2..], [joined(2), joined(3)], "a member hears how many have joined");
    assert_meshed(vec![early.unwrap(), first.assembly(), late.assembly()]);
}

/// Who listens at all addresses is announced to the others at the address that it is seen at.
#[test]
fn a_wildcard_address_is_replaced_by_the_one_seen() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let listener = Listener::<TcpStream>::bind(&everywhere).unwrap();
    let Address::Tcp { port, .. } = *listener.address() else { unreachable!() };
    let contact = Address::Tcp { host: "127.0.0.1".into(), port };
    assert!(listener.is_at(&contact) && !listener.is_at(&"192.0.2.1:1".parse().unwrap()));

    let first = Process::run(plan(3, &contact), listener);
    let others: Vec<_> = (0..2)
        .map(|_| Process::run(plan(3, &contact), Listener::<TcpStream>::bind(&everywhere).unwrap()))
        .collect();
    let mut assemblies = vec![first.assembly()];
    assemblies.extend(others.into_iter().map(Process::assembly));
    for member in &assemblies[0].members[1..] {
        assert!(member.address.to_string().starts_with("127.0.0.1:"), "{}", member.address);
    }
    assert_meshed(assemblies);
}

#[test]
fn a_socket_file_is_replaced_when_stale_and_removed_at_the_end() {
    let path = std::env::temp_dir().join(format!("squall-test-{}", std::process::id()));
    // Dropped without being removed, as by a process that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Path(path.clone());
    let listener = Listener::<UnixStream>::bind(&address).unwrap();
    assert!(matches!(Listener::<UnixStream>::bind(&address), Err(BootstrapError::AddressInUse { .. })));
    assert!(path.exists(), "a socket that is in use stays");
    drop(listener);
    assert!(!path.exists());
}

/// While nobody listens at a port, a connection to it can come out at itself.
#[test]
fn a_connection_to_itself_is_no_connection() {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let itself = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&itself, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = rustix::net::getsockname(&itself).unwrap();
    connect(&itself, &address).unwrap();
    assert!(link::is_itself(&TcpStream::from(itself)).unwrap());
}
