//! Signals: what a parent has had a process ignore stays ignored, and each command that runs until it is ended takes over the signals that
//! end it, as the first process of a container must.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

const SOON: Duration = Duration::from_secs(40);
const SQUALL: &str = env!("CARGO_BIN_EXE_squall");

/// A folder and a process, both gone with the test.
struct ChildIn {
    folder: PathBuf,
    child: Option<Child>,
}

impl ChildIn {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("squall-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let secret = folder.join("secret");
        std::fs::write(&secret, "at least sixteen bytes").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!(
            "cluster = \"{test}\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@squall-{test}-{id}\"\n\
             contacts = [\"unix:@squall-{test}-{id}\"]\nmembers = 1\nflight_record = \"trace.json\"\n[subgroups.log]\n",
            id = std::process::id()
        );
        std::fs::write(folder.join("squall.toml"), text).unwrap();
        Self { folder, child: None }
    }

    /// Starts a command in the folder; returns the first line of its output or its log.
    fn start(&mut self, program: &str, arguments: &[&str], is_log: bool) -> String {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder);
        let (output, log) =
            if is_log { (Stdio::null(), Stdio::piped()) } else { (Stdio::piped(), Stdio::null()) };
        let child = self.child.insert(command.stdout(output).stderr(log).spawn().unwrap());
        let mut line = String::new();
        if is_log {
            BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        } else {
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        }
        line
    }

    fn signal(&self, signal: &str) {
        let process = self.child.as_ref().expect("it is started").id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    /// Returns the exit status; `None` if a signal has ended it.
    fn end(&mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("it is started");
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < SOON, "it has not ended");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ChildIn {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// As under `nohup`, or in the background of a script.
#[test]
fn ignored_signals_stay_ignored() {
    let mut node = ChildIn::new("nohup");
    let script = format!("trap '' HUP INT; exec {SQUALL} node --config squall.toml");
    let line = node.start("sh", &["-c", &script], false);
    assert!(line.starts_with("view 0"), "{line}");
    node.signal("-HUP");
    node.signal("-INT");
    // It does what comes after them.
    node.signal("-USR1");
    let (trace, begun) = (node.folder.join("trace.json"), Instant::now());
    while std::fs::metadata(&trace).map_or(0, |file| file.len()) == 0 {
        assert!(begun.elapsed() < SOON, "no trace is written");
        assert!(node.child.as_mut().unwrap().try_wait().unwrap().is_none(), "it has ended");
        thread::sleep(Duration::from_millis(10));
    }
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(!text.contains("left the group"), "this is the trace of its end: {text}");
    node.signal("-TERM");
    assert_eq!(node.end(), Some(0));
    assert!(std::fs::read_to_string(&trace).unwrap().contains("left the group"), "its end has a trace, too");
}

/// A process that is the first one of its container gets only signals that it has taken over; then its exit status is its own.
#[test]
fn commands_that_run_until_they_are_ended_take_over_the_signals() {
    let port = || format!("127.0.0.1:{}", reserve_port().unwrap());
    let mut serve = ChildIn::new("serve-signals");
    let arguments = ["serve", "--folder", ".", "--secret-file", "secret", "--listen", &port()];
    let line = serve.start(SQUALL, &arguments, true);
    assert!(line.contains("serving"), "{line}");
    serve.signal("-TERM");
    assert_eq!(serve.end(), Some(130));

    let mut top = ChildIn::new("top-signals");
    let address = port();
    top.start(SQUALL, &["top", "--config", "squall.toml", "--serve", &address], false);
    top.signal("-TERM");
    assert_eq!(top.end(), Some(130));
}
