//! Ends that say nothing more: a host that hangs holds no other up, and a source that hangs frees the turn.

use std::time::Instant;

use crate::{PATIENCE, Place, await_blocks, content, end, signal};

/// In the middle of a large file, and between files: the others finish, and the host is named.
#[test]
fn a_host_that_hangs_is_left_out() {
    let place = Place::new("hangs");
    let source = place.root.join("image");
    let bytes = 300 << 20;
    std::fs::write(&source, content(7, bytes)).unwrap();
    let hosts: Vec<_> = (81..=83).map(|number| place.serve(number)).collect();
    let targets: Vec<String> = hosts.iter().map(|host| format!("{}:copy", host.address)).collect();
    let mut command = place.command("cp");
    command.arg(&source).args(&targets).args(["--timeout", "3s"]);
    let copy =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    await_blocks(&hosts[1].folder.join(".copy.squall-held"), 1);
    signal(&hosts[1].process, "STOP");
    let begun = Instant::now();
    let (status, text) = end(copy);
    assert!(begun.elapsed() < PATIENCE, "the hanging host held the copy up for {:?}", begun.elapsed());
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("127.0.0.82: the host is lost") && text.contains("at 2 of 3 hosts"), "{text}");
    for host in [&hosts[0], &hosts[2]] {
        assert!(std::fs::read(host.folder.join("copy")).unwrap() == content(7, bytes), "at {}", host.address);
    }
    // It is left out at the beginning, too.
    let mut command = place.command("cp");
    let output = command.arg(&source).args(&targets).args(["--timeout", "3s"]).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("127.0.0.82: ") && text.contains("at 2 of 3 hosts"), "{text}");
    signal(&hosts[1].process, "CONT");
}

/// A source that is stopped in the middle of its copy, and one that waits for its turn, do not hold the others up.
#[test]
fn a_source_that_hangs_frees_the_turn() {
    let place = Place::new("freed");
    let (large, small) = (place.root.join("large"), place.root.join("small"));
    std::fs::write(&large, content(5, 300 << 20)).unwrap();
    std::fs::write(&small, content(6, 1000)).unwrap();
    let host = place.serve_by(84, |mut serve| {
        serve.args(["--timeout", "3s"]);
        serve
    });
    let first = place.cp(&[&large], &["127.0.0.84:large".into()]);
    await_blocks(&host.folder.join(".large.squall-held"), 1);
    signal(&first, "STOP");
    let begun = Instant::now();
    let (status, text) = end(place.cp(&[&small], &["127.0.0.84:small".into()]));
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("waits for the copy from"), "{text}");
    assert!(begun.elapsed() < PATIENCE, "the hanging source had its turn for {:?}", begun.elapsed());
    assert!(std::fs::read(host.folder.join("small")).unwrap() == content(6, 1000));
    signal(&first, "CONT");
    let (status, text) = end(first);
    assert_eq!(status, 1, "it has lost its turn: {text}");
}
