//! `squall cp` and `squall serve` as processes: files and folders at several hosts, a host that is killed and resumed, and
//! errors that say what to do. Addresses of the loopback network stand for hosts.

mod content;
mod host;
mod silence;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Host {
    address: String,
    folder: PathBuf,
    process: Child,
}

/// A scratch folder with a secret, and a port of its own.
struct Place {
    root: PathBuf,
    port: u16,
}

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("squall-copy-{name}-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("secret"), "sixteen bytes at least\n").unwrap();
        let port = reserve_port().unwrap();
        Self { root, port }
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.arg(what).args(["--port", &self.port.to_string()]);
        command.arg("--secret-file").arg(self.root.join("secret"));
        command
    }

    fn serve(&self, number: u8) -> Host {
        self.serve_by(number, |serve| serve)
    }

    /// A host whose folder is a file system of `bytes` bytes; `None` where this process may not mount one.
    fn serve_small(&self, number: u8, bytes: usize) -> Option<Host> {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
            command
        };
        let mount = format!("mount -t tmpfs -o size={bytes} tmpfs");
        let can = unshare().arg(format!("{mount} /mnt")).stderr(Stdio::null()).status();
        if !can.is_ok_and(|status| status.success()) {
            return None;
        }
        Some(self.serve_by(number, |serve| {
            let folder = serve.get_args().last().expect("the folder comes last").to_owned();
            let mut small = unshare();
            small.arg(format!("{mount} \"$0\" && exec \"$@\"")).arg(folder);
            small.arg(serve.get_program()).args(serve.get_args());
            small
        }))
    }

    fn serve_by(&self, number: u8, change: impl FnOnce(Command) -> Command) -> Host {
        let address = format!("127.0.0.{number}");
        let folder = self.root.join(&address);
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = self.command("serve");
        command.args(["--listen", &address]).arg("--folder").arg(&folder);
        let process = change(command).stderr(Stdio::null()).spawn().unwrap();
        let host = Host { process, folder, address };
        let begun = Instant::now();
        while TcpStream::connect((host.address.as_str(), self.port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "{} does not listen", host.address);
            std::thread::sleep(Duration::from_millis(5));
        }
        host
    }

    fn cp(&self, sources: &[&Path], targets: &[String]) -> Child {
        let mut command = self.command("cp");
        command.args(sources).args(targets).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn signal(process: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.id().to_string()]).status().unwrap();
    assert!(sent.success(), "{name}");
}

fn end(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (status.code().unwrap_or(-1), text)
}

