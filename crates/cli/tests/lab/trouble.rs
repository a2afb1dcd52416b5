//! What goes wrong with the disk or the processors of a host, and what is seen of it: that has to be what the book's page says.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use squall_harness::lab::{DiskConditions, HostPlan, Lab, LabPlan};

use super::disks::{lab_with_disks, received, send};
use super::programs::{LOG, NodePlan, address, client, start_node, start_nodes};
use super::trouble_page::assert_seen;
use super::{Folder, Running, SQUALL, await_that, build, printed};

/// Members with logs on the disks of their hosts, which give up a disk that hangs soon.
const NODES: NodePlan<'_> = NodePlan {
    command: "node --metrics 0.0.0.0:9460",
    settings: "[subgroups.log]\nmessage_max = 200000\nwindow = 16\nmode = \"durable\"\n\
               [storage]\npath = \"/mnt/log\"\ntimeout = \"1s\"\n",
};
/// Members with nothing on disks.
const IN_MEMORY: NodePlan<'_> = NodePlan { command: NODES.command, ..LOG };
/// The host with which something goes wrong.
const VICTIM: usize = 1;
const LONG: usize = 190_000;

/// A group with a member on each host.
struct LabGroup {
    lab: Lab,
    folder: Folder,
    nodes: Vec<Running>,
    sent: Vec<String>,
}

impl LabGroup {
    fn start_in(lab: Lab, test: &str, plan: NodePlan<'_>) -> Self {
        let folder = Folder::new(test);
        let nodes = start_nodes(&lab, &folder, plan);
        let group = Self { lab, folder, nodes, sent: Vec::new() };
        group.await_whole();
        group
    }

    /// What `squall status` shows, and its exit status.
    fn status(&self) -> (Option<i32>, String) {
        let output = client(&self.lab, &self.folder, "status").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.folder.0.join(format!("{host}.log"))).unwrap()
    }

    /// What a member's `/readyz` answers.
    fn ready(&self, host: usize) -> String {
        let address = address(&self.lab, host);
        let script = format!(
            "exec 3<>/dev/tcp/{address}/9460 && printf 'GET /readyz HTTP/1.1\\r\\nHost: {address}\\r\\n\\r\\n' >&3 && timeout 2 cat <&3"
        );
        let output = self.lab.command_outside("bash").args(["-c", &script]).stderr(Stdio::null()).output();
        let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        text.lines().last().map_or_else(|| "no answer".into(), String::from)
    }

    /// Waits until all members are in one view, and it is well.
    fn await_whole(&self) {
        let count = self.nodes.len();
        await_that("all are in one view", || {
            let (code, text) = self.status();
            let is_whole = |line: &str| {
                let ranks = line.split_whitespace().nth(3).unwrap_or_default();
                ranks.split(',').count() == count && line.contains("ready")
            };
            code == Some(0) && text.lines().filter(|line| is_whole(line)).count() == count
        });
    }

    fn send(&mut self, count: usize) {
        send(&self.lab, &self.folder, &mut self.sent, count);
    }

    fn start(&mut self, host: usize) {
        self.nodes[host] = start_node(&self.lab, &self.folder, NODES, host);
    }

    /// A command of `squall` that knows the victim alone.
    fn through_victim(&self, arguments: &str) -> Command {
        let text = std::fs::read_to_string(self.folder.0.join(format!("{VICTIM}.toml"))).unwrap();
        let contacts = text.lines().find(|line| line.starts_with("contacts")).unwrap();
        let own = format!("contacts = [\"{}:7400\"]", address(&self.lab, VICTIM));
        let file = self.folder.0.join("victim-client.toml");
        std::fs::write(&file, text.replace(contacts, &own)).unwrap();
        let mut command = self.lab.command_outside(SQUALL);
        command.args(arguments.split_whitespace()).arg("--config").arg(file).stdin(Stdio::null());
        command
    }

    fn on_victim(&self, script: &str) {
        printed(self.lab.command_on(VICTIM, "sh").args(["-c", script]));
    }

    fn set_disk(&self, conditions: DiskConditions) {
        self.lab.set_disk(Some(VICTIM), conditions).unwrap();
    }

    /// Waits until the log of the victim shows what the page says of a case; returns how long that took.
    fn await_cause(&self, text: &str) -> Duration {
        let begun = Instant::now();
        await_that(text, || self.log(VICTIM).contains(text));
        begun.elapsed()
    }

    /// The victim has ended: that is seen as the page says, and the others continue.
    fn assert_ended(&mut self, case: &str) {
        await_that("the others continue", || self.status().0 == Some(0));
        assert_seen(case, "squall status", &self.status().1);
        assert_seen(case, "the log", &self.log(VICTIM));
        // While its process ends, it answers with the error.
        await_that("the process has ended", || self.ready(VICTIM) == "no answer");
        assert_seen(case, "/readyz", "no answer");
        self.send(1);
    }

    /// The victim's disk is as new, and the member starts again with its log.
    fn bring_back(&mut self) {
        self.set_disk(DiskConditions::default());
        let _ = self.nodes[VICTIM].0.wait();
        self.lab.repair_disk(VICTIM).unwrap();
        self.start(VICTIM);
        self.await_whole();
    }
}

