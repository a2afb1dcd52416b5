//! Members that the system gives too little memory or too few descriptors: each ends with an error that names the limit and
//! what to do, and the others continue.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A scratch folder with configurations.
struct Place(PathBuf, String);

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("squall-shortage-{name}-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        Self(root, format!("squall-shortage-{name}-{}", std::process::id()))
    }

    /// The configuration of a group of `members` first members, each with an address of its own.
    fn config(&self, number: usize, members: usize, transport: &str, subgroups: &str) -> PathBuf {
        let listen = |number: usize| match transport {
            "shm" => format!("unix:@{}-{number}", self.1),
            _ => "127.0.0.1:0".into(),
        };
        let contacts: Vec<String> = (0..members).map(|number| format!("\"{}\"", listen(number))).collect();
        let contacts = if transport == "shm" { contacts.join(", ") } else { String::new() };
        let text = format!(
            "cluster = \"shortage\"\nsecret = \"at least sixteen bytes\"\nmembers = {members}\n\
             transport = \"{transport}\"\nlisten = \"{}\"\ncontacts = [{contacts}]\n{subgroups}",
            listen(number)
        );
        let path = self.0.join(format!("{number}.toml"));
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// `squall` with the limits of `ulimit`.
fn squall(limit: &str, arguments: &[&str], config: &Path) -> Command {
    let mut shell = Command::new("sh");
    let begin = format!("ulimit {limit} && exec \"$@\"");
    shell.args(["-c", &begin, "sh", env!("CARGO_BIN_EXE_squall")]).args(arguments);
    shell.arg("--config").arg(config);
    shell
}

fn end(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, stdout } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

fn begin(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Windows of large messages do not fit into the address space.
#[test]
fn too_little_memory_is_an_error() {
    let place = Place::new("memory");
    for (transport, bytes) in [("tcp", 64 << 20), ("shm", 64 << 20), ("tcp", u32::MAX)] {
        let subgroups = format!("[subgroups.log]\nmessage_max = {bytes}\n");
        let config = place.config(0, 1, transport, &subgroups);
        let (status, text) = end(begin(squall("-v 300000", &["node"], &config)));
        assert_eq!(status, Some(1), "{transport}: {text}");
        assert!(text.contains("no memory for a window or buffer of "), "{transport}: {text}");
        assert!(text.contains("RLIMIT_AS is 307200000 bytes"), "{transport}: {text}");
        assert!(text.contains("lower window_bytes, message_max"), "{transport}: {text}");
        assert!(!text.contains("panicked"), "{transport}: {text}");
    }
}

/// On shared memory each subgroup takes a descriptor.
#[test]
fn too_few_descriptors_are_an_error() {
    let place = Place::new("descriptors");
    let subgroups: String = (0..40).map(|i| format!("[subgroups.s{i}]\n")).collect();
    let config = place.config(0, 1, "shm", &subgroups);
    for limit in [15, 30] {
        let (status, text) = end(begin(squall(&format!("-n {limit}"), &["node"], &config)));
        assert_eq!(status, Some(1), "{limit}: {text}");
        assert!(text.contains("Too many open files"), "{limit}: {text}");
        assert!(text.contains(&format!("RLIMIT_NOFILE is {limit} descriptors")), "{limit}: {text}");
        assert!(!text.contains("panicked"), "{limit}: {text}");
    }
}

/// A member that runs short while others join ends with the reason, at whatever step it runs short; those who have
/// enough continue.
#[test]
fn a_member_that_runs_short_ends_alone() {
    for limit in 26..=30 {
        ends_alone(limit);
    }
}

/// The first of three members has descriptors for three members, not for twenty.
fn ends_alone(limit: u32) {
    let place = Place::new("alone");
    let subgroups = "[subgroups.a]\n[subgroups.b]\n[subgroups.c]\n[subgroups.d]\n";
    let configs: Vec<PathBuf> = (0..3).map(|number| place.config(number, 3, "shm", subgroups)).collect();
    let mut members: Vec<Child> = [limit, 4000, 4000]
        .iter()
        .zip(&configs)
        .map(|(limit, config)| begin(squall(&format!("-n {limit}"), &["node"], config)))
        .collect();
    // Ready, or short from the beginning.
    let mut joiners = Vec::new();
    let begun = Instant::now();
    while members[0].try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "{} joiners, and it has enough still", joiners.len());
        assert!(joiners.len() < 20, "it has enough for all");
        let config = place.config(3 + joiners.len(), 3, "shm", subgroups);
        let joiner = begin(squall("-n 4000", &["node"], &config));
        // It joins, or waits for the group to be without the member that has run short.
        std::thread::sleep(Duration::from_secs(1));
        joiners.push(joiner);
    }
    let (status, text) = end(members.remove(0));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains(&format!("RLIMIT_NOFILE is {limit} descriptors")), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    let status = begin(squall("-n 4000", &["status"], &configs[1]));
    std::thread::sleep(Duration::from_millis(500));
    let (_, text) = end(status);
    assert!(members.iter_mut().all(|member| member.try_wait().unwrap().is_none()), "{text}");
    for mut process in members.into_iter().chain(joiners) {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
