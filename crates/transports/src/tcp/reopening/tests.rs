//! Connections that break, again and again, at any byte: the axioms hold as if nothing had happened.

mod drawn;
mod network;

use squall_fabric::conformance::Harness;
use squall_fabric::{BreakReason, Fabric, FabricEvent, MirrorKey};

use super::*;
use network::{Breaks, Cluster, Wires, interrupt, mend};

/// A cluster whose connections end after a few kilobytes, by the numbers of a fixed sequence.
struct Broken<const SEALED: bool>(Cluster);

impl<const SEALED: bool> Harness for Broken<SEALED> {
    type Fabric = TcpFabric;

    fn new(nodes: u32) -> Self {
        // A record has to arrive whole.
        let most = if SEALED { 120_000 } else { 6_000 };
        Self(Cluster::new(nodes, SEALED, Breaks::Random { seed: 7, most }))
    }

    fn node(&mut self, i: u32) -> &mut TcpFabric {
        self.0.node(i)
    }

    fn step(&mut self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn kill(&mut self, i: u32) {
        self.0.kill(i);
    }
}

mod broken_conformance {
    squall_fabric::conformance_suite!(super::Broken<false>);
}

mod broken_sealed_conformance {
    squall_fabric::conformance_suite!(super::Broken<true>);
}

/// Two nodes that exchange a fixed number of words of a mirror, ranges and writes, each way.
struct Dialogue {
    cluster: Cluster,
    mirrors: [squall_fabric::MirrorId; 2],
    rows: [squall_fabric::Region; 2],
    copies: [squall_fabric::Region; 2],
}

/// A counter, up to 599 words that it announces, and one that is pushed alone.
const ROW_WORDS: usize = 601;

/// Pushes a range, short or long, and a counter that announces it.
fn send_round(
    node: &mut TcpFabric,
    mirror: squall_fabric::MirrorId,
    row: &squall_fabric::Region,
    round: u64,
) {
    let words = words_of(round, row);
    (1..=words).for_each(|word| row.store(word, round << 16 | word as u64));
    node.push(mirror, 1..words + 1);
    row.store(0, round);
    node.push_word(mirror, 0);
}

/// Checks that what the counter announces is there \[M2\], after a round that was seen already; returns the counter.
fn check_round(copy: &squall_fabric::Region, seen: u64) -> u64 {
    let announced = copy.load(0);
    assert!((seen..=seen + 2).contains(&announced), "{announced} after {seen}");
    if announced > seen {
        for word in 1..=words_of(announced, copy) {
            let found = copy.load(word);
            assert!(found >> 16 >= announced && found & 0xffff == word as u64, "{found:x} at {word}");
        }
    }
    announced
}

fn words_of(round: u64, row: &squall_fabric::Region) -> usize {
    if round.is_multiple_of(3) { row.words() - 2 } else { 9 }
}

impl Dialogue {
    fn new(sealed: bool, breaks: Breaks) -> Self {
        Self::over(Cluster::new(2, sealed, breaks))
    }

    fn over(mut cluster: Cluster) -> Self {
        let rows = [0, 1].map(|i| cluster.node(i).register(ROW_WORDS));
        let key = |i: u32| MirrorKey(u64::from(i) + 1);
        let mirrors = [0, 1].map(|i| {
            let row = &rows[i as usize];
            cluster.node(i).publish(key(i), row, &[NodeId(1 - i)])
        });
        let copies = [0, 1].map(|i| cluster.node(i).attach(NodeId(1 - i), key(1 - i), ROW_WORDS));
        let mut attached = 0;
        while attached < 2 {
            attached += cluster
                .poll_all()
                .iter()
                .filter(|event| matches!(event, FabricEvent::Attached { .. }))
                .count();
        }
        Self { cluster, mirrors, rows, copies }
    }

