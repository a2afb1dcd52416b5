//! `squall log` on a folder that a log was written to.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use squall_log::{
    DurableLog, FileDisk, LogPosition, LogRecord, LogSettings, RecordKind, Storage, StorageOwner,
};

fn squall(what: &str, folder: &Path, json: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(["log", what, "--storage"]).arg(folder);
    command.args(json.then_some("--json")).output().expect("it can be started")
}

/// A folder with three records of a subgroup and a checkpoint.
fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-log-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let owner = StorageOwner { cluster: "shop".into(), member: "a".into() };
    let settings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };
    let disk = FileDisk::open(&folder).expect("the folder can be used");
    let storage = Storage::open(disk, &owner, settings, 7).expect("it is empty");
    let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
    let log = DurableLog::start(storage, recovered).expect("the disk works");
    for sequence in 0..3 {
        let (kind, position) = (RecordKind::Message, LogPosition { view: 4, sequence });
        let record = LogRecord { subgroup: 2, kind, position, sender: 1, time: 9, bytes: b"bytes" };
        let records = log.append(&record).expect("it fits");
        log.wait(records).expect("the disk works");
    }
    let position = LogPosition { view: 4, sequence: 2 };
    log.checkpoint(2, position, &mut std::iter::once(b"state".to_vec())).expect("the disk works");
    folder
}

#[test]
fn a_log_is_shown_and_its_damage_is_found() {
    let folder = folder();
    let verified = squall("verify", &folder, false);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success() && text.contains("member a in cluster shop: clean"), "{text}");
    let listed: serde_json::Value =
        serde_json::from_slice(&squall("ls", &folder, true).stdout).expect("it prints JSON");
    assert_eq!((&listed["records"], &listed["life"]), (&3.into(), &1.into()));
    assert_eq!(listed["checkpoints"]["2"][0]["sequence"], 2);
    let dumped = squall("dump", &folder, false);
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().all(|line| line.contains("subgroup 2  message  4/")), "{text}");

    // What a checkpoint is when the disk has lost its end.
    std::fs::write(folder.join("checkpoints/2-3-1"), b"no block").expect("it can be written");
    let verified = squall("verify", &folder, false);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(!verified.status.success() && text.contains("the checkpoint 2-3-1 is not"), "{text}");
    std::fs::remove_file(folder.join("checkpoints/2-3-1")).expect("it exists");

    // The second of three records, each in a block behind that of the opening.
    let segment = folder.join("log/0000000001.segment");
    let mut bytes = std::fs::read(&segment).expect("it exists");
    bytes[2 * 4096 + 70] ^= 1;
    std::fs::write(&segment, bytes).expect("it can be written");
    let verified = squall("verify", &folder, false);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(!verified.status.success() && text.contains("damaged"), "{text}");
    assert!(text.contains("good up to frame 0x10000000001, which ends in segment 1 at 8192"), "{text}");
    std::fs::remove_dir_all(&folder).expect("it can be removed");
}

#[test]
fn a_folder_without_a_log_is_an_error() {
    let output = squall("ls", Path::new(env!("CARGO_TARGET_TMPDIR")), false);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("is not the folder of a member"), "{text}");
}
