//! The log on real files: restarts, bits that flip, files that are cut off, full disks, two processes on one folder.

mod folder;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use squall_log::{
    AlignedBuffer, AppendError, Disk, DiskCause, DiskError, DurableLog, FileDisk, FolderError, LogPosition,
    LogRecord, LogSettings, RecordKind, Recovered, Storage, StorageError, StorageOwner, TailVerdict,
};

/// Short segments, so that some are used.
const SETTINGS: LogSettings =
    LogSettings { segment_bytes: 256 << 10, frame_bytes: 32 << 10, ..LogSettings::DEFAULT };

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn segment(&self, number: u32) -> PathBuf {
        self.0.join(format!("log/{number:010}.segment"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn owner(member: &str) -> StorageOwner {
    StorageOwner { cluster: "cluster".into(), member: member.into() }
}

fn storage(folder: &Path) -> Storage<FileDisk> {
    let disk = FileDisk::open(folder).expect("the folder can be used");
    Storage::open(disk, &owner("a"), SETTINGS, 7).expect("it is ours")
}

fn bytes(sequence: u64) -> Vec<u8> {
    (0..sequence * 37 % 5000).map(|at| (at ^ sequence) as u8).collect()
}

/// What is on the disk, all of which must be what was appended, from sequence 0 on without a gap.
fn recover(storage: &Storage<FileDisk>) -> (Recovered, u64) {
    let mut next = 0;
    let recovered = storage.recover(&mut |_, record| {
        assert_eq!((record.position.sequence, record.bytes), (next, &*bytes(next)));
        next += 1;
    });
    (recovered.expect("the folder can be read"), next)
}

/// Appends up to the sequence `end`, and waits until all is persisted.
fn append(log: &DurableLog<FileDisk>, begin: u64, end: u64) {
    let mut last = 0;
    for sequence in begin..end {
        let bytes = bytes(sequence);
        let position = LogPosition { view: 0, sequence };
        let record = LogRecord {
            subgroup: 1,
            kind: RecordKind::Message,
            position,
            sender: 0,
            time: sequence,
            bytes: &bytes,
        };
        last = loop {
            match log.append(&record) {
                Ok(records) => break records,
                Err(squall_log::AppendError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
    }
    log.wait(last).expect("the disk works");
}

/// A lock that is given back soon is waited for: a forked child has those of its parent for a moment.
#[test]
fn a_lock_that_a_child_has_for_a_moment_is_waited_for() {
    let folder = Folder::new("lock");
    drop(FileDisk::open(&folder.0).expect("it is free"));
    let lock = fs::File::open(folder.0.join("LOCK")).expect("it is there");
    lock.lock().expect("it is free");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            lock.unlock()
        });
        FileDisk::open(&folder.0).map(drop).expect("the lock is given back");
    });
    lock.lock().expect("it is free again");
    assert!(matches!(FileDisk::open(&folder.0), Err(squall_log::FolderError::Held { .. })));
}

/// Several lives in one folder; each finds what the ones before have persisted.
#[test]
fn what_was_persisted_is_there_again() {
    let folder = Folder::new("lives");
    for life in 0..4 {
        let storage = storage(&folder.0);
        let (recovered, next) = recover(&storage);
        assert_eq!((recovered.verdict, next), (TailVerdict::Clean, life * 150));
        let log = DurableLog::start(storage, recovered).expect("the disk works");
        append(&log, next, next + 150);
        assert_eq!(log.frontier(1), Some(LogPosition { view: 0, sequence: next + 149 }));
    }
    assert!(folder.segment(5).exists(), "several segments were used");
}

/// With checkpoints the folder does not grow.
#[test]
fn segments_are_recycled_behind_checkpoints() {
    let folder = Folder::new("recycled");
    let storage = storage(&folder.0);
    let recovered = recover(&storage).0;
    let log = DurableLog::start(storage, recovered).expect("the disk works");
    for round in 0..30 {
        append(&log, round * 50, (round + 1) * 50);
        let position = log.frontier(1).expect("some are persisted");
        log.checkpoint(1, position, LogPosition::MAX, &mut |out| out.write_all(b"state"))
            .expect("the disk works");
    }
    drop(log);
    let segments = fs::read_dir(folder.0.join("log")).expect("it exists").count();
    assert!(segments <= 6, "{segments} segments for 3.7 MB in segments of 256 KiB");
    assert_eq!(fs::read_dir(folder.0.join("checkpoints")).expect("it exists").count(), 2);
    let storage = self::storage(&folder.0);
    let mut last = 0;
    let recovered =
        storage.recover(&mut |_, record| last = record.position.sequence).expect("it can be read");
    assert_eq!((recovered.verdict, last), (TailVerdict::Clean, 1499));
}

/// A log of some frames of a record each, and where the frames of its only segment are.
fn frames(folder: &Folder) -> Vec<(u64, u64)> {
    let storage = storage(&folder.0);
    let recovered = recover(&storage).0;
    let log = DurableLog::start(storage, recovered).expect("the disk works");
    (0..8).for_each(|sequence| append(&log, sequence, sequence + 1));
    drop(log);
    // The opening has a block, and so has each record.
    (1..=8).map(|place| (place * 4096, 64 + 40 + bytes(place - 1).len() as u64)).collect()
}

fn file(path: &Path) -> fs::File {
    OpenOptions::new().write(true).open(path).expect("it exists")
}

fn verdict(folder: &Folder) -> (TailVerdict, u64) {
    let (recovered, next) = recover(&storage(&folder.0));
    (recovered.verdict, next)
}

/// What a crash leaves of the last frame: cut, and said so.
#[test]
fn a_torn_frame_is_cut() {
    let folder = Folder::new("torn");
    let frames = frames(&folder);
    let (last, length) = frames[7];
    file(&folder.segment(1)).write_all_at(&vec![0; length as usize - 70], last + 70).expect("it works");
    assert_eq!(verdict(&folder), (TailVerdict::Torn, 7));
    let storage = storage(&folder.0);
    let recovered = recover(&storage).0;
    append(&DurableLog::start(storage, recovered).expect("the disk works"), 7, 20);
    assert_eq!(verdict(&folder), (TailVerdict::Clean, 20));
}

/// A segment has its full length from the beginning, so one that is shorter is damaged, whatever is missing.
#[test]
fn a_truncated_segment_is_damage() {
    let folder = Folder::new("truncated");
    let frames = frames(&folder);
    file(&folder.segment(1)).set_len(frames[7].0 + 100).expect("it works");
    assert_eq!(verdict(&folder), (TailVerdict::Damaged, 7));
}

/// Every bit of a frame that others know to be durable.
#[test]
fn a_flipped_bit_is_damage() {
    let folder = Folder::new("bits");
    let frames = frames(&folder);
    let (place, length) = frames[3];
    let path = folder.segment(1);
    let good = fs::read(&path).expect("it exists");
    for at in (0..length).step_by(17) {
        let byte = good[(place + at) as usize] ^ 1 << (at % 8);
        file(&path).write_all_at(&[byte], place + at).expect("it works");
        assert_eq!(verdict(&folder), (TailVerdict::Damaged, 3), "byte {at} of the frame");
        file(&path).write_all_at(&[good[(place + at) as usize]], place + at).expect("it works");
    }
    assert_eq!(verdict(&folder), (TailVerdict::Clean, 8));
}

/// Good up to there, unknown above: it continues when what is missing was fetched, and stays good.
#[test]
fn a_damaged_log_continues_after_a_repair() {
    let folder = Folder::new("repair");
    let frames = frames(&folder);
    file(&folder.segment(1)).write_all_at(b"rot", frames[4].0 + 50).expect("it works");
    let storage = storage(&folder.0);
    let (recovered, next) = recover(&storage);
    assert_eq!((recovered.verdict, next), (TailVerdict::Damaged, 4));
    let recovered = recovered.into_repaired(storage.settings());
    append(&DurableLog::start(storage, recovered).expect("the disk works"), 4, 30);
    assert_eq!(verdict(&folder), (TailVerdict::Clean, 30));
}

#[test]
#[should_panic(expected = "damaged")]
fn a_damaged_log_does_not_continue_by_itself() {
    let folder = Folder::new("refused");
    let frames = frames(&folder);
    file(&folder.segment(1)).write_all_at(b"rot", frames[4].0 + 50).expect("it works");
    let storage = storage(&folder.0);
    let recovered = recover(&storage).0;
    drop(DurableLog::start(storage, recovered));
}

#[test]
fn a_folder_has_one_process() {
    let folder = Folder::new("held");
    let first = storage(&folder.0);
    let error = FileDisk::open(&folder.0).expect_err("it is in use");
    assert!(matches!(error, FolderError::Held { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())) && text.contains("set another"),
        "{text}"
    );
    // Another process, too: this test, as it opens the folder alone.
    let test = std::env::current_exe().expect("it runs");
    let mut command = Command::new(test);
    command.args(["--exact", "another_process", "--nocapture"]).env("SQUALL_LOG_FOLDER", &folder.0);
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(&format!("is in use by process {}", std::process::id())), "{text}");
    drop(first);
    drop(storage(&folder.0));
}

/// What [`a_folder_has_one_process`] starts.
#[test]
fn another_process() {
    if let Some(folder) = std::env::var_os("SQUALL_LOG_FOLDER") {
        let error = FileDisk::open(Path::new(&folder)).expect_err("it is in use");
        println!("{error}");
    }
}

#[test]
fn a_folder_of_another_member_is_refused() {
    let folder = Folder::new("foreign");
    drop(storage(&folder.0));
    let disk = FileDisk::open(&folder.0).expect("it is free");
    let error = Storage::open(disk, &owner("b"), SETTINGS, 7).expect_err("it belongs to another member");
    assert!(matches!(error, StorageError::Foreign { .. }));
    assert!(error.to_string().contains("belongs to the member a of the cluster cluster"), "{error}");
}

/// A log without an identity is not taken for an empty folder.
#[test]
fn a_log_without_identity_is_refused() {
    let folder = Folder::new("nameless");
    frames(&folder);
    fs::remove_file(folder.0.join("identity")).expect("it exists");
    let disk = FileDisk::open(&folder.0).expect("it is free");
    let error = Storage::open(disk, &owner("a"), SETTINGS, 7).expect_err("nothing says of what it is");
    assert_eq!(error, StorageError::NoIdentity);
}

/// On a file system of a few MB: what was persisted before stays, and the error says what to do.
#[test]
fn a_full_disk_ends_the_log_with_words() {
    let folder = Folder::new("full");
    fs::create_dir_all(&folder.0).expect("it can be made");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&folder.0).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("THE FULL DISK IS NOT TESTED: this user may not mount a small file system");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let storage = storage(&folder.0);
        let recovered = recover(&storage).0;
        let log = DurableLog::start(storage, recovered).expect("it begins with space");
        let mut appended = 0;
        let failure = loop {
            let bytes = bytes(appended);
            let position = LogPosition { view: 0, sequence: appended };
            let record = LogRecord {
                subgroup: 1,
                kind: RecordKind::Message,
                position,
                sender: 0,
                time: 0,
                bytes: &bytes,
            };
            match log.append(&record).map(|records| log.wait(records)) {
                Ok(Ok(())) => appended += 1,
                Ok(Err(error)) | Err(squall_log::AppendError::Failed(error)) => break error,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(failure.is_full() && failure.to_string().contains("free space on that disk"), "{failure}");
        drop(log);
        let (verdict, next) = verdict(&folder);
        assert!(
            verdict != TailVerdict::Damaged && next >= appended && appended > 100,
            "{next} of {appended}"
        );
    });
    let unmounted = Command::new("umount").arg(&folder.0).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    outcome.expect("it holds on a full disk");
}

