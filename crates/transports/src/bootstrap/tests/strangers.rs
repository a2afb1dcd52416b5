//! What connects to the port without belonging to the cluster.

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_oneof, proptest};

use super::message::Notice;
use super::wire::WireError;
use super::*;
use crate::session::ANSWER_BYTES;

/// Silent clients hold all places for connections without proof, and are closed in time all the same.
#[test]
fn silent_clients_keep_nobody_out() {
    let first = Process::<TcpStream>::coordinate(3, &any_port(), |plan| plan.unauthenticated_max = 4);
    let contact = first.address.clone();
    let mut silent: Vec<_> = (0..12).map(|_| connect_tcp(&contact)).collect();
    let second = Process::<TcpStream>::join(3, &contact, |_| {});
    // All are closed while the coordinator still waits for the third.
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "a silent client hears nothing");
    }
    let third = Process::<TcpStream>::join(3, &contact, |_| {});
    let (outcome, progress) = first.outcome();
    let rejected = progress.iter().filter(|event| matches!(event, Progress::Rejected { .. })).count();
    assert_eq!(rejected, 12);
    assert_meshed(vec![outcome.unwrap(), second.assembly(), third.assembly()]);
}

/// The deadline is for the whole proof, not for each byte.
#[test]
fn a_client_that_trickles_is_closed() {
    let first = Process::<TcpStream>::coordinate(2, &any_port(), |_| {});
    let mut stream = connect_tcp(&first.address);
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let started = Instant::now();
    let proof = Proof::new(&Secret::random(), "tests", PURPOSE);
    let (_, hello) = proof.initiate(None);
    let closed = hello.iter().find(|byte| {
        // Reading is the pause, and tells when the other end has closed.
        stream.write_all(&[**byte]).is_err() || matches!(stream.read(&mut [0; 1]), Ok(0))
    });
    assert!(closed.is_some() && started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let second = Process::<TcpStream>::join(2, &first.address, |_| {});
    assert_meshed(vec![first.assembly(), second.assembly()]);
}

/// Sends `bytes` to the coordinator, and returns what it says before it closes.
fn answer(contact: &Address, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect_tcp(contact);
    // It may be closed while we still write.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Random bytes, bytes behind a right beginning, and a port scanner's favourites.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let anything = proptest::collection::vec(any::<u8>(), 0..600);
    let (_, hello) = Proof::new(&Secret::random(), "tests", PURPOSE).initiate(None);
    let begun = (0..=hello.len(), anything.clone())
        .prop_map(move |(length, rest)| [&hello[..length], &rest].concat());
    let scanner = Just(b"GET / HTTP/1.1\r\nHost: squall\r\n\r\n".to_vec());
    prop_oneof![anything, begun, scanner]
}

#[test]
fn garbage_gets_a_closed_connection_and_nothing_else() {
    let first = Process::<TcpStream>::coordinate(2, &any_port(), |_| {});
    let contact = first.address.clone();
    proptest!(ProptestConfig::with_cases(100), |(bytes in garbage())| {
        prop_assert!(answer(&contact, &bytes).len() <= ANSWER_BYTES);
    });
    let second = Process::<TcpStream>::join(2, &contact, |_| {});
    assert_meshed(vec![first.assembly(), second.assembly()]);
}

/// The same from a peer that has our secret, at each of the two kinds of messages.
#[test]
fn garbage_after_the_proof_is_no_panic() {
    proptest!(ProptestConfig::with_cases(200), |(bytes in proptest::collection::vec(any::<u8>(), 0..600))| {
        for framed in [false, true] {
            let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
            let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
            far.write_all(if framed { &length } else { &[] }).unwrap();
            far.write_all(&bytes).unwrap();
            drop(far);
            let mut wire = Wire::new(near).unwrap();
            // Whatever the first turns out to be, the wire is of use or says that it is not.
            while wire.poll_frame::<Request>().is_ok_and(|request| request.is_some()) {}
            let _ = wire.poll_frame::<Notice>();
        }
    });
}

#[test]
fn a_frame_is_bounded_and_read_to_its_last_byte() {
    let frame = |bytes: &[u8]| {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        Wire::new(near).unwrap().read_frame::<Notice>(Instant::now() + Duration::from_millis(20))
    };
    let go = postcard::to_stdvec(&Notice::Go).unwrap();
    assert!(matches!(frame(&[&[1, 0, 0, 0], &go[..]].concat()), Ok(Notice::Go)));
    assert!(matches!(frame(&[&[2, 0, 0, 0], &go[..], &[0]].concat()), Err(WireError::Malformed(_))));
    assert!(matches!(frame(&[0, 0, 5, 0]), Err(WireError::Malformed(_))), "longer than FRAME_BYTES_MAX");
    assert!(matches!(frame(&[1, 0]), Err(WireError::Late)));
}

#[test]
fn what_is_not_squall_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let contact: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || answer_http(&listener));
    let brief = |plan: &mut Plan| plan.timeout = Duration::from_millis(300);
    let error = Process::<TcpStream>::join(2, &contact, brief).error();
    assert!(matches!(error, BootstrapError::NotSquall { address } if address == contact));
}