/// A disk has space for little more than one segment: the member can be read, and others take its clients' messages.
fn fill_and_free(group: &mut LabGroup) {
    let is_short = |group: &LabGroup| group.status().1.contains("nearly full");
    let flood = group.folder.0.join("flood");
    while !is_short(group) {
        let first = group.sent.len();
        let lines: Vec<String> =
            (first..first + 40).map(|number| format!("message-{number}-{}", "x".repeat(LONG))).collect();
        std::fs::write(&flood, lines.join("\n")).unwrap();
        let mut sender = client(&group.lab, &group.folder, "send log");
        assert!(sender.stdin(std::fs::File::open(&flood).unwrap()).status().unwrap().success());
        group.sent.extend(lines);
    }
    assert_seen("disk full", "squall status", &group.status().1);
    assert_seen("disk full", "the log", &group.log(VICTIM));
    assert_seen("disk full", "/readyz", &group.ready(VICTIM));
    // The client is referred to the others.
    printed(&mut group.through_victim("send log meanwhile"));
    group.sent.push("meanwhile".into());
    let read = printed(&mut group.through_victim("recv log --from start --count 2"));
    assert_eq!(read.lines().collect::<Vec<_>>(), group.sent[..2]);
    group.send(1);
    group.on_victim("rm /mnt/filler");
    await_that("there is space", || !is_short(group));
    printed(&mut group.through_victim("send log again"));
    group.sent.push("again".into());
}

/// One disk is full, fails, hangs, becomes read-only and goes; each time its member says so and comes back, and nothing is lost.
#[test]
#[ignore = "needs root: .ci/run hosts"]
fn what_goes_wrong_with_a_disk_is_seen_as_the_page_says() {
    let Some(lab) = lab_with_disks(3, 400) else { return };
    let fill = "fallocate -l $(($(df --output=avail -B1 /mnt | tail -1) - (100 << 20))) /mnt/filler";
    printed(lab.command_on(VICTIM, "bash").args(["-c", fill]));
    let mut group = LabGroup::start_in(lab, "trouble", NODES);
    group.send(2);
    fill_and_free(&mut group);
    let none = DiskConditions::default();

    group.set_disk(DiskConditions { fails: true, ..none });
    group.send(1);
    group.await_cause("has ended");
    group.assert_ended("disk failing");
    group.bring_back();

    group.set_disk(DiskConditions { is_frozen: true, ..none });
    group.send(1);
    group.await_cause("has ended");
    group.assert_ended("disk frozen");
    group.bring_back();

    group.on_victim("mount -o remount,abort /mnt");
    group.send(1);
    group.await_cause("has ended");
    group.assert_ended("disk read-only");
    group.bring_back();

    // Nothing is written meanwhile.
    group.set_disk(DiskConditions { is_gone: true, ..none });
    let took = group.await_cause("has ended");
    assert!(took < 4 * NOTICED_WITHIN, "{took:?}: {NOTICED_WITHIN:?} on a machine that does nothing else");
    group.assert_ended("disk gone");
    group.set_disk(none);
    group.lab.repair_disk(VICTIM).unwrap();
    group.on_victim("mount -o remount,ro /mnt");
    group.start(VICTIM);
    group.await_cause("Read-only");
    group.assert_ended("disk read-only at the start");
    group.bring_back();

    group.on_victim("rm -r /mnt/log");
    let took = group.await_cause("has ended");
    assert!(took < 4 * NOTICED_WITHIN, "{took:?}: {NOTICED_WITHIN:?} on a machine that does nothing else");
    group.assert_ended("folder gone");
    group.start(VICTIM);
    group.await_whole();

    group.nodes.iter_mut().for_each(Running::kill);
    let _two = [0, VICTIM].map(|host| start_node(&group.lab, &group.folder, NODES, host));
    group.send(1);
    assert_eq!(received(&group.lab, &group.folder, &group.sent), group.sent);
}

