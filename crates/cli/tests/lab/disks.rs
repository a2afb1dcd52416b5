//! Disks of hosts that are slow, fail, are full or gone, and what members with logs on them do.

use std::time::{Duration, Instant};

use squall_harness::lab::{DiskConditions, HostPlan, Lab, LabPlan};

use super::programs::{LOG, NodePlan, address, client, start_node, start_nodes};
use super::trouble_page::assert_seen;
use super::{Folder, Running, SQUALL, await_that, build, printed};

/// A lab whose hosts have disks; none if this user cannot have them.
pub(crate) fn lab_with_disks(hosts: usize, mebibytes: u64) -> Option<Lab> {
    let host = HostPlan { disk: Some(mebibytes << 20), ..HostPlan::default() };
    rustix::process::geteuid().is_root().then(|| build(&LabPlan { host, ..LabPlan::new(hosts) }))
}

#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_disk_is_slow_fails_fills_and_goes_as_asked() {
    let Some(lab) = lab_with_disks(2, 64) else { return };
    let does = |host: usize, script: &str| {
        let mut command = lab.command_on(host, "sh");
        command.args(["-c", script]).output().unwrap().status.success()
    };
    let write = "dd if=/dev/zero of=/mnt/file bs=4k count=4 oflag=direct,dsync conv=notrunc";
    let (none, delay) = (DiskConditions::default(), Duration::from_millis(200));
    assert!(does(0, write));
    lab.set_disk(Some(0), DiskConditions { delay, ..none }).unwrap();
    let begun = Instant::now();
    assert!(does(0, write));
    assert!(begun.elapsed() >= 4 * delay, "{:?} for four writes", begun.elapsed());

    printed(lab.command_outside(SQUALL).args(["lab", "disk", "all", "--full"]));
    assert!([0, 1].iter().all(|host| !does(*host, "head -c 5000 /dev/zero >/mnt/more")));
    lab.set_disk(None, none).unwrap();
    assert!([0, 1].iter().all(|host| does(*host, "head -c 5000 /dev/zero >/mnt/more")));

    lab.set_disk(Some(1), DiskConditions { is_frozen: true, ..none }).unwrap();
    let mut writer = lab.command_on(1, "sh");
    let mut writer = writer.args(["-c", "echo >/mnt/waits"]).spawn().unwrap();
    std::thread::sleep(delay);
    assert!(writer.try_wait().unwrap().is_none(), "nothing waits for the frozen disk");
    lab.set_disk(Some(1), none).unwrap();
    assert!(writer.wait().unwrap().success());

    lab.set_disk(Some(0), DiskConditions { fails: true, ..none }).unwrap();
    let read = "dd if=/mnt/file of=/dev/null bs=4k iflag=direct";
    assert!(does(0, read) && !does(0, write) && does(1, "echo >/mnt/file && sync -f /mnt"));
    lab.set_disk(Some(0), DiskConditions { is_gone: true, ..none }).unwrap();
    assert!(!does(0, read));
    // Left frozen, it does not hold up the end.
    lab.set_disk(Some(1), DiskConditions { is_frozen: true, ..none }).unwrap();
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_lab_without_disks_says_so() {
    let lab = build(&LabPlan::new(1));
    let error = lab.set_disk(None, DiskConditions::default()).unwrap_err().to_string();
    assert!(error.contains("--disk"), "{error}");
}

/// A durable subgroup with the log of each member on its host's disk.
pub(crate) const DURABLE: NodePlan<'_> = NodePlan {
    settings: "[subgroups.log]\nmessage_max = 100\nwindow = 16\nmode = \"durable\"\n[storage]\npath = \"/mnt/log\"\n",
    ..LOG
};

/// Sends messages until all of them have been acknowledged; they are those of `sent` then.
pub(crate) fn send(lab: &Lab, folder: &Folder, sent: &mut Vec<String>, count: usize) {
    for _ in 0..count {
        let text = format!("message-{}", sent.len());
        // One that was delivered without a word about it is sent once more.
        await_that("a message is taken", || {
            client(lab, folder, &format!("send log {text}")).output().unwrap().status.success()
        });
        sent.push(text);
    }
}

