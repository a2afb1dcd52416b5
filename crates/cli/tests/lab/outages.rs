//! Outages of the network: no member ends, none is excluded, nothing is lost or comes twice.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::lab::{HostPlan, Lab, LabPlan, LinkConditions, Share};

use super::disks::DURABLE;
use super::programs::{LOG, NodePlan, address, client, start_nodes};
use super::{Folder, Running, SQUALL, await_that, build, printed};

/// The default.
const SUSPICION: Duration = Duration::from_secs(5);

/// What carries the messages.
#[derive(Clone, Copy)]
pub(crate) struct TrafficCarrier<'p> {
    pub(crate) nodes: NodePlan<'p>,
    /// What sends and receives, with its arguments.
    pub(crate) send: &'p str,
    pub(crate) receive: &'p str,
}

/// Clients of a subgroup.
pub(crate) const CLIENTS: TrafficCarrier<'_> =
    TrafficCarrier { nodes: LOG, send: "send log", receive: "recv log" };

/// A group on three hosts, one of which sends a number every 20 ms, and what each host receives.
pub(crate) struct Traffic {
    lab: Lab,
    folder: Folder,
    nodes: Vec<Running>,
    receivers: Vec<Running>,
    sender: Option<JoinHandle<u64>>,
    has_ended: Arc<AtomicBool>,
    /// Readers of topics are members, too.
    members_per_host: usize,
}

impl Traffic {
    fn start(test: &str) -> Self {
        Self::start_in(build(&LabPlan { has_switch: true, ..LabPlan::new(3) }), test, CLIENTS)
    }

    pub(crate) fn start_in(lab: Lab, test: &str, carrier: TrafficCarrier<'_>) -> Self {
        let folder = Folder::new(test);
        let nodes = start_nodes(&lab, &folder, carrier.nodes);
        if carrier.nodes.command == LOG.command {
            await_that("a message is taken", || {
                client(&lab, &folder, "send log 0").output().unwrap().status.success()
            });
        }
        // A client of each host knows the member there alone: what it misses is no matter of its own connection.
        let program = |host: usize, what: &str| {
            let text = std::fs::read_to_string(folder.0.join(format!("{host}.toml"))).unwrap();
            let contacts = text.lines().find(|line| line.starts_with("contacts")).unwrap();
            let own = format!("contacts = [\"{}:7400\"]", address(&lab, host));
            let file = folder.0.join(format!("{host}-client.toml"));
            std::fs::write(&file, text.replace(contacts, &own)).unwrap();
            let mut command = lab.command_on(host, SQUALL);
            command.args(what.split(' ')).arg("--config").arg(file);
            if what.starts_with("dds") {
                // Its log has the name of its address.
                let port = 7500 + u16::from(what == carrier.send);
                command.arg("--listen").arg(format!("{}:{port}", address(&lab, host)));
            }
            command
        };
        let receivers = (0..3).map(|host| {
            let mut command = program(host, carrier.receive);
            command.stdout(File::create(folder.0.join(format!("{host}.received"))).unwrap());
            command.stderr(File::create(folder.0.join(format!("{host}.receiver"))).unwrap());
            Running::start(command)
        });
        let receivers = receivers.collect();
        let has_ended = Arc::new(AtomicBool::new(false));
        let mut child = program(0, carrier.send).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let ended = Arc::clone(&has_ended);
        let sender = std::thread::spawn(move || {
            let mut input = child.stdin.take().unwrap();
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                sent += 1;
                writeln!(input, "{sent}").unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(input);
            assert!(child.wait().unwrap().success());
            sent
        });
        let members_per_host = 1 + usize::from(carrier.nodes.command != LOG.command);
        Self { lab, folder, nodes, receivers, sender: Some(sender), has_ended, members_per_host }
    }

    fn received(&self, host: usize) -> Vec<u64> {
        let text = std::fs::read_to_string(self.folder.0.join(format!("{host}.received"))).unwrap();
        let whole = text.lines().take(text.matches('\n').count());
        whole.map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until each of these hosts receives something new; returns how long that took.
    pub(crate) fn await_traffic_at(&self, hosts: &[usize]) -> Duration {
        let (begun, before) = (Instant::now(), [0, 1, 2].map(|host| self.received(host).len()));
        await_that("messages are received", || {
            hosts.iter().all(|host| self.received(*host).len() > before[*host] + 1)
        });
        begun.elapsed()
    }

    pub(crate) fn await_traffic(&self) -> Duration {
        self.await_traffic_at(&[0, 1, 2])
    }

    /// Cuts the links of these hosts to all others, or mends them.
    pub(crate) fn set_cut(&self, hosts: &[usize], is_cut: bool) {
        for host in hosts {
            let cut = LinkConditions { is_cut, ..LinkConditions::default() };
            self.lab.set(Some(*host), None, cut).unwrap();
            self.lab.set(None, Some(*host), cut).unwrap();
        }
    }

    /// Cuts the links of these hosts for a time; returns how long it takes from their return to the next messages.
    pub(crate) fn cut(&self, hosts: &[usize], span: Duration) -> Duration {
        self.set_cut(hosts, true);
        std::thread::sleep(span);
        self.set_cut(hosts, false);
        self.await_traffic()
    }

    /// Mends the links between these two hosts alone.
    pub(crate) fn mend_pair(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            self.lab.set(Some(from), Some(to), LinkConditions::default()).unwrap();
        }
    }

    /// Waits until the member of this host has ended, and returns what it has logged.
    pub(crate) fn await_end(&mut self, host: usize) -> String {
        await_that("the member has ended", || self.nodes[host].0.try_wait().unwrap().is_some());
        std::fs::read_to_string(self.folder.0.join(format!("{host}.log"))).unwrap()
    }

