//! All interleavings for small buffers (EXS fig. 2–5).

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::pair::EndPair;
use crate::stream::{CREDITS_MIN, ReceiveId, SocketKind, StreamSettings, TransferPolicy};

/// An act of a user; scripts are sequences of these.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send(u64),
    Receive(u64),
    ReceiveAll(u64),
    CancelReceive(u64),
    End,
}
use Act::{CancelReceive, End, Receive, ReceiveAll, Send};

/// A pair and the progress of its users.
#[derive(Clone, Hash)]
struct State {
    pair: EndPair,
    done: [usize; 2],
}

/// Explores all states that `settings` and the users' scripts allow, and returns their number.
fn explore(settings: &[StreamSettings; 2], scripts: [&[Act]; 2]) -> usize {
    let mut open = vec![State { pair: EndPair::new(settings.clone()), done: [0; 2] }];
    let mut seen = BTreeSet::from([fingerprint(&open[0])]);
    while let Some(state) = open.pop() {
        let mut is_last = true;
        for (i, kind) in (0..2).flat_map(|i| (0..4).map(move |kind| (i, kind))) {
            let Some(next) = successor(&state, i, kind, scripts[i]) else { continue };
            is_last = false;
            if seen.insert(fingerprint(&next)) {
                open.push(next);
            }
        }
        if is_last {
            check_final(&state);
        }
        assert!(seen.len() < STATES_MAX, "a smaller scenario, please");
    }
    seen.len()
}

/// Returns the state after one move; `None` if that move is not possible.
fn successor(state: &State, i: usize, kind: usize, script: &[Act]) -> Option<State> {
    let mut next = state.clone();
    let moved = match kind {
        0 => {
            next.done[i] += 1;
            script
                .get(state.done[i])
                .map(|act| perform(&mut next.pair, i, *act))
                .transpose()
                .map(|act| act.is_some())
        }
        1 => next.pair.post(i),
        2 => next.pair.deliver(i),
        _ => next.pair.copy(i, u64::MAX),
    };
    // The completion of a transfer does not influence which moves are possible, so it comes at once.
    let moved = moved.and_then(|moved| next.pair.place(0).and_then(|_| next.pair.place(1)).map(|_| moved));
    match moved {
        Ok(moved) => moved.then(|| {
            next.pair.sides.iter_mut().for_each(|side| side.routes.clear());
            next
        }),
        Err(fault) => panic!("{fault}"),
    }
}

fn perform(pair: &mut EndPair, i: usize, act: Act) -> Result<(), String> {
    match act {
        Send(length) => assert!(pair.send(i, length)),
        Receive(length) => assert!(pair.receive(i, length, false)?),
        ReceiveAll(length) => assert!(pair.receive(i, length, true)?),
        CancelReceive(number) => pair.cancel_receive(i, ReceiveId(number))?,
        End => pair.end_stream(i),
    }
    Ok(())
}

/// Checks a state without further moves: nothing may be missing.
fn check_final(state: &State) {
    for i in 0..2 {
        let (side, other) = (&state.pair.sides[i], &state.pair.sides[1 - i]);
        let is_short = side.receives_outstanding() == 0;
        assert!(side.got == other.sent || is_short, "{} of {} bytes came out", side.got, other.sent);
        assert!(side.sends_outstanding() == 0 || other.receives_outstanding() == 0, "a send hangs");
        assert!(side.receives_outstanding() == 0 || !other.is_ended, "[E7] a receive hangs after the end");
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

const STATES_MAX: usize = 1_000_000;

fn small(policy: TransferPolicy) -> [StreamSettings; 2] {
    let settings = StreamSettings {
        policy,
        renewal_gap_bytes: 0,
        advert_bytes_min: 0,
        copy_bytes_per_us: 0,
        ring_words: 2,
        credits: CREDITS_MIN + 1,
        sends_max: 8,
        receives_max: 8,
        ..StreamSettings::default()
    };
    [settings.clone(), settings]
}

/// Explores under all policies, and returns the number of states.
fn explore_all(sender: &[Act], receiver: &[Act]) -> usize {
    let policies = [
        TransferPolicy::Dynamic,
        TransferPolicy::Reference,
        TransferPolicy::Direct,
        TransferPolicy::Indirect,
    ];
    policies.iter().map(|policy| explore(&small(*policy), [sender, receiver])).sum()
}

/// Sends fill the ring, wrap, and do not fit the receives \[E8\].
#[test]
fn sends_and_receives_of_any_lengths() {
    let states = explore_all(&[Send(5), Send(17), End], &[Receive(4), Receive(9), Receive(9)]);
    println!("{states} states");
    assert!(states > 5_000);
}

/// \[E7\] Receives with `wait_all` are filled before and after a change of mode.
#[test]
fn receives_with_wait_all() {
    let states = explore_all(&[Send(3), Send(9), End], &[ReceiveAll(5), Receive(2), ReceiveAll(9)]);
    println!("{states} states");
    assert!(states > 5_000);
}

/// \[E7\] A receive is cancelled at any moment, and no byte is lost.
#[test]
fn cancelled_receives() {
    let receiver = [ReceiveAll(4), Receive(6), CancelReceive(0), Receive(9)];
    let states = explore_all(&[Send(3), Send(5)], &receiver);
    println!("{states} states");
    assert!(states > 5_000);
}

/// \[E6\] Data flows in both directions with the minimum of credits.
#[test]
fn both_directions() {
    let states = both_ways(&[Send(9), Receive(8)]);
    println!("{states} states");
    assert!(states > 1_000);
}

fn both_ways(script: &[Act]) -> usize {
    let settings =
        small(TransferPolicy::Dynamic).map(|settings| StreamSettings { credits: CREDITS_MIN, ..settings });
    explore(&settings, [script, script])
}

/// \[E9\] Packets of all lengths meet receives of all lengths, including cancelled ones.
#[test]
fn packets() {
    let receiver = [Receive(5), Receive(2), CancelReceive(1), Receive(9), Receive(9)];
    let states = packet_states(&[Send(3), Send(0), Send(9)], &receiver);
    println!("{states} states");
    assert!(states > 1_000);
}

fn packet_states(sender: &[Act], receiver: &[Act]) -> usize {
    let settings = small(TransferPolicy::Dynamic)
        .map(|settings| StreamSettings { kind: SocketKind::Packets, ..settings });
    explore(&settings, [sender, receiver])
}

/// The same with longer scripts, which have some millions of states.
#[test]
#[ignore = "takes minutes"]
fn longer_scripts() {
    let lengths = [Receive(4), Receive(9), Receive(1), Receive(8), Receive(30), Receive(9)];
    let mut states = explore_all(&[Send(5), Send(20), Send(3), End], &lengths);
    let all = [ReceiveAll(5), Receive(2), ReceiveAll(7), ReceiveAll(20), Receive(9)];
    states += explore_all(&[Send(3), Send(9), Send(1), Send(6), End], &all);
    let cancels =
        [ReceiveAll(4), Receive(6), CancelReceive(0), Receive(9), CancelReceive(1), Receive(30), Receive(30)];
    states += explore_all(&[Send(3), Send(5), End], &cancels);
    states += both_ways(&[Send(9), Receive(8), Receive(8)]);
    let mixed = [
        Receive(5),
        Receive(2),
        Receive(4),
        CancelReceive(1),
        Receive(9),
        Receive(9),
        Receive(9),
        Receive(1),
    ];
    states += packet_states(&[Send(3), Send(0), Send(9), Send(2), End], &mixed);
    println!("{states} states");
}