/// A disk of which one operation panics.
struct PanickingDisk {
    disk: FileDisk,
    operation: &'static str,
}

impl PanickingDisk {
    fn begin(&self, operation: &str, path: &str) {
        let panics = match self.operation {
            // The first segment is made on the caller's thread.
            "create" => operation == "create" && path.starts_with("log/") && !path.contains("0001."),
            panicking => operation == panicking && path.starts_with("log/"),
        };
        assert!(!panics, "this panic is a part of the test: {operation} {path}");
    }
}

impl Disk for PanickingDisk {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(folder)
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        self.disk.length(path)
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        self.disk.read(path, offset, buffer)
    }

    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError> {
        self.begin("create", path);
        self.disk.create_in_steps(path, length, begin_step)
    }

    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
        self.begin("write", path);
        self.disk.write(path, offset, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove(path)
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        self.disk.flush_folder(folder)
    }
}

/// A caller that waits for a thread that panics gets an error. The same holds for the thread that makes segments.
#[test]
fn a_panic_of_a_thread_ends_the_log_with_an_error() {
    for operation in ["write", "create"] {
        let folder = Folder::new(&format!("panic-{operation}"));
        let disk = FileDisk::open(&folder.0).expect("the folder can be used");
        let disk = PanickingDisk { disk, operation };
        let storage = Storage::open(disk, &owner("a"), SETTINGS, 7).expect("it is ours");
        let recovered = storage.recover(&mut |_, _| ()).expect("the folder can be read");
        let log = DurableLog::start(storage, recovered).expect("it begins without the log");
        let fails = |sequence| {
            let (position, kind) = (LogPosition { view: 0, sequence }, RecordKind::Message);
            let record = LogRecord { subgroup: 1, kind, position, sender: 0, time: 0, bytes: &[] };
            match log.append(&record).map(|records| log.wait(records)) {
                Ok(outcome) => outcome.err(),
                Err(AppendError::Failed(error)) => Some(error),
                Err(error) => panic!("{error}"),
            }
        };
        let failure = (0..100_000).find_map(fails).expect("no more segment is made");
        assert_eq!(failure.cause, DiskCause::Panicked, "{failure}");
    }
}

