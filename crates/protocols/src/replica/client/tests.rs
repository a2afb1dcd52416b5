//! A client's rules one by one (Derecho app. A); the simulator's scenario `replica` tests what they are for.

use super::*;

const SETTINGS: ClientSettings = ClientSettings {
    under_way_max: 3,
    timeout: Duration::from_millis(100),
    silence_max: Duration::from_millis(30),
    pause: Duration::from_millis(5),
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// Returns a client of the members 1 and 2 with `updates` updates, whose session is open at member 1, and the calls
/// of the updates that are sent.
fn client(updates: u32) -> (ShardClient<u32>, Vec<u64>) {
    let mut client = ShardClient::new(SETTINGS);
    client.handle_members(7, vec![NodeId(1), NodeId(2)]);
    (0..updates).for_each(|ticket| client.submit(at(0), ticket, Task::Update([9].into())));
    let Some(ClientAction::Ask { node, call, request: ShardRequest::Open }) = client.poll_action(at(0))
    else {
        panic!("it opens a session first");
    };
    assert_eq!((node, client.poll_action(at(0))), (NodeId(1), None), "it has no session yet");
    client.handle_answer(at(0), call, ShardAnswer::Opened(4));
    let calls = sent(&mut client, 0).into_iter().map(|(_, call, ..)| call).collect();
    (client, calls)
}

/// Returns the updates that are sent now: the member, the call, the number and how many are open before it.
fn sent(client: &mut ShardClient<u32>, millis: u64) -> Vec<(u32, u64, u64, u32)> {
    std::iter::from_fn(|| match client.poll_action(at(millis))? {
        ClientAction::Ask { node, call, request: ShardRequest::Update { number, open, .. } } => {
            Some((node.0, call, number, open))
        }
        other => panic!("{other:?}"),
    })
    .collect()
}

fn numbers(sent: &[(u32, u64, u64, u32)]) -> Vec<(u32, u64, u32)> {
    sent.iter().map(|(node, _, number, open)| (*node, *number, *open)).collect()
}

/// The largest number of updates is in flight, and an answer makes space for the next one.
#[test]
fn updates_are_numbered_and_bounded() {
    let (mut client, calls) = client(5);
    assert_eq!(calls.len(), SETTINGS.under_way_max);
    client.handle_answer(at(1), calls[0], ShardAnswer::Reply(vec![1]));
    assert_eq!(client.poll_action(at(1)), Some(ClientAction::Done(0, TaskOutcome::Reply(vec![1]))));
    assert_eq!(numbers(&sent(&mut client, 1)), [(1, 4, 2)]);
    assert_eq!(client.poll_action(at(1)), None);
}

/// Updates without an answer are sent to the next member under the same numbers, and late answers no longer count.
#[test]
fn the_next_member_gets_what_has_no_answer() {
    let (mut client, calls) = client(3);
    client.handle_answer(at(1), calls[0], ShardAnswer::Reply(Vec::new()));
    client.handle_failure(at(1), NodeId(2), "another one");
    client.handle_failure(at(1), NodeId(1), "it broke");
    assert!(matches!(client.poll_action(at(1)), Some(ClientAction::Done(0, TaskOutcome::Reply(_)))));
    assert_eq!(numbers(&sent(&mut client, 1)), [(2, 2, 0), (2, 3, 1)]);
    client.handle_answer(at(2), calls[1], ShardAnswer::Reply(Vec::new()));
    assert_eq!(client.poll_action(at(2)), None);
}

/// The client leaves a member that is silent; after a round of failures it asks for the members, and pauses.
#[test]
fn silence_and_rounds_of_failures() {
    let (mut client, _) = client(1);
    assert_eq!(client.next_deadline(), Some(at(30)));
    assert_eq!(client.poll_action(at(30)), Some(ClientAction::HangUp(NodeId(1))));
    let again = sent(&mut client, 30);
    assert_eq!(numbers(&again), [(2, 1, 0)]);
    client.handle_answer(at(31), again[0].1, ShardAnswer::NotYet);
    assert_eq!(client.poll_action(at(31)), Some(ClientAction::AskForMembers));
    assert_eq!((client.poll_action(at(31)), client.next_deadline()), (None, Some(at(36))));
    assert_eq!(numbers(&sent(&mut client, 36)), [(1, 1, 0)]);
}

/// The outcome of a sent update is unknown when its time runs out, and its number is skipped; an update that was
/// refused is not applied.
#[test]
fn a_sent_update_that_is_given_up_is_unknown() {
    let (mut client, calls) = client(2);
    client.submit(at(50), 2, Task::Update([9].into()));
    client.handle_answer(at(60), calls[0], ShardAnswer::Elsewhere);
    let unreachable = TaskOutcome::Unreachable("node 1 is not in the shard".into());
    assert_eq!(client.poll_action(at(100)), Some(ClientAction::Done(0, unreachable)));
    let unknown = TaskOutcome::Unknown(Doubt::TimeOver);
    assert_eq!(client.poll_action(at(100)), Some(ClientAction::Done(1, unknown)));
    assert_eq!(numbers(&sent(&mut client, 100)), [(2, 3, 0)]);
}

/// Of a session that was forgotten, only updates that were sent in no other conversation are sent in a new one.
#[test]
fn a_forgotten_session_does_not_apply_twice() {
    let (mut client, _) = client(2);
    client.handle_failure(at(1), NodeId(1), "it broke");
    client.submit(at(1), 2, Task::Update([9].into()));
    let again = sent(&mut client, 1);
    assert_eq!(numbers(&again), [(2, 1, 0), (2, 2, 1), (2, 3, 2)]);
    client.handle_answer(at(2), again[0].1, ShardAnswer::Forgotten);
    let unknown = TaskOutcome::Unknown(Doubt::Forgotten);
    assert_eq!(client.poll_action(at(2)), Some(ClientAction::Done(0, unknown.clone())));
    assert_eq!(client.poll_action(at(2)), Some(ClientAction::Done(1, unknown)));
    let Some(ClientAction::Ask { call, request: ShardRequest::Open, .. }) = client.poll_action(at(2)) else {
        panic!("a new session");
    };
    client.handle_answer(at(3), call, ShardAnswer::Opened(9));
    assert_eq!(numbers(&sent(&mut client, 3)), [(2, 1, 0)]);
}

/// A lost state ends all tasks, and a refusal ends one update.
#[test]
fn tasks_that_cannot_be_done_are_reported() {
    let (mut client, calls) = client(3);
    client.handle_answer(at(1), calls[0], ShardAnswer::Refused("too long".into()));
    assert_eq!(
        client.poll_action(at(1)),
        Some(ClientAction::Done(0, TaskOutcome::Refused("too long".into())))
    );
    client.handle_answer(at(1), calls[1], ShardAnswer::Lost(vec![NodeId(5)]));
    let lost = |ticket| ClientAction::Done(ticket, TaskOutcome::Lost(vec![NodeId(5)]));
    assert_eq!((client.poll_action(at(1)), client.poll_action(at(1))), (Some(lost(1)), Some(lost(2))));
    assert!(client.is_empty() && client.next_deadline().is_none());
}
