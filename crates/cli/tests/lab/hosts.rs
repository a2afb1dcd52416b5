//! The lab itself: what its hosts share and what not, what its links do, and that nothing of it stays.

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use squall_harness::lab::{HostPlan, LabMap, LabPlan, LinkConditions, Share};

use super::{Folder, Running, SQUALL, await_that, build, json, printed};

/// The median of a round trip between the lab's outside and its first host, in microseconds.
fn round_trip_us(lab: &squall_harness::lab::Lab) -> f64 {
    let times = json(lab, "bench stream --transport tcp --round-trip --size 64 --messages 40 --json");
    times["latency_ns"]["p50"].as_f64().unwrap_or_else(|| panic!("{times}")) / 1000.0
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn hosts_share_no_processes_names_and_memory() {
    let lab = build(&LabPlan::new(2));
    let on = |host: usize, script: &str| printed(lab.command_on(host, "sh").args(["-c", script]));
    assert_eq!([0, 1].map(|host| on(host, "hostname").trim().to_owned()), ["host0", "host1"]);
    assert_ne!(on(0, "readlink /proc/self/ns/net"), on(1, "readlink /proc/self/ns/net"));
    // A shell, and what holds the host: the numbers begin anew.
    assert!(on(0, "echo $$").trim().parse::<u32>().unwrap() < 100);
    on(0, "touch /dev/shm/squall-lab-test /run/squall-lab-test");
    assert!(!on(1, "ls /dev/shm /run").contains("squall-lab-test"));
    assert!(!std::path::Path::new("/dev/shm/squall-lab-test").exists());
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_link_delays_loses_and_is_cut_while_programs_run() {
    let lab = build(&LabPlan { has_switch: true, ..LabPlan::new(1) });
    let outside = Some(squall_harness::lab::outside(1));
    let usual = round_trip_us(&lab);
    let delay = Duration::from_millis(20);
    lab.set(outside, Some(0), LinkConditions { delay, ..Default::default() }).unwrap();
    let one_way = round_trip_us(&lab);
    assert!((20_000.0..40_000.0).contains(&one_way), "{one_way} us, {usual} without delay");
    lab.set(Some(0), outside, LinkConditions { delay, ..Default::default() }).unwrap();
    let both_ways = round_trip_us(&lab);
    assert!((40_000.0..80_000.0).contains(&both_ways), "{both_ways} us");
    lab.set(Some(0), outside, LinkConditions { loss: Share(0.05), ..Default::default() }).unwrap();
    lab.set(outside, Some(0), LinkConditions { loss: Share(0.05), ..Default::default() }).unwrap();
    // What is lost is sent again.
    round_trip_us(&lab);
    lab.set(outside, Some(0), LinkConditions { is_cut: true, ..Default::default() }).unwrap();
    let mut cut = lab.command_outside("timeout");
    cut.args(["2", SQUALL])
        .args("bench stream --transport tcp --round-trip --size 64 --messages 40".split(' '));
    assert!(!cut.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_bridge_can_cut_one_direction_and_says_what_it_cannot() {
    let lab = build(&LabPlan::new(2));
    let outside = squall_harness::lab::outside(2);
    lab.set(Some(0), Some(outside), LinkConditions { is_cut: true, ..Default::default() }).unwrap();
    let ping = |lab: &squall_harness::lab::Lab| {
        let mut command = lab.command_outside("timeout");
        command
            .args(["2", SQUALL])
            .args("bench stream --transport tcp --round-trip --size 64 --messages 4".split(' '));
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(!ping(&lab));
    lab.set(Some(0), Some(outside), LinkConditions::default()).unwrap();
    await_that("the link carries again", || ping(&lab));
    let slow = LinkConditions { delay: Duration::from_millis(1), ..Default::default() };
    assert!(lab.set(None, None, slow).unwrap_err().to_string().contains("switch"));
    assert!(lab.set(Some(9), None, LinkConditions::default()).unwrap_err().to_string().contains("no host 9"));
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn hosts_have_disks_memory_and_users_as_planned() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let host = HostPlan {
        disk: Some(32 << 20),
        shared_memory: Some(64 << 10),
        is_read_only: true,
        user: Some(12_345),
        ..HostPlan::default()
    };
    let lab = build(&LabPlan { host, ..LabPlan::new(1) });
    let on = |script: &str| printed(lab.command_on(0, "sh").args(["-c", script])).trim().to_owned();
    assert_eq!(on("id -u"), "12345");
    assert_eq!(on("df --output=size -k /dev/shm | tail -1"), "64");
    assert!(on("df --output=size -k /mnt | tail -1").parse::<u32>().unwrap() < 32 << 10);
    assert_eq!(on("touch /etc/squall-lab-test 2>/dev/null || echo refused"), "refused");
}

/// As a terminal does it, to all processes of its foreground group at once.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn ctrl_c_ends_the_command_in_order_before_its_network() {
    let folder = Folder::new("ctrl-c");
    // A command that takes a while to end, and then looks whether its hosts are still there.
    let script = "trap 'sleep 0.5; kill -0 $host && touch ended; exit 130' INT; trap '' TERM
        host=$(echo \"$SQUALL_LAB\" | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')
        echo \"$SQUALL_LAB\" >begun.new && mv begun.new begun
        while :; do sleep 0.1; done";
    let mut lab = Command::new(SQUALL);
    lab.args(["lab", "--", "sh", "-c", script]).current_dir(&folder.0);
    let mut lab = Running::start(lab);
    await_that("the command runs", || folder.0.join("begun").exists());
    let map: LabMap =
        serde_json::from_str(&std::fs::read_to_string(folder.0.join("begun")).unwrap()).unwrap();
    lab.signal(Signal::INT);
    assert_eq!(lab.0.wait().unwrap().code(), Some(130));
    assert!(folder.0.join("ended").exists(), "the network has ended before the command");
    for host in map.hosts {
        assert!(!std::path::Path::new(&format!("/proc/{}", host.pid)).exists(), "host {} is left", host.pid);
    }
}

/// Namespaces, mounts, devices and processes go with the one process that began them.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn nothing_is_left_after_a_kill() {
    let marker = format!("3{:06}", std::process::id());
    let mut lab = Command::new(SQUALL);
    lab.args(["lab", "--each", "--", "sleep", &marker]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut lab = lab.spawn().unwrap();
    let running = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.starts_with("sleep") && line.contains(&marker)).count()
    };
    await_that("all hosts run the command", || running() == 3);
    lab.kill().unwrap();
    lab.wait().unwrap();
    await_that("all of it has ended", || running() == 0);
}