/// Nearly all of the processors' time is taken from one host.
#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_host_without_processors_is_named_as_the_page_says() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let host = HostPlan { processor_thousandths: Some(2000), ..HostPlan::default() };
    let lab = build(&LabPlan { host, ..LabPlan::new(3) });
    let group = LabGroup::start_in(lab, "slow-host", IN_MEMORY);
    limit_processors(&group.lab, VICTIM);
    let mut flood = group.lab.command_outside("sh");
    let file = group.folder.0.join("0.toml");
    flood.args(["-c", &format!("yes message | {SQUALL} send log --config {}", file.display())]);
    let _flood = Running::start(flood);
    await_that("its processor is named", || group.status().1.contains("waits for the processor"));
    let mut log = String::new();
    let named = Duration::from_secs(60);
    let begun = Instant::now();
    while !log.contains("by its processor") {
        assert!(
            begun.elapsed() < named,
            "not within {named:?}: the log names it\n{log}\n{}",
            group.status().1
        );
        std::thread::sleep(Duration::from_millis(20));
        log = group.log(0);
    }
    let mut seen = String::new();
    await_that("it is named", || {
        seen = group.status().1;
        seen.contains("waits for the processor")
    });
    assert_seen("host slow", "squall status", &seen);
    assert_seen("host slow", "the log", &group.log(0));
    assert_seen("host slow", "/readyz", &group.ready(0));
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_clock_that_is_wrong_is_named_as_the_page_says() {
    let clocks = vec![(Some(VICTIM), "+2h".parse().unwrap())];
    let lab = build(&LabPlan { clocks, ..LabPlan::new(3) });
    let group = LabGroup::start_in(lab, "wrong-clock", IN_MEMORY);
    let (code, status) = group.status();
    assert_eq!(code, Some(0), "{status}");
    assert_seen("clock wrong", "squall status", &status);
    let logs: Vec<String> = (0..3).map(|host| group.log(host)).collect();
    assert_seen("clock wrong", "the log", &logs.concat());
    assert_seen("clock wrong", "/readyz", &group.ready(VICTIM));
    let named = status.lines().filter(|line| line.contains("its clock is 7")).count();
    assert_eq!(named, 1, "the others are right: {status}");
}

/// Ten milliseconds in a quarter of a second: it is slow, but not taken for dead.
fn limit_processors(lab: &Lab, host: usize) {
    let group: PathBuf = lab.hosts()[host].groups[0].parent().unwrap().into();
    let files = [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "250000"), ("cpu.cfs_quota_us", "10000")];
    let files =
        if group.join("cpu.max").exists() { vec![("cpu.max", "10000 250000")] } else { files.to_vec() };
    for (file, text) in files {
        std::fs::write(group.join(file), text).unwrap();
    }
}

/// A folder or disk that has gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);
