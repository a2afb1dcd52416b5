//! Doors and callers in one process.

use std::io::{Read as _, Write as _};

use super::*;

fn terms(choice: StreamTransport) -> PairTerms {
    let secret = Secret::new("a secret of more than sixteen bytes").expect("long enough");
    PairTerms { choice, timeout: Duration::from_secs(20), ..PairTerms::new("pair-test", &secret) }
}

fn door(choice: StreamTransport) -> PairListener {
    PairListener::open(&"127.0.0.1:0".parse().expect("an address"), &terms(choice)).expect("a free port")
}

/// Calls until the door opens or the terms' time is over.
fn call(address: &Address, terms: &PairTerms) -> Result<PairedStream, BootstrapError> {
    let deadline = Instant::now() + terms.timeout;
    let mut call = PairCall::new(address, terms)?;
    loop {
        match call.attempt() {
            Ok(stream) => return Ok(stream),
            Err(PairCallError::Again(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(PairCallError::Again(error) | PairCallError::Final(error)) => return Err(error),
        }
    }
}

fn accept(door: &PairListener) -> PairedStream {
    door.accept(Some(Duration::from_secs(20))).expect("no shortage").expect("somebody called")
}

#[test]
fn on_one_host_they_meet_in_shared_memory() {
    let door = door(StreamTransport::Auto);
    let near = call(door.address(), &terms(StreamTransport::Auto)).expect("the door is open");
    let (PairedStream::Shm(mut near), PairedStream::Shm(mut far)) = (near, accept(&door)) else {
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
    use BootstrapAnswer::{Accepted, AcceptedByRdma, Refused};
    let answer = |door: StreamTransport, caller: StreamTransport, device| {
        door.answer(caller.wish(|| false), || device, || panic!("the caller has none"))
    };
    for caller in [StreamTransport::Auto, StreamTransport::Verbs] {
        assert_eq!(answer(StreamTransport::Verbs, caller, true), AcceptedByRdma);
    }
    assert_eq!(answer(StreamTransport::Verbs, StreamTransport::Tcp, true), Refused(Refusal::RdmaOnly));
    assert_eq!(answer(StreamTransport::Auto, StreamTransport::Verbs, true), AcceptedByRdma);
    assert_eq!(answer(StreamTransport::Auto, StreamTransport::Verbs, false), Refused(Refusal::NoRdma));
    assert_eq!(answer(StreamTransport::Tcp, StreamTransport::Verbs, true), Refused(Refusal::NoRdma));
    for caller in [StreamTransport::Auto, StreamTransport::Tcp] {
        assert_eq!(answer(StreamTransport::Auto, caller, true), Accepted);
    }
}

/// Nobody asks: both have to have a device by which they would go.
#[test]
fn rdma_is_used_if_both_leave_it_open_and_would() {
    let answer = |door: StreamTransport, caller: StreamTransport, (here, there)| {
        door.answer(caller.wish(|| there), || panic!("nobody asks"), || here)
    };
    assert_eq!(
        answer(StreamTransport::Auto, StreamTransport::Auto, (true, true)),
        BootstrapAnswer::AcceptedByRdma
    );
    for devices in [(true, false), (false, true), (false, false)] {
        assert_eq!(answer(StreamTransport::Auto, StreamTransport::Auto, devices), BootstrapAnswer::Accepted);
    }
    assert_eq!(answer(StreamTransport::Tcp, StreamTransport::Auto, (true, true)), BootstrapAnswer::Accepted);
    assert_eq!(answer(StreamTransport::Auto, StreamTransport::Tcp, (true, true)), BootstrapAnswer::Accepted);
}

#[test]
fn a_wish_that_is_refused_is_reported_with_the_reason() {
    let door = door(StreamTransport::Tcp);
    let error = call(door.address(), &terms(StreamTransport::Verbs)).expect_err("the door has none");
    assert!(error.to_string().contains("RDMA"), "{error}");
    assert!(door.accept(Some(Duration::ZERO)).expect("no shortage").is_none());
}

#[test]
fn either_end_can_ask_for_tcp() {
    for (here, there) in
        [(StreamTransport::Tcp, StreamTransport::Auto), (StreamTransport::Auto, StreamTransport::Tcp)]
    {
        let door = door(here);
        let near = call(door.address(), &terms(there)).expect("the door is open");
        assert!(matches!((near, accept(&door)), (PairedStream::Tcp(_), PairedStream::Tcp(_))));
    }
}

/// A stranger does not come in, does not learn anything, and does not hold up others.
#[test]
fn a_stranger_stays_outside() {
    let door = door(StreamTransport::Tcp);
    let Address::Tcp { host, port } = door.address().clone() else { panic!("tcp") };
    let _silent = TcpStream::connect((host.as_str(), port)).expect("it listens");
    let mut other = PairTerms { timeout: Duration::from_millis(500), ..terms(StreamTransport::Tcp) };
    other.secret = Secret::new("another secret of sixteen bytes").expect("long enough");
    let refused = call(door.address(), &other).expect_err("another secret");
    assert!(matches!(refused, BootstrapError::SecretRefused { .. }), "{refused}");
    call(door.address(), &terms(StreamTransport::Tcp)).expect("ours");
    accept(&door);
    assert!(door.accept(Some(Duration::ZERO)).expect("no shortage").is_none(), "only one came in");
}

#[test]
fn a_caller_waits_for_the_door_and_not_for_ever() {
    let address = door(StreamTransport::Auto).address().clone();
    let late = PairTerms { timeout: Duration::from_millis(30), ..terms(StreamTransport::Auto) };
    let error = call(&address, &late).expect_err("nobody is there");
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call(&address, &terms(StreamTransport::Auto)));
        let door = PairListener::open(&address, &terms(StreamTransport::Auto)).expect("free again");
        accept(&door);
        caller.join().expect("no panic").expect("the door has opened");
    });
}
