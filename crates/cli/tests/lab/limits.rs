//! Limits of a host's processors and memory.

use std::process::Command;

use squall_harness::lab::{HostPlan, Lab, LabPlan};

use super::{build, json, printed};

/// A lab whose hosts have limits; none if this user cannot have them.
fn limited(hosts: usize, host: HostPlan) -> Option<Lab> {
    rustix::process::geteuid().is_root().then(|| build(&LabPlan { host, ..LabPlan::new(hosts) }))
}

/// Prints how many processors this process has, as the library finds it; another test runs it on a host.
#[test]
#[ignore = "needs root: .ci/run hosts"]
fn processors_of_this_process() {
    println!("processors: {}", std::thread::available_parallelism().unwrap());
}

/// What the test above prints.
fn processors(mut command: Command) -> String {
    let text =
        printed(command.args(["--exact", "limits::processors_of_this_process", "--ignored", "--nocapture"]));
    let (_, rest) = text.split_once("processors: ").unwrap();
    rest.lines().next().unwrap().to_owned()
}

#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_host_has_the_processors_and_the_memory_of_its_plan() {
    let plan = HostPlan { processor_thousandths: Some(100), memory: Some(64 << 20), ..HostPlan::default() };
    let Some(lab) = limited(1, plan) else { return };
    let here = std::env::current_exe().unwrap();
    assert_eq!(processors(lab.command_on(0, &here)), "1");
    assert_ne!(processors(Command::new(&here)), "1", "this machine has one processor");
    let user = |mut command: Command| {
        let script = "timeout 1.5 sh -c 'while :; do :; done'; times";
        let times = printed(command.args(["-c", script]));
        // Minutes and seconds of its children, as in `0m0.150000s 0m0.010000s`.
        let user = times.lines().nth(1).unwrap().split(['m', 's']).nth(1).unwrap().to_owned();
        user.parse::<f64>().unwrap()
    };
    let (limited, free) = (user(lab.command_on(0, "sh")), user(Command::new("sh")));
    assert!(limited <= 0.3, "{limited} s of 1.5 s, {free} s without the limit");
    let holds = |mebibytes: u32| {
        let script = format!("head -c {mebibytes}m /dev/zero | tail -c {mebibytes}m | wc -c");
        let output = lab.command_on(0, "bash").args(["-o", "pipefail", "-c", &script]).output();
        output.unwrap().status.success()
    };
    assert!(holds(8) && !holds(200));
}

#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_group_with_few_processors_agrees() {
    let plan = HostPlan { processor_thousandths: Some(300), ..HostPlan::default() };
    let Some(lab) = limited(4, plan) else { return };
    let shown = json(&lab, "demo --json");
    assert!(shown["agree"] == true && shown["transport"] == "tcp", "{shown}");
}