    /// Sends `rounds` rounds, each a range, short or long, that is announced by a counter; the other end checks what the counter announces.
    fn run(&mut self, rounds: u64) {
        let (mut sent, mut seen) = ([0; 2], [0; 2]);
        while seen != [rounds; 2] {
            for i in 0..2 {
                if sent[i] < rounds && seen[1 - i] + 1 >= sent[i] {
                    sent[i] += 1;
                    let node = self.cluster.node(u32::try_from(i).unwrap());
                    send_round(node, self.mirrors[i], &self.rows[i], sent[i]);
                }
                seen[i] = check_round(&self.copies[i], seen[i]);
            }
            let events = self.cluster.poll_all();
            assert!(events.is_empty(), "{events:?}");
        }
    }
}

/// A connection that ends after any number of bytes, in either direction, is not seen above the fabric. Every byte of the first kilobytes; more
/// in the long form.
#[test]
fn a_reset_after_any_byte_is_a_pause() {
    let most = std::env::var("SQUALL_RESET_BYTES").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(160);
    for sealed in [false, true] {
        let mut reopened = 0;
        for bytes in 0..most {
            for direction in [Wires::Forth, Wires::Back] {
                let mut dialogue =
                    Dialogue::new(sealed, Breaks::Once { direction, bytes: 37 * bytes % 8_192 });
                dialogue.run(4);
                reopened += dialogue.cluster.reopened();
            }
        }
        assert!(reopened > most, "{reopened} of {} connections broke while they were used", 2 * most);
    }
}

/// A length that was altered in transit makes its reader wait for more than is sent; signs of life still come, and it does not wait for long.
#[test]
fn an_altered_length_is_a_pause() {
    let mut dialogue = Dialogue::new(true, Breaks::Never);
    dialogue.run(2);
    dialogue.cluster.node(0).local.silence = Some(Duration::from_millis(100));
    let socket = dialogue.cluster.node(1).peers[0].socket.as_ref().unwrap();
    // The longest that a record may have, from here on.
    rustix::net::send(socket.fd(), &[0x00, 0x70], rustix::net::SendFlags::empty()).unwrap();
    let begin = std::time::Instant::now();
    let mut sign = 1 << 40;
    while dialogue.cluster.reopened() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(5), "it waits for the rest");
        sign += 1;
        dialogue.rows[1].store(ROW_WORDS - 1, sign);
        let mirror = dialogue.mirrors[1];
        dialogue.cluster.node(1).push_word(mirror, ROW_WORDS - 1);
        assert!(dialogue.cluster.poll_all().is_empty());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(begin.elapsed() > Duration::from_millis(90), "the rest of a record may be under way");
    while dialogue.copies[0].load(ROW_WORDS - 1) != sign {
        assert!(dialogue.cluster.poll_all().is_empty());
    }
}

impl Dialogue {
    /// Node 0 sends one word.
    fn tick(&mut self, number: u64) {
        self.rows[0].store(ROW_WORDS - 1, number);
        let mirror = self.mirrors[0];
        self.cluster.node(0).push_word(mirror, ROW_WORDS - 1);
        assert!(self.cluster.poll_all().is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }

    /// The connection of node 0.
    fn socket(&mut self) -> &TcpSocket {
        self.cluster.node(0).peers[0].socket.as_ref().expect("it is connected")
    }
}

/// A connection over which nothing comes back is opened again long before the kernel would end it.
#[test]
fn a_silent_connection_is_called_beside() {
    let long = Duration::from_secs(60);
    for sealed in [false, true] {
        let mut dialogue = Dialogue::over(Cluster::with_silence(2, sealed, Breaks::Never, Some(long)));
        interrupt(dialogue.socket());
        let begin = std::time::Instant::now();
        let mut number = 0;
        while dialogue.cluster.reopened() < 2 {
            number += 1;
            dialogue.tick(number);
            assert!(begin.elapsed() < long / 4, "not opened again");
        }
        while dialogue.copies[1].load(ROW_WORDS - 1) != number {
            assert!(dialogue.cluster.poll_all().is_empty());
        }
        println!("opened again after {:?}", begin.elapsed());
    }
}

/// A call beside a silent connection is given up when that shows life.
#[test]
fn a_connection_that_shows_life_is_kept() {
    let long = Duration::from_secs(60);
    let mut dialogue = Dialogue::over(Cluster::with_silence(2, true, Breaks::Never, Some(long)));
    let calls = |dialogue: &mut Dialogue| {
        let reopening = dialogue.cluster.node(0).peers[0].reopening.as_ref().unwrap();
        (reopening.given_up.is_some(), reopening.failed)
    };
    dialogue.cluster.refuse(true);
    interrupt(dialogue.socket());
    let mut number = 0;
    while calls(&mut dialogue).1 < 3 {
        number += 1;
        dialogue.tick(number);
    }
    mend(dialogue.socket());
    while dialogue.socket().is_silent() || calls(&mut dialogue).0 {
        number += 1;
        dialogue.tick(number);
    }
    dialogue.cluster.refuse(false);
    for _ in 0..200 {
        number += 1;
        dialogue.tick(number);
    }
    assert_eq!(dialogue.cluster.reopened(), 0);
}

/// Both ends break, call at once, and agree on one connection; neither waits for a timer.
#[test]
fn both_ends_may_call() {
    for sealed in [false, true] {
        let mut dialogue = Dialogue::new(sealed, Breaks::Never);
        for round in 0..50 {
            dialogue.run(2);
            dialogue.rows.iter().for_each(|row| row.store(0, 0));
            for i in 0..2 {
                dialogue.cluster.node(i).push_word(dialogue.mirrors[i as usize], 0);
            }
            while dialogue.copies.iter().any(|copy| copy.load(0) != 0) {
                dialogue.cluster.poll_all();
            }
            dialogue.cluster.cut();
            let (before, begin) = (dialogue.cluster.reopened(), std::time::Instant::now());
            while dialogue.cluster.reopened() < before + 2 {
                assert!(dialogue.cluster.poll_all().is_empty());
                assert!(begin.elapsed() < Duration::from_secs(5), "round {round}: not open again");
            }
        }
    }
}

/// The death of a process is noticed by the end of its stream and its host's refusals, not by a timer.
#[test]
fn a_dead_process_is_lost_at_once() {
    let mut dialogue = Dialogue::new(false, Breaks::Never);
    dialogue.cluster.kill(1);
    let begin = std::time::Instant::now();
    loop {
        let events = dialogue.cluster.poll_all();
        if let Some(event) = events.first() {
            let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::PeerClosed };
            assert_eq!(*event, lost);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "not noticed");
    }
}