/// All that a group has in its logs, each once.
pub(crate) fn received(lab: &Lab, folder: &Folder, sent: &[String]) -> Vec<String> {
    let last = sent.last().unwrap().as_str();
    let mut command = client(lab, folder, "recv log --from start --count 1000000");
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut found = Vec::new();
    for line in lines.map_while(Result::ok) {
        let is_last = line == last;
        found.push(line);
        if is_last {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    found.dedup();
    found
}

#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_member_on_a_slow_disk_holds_nothing_up_for_good_and_keeps_its_log() {
    let Some(lab) = lab_with_disks(3, 400) else { return };
    let (folder, mut sent) = (Folder::new("slow-disk"), Vec::new());
    let mut nodes = start_nodes(&lab, &folder, DURABLE);
    send(&lab, &folder, &mut sent, 3);
    let delay = Duration::from_millis(50);
    lab.set_disk(Some(1), DiskConditions { delay, ..DiskConditions::default() }).unwrap();
    send(&lab, &folder, &mut sent, 5);
    // All lose power, and the slow disk is as fast as the others afterwards.
    nodes.iter_mut().for_each(super::Running::kill);
    lab.set_disk(None, DiskConditions::default()).unwrap();
    // Each acknowledged message is on the disk itself, not in the page cache alone.
    let script = "for file in /mnt/log/*/log/*.segment; do dd if=$file iflag=direct bs=1M status=none; done |
        grep -aoE 'message-[0-9]+' | sort -u | wc -l";
    let kept = printed(lab.command_on(1, "sh").args(["-c", script]));
    assert_eq!(kept.trim(), sent.len().to_string());
    let _two = [0, 1].map(|host| start_node(&lab, &folder, DURABLE, host));
    send(&lab, &folder, &mut sent, 1);
    assert_eq!(received(&lab, &folder, &sent), sent);
}

/// The member that others wait for, and why, while a client sends as fast as it can: in `status`, in the log and in the metrics.
#[test]
#[ignore = "needs root: .ci/run hosts"]
fn a_slow_disk_is_named_by_all_that_look() {
    let Some(lab) = lab_with_disks(3, 400) else { return };
    let (folder, mut sent) = (Folder::new("named-disk"), Vec::new());
    let _nodes = start_nodes(&lab, &folder, DURABLE);
    send(&lab, &folder, &mut sent, 1);
    let mut flood = lab.command_outside("sh");
    let file = folder.0.join("0.toml");
    flood.args(["-c", &format!("yes message | {SQUALL} send log --config {}", file.display())]);
    let mut flood = Running::start(flood);
    let mut seen = String::new();
    let status = || {
        let output = client(&lab, &folder, "status --json").output().unwrap();
        (output.status.code(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    lab.set_disk(Some(1), DiskConditions { delay: Duration::from_millis(200), ..DiskConditions::default() })
        .unwrap();
    let begun = Instant::now();
    let slow_host = format!("{}:7400", address(&lab, 1));
    let named = |report: &serde_json::Value| {
        let mut members = report["members"].as_array().unwrap().iter();
        let Some(member) = members.find(|member| member["address"] == slow_host.as_str()) else {
            return false;
        };
        let slow = &report["slow"][0];
        slow["subgroup"] == "log" && slow["rank"] == member["status"]["rank"] && slow["cause"] == "disk"
    };
    await_that("the slow disk is named", || {
        let (code, report) = status();
        named(&report) && code == Some(1) && report["well"] == false
    });
    println!("named after {:?}", begun.elapsed());
    let log = || std::fs::read_to_string(folder.0.join("0.log")).unwrap();
    await_that("the log names it", || log().contains("holds this member up by its disk"));
    assert_seen("disk slow", "the log", &log());
    await_that("it is named in words", || {
        seen = String::from_utf8(client(&lab, &folder, "status").output().unwrap().stdout).unwrap();
        seen.contains("waits for the disk")
    });
    assert_seen("disk slow", "squall status", &seen);
    flood.kill();
    lab.set_disk(Some(1), DiskConditions::default()).unwrap();
    await_that("all is well", || status().0 == Some(0));
}
