//! Sockets and streams between two ends of this process, on shared memory and on TCP, or over RDMA ([`rdma`]).

mod rdma;

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use squall::stream::{
    Buffer, Completion, Listener, PostRefused, ReceiveOutcome, Region, RegionId, SendOutcome, Socket,
    SocketEvent, SocketFailure, SocketKind, Stream, StreamError, StreamOptions, StreamSettings,
    TransferPolicy, Transport,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn options(transport: Transport) -> StreamOptions {
    // One thread often owns both ends here: the one that is dropped first would wait for the other.
    let linger = Duration::from_millis(20);
    StreamOptions { transport, linger, verbs: rdma::settings(0), ..StreamOptions::local("stream-tests") }
}

/// Returns two ends that are connected.
fn sockets(options: &StreamOptions) -> [Socket; 2] {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), options).unwrap();
    let (address, there) =
        (listener.address().clone(), StreamOptions { verbs: rdma::settings(1), ..options.clone() });
    let mut ends = [Socket::connect(&address, &there).unwrap(), listener.accept().unwrap()];
    let mut waiting = vec![0, 1];
    while !waiting.is_empty() {
        waiting.retain(|end| match ends[*end].poll() {
            None => true,
            Some(SocketEvent::Connected) => false,
            Some(other) => panic!("{other:?}"),
        });
    }
    ends
}

fn streams(transport: Transport) -> [Stream; 2] {
    sockets(&options(transport)).map(|socket| Stream::new(socket).unwrap())
}

fn transports() -> Vec<Transport> {
    if rdma::is_wanted() { vec![Transport::Verbs] } else { vec![Transport::Shm, Transport::Tcp] }
}

/// Returns byte number `at` of what is sent.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn filled(socket: &mut Socket, from: usize, bytes: usize) -> Buffer {
    let mut buffer = socket.buffer(bytes);
    buffer.iter_mut().enumerate().for_each(|(i, b)| *b = byte(from + i));
    buffer
}

fn next(socket: &mut Socket) -> SocketEvent {
    let event = socket.wait(Some(PATIENCE));
    event.unwrap_or_else(|| panic!("nothing happens: {:?}", socket.statistics()))
}

#[test]
fn the_transport_depends_on_where_the_ends_are() {
    let [here, there] = sockets(&options(Transport::Auto));
    assert!(here.is_shared() && there.is_shared(), "one host");
    let [here, there] = sockets(&options(Transport::Tcp));
    assert!(!here.is_shared() && !there.is_shared());
}

/// One end asks for RDMA, and the other accepts any transport; an end that is set to another transport refuses.
#[test]
fn rdma_is_used_if_one_end_asks_for_it() {
    if !rdma::is_wanted() {
        return;
    }
    for (door, caller) in [(Transport::Verbs, Transport::Auto), (Transport::Auto, Transport::Verbs)] {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(door)).unwrap();
        let near = Socket::connect(listener.address(), &options(caller)).unwrap();
        let far = listener.accept().unwrap();
        assert!(near.is_by_rdma() && far.is_by_rdma(), "{door:?} {caller:?}");
    }
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(Transport::Verbs)).unwrap();
    let error = Socket::connect(listener.address(), &options(Transport::Tcp)).unwrap_err();
    assert!(error.to_string().contains("accepts only RDMA"), "{error}");
}

/// Where there is no device or no library, both ends report that before the other end waits for them.
#[test]
fn without_rdma_the_error_says_what_to_do() {
    if rdma::is_wanted() {
        return;
    }
    let verbs = squall::stream::VerbsSettings { device: Some("none0".into()), ..Default::default() };
    let wanted = StreamOptions { verbs, ..options(Transport::Verbs) };
    let address = "127.0.0.1:1".parse().unwrap();
    let listening = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &wanted).map(drop);
    for outcome in [listening, Socket::connect(&address, &wanted).map(drop)] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, StreamError::Verbs(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("install the packages") || text.contains("rdma link add"), "{text}");
    }
}

