//! Hosts: processes of this test binary in namespaces of their own.
//!
//! A test runs in a lab: this binary again, in a network, process, mount and (unless root runs it) user namespace, in which it is the
//! first process, so that nothing of it remains when it ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::roles::ROLE;

/// Runs a test's `body` in a lab; `test` is its path. Says so loudly where the system allows no namespaces.
pub(crate) fn in_lab(test: &str, body: fn()) {
    if std::env::var(LAB).is_ok_and(|running| running == test) {
        run("ip", "link set lo up");
        return body();
    }
    let Some(namespaces) =
        [&["-n"][..], &["-U", "-r", "-n"][..]].into_iter().find(|namespaces| are_allowed(namespaces))
    else {
        eprintln!(
            "SKIPPED {test}: this system lets neither root nor a user make namespaces (unshare -U -r -n -m -p -f)"
        );
        return;
    };
    let status = Command::new("unshare")
        .args(namespaces)
        .args(OWN_PROCESSES)
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(LAB, test)
        .status();
    assert!(status.unwrap().success(), "see above");
}

fn are_allowed(namespaces: &[&str]) -> bool {
    let tried = Command::new("unshare").args(namespaces).args(OWN_PROCESSES).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

/// The networks of a test's hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// They share one, as with `--net=host`.
    Shared,
    /// Each has its own, on one bridge.
    OwnEach,
}

/// A process with a process namespace of its own.
pub(crate) struct Host {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Host {
    /// Starts a process in `role` (see `roles`) as host `number`, from 1.
    pub(crate) fn start(network: Network, number: usize, role: &str) -> Self {
        let own: &[&str] = if network == Network::OwnEach { &["-n"] } else { &[] };
        let mut child = Command::new("unshare")
            .args(own)
            .args(OWN_PROCESSES)
            .arg(std::env::current_exe().unwrap())
            .args(["role", "--exact", "--ignored", "--nocapture"])
            .env_remove(LAB)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(SAID) {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        let mut host = Self { name: format!("host {number} ({role})"), child, input, lines };
        host.expect("here");
        if network == Network::OwnEach {
            host.connect(number);
        }
        host
    }

    /// Connects its network with the bridge.
    fn connect(&mut self, number: usize) {
        if number == 1 {
            run("ip", "link add br0 type bridge");
            run("ip", &format!("addr add {GATEWAY}/24 dev br0"));
            run("ip", "link set br0 up");
        }
        let pid = self.child.id();
        run("ip", &format!("link add port{number} type veth peer name eth0 netns {pid}"));
        run("ip", &format!("link set port{number} master br0"));
        run("ip", &format!("link set port{number} up"));
        self.tell(&format!("net {number}"));
    }

    /// Lets it begin.
    pub(crate) fn begin(mut self) -> Self {
        self.tell("begin");
        self
    }

    /// Sends it a line.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is running");
        writeln!(input, "{line}").unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Returns its next line.
    pub(crate) fn heard(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{} says nothing more", self.name))
    }

    /// Returns whether its next line that is no message of the log is this one.
    pub(crate) fn heard_is(&self, wanted: &str) -> bool {
        let line = self.heard();
        let is_message = line.starts_with("log ");
        assert!(is_message || line == wanted, "{}: {line}", self.name);
        !is_message
    }

    pub(crate) fn expect(&self, wanted: &str) {
        assert_eq!(self.heard(), wanted, "{}", self.name);
    }

    /// The first process of its process namespace, by its number here.
    fn first_process(&self) -> Option<Pid> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        Pid::from_raw(children.trim().parse().ok()?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.input.take());
        // `unshare` ends after its child, which has then closed its listeners; killed itself, it would end before.
        if let Some(first) = self.first_process() {
            let _ = kill_process(first, Signal::KILL);
        } else {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Maps a port of the lab's own address to an address, as the gateway of a private network does.
pub(crate) fn map_port(port: u16, to: String) {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            // Until a member listens there, its callers find nothing.
            let Ok(far) = TcpStream::connect(&to) else { continue };
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
}

/// Runs a program with words as arguments.
pub(crate) fn run(program: &str, words: &str) {
    let status = Command::new(program).args(words.split(' ')).status();
    assert!(status.unwrap().success(), "{program} {words}");
}

/// Prints a line for the test.
pub(crate) fn say(line: &str) {
    // The test harness prints to the same output, without ending its line.
    println!("\n{SAID}{line}");
}

/// The lab's own address in the hosts' network.
pub(crate) const GATEWAY: &str = "10.77.0.254";
const OWN_PROCESSES: [&str; 5] = ["-m", "-p", "-f", "--mount-proc", "--kill-child"];
const LAB: &str = "SQUALL_TEST_LAB";
const SAID: &str = "said: ";
/// Many times what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
