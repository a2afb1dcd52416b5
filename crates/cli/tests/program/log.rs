//! `squall log` on a folder that a log was written to.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{TryRecvError, channel};

use squall_log::{
    DurableLog, FileDisk, LogPosition, LogRecord, LogSettings, LogSubgroups, RecordKind, Storage,
    StorageOwner,
};

fn squall(what: &str, folder: &Path, json: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(["log", what, "--storage"]).arg(folder);
    command.args(json.then_some("--json")).output().expect("it can be started")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

fn path(name: &str) -> PathBuf {
    let name = format!("cli-log-{name}-{}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// A folder with three records of a subgroup and a checkpoint.
fn folder(name: &str) -> PathBuf {
    let folder = path(name);
    drop(log(&folder));
    folder
}

/// The log of such a folder, which is open.
fn log(folder: &Path) -> DurableLog<FileDisk> {
    let owner = StorageOwner { cluster: "shop".into(), member: "a".into() };
    let settings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };
    let disk = FileDisk::open(folder).expect("the folder can be used");
    let storage = Storage::open(disk, &owner, settings, 7).expect("it is empty");
    let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
    let log = DurableLog::start(storage, recovered).expect("the disk works");
    append(&log, 0..3);
    let position = LogPosition { view: 4, sequence: 2 };
    log.checkpoint(2, position, LogPosition::MAX, &mut |out| out.write_all(b"state"))
        .expect("the disk works");
    log
}

fn append(log: &DurableLog<FileDisk>, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        let (kind, position) = (RecordKind::Message, LogPosition { view: 4, sequence });
        let record = LogRecord { subgroup: 2, kind, position, sender: 1, time: 9, bytes: b"bytes" };
        let records = log.append(&record).expect("it fits");
        log.wait(records).expect("the disk works");
    }
}

#[test]
fn a_log_is_shown_and_its_damage_is_found() {
    let folder = folder("shown");
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

/// Subgroups are shown with the names that the folder has noted; those that it has no more are neither lost nor damage.
#[test]
fn subgroups_have_their_names() {
    let folder = folder("names");
    let owner = StorageOwner { cluster: "shop".into(), member: "a".into() };
    let settings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };
    let change = |numbers: &[(&str, u32)]| {
        let disk = FileDisk::open(&folder).expect("the folder can be used");
        let storage = Storage::open(disk, &owner, settings, 7).expect("it is its own");
        let numbers = numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let noted = storage.change_register(|register| {
            register.subgroups = LogSubgroups { numbers, next: 4, change: None };
            register.recycled.insert(3, LogPosition { view: 4, sequence: 1 });
        });
        noted.expect("the disk works");
    };
    let verified = || {
        let verified = squall("verify", &folder, false);
        (verified.status.success(), String::from_utf8_lossy(&verified.stdout).into_owned())
    };
    change(&[("orders", 2), ("audit", 3)]);
    let (is_good, text) = verified();
    assert!(!is_good && text.contains("subgroup 3 (audit): its first records were removed"), "{text}");
    assert!(text.contains("subgroup 2 (orders): up to view/sequence 4/2"), "{text}");
    change(&[("audit", 1)]);
    let (is_good, text) = verified();
    assert!(is_good && text.contains("subgroup 2 (removed): checkpoints at 4/2"), "{text}");
    let listed = json(&squall("ls", &folder, true));
    assert_eq!(listed["names"], serde_json::json!({ "1": "audit" }));
    std::fs::remove_dir_all(&folder).expect("it can be removed");
}

/// A mark of what was discarded is made again when the member starts; the state of a checkpoint is not.
#[test]
fn a_mark_that_is_lost_is_no_damage() {
    for is_mark in [true, false] {
        let folder = folder("mark");
        let owner = StorageOwner { cluster: "shop".into(), member: "a".into() };
        let position = LogPosition { view: 4, sequence: 1 };
        let disk = FileDisk::open(&folder).expect("the folder can be used");
        let settings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };
        let storage = Storage::open(disk, &owner, settings, 7).expect("it is its own");
        let written = match is_mark {
            true => storage.write_mark(3, position, LogPosition::MAX),
            false => storage.write_checkpoint(3, position, LogPosition::MAX, &mut |_| Ok(())),
        };
        written.expect("the disk works");
        storage
            .change_register(|register| {
                register.recycled.insert(3, position);
            })
            .expect("the disk works");
        drop(storage);
        assert!(squall("verify", &folder, false).status.success());
        let path = folder.join("checkpoints/3-4-1");
        let mut bytes = std::fs::read(&path).expect("it exists");
        bytes[35] ^= 1;
        std::fs::write(&path, bytes).expect("it can be written");
        let verified = squall("verify", &folder, false);
        let text = String::from_utf8_lossy(&verified.stdout).into_owned();
        let words =
            if is_mark { "the mark that says so is lost" } else { "none of its checkpoints can be read" };
        assert!(verified.status.success() == is_mark && text.contains(words), "{text}");
        assert_eq!(text.contains("the checkpoint 3-4-1 is not"), !is_mark, "{text}");
        let listed = json(&squall("ls", &folder, true));
        assert_eq!(listed["lost_marks"], serde_json::json!(if is_mark { vec![3] } else { vec![] }));
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}

#[test]
fn a_folder_without_a_log_is_an_error() {
    let output = squall("ls", Path::new(env!("CARGO_TARGET_TMPDIR")), false);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("is not the folder of a member"), "{text}");
}

