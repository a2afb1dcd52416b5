//! The folder of a log: what other users may do with it, and what becomes of a log whose folder vanishes, or whose disk is full.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_log::{Disk, DiskCause, DurableLog, FileDisk, LogAnswer, LogPosition, TailVerdict};

use crate::{Folder, SETTINGS, append, recover, storage};

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

/// A log on a disk without space for another segment uses those that it has, and says when little is left; it starts on such a disk, and continues
/// when there is space.
#[test]
fn a_log_on_a_full_disk_uses_what_it_has() {
    let folder = Folder::new("short");
    fs::create_dir_all(&folder.0).expect("it can be made");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&folder.0).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("THE FULL DISK IS NOT TESTED: this user may not mount a small file system");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let is_short = Arc::new(AtomicBool::new(false));
        let reported = Arc::clone(&is_short);
        let first = storage(&folder.0);
        let recovered = recover(&first).0;
        let log = DurableLog::start_reporting(first, recovered, move |answer| {
            if let LogAnswer::NoSpace(error) = answer {
                assert!(error.is_full(), "{error}");
                reported.store(true, Ordering::SeqCst);
            }
        });
        let (log, mut end) = (log.expect("it begins with space"), 0);
        while !is_short.load(Ordering::SeqCst) {
            append(&log, end, end + 1);
            end += 1;
        }
        let left = log.space_left().expect("there is no further segment");
        assert!(left > 0 && left <= u64::from(SETTINGS.segment_bytes) / 2, "{left}");
        assert_eq!(log.failure(), None);
        drop(log);
        let unfinished = fs::read_dir(folder.0.join("log")).expect("it is there");
        let unfinished =
            unfinished.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().ends_with(".new")));
        assert_eq!(unfinished.count(), 0, "nothing takes the space of others");

        let again = storage(&folder.0);
        let (recovered, next) = recover(&again);
        assert_eq!((recovered.verdict, next), (TailVerdict::Clean, end));
        let log = DurableLog::start(again, recovered).expect("it starts on a full disk");
        append(&log, end, end + 5);
        let larger = Command::new("mount").args(["-o", "remount,size=6m"]).arg(&folder.0).status();
        assert!(larger.is_ok_and(|status| status.success()));
        while log.space_left().is_some() {
            std::thread::yield_now();
        }
        append(&log, end + 5, end + 300);
        assert_eq!(log.failure(), None);
    });
    let unmounted = Command::new("umount").arg(&folder.0).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    outcome.expect("it holds on a full disk");
}