/// Waits until a list of blocks, which `serve` keeps beside a file that has arrived in part, has that many of them; returns how many.
fn await_blocks(list: &Path, least: usize) -> usize {
    let begun = Instant::now();
    loop {
        let held = held_blocks(list);
        if held >= least {
            return held;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
        std::thread::yield_now();
    }
}

fn held_blocks(list: &Path) -> usize {
    std::fs::read(list).map_or(0, |list| list.iter().skip(LIST_HEADER).filter(|mark| **mark == 1).count())
}

/// What precedes the marks of the blocks.
const LIST_HEADER: usize = 48;

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// A folder with files of all sizes, twice: the second time there is nothing to do.
#[test]
fn a_folder_is_copied_to_three_hosts() {
    let place = Place::new("folder");
    let source = place.root.join("site");
    std::fs::create_dir_all(source.join("empty")).unwrap();
    std::fs::create_dir_all(source.join("deep/down")).unwrap();
    let files = [("a", 0), ("b", 1), ("deep/c", (1 << 20) + 1), ("deep/down/d", 3 << 20)];
    for (i, (name, bytes)) in files.iter().enumerate() {
        std::fs::write(source.join(name), content(i as u64, *bytes)).unwrap();
    }
    std::fs::set_permissions(source.join("b"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let hosts: Vec<Host> = (1..=3).map(|number| place.serve(number)).collect();
    let targets: Vec<String> = hosts.iter().map(|host| format!("{}:new/", host.address)).collect();
    for _ in 0..2 {
        let (status, text) = end(place.cp(&[&source], &targets));
        assert_eq!(status, 0, "{text}");
        for host in &hosts {
            let copy = host.folder.join("new/site");
            for (i, (name, bytes)) in files.iter().enumerate() {
                let found = std::fs::read(copy.join(name)).unwrap();
                assert!(found == content(i as u64, *bytes), "{name} at {}", host.address);
            }
            assert!(copy.join("empty").is_dir());
            let (right, found) = (source.join("b").metadata().unwrap(), copy.join("b").metadata().unwrap());
            assert_eq!((found.mode(), found.mtime_nsec()), (right.mode(), right.mtime_nsec()));
            assert_eq!(std::fs::read_dir(copy.join("deep")).unwrap().count(), 2, "nothing is left beside");
        }
    }
}

/// Many small files travel together, and a host keeps none of them open that waits: it may open 40 files here. A file that has
/// changed at one host, and one that is gone at the other, are copied again.
#[test]
fn many_files_are_copied_to_hosts_that_may_open_few() {
    let place = Place::new("many");
    let source = place.root.join("many");
    std::fs::create_dir(&source).unwrap();
    let files: Vec<(String, usize)> = (0..1200)
        .map(|i| (format!("small{i}"), i % 1500))
        .chain((0..15).map(|i| (format!("large{i}"), (1 << 20) + 1 + i)))
        .collect();
    for (i, (name, bytes)) in files.iter().enumerate() {
        std::fs::write(source.join(name), content(i as u64, *bytes)).unwrap();
    }
    let few = |serve: Command| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ulimit -n 40 && exec \"$@\"", "sh"])
            .arg(serve.get_program())
            .args(serve.get_args());
        shell
    };
    let hosts: Vec<Host> = (21..=22).map(|number| place.serve_by(number, few)).collect();
    let targets: Vec<String> = hosts.iter().map(|host| format!("{}:/", host.address)).collect();
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    for host in &hosts {
        for (i, (name, bytes)) in files.iter().enumerate() {
            let found = std::fs::read(host.folder.join("many").join(name)).unwrap();
            assert!(found == content(i as u64, *bytes), "{name} at {}", host.address);
        }
        assert_eq!(std::fs::read_dir(host.folder.join("many")).unwrap().count(), files.len());
    }
    let (right, changed) = (source.join("small7"), hosts[0].folder.join("many/small7"));
    std::fs::write(&changed, [0; 7]).unwrap();
    let modified = right.metadata().unwrap().modified().unwrap();
    std::fs::File::options().write(true).open(&changed).unwrap().set_modified(modified).unwrap();
    std::fs::remove_file(hosts[1].folder.join("many/small7")).unwrap();
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    for host in &hosts {
        assert!(std::fs::read(host.folder.join("many/small7")).unwrap() == content(7, 7));
    }
}

/// When a host is killed, the others finish and the exit status is 1; copied again, the file continues where it was.
#[test]
fn a_killed_host_is_resumed() {
    let place = Place::new("killed");
    let source = place.root.join("image");
    let bytes = 200 << 20;
    std::fs::write(&source, content(7, bytes)).unwrap();
    let mut hosts: Vec<Host> = (1..=3).map(|number| place.serve(number)).collect();
    let targets: Vec<String> = hosts.iter().map(|host| format!("{}:copy", host.address)).collect();
    let list = hosts[1].folder.join(".copy.squall-held");
    let copy = place.cp(&[&source], &targets);
    await_blocks(&list, 10);
    drop(hosts.remove(1));
    let before = held_blocks(&list);
    let (status, text) = end(copy);
    assert!((10..200).contains(&before), "{before} blocks were there when the host was killed");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("127.0.0.2: the host is lost"), "{text}");
    for host in &hosts {
        assert!(std::fs::read(host.folder.join("copy")).unwrap() == content(7, bytes), "at {}", host.address);
    }
    let partial = place.root.join("127.0.0.2/.copy.squall-partial");
    let (inode, mut marks) = (partial.metadata().unwrap().ino(), std::fs::read(&list).unwrap());
    let again = place.serve(2);
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    let copy = again.folder.join("copy");
    assert!(std::fs::read(&copy).unwrap() == content(7, bytes));
    assert_eq!(copy.metadata().unwrap().ino(), inode, "it continued with what was there");
    assert!(!list.exists());

    // As if it had been killed when all had come, before the digest was compared.
    std::fs::rename(&copy, &partial).unwrap();
    marks[LIST_HEADER..].fill(1);
    std::fs::write(&list, marks).unwrap();
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    assert!(std::fs::read(&copy).unwrap() == content(7, bytes) && !list.exists(), "it has got its name");
}

