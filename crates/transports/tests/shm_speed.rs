//! The cost of shared memory: prints measurements and asserts nothing about time.
//!
//! `cargo test --release -p squall-transports --test shm_speed -- --ignored --nocapture --test-threads 1`

#[path = "shm/child.rs"]
mod child;

use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use squall_fabric::{
    Channel, ConnId, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, Write, WriteSource,
};
use squall_transports::runner::pin;
use squall_transports::shm::ShmFabric;
use squall_transports::{TransportFabric, barrier};

use child::{ChildProcess, WordPair, fabric_of_child, role};

/// The other process of the measurements below; not a test of its own.
#[test]
#[ignore = "run by the other measurements, in a process of its own"]
fn child() {
    match role().as_deref() {
        Some("echo") => echo(),
        Some("echo parked") => echo_parked(),
        _ => {}
    }
}

#[test]
#[ignore = "a measurement"]
fn poll_and_push() {
    pin(0);
    let mut pair = InProcess::new();
    let node = &mut pair.nodes[0];
    measure("poll, idle, 1 peer", 1_000_000, || node.poll(&mut |_| ()));
    let (mirror, region) = (pair.mirror, &pair.region);
    let mut k = 0;
    measure("store + push_word + poll", 1_000_000, || {
        k += 1;
        region.store(0, k);
        node.push_word(mirror, 0);
        node.poll(&mut |_| ())
    });
    measure("barrier::heavy", 10_000, barrier::heavy);
    measure("prepare_park + poll + unpark", 10_000, || {
        node.prepare_park();
        node.poll(&mut |_| ());
        node.unpark();
    });
}

#[test]
#[ignore = "a measurement"]
fn poll_of_a_large_group() {
    pin(0);
    let (sockets, others): (Vec<_>, Vec<_>) = (1..16).map(|_| UnixStream::pair().expect("sockets")).unzip();
    let peers = |sockets: Vec<UnixStream>| (1..).map(NodeId).zip(sockets).collect::<Vec<_>>();
    let mut node = ShmFabric::new(NodeId(0), peers(sockets)).expect("a fabric");
    let join = |(peer, socket)| ShmFabric::new(peer, vec![(NodeId(0), socket)]).expect("a fabric");
    let mut others: Vec<_> = peers(others).into_iter().map(join).collect();
    let region = node.register(16);
    let readers: Vec<_> = (1..16).map(NodeId).collect();
    let mirror = node.publish(MirrorKey(1), &region, &readers);
    let _attachments: Vec<_> =
        others.iter_mut().map(|other| other.attach(NodeId(0), MirrorKey(1), 16)).collect();
    for _ in 0..20 {
        others.iter_mut().chain([&mut node]).for_each(|node| {
            node.poll(&mut |_| ());
        });
        std::thread::sleep(Duration::from_micros(300));
    }
    measure("poll, idle, 15 peers", 1_000_000, || node.poll(&mut |_| ()));
    measure("push_word to 15 readers + poll", 1_000_000, || {
        node.push_word(mirror, 0);
        node.poll(&mut |_| ())
    });
}

#[test]
#[ignore = "a measurement"]
fn one_sided_writes() {
    pin(0);
    let mut pair = InProcess::new();
    let target = pair.nodes[1].register(1 << 20);
    let grant = pair.nodes[1].grant(&target, 0..1 << 20, NodeId(0));
    let source = pair.nodes[0].register(1 << 20);
    let conn = pair.conn;
    for words in [1, 8, 32, 512, 8192, 1 << 20] {
        let node = &mut pair.nodes[0];
        let write = Write {
            source: WriteSource::Region(&source, 0..words),
            grant: &grant,
            offset: 0,
            immediate: None,
            signal: None,
        };
        let nanos = measure(&format!("write of {} B + poll", words * 8), 2_000_000 / words.max(4), || {
            node.write(conn, write.clone()).expect("connected");
            node.poll(&mut |_| ())
        });
        println!("{:>40} {:>10.2} GB/s", "", words as f64 * 8.0 / nanos);
    }
    measure("grant + revoke", 1000, || {
        let grant = pair.nodes[1].grant(&target, 0..64, NodeId(0));
        pair.nodes[1].revoke(&grant);
        pair.nodes.iter_mut().for_each(|node| {
            node.poll(&mut |_| ());
        });
    });
}

