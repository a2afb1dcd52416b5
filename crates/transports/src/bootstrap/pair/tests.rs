//! Doors and callers in one process.

use std::io::{Read as _, Write as _};

use super::*;

fn terms(choice: Choice) -> Terms {
    let secret = Secret::new("a secret of more than sixteen bytes").expect("long enough");
    Terms { choice, timeout: Duration::from_secs(20), ..Terms::new("pair-test", &secret) }
}

fn door(choice: Choice) -> Door {
    Door::open(&"127.0.0.1:0".parse().expect("an address"), &terms(choice)).expect("a free port")
}

fn accept(door: &Door) -> Meeting {
    door.accept(Some(Duration::from_secs(20))).expect("no shortage").expect("somebody called")
}

#[test]
fn on_one_host_they_meet_in_shared_memory() {
    let door = door(Choice::Auto);
    let near = call(door.address(), &terms(Choice::Auto)).expect("the door is open");
    let (Meeting::Shm(mut near), Meeting::Shm(mut far)) = (near, accept(&door)) else {
        panic!("it is one host")
    };
    near.write_all(b"nothing else").expect("connected");
    let mut bytes = [0; 12];
    far.read_exact(&mut bytes).expect("connected");
    assert_eq!(&bytes, b"nothing else", "nothing of the bootstrap is left");
}

/// Without devices: the answers alone.
#[test]
fn rdma_is_used_if_one_end_asks_and_the_other_may() {
    use Answer::{Accepted, AcceptedByRdma, Refused};
    let answer = |door: Choice, caller: Choice, device| {
        door.answer(caller.wish(|| false), || device, || panic!("the caller has none"))
    };
    for caller in [Choice::Auto, Choice::Verbs] {
        assert_eq!(answer(Choice::Verbs, caller, true), AcceptedByRdma);
    }
    assert_eq!(answer(Choice::Verbs, Choice::Tcp, true), Refused(Refusal::RdmaOnly));
    assert_eq!(answer(Choice::Auto, Choice::Verbs, true), AcceptedByRdma);
    assert_eq!(answer(Choice::Auto, Choice::Verbs, false), Refused(Refusal::NoRdma));
    assert_eq!(answer(Choice::Tcp, Choice::Verbs, true), Refused(Refusal::NoRdma));
    for caller in [Choice::Auto, Choice::Tcp] {
        assert_eq!(answer(Choice::Auto, caller, true), Accepted);
    }
}

/// Nobody asks: both have to have a device by which they would go.
#[test]
fn rdma_is_used_if_both_leave_it_open_and_would() {
    let answer = |door: Choice, caller: Choice, (here, there)| {
        door.answer(caller.wish(|| there), || panic!("nobody asks"), || here)
    };
    assert_eq!(answer(Choice::Auto, Choice::Auto, (true, true)), Answer::AcceptedByRdma);
    for devices in [(true, false), (false, true), (false, false)] {
        assert_eq!(answer(Choice::Auto, Choice::Auto, devices), Answer::Accepted);
    }
    assert_eq!(answer(Choice::Tcp, Choice::Auto, (true, true)), Answer::Accepted);
    assert_eq!(answer(Choice::Auto, Choice::Tcp, (true, true)), Answer::Accepted);
}

#[test]
fn a_wish_that_is_refused_is_told_with_the_reason() {
    let door = door(Choice::Tcp);
    let error = call(door.address(), &terms(Choice::Verbs)).expect_err("the door has none");
    assert!(error.to_string().contains("RDMA"), "{error}");
    assert!(door.accept(Some(Duration::ZERO)).expect("no shortage").is_none());
}

#[test]
fn either_end_can_ask_for_tcp() {
    for (here, there) in [(Choice::Tcp, Choice::Auto), (Choice::Auto, Choice::Tcp)] {
        let door = door(here);
        let near = call(door.address(), &terms(there)).expect("the door is open");
        assert!(matches!((near, accept(&door)), (Meeting::Tcp(_), Meeting::Tcp(_))));
    }
}

/// A stranger does not come in, does not learn anything, and does not hold up others.
#[test]
fn a_stranger_stays_outside() {
    let door = door(Choice::Tcp);
    let Address::Tcp { host, port } = door.address().clone() else { panic!("tcp") };
    let _silent = TcpStream::connect((host.as_str(), port)).expect("it listens");
    let mut other = Terms { timeout: Duration::from_millis(500), ..terms(Choice::Tcp) };
    other.secret = Secret::new("another secret of sixteen bytes").expect("long enough");
    let refused = call(door.address(), &other).expect_err("another secret");
    assert!(matches!(refused, BootstrapError::SecretRefused { .. }), "{refused}");
    call(door.address(), &terms(Choice::Tcp)).expect("ours");
    accept(&door);
    assert!(door.accept(Some(Duration::ZERO)).expect("no shortage").is_none(), "only one came in");
}

#[test]
fn a_caller_waits_for_the_door_and_not_for_ever() {
    let address = door(Choice::Auto).address().clone();
    let late = Terms { timeout: Duration::from_millis(30), ..terms(Choice::Auto) };
    let error = call(&address, &late).expect_err("nobody is there");
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call(&address, &terms(Choice::Auto)));
        let door = Door::open(&address, &terms(Choice::Auto)).expect("free again");
        accept(&door);
        caller.join().expect("no panic").expect("the door has opened");
    });
}
