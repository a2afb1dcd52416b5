//! The program between hosts of a lab: each with its own network, processes and shared memory, so that nothing but packets is between
//! them. (`.ci/run hosts`)

mod clocks;
mod copies;
mod disks;
mod hosts;
mod limits;
mod long;
mod outages;
mod programs;
mod trouble;
#[path = "../../../../tests/trouble_page.rs"]
mod trouble_page;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use squall_harness::lab::{Lab, LabPlan};

/// The time for anything that should happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const SQUALL: &str = env!("CARGO_BIN_EXE_squall");

fn build(plan: &LabPlan) -> Lab {
    Lab::build(Path::new(SQUALL), plan).expect("root, or user namespaces with /dev/net/tun")
}

/// What a program prints that has to end well.
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// What `squall` prints as JSON beside the hosts of a lab.
fn json(lab: &Lab, arguments: &str) -> serde_json::Value {
    let text = printed(lab.command_outside(SQUALL).args(arguments.split_whitespace()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments}: {error}: {text}"))
}

/// A process on a host, which is killed at the end of the test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt as _;
        Self(command.process_group(0).stdin(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        // `nsenter` and the program are one process group.
        let group = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
        let _ = kill_process_group(group, signal);
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("squall-hosts-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a condition holds.
fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
