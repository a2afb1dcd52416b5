//! Members whose plan differs: each gets its reason, and the others go on.

use super::*;

/// Starts a group of three of which one process is wrong: it must get the error that `expected` recognises, and
/// the right ones meet without it.
fn one_is_wrong(change: impl FnOnce(&mut Plan), expected: impl FnOnce(&BootstrapError, &Address) -> bool) {
    let mut first = Process::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let contact = first.address.clone();
    let second = Process::<UnixStream>::join(3, &contact, |plan| plan.rank = Some(2));
    first.await_joined(2);
    let error = Process::<UnixStream>::join(3, &contact, change).error();
    assert!(expected(&error, &contact), "{error:?}");
    let third = Process::<UnixStream>::join(3, &contact, |_| {});
    let (outcome, progress) = first.outcome();
    assert!(progress.iter().any(|event| matches!(event, Progress::Rejected { .. })), "{progress:?}");
    assert_meshed(vec![outcome.unwrap(), second.assembly(), third.assembly()]);
}

/// What has not proved the secret is asked again until the time is over.
const BRIEF: Duration = Duration::from_millis(500);

fn refused_as(error: &BootstrapError, expected: &Refusal) -> bool {
    matches!(error, BootstrapError::Refused { refusal, .. } if refusal == expected)
}

#[test]
fn a_wrong_secret_is_named_with_the_address() {
    let wrong = |plan: &mut Plan| {
        plan.secret = Secret::new("another secret of the tests").unwrap();
        plan.timeout = BRIEF;
    };
    one_is_wrong(wrong, |error, contact| {
        assert!(error.to_string().contains("compare `secret`"));
        matches!(error, BootstrapError::SecretRefused { address } if address == contact)
    });
}

#[test]
fn another_cluster_is_named() {
    one_is_wrong(
        |plan| (plan.cluster, plan.timeout) = ("others".into(), BRIEF),
        |error, _| matches!(error, BootstrapError::OtherCluster { cluster, .. } if cluster == "others"),
    );
}

#[test]
fn another_number_of_members_is_named() {
    let expected = Refusal::MemberCount { coordinator: 3 };
    one_is_wrong(|plan| plan.members = 4, |error, _| refused_as(error, &expected));
}

#[test]
fn another_layout_is_named() {
    one_is_wrong(|plan| plan.agreement = [1; 32], |error, _| refused_as(error, &Refusal::Agreement));
}

#[test]
fn a_rank_is_given_once() {
    let expected = Refusal::RankTaken { rank: 2 };
    one_is_wrong(|plan| plan.rank = Some(2), |error, _| refused_as(error, &expected));
}

#[test]
fn ranks_are_those_of_members() {
    for rank in [0, 3, u32::MAX] {
        let expected = Refusal::RankOutOfRange { rank };
        one_is_wrong(|plan| plan.rank = Some(rank), |error, _| refused_as(error, &expected));
    }
}

#[test]
fn who_is_no_coordinator_says_who_is() {
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let mut second = Process::<UnixStream>::join(3, &first.address, |_| {});
    second.await_joined(2);
    let error = Process::<UnixStream>::join(3, &second.address, |_| {}).error();
    let expected = Refusal::NotCoordinator { coordinator: first.address.to_string() };
    assert!(refused_as(&error, &expected), "{error:?}");
    let third = Process::<UnixStream>::join(3, &first.address, |_| {});
    assert_meshed(vec![first.assembly(), second.assembly(), third.assembly()]);
}

#[test]
fn one_too_many_is_refused() {
    let first = Process::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let contact = first.address.clone();
    // It is counted, but does not link, so the others wait.
    let puppet = Puppet::join(&plan(3, &contact), Some(1));
    let mut second = Process::<UnixStream>::join(3, &contact, |plan| plan.rank = Some(2));
    second.await_joined(3);
    let late = Process::<UnixStream>::join(3, &contact, |_| {});
    assert!(refused_as(&late.error(), &Refusal::Complete));
    drop(puppet);
    assert!(matches!(second.error(), BootstrapError::MemberLost { node: NodeId(1), .. }));
    assert!(matches!(first.error(), BootstrapError::MemberLost { node: NodeId(1), .. }));
}

#[test]
fn an_address_that_cannot_be_had_is_named() {
    let address = unix_address();
    let _listener = Listener::<UnixStream>::bind(&address).unwrap();
    let again = Listener::<UnixStream>::bind(&address).unwrap_err();
    assert!(matches!(again, BootstrapError::AddressInUse { address: named } if named == address));

    let elsewhere = Listener::<TcpStream>::bind(&"192.0.2.1:7000".parse().unwrap()).unwrap_err();
    assert!(matches!(elsewhere, BootstrapError::AddressElsewhere { .. }), "{elsewhere:?}");
    let kind = Listener::<TcpStream>::bind(&address).unwrap_err();
    assert!(matches!(kind, BootstrapError::Plan(_)));
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let plans: [fn(&mut Plan); 4] = [
        |plan| plan.members = 0,
        |plan| plan.members = MEMBERS_MAX as u32 + 1,
        |plan| plan.rank = Some(1),
        |plan| plan.unauthenticated_max = 0,
    ];
    for change in plans {
        let error = Process::<UnixStream>::coordinate(2, &unix_address(), change).error();
        assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    }
    let mixed =
        Process::<UnixStream>::join(2, &unix_address(), |plan| plan.contacts = vec![any_port()]).error();
    assert!(matches!(mixed, BootstrapError::Plan(_)), "{mixed:?}");
}
