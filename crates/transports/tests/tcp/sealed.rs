//! Encrypted streams with an attacker between their ends: a record that the attacker alters, omits or repeats
//! ends the connection, and none of its words is stored.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use squall_fabric::{BreakReason, Fabric, FabricEvent, MirrorKey, NodeId, Region};
use squall_transports::tcp::TcpFabric;

use crate::cluster::sealed;

/// A writer whose mirror a reader sees through an attacker, who receives each record and returns what to
/// forward.
struct Scene {
    writer: TcpFabric,
    reader: TcpFabric,
    source: Region,
    attachment: Region,
    mirror: squall_fabric::MirrorId,
    lost: Option<BreakReason>,
}

const WORDS: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

impl Scene {
    fn new(meddle: impl FnMut(usize, Vec<u8>) -> Vec<u8> + Send + 'static) -> Self {
        let [listener, attacker] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let near = TcpStream::connect(attacker.local_addr().expect("bound")).expect("it listens");
        let address = listener.local_addr().expect("bound");
        let (caller, _) = attacker.accept().expect("it has connected");
        let called = TcpStream::connect(address).expect("it listens");
        let (far, _) = listener.accept().expect("it has connected");
        relay(caller, called, meddle);
        let (near, far) = sealed(near, far);
        let mut writer = TcpFabric::new(NodeId(0), vec![(NodeId(1), near)]).expect("a fabric");
        let mut reader = TcpFabric::new(NodeId(1), vec![(NodeId(0), far)]).expect("a fabric");
        let source = writer.register(WORDS);
        let mirror = writer.publish(MirrorKey(1), &source, &[NodeId(1)]);
        let attachment = reader.attach(NodeId(0), MirrorKey(1), WORDS);
        let mut scene = Self { writer, reader, source, attachment, mirror, lost: None };
        let mut attached = false;
        scene.poll_until(|event| attached |= matches!(event, FabricEvent::Attached { .. }), |_| false);
        scene
    }

    /// Polls both until the reader satisfies `done`, the reader's attachment is reported to the writer, or a
    /// peer is lost.
    fn poll_until(&mut self, mut on_event: impl FnMut(&FabricEvent), done: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        let mut heard = false;
        while !heard && !done(self) && self.lost.is_none() {
            assert!(begin.elapsed() < PATIENCE, "waited too long");
            self.writer.poll(&mut |event| {
                heard |= matches!(event, FabricEvent::Attached { .. });
                on_event(&event);
            });
            let lost = &mut self.lost;
            self.reader.poll(&mut |event| {
                if let FabricEvent::PeerLost { reason, .. } = event {
                    *lost = Some(reason);
                }
            });
        }
    }

    fn push(&mut self, value: u64) {
        (0..WORDS).for_each(|word| self.source.store(word, value));
        self.writer.push(self.mirror, 0..WORDS);
    }

    fn shows(&self, value: u64) -> bool {
        (0..WORDS).all(|word| self.attachment.load(word) == value)
    }
}

/// Relays the bytes of two streams. What the first sends to the second after the handshake is split into
/// records; each is passed to `meddle` with its number, which returns what to forward.
fn relay(
    caller: TcpStream,
    called: TcpStream,
    mut meddle: impl FnMut(usize, Vec<u8>) -> Vec<u8> + Send + 'static,
) {
    let (mut back_from, mut back_to) = (called.try_clone().expect("one"), caller.try_clone().expect("one"));
    std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
    std::thread::spawn(move || {
        let (mut caller, mut called) = (caller, called);
        let mut hello = [0; squall_transports::session::HELLO_BYTES];
        caller.read_exact(&mut hello)?;
        called.write_all(&hello)?;
        for number in 0.. {
            let mut length = [0; 2];
            caller.read_exact(&mut length)?;
            let mut record = length.to_vec();
            record.resize(2 + usize::from(u16::from_le_bytes(length)), 0);
            caller.read_exact(&mut record[2..])?;
            called.write_all(&meddle(number, record))?;
        }
        std::io::Result::Ok(())
    });
}

#[test]
fn unaltered_records_arrive() {
    let mut scene = Scene::new(|_, record| record);
    for value in 1..20 {
        scene.push(value);
        scene.poll_until(|_| (), |scene| scene.attachment.load(WORDS - 1) == value);
        assert!(scene.lost.is_none() && scene.shows(value));
    }
}

/// The mirror's words are pushed in records of 32 KiB. No word of the altered record, or of any later one, is
/// stored.
#[test]
fn an_altered_record_ends_the_connection_and_stores_nothing() {
    for place in [0, 2, 3, 1000, 32 << 10] {
        let mut scene = Scene::new(move |number, mut record| {
            if number == 8 {
                let place = place.min(record.len() - 1);
                record[place] ^= 1;
            }
            record
        });
        scene.push(u64::MAX);
        scene.poll_until(|_| (), |_| false);
        assert_eq!(scene.lost, Some(BreakReason::Protocol), "byte {place}");
        let first = (0..WORDS)
            .find(|word| scene.attachment.load(*word) != u64::MAX)
            .expect("not all words have arrived");
        assert!(
            (first..WORDS).all(|word| scene.attachment.load(word) == 0),
            "byte {place}: a later word was stored"
        );
    }
}

#[test]
fn a_repeated_or_omitted_record_ends_the_connection() {
    for repeats in [true, false] {
        let mut scene = Scene::new(move |number, record| match (number == 8, repeats) {
            (true, true) => [&record[..], &record].concat(),
            (true, false) => Vec::new(),
            _ => record,
        });
        scene.push(3);
        scene.poll_until(|_| (), |scene| scene.attachment.load(WORDS - 1) == 3);
        assert_eq!(scene.lost, Some(BreakReason::Protocol), "repeats: {repeats}");
        assert!(!scene.shows(3));
    }
}
