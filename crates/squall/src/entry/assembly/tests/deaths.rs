//! Processes that die or fall silent while the group is assembled.

use super::*;

/// Sets a short timeout for a process that is not to succeed.
fn brief(plan: &mut BootstrapPlan) {
    plan.timeout = Duration::from_secs(2);
}

fn roster(node: u32, coordinator: u32, listen: &[&str]) -> CoordinatorNotice {
    let listen = listen.iter().map(|text| text.parse().unwrap()).collect();
    CoordinatorNotice::Roster { session: 1, node, coordinator, listen }
}

/// A coordinator that dies before a member has reported costs that member nothing: it asks the next one.
#[test]
fn a_coordinator_that_dies_is_replaced() {
    let plays: [fn(&mut MeetingPoint<'_, UnixStream>, u64); 2] = [
        |_, _| {},
        |point, visitor| point.notify(visitor, &roster(2, 0, &["unix:@a", "unix:@b", "unix:@c"])),
    ];
    for play in plays {
        let contact = unix_address();
        let members: Vec<_> = (0..2).map(|_| TestProcess::<UnixStream>::join(3, &contact, |_| {})).collect();
        with_coordinator(&contact, 3, |point, visitor, _| play(point, visitor));
        let next = TestProcess::coordinate(3, &contact, |_| {});
        assert_all_meshed(members.into_iter().chain([next]));
    }
}

/// Once a member has reported, the others may have begun, so the member gives up; it has to be started again to find
/// out.
#[test]
fn the_coordinator_dies_when_the_others_may_have_begun() {
    let contact = unix_address();
    let member = TestProcess::<UnixStream>::join(2, &contact, |_| {});
    with_coordinator(&contact, 2, |point, visitor, _| {
        point.notify(visitor, &roster(1, 0, &["unix:@a", "unix:@b"]));
        assert!(matches!(next(point), MeetingEvent::Reported { session: 1, .. }));
    });
    let error = member.error();
    assert!(matches!(&error, BootstrapError::CoordinatorLost { contact: at } if *at == contact), "{error:?}");
}

/// The coordinator is trusted, but messages from another version must not make a member panic.
#[test]
fn invalid_messages_of_the_coordinator_are_errors() {
    let gone = ReleaseFrame::MemberLost { node: 7, listen: unix_address() };
    let nonsense = [
        CoordinatorNotice::Go,
        roster(0, 0, &["unix:@a", "unix:@b"]),
        roster(2, 0, &["unix:@a", "unix:@b"]),
        roster(1, 2, &["unix:@a", "unix:@b"]),
        roster(1, 0, &["unix:@a"]),
        CoordinatorNotice::Released(gone),
    ];
    for notice in nonsense {
        let contact = unix_address();
        let member = TestProcess::<UnixStream>::join(2, &contact, |_| {});
        with_coordinator(&contact, 2, |point, visitor, _| {
            point.notify(visitor, &notice);
            assert!(matches!(next(point), MeetingEvent::Lost { .. }));
        });
        let error = member.error();
        assert!(matches!(error, BootstrapError::Protocol { .. }), "{notice:?}: {error:?}");
    }
}

/// A process that dies before the group is complete is replaced by another.
#[test]
fn a_member_dies_while_others_are_missing() {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    drop(Puppet::join(&plan(3, std::slice::from_ref(&first.address)), 1, None));
    first.await_event(|event| matches!(event, BootstrapProgress::Left { .. }));
    let others: Vec<_> = (1..3)
        .map(|rank| TestProcess::<UnixStream>::join(3, &first.address, |plan| plan.rank = Some(rank)))
        .collect();
    assert_all_meshed(others.into_iter().chain([first]));
}

/// If a member dies while all members link, the others gather again, and the attempt continues.
#[test]
fn a_member_dies_while_all_link() {
    let mut first = TestProcess::<UnixStream>::coordinate(4, &unix_address(), |_| {});
    let contact = first.address.clone();
    let puppet = Puppet::join(&plan(4, std::slice::from_ref(&contact)), 1, None);
    let others: Vec<_> = (2..4)
        .map(|rank| TestProcess::<UnixStream>::join(4, &contact, |plan| plan.rank = Some(rank)))
        .collect();
    first.await_joined(4);
    drop(puppet);
    first.await_event(|event| matches!(event, BootstrapProgress::Left { .. }));
    let next = TestProcess::join(4, &contact, |_| {});
    assert_all_meshed(others.into_iter().chain([first, next]));
}

/// A member that lives but never links is given up after half the time, and the others gather again.
#[test]
fn a_member_that_never_links_is_left_out() {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |plan| {
        plan.timeout = Duration::from_secs(8)
    });
    let contact = first.address.clone();
    let _puppet = Puppet::join(&plan(3, std::slice::from_ref(&contact)), 1, None);
    let second = TestProcess::<UnixStream>::join(3, &contact, |_| {});
    first.await_joined(3);
    let third = TestProcess::join(3, &contact, |_| {});
    assert_all_meshed([first, second, third]);
}

