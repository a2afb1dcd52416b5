//! Schedules of two nodes whose connection breaks and is opened again, drawn from a seed: what ships, with calls that are made by hand in place of
//! threads and listeners. So a request may come late, a call may fail at each of its steps, and both ends may call at once.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use squall_fabric::sim::Prng;
use squall_fabric::{Fabric as _, FabricEvent, MirrorId, MirrorKey, Region};

use super::super::calls::CallsOrder;
use super::network::reset;
use super::*;
use crate::bootstrap::Secret;
use crate::session::{CallerKind, ConnectionEnds, Encryption, Proof};
use crate::tcp::mutation::{ReopenMutation, with};

const ROUNDS: u64 = 12;
/// As [`super::ROW_WORDS`]: more than the buffers of a connection take at once.
const ROW_WORDS: usize = 3_002;
/// The word that is pushed alone, again and again.
const TICK: usize = ROW_WORDS - 1;

/// A call between two of its steps.
struct Call {
    from: usize,
    number: u64,
    step: CallStep,
}

enum CallStep {
    Ordered,
    Proved { near: PeerStream, far: PeerStream },
    Asked { near: PeerStream, visitor: Visitor },
    Answered { near: PeerStream, answer: ReopenAnswer },
}

#[derive(Debug)]
struct Visitor {
    request: ReopenRequest,
    stream: PeerStream,
    answer: Arc<Mutex<Option<ReopenAnswer>>>,
}

impl Asking for Visitor {
    fn request(&self) -> ReopenRequest {
        self.request
    }

    fn answer(self: Box<Self>, answer: ReopenAnswer) -> io::Result<PeerStream> {
        *self.answer.lock().unwrap() = Some(answer);
        Ok(self.stream)
    }
}

struct Schedule {
    random: Prng,
    proof: Proof,
    nodes: [TcpFabric; 2],
    orders: [Receiver<CallsOrder>; 2],
    wires: Vec<Wire>,
    calls: Vec<Call>,
    /// Requests whose callers have given up, and where they arrive.
    late: Vec<(usize, Visitor)>,
    mirrors: [MirrorId; 2],
    rows: [Region; 2],
    copies: [Region; 2],
    sent: [u64; 2],
    ticks: [u64; 2],
    seen: [u64; 2],
    seen_ticks: [u64; 2],
    breaks: u64,
}

/// What is between the two ends of a connection: it passes as many bytes on as the schedule says.
struct Wire {
    ends: [TcpStream; 2],
    /// What has come from each end, and is not passed on.
    under_way: [Vec<u8>; 2],
    is_over: [bool; 2],
}

impl Wire {
    fn pass_all(&mut self) {
        (0..2).for_each(|from| self.pass(from, usize::MAX));
    }

