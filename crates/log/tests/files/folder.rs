//! The folder of a log: what other users may do with it, and what becomes of a log whose folder vanishes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use squall_log::{Disk, DiskCause, DurableLog, FileDisk, LogAnswer, LogPosition};

use crate::{Folder, append, recover, storage};

/// Returns whatever the group or others may do something with, in a folder.
fn open_to_others(folder: &Path) -> Vec<String> {
    let mode = fs::metadata(folder).expect("it is there").permissions().mode() & 0o7777;
    let mut open =
        if mode & 0o077 == 0 { Vec::new() } else { vec![format!("{} {mode:o}", folder.display())] };
    if folder.is_dir() {
        let entries = fs::read_dir(folder).expect("it is a folder");
        open.extend(entries.flat_map(|entry| open_to_others(&entry.expect("it can be read").path())));
    }
    open
}

/// Whatever the user's umask allows, other users can neither read a log nor take its lock.
#[test]
fn what_is_made_is_for_its_user_alone() {
    rustix::process::umask(rustix::fs::Mode::empty());
    let folder = Folder::new("modes");
    let member = folder.0.join("above/member");
    let storage = storage(&member);
    let (recovered, _) = recover(&storage);
    let log = DurableLog::start(storage, recovered).expect("the disk works");
    append(&log, 0, 150);
    let at = LogPosition { view: 0, sequence: 140 };
    log.checkpoint(1, at, at, &mut |sink| sink.write_all(b"a state")).expect("it is written");
    log.storage().disk().make_folder("other").expect("it can be made");
    drop(log);
    assert!(member.join("log/0000000002.segment").exists(), "several segments were used");
    assert!(fs::read_dir(member.join("checkpoints")).expect("it is there").next().is_some());
    assert_eq!(open_to_others(&folder.0), [""; 0]);
}

/// A folder that an earlier release has made is closed to others; other bits stay.
#[test]
fn a_folder_that_others_can_enter_is_closed_to_them() {
    let folder = Folder::new("closed");
    drop(FileDisk::open(&folder.0).expect("it is free"));
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o1755)).expect("it is ours");
    drop(FileDisk::open(&folder.0).expect("it is free"));
    let mode = fs::metadata(&folder.0).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o1700);
}

/// A folder that vanishes, and one with another in its place, end the log, although nothing is written and all files are open.
#[test]
fn a_folder_that_vanishes_ends_the_log() {
    let removed: fn(&Path) = |member| fs::remove_dir_all(member).expect("it is ours");
    let replaced: fn(&Path) = |member| {
        fs::rename(member, member.with_extension("away")).expect("it is ours");
        drop(FileDisk::open(member).expect("another one can be made"));
    };
    let unlocked: fn(&Path) = |member| {
        fs::remove_file(member.join("LOCK")).expect("it is ours");
    };
    for (name, vanish) in [("removed", removed), ("replaced", replaced), ("unlocked", unlocked)] {
        let folder = Folder::new(&format!("vanishes-{name}"));
        let member = folder.0.join("member");
        let storage = storage(&member);
        let (recovered, _) = recover(&storage);
        let (report, failures) = channel();
        let report = Mutex::new(report);
        let log = DurableLog::start_reporting(storage, recovered, move |answer| {
            if let LogAnswer::Failed(error) = answer {
                report.lock().expect("no panic").send(error).expect("the test waits");
            }
        });
        let log = log.expect("the disk works");
        append(&log, 0, 10);
        assert_eq!(log.storage().disk().check_folder(), Ok(()), "{name}");
        vanish(&member);
        let error = failures.recv_timeout(Duration::from_secs(30)).expect("it is noticed");
        assert_eq!(error.cause, DiskCause::Vanished, "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains(&*member.to_string_lossy()) && text.contains("bring it back"), "{text}");
        assert_eq!(log.failure(), Some(error), "{name}");
    }
}