/// `path` of [storage] has a folder for each member: which one to name is said.
#[test]
fn the_folder_of_all_members_is_not_that_of_one() {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("squall-log-all-{}", std::process::id()));
    std::fs::create_dir_all(all.join("rank-3")).expect("it is made");
    std::fs::write(all.join("rank-3/identity"), "").expect("it is written");
    let output = squall("ls", &all, false);
    std::fs::remove_dir_all(&all).expect("it can be removed");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = format!("give --storage {}", all.join("rank-3").display());
    assert!(!output.status.success() && text.contains(&advice), "{text}");
}

/// A bit that has flipped is turned back, but only with `--yes`; and what was there before is kept.
#[test]
fn a_log_is_repaired() {
    let folder = folder("repaired");
    let segment = folder.join("log/0000000001.segment");
    let good = std::fs::read(&segment).expect("it exists");
    let mut bytes = good.clone();
    bytes[2 * 4096 + 70] ^= 1;
    std::fs::write(&segment, &bytes).expect("it can be written");
    std::fs::write(folder.join("checkpoints/2-3-1"), b"no block").expect("it can be written");
    let repair = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command
            .args(["log", "repair", "--storage"])
            .arg(&folder)
            .args(options)
            .output()
            .expect("it can be started")
    };
    let planned = repair(&[]);
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success() && text.contains("would be turned back"), "{text}");
    assert!(text.contains("would move checkpoints/2-3-1") && text.contains("use --yes"), "{text}");
    assert_eq!(std::fs::read(&segment).expect("it exists"), bytes, "nothing was changed");
    let repaired = json(&repair(&["--yes", "--json"]));
    assert_eq!((&repaired["before"]["records"], &repaired["after"]["records"]), (&1.into(), &3.into()));
    assert_eq!(std::fs::read(&segment).expect("it exists"), good);
    assert_eq!(std::fs::read(folder.join("aside/log-0000000001.segment")).expect("it was kept"), bytes);
    assert!(folder.join("aside/checkpoints-2-3-1").is_file());
    assert!(squall("verify", &folder, false).status.success());

    // Two bits of a frame are not guessed at: it is said where the member gets what is missing.
    bytes[2 * 4096 + 90] ^= 1;
    std::fs::write(&segment, &bytes).expect("it can be written");
    let repaired = repair(&["--yes"]);
    let text = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(!repaired.status.success() && text.contains("from the others when it starts"), "{text}");
    std::fs::remove_dir_all(&folder).expect("it can be removed");
}

/// A log is copied while it is written; the copy is good, is refused as a member's folder, and nothing is written over.
#[test]
fn a_log_is_copied_while_its_member_runs() {
    let (folder, target) = (path("copied"), path("copy"));
    let log = log(&folder);
    let backup = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["log", "backup", "--storage"]).arg(&folder).arg(&target).args(options);
        command.output().expect("it can be started")
    };
    let (end, ends) = channel::<()>();
    let copied = std::thread::scope(|scope| {
        let log = &log;
        scope.spawn(move || {
            let mut sequence = 3;
            while ends.try_recv() == Err(TryRecvError::Empty) {
                append(log, sequence..sequence + 1);
                sequence += 1;
            }
        });
        let copied = backup(&["--json"]);
        end.send(()).expect("it is written");
        copied
    });
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let copied = json(&copied);
    let listed = json(&squall("ls", &target, true));
    assert_eq!((&listed["verdict"], &listed["copy"]), (&"clean".into(), &true.into()));
    assert_eq!((&listed["records"], &listed["last_frame"]), (&copied["records"], &copied["last_frame"]));
    assert!(copied["records"].as_u64() >= Some(3), "{copied}");
    assert_eq!(listed["checkpoints"]["2"][0]["sequence"], 2);

    let again = backup(&[]);
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && text.contains("the target is not empty"), "{text}");
    let disk = FileDisk::open(&target).expect("no process has it");
    let owner = StorageOwner { cluster: "shop".into(), member: "a".into() };
    let refused = Storage::open(disk, &owner, LogSettings::DEFAULT, 8).expect_err("it is a copy");
    assert!(refused.to_string().contains("squall recover --accept-loss"), "{refused}");
    drop(log);
    [folder, target].iter().for_each(|folder| std::fs::remove_dir_all(folder).expect("it can be removed"));
}
