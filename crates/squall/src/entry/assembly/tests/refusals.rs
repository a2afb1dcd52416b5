//! Processes whose plan differs: each gets its reason, and the others continue.

use super::*;

/// Starts a group of three and a process whose plan is wrong: it must get the error that `expected` recognises, and
/// the others meet without it.
fn one_is_wrong(
    change: impl FnOnce(&mut BootstrapPlan),
    expected: impl FnOnce(&BootstrapError, &Address) -> bool,
) {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let contact = first.address.clone();
    let second = TestProcess::<UnixStream>::join(3, &contact, |plan| plan.rank = Some(2));
    first.await_joined(2);
    let error = TestProcess::<UnixStream>::join(3, &contact, change).error();
    assert!(expected(&error, &contact), "{error:?}");
    let third = TestProcess::<UnixStream>::join(3, &contact, |_| {});
    first.await_event(|event| matches!(event, BootstrapProgress::Rejected { .. }));
    assert_all_meshed([first, second, third]);
}

/// A contact that has not proved the secret is asked again until the time runs out.
const BRIEF: Duration = Duration::from_secs(1);

fn refused_as(error: &BootstrapError, expected: &Refusal) -> bool {
    matches!(error, BootstrapError::Refused { refusal, .. } if refusal == expected)
}

#[test]
fn a_wrong_secret_is_named_with_the_address() {
    let wrong = |plan: &mut BootstrapPlan| {
        plan.secret = Secret::new("another secret of the tests").unwrap();
        plan.timeout = BRIEF;
    };
    one_is_wrong(wrong, |error, contact| {
        assert!(error.to_string().contains("compare `secret`"));
        matches!(error, BootstrapError::SecretRefused { address } if address == contact)
    });
}

/// A contact that gathers, and that no process joins for this reason, gets the error, too.
#[test]
fn a_wrong_secret_is_named_at_another_contact() {
    let contacts = [unix_address(), unix_address()];
    let first = TestProcess::<UnixStream>::at(&contacts[0], plan(2, &contacts));
    let mut wrong = plan(2, &contacts);
    (wrong.secret, wrong.timeout) = (Secret::new("another secret of the tests").unwrap(), BRIEF);
    let error = TestProcess::<UnixStream>::at(&contacts[1], wrong).error();
    assert!(
        matches!(&error, BootstrapError::SecretRefused { address } if *address == contacts[0]),
        "{error:?}"
    );
    let second = TestProcess::at(&contacts[1], plan(2, &contacts));
    assert_all_meshed([first, second]);
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
    let window = |value: &str| Agreement::new([("`window`".into(), value.into())]);
    one_is_wrong(
        |plan| plan.agreement = window("64"),
        |error, _| {
            assert!(error.to_string().contains("`window` is 64 here and missing there"), "{error}");
            matches!(error, BootstrapError::Refused { refusal: Refusal::Agreement(_), .. })
        },
    );
}

#[test]
fn a_rank_is_given_once() {
    let expected = Refusal::RankTaken { rank: 2 };
    one_is_wrong(|plan| plan.rank = Some(2), |error, _| refused_as(error, &expected));
}

#[test]
fn ranks_are_those_of_members() {
    for rank in [3, u32::MAX] {
        let expected = Refusal::RankOutOfRange { rank };
        one_is_wrong(|plan| plan.rank = Some(rank), |error, _| refused_as(error, &expected));
    }
}

/// With two lists of contacts, two groups could begin.
#[test]
fn another_list_of_contacts_is_named() {
    let contacts = [unix_address(), unix_address()];
    let first = TestProcess::<UnixStream>::at(&contacts[0], plan(2, &contacts[..1]));
    let error = TestProcess::<UnixStream>::at(&contacts[1], plan(2, &contacts)).error();
    assert!(refused_as(&error, &Refusal::Contacts), "{error:?}");
    assert!(error.to_string().contains("set the same `contacts` for all processes"), "{error}");
    let second = TestProcess::join(2, &contacts[0], |_| {});
    assert_all_meshed([first, second]);
}

/// A process that is not a contact redirects others to the contact that it follows, which they ask only if they know
/// it, too.
#[test]
fn a_follower_names_its_coordinator() {
    let first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let mut second = TestProcess::<UnixStream>::join(3, &first.address, |_| {});
    second.await_joined(2);
    let stray = TestProcess::<UnixStream>::join(3, &second.address, |plan| plan.timeout = BRIEF);
    let error = stray.error();
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("it follows another contact"), "{error}");
    let contacts = [second.address.clone(), first.address.clone()];
    let third = TestProcess::outside(plan(3, &contacts));
    assert_all_meshed([first, second, third]);
}

/// A process that comes when the group is complete waits, and takes the place of a member that dies.
#[test]
fn one_too_many_waits() {
    let mut first = TestProcess::<UnixStream>::coordinate(3, &unix_address(), |_| {});
    let contact = first.address.clone();
    // The puppet is counted but does not link, so the others wait.
    let puppet = Puppet::join(&plan(3, std::slice::from_ref(&contact)), 1, None);
    let second = TestProcess::<UnixStream>::join(3, &contact, |plan| plan.rank = Some(2));
    first.await_joined(3);
    let mut late = TestProcess::<UnixStream>::join(3, &contact, |_| {});
    late.await_event(
        |event| matches!(event, BootstrapProgress::Calling { cause, .. } if cause.contains("linking")),
    );
    drop(puppet);
    assert_all_meshed([first, second, late]);
}
