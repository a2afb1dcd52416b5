//! Connections that do not belong to the cluster.

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_oneof, proptest};

use super::message::CoordinatorNotice;
use super::wire::FramingError;
use super::*;
use crate::session::ANSWER_BYTES;

/// Silent clients occupy all places for connections without proof, and are closed in time nevertheless.
#[test]
fn silent_clients_exclude_no_member() {
    let host = Host::<TcpStream>::open(&any_port(), |plan| plan.unauthenticated_max = 4);
    let mut silent: Vec<_> = (0..12).map(|_| connect_tcp(&host.address)).collect();
    assert_open(&host);
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "a silent client receives nothing");
    }
    assert_open(&host);
    let (_, progress) = host.close();
    let rejected =
        progress.iter().filter(|event| matches!(event, BootstrapProgress::Rejected { .. })).count();
    assert_eq!(rejected, 12);
}

/// The deadline is for the whole proof, not for each byte.
#[test]
fn a_client_that_trickles_is_closed() {
    let host = Host::<TcpStream>::open(&any_port(), |_| {});
    let mut stream = connect_tcp(&host.address);
    stream.set_read_timeout(Some(patient(Duration::from_millis(50)))).unwrap();
    let started = Instant::now();
    let proof = Proof::new(&Secret::random(), "tests");
    let (_, hello) = proof.initiate(None, CallerKind::Joiner);
    let closed = hello.iter().find(|byte| {
        // The read serves as the pause, and detects when the other end has closed.
        stream.write_all(&[**byte]).is_err() || matches!(stream.read(&mut [0; 1]), Ok(0))
    });
    assert!(
        closed.is_some() && started.elapsed() < patient(Duration::from_secs(2)),
        "{:?}",
        started.elapsed()
    );
    assert_open(&host);
    host.close();
}

/// Sends `bytes` to the coordinator, and returns what it answers before it closes.
fn answer(contact: &Address, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect_tcp(contact);
    // The connection may be closed during the write.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Random bytes, random bytes after a valid beginning, and a typical port scan.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let anything = proptest::collection::vec(any::<u8>(), 0..600);
    let (_, hello) = Proof::new(&Secret::random(), "tests").initiate(None, CallerKind::Joiner);
    let begun = (0..=hello.len(), anything.clone())
        .prop_map(move |(length, rest)| [&hello[..length], &rest].concat());
    let scanner = Just(b"GET / HTTP/1.1\r\nHost: squall\r\n\r\n".to_vec());
    prop_oneof![anything, begun, scanner]
}

#[test]
fn garbage_gets_a_closed_connection_and_nothing_else() {
    let host = Host::<TcpStream>::open(&any_port(), |_| {});
    let contact = host.address.clone();
    proptest!(ProptestConfig::with_cases(100), |(bytes in garbage())| {
        prop_assert!(answer(&contact, &bytes).len() <= ANSWER_BYTES);
    });
    assert_open(&host);
    host.close();
}

/// The same from a peer with the right secret, for each of the two kinds of messages.
#[test]
fn garbage_after_the_proof_is_no_panic() {
    proptest!(ProptestConfig::with_cases(200), |(bytes in proptest::collection::vec(any::<u8>(), 0..600))| {
        for framed in [false, true] {
            let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
            let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
            far.write_all(if framed { &length } else { &[] }).unwrap();
            far.write_all(&bytes).unwrap();
            drop(far);
            let mut wire = FramedSocket::new(near).unwrap();
            // Whatever the first message turns out to be, the connection remains usable or reports an error.
            while wire.poll_frame::<BootstrapRequest>().is_ok_and(|request| request.is_some()) {}
            let _ = wire.poll_frame::<CoordinatorNotice>();
        }
    });
}

