//! Tests of rules that few random runs reach, and of what the driver relies on (Derecho §2.2).

use squall_fabric::{Duration, Instant, NodeId};

use super::mutation::{AssemblyMutation, with};
use super::*;
use crate::admission::CallFailure;

type Core = Assembler<char, String>;

fn start() -> Instant {
    Instant::from_nanos(0)
}

fn process(own: char, members: u32, contacts: &[char]) -> Core {
    let second = Duration::from_secs(1);
    let settings = AssemblySettings::new(members, second * 10, second);
    let place = contacts.iter().position(|contact| *contact == own);
    Assembler::new(settings, ContactList::new(contacts.to_vec(), place), own, start())
}

fn actions(core: &mut Core) -> Vec<AssemblyAction<char>> {
    std::iter::from_fn(|| core.poll_action(start())).collect()
}

fn claim(own: char, members: u32) -> AssemblyClaim<char> {
    AssemblyClaim { members, agreement: [0; 32], rank: None, listen: own, contact: None }
}

/// Returns a coordinator whose roster is `a`, `b` and `c`, while `d` asks as well.
fn introduced() -> Core {
    let mut core = process('a', 3, &['a']);
    for (visitor, own) in (0..).zip(['b', 'c', 'd']) {
        core.handle_claim(start(), VisitorId(visitor), claim(own, 3));
    }
    actions(&mut core);
    core
}

fn begins(core: &mut Core) -> bool {
    actions(core).iter().any(|action| matches!(action, AssemblyAction::Begin(_)))
}

/// The report of `b` for the first roster arrives after `c` was lost and the second roster was made.
fn takes_stale_report() -> bool {
    let mut core = introduced();
    core.handle_claim(start(), VisitorId(3), claim('d', 3));
    core.handle_lost(start(), VisitorId(1));
    core.handle_claim(start(), VisitorId(4), claim('d', 3));
    actions(&mut core);
    core.handle_report(VisitorId(4), 1);
    core.handle_report(VisitorId(0), 0);
    begins(&mut core)
}

#[test]
fn a_report_counts_only_for_its_own_roster() {
    assert!(!takes_stale_report());
    assert!(with(AssemblyMutation::TakeStaleReport, takes_stale_report));
}

/// In a group of one, the first contact begins at once.
#[test]
fn a_group_of_one_begins_by_itself() {
    assert!(begins(&mut process('a', 1, &['a', 'b', 'c'])));
    assert!(!begins(&mut process('b', 1, &['a', 'b', 'c'])));
}

#[test]
fn the_roster_has_all_members_in_the_order_of_their_ranks() {
    let mut core = process('a', 3, &['a']);
    core.handle_claim(start(), VisitorId(0), claim('b', 3));
    core.handle_claim(start(), VisitorId(1), AssemblyClaim { rank: Some(0), ..claim('c', 3) });
    let rosters: Vec<_> = actions(&mut core)
        .into_iter()
        .filter_map(|action| match action {
            AssemblyAction::Notify(_, AssemblyNotice::Roster { node, coordinator, listen, .. }) => {
                Some((node, coordinator, listen))
            }
            _ => None,
        })
        .collect();
    let listen = vec!['c', 'a', 'b'];
    assert_eq!(rosters, [(NodeId(0), NodeId(1), listen.clone()), (NodeId(2), NodeId(1), listen)]);
}

#[test]
fn an_impossible_claim_is_refused_with_the_reason() {
    let mut core = process('a', 3, &['a', 'b']);
    let mut refusal = |claim| {
        core.handle_claim(start(), VisitorId(9), claim);
        actions(&mut core).into_iter().find_map(|action| match action {
            AssemblyAction::Answer(_, AssemblyAnswer::Refused(refusal)) => Some(refusal),
            _ => None,
        })
    };
    let other = |members, rank| AssemblyClaim { rank, ..claim('x', members) };
    assert_eq!(refusal(other(4, None)), Some(AssemblyRefusal::MemberCount { coordinator: 3 }));
    assert_eq!(refusal(other(3, Some(3))), Some(AssemblyRefusal::RankOutOfRange { rank: 3 }));
    assert_eq!(
        refusal(AssemblyClaim { agreement: [1; 32], ..other(3, None) }),
        Some(AssemblyRefusal::Agreement)
    );
    let contact = Some((1, vec!['a', 'c']));
    assert_eq!(refusal(AssemblyClaim { contact, ..other(3, None) }), Some(AssemblyRefusal::Contacts));
    assert_eq!(refusal(other(3, Some(1))), None);
    assert_eq!(refusal(other(3, Some(1))), Some(AssemblyRefusal::RankTaken { rank: 1 }));
}

