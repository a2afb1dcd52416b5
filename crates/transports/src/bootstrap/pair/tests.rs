//! Listeners and callers in one process.

use std::io::{Read as _, Write as _};

use super::*;

fn terms(choice: Transport) -> PairTerms {
    let secret = Secret::new("a secret of more than sixteen bytes").expect("long enough");
    PairTerms { choice, timeout: Duration::from_secs(20), ..PairTerms::new("pair-test", &secret) }
}

fn listener(choice: Transport) -> PairListener {
    PairListener::open(&"127.0.0.1:0".parse().expect("an address"), &terms(choice)).expect("a free port")
}

/// Calls until the listener answers or the timeout of `terms` has passed.
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

fn accept(listener: &PairListener) -> PairedStream {
    listener.accept(Some(Duration::from_secs(20))).expect("no shortage").expect("a process called")
}

#[test]
fn on_one_host_they_meet_in_shared_memory() {
    let listener = listener(Transport::Auto);
    let near = call(listener.address(), &terms(Transport::Auto)).expect("the listener is open");
    let (PairedStream::Shm(mut near), PairedStream::Shm(mut far)) = (near, accept(&listener)) else {
        panic!("it is one host")
    };
    near.write_all(b"nothing else").expect("connected");
    let mut bytes = [0; 12];
    far.read_exact(&mut bytes).expect("connected");
    assert_eq!(&bytes, b"nothing else", "no bootstrap data are left");
}

/// The answers alone, without devices.
#[test]
fn rdma_is_used_if_one_end_asks_and_the_other_may() {
    use BootstrapAnswer::{Accepted, AcceptedByRdma, Refused};
    let answer = |listener: Transport, caller: Transport, device| {
        listener.answer(caller.wish(|| false), || device, || panic!("the caller has none"))
    };
    for caller in [Transport::Auto, Transport::Verbs] {
        assert_eq!(answer(Transport::Verbs, caller, true), AcceptedByRdma);
    }
    assert_eq!(answer(Transport::Verbs, Transport::Tcp, true), Refused(Refusal::RdmaOnly));
    assert_eq!(answer(Transport::Auto, Transport::Verbs, true), AcceptedByRdma);
    assert_eq!(answer(Transport::Auto, Transport::Verbs, false), Refused(Refusal::NoRdma));
    assert_eq!(answer(Transport::Tcp, Transport::Verbs, true), Refused(Refusal::NoRdma));
    for caller in [Transport::Auto, Transport::Tcp] {
        assert_eq!(answer(Transport::Auto, caller, true), Accepted);
    }
}

/// No end requires RDMA: it is used only if both have a device that they would use.
#[test]
fn rdma_is_used_if_both_leave_it_open_and_would() {
    let answer = |listener: Transport, caller: Transport, (here, there)| {
        listener.answer(caller.wish(|| there), || panic!("no end requires it"), || here)
    };
    assert_eq!(answer(Transport::Auto, Transport::Auto, (true, true)), BootstrapAnswer::AcceptedByRdma);
    for devices in [(true, false), (false, true), (false, false)] {
        assert_eq!(answer(Transport::Auto, Transport::Auto, devices), BootstrapAnswer::Accepted);
    }
    assert_eq!(answer(Transport::Tcp, Transport::Auto, (true, true)), BootstrapAnswer::Accepted);
    assert_eq!(answer(Transport::Auto, Transport::Tcp, (true, true)), BootstrapAnswer::Accepted);
}

#[test]
fn a_wish_that_is_refused_is_reported_with_the_reason() {
    let listener = listener(Transport::Tcp);
    let error = call(listener.address(), &terms(Transport::Verbs)).expect_err("the listener has none");
    assert!(error.to_string().contains("RDMA"), "{error}");
    assert!(listener.accept(Some(Duration::ZERO)).expect("no shortage").is_none());
}

#[test]
fn either_end_can_ask_for_tcp() {
    for (here, there) in [(Transport::Tcp, Transport::Auto), (Transport::Auto, Transport::Tcp)] {
        let listener = listener(here);
        let near = call(listener.address(), &terms(there)).expect("the listener is open");
        assert!(matches!((near, accept(&listener)), (PairedStream::Tcp(_), PairedStream::Tcp(_))));
    }
}

/// A stranger is rejected, learns nothing, and does not delay others.
#[test]
fn a_stranger_is_rejected() {
    let listener = listener(Transport::Tcp);
    let Address::Tcp { host, port } = listener.address().clone() else { panic!("tcp") };
    let _silent = TcpStream::connect((host.as_str(), port)).expect("it listens");
    let mut other = PairTerms { timeout: Duration::from_millis(500), ..terms(Transport::Tcp) };
    other.secret = Secret::new("another secret of sixteen bytes").expect("long enough");
    let refused = call(listener.address(), &other).expect_err("another secret");
    assert!(matches!(refused, BootstrapError::SecretRefused { .. }), "{refused}");
    call(listener.address(), &terms(Transport::Tcp)).expect("the right secret");
    accept(&listener);
    assert!(listener.accept(Some(Duration::ZERO)).expect("no shortage").is_none(), "only one is accepted");
}

#[test]
fn a_caller_waits_for_the_listener_until_its_timeout() {
    let address = listener(Transport::Auto).address().clone();
    let late = PairTerms { timeout: Duration::from_millis(30), ..terms(Transport::Auto) };
    let error = call(&address, &late).expect_err("no process listens");
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call(&address, &terms(Transport::Auto)));
        let listener = PairListener::open(&address, &terms(Transport::Auto)).expect("free again");
        accept(&listener);
        caller.join().expect("no panic").expect("the listener has opened");
    });
}
