//! Step-by-step tests of a member's side (Derecho §3.3).

use super::*;

type Service = AdmissionService<u32>;

fn view(id: u64, nodes: &[(u32, u64)]) -> View {
    let member = |(node, tag): &(u32, u64)| Member { node: NodeId(*node), tag: *tag };
    View { id, ..View::first(nodes.iter().map(member).collect()) }
}

fn at(seconds: u64) -> Instant {
    Instant::default() + Duration::from_secs(seconds)
}

/// Returns a member of a group of nodes 0, 1 and 2. The address of each is its number.
fn service(node: u32) -> (Service, View) {
    let roster = (0..3).map(|node| (NodeId(node), node)).collect();
    (
        AdmissionService::new(AdmissionSettings::default(), NodeId(node), roster),
        view(0, &[(0, 0), (1, 1), (2, 2)]),
    )
}

fn actions(service: &mut Service) -> Vec<AdmissionAction> {
    std::iter::from_fn(|| service.poll_action()).collect()
}

/// Makes a process the candidate. Returns its number.
fn admit(service: &mut Service, now: Instant, view: &View) -> NodeId {
    match service.handle_request(now, None, Some(view), true, |_| true) {
        JoinAnswer::Admit(admitted) => admitted.node,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_candidate_becomes_a_member_in_the_next_view() {
    let (mut service, mut first) = service(0);
    let node = admit(&mut service, at(0), &first);
    assert_eq!(service.handle_link(at(1), node, 9, &first, false), LinkVerdict::Take);
    service.poll_view(&first, |_| true);
    assert_eq!(actions(&mut service), [], "it has not linked with all members");
    service.handle_connected(node);
    service.poll_view(&first, |_| true);
    service.poll_view(&first, |_| true);
    let member = Member { node, tag: 3 };
    assert_eq!(actions(&mut service), [AdmissionAction::Admit(member)], "once in each view");
    first.id = 1;
    service.handle_view(&first, |_| false, |_| true);
    assert_eq!(actions(&mut service), [AdmissionAction::Admit(member)], "another view came before");
    let second = view(2, &[(0, 0), (1, 1), (2, 2), (node.0, 3)]);
    assert_eq!(service.handle_view(&second, |_| false, |_| true), [node]);
    assert_eq!((service.candidate(), service.links(), service.roster().len()), (None, 0, 4));
    assert_eq!(service.next_deadline(), None);
}

#[test]
fn only_the_leader_of_a_ready_view_admits_one_process_at_a_time() {
    let (mut leader, first) = service(0);
    let (mut follower, _) = service(1);
    assert_eq!(follower.handle_request(at(0), None, Some(&first), true, |_| true), JoinAnswer::Redirect(0));
    let waits = |answer: JoinAnswer<u32>| matches!(answer, JoinAnswer::Wait(_));
    assert!(waits(leader.handle_request(at(0), None, Some(&first), false, |_| true)));
    assert!(waits(leader.handle_request(at(0), None, None, true, |_| true)));
    assert!(waits(leader.handle_request(at(0), Some(2), Some(&first), true, |_| true)), "the rank is taken");
    let node = admit(&mut leader, at(0), &first);
    assert!(waits(leader.handle_request(at(0), None, Some(&first), true, |_| true)));
    leader.handle_gone(NodeId(node.0 + 1));
    assert_eq!(leader.candidate(), Some(node), "another process is gone");
    leader.handle_gone(node);
    assert_ne!(admit(&mut leader, at(0), &first), node);
    assert_eq!(leader.next_deadline(), Some(at(10)));
    leader.handle_timeout(at(10), |_| false);
    assert!(matches!(actions(&mut leader)[..], [AdmissionAction::Dismiss(_)]), "it took too long");
    admit(&mut leader, at(10), &first);
}

#[test]
fn a_member_without_a_link_reports_it() {
    let (mut service, first) = service(1);
    let node = NodeId(ADMITTED);
    assert_eq!(service.handle_link(at(0), node, 9, &first, false), LinkVerdict::Take);
    assert_eq!(service.handle_link(at(0), node, 8, &first, false), LinkVerdict::Report);
    let [AdmissionAction::Part(parted, _), AdmissionAction::ReportLost(lost)] = actions(&mut service)[..]
    else {
        panic!("both links are closed, and the group learns of it");
    };
    assert_eq!((parted, lost), (node, node));
    assert_eq!(service.handle_link(at(0), node, 9, &first, false), LinkVerdict::Take);
    service.handle_link_failed(node);
    assert_eq!(actions(&mut service), [AdmissionAction::ReportLost(node)]);
    assert_eq!(
        service.handle_link(at(0), NodeId(2), 9, &first, false),
        LinkVerdict::Close,
        "a member has this number"
    );
    assert_eq!(service.roster().len(), 3);
    service.handle_view(&first, |_| false, |_| true);
}

/// Its leader is gone, and the next one does not know it: it asks again at once, since its links end \[J11\].
#[test]
fn candidates_of_earlier_leaders_are_let_go() {
    let run = || {
        let (mut service, first) = service(1);
        service.handle_view(&first, |_| false, |_| true);
        let earlier = NodeId(ADMITTED);
        service.handle_link(at(0), earlier, 9, &first, false);
        service.handle_view(&View { id: 1, ..first.clone() }, |_| false, |_| true);
        assert_eq!(actions(&mut service), [], "the leader may still propose it");
        let second = view(2, &[(1, 1), (2, 2)]);
        service.handle_view(&second, |_| false, |_| true);
        let late = service.handle_link(at(0), NodeId(earlier.0 + 1), 9, &second, false);
        (actions(&mut service), late)
    };
    let (parted, late) = run();
    assert!(matches!(parted[..], [AdmissionAction::Part(node, _)] if node == NodeId(ADMITTED)), "{parted:?}");
    assert_eq!(late, LinkVerdict::Close, "no view will come with it, either");
    let kept = mutation::with(mutation::AdmissionMutation::KeepOutdated, run);
    assert_eq!(kept, (Vec::new(), LinkVerdict::Take));
}

#[test]
fn a_joiner_that_the_group_has_lost_can_ask_again() {
    let (mut service, first) = service(1);
    let node = NodeId(ADMITTED);
    service.handle_link(at(0), node, 9, &first, false);
    let after = view(2, &[(0, 0), (1, 1), (2, 2)]);
    assert!(service.handle_view(&after, |lost| lost == node, |_| true).is_empty());
    assert!(matches!(actions(&mut service)[..], [AdmissionAction::Part(parted, _)] if parted == node));
    assert_eq!(service.roster().len(), 3);
}

#[test]
fn a_leader_without_numbers_asks_for_the_next_view() {
    let (mut service, mut first) = service(0);
    for _ in 0..super::super::ADMISSIONS_MAX {
        let node = admit(&mut service, at(0), &first);
        service.handle_gone(node);
    }
    assert!(matches!(service.handle_request(at(0), None, Some(&first), true, |_| true), JoinAnswer::Wait(_)));
    assert_eq!(actions(&mut service), [AdmissionAction::Renew]);
    first.id = 1;
    admit(&mut service, at(0), &first);
    first.id = u64::MAX;
    service.handle_timeout(at(10), |_| false);
    assert!(matches!(
        service.handle_request(at(10), None, Some(&first), true, |_| true),
        JoinAnswer::Refuse(_)
    ));
}

/// \[J5\] A process that the group does not take is not admitted, nor does it stay the candidate: others would wait for it.
#[test]
fn a_process_that_the_group_does_not_take_is_not_in_the_way_of_others() {
    let (mut service, first) = service(0);
    let without_7 = |rank: u64| rank != 7;
    let answer = service.handle_request(at(0), Some(7), Some(&first), true, without_7);
    assert!(matches!(answer, JoinAnswer::Wait(_)) && service.candidate().is_none());
    let JoinAnswer::Admit(admitted) =
        service.handle_request(at(0), None, Some(&first), true, |rank| rank > 4)
    else {
        panic!("it did not ask for a rank");
    };
    assert_eq!(admitted.rank, 5, "the lowest with which the group takes it");
    service.handle_link(at(0), admitted.node, 9, &first, false);
    service.handle_connected(admitted.node);
    service.poll_view(&first, |_| false);
    assert!(
        matches!(actions(&mut service)[..], [AdmissionAction::Part(parted, _)] if parted == admitted.node)
    );
    assert_eq!((service.candidate(), service.links()), (None, 0));
    admit(&mut service, at(0), &first);
}

/// \[J10\] A process that is in the view keeps its link, whatever happens before all members have begun it.
#[test]
fn the_link_of_a_member_is_left_to_the_group() {
    let (mut service, first) = service(1);
    let node = NodeId(ADMITTED);
    service.handle_link(at(0), node, 9, &first, false);
    let second = view(1, &[(0, 0), (1, 1), (2, 2), (node.0, 3)]);
    service.handle_peer_lost(node, true);
    service.handle_timeout(at(200), |other| other == node);
    assert!(service.next_deadline() > Some(at(200)));
    assert_eq!(
        service.handle_view(&second, |lost| lost == node, |_| true),
        [node],
        "the driver has to remove it"
    );
    assert_eq!(actions(&mut service), []);
    // The same process before it is in the view.
    let other = NodeId(ADMITTED + 1);
    service.handle_link(at(201), other, 8, &second, false);
    service.handle_peer_lost(other, false);
    assert!(matches!(actions(&mut service)[..], [AdmissionAction::Part(parted, _)] if parted == other));
}

/// When another member becomes the leader, the candidate of the previous leader is dropped.
#[test]
fn a_candidate_does_not_survive_its_leader() {
    let (mut service, first) = service(0);
    let node = admit(&mut service, at(0), &first);
    service.handle_link(at(0), node, 9, &first, false);
    service.handle_connected(node);
    service.poll_view(&view(1, &[(1, 1), (0, 0)]), |_| true);
    assert!(matches!(actions(&mut service)[..], [AdmissionAction::Part(parted, _)] if parted == node));
    assert_eq!((service.candidate(), service.links()), (None, 0));
}

/// A number that is assigned in view 0.
const ADMITTED: u32 = crate::membership::MEMBERS_MAX as u32;