/// A receive that is posted in advance gets the bytes in its own memory, without a copy.
#[test]
fn a_receiver_that_is_ahead_is_served_directly() {
    for transport in transports() {
        let [mut here, mut there] = sockets(&options(transport));
        let target = there.buffer(1 << 20);
        there.post_receive(target, true).unwrap();
        there.flush();
        let receiver = thread::spawn(move || {
            let SocketEvent::Received { buffer, bytes, outcome, .. } = next(&mut there) else { panic!() };
            assert_eq!((bytes, outcome), (1 << 20, ReceiveOutcome::Filled));
            assert!(buffer.iter().enumerate().all(|(i, b)| *b == byte(i)));
            there
        });
        // Adverts come before the first send, or the paper's sender would go through the ring.
        let source = filled(&mut here, 0, 1 << 20);
        assert!(here.wait(Some(Duration::from_millis(50))).is_none());
        here.post_send(source).unwrap();
        let SocketEvent::Sent { outcome, .. } = next(&mut here) else { panic!() };
        assert_eq!(outcome, SendOutcome::Placed);
        let there = receiver.join().unwrap();
        assert_eq!((here.statistics().direct, here.statistics().indirect), (1, 0), "{transport:?}");
        assert_eq!(there.statistics().copied_bytes, 0);
    }
}

/// The user's own memory at both ends is used in place, on shared memory with one copy, and is released.
#[test]
fn adopted_memory_is_served_directly_and_released() {
    const WORDS: usize = 1 << 17;
    for (transport, fetching) in
        transports().into_iter().flat_map(|transport| [(transport, true), (transport, false)])
    {
        let options = StreamOptions { fetching, ..options(transport) };
        let [mut here, mut there] = sockets(&options).map(Socket::into_endpoint);
        let [source, target] = [0, 1].map(|_| Region::heap(RegionId(0), WORDS));
        let kept = Arc::downgrade(target.memory());
        (0..WORDS).for_each(|word| source.store(word, word as u64 * 3 + 1));
        let (from, to) = (here.adopt(&source), there.adopt(&target));
        drop(target);
        there.post_receive(&to, 8..8 * WORDS, true).unwrap();
        assert!(!there.release(&to), "a receive is outstanding");
        there.flush();
        let receiver = thread::spawn(move || {
            let Some(Completion::Receive { bytes, .. }) = there.wait(Some(PATIENCE)) else { panic!() };
            assert_eq!(bytes, 8 * (WORDS as u64 - 1));
            assert!((1..WORDS).all(|word| to.load(word) == (word as u64 - 1) * 3 + 1));
            assert!(there.release(&to));
            drop(to);
            assert_eq!(kept.strong_count(), 0, "the memory is still held");
            there
        });
        assert!(here.wait(Some(Duration::from_millis(50))).is_none());
        here.post_send(&from, 0..8 * (WORDS - 1)).unwrap();
        let Some(Completion::Send { outcome, .. }) = here.wait(Some(PATIENCE)) else { panic!() };
        assert_eq!(outcome, SendOutcome::Placed);
        assert!(here.release(&from));
        let (sent, received) = (here.statistics(), receiver.join().unwrap().statistics());
        assert_eq!((sent.direct, sent.indirect, received.copied_bytes), (1, 0, 0), "{transport:?}");
        let all = 8 * (WORDS as u64 - 1);
        let one_copy =
            [(0, 0), (all, 0), (0, all)][usize::from(here.is_shared()) * (2 - usize::from(fetching))];
        assert_eq!((received.fetched_bytes, received.relayed_bytes), one_copy, "{transport:?}");
    }
}

/// The bytes received are the bytes sent, at all paces and sizes, for each policy.
#[test]
fn received_bytes_are_those_sent_whichever_end_is_slower() {
    const BYTES: usize = 3_000_000;
    for (transport, policy) in transports().into_iter().flat_map(|transport| {
        [TransferPolicy::Dynamic, TransferPolicy::Direct, TransferPolicy::Indirect].map(|p| (transport, p))
    }) {
        for (sender_rests, receiver_rests) in [(false, false), (true, false), (false, true), (true, true)] {
            let settings = StreamSettings { policy, ring_words: 1 << 13, ..StreamSettings::default() };
            let [here, there] =
                sockets(&StreamOptions { settings, buffer_bytes: 24_000, buffers: 3, ..options(transport) });
            let (mut here, mut there) = (Stream::new(here).unwrap(), Stream::new(there).unwrap());
            let sender = thread::spawn(move || {
                let data: Vec<u8> = (0..BYTES).map(byte).collect();
                let mut rest = &data[..];
                let mut size = 1;
                while !rest.is_empty() {
                    size = (size * 7 + 3) % 90_001;
                    let (part, later) = rest.split_at(rest.len().min(size + 1));
                    here.write_all(part).unwrap();
                    rest = later;
                    if sender_rests && size.is_multiple_of(3) {
                        thread::sleep(Duration::from_micros(300));
                    }
                }
                here.shut_down().unwrap();
                here
            });
            let (mut got, mut chunk) = (0, vec![0; 50_000]);
            loop {
                let read = there.read(&mut chunk).unwrap();
                if read == 0 {
                    break;
                }
                assert!(chunk[..read].iter().enumerate().all(|(i, b)| *b == byte(got + i)));
                got += read;
                if receiver_rests && got.is_multiple_of(5) {
                    thread::sleep(Duration::from_micros(300));
                }
            }
            assert_eq!(got, BYTES, "{transport:?} {policy:?}");
            drop(sender.join().unwrap());
        }
    }
}

