//! How copies arrive: strangers block no copy, and copies to one host take turns.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::{PATIENCE, Place, content, end, signal};

/// A stranger whose bytes trickle is disconnected in time, and blocks no copy meanwhile.
#[test]
fn a_stranger_that_trickles_blocks_no_copy() {
    let place = Place::new("trickle");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 10)).unwrap();
    let host = place.serve(41);
    let mut stranger = TcpStream::connect(("127.0.0.41", place.port)).unwrap();
    let begun = Instant::now();
    let dripping = std::thread::spawn(move || {
        // Fails once the host has closed; 58 bytes, of which the first are a true beginning, would take 29 s.
        for byte in *b"SQUALL\r\n\x01\0................................................" {
            if stranger.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        begun.elapsed()
    });
    std::thread::sleep(Duration::from_millis(100));
    let (status, text) = end(place.cp(&[&source], &["127.0.0.41:file".into()]));
    assert_eq!(status, 0, "{text}");
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited for the stranger: {:?}", begun.elapsed());
    assert!(host.folder.join("file").exists());
    let stayed = dripping.join().unwrap();
    assert!(stayed < Duration::from_secs(15), "the stranger held its connection for {stayed:?}");
}

/// Strangers that fill all places, and return when they are disconnected, block no copy.
#[test]
fn a_flood_of_strangers_blocks_no_copy() {
    let place = Place::new("flood");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 10)).unwrap();
    let host = place.serve(42);
    let is_over = Arc::new(AtomicBool::new(false));
    let flood: Vec<_> = (0..3)
        .map(|_| {
            let (is_over, port) = (Arc::clone(&is_over), place.port);
            std::thread::spawn(move || {
                let mut held = std::collections::VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    // Not as many as a process may open.
                    if held.len() >= 200 {
                        held.pop_front();
                    }
                    held.extend(TcpStream::connect(("127.0.0.42", port)));
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let outcomes: Vec<_> =
        (0..3).map(|i| end(place.cp(&[&source], &[format!("127.0.0.42:file{i}")]))).collect();
    is_over.store(true, Ordering::Relaxed);
    flood.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(outcomes.iter().all(|(status, _)| *status == 0), "{outcomes:?}");
    assert_eq!(std::fs::read_dir(&host.folder).unwrap().count(), 3);
}

/// The second copy waits for the first, however long that takes, and reports it; one that gives up leaves the queue.
#[test]
fn a_second_copy_waits_for_the_first() {
    let place = Place::new("turns");
    let (large, small) = (place.root.join("large"), place.root.join("small"));
    let bytes = 100 << 20;
    std::fs::write(&large, content(5, bytes)).unwrap();
    std::fs::write(&small, content(6, 1000)).unwrap();
    let host = place.serve_by(43, |mut serve| {
        serve.args(["--timeout", "60s"]);
        serve
    });
    let first = place.cp(&[&large], &["127.0.0.43:large".into()]);
    let (begun, list) = (Instant::now(), host.folder.join(".large.squall-held"));
    while !list.exists() {
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
        std::thread::yield_now();
    }
    signal(&first, "STOP");
    let mut impatient = place.cp(&[&small], &["127.0.0.43:impatient".into()]);
    std::thread::sleep(Duration::from_millis(300));
    let second = place.cp(&[&small], &["127.0.0.43:small".into()]);
    // Longer than the proof may take, and than any silence of the host.
    std::thread::sleep(Duration::from_secs(6));
    impatient.kill().unwrap();
    impatient.wait().unwrap();
    assert!(!host.folder.join("small").exists(), "the first has its turn");
    signal(&first, "CONT");
    let (status, text) = end(first);
    assert_eq!(status, 0, "{text}");
    let (status, text) = end(second);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("127.0.0.43: waits for the copy from 127.0.0.1:"), "{text}");
    assert!(std::fs::read(host.folder.join("large")).unwrap() == content(5, bytes));
    assert!(std::fs::read(host.folder.join("small")).unwrap() == content(6, 1000));
    assert!(!host.folder.join("impatient").exists());
}

/// Copies to the same two hosts, named in opposite orders, never wait for each other.
#[test]
fn copies_to_the_same_hosts_all_end() {
    let place = Place::new("crossing");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 3 << 20)).unwrap();
    let hosts = [place.serve(44), place.serve(45)];
    let names = ["127.0.0.44", "127.0.0.45"];
    let copies: Vec<Child> = (0..6)
        .map(|i| {
            let targets = [names[i % 2], names[(i + 1) % 2]].map(|name| format!("{name}:file{i}"));
            place.cp(&[&source], &targets)
        })
        .collect();
    for copy in copies {
        let (status, text) = end(copy);
        assert_eq!(status, 0, "{text}");
    }
    assert!(hosts.iter().all(|host| std::fs::read_dir(&host.folder).unwrap().count() == 6));
    let twice = ["127.0.0.44:again", "[::ffff:127.0.0.44]:again"].map(String::from);
    let (status, text) = end(place.cp(&[&source], &twice));
    assert!(status == 1 && text.contains("it is the same host as"), "{text}");
}

/// A stranger does not end a host that receives one copy.
#[test]
fn once_means_one_copy() {
    let place = Place::new("once");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 10)).unwrap();
    let mut host = place.serve_by(46, |mut serve| {
        serve.arg("--once");
        serve
    });
    let mut stranger = TcpStream::connect(("127.0.0.46", place.port)).unwrap();
    stranger.write_all(&[b'x'; 4096]).unwrap();
    let _ = stranger.read_to_end(&mut Vec::new());
    let (status, text) = end(place.cp(&[&source], &["127.0.0.46:file".into()]));
    assert_eq!(status, 0, "{text}");
    assert!(host.process.wait().unwrap().success());
}