/// A process gives up if all contacts refuse its configuration, not if one does.
#[test]
fn a_refusal_by_all_contacts_ends_a_process() {
    let mut core = process('x', 3, &['a', 'b']);
    let gives_up = |core: &mut Core| {
        assert!(matches!(actions(core)[..], [.., AssemblyAction::Ask { .. }]));
        core.handle_failure(start(), CallFailure::Never("other subgroups".into()));
        matches!(core.actions.back(), Some(AssemblyAction::GiveUp(AssemblyFailure::Hopeless(_))))
    };
    assert!(!gives_up(&mut core));
    assert!(gives_up(&mut core));
    assert_eq!(core.take_error().as_deref(), Some("other subgroups"));
}

fn unproved(core: &mut Core) -> bool {
    assert!(matches!(actions(core)[..], [.., AssemblyAction::Ask { .. }]));
    core.handle_failure(start(), CallFailure::Unproved("another secret".into()));
    matches!(core.actions.back(), Some(AssemblyAction::GiveUp(AssemblyFailure::Hopeless(_))))
}

/// A contact that follows another one refuses what that one refuses.
#[test]
fn a_refusal_by_the_contact_that_the_others_follow_ends_a_process() {
    let mut core = process('x', 3, &['a', 'b']);
    let asks = |core: &mut Core, whom: char| {
        let asked = actions(core);
        assert!(
            matches!(asked[..], [.., AssemblyAction::Ask { contact, .. }] if contact == whom),
            "{asked:?}"
        );
    };
    let never = || CallFailure::Never("other subgroups".into());
    asks(&mut core, 'a');
    core.handle_failure(start(), never());
    asks(&mut core, 'b');
    core.handle_answer(start(), AssemblyAnswer::Redirect('a'));
    asks(&mut core, 'a');
    core.handle_failure(start(), never());
    assert!(matches!(core.actions.back(), Some(AssemblyAction::GiveUp(AssemblyFailure::Hopeless(_)))));
}

/// A process whose proof all contacts refuse ends at once. The first contact of two stays: the other one may be wrong.
#[test]
fn a_process_that_all_contacts_refuse_without_a_proof_ends() {
    let mut outside = process('x', 3, &['a', 'b']);
    assert!(!unproved(&mut outside));
    assert!(unproved(&mut outside));
    assert_eq!(outside.take_error().as_deref(), Some("another secret"));
    assert!(unproved(&mut process('b', 3, &['a', 'b'])));
    assert!(!unproved(&mut process('a', 3, &['a', 'b'])));
}

/// One process that gathers others is not ended by what strangers say.
#[test]
fn a_process_that_has_gathered_another_stays() {
    let mut core = process('b', 3, &['a', 'b']);
    core.handle_claim(start(), VisitorId(0), claim('x', 3));
    assert!(!unproved(&mut core));
}

/// A contact says which others are missing and why: at once, then seldom, and when it gives up.
#[test]
fn a_contact_names_the_others_that_are_missing() {
    let mut core = process('b', 3, &['a', 'b', 'c']);
    let (mut now, mut reported) = (start(), Vec::new());
    let failure = loop {
        match core.poll_action(now) {
            Some(AssemblyAction::Ask { contact: 'a', .. }) => {
                core.handle_failure(now, CallFailure::Unheard("no process listens there".into()));
            }
            // It will ask this process, which precedes it.
            Some(AssemblyAction::Ask { .. }) => {
                core.handle_answer(now, AssemblyAnswer::Later("later".into()))
            }
            Some(AssemblyAction::Progress(AssemblyProgress::Calling { contact, cause })) => {
                assert_eq!((contact, cause.as_str()), ('a', "no process listens there"));
                reported.push(now.since(start()).as_secs());
            }
            Some(AssemblyAction::GiveUp(failure)) => break failure,
            Some(_) => {}
            None => now = core.next_deadline().unwrap(),
        }
    };
    assert_eq!(reported, [0, 4], "of some forty calls in ten seconds");
    let missing = vec![
        ('a', "no process listens there".into()),
        ('c', "it runs, and has not joined this process: see its log".into()),
    ];
    assert_eq!(failure, AssemblyFailure::Incomplete { joined: 1, missing, coordinator: None });
}