#[test]
fn a_frame_is_bounded_and_read_to_its_last_byte() {
    let frame = |bytes: &[u8]| {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        FramedSocket::new(near)
            .unwrap()
            .read_frame::<CoordinatorNotice>(Instant::now() + Duration::from_millis(20))
    };
    let go = postcard::to_stdvec(&CoordinatorNotice::Go).unwrap();
    assert!(matches!(frame(&[&[1, 0, 0, 0], &go[..]].concat()), Ok(CoordinatorNotice::Go)));
    assert!(matches!(frame(&[&[2, 0, 0, 0], &go[..], &[0]].concat()), Err(FramingError::Malformed(_))));
    assert!(matches!(frame(&[0, 0, 9, 0]), Err(FramingError::Malformed(_))), "longer than FRAME_BYTES_MAX");
    assert!(matches!(frame(&[1, 0]), Err(FramingError::Late)));
}

#[test]
fn a_foreign_protocol_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let contact: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let event = claim_at::<TcpStream>(&plan(2, &contact), |_| {});
    let MeetingEvent::Failed(CallError::Unproved(error)) = event else { panic!("{event:?}") };
    assert!(matches!(error, BootstrapError::NotSquall { address } if address == contact));
}

/// One host that repeatedly occupies all places, and members elsewhere.
#[test]
fn a_flood_from_one_host_excludes_no_other() {
    let host = Host::<TcpStream>::open(&any_port(), |plan| {
        plan.unauthenticated_max = 8;
        plan.handshake_timeout = patient(Duration::from_secs(5));
    });
    let Address::Tcp { port, .. } = host.address.clone() else { unreachable!() };
    let over = std::sync::Arc::new(squall_fabric::atomics::AtomicBool::new(false));
    let flood = |over: std::sync::Arc<squall_fabric::atomics::AtomicBool>| {
        std::thread::spawn(move || {
            let mut held = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                held.extend(connect_from([127, 0, 0, 2], port));
                if held.len() > 100 {
                    held.pop_front();
                }
            }
        })
    };
    let floods: Vec<_> = (0..2).map(|_| flood(over.clone())).collect();
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let mut plan = plan(3, &host.address);
    plan.handshake_timeout = patient(Duration::from_secs(5));
    for _ in 0..2 {
        let event = claim_at::<TcpStream>(&plan, |_| {});
        assert!(matches!(event, MeetingEvent::Answered(_)), "{event:?}");
    }
    let took = begun.elapsed();
    over.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    assert!(took < patient(Duration::from_secs(5)), "{took:?}");
    host.close();
}

/// Connects from another address of this host.
fn connect_from(address: [u8; 4], port: u16) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &std::net::SocketAddr::from((address, 0)))?;
    connect(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port)))?;
    Ok(socket.into())
}

/// The hello says what a caller is: a request of other callers is refused, and so is a caller that this port does not serve, by a
/// process that has proved the secret.
#[test]
fn a_caller_gets_what_its_kind_gets() {
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let plan = plan(3, &host.address);
    let connect = || {
        let stream = <UnixStream as LinkSocket>::connect(&host.address, soon(), None).unwrap();
        FramedSocket::new(stream).unwrap()
    };
    let mut wire = connect();
    wire.prove(&plan.proof(), CallerKind::LogClient, soon().into()).unwrap();
    wire.write_frame(&BootstrapRequest::Status { question: Vec::new() }, soon()).unwrap();
    let answer: BootstrapAnswer = wire.read_frame(soon()).unwrap();
    assert_eq!(answer, BootstrapAnswer::Refused(Refusal::Unusable));

    let error = connect().prove(&plan.proof(), CallerKind::Copy, soon().into()).unwrap_err();
    assert!(matches!(error, ProofError::NotServed { kind: 6 }), "{error}");
    let terms = pair::PairTerms::new(&plan.cluster, &plan.secret);
    let outcome = pair::PairCall::new(&host.address, &terms).unwrap().attempt();
    let Err(pair::PairCallError::Final(error)) = outcome else { panic!("{outcome:?}") };
    let text = format!("{} does not serve this process: that port does not serve streams", host.address);
    assert!(error.to_string().starts_with(&text), "{error}");
    assert_open(&host);
    host.close();
}