/// Answers everybody, until the test ends.
fn answer_http(listener: &std::net::TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
    }
}

/// What listens where a member had its address before: a member that comes again finds its group all the same, and soon.
#[test]
fn whatever_listens_at_the_first_contact_ends_nobody() {
    let other_cluster = |listener: std::net::TcpListener| {
        let proof = Proof::new(&Secret::random(), "others", PURPOSE);
        for stream in listener.incoming() {
            let _ = proof.demand(&mut stream.unwrap(), None);
        }
    };
    let silent = |listener: std::net::TcpListener| {
        let streams: Vec<_> = listener.incoming().collect();
        drop(streams);
    };
    let strangers: [fn(std::net::TcpListener); 3] =
        [|listener| answer_http(&listener), other_cluster, silent];
    for (number, stranger) in strangers.into_iter().enumerate() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        std::thread::spawn(move || stranger(listener));
        let member = Listener::<TcpStream>::bind(&any_port()).unwrap();
        let mut plan = plan(2, &first);
        plan.contacts.push(member.address().clone());
        plan.timeout = Duration::from_secs(4);
        let (desk, mut events) = Desk::open(member, &plan, 7, crate::Waker::new().unwrap()).unwrap();
        let begun = Instant::now();
        let entering = std::thread::spawn(move || {
            let own = Listener::<TcpStream>::bind(&any_port()).unwrap();
            match meet(&plan, &own, &mut |_| ())? {
                Met::Running(_) => join(&plan, &own, &mut |_| ()),
                Met::Assembled(assembly) => panic!("{assembly:?}"),
            }
        });
        let asker = loop {
            match events.poll_event() {
                Some(DeskEvent::JoinAsked { asker, .. }) => break asker,
                // Whether a group runs.
                Some(DeskEvent::StatusAsked { asker, .. }) => asker.answer(Vec::new()),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "stranger {number}: it does not ask the member"
            );
        };
        assert!(begun.elapsed() < Duration::from_secs(3), "stranger {number}: {:?}", begun.elapsed());
        asker.refuse("the test is over");
        let error = match entering.join().unwrap() {
            Ok(entered) => panic!("{entered:?}"),
            Err(error) => error,
        };
        drop(desk);
        assert!(!matches!(error, BootstrapError::Unreachable { .. }), "stranger {number}: {error}");
    }
}

/// A host that takes all places, again and again, and members elsewhere.
#[test]
fn a_flood_from_one_host_keeps_no_other_out() {
    let first = Process::<TcpStream>::coordinate(3, &any_port(), |plan| {
        plan.unauthenticated_max = 8;
        plan.handshake_timeout = Duration::from_secs(5);
    });
    let Address::Tcp { port, .. } = first.address.clone() else { unreachable!() };
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
    let others = [(); 2].map(|()| Process::<TcpStream>::join(3, &first.address, |_| {}));
    let mut assemblies = vec![first.assembly()];
    assemblies.extend(others.map(Process::assembly));
    let took = begun.elapsed();
    over.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_meshed(assemblies);
}

/// A connection from another address of this host.
fn connect_from(address: [u8; 4], port: u16) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &std::net::SocketAddr::from((address, 0)))?;
    connect(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port)))?;
    Ok(socket.into())
}