/// What was written arrives even if the writer never calls again.
#[test]
fn a_write_has_left_when_it_returns() {
    for transport in transports() {
        let [mut here, mut there] = streams(transport);
        for length in [1, 1000, 300_000] {
            let sender = thread::spawn(move || {
                here.write_all(&vec![7; length]).unwrap();
                here
            });
            let mut bytes = vec![0; length];
            there.read_exact(&mut bytes).unwrap();
            here = sender.join().unwrap();
        }
        here.write_all(b"last").unwrap();
        let mut bytes = [0; 4];
        there.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"last");
    }
}

#[test]
fn half_a_connection_can_end() {
    for transport in transports() {
        let [mut here, mut there] = streams(transport);
        let echo = thread::spawn(move || {
            let mut all = Vec::new();
            there.read_to_end(&mut all).unwrap();
            there.write_all(&all).unwrap();
            there.shut_down().unwrap();
        });
        here.write_all(b"and back").unwrap();
        here.shut_down().unwrap();
        assert_eq!(here.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut back = String::new();
        here.read_to_string(&mut back).unwrap();
        assert_eq!(back, "and back");
        echo.join().unwrap();
    }
}

/// Dropping a stream loses nothing that was written, if the peer takes it.
#[test]
fn a_dropped_stream_ends_in_order() {
    for transport in transports() {
        let patient = StreamOptions { linger: Duration::from_secs(60), ..options(transport) };
        let [mut here, mut there] = sockets(&patient).map(|socket| Stream::new(socket).unwrap());
        let sender = thread::spawn(move || here.write_all(&[3; 200_000]).unwrap());
        let mut all = Vec::new();
        there.read_to_end(&mut all).unwrap();
        assert_eq!(all, [3; 200_000]);
        sender.join().unwrap();
    }
}

/// The connection ends when both streams have ended, but what is in the ring and in buffers can still be read.
#[test]
fn data_that_has_arrived_can_be_read_after_the_end() {
    for transport in transports() {
        let small = StreamOptions { buffer_bytes: 1000, buffers: 2, ..options(transport) };
        let [mut here, mut there] = sockets(&small).map(|socket| Stream::new(socket).unwrap());
        let sent: Vec<u8> = (0..100_000).map(byte).collect();
        let late = thread::spawn(move || {
            there.write_all(b"short").unwrap();
            there.shut_down().unwrap();
            let mut one = [0];
            there.read_exact(&mut one).unwrap();
            // Wait until both ends have closed, without reading more.
            while !there.socket().is_closed() {
                there.drive();
            }
            let mut all = one.to_vec();
            there.read_to_end(&mut all).unwrap();
            all
        });
        here.write_all(&sent).unwrap();
        here.shut_down().unwrap();
        let mut short = String::new();
        here.read_to_string(&mut short).unwrap();
        assert_eq!(short, "short");
        while !here.socket().is_closed() {
            here.drive();
        }
        assert!(late.join().unwrap() == sent, "{transport:?}");
    }
}

#[test]
fn an_abort_is_an_error_at_both_ends() {
    for transport in transports() {
        let [mut here, mut there] = sockets(&options(transport));
        let (send, receive) = (filled(&mut here, 0, 100), here.buffer(100));
        here.post_receive(receive, false).unwrap();
        here.post_send(send).unwrap();
        here.abort();
        let mut seen = Vec::new();
        while !matches!(seen.last(), Some(SocketEvent::Closed { .. })) {
            seen.push(next(&mut here));
        }
        assert_eq!(seen.len(), 3, "both buffers are returned: {seen:?}");
        assert!(matches!(seen.last(), Some(SocketEvent::Closed { failure: Some(SocketFailure::Aborted) })));
        let buffer = here.buffer(8);
        assert_eq!(here.post_send(buffer).unwrap_err().1, PostRefused::Closed);
        let end = next(&mut there);
        assert!(matches!(end, SocketEvent::Closed { failure: Some(SocketFailure::Broken(_)) }), "{end:?}");
    }
}

#[test]
fn a_read_can_have_a_timeout() {
    for transport in transports() {
        let [mut here, mut there] = streams(transport);
        there.set_read_timeout(Some(Duration::from_millis(5)));
        assert_eq!(there.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        here.write_all(b"late").unwrap();
        there.set_read_timeout(None);
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 4);
    }
}

#[test]
fn packets_keep_their_boundaries() {
    for transport in transports() {
        let settings = StreamSettings { kind: SocketKind::Packets, ..StreamSettings::default() };
        let [mut here, mut there] = sockets(&StreamOptions { settings, ..options(transport) });
        for length in [10, 0, 3000, 17] {
            let buffer = filled(&mut here, length, length);
            here.post_send(buffer).unwrap();
        }
        let sender = thread::spawn(move || {
            (0..4).for_each(|_| assert!(matches!(next(&mut here), SocketEvent::Sent { .. })));
            here
        });
        let (mut lengths, mut capacity) = (Vec::new(), 100);
        while lengths.len() < 4 {
            let buffer = there.buffer(capacity);
            there.post_receive(buffer, false).unwrap();
            match next(&mut there) {
                SocketEvent::Received { outcome: ReceiveOutcome::TooLong { length }, .. } => {
                    capacity = length as usize
                }
                SocketEvent::Received { buffer, bytes, .. } => {
                    assert!(buffer[..bytes].iter().enumerate().all(|(i, b)| *b == byte(bytes + i)));
                    lengths.push(bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lengths, [10, 0, 3000, 17]);
        sender.join().unwrap();
    }
}

#[test]
fn a_receive_can_be_cancelled() {
    for transport in transports() {
        let [mut here, mut there] = sockets(&options(transport));
        let buffer = there.buffer(64);
        let id = there.post_receive(buffer, false).unwrap();
        there.flush();
        assert!(there.cancel_receive(id));
        let other = thread::spawn(move || {
            // It answers while it is driven.
            assert!(here.wait(Some(Duration::from_millis(300))).is_none());
            here
        });
        let SocketEvent::Received { outcome, bytes, .. } = next(&mut there) else { panic!() };
        assert_eq!((outcome, bytes), (ReceiveOutcome::Cancelled, 0));
        assert!(!there.cancel_receive(id));
        other.join().unwrap();
    }
}

/// Both ends must be of one kind; the error says so.
#[test]
fn ends_that_differ_are_reported() {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(Transport::Auto)).unwrap();
    let address = listener.address().clone();
    let server = thread::spawn(move || {
        let mut socket = listener.accept().unwrap();
        next(&mut socket)
    });
    let settings = StreamSettings { policy: TransferPolicy::Direct, ..StreamSettings::default() };
    let mut here =
        Socket::connect(&address, &StreamOptions { settings, ..options(Transport::Auto) }).unwrap();
    let end = next(&mut here);
    assert!(matches!(end, SocketEvent::Closed { failure: Some(SocketFailure::Violation(_)) }), "{end:?}");
    let end = server.join().unwrap();
    assert!(matches!(end, SocketEvent::Closed { failure: Some(_) }), "{end:?}");
}

/// Many pairs park at the same time, and each is woken when data arrives for it.
#[test]
fn parked_ends_wake_each_other() {
    for transport in transports() {
        let pairs: Vec<_> = (0..4)
            .map(|_| {
                let [mut here, mut there] = streams(transport);
                let far = thread::spawn(move || {
                    let mut byte = [0];
                    while there.read(&mut byte).unwrap() == 1 {
                        there.write_all(&byte).unwrap();
                    }
                });
                let near = thread::spawn(move || {
                    for i in 0..200 {
                        here.write_all(&[i]).unwrap();
                        let mut byte = [0];
                        here.read_exact(&mut byte).unwrap();
                        assert_eq!(byte, [i]);
                        if i % 50 == 0 {
                            thread::sleep(Duration::from_millis(3));
                        }
                    }
                });
                (near, far)
            })
            .collect();
        for (near, far) in pairs {
            near.join().unwrap();
            far.join().unwrap();
        }
    }
}
