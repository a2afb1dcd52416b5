//! Tests of the joiner, step by step (Derecho §3.3).

use squall_fabric::NodeId;

use super::*;
use crate::membership::StopReason;

type Process = Joiner<u32, String>;
type Action = JoinerAction<u32>;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn joiner(contacts: &[u32]) -> Process {
    let span = Duration::from_secs;
    let settings = JoinerSettings::new(span(60), span(2), span(7));
    Joiner::new(settings, contacts.to_vec(), at(0))
}

fn asks(joiner: &mut Process, millis: u64) -> u32 {
    match joiner.poll_action(at(millis)) {
        Some(Action::Ask { contact, .. }) => contact,
        action => panic!("{action:?}"),
    }
}

fn again(joiner: &mut Process, millis: u64) {
    joiner.handle_failure(at(millis), CallFailure::Again("no process listens there".into()));
}

/// Node 0 admits node 7; 1 and 2 are members. The address of each is ten times its number.
fn admitted() -> JoinAnswer<u32> {
    let members = (0..3).map(|node| (NodeId(node), node * 10)).collect();
    JoinAnswer::Admit(Admitted { node: NodeId(7), rank: 3, leader: NodeId(0), members })
}

/// Returns a joiner that has all its links at time 0.
fn begun(contacts: &[u32]) -> Process {
    let mut joiner = joiner(contacts);
    asks(&mut joiner, 0);
    joiner.handle_answer(at(0), admitted());
    link(&mut joiner);
    joiner
}

fn link(joiner: &mut Process) {
    for member in [1, 2] {
        let Some(Action::Link { own: NodeId(7), node, address, .. }) = joiner.poll_action(at(1)) else {
            panic!("it links with {member}");
        };
        assert_eq!((node.0, address), (member, member * 10));
        assert_eq!(joiner.poll_action(at(1)), None, "one call at a time");
        joiner.handle_linked(at(1));
    }
    assert!(matches!(joiner.poll_action(at(1)), Some(Action::Report { .. })));
    joiner.handle_reported();
    assert!(matches!(joiner.poll_action(at(1)), Some(Action::Begin(admitted)) if admitted.rank == 3));
    assert_eq!(joiner.poll_action(at(1)), None);
}

#[test]
fn a_joiner_links_with_all_members_and_arrives() {
    let mut joiner = begun(&[0]);
    assert_eq!(
        joiner.next_deadline(),
        Some(at(17_001)),
        "a leader that answers nothing is waited for, as long as any"
    );
    joiner.handle_arrival(at(5), JoinStanding::Opening);
    assert_eq!(joiner.next_deadline(), Some(at(60_000)));
    joiner.handle_arrival(at(6), JoinStanding::Ready);
    assert!(joiner.is_over() && joiner.poll_action(at(7)).is_none() && joiner.next_deadline().is_none());
}

/// A contact that does not answer costs no pause while others remain; a pause follows each round.
#[test]
fn contacts_are_asked_in_turn() {
    let mut joiner = joiner(&[4, 5]);
    assert_eq!(asks(&mut joiner, 0), 4);
    again(&mut joiner, 1);
    assert_eq!(asks(&mut joiner, 1), 5);
    again(&mut joiner, 2);
    assert_eq!((joiner.poll_action(at(21)), joiner.next_deadline()), (None, Some(at(22))));
    assert_eq!(asks(&mut joiner, 22), 4);
    joiner.handle_answer(at(23), JoinAnswer::Wait("its view changes just now".into()));
    assert_eq!(joiner.next_deadline(), Some(at(63)), "pauses grow");
}