#[test]
#[ignore = "a measurement"]
fn freezing() {
    let mut pair = InProcess::new();
    for words in [512, 1 << 17, 1 << 21] {
        let key = MirrorKey(100 + words as u64);
        let begin = Instant::now();
        let region = pair.nodes[0].register(words);
        println!("{:>40} {:>10.1} µs", format!("register of {} KiB", words / 128), micros(begin.elapsed()));
        pair.nodes[0].publish(key, &region, &[NodeId(1)]);
        let attachment = pair.nodes[1].attach(NodeId(0), key, words);
        pair.settle();
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("our own process");
        let huge = smaps.lines().filter(|line| line.starts_with("ShmemPmdMapped:"));
        let huge: u64 = huge.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
        println!("{:>40} {huge:>10} KiB", "in huge pages, at owner and reader");
        let begin = Instant::now();
        pair.nodes[1].freeze(&attachment);
        println!("{:>40} {:>10.1} µs", format!("freeze of {} KiB", words / 128), micros(begin.elapsed()));
    }
}

#[test]
#[ignore = "a measurement"]
fn ping_pong() {
    // Start it before this thread is pinned to a core, because a child inherits the pinning.
    let (process, socket) = ChildProcess::start("echo");
    pin(0);
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    let mut times: Vec<_> = (1..=50_000)
        .map(|k| {
            let begin = Instant::now();
            pair.say(&mut fabric, k);
            while pair.heard() != k {
                fabric.poll(&mut |_| ());
            }
            begin.elapsed()
        })
        .collect();
    percentiles("mirror ping-pong, round trip", &mut times);
    drop(fabric);
    drop(process);
}

#[test]
#[ignore = "a measurement"]
fn wake_up() {
    // Start it before this thread is pinned to a core, because a child inherits the pinning.
    let (process, socket) = ChildProcess::start("echo parked");
    pin(0);
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    let mut times: Vec<_> = (1..=2_000)
        .map(|k| {
            std::thread::sleep(Duration::from_micros(200));
            let begin = Instant::now();
            pair.say(&mut fabric, k);
            while pair.heard() != k {
                fabric.poll(&mut |_| ());
            }
            begin.elapsed()
        })
        .collect();
    percentiles("wake a parked process, round trip", &mut times);
    drop(fabric);
    drop(process);
}

fn echo() {
    pin(1);
    let mut fabric = fabric_of_child(1);
    let mut pair = WordPair::new(&mut fabric, NodeId(0));
    poll_until_alone(&mut fabric, |fabric| pair.answer(fabric));
}

fn echo_parked() {
    pin(1);
    let mut fabric = fabric_of_child(1);
    let mut pair = WordPair::new(&mut fabric, NodeId(0));
    let mut alone = false;
    while !alone {
        fabric.prepare_park();
        let mut work = fabric.poll(&mut |event| alone |= matches!(event, FabricEvent::PeerLost { .. }));
        work += usize::from(pair.answer(&mut fabric));
        if work == 0 {
            fabric.park(None);
        }
        fabric.unpark();
    }
}

/// Polls without pause until the parent has ended.
fn poll_until_alone(fabric: &mut ShmFabric, mut each: impl FnMut(&mut ShmFabric) -> bool) {
    let mut alone = false;
    while !alone {
        fabric.poll(&mut |event| alone |= matches!(event, FabricEvent::PeerLost { .. }));
        each(fabric);
    }
}

/// Two nodes in this process with a connection and a mirror.
struct InProcess {
    nodes: [ShmFabric; 2],
    conn: ConnId,
    mirror: MirrorId,
    region: Region,
}

impl InProcess {
    fn new() -> Self {
        let (a, b) = UnixStream::pair().expect("sockets");
        let mut nodes = [
            ShmFabric::new(NodeId(0), vec![(NodeId(1), a)]).expect("a fabric"),
            ShmFabric::new(NodeId(1), vec![(NodeId(0), b)]).expect("a fabric"),
        ];
        let region = nodes[0].register(1024);
        let mirror = nodes[0].publish(MirrorKey(1), &region, &[NodeId(1)]);
        nodes[1].attach(NodeId(0), MirrorKey(1), 1024);
        let conn = nodes[0].open(NodeId(1), Channel(1));
        nodes[1].open(NodeId(0), Channel(1));
        let mut pair = Self { nodes, conn, mirror, region };
        pair.settle();
        pair
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            self.nodes.iter_mut().for_each(|node| {
                node.poll(&mut |_| ());
            });
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// Runs ten batches and returns their median, in nanoseconds per round.
fn measure<T>(what: &str, rounds: usize, mut round: impl FnMut() -> T) -> f64 {
    let mut batches: Vec<f64> = (0..10)
        .map(|_| {
            let begin = Instant::now();
            (0..rounds).for_each(|_| {
                black_box(round());
            });
            begin.elapsed().as_nanos() as f64 / rounds as f64
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!("{what:>40} {:>10.1} ns (best {:.1})", batches[5], batches[0]);
    batches[5]
}

fn percentiles(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |part: usize| micros(times[(times.len() - 1) * part / 1000]);
    println!("{what:>40} {:>10.3} µs (p1 {:.3}, p99 {:.3}, p99.9 {:.3})", at(500), at(10), at(990), at(999));
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}