    fn status(&self, host: usize) -> String {
        let mut command = self.lab.command_on(host, SQUALL);
        command.arg("status").arg("--config").arg(self.folder.0.join(format!("{host}.toml")));
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Ends the traffic: no member has ended, and every host has received everything, in order and once.
    pub(crate) fn end(self) {
        self.end_at(&[0, 1, 2]);
    }

    /// As [`Traffic::end`], for the members of these hosts.
    pub(crate) fn end_at(mut self, hosts: &[usize]) {
        self.has_ended.store(true, Ordering::Relaxed);
        let sent = self.sender.take().unwrap().join().unwrap();
        for host in hosts.iter().copied() {
            await_that("all is received", || self.received(host).last() == Some(&sent));
            let received = self.received(host);
            let first = received[0];
            assert!(first < 200, "host {host} began with {first}");
            assert_eq!(received, (first..=sent).collect::<Vec<_>>(), "at host {host}");
            for (process, log) in [(&mut self.nodes[host], "log"), (&mut self.receivers[host], "receiver")] {
                let said = std::fs::read_to_string(self.folder.0.join(format!("{host}.{log}"))).unwrap();
                let ended = process.0.try_wait().unwrap();
                assert!(ended.is_none(), "a process of host {host} has ended with {ended:?}: {said}");
            }
            let members = self.status(host);
            let is_whole = |line: &str| {
                let ranks = line.split_whitespace().nth(3).unwrap_or_default();
                ranks.split(',').count() == hosts.len() * self.members_per_host && line.contains("ready")
            };
            assert!(members.lines().any(is_whole), "{members}");
        }
    }
}

/// Checks how long it took until messages were received again.
fn resumes_soon(took: Duration) {
    resumes_within(took, SUSPICION / 4 + Duration::from_secs(1));
}

pub(crate) fn resumes_within(took: Duration, most: Duration) {
    assert!(took < most * 4, "{took:?}: {most:?} on a machine that does nothing else");
}

/// All links fail, for less and for more than the suspicion time.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn an_outage_of_all_links_is_a_pause_however_long() {
    let traffic = Traffic::start("outage-all");
    traffic.await_traffic();
    for millis in [100, 3_000, 7_000] {
        let took = traffic.cut(&[0, 1, 2], Duration::from_millis(millis));
        println!("all links for {millis} ms: messages again after {took:?}");
        resumes_soon(took);
    }
    traffic.end();
}

/// Members with logs do not start again for an outage, either.
#[test]
#[ignore = "needs root: .ci/run hosts"]
fn an_outage_of_all_links_is_a_pause_with_a_durable_subgroup() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let host = HostPlan { disk: Some(400 << 20), ..HostPlan::default() };
    let lab = build(&LabPlan { host, has_switch: true, ..LabPlan::new(3) });
    let traffic = Traffic::start_in(lab, "outage-durable", TrafficCarrier { nodes: DURABLE, ..CLIENTS });
    traffic.await_traffic();
    let took = traffic.cut(&[0, 1, 2], Duration::from_secs(8));
    println!("all links for 8 s, durable: messages again after {took:?}");
    resumes_soon(took);
    traffic.end();
}

/// Members that wait say so.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_member_that_waits_for_a_majority_says_so() {
    let traffic = Traffic::start("outage-status");
    traffic.await_traffic();
    let cut = LinkConditions { is_cut: true, ..LinkConditions::default() };
    traffic.lab.set(None, None, cut).unwrap();
    await_that("it says that it waits", || traffic.status(1).contains("waits for a majority"));
    traffic.lab.set(None, None, LinkConditions::default()).unwrap();
    traffic.await_traffic();
    traffic.end();
}

/// One member is cut off for less than the suspicion time, and then all connections between members are killed.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_short_outage_of_one_member_and_killed_connections_exclude_none() {
    let traffic = Traffic::start("outage-one");
    traffic.await_traffic();
    resumes_soon(traffic.cut(&[2], SUSPICION.mul_f64(0.5)));
    for host in 0..3 {
        for other in (0..3).filter(|other| *other != host) {
            printed(traffic.lab.command_on(host, "ss").args(["-K", "dst", &address(&traffic.lab, other)]));
        }
    }
    resumes_soon(traffic.await_traffic());
    traffic.end();
}

/// Where the default of the system paces: not on a path that loses nothing, again on one that does.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_path_that_loses_packets_has_the_congestion_control_of_the_system() {
    let traffic = Traffic::start("pacing");
    traffic.await_traffic();
    let default = printed(traffic.lab.command_on(0, "cat").arg("/proc/sys/net/ipv4/tcp_congestion_control"));
    let (lab, default) = (&traffic.lab, default.trim().to_owned());
    // The connections of host 0 to host 2, by name of their control.
    let controls = || {
        let text = printed(lab.command_on(0, "ss").args([
            "-Htino",
            "state",
            "established",
            "dst",
            &address(lab, 2),
        ]));
        let words = text.split_whitespace().map(str::to_owned);
        words.filter(|word| [&default, "reno"].contains(&word.as_str())).collect::<Vec<String>>()
    };
    let paces = default.starts_with("bbr");
    let expected = if paces { "reno" } else { &default };
    // On a busy machine one or the other has sent something again by now.
    let before = controls();
    assert!(before.iter().any(|control| control == expected), "{before:?}");
    for (from, to) in [(0, 2), (2, 0)] {
        lab.set(Some(from), Some(to), LinkConditions { loss: Share(0.3), ..Default::default() }).unwrap();
    }
    await_that("a connection has the default", || controls().contains(&default));
    for (from, to) in [(0, 2), (2, 0)] {
        lab.set(Some(from), Some(to), LinkConditions::default()).unwrap();
    }
    traffic.await_traffic();
    traffic.end();
}
