//! Members that die or fall silent while the group comes together.

use super::message::Notice;
use super::*;

/// Runs `play` as the coordinator of one member, whose outcome is returned.
fn with_coordinator(play: impl FnOnce(&mut Wire<UnixStream>)) -> BootstrapError {
    let listener = Listener::<UnixStream>::bind(&unix_address()).unwrap();
    let member = Process::<UnixStream>::join(2, listener.address(), |_| {});
    let plan = plan(2, listener.address());
    let stream = loop {
        match listener.accept() {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut wire = Wire::new(stream).unwrap();
    let session = plan.proof().demand(&mut wire.waiting(soon().into()), None).unwrap();
    wire.begin(session);
    assert!(matches!(wire.read_frame::<Request>(soon()).unwrap(), Request::Join { .. }));
    wire.write_frame(&Answer::Accepted, soon()).unwrap();
    play(&mut wire);
    drop(wire);
    member.error()
}

#[test]
fn the_coordinator_dies() {
    let error = with_coordinator(|_| {});
    assert!(matches!(error, BootstrapError::CoordinatorLost { .. }), "{error:?}");
}

#[test]
fn the_coordinator_dies_after_the_roster() {
    let error = with_coordinator(|wire| {
        let listen = vec!["unix:@a".into(), "unix:@b".into()];
        wire.write_frame(&Notice::Roster { session: 1, node: 1, listen }, soon()).unwrap();
    });
    assert!(matches!(error, BootstrapError::CoordinatorLost { .. }), "{error:?}");
}

/// The coordinator is trusted, but a wrong release of it must not make a member panic.
#[test]
fn the_coordinator_talks_nonsense() {
    let roster = |node, listen: &[&str]| Notice::Roster {
        session: 1,
        node,
        listen: listen.iter().map(|text| (*text).into()).collect(),
    };
    let nonsense = [
        Notice::Go,
        roster(0, &["unix:@a", "unix:@b"]),
        roster(2, &["unix:@a", "unix:@b"]),
        roster(1, &["unix:@a"]),
        roster(1, &["unix:@a", "127.0.0.1:1"]),
        roster(1, &["unix:@a", "b"]),
        Notice::Stopped(message::Stop::MemberLost { node: 7, listen: "b".into() }),
    ];
    for notice in nonsense {
        let error = with_coordinator(|wire| wire.write_frame(&notice, soon()).unwrap());
        assert!(matches!(error, BootstrapError::Protocol { .. }), "{notice:?}: {error:?}");
    }
}

/// Who dies before the group is complete makes room for another.
#[test]
fn a_member_dies_while_others_are_missing() {
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let puppet = Puppet::join(&plan(3, &first.address), Some(1));
    drop(puppet);
    let others: Vec<_> = (1..3)
        .map(|rank| {
            std::thread::sleep(Duration::from_millis(100));
            Process::<UnixStream>::join(3, &first.address, |plan| plan.rank = Some(rank))
        })
        .collect();
    let (outcome, progress) = first.outcome();
    assert!(progress.iter().any(|event| matches!(event, Progress::Left { .. })), "{progress:?}");
    let mut assemblies = vec![outcome.unwrap()];
    assemblies.extend(others.into_iter().map(Process::assembly));
    assert_meshed(assemblies);
}

/// Who dies after all have joined ends the attempt for all, at once and with its name.
#[test]
fn a_member_dies_while_all_connect() {
    let mut first = Process::<UnixStream>::coordinate(4, &unix_address(), |_| {});
    let puppet = Puppet::join(&plan(4, &first.address), Some(1));
    let others: Vec<_> = (2..4)
        .map(|rank| Process::<UnixStream>::join(4, &first.address, |plan| plan.rank = Some(rank)))
        .collect();
    first.await_joined(4);
    let died = Instant::now();
    drop(puppet);
    assert!(matches!(first.error(), BootstrapError::MemberLost { node: NodeId(1), .. }));
    for other in others {
        let error = other.error();
        assert!(matches!(error, BootstrapError::MemberLost { node: NodeId(1), .. }), "{error:?}");
    }
    assert!(died.elapsed() < Duration::from_secs(3));
}

#[test]
fn the_time_is_over_before_all_have_joined() {
    let short = |plan: &mut Plan| plan.timeout = Duration::from_millis(800);
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), short);
    let second = Process::<UnixStream>::join(3, &first.address, |_| {});
    for process in [first, second] {
        let error = process.error();
        assert!(matches!(error, BootstrapError::Incomplete { joined: 2, members: 3 }), "{error:?}");
        assert!(error.to_string().starts_with("2 of 3 members have joined"));
    }
}

#[test]
fn the_time_is_over_before_all_are_linked() {
    let short = |plan: &mut Plan| plan.timeout = Duration::from_millis(800);
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), short);
    let _puppet = Puppet::join(&plan(3, &first.address), Some(1));
    let second = Process::<UnixStream>::join(3, &first.address, |plan| plan.rank = Some(2));
    let error = first.error();
    let BootstrapError::Unready { unready } = &error else { panic!("{error:?}") };
    assert_eq!(unready.iter().map(|(node, _)| node.0).collect::<Vec<_>>(), [1, 2]);
    let error = second.error();
    assert!(matches!(error, BootstrapError::Unready { .. }), "{error:?}");
}

/// Its address may lead nowhere: a host's own loopback address told to other hosts.
#[test]
fn a_member_that_cannot_be_reached_is_named() {
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let mut puppet = Puppet::join(&plan(3, &first.address), Some(1));
    puppet.listener = None;
    let second = Process::<UnixStream>::join(3, &first.address, |plan| plan.rank = Some(2));
    let error = second.error();
    let BootstrapError::Unlinked { missing } = &error else { panic!("{error:?}") };
    assert_eq!(missing[0].0, NodeId(1));
    assert!(matches!(first.error(), BootstrapError::MemberLost { node: NodeId(2), .. }));
}

#[test]
fn nobody_answers() {
    let contact = unix_address();
    let lonely =
        Process::<UnixStream>::join(2, &contact, |plan| plan.timeout = Duration::from_millis(300)).error();
    assert!(matches!(&lonely, BootstrapError::Unreachable { contact: named, .. } if *named == contact));
    assert!(lonely.to_string().contains("nobody listens there"), "{lonely}");
}

/// The coordinator may find a death while it sends the roster; then some hear of it without the roster.
#[test]
fn a_death_is_named_before_the_roster() {
    let error = with_coordinator(|wire| {
        let stop = message::Stop::MemberLost { node: 1, listen: "unix:@gone".into() };
        wire.write_frame(&Notice::Stopped(stop), soon()).unwrap();
    });
    assert!(matches!(&error, BootstrapError::MemberLost { node: NodeId(1), .. }), "{error:?}");
    assert!(error.to_string().contains("node 1 at unix:@gone"), "{error}");
}