/// A node that has removed a peer answers its calls, so it learns \[C17\].
#[test]
fn a_removed_peer_learns_of_it() {
    let mut dialogue = Dialogue::new(true, Breaks::Never);
    dialogue.cluster.cut();
    dialogue.cluster.node(0).remove_peer(NodeId(1));
    let begin = std::time::Instant::now();
    let lost = FabricEvent::PeerLost { peer: NodeId(0), reason: BreakReason::Removed };
    while !dialogue.cluster.poll_all().contains(&lost) {
        assert!(begin.elapsed() < Duration::from_secs(5), "not noticed");
    }
}

/// A process is killed with something that it has not read, and while its link is down.
#[test]
fn a_death_is_noticed_though_its_connection_was_reset() {
    for reset_first in [false, true] {
        let mut dialogue = Dialogue::new(false, Breaks::Never);
        dialogue.rows[0].store(0, 7);
        let mirror = dialogue.mirrors[0];
        dialogue.cluster.node(0).push_word(mirror, 0);
        dialogue.cluster.node(0).poll(&mut |_| {});
        if reset_first {
            dialogue.cluster.refuse(true);
            dialogue.cluster.reset_links();
            (0..50).for_each(|_| assert!(dialogue.cluster.poll_all().is_empty()));
        }
        dialogue.cluster.kill(1);
        let begin = std::time::Instant::now();
        let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::PeerClosed };
        while !dialogue.cluster.poll_all().contains(&lost) {
            assert!(begin.elapsed() < Duration::from_secs(5), "not noticed");
        }
    }
}

/// A sentinel that breaks, or is ended by something between the two, costs nothing, and there is another one soon.
#[test]
fn a_sentinel_is_replaced() {
    for ends in [false, true] {
        let mut dialogue = Dialogue::new(true, Breaks::Never);
        for _ in 0..5 {
            dialogue.cluster.end_sentinels(ends);
            let begin = std::time::Instant::now();
            let mut rounds = 0;
            while rounds < 20 || !dialogue.cluster.has_sentinels() {
                rounds += 1;
                let events = dialogue.cluster.poll_all();
                assert!(events.is_empty(), "{events:?}");
                assert!(begin.elapsed() < Duration::from_secs(5), "there is no other one");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        dialogue.run(2);
    }
}

/// A host that refuses connections for a while proves nothing, if the stream has not been ended by the other end.
#[test]
fn refusals_alone_are_no_death() {
    let mut dialogue = Dialogue::new(false, Breaks::Never);
    dialogue.cluster.refuse(true);
    dialogue.cluster.reset();
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        let events = dialogue.cluster.poll_all();
        assert!(events.is_empty(), "{events:?}");
    }
    assert_eq!(dialogue.cluster.reopened(), 0);
    dialogue.cluster.refuse(false);
    dialogue.run(3);
    assert!(dialogue.cluster.reopened() >= 2);
}