/// While the leadership changes, members may redirect to each other.
#[test]
fn redirections_in_a_cycle_end() {
    let mut joiner = joiner(&[0]);
    assert_eq!(asks(&mut joiner, 0), 0);
    for hop in 0..HOPS_MAX {
        joiner.handle_answer(at(0), JoinAnswer::Redirect(hop % 2 + 1));
        assert_eq!(asks(&mut joiner, 0), hop % 2 + 1);
    }
    joiner.handle_answer(at(0), JoinAnswer::Redirect(1));
    assert_eq!((joiner.poll_action(at(0)), joiner.next_deadline()), (None, Some(at(20))));
    assert_eq!(asks(&mut joiner, 20), 0);
    joiner.handle_answer(at(20), JoinAnswer::Redirect(0));
    assert_eq!(
        joiner.poll_action(at(20)),
        None,
        "a member that redirects to itself does not know the leader"
    );
}

/// Its only contact was the leader, which has died, so it asks the members that it knows from the admission.
#[test]
fn a_joiner_asks_the_known_members_when_its_contact_is_gone() {
    let mut joiner = joiner(&[0]);
    asks(&mut joiner, 0);
    joiner.handle_answer(at(0), admitted());
    assert!(matches!(joiner.poll_action(at(0)), Some(Action::Link { .. })));
    again(&mut joiner, 5);
    assert_eq!(joiner.poll_action(at(5)), Some(Action::Abandon), "its links are closed first");
    assert_eq!((joiner.poll_action(at(24)), joiner.next_deadline()), (None, Some(at(25))));
    let mut asked = Vec::new();
    for second in 1..4 {
        asked.push(asks(&mut joiner, 1000 * second));
        again(&mut joiner, 1000 * second);
    }
    asked.sort_unstable();
    assert_eq!(asked, [0, 10, 20]);
}

#[test]
fn a_removed_joiner_asks_again_a_bounded_number_of_times() {
    let mut joiner = begun(&[0]);
    for removal in 0..REMOVALS_MAX {
        joiner.handle_arrival(at(1), JoinStanding::Removed(StopReason::Excluded));
        assert_eq!(joiner.poll_action(at(1)), Some(Action::Abandon), "{removal}");
        asks(&mut joiner, 1);
        joiner.handle_answer(at(1), admitted());
        link(&mut joiner);
    }
    joiner.handle_arrival(at(1), JoinStanding::Removed(StopReason::Excluded));
    let removed = JoinFailure::Removed(StopReason::Excluded);
    assert_eq!(joiner.poll_action(at(1)), Some(Action::GiveUp(removed)));
    assert!(joiner.is_over());
}

#[test]
fn the_wait_for_the_view_of_a_dead_leader_is_bounded() {
    let mut joiner = begun(&[0]);
    joiner.handle_arrival(at(10), JoinStanding::Waiting { has_lost_leader: true });
    joiner.handle_arrival(at(20), JoinStanding::Waiting { has_lost_leader: true });
    assert_eq!(joiner.next_deadline(), Some(at(10_010)));
    joiner.handle_arrival(at(1000), JoinStanding::Opening);
    assert_eq!(joiner.next_deadline(), Some(at(60_000)), "the others had learned of it");
    let mut joiner = begun(&[0]);
    joiner.handle_arrival(at(10), JoinStanding::Waiting { has_lost_leader: true });
    joiner.handle_arrival(at(10_010), JoinStanding::Waiting { has_lost_leader: true });
    assert_eq!(joiner.poll_action(at(10_010)), Some(Action::Abandon));
    asks(&mut joiner, 10_010);
}

/// The leader dies after it has proposed the joiner: if that left at once, the group would lose two members \[J9\].
#[test]
fn a_joiner_that_has_reported_does_not_leave_with_its_leader() {
    let leaves = || {
        let mut joiner = begun(&[0]);
        joiner.handle_arrival(at(10), JoinStanding::Waiting { has_lost_leader: true });
        joiner.poll_action(at(10)) == Some(Action::Abandon)
    };
    assert!(!leaves());
    assert!(mutation::with(mutation::AdmissionMutation::AbandonReport, leaves));
}