/// Two hosts serve one folder: a file under way has one writer, and the second gets an error. The first one finishes.
#[test]
fn a_file_under_way_is_not_touched_by_another_host() {
    let place = Place::new("shared");
    let (large, small) = (place.root.join("large"), place.root.join("small"));
    let bytes = 100 << 20;
    std::fs::write(&large, content(5, bytes)).unwrap();
    std::fs::write(&small, content(6, 3 << 20)).unwrap();
    std::fs::write(place.root.join("tiny"), content(6, 10)).unwrap();
    let first = place.serve(31);
    std::os::unix::fs::symlink(&first.folder, place.root.join("127.0.0.32")).unwrap();
    let _second = place.serve(32);
    let copy = place.cp(&[&large], &["127.0.0.31:copy".into()]);
    await_blocks(&first.folder.join(".copy.squall-held"), 2);
    signal(&copy, "STOP");
    for other in [&small, &place.root.join("tiny")] {
        let (status, text) = end(place.cp(&[other], &["127.0.0.32:copy".into()]));
        assert!(status == 1 && text.contains("another copy writes"), "{status}: {text}");
    }
    signal(&copy, "CONT");
    let (status, text) = end(copy);
    assert_eq!(status, 0, "{text}");
    assert!(std::fs::read(first.folder.join("copy")).unwrap() == content(5, bytes));
    let (status, text) = end(place.cp(&[&small], &["127.0.0.32:copy".into()]));
    assert_eq!(status, 0, "the lock has gone with its holder: {text}");
    assert!(std::fs::read(first.folder.join("copy")).unwrap() == content(6, 3 << 20));
}

/// No bit travels by which a program runs as its owner, and any name travels that the file system takes.
#[test]
fn modes_are_harmless_and_names_may_be_long() {
    let place = Place::new("modes");
    let source = place.root.join("site");
    std::fs::create_dir(&source).unwrap();
    let names = ["n".repeat(240), "m".repeat(255)];
    for (name, bytes) in names.iter().zip([10, 2 << 20]) {
        std::fs::write(source.join(name), content(1, bytes)).unwrap();
        std::fs::set_permissions(source.join(name), std::fs::Permissions::from_mode(0o6777)).unwrap();
    }
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o3777)).unwrap();
    let host = place.serve_by(33, |serve| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 027 && exec \"$@\"", "sh"]).arg(serve.get_program()).args(serve.get_args());
        shell
    });
    let (status, text) = end(place.cp(&[&source], &["127.0.0.33:/".into()]));
    assert_eq!(status, 0, "{text}");
    let copy = host.folder.join("site");
    assert_eq!(copy.metadata().unwrap().mode() & 0o7777, 0o750);
    for (name, bytes) in names.iter().zip([10, 2 << 20]) {
        assert_eq!(copy.join(name).metadata().unwrap().mode() & 0o7777, 0o750, "{name}");
        assert!(std::fs::read(copy.join(name)).unwrap() == content(1, bytes), "{name}");
    }
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 2, "nothing is left beside");
}

