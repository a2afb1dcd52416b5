//! Processes that are killed at any moment: the other end does not hang, gets a clear error, and has all the data
//! whose arrival was acknowledged to the killed process.

mod rdma;

use std::io::{ErrorKind, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use squall::stream::{
    Address, Listener, ReceiveOutcome, SendOutcome, Socket, SocketEvent, Stream, StreamOptions, Transport,
};

/// The variable that has the role of the process that will be killed, and the address.
const ROLE: &str = "SQUALL_STREAM_KILLED";

fn options() -> StreamOptions {
    StreamOptions {
        buffers: 3,
        buffer_bytes: 20_000,
        verbs: rdma::settings(0),
        ..StreamOptions::local("stream-killed")
    }
}

fn transports() -> Vec<Transport> {
    if rdma::is_wanted() { vec![Transport::Verbs] } else { vec![Transport::Shm, Transport::Tcp] }
}

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Starts this program as the process that will be killed.
fn start(role: &str, address: &Address) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_killed_process", "--nocapture"])
        .env(ROLE, format!("{role} {address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test by itself: what the process that will be killed does.
#[test]
fn the_killed_process() {
    let Ok(job) = std::env::var(ROLE) else { return };
    let (role, address) = job.split_once(' ').unwrap();
    let options = StreamOptions { verbs: rdma::settings(1), ..options() };
    let socket = Socket::connect(&address.parse().unwrap(), &options).unwrap();
    match role {
        "send" => send_forever(socket),
        "receive" => drop(std::io::copy(&mut Stream::new(socket).unwrap(), &mut std::io::sink())),
        _ => unreachable!(),
    }
}

/// Sends, and reports to the parent how many bytes have certainly arrived.
fn send_forever(mut socket: Socket) {
    let (mut placed, mut sent) = (0_usize, 0_usize);
    for length in [1000, 8, 30_000, 77].into_iter().cycle() {
        let mut buffer = socket.buffer(length);
        buffer.iter_mut().enumerate().for_each(|(i, b)| *b = byte(sent + i));
        sent += length;
        socket.post_send(buffer).unwrap();
        while let Some(event) = if sent - placed > 60_000 { socket.wait(None) } else { socket.poll() } {
            match event {
                SocketEvent::Sent { buffer, outcome: SendOutcome::Placed, .. } => placed += buffer.len(),
                SocketEvent::Connected => continue,
                _ => return,
            }
            // The test harness prints a line of its own before this.
            println!("placed {placed}");
        }
    }
}

fn listener(transport: Transport) -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().unwrap(), &StreamOptions { transport, ..options() }).unwrap()
}

/// Returns the moments at which to kill, from the first microseconds of a connection on.
fn moments() -> impl Iterator<Item = Duration> {
    (0..12).map(|i| Duration::from_micros(300 * i * i))
}

#[test]
fn a_killed_sender_loses_nothing_that_was_acknowledged() {
    for transport in transports() {
        for moment in moments() {
            let listener = listener(transport);
            let mut child = start("send", listener.address());
            let mut socket = listener.accept_within(Some(Duration::from_secs(20))).unwrap().unwrap();
            let mut reported = child.stdout.take().unwrap();
            let reader = std::thread::spawn(move || {
                let mut text = String::new();
                reported.read_to_string(&mut text).unwrap();
                text
            });
            let killer = std::thread::spawn(move || {
                std::thread::sleep(moment);
                child.kill().unwrap();
                child.wait().unwrap();
            });
            for _ in 0..3 {
                let buffer = socket.buffer(20_000);
                socket.post_receive(buffer, false).unwrap();
            }
            let (mut got, mut reposts) = (0, true);
            let failure = loop {
                match socket.wait(Some(Duration::from_secs(60))).expect("it does not hang") {
                    SocketEvent::Connected => {}
                    SocketEvent::Received { buffer, bytes, outcome, .. } => {
                        assert!(buffer[..bytes].iter().enumerate().all(|(i, b)| *b == byte(got + i)));
                        got += bytes;
                        assert_ne!(outcome, ReceiveOutcome::End, "it was killed and did not end its stream");
                        if reposts {
                            // What has arrived can be received after the break, and nothing more after that.
                            reposts = socket.post_receive(buffer, false).is_ok();
                        }
                    }
                    SocketEvent::Closed { failure } => break failure,
                    other => panic!("{other:?}"),
                }
            };
            while let Some(SocketEvent::Received { buffer, bytes, .. }) = socket.wait(Some(Duration::ZERO)) {
                assert!(buffer[..bytes].iter().enumerate().all(|(i, b)| *b == byte(got + i)));
                got += bytes;
                let _ = socket.post_receive(buffer, false);
            }
            while let Some(bytes) = rest(&mut socket, got) {
                got += bytes;
            }
            killer.join().unwrap();
            assert!(
                failure.is_some_and(|failure| failure.to_string().contains("connect again")),
                "{failure:?}"
            );
            let reported = reader.join().unwrap();
            let placed = reported.lines().rev().find_map(|line| line.strip_prefix("placed ")?.parse().ok());
            assert!(
                placed.unwrap_or(0) <= got,
                "{transport:?}: {placed:?} bytes were acknowledged, {got} have arrived"
            );
        }
    }
}

/// Receives what is left in the ring after the break; returns the number of bytes.
fn rest(socket: &mut Socket, got: usize) -> Option<usize> {
    let buffer = socket.buffer(4096);
    socket.post_receive(buffer, false).ok()?;
    match socket.wait(Some(Duration::from_secs(20)))? {
        SocketEvent::Received { buffer, bytes, outcome: ReceiveOutcome::Filled, .. } => {
            assert!(buffer[..bytes].iter().enumerate().all(|(i, b)| *b == byte(got + i)));
            Some(bytes)
        }
        _ => None,
    }
}

#[test]
fn a_killed_receiver_is_an_error_and_no_hang() {
    for transport in transports() {
        for moment in moments() {
            let listener = listener(transport);
            let mut child = start("receive", listener.address());
            let socket = listener.accept_within(Some(Duration::from_secs(20))).unwrap().unwrap();
            let mut stream = Stream::new(socket).unwrap();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(moment);
                child.kill().unwrap();
                child.wait().unwrap();
            });
            let error = loop {
                match stream.write(&[1; 50_000]) {
                    Ok(written) => assert!(written > 0),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{transport:?}: {error}");
            assert!(error.to_string().contains("connect again"), "{error}");
            killer.join().unwrap();
        }
    }
}