    /// Passes up to `most` bytes on that have come from an end.
    fn pass(&mut self, from: usize, most: usize) {
        let bytes = &mut self.under_way[from];
        if bytes.is_empty() && !self.is_over[from] {
            let mut buffer = [0; 2048];
            match self.ends[from].read(&mut buffer) {
                Ok(0) => {
                    self.is_over[from] = true;
                    let _ = self.ends[1 - from].shutdown(Shutdown::Write);
                }
                Ok(read) => bytes.extend(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.end(),
            }
        }
        let bytes = &mut self.under_way[from];
        let most = most.min(bytes.len());
        match self.ends[1 - from].write(&bytes[..most]) {
            Ok(passed) => drop(bytes.drain(..passed)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.end(),
        }
    }

    fn end(&mut self) {
        reset(&self.ends);
        self.is_over = [true; 2];
        self.under_way.iter_mut().for_each(Vec::clear);
    }
}

/// Has the kernel send in parts that do not end with a word.
fn limit_segments(listener: &TcpListener) {
    let bytes: libc::c_int = 549;
    let length = libc::socklen_t::try_from(size_of_val(&bytes)).unwrap();
    // SAFETY: the value is an `int` of that length.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw const bytes).cast(),
            length,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// A connection whose ends have proved themselves, and what is between them.
fn connected(proof: &Proof) -> ([PeerStream; 2], Wire) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    limit_segments(&listener);
    let pair = || {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    };
    let ([mut near, one], [other, mut far]) = (pair(), pair());
    for stream in [&near, &one, &other, &far] {
        stream.set_nodelay(true).unwrap();
        // As small as possible: the kernel takes a frame in several parts.
        set_socket_send_buffer_size(stream, 1).unwrap();
        set_socket_recv_buffer_size(stream, 16_384).unwrap();
    }
    for end in [&one, &other] {
        end.set_nonblocking(true).unwrap();
    }
    let mut wire = Wire { ends: [one, other], under_way: Default::default(), is_over: [false; 2] };
    let [near_ends, far_ends] = [&near, &far].map(|stream| Some(ConnectionEnds::of(stream).unwrap()));
    let [of_near, of_far] = [proof.clone(), proof.clone()];
    let proving = std::thread::spawn(move || {
        let session = of_near.prove(&mut near, near_ends, CallerKind::Member).unwrap();
        PeerStream::new(near, session)
    });
    let demanding = std::thread::spawn(move || {
        let session = of_far.demand(&mut far, far_ends, &[CallerKind::Member]).unwrap().session;
        PeerStream::new(far, session)
    });
    while !(proving.is_finished() && demanding.is_finished()) {
        wire.pass_all();
    }
    ([proving.join().unwrap(), demanding.join().unwrap()], wire)
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = Prng::new(seed);
        let encryption = if random.chance(500) { Encryption::Always } else { Encryption::Off };
        let secret = Secret::new("the secret of schedules").expect("long enough");
        let proof = Proof::new(&secret, "schedules").with_encryption(encryption);
        let (streams, wire) = connected(&proof);
        let (mut streams, mut wires) = (streams.map(Some), vec![wire]);
        let mut orders = Vec::new();
        let mut nodes = [0, 1].map(|i: u32| {
            let none: Vec<(NodeId, PeerStream)> = Vec::new();
            let mut node = TcpFabric::new(NodeId(i), none).unwrap();
            let (calls, taken) = PairCalls::without_threads(None, node.waker.clone());
            node.calls = Some(calls);
            orders.push(taken);
            node.add_peer(NodeId(1 - i), streams[i as usize].take().unwrap()).unwrap();
            node
        });
        let rows = [0, 1].map(|i: usize| nodes[i].register(ROW_WORDS));
        let key = |i: u32| MirrorKey(u64::from(i) + 1);
        let mirrors =
            [0, 1].map(|i: u32| nodes[i as usize].publish(key(i), &rows[i as usize], &[NodeId(1 - i)]));
        let copies = [0, 1].map(|i: u32| nodes[i as usize].attach(NodeId(1 - i), key(1 - i), ROW_WORDS));
        let mut attached = 0;
        while attached < 2 {
            wires[0].pass_all();
            for node in &mut nodes {
                node.poll(&mut |event| {
                    attached += usize::from(matches!(event, FabricEvent::Attached { .. }))
                });
            }
        }
        Self {
            breaks: 1 + random.below(6),
            random,
            proof,
            nodes,
            orders: orders.try_into().unwrap(),
            wires,
            calls: Vec::new(),
            late: Vec::new(),
            mirrors,
            rows,
            copies,
            sent: [0; 2],
            ticks: [0; 2],
            seen: [0; 2],
            seen_ticks: [0; 2],
        }
    }

    /// Faults happen, and then nothing does but what has to: all that was sent arrives.
    fn run(mut self, patience: Duration) {
        for _ in 0..20_000 {
            if self.breaks == 0 && self.sent == [ROUNDS; 2] {
                break;
            }
            self.step();
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < patience {
            if self.is_complete() {
                return;
            }
            (0..2).for_each(|i| self.poll(i));
            self.wires.iter_mut().for_each(Wire::pass_all);
            while let Some(place) = self.calls.len().checked_sub(1) {
                self.advance(place, false);
            }
        }
        panic!("stuck: {:?} of {:?}, {:?} of {:?}", self.seen, self.sent, self.seen_ticks, self.ticks);
    }

    fn is_complete(&self) -> bool {
        (0..2).all(|i| self.seen[i] == self.sent[1 - i] && self.seen_ticks[i] == self.ticks[1 - i])
    }

    fn step(&mut self) {
        let i = self.random.index(2);
        match self.random.below(100) {
            0..20 => self.poll(i),
            20..40 if !self.wires.is_empty() => {
                let (place, most) = (self.random.index(self.wires.len()), 1 + self.random.index(1_000));
                self.wires[place].pass(i, most);
                self.wires.retain(|wire| wire.is_over != [true; 2]);
            }
            40..55 if self.sent[i] < ROUNDS && self.seen[1 - i] + 1 >= self.sent[i] => {
                self.sent[i] += 1;
                send_round(&mut self.nodes[i], self.mirrors[i], &self.rows[i], self.sent[i]);
            }
            55..70 => {
                self.ticks[i] += 1;
                self.rows[i].store(TICK, self.ticks[i]);
                self.nodes[i].push_word(self.mirrors[i], TICK);
            }
            70..73 if self.breaks > 0 => self.break_link(i),
            73 if self.breaks > 0 => {
                self.breaks -= 1;
                self.nodes[i].call_beside(NodeId(u32::try_from(1 - i).unwrap()));
            }
            74..76 => {
                if let Some((to, visitor)) = self.late.pop() {
                    self.ask(to, visitor);
                }
            }
            76..100 if !self.calls.is_empty() => {
                let place = self.random.index(self.calls.len());
                self.advance(place, true);
            }
            _ => {}
        }
    }

    /// Ends the connection of an end, in order or not.
    fn break_link(&mut self, i: usize) {
        let Some(socket) = self.nodes[i].peers[0].socket.as_ref() else { return };
        self.breaks -= 1;
        match self.random.below(3) {
            0 => rustix::net::shutdown(socket.fd(), rustix::net::Shutdown::Both).unwrap_or_default(),
            1 => rustix::net::shutdown(socket.fd(), rustix::net::Shutdown::Write).unwrap_or_default(),
            _ => reset(&[socket.fd()]),
        }
    }

    fn poll(&mut self, i: usize) {
        self.nodes[i].poll(&mut |event| panic!("{event:?}"));
        self.seen[i] = check_round(&self.copies[i], self.seen[i]);
        let tick = self.copies[i].load(TICK);
        assert!(
            (self.seen_ticks[i]..=self.ticks[1 - i]).contains(&tick),
            "{tick} after {}",
            self.seen_ticks[i]
        );
        self.seen_ticks[i] = tick;
        while let Ok(order) = self.orders[i].try_recv() {
            // Without sentinels no process is ever dead.
            if let CallsOrder::Call(order) = order
                && order.call != SENTINEL_CALL
            {
                self.calls.push(Call { from: i, number: order.call, step: CallStep::Ordered });
            }
        }
    }

    fn tell(&mut self, i: usize, news: News) {
        self.nodes[i].calls.as_ref().unwrap().desk().send(news);
        self.poll(i);
    }

    /// Takes a call a step further, or lets it fail.
    fn advance(&mut self, place: usize, may_fail: bool) {
        let Call { from, number, step } = self.calls.swap_remove(place);
        let peer = NodeId(u32::try_from(1 - from).unwrap());
        if may_fail && self.random.chance(100) {
            if let CallStep::Asked { visitor, .. } = step
                && self.random.chance(700)
            {
                self.late.push((1 - from, visitor));
            }
            let failure = PairCallFailure { refused: false, cause: "by the schedule".into() };
            return self.tell(from, News::Answered { peer, call: number, answer: Err(failure) });
        }
        let step = match step {
            CallStep::Ordered => {
                let ([near, far], wire) = connected(&self.proof);
                self.wires.push(wire);
                CallStep::Proved { near, far }
            }
            CallStep::Proved { near, far } => {
                let (reply, request) = std::sync::mpsc::sync_channel(1);
                self.tell(from, News::Proved { peer, call: number, reply });
                let Ok(request) = request.try_recv() else { return };
                let visitor = Visitor { request, stream: far, answer: Arc::default() };
                CallStep::Asked { near, visitor }
            }
            CallStep::Asked { near, visitor } => match self.ask(1 - from, visitor) {
                Some(answer) => CallStep::Answered { near, answer },
                None => return,
            },
            CallStep::Answered { near, answer } => {
                return self.tell(from, News::Answered { peer, call: number, answer: Ok((answer, near)) });
            }
        };
        self.calls.push(Call { from, number, step });
    }

    /// A request arrives at this end.
    fn ask(&mut self, to: usize, visitor: Visitor) -> Option<ReopenAnswer> {
        let answer = Arc::clone(&visitor.answer);
        self.tell(to, News::Asked(Box::new(visitor)));
        answer.lock().unwrap().take()
    }
}

fn seeds() -> std::ops::Range<u64> {
    let most = std::env::var("SQUALL_REOPEN_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..most.unwrap_or(150)
}

#[test]
fn no_schedule_is_seen_above() {
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| Schedule::new(seed).run(Duration::from_secs(30)));
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// Each rule is needed: without it, some schedule is seen above the fabric, loses the peer, or never ends.
#[test]
fn each_rule_is_needed() {
    for mutation in ReopenMutation::ALL {
        let caught = |seed: &u64| {
            with(*mutation, || std::panic::catch_unwind(|| Schedule::new(*seed).run(Duration::from_secs(2))))
                .is_err()
        };
        let seed = (0..2_000).find(caught);
        println!("{mutation:?}: {seed:?}");
        assert!(seed.is_some(), "{mutation:?}");
    }
}
