//! A disk that hangs, or is full, while the heartbeats of its member continue (Derecho §2, "durable" mode): a real file system that is
//! frozen, and one without space.

mod common;
#[path = "common/storage.rs"]
mod storage;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use squall::config::{StorageConfig, Transport};
use squall::{Config, Group, GroupError, JoinError, MessageOutcome, Sender};
use storage::{PATIENCE, TestFolder, wait_until};

/// A file system of its own in a file, which is thawed and removed at the end.
struct FrozenDisk {
    folder: TestFolder,
    mount: PathBuf,
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("{program} (apt install util-linux e2fsprogs): {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

impl FrozenDisk {
    fn new(test: &str) -> Self {
        let folder = TestFolder::new(test);
        let (mount, image) = (folder.0.join("mount"), folder.0.join("image"));
        std::fs::create_dir_all(&mount).expect("the folder can be made");
        let file = std::fs::File::create(&image).expect("the folder can be written");
        file.set_len(400 << 20).expect("it is sparse");
        let (image, path) = (image.to_str().expect("plain"), mount.to_str().expect("plain").to_owned());
        run("mkfs.ext4", &["-q", "-F", image]);
        run("mount", &["-o", "loop", image, &path]);
        Self { folder, mount }
    }

    /// Takes all the space that there is, but for `rest` bytes, and returns the file that does.
    fn fill(&self, rest: u64) -> PathBuf {
        let path = self.mount.join("filler");
        let output = Command::new("df").args(["--output=avail", "-B1"]).arg(&self.mount).output();
        let text = String::from_utf8(output.expect("coreutils are there").stdout).expect("it is a number");
        let free: u64 =
            text.lines().last().and_then(|line| line.trim().parse().ok()).expect("it is a number");
        run("fallocate", &["-l", &(free - rest).to_string(), path.to_str().expect("plain")]);
        path
    }

    fn set_frozen(&self, is_frozen: bool) {
        run("fsfreeze", &[if is_frozen { "-f" } else { "-u" }, self.mount.to_str().expect("plain")]);
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        // It may be thawed already.
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.mount).output();
        // A thread that was waiting for the disk may use it for a moment.
        for _ in 0..100 {
            match Command::new("umount").arg(&self.mount).status() {
                Ok(status) if status.success() => return,
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        eprintln!("{} stays mounted", self.folder.0.display());
    }
}

fn join(config: Config) -> Result<Group, JoinError> {
    Group::builder(config).on_message("log", |_| ()).join()
}

fn send(sender: &mut Sender, text: &str) -> MessageOutcome {
    let number = sender.sent();
    sender.send_bytes(text.as_bytes()).expect("there is space");
    wait_until("the message is delivered", || sender.outcome(number) != MessageOutcome::Pending);
    sender.outcome(number)
}

/// The member whose disk hangs leaves, and says why; the others deliver what they were waiting for. When the disk answers again, the
/// member joins with its log, and gets what it lacks.
fn a_frozen_disk_ends_one_member(transport: Transport, test: &str) {
    let disk = FrozenDisk::new(&format!("{test}-disk"));
    let folder = TestFolder::new(test);
    let mut configs = storage::configs(transport, test, &folder, "log");
    configs.truncate(3);
    configs[2].storage =
        Some(StorageConfig { timeout: Duration::from_millis(500), ..StorageConfig::new(&disk.mount) });
    let joining = |config: &Config| {
        let config = config.clone();
        std::thread::spawn(move || join(config).expect("the group starts"))
    };
    let joining: Vec<_> = configs.iter().map(joining).collect();
    let mut groups: Vec<_> = joining.into_iter().map(|group| group.join().expect("no panic")).collect();
    let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
    assert_eq!(send(&mut sender, "before"), MessageOutcome::Delivered);
    let last = groups.pop().expect("there are three");

    disk.set_frozen(true);
    assert_eq!(send(&mut sender, "meanwhile"), MessageOutcome::Delivered);
    wait_until("the member has left", || last.failure().is_some());
    let error = last.failure().expect("it has left");
    assert!(matches!(error, GroupError::Log { .. }), "{error}");
    assert!(error.to_string().contains("the disk hangs: check it"), "{error}");
    wait_until("the others continue", || groups.iter_mut().all(|group| group.members() == 2));
    last.leave(PATIENCE);
    disk.set_frozen(false);

    let mut back = None;
    wait_until("its threads have ended", || {
        back = join(configs[2].clone()).ok();
        back.is_some()
    });
    let mut back = back.expect("it is back");
    let log = back.subgroup("log").unwrap();
    wait_until("it has got what it lacked", || {
        let history: Result<Vec<_>, _> = log.history().unwrap().collect();
        let texts =
            history.map(|messages| messages.into_iter().map(|message| message.bytes).collect::<Vec<_>>());
        texts.is_ok_and(|texts| texts == [&b"before"[..], b"meanwhile"])
    });
    groups.push(back);
    assert_eq!(send(&mut sender, "after"), MessageOutcome::Delivered);
}

/// The member whose disk has no space for the next segment leaves, and says why; the others deliver. When there is space again, the member
/// joins with its log, and gets what it lacks.
fn a_full_disk_ends_one_member(transport: Transport, test: &str) {
    let disk = FrozenDisk::new(&format!("{test}-disk"));
    let folder = TestFolder::new(test);
    let mut configs = storage::configs(transport, test, &folder, "log");
    configs.truncate(3);
    configs[2].storage = Some(StorageConfig::new(&disk.mount));
    let joining = |config: &Config| {
        let config = config.clone();
        std::thread::spawn(move || join(config).expect("the group starts"))
    };
    let joining: Vec<_> = configs.iter().map(joining).collect();
    let mut groups: Vec<_> = joining.into_iter().map(|group| group.join().expect("no panic")).collect();
    let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
    assert_eq!(send(&mut sender, "before"), MessageOutcome::Delivered);
    let last = groups.pop().expect("there are three");

    // The second segment may have been made ready; there is none after it.
    let filler = disk.fill(1 << 20);
    let long = "x".repeat(500 << 10);
    let mut sent = 0;
    while last.failure().is_none() {
        assert!(sent < 1000, "500 MB fit into two segments");
        assert_eq!(send(&mut sender, &long), MessageOutcome::Delivered, "the others deliver");
        sent += 1;
    }
    let error = last.failure().expect("it has left");
    assert!(matches!(error, GroupError::Log { .. }), "{error}");
    assert!(error.to_string().contains("free space on that disk"), "{error}");
    wait_until("the others continue", || groups.iter_mut().all(|group| group.members() == 2));
    last.leave(PATIENCE);
    std::fs::remove_file(filler).expect("it is there");

    let mut back = join(configs[2].clone()).expect("there is space");
    wait_until("it is back", || back.members() == 3);
    let log = back.subgroup("log").unwrap();
    wait_until("it has got what it lacked", || {
        let history: Result<Vec<_>, _> =
            log.history().unwrap().map(|message| message.map(|it| it.bytes.len())).collect();
        history.is_ok_and(|lengths| lengths.len() == 1 + sent)
    });
    groups.push(back);
    assert_eq!(send(&mut sender, "after"), MessageOutcome::Delivered);
}

#[test]
#[ignore = "mounts a file system: for root, with a loop device"]
fn a_full_disk_ends_one_member_on_shm() {
    a_full_disk_ends_one_member(Transport::Shm, "full-shm");
}

#[test]
#[ignore = "mounts a file system: for root, with a loop device"]
fn a_full_disk_ends_one_member_on_tcp() {
    a_full_disk_ends_one_member(Transport::Tcp, "full-tcp");
}

#[test]
#[ignore = "mounts a file system: for root, with a loop device"]
fn a_frozen_disk_ends_one_member_on_shm() {
    a_frozen_disk_ends_one_member(Transport::Shm, "frozen-shm");
}

#[test]
#[ignore = "mounts a file system: for root, with a loop device"]
fn a_frozen_disk_ends_one_member_on_tcp() {
    a_frozen_disk_ends_one_member(Transport::Tcp, "frozen-tcp");
}
