//! The TCP mirror path by itself: members push slots and a counter to each other, acknowledge, and count what
//! every member has received. It does the least work possible, and so serves as a reference for the multicast
//! built on this path.
//!
//! ```text cargo run --release -p squall-transports --example tcp_push -- MEMBERS SIZE MESSAGES WINDOW
//! [latency] ``` Each member is a process; all of them send, or with `latency` only member 0, one message at
//! a time. Prints one JSON object: messages per second that each member delivers, messages per system call,
//! and the time from send to delivery.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use squall_fabric::layout::LINE_WORDS;
use squall_fabric::{Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};
use squall_transports::TransportFabric;
use squall_transports::tcp::{TcpCounters, TcpFabric};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (numbers, rest): (Vec<_>, Vec<_>) =
        arguments[1..].iter().partition(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let numbers: Vec<usize> = numbers.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let &[members, size, messages, window, ref port @ ..] = &numbers[..] else {
        return Err("usage: tcp_push MEMBERS SIZE MESSAGES WINDOW [latency]".into());
    };
    let plan = Plan { members, size, messages, window, latency: rest.iter().any(|text| *text == "latency") };
    if let &[port] = port {
        let (rank, streams) = join(u16::try_from(port)?)?;
        Member::new(&plan, rank, streams)?.run(&plan)?;
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let mut children = Vec::new();
    for _ in 1..members {
        let mut command = Command::new(&arguments[0]);
        children.push(command.args(&arguments[1..]).arg(&port).stdout(Stdio::null()).spawn()?);
    }
    let streams = gather(&listener, members)?;
    Member::new(&plan, 0, streams)?.run(&plan)?;
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// The parameters of a run.
struct Plan {
    members: usize,
    size: usize,
    messages: usize,
    window: usize,
    latency: bool,
}

impl Plan {
    fn slot_words(&self) -> usize {
        2 + self.size.div_ceil(8)
    }

    /// Returns the number of members that send.
    fn senders(&self) -> usize {
        if self.latency { 1 } else { self.members }
    }
}

type Streams = Vec<(NodeId, TcpStream)>;

/// Accepts the others' streams in member 0, and sends each its rank and the ports of the members before it.
fn gather(listener: &TcpListener, members: usize) -> std::io::Result<Streams> {
    let mut streams: Streams = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    for rank in 1..u32::try_from(members).expect("few") {
        let (mut stream, _) = listener.accept()?;
        let mut port = [0; 2];
        stream.read_exact(&mut port)?;
        stream.write_all(&rank.to_le_bytes())?;
        for port in &ports {
            stream.write_all(&port.to_le_bytes())?;
        }
        ports.push(u16::from_le_bytes(port));
        streams.push((NodeId(rank), stream));
    }
    for (_, stream) in &mut streams {
        stream.write_all(&u32::try_from(members).expect("few").to_le_bytes())?;
    }
    Ok(streams)
}

/// Connects to all members of lower rank and accepts streams from all of higher rank, in the other members.
fn join(port: u16) -> std::io::Result<(u32, Streams)> {
    let number = |stream: &mut TcpStream| {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut first = TcpStream::connect(("127.0.0.1", port))?;
    first.write_all(&listener.local_addr()?.port().to_le_bytes())?;
    let rank = number(&mut first)?;
    let mut streams = Vec::new();
    for before in 1..rank {
        let mut port = [0; 2];
        first.read_exact(&mut port)?;
        let mut stream = TcpStream::connect(("127.0.0.1", u16::from_le_bytes(port)))?;
        stream.write_all(&rank.to_le_bytes())?;
        streams.push((NodeId(before), stream));
    }
    let members = number(&mut first)?;
    streams.push((NodeId(0), first));
    for _ in rank + 1..members {
        let (mut stream, _) = listener.accept()?;
        streams.push((NodeId(number(&mut stream)?), stream));
    }
    Ok((rank, streams))
}

/// The words of a row: counters for what the member has sent, and for what it has received from every member
/// and delivered.
const SENT: usize = 0;
const RECEIVED: usize = LINE_WORDS;
const DELIVERED: usize = 2 * LINE_WORDS;
const RING: usize = 3 * LINE_WORDS;

struct Member {
    fabric: TcpFabric,
    rank: usize,
    mirror: MirrorId,
    /// One row per member; this member's own is the region, the others are attachments.
    rows: Vec<Region>,
    sent: usize,
    received: usize,
    delivered: usize,
    digest: u64,
}

impl Member {
    fn new(plan: &Plan, rank: u32, streams: Streams) -> Result<Self, Box<dyn std::error::Error>> {
        let peers: Vec<NodeId> = streams.iter().map(|(node, _)| *node).collect();
        let mut fabric = TcpFabric::new(NodeId(rank), streams)?;
        let words = RING + plan.window * plan.slot_words();
        let own = fabric.register(words);
        let mirror = fabric.publish(MirrorKey(1), &own, &peers);
        let mut rows: Vec<(NodeId, Region)> =
            peers.iter().map(|peer| (*peer, fabric.attach(*peer, MirrorKey(1), words))).collect();
        rows.push((NodeId(rank), own));
        rows.sort_by_key(|(node, _)| *node);
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        let mut attached = 0;
        while attached < peers.len() {
            fabric.poll(&mut |event| attached += usize::from(matches!(event, FabricEvent::Attached { .. })));
        }
        let rank = usize::try_from(rank)?;
        Ok(Self { fabric, rank, mirror, rows, sent: 0, received: 0, delivered: 0, digest: 0 })
    }

    fn run(mut self, plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
        let total = plan.messages * plan.senders();
        let crowded = plan.members > std::thread::available_parallelism()?.get();
        let parking = std::env::var_os("TCP_PUSH_PARK").is_some();
        let mut times = Vec::with_capacity(if plan.latency { total } else { 0 });
        let (begin, mut sent_at, mut idle) = (Instant::now(), Instant::now(), 0);
        while self.delivered < total {
            let mut work = self
                .fabric
                .poll(&mut |event| assert!(!matches!(event, FabricEvent::PeerLost { .. }), "{event:?}"));
            let before = self.sent;
            work += self.send(plan);
            if self.sent > before {
                sent_at = Instant::now();
            }
            work += self.receive(plan);
            let delivered = self.deliver(plan);
            if delivered > 0 && plan.latency && self.rank == 0 {
                times.push(sent_at.elapsed());
            }
            idle = if work + delivered > 0 { 0 } else { idle + 1 };
            if parking && idle > 20 {
                self.fabric.prepare_park();
                if self.fabric.poll(&mut |_| {}) == 0 {
                    self.fabric.park(Some(Duration::from_millis(100)));
                }
                self.fabric.unpark();
            } else if idle > 0 && crowded {
                std::thread::yield_now();
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        if self.rank == 0 {
            report(plan, total, seconds, &mut times, self.fabric.counters());
        }
        // Continue until every member knows that everything is delivered.
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            self.fabric.poll(&mut |_| {});
            std::thread::sleep(Duration::from_micros(100));
        }
        std::hint::black_box(self.digest);
        Ok(())
    }

    /// Writes messages into the ring and pushes them: at most as many as an application would commit between
    /// two polls.
    fn send(&mut self, plan: &Plan) -> usize {
        if self.rank >= plan.senders() || self.sent == plan.messages {
            return 0;
        }
        let freed = self.rows.iter().map(|row| row.load(DELIVERED)).min().expect("members");
        let free = usize::try_from(freed).expect("small") / plan.senders() + plan.window;
        let mut until = plan.messages.min(free).min(self.sent + BATCH_MAX);
        if plan.latency {
            until = until.min(self.delivered + 1);
        }
        if until <= self.sent {
            return 0;
        }
        let row = &self.rows[self.rank];
        let words = plan.slot_words();
        for message in self.sent..until {
            let first = RING + message % plan.window * words;
            row.store_relaxed(first, message as u64);
            row.store_relaxed(first + 1, plan.size as u64);
            // SAFETY: every member has delivered what was in the slot, so no one reads it, and only this
            // thread stores into it.
            unsafe { row.bytes_mut(first + 2, plan.size) }.fill(message as u8);
        }
        row.store(SENT, until as u64);
        let (from, to) = (self.sent % plan.window, (until - 1) % plan.window + 1);
        let slots = |from: usize, to: usize| RING + from * words..RING + to * words;
        if from < to {
            self.fabric.push(self.mirror, slots(from, to));
        } else {
            self.fabric.push(self.mirror, slots(from, plan.window));
            self.fabric.push(self.mirror, slots(0, to));
        }
        self.fabric.push_word(self.mirror, SENT);
        let count = until - self.sent;
        self.sent = until;
        count
    }

    /// Acknowledges what has arrived from every sender, in rounds.
    fn receive(&mut self, plan: &Plan) -> usize {
        let sent = self.rows[..plan.senders()].iter().map(|row| row.load(SENT)).min().expect("senders");
        let received = usize::try_from(sent).expect("small") * plan.senders();
        let count = received - self.received;
        if count > 0 {
            self.received = received;
            self.rows[self.rank].store(RECEIVED, received as u64);
            self.fabric.push_word(self.mirror, RECEIVED);
        }
        count
    }

    /// Reads what every member has received.
    fn deliver(&mut self, plan: &Plan) -> usize {
        let stable = self.rows.iter().map(|row| row.load(RECEIVED)).min().expect("members");
        let stable = usize::try_from(stable).expect("small");
        let count = stable - self.delivered;
        for sequence in self.delivered..stable {
            let (sender, message) = (sequence % plan.senders(), sequence / plan.senders());
            let first = RING + message % plan.window * plan.slot_words();
            assert_eq!(self.rows[sender].load_relaxed(first), message as u64, "slot of message {message}");
            // SAFETY: the sender writes the slot again only when every member has delivered it.
            let bytes = unsafe { self.rows[sender].bytes(first + 2, plan.size) };
            self.digest += bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>();
        }
        if count > 0 {
            self.delivered = stable;
            self.rows[self.rank].store(DELIVERED, stable as u64);
            self.fabric.push_word(self.mirror, DELIVERED);
        }
        count
    }
}

fn report(plan: &Plan, total: usize, seconds: f64, times: &mut [Duration], counters: TcpCounters) {
    times.sort();
    let percentile =
        |part: f64| times.get((times.len() as f64 * part) as usize).map_or(0, Duration::as_nanos);
    let TcpCounters {
        frames_sent, send_calls, receive_calls, poll_calls, bytes_sent, words_coalesced, ..
    } = counters;
    let sent = plan.messages * usize::from(plan.senders() > 0) * (plan.members - 1);
    println!(
        "{{\"members\":{},\"size\":{},\"messages\":{total},\"seconds\":{seconds:.4},\
         \"messages_per_second\":{:.0},\"bytes_per_second\":{:.0},\
         \"latency_ns\":{{\"p50\":{},\"p99\":{},\"p999\":{}}},\
         \"messages_per_send_call\":{:.1},\"bytes_per_send_call\":{:.0},\"frames_sent\":{frames_sent},\
         \"send_calls\":{send_calls},\"receive_calls\":{receive_calls},\"poll_calls\":{poll_calls},\
         \"words_coalesced\":{words_coalesced}}}",
        plan.members,
        plan.size,
        total as f64 / seconds,
        (total * plan.size) as f64 / seconds,
        percentile(0.5),
        percentile(0.99),
        percentile(0.999),
        sent as f64 / send_calls as f64,
        bytes_sent as f64 / send_calls as f64,
    );
}

/// The most messages that an application commits between two polls.
const BATCH_MAX: usize = 64;