/// An error names its host and what to do; the others get the file.
#[test]
fn errors_are_reported_and_concern_their_host_only() {
    let place = Place::new("errors");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 5000)).unwrap();
    let good = place.serve(1);
    let full = place.serve(2);
    // A folder where the file should go.
    std::fs::create_dir(full.folder.join("file")).unwrap();
    std::fs::create_dir(full.folder.join("file/file")).unwrap();
    let targets = ["127.0.0.1:file", "127.0.0.2:file", "127.0.0.3:file"].map(String::from);
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("127.0.0.2: ") && text.contains("file"), "{text}");
    assert!(text.contains("127.0.0.3: cannot reach") && text.contains("is `squall serve` running"), "{text}");
    assert!(std::fs::read(good.folder.join("file")).unwrap() == content(1, 5000));

    let (status, text) = end(place.cp(&[&source], &["127.0.0.1:../file".into()]));
    assert!(status == 1 && text.contains("leads outside"), "{text}");
    std::fs::write(place.root.join("secret"), "another secret of many bytes").unwrap();
    let (status, text) = end(place.cp(&[&source], &["127.0.0.1:file".into()]));
    assert!(status == 1 && text.contains("same secret"), "{text}");
}

/// Links are followed, and the result can be read by a script: which hosts lack something, and why.
#[test]
fn links_are_followed_and_the_result_is_json() {
    let place = Place::new("links");
    let site = place.root.join("site");
    std::fs::create_dir(&site).unwrap();
    std::fs::write(place.root.join("page"), content(3, 5000)).unwrap();
    std::os::unix::fs::symlink("../page", site.join("link")).unwrap();
    let host = place.serve(51);
    let targets = ["127.0.0.51:/".to_owned(), "127.0.0.52:/".to_owned()];
    let mut command = place.command("cp");
    let Output { status, stdout, .. } = command.arg(&site).args(&targets).arg("--json").output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!((status.code(), &result["files"], &result["bytes"]), (Some(1), &1.into(), &5000.into()));
    assert!(result["hosts"][0]["error"].is_null(), "{result}");
    assert!(result["hosts"][1]["error"].as_str().unwrap().contains("cannot reach"), "{result}");
    let copy = host.folder.join("site/link");
    assert!(copy.symlink_metadata().unwrap().is_file() && std::fs::read(copy).unwrap() == content(3, 5000));
    std::os::unix::fs::symlink("..", site.join("up")).unwrap();
    let (status, text) = end(place.cp(&[&site], &targets[..1]));
    assert!(status == 1 && text.contains("a link to a folder that it is in"), "{text}");
}

/// A full disk is found before anything is sent, leaves nothing behind, and concerns its host only.
#[test]
fn a_full_disk_is_reported() {
    let place = Place::new("full");
    let (large, small) = (place.root.join("large"), place.root.join("small"));
    std::fs::write(&large, content(1, 3 << 20)).unwrap();
    std::fs::write(&small, content(2, 1 << 20)).unwrap();
    let good = place.serve(1);
    let Some(_full) = place.serve_small(2, 2 << 20) else {
        println!("skipped: this process may not mount a small file system");
        return;
    };
    let targets = |name: &str| ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:{name}"));
    let (status, text) = end(place.cp(&[&large], &targets("large")));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("127.0.0.2: no space for the 3145728 bytes of "), "{text}");
    assert!(text.contains("No space left"), "{text}");
    assert!(std::fs::read(good.folder.join("large")).unwrap() == content(1, 3 << 20));
    let (status, text) = end(place.cp(&[&small], &targets("small")));
    assert_eq!(status, 0, "what failed before takes no space: {text}");
}

/// A stranger that sends nonsense, or nothing, does no harm.
#[test]
fn a_stranger_does_no_harm() {
    let place = Place::new("stranger");
    let source = place.root.join("file");
    std::fs::write(&source, content(1, 10)).unwrap();
    let host = place.serve(1);
    let mut stranger = TcpStream::connect(("127.0.0.1", place.port)).unwrap();
    stranger.write_all(&[b'x'; 4096]).unwrap();
    // The end of the connection, however it comes.
    let _ = stranger.read_to_end(&mut Vec::new());
    let (status, text) = end(place.cp(&[&source], &["127.0.0.1:file".into()]));
    assert_eq!(status, 0, "{text}");
    assert_eq!(std::fs::read(host.folder.join("file")).unwrap(), content(1, 10));
}
