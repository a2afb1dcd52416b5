//! Groups of real processes whose healthy members have to continue, whatever is done to the others, on shared memory and on
//! TCP \[V10\] \[V11\] \[A8\].
//!
//! Each script is done `SQUALL_REPEAT` times (once without); `.ci/long majority` does it fifty times. To see what
//! happens, run `squall chaos` with the same script.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Short enough for a test, and long enough for a machine with two processors on which others build.
const SUSPICION_MS: u64 = 1500;

fn squall(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// Runs `squall chaos`, which must find that all is well; returns what it prints.
fn chaos(arguments: &str) -> serde_json::Value {
    let repeat = std::env::var("SQUALL_REPEAT").unwrap_or_else(|_| "1".into());
    let line = format!("chaos --json --suspicion-ms {SUSPICION_MS} --repeat {repeat} {arguments}");
    let output = squall(&line).output().expect("the program can be started");
    let (stderr, result) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "squall {line}\n{stderr}{result}");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    println!("squall {line}\n{result}");
    assert_eq!(result["agree"], true, "squall {line}\n{result}");
    assert!(result["acknowledged"].as_u64() > Some(0), "squall {line}\n{result}");
    result
}

/// How often a fault of this kind was done.
fn times(result: &serde_json::Value, kind: &str) -> u64 {
    result["happened"][kind]["times"].as_u64().unwrap_or(0)
}

/// A process that is halted just after it was admitted is removed alone.
fn joiner_halts(transport: &str) {
    for members in [3, 5] {
        let script = "join-halt@1,join-halt@2,join-halt@3,join-halt@5,join-halt@10";
        let result = chaos(&format!("--transport {transport} --members {members} --script {script}"));
        assert!(times(&result, "join-halt") >= 5, "{result}");
        assert_eq!(result["excluded"], 0, "only the joiners, which never continued: {result}");
    }
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_joiner_that_halts_is_removed_alone_on_shm() {
    joiner_halts("shm");
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_joiner_that_halts_is_removed_alone_on_tcp() {
    joiner_halts("tcp");
}

/// A process that is halted while it joins, and continues when the others have removed it, still joins, and does not keep
/// others from joining.
#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_joiner_that_goes_on_later_blocks_nobody() {
    let result = chaos("--members 3 --script join-halt@1~4000,join-halt@3~4000,join-halt@5~4000");
    assert!(times(&result, "join-halt") >= 3, "{result}");
}

/// Of five members one is killed and another one halted while the view changes: the other three continue.
fn two_of_five_fall_out(transport: &str) {
    let script = "kill-halt@0,kill-halt@1,kill-halt@2,kill-halt@4,kill-halt@8";
    let result = chaos(&format!("--transport {transport} --members 5 --script {script}"));
    assert!(times(&result, "kill-halt") >= 5, "{result}");
    assert_eq!(result["killed"], result["halted"], "{result}");
    assert_eq!(result["excluded"], 0, "{result}");
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn three_of_five_continue_on_shm() {
    two_of_five_fall_out("shm");
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn three_of_five_continue_on_tcp() {
    two_of_five_fall_out("tcp");
}

/// Every member is replaced, while the state of each shard needs 1.5 seconds to travel and a client writes.
fn members_are_replaced(transport: &str) {
    for replicas in [1, 2] {
        let result = chaos(&format!(
            "--transport {transport} --members 3 --replicas {replicas} --transfer-ms 1500 --script restart"
        ));
        assert!(times(&result, "restart") >= 1, "{result}");
        assert!(result["joined"].as_u64() >= Some(3), "{result}");
    }
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_rolling_restart_loses_nothing_on_shm() {
    members_are_replaced("shm");
}

#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_rolling_restart_loses_nothing_on_tcp() {
    members_are_replaced("tcp");
}

/// Of four members two do not reach each other: exactly one of these two goes.
#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn a_cut_link_costs_one_member() {
    if let Some(why) = why_no_namespaces() {
        eprintln!("SKIPPED: a_cut_link_costs_one_member: {why}");
        return;
    }
    let result = chaos("--transport tcp --members 4 --script cut,cut-one-way");
    assert!(times(&result, "cut") >= 1 && times(&result, "cut-one-way") >= 1, "{result}");
    assert_eq!(result["excluded"].as_u64(), Some(times(&result, "cut") + times(&result, "cut-one-way")));
}

/// After an interrupt nothing is left, in the middle of whatever it was.
#[test]
#[ignore = "real time decides here, for two minutes: .ci/run majority"]
fn an_interrupt_leaves_nothing() {
    let transports: &[&str] = if why_no_namespaces().is_none() { &["shm", "tcp"] } else { &["shm"] };
    for transport in transports {
        let mut chaos = squall(&format!("chaos --transport {transport} --members 3 --seconds 100"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = chaos.id();
        std::thread::sleep(Duration::from_secs(3));
        kill_process(Pid::from_child(&chaos), Signal::INT).unwrap();
        let asked = Instant::now();
        let status = chaos.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{transport}");
        assert!(asked.elapsed() < Duration::from_secs(10), "{transport}: {:?}", asked.elapsed());
        let own = format!("squall-chaos-{pid}");
        assert!(spaces().iter().all(|space| !space.starts_with(&own)), "{:?}", spaces());
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!sockets.contains(&format!("@squall-{pid}-")), "{transport}: sockets are left");
        assert!(!std::env::temp_dir().join(own).exists(), "{transport}: the accounts are left");
        let is_member = |entry: &std::fs::DirEntry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&format!("member\0--parent\0{pid}\0"))
        };
        let members = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(is_member);
        assert_eq!(members.count(), 0, "{transport}: members are left");
    }
}

/// What cannot be done is reported.
#[test]
fn a_script_that_cannot_be_done_fails() {
    for (arguments, why) in [
        ("--transport shm --script cut", "links can be cut with --transport tcp"),
        ("--members 3 --script kill-halt@2", "needs more members"),
        ("--script nonsense", "is not a fault"),
        ("--script kill@soon", "is not a number of milliseconds"),
    ] {
        let output = squall(&format!("chaos --suspicion-ms {SUSPICION_MS} {arguments}")).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(why), "{arguments}: {stderr}");
    }
}

/// The namespaces that runs have made.
fn spaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("squall-chaos-")).collect()
}

/// Why there can be no network namespaces here, if there cannot.
fn why_no_namespaces() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root");
    }
    let has_ip = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    (!has_ip).then_some("there is no `ip` (package iproute2)")
}