/// When the coordinator's time runs out, the processes that it has gathered ask others until their own time runs out.
#[test]
fn the_time_is_over_before_all_have_joined() {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), brief);
    let contact = first.address.clone();
    let second = TestProcess::<UnixStream>::join(3, &contact, |_| {});
    first.await_joined(2);
    let error = first.error();
    assert!(matches!(error, BootstrapError::Incomplete { joined: 2, members: 3, .. }), "{error:?}");
    assert!(error.to_string().starts_with("only 2 of 3 members have joined"));
    let again = TestProcess::coordinate(3, &contact, |_| {});
    let third = TestProcess::join(3, &contact, |_| {});
    assert_all_meshed([second, again, third]);
}

/// A process that has been gathered gives up when its own time runs out.
#[test]
fn a_follower_gives_up_when_its_time_is_over() {
    let first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let error = TestProcess::<UnixStream>::join(3, &first.address, brief).error();
    assert!(matches!(error, BootstrapError::Incomplete { joined: 2, members: 3, .. }), "{error:?}");
    let others = (0..2).map(|_| TestProcess::join(3, &first.address, |_| {})).collect::<Vec<_>>();
    assert_all_meshed(others.into_iter().chain([first]));
}

/// A late member is named, if the coordinator's time ends before that of the links.
#[test]
fn the_time_is_over_before_all_are_linked() {
    let first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |plan| {
        plan.timeout = Duration::from_secs(6)
    });
    let contact = first.address.clone();
    std::thread::sleep(Duration::from_millis(3500));
    let _puppet = Puppet::join(&plan(3, std::slice::from_ref(&contact)), 1, None);
    let second = TestProcess::<UnixStream>::join(3, &contact, |plan| plan.rank = Some(2));
    let error = first.error();
    let BootstrapError::Unready { unready } = &error else { panic!("{error:?}") };
    assert_eq!(unready.iter().map(|(node, _)| node.0).collect::<Vec<_>>(), [1, 2]);
    let error = second.error();
    assert!(matches!(&error, BootstrapError::Unready { unready } if unready.len() == 2), "{error:?}");
}

/// A member's address may not work for others: for example, other hosts may have its loopback address in their
/// roster.
#[test]
fn a_member_that_cannot_be_reached_is_named() {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let plan = plan(3, std::slice::from_ref(&first.address));
    let puppet = Puppet::join(&plan, 1, Some(unix_address()));
    let second = TestProcess::<UnixStream>::join(3, &first.address, |plan| {
        brief(plan);
        plan.rank = Some(2);
    });
    let error = second.error();
    let BootstrapError::Unlinked { missing } = &error else { panic!("{error:?}") };
    assert_eq!(missing[0].0, NodeId(1));
    first.await_event(|event| matches!(event, BootstrapProgress::Left { .. }));
    drop(puppet);
    let others = (0..2).map(|_| TestProcess::join(3, &first.address, |_| {})).collect::<Vec<_>>();
    assert_all_meshed(others.into_iter().chain([first]));
}

#[test]
fn no_process_answers() {
    let contact = unix_address();
    let lonely =
        TestProcess::<UnixStream>::join(2, &contact, |plan| plan.timeout = Duration::from_millis(300))
            .error();
    assert!(matches!(&lonely, BootstrapError::Unreachable { contacts, .. } if contacts[..] == [contact]));
    assert!(lonely.to_string().contains("no process listens there"), "{lonely}");
}
