//! Regions that are files: what is sent from their pages, and what lands in them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use squall_fabric::conformance::ConformanceCluster;
use squall_fabric::region::Access;
use squall_fabric::{Channel, Fabric, FabricEvent, Grant, NodeId, Token, Write, WriteSource};

use crate::cluster::{PlainLoopback, SealedLoopback};
use crate::raw::{ACCEPT, OPEN, Victim, WRITE, Xorshift, frame};

/// A file without a name, with this content.
fn file(name: &str, content: &[u8]) -> File {
    let path = std::env::temp_dir().join(format!("squall-pages-{name}-{}", std::process::id()));
    let file = File::options().create_new(true).read(true).write(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("it is there");
    file.write_all_at(content, 0).expect("space");
    file
}

fn content(bytes: usize) -> Vec<u8> {
    let mut random = Xorshift::new(5);
    (0..bytes).map(|_| random.next().to_le_bytes()[3]).collect()
}

fn read(file: &File, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    file.read_exact_at(&mut found, 0).expect("it is as long");
    found
}

/// Writes from file to file, of ranges that begin and end anywhere, also behind the last whole word: each byte arrives at its place, in
/// the file, and none beside it.
fn copies<H: squall_fabric::conformance::Harness<Fabric = squall_transports::tcp::TcpFabric>>(name: &str) {
    const BYTES: usize = (5 << 20) + 3;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (near, _) = cluster.connect(0, 1, 1);
    let given = content(BYTES);
    let (from, to) = (file(&format!("{name}-from"), &given), file(&format!("{name}-to"), &vec![0; BYTES]));
    let source = cluster.node(0).file_region(&from, BYTES, Access::ReadOnly).expect("a region");
    let target = cluster.node(1).file_region(&to, BYTES, Access::ReadWrite).expect("a region");
    let grant = cluster.node(1).grant(&target, 0..target.words(), NodeId(0));
    let mut expected = vec![0; BYTES];
    let all = source.words();
    let ranges = [
        1..4,
        700..900,
        1000..40_000,
        131_071..262_145,
        300_000..all - 1,
        all - 1..all,
        all - 5000..all,
        0..all,
    ];
    for (number, range) in ranges.into_iter().enumerate() {
        let end = BYTES.min(8 * range.end);
        expected[8 * range.start..end].copy_from_slice(&given[8 * range.start..end]);
        let token = Token(number as u64);
        let (offset, signal) = (range.start, Some(token));
        let write = Write {
            source: WriteSource::Region(&source, range),
            grant: &grant,
            offset,
            immediate: None,
            signal,
        };
        cluster.node(0).write(near, write).expect("space");
        cluster.expect(
            0,
            "Done",
            |event| matches!(event, FabricEvent::Done { token: done, .. } if *done == token),
        );
        assert!(read(&to, BYTES) == expected, "write {number}");
        assert_eq!(to.metadata().expect("it is there").len(), BYTES as u64, "nothing is behind its end");
    }
}

#[test]
fn files_are_copied_from_pages_to_pages() {
    copies::<PlainLoopback>("plain");
}

#[test]
fn files_are_copied_over_encrypted_streams() {
    copies::<SealedLoopback>("sealed");
}

/// The stream may be cut anywhere: the rest of a word arrives with the next read.
#[test]
fn a_file_is_filled_from_pieces_of_any_size() {
    const WORDS: usize = 40_000;
    let given = content(8 * WORDS);
    let to = file("pieces", &vec![0; 8 * WORDS]);
    let mut victim = Victim::new();
    victim.fabric.open(NodeId(1), Channel(5));
    let target = victim.fabric.file_region(&to, 8 * WORDS, Access::ReadWrite).expect("a region");
    let Grant { key, region, .. } = victim.fabric.grant(&target, 0..WORDS, NodeId(1));
    assert!(victim.feed(&[frame(OPEN, 0, 0, 5, 0, &[]), frame(ACCEPT, 0, 0, 0, 0, &[])].concat()));
    let mut random = Xorshift::new(9);
    for lap in 0..20 {
        to.write_all_at(&vec![0; 8 * WORDS], 0).expect("space");
        let words = u32::try_from(WORDS).expect("small");
        let mut bytes = frame(WRITE, 0, 0, 0, words, &[key, region.0, 0]);
        bytes.extend_from_slice(&given);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(30_000)));
            assert!(victim.feed(piece));
            rest = behind;
        }
        while read(&to, 8 * WORDS) != given {
            victim.poll();
            assert!(!victim.is_lost(), "lap {lap}");
        }
    }
}

/// A file that becomes shorter while it is sent neither ends this process nor the connection: what is not there arrives as zeros.
fn is_cut<H: squall_fabric::conformance::Harness<Fabric = squall_transports::tcp::TcpFabric>>(name: &str) {
    const WORDS: usize = 2 << 20;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    let given = content(8 * WORDS);
    let from = file(name, &given);
    let source = cluster.node(0).file_region(&from, 8 * WORDS, Access::ReadOnly).expect("a region");
    from.set_len(4096).expect("shorter");
    let write = Write { signal: Some(Token(7)), ..link.reference(0, &source, 0..WORDS) };
    cluster.node(0).write(link.conn, write).expect("space");
    cluster.expect(0, "Done", |event| matches!(event, FabricEvent::Done { token: Token(7), .. }));
    let mut found = vec![0; 8 * WORDS];
    link.target.copy_bytes_out(0, &mut found);
    assert!(found[..4096] == given[..4096] && found[4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_file_that_is_cut_arrives_with_zeros() {
    is_cut::<PlainLoopback>("cut-plain");
    is_cut::<SealedLoopback>("cut-sealed");
}

/// What cannot be written is reported, and the connection lives.
fn is_refused<H: squall_fabric::conformance::Harness<Fabric = squall_transports::tcp::TcpFabric>>(
    name: &str,
) {
    const WORDS: usize = 100_000;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (near, _) = cluster.connect(0, 1, 1);
    let from = file(&format!("{name}-from"), &content(8 * WORDS));
    let path = std::env::temp_dir().join(format!("squall-pages-{name}-{}", std::process::id()));
    std::fs::write(&path, vec![0; 8 * WORDS]).expect("space");
    let to = File::open(&path).expect("for reading alone");
    std::fs::remove_file(&path).expect("it is there");
    let source = cluster.node(0).file_region(&from, 8 * WORDS, Access::ReadOnly).expect("a region");
    let target = cluster.node(1).file_region(&to, 8 * WORDS, Access::ReadWrite).expect("a region");
    let grant = cluster.node(1).grant(&target, 0..WORDS, NodeId(0));
    let write = Write {
        source: WriteSource::Region(&source, 0..WORDS),
        grant: &grant,
        offset: 0,
        immediate: None,
        signal: Some(Token(7)),
    };
    cluster.node(0).write(near, write).expect("space");
    cluster.expect(0, "Done", |event| matches!(event, FabricEvent::Done { token: Token(7), .. }));
    assert!(
        cluster.node(1).file_failure(&target).is_some() && cluster.node(1).file_failure(&target).is_none()
    );
}

#[test]
fn a_file_that_cannot_be_written_is_reported() {
    is_refused::<PlainLoopback>("refused-plain");
    is_refused::<SealedLoopback>("refused-sealed");
}