/// It has reported to a leader that is cut off meanwhile: no view comes, and no end of the connection.
#[test]
fn the_wait_for_the_view_of_a_silent_leader_is_bounded() {
    let waiting = JoinStanding::Waiting { has_lost_leader: false };
    let mut joiner = begun(&[0]);
    joiner.handle_arrival(at(17_000), waiting);
    assert_eq!(joiner.poll_action(at(17_000)), None, "the next view may count on it");
    joiner.handle_arrival(at(17_001), waiting);
    assert_eq!(joiner.poll_action(at(17_001)), Some(Action::Abandon));
}

#[test]
fn a_joiner_gives_up_with_the_reason() {
    let late = |arrival| {
        let mut joiner = begun(&[0]);
        joiner.handle_arrival(at(60_000), arrival);
        joiner.poll_action(at(60_000))
    };
    let waiting = JoinStanding::Waiting { has_lost_leader: false };
    assert_eq!(late(waiting), Some(Action::GiveUp(JoinFailure::NoView)));
    assert_eq!(late(JoinStanding::Opening), Some(Action::GiveUp(JoinFailure::NotReady)));
    let mut joiner = joiner(&[0]);
    asks(&mut joiner, 59_990);
    again(&mut joiner, 59_990);
    let cause = JoinFailure::NotAdmitted("no process listens there".into());
    assert_eq!(joiner.poll_action(at(59_990)), Some(Action::GiveUp(cause)));
    assert_eq!(joiner.take_error(), None);
}

/// A contact may, for example, run another release; then the others are asked. The joiner gives up once all contacts
/// have refused it permanently.
#[test]
fn a_joiner_gives_up_when_no_contact_can_ever_admit_it() {
    let mut joiner = joiner(&[4, 5]);
    let never = |joiner: &mut Process| joiner.handle_failure(at(0), CallFailure::Never("no".to_owned()));
    asks(&mut joiner, 0);
    never(&mut joiner);
    assert_eq!(asks(&mut joiner, 0), 5);
    never(&mut joiner);
    assert_eq!(joiner.poll_action(at(0)), Some(Action::GiveUp(JoinFailure::Hopeless("no".into()))));
    assert_eq!(joiner.take_error(), Some("no".into()));
}

/// A member that has only just begun accepts links a moment later. A member that may have received a request is not
/// asked again under the same number.
#[test]
fn a_link_request_that_was_not_received_is_repeated() {
    let unheard = || CallFailure::Unheard("its group has not come together yet".into());
    let links =
        |joiner: &mut Process, millis| matches!(joiner.poll_action(at(millis)), Some(Action::Link { .. }));
    let mut joiner = joiner(&[0]);
    asks(&mut joiner, 0);
    joiner.handle_answer(at(0), admitted());
    for millis in [0, 20, 190] {
        assert!(links(&mut joiner, millis));
        joiner.handle_failure(at(millis), unheard());
        assert_eq!((joiner.poll_action(at(millis)), joiner.next_deadline()), (None, Some(at(millis + 20))));
    }
    assert!(links(&mut joiner, 210));
    joiner.handle_failure(at(210), unheard());
    assert_eq!(joiner.poll_action(at(210)), Some(Action::Abandon));
}

/// A process whose proof all contacts refuse ends at once, with the cause.
#[test]
fn a_joiner_that_all_contacts_refuse_without_a_proof_ends() {
    let mut joiner = joiner(&[1, 2]);
    let unproved = |joiner: &mut Process| {
        asks(joiner, 0);
        joiner.handle_failure(at(0), CallFailure::Unproved("another secret".to_owned()));
    };
    unproved(&mut joiner);
    unproved(&mut joiner);
    let Some(Action::GiveUp(JoinFailure::Hopeless(_))) = joiner.poll_action(at(0)) else {
        panic!("{joiner:?}")
    };
    assert_eq!(joiner.take_error().as_deref(), Some("another secret"));
}