/// The flags by which this process has a file open.
fn open_flags(path: &Path) -> Vec<u32> {
    let open = fs::read_dir("/proc/self/fd").expect("it is there").flatten();
    let open = open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path));
    let flags = |entry: fs::DirEntry| {
        let about = fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).ok()?;
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(flags.trim(), 8).ok()
    };
    open.filter_map(flags).collect()
}

/// A write flushes what is needed to read it, and not the time of the file, which would take a second flush, of the file system's
/// journal. Writes through the page cache are flushed by a call of their own.
#[test]
fn a_write_flushes_no_more_than_it_has_to() {
    const DIRECT: u32 = libc::O_DIRECT.cast_unsigned();
    const DATA: u32 = libc::O_DSYNC.cast_unsigned();
    const ALL: u32 = libc::O_SYNC.cast_unsigned();
    let folder = Folder::new("flags");
    for is_direct in [true, false] {
        let open = if is_direct { FileDisk::open } else { FileDisk::open_buffered };
        let disk = open(&folder.0).expect("the folder can be used");
        if is_direct && !disk.is_direct() {
            println!("skipped: no direct I/O here");
            continue;
        }
        assert_eq!(disk.is_direct(), is_direct);
        disk.create("file", 8192).expect("there is space");
        let mut bytes = AlignedBuffer::default();
        bytes.extend(&[7; 4096]);
        disk.write("file", 4096, &bytes).expect("it can be written");
        let expected = if is_direct { DIRECT | DATA } else { 0 };
        let found = open_flags(&folder.0.join("file"));
        assert_eq!(found.iter().map(|flags| flags & (DIRECT | ALL)).collect::<Vec<_>>(), [expected]);
        let mut read = AlignedBuffer::zeroed(8192);
        assert_eq!(disk.read("file", 0, &mut read), Ok(8192));
        assert_eq!(read.bytes()[4090..4100], [0, 0, 0, 0, 0, 0, 7, 7, 7, 7]);
    }
}
