//! Wall clocks of hosts that differ. (`.ci/run hosts` installs what they need.)

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use squall_harness::lab::LabPlan;

use super::{build, json, printed};

/// Prints the time of this process, and how much the wall clock advances in a while; another test runs it on a host.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn time_of_this_process() {
    let (begun, time) = (Instant::now(), SystemTime::now());
    while begun.elapsed() < Duration::from_millis(300) {
        std::hint::spin_loop();
    }
    let (elapsed, passed) = (begun.elapsed().as_secs_f64(), time.elapsed().unwrap().as_secs_f64());
    let unix = time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    println!("time: {unix} {}", passed / elapsed);
}

/// What the test above prints: seconds since 1970, and the rate.
fn time(mut command: Command) -> (f64, f64) {
    let text = printed(command.args(["--exact", "clocks::time_of_this_process", "--ignored", "--nocapture"]));
    let (_, rest) = text.split_once("time: ").unwrap();
    let mut numbers = rest.split_whitespace().map(|word| word.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn hosts_have_wall_clocks_of_their_own_and_members_agree_all_the_same() {
    let clocks = vec![
        (None, "-1h".parse().unwrap()),
        (Some(1), "+2h".parse().unwrap()),
        (Some(2), "+0s,rate=1.5".parse().unwrap()),
    ];
    let lab = build(&LabPlan { clocks, ..LabPlan::new(4) });
    let here = std::env::current_exe().unwrap();
    let now = time(Command::new(&here)).0;
    let [behind, ahead, fast] = [0, 1, 2].map(|host| time(lab.command_on(host, &here)));
    assert!((-3600.0..-3540.0).contains(&(behind.0 - now)), "{behind:?} at {now}");
    assert!((7200.0..7260.0).contains(&(ahead.0 - now)), "{ahead:?} at {now}");
    assert!((0.99..1.01).contains(&ahead.1) && (1.4..1.6).contains(&fast.1), "{ahead:?}, {fast:?}");
    let shown = json(&lab, "demo --json");
    assert!(shown["agree"] == true, "{shown}");
}
