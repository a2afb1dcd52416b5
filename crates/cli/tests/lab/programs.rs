//! Members, clients, objects, topics, streams and copies between hosts.

use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use squall_harness::lab::{Lab, LabPlan, LinkConditions, Share};

use super::{Folder, Running, SQUALL, await_that, build, json, printed};

/// The address of a host of a lab.
pub(crate) fn address(lab: &Lab, host: usize) -> String {
    lab.hosts()[host].addresses[0].to_string()
}

/// What a member runs, and what its configuration has besides the names of the group.
#[derive(Clone, Copy)]
pub(crate) struct NodePlan<'p> {
    pub(crate) command: &'p str,
    pub(crate) settings: &'p str,
}

/// A group with one subgroup, `log`.
pub(crate) const LOG: NodePlan<'_> =
    NodePlan { command: "node", settings: "[subgroups.log]\nmessage_max = 100\nwindow = 16\n" };

/// A group with a member at port 7400 of each host. Its log is in `folder`.
pub(crate) fn start_nodes(lab: &Lab, folder: &Folder, plan: NodePlan<'_>) -> Vec<Running> {
    (0..lab.hosts().len()).map(|host| start_node(lab, folder, plan, host)).collect()
}

pub(crate) fn start_node(lab: &Lab, folder: &Folder, plan: NodePlan<'_>, host: usize) -> Running {
    let hosts = lab.hosts().len();
    let contacts: Vec<String> = (0..hosts).map(|host| format!("{}:7400", address(lab, host))).collect();
    let text = format!(
        "cluster = \"hosts\"\nsecret = \"at least sixteen bytes\"\nlisten = \"{}\"\ncontacts = {contacts:?}\n\
         members = {hosts}\n{}",
        contacts[host], plan.settings
    );
    let file = folder.0.join(format!("{host}.toml"));
    std::fs::write(&file, text).unwrap();
    let log = File::create(folder.0.join(format!("{host}.log"))).unwrap();
    let mut node = lab.command_on(host, SQUALL);
    node.args(plan.command.split(' ')).arg("--config").arg(file).stdout(Stdio::null()).stderr(log);
    Running::start(node)
}

/// A command of `squall` with the first member's configuration, beside the hosts.
pub(crate) fn client(lab: &Lab, folder: &Folder, arguments: &str) -> Command {
    let mut command = lab.command_outside(SQUALL);
    command.args(arguments.split_whitespace()).arg("--config").arg(folder.0.join("0.toml"));
    command
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_group_that_loses_a_member_agrees_and_admits_another_one() {
    let lab = build(&LabPlan::new(4));
    let shown = json(&lab, "demo --json");
    assert!(shown["agree"] == true && shown["transport"] == "tcp", "{shown}");
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn nodes_take_messages_from_clients_elsewhere_and_go_on_without_a_killed_one() {
    let (lab, folder) = (build(&LabPlan::new(3)), Folder::new("nodes"));
    let mut nodes = start_nodes(&lab, &folder, LOG);
    let send =
        |text: &str| client(&lab, &folder, &format!("send log {text}")).output().unwrap().status.success();
    await_that("a client's message is taken", || send("first"));
    nodes[2].kill();
    await_that("the others take messages", || send("second"));
    let status = client(&lab, &folder, "status --json").output().unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains(&address(&lab, 1)), "{status}");
}

/// Each reply comes as soon as the network carries it: no side sleeps out its fallback of a second.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_client_of_an_object_waits_for_the_network_alone() {
    let lab = build(&LabPlan::new(3));
    let one = json(&lab, "bench object --under-way 1 --seconds 2 --json");
    assert!(one["updates_per_second"].as_f64().unwrap() > 50.0, "{one}");
    assert!(one["latency_us_p50"].as_f64().unwrap() < 100_000.0, "{one}");
    let many = json(&lab, "bench object --under-way 64 --seconds 2 --json");
    assert!(many["updates_per_second"].as_f64().unwrap() > 500.0, "{many}");
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn benchmarks_of_all_parts_run_between_hosts() {
    let lab = build(&LabPlan::new(3));
    let sent = json(&lab, "bench multicast --members 3 --senders one --size 8192 --messages 2000 --json");
    assert_eq!(sent["transport"], "tcp", "{sent}");
    json(&lab, "bench dds --profile atomic,kept --subscribers 2 --messages 500 --json");
    json(&lab, "bench stream --size exp:64KiB --messages 500 --json");
    json(&lab, "bench view --rounds 2 --json");
}

/// Hosts that run `squall serve`, and a file to copy to them.
struct CopyTrial {
    folder: Folder,
    content: Vec<u8>,
    hosts: Vec<Running>,
}

impl CopyTrial {
    fn new(lab: &Lab, name: &str) -> Self {
        let folder = Folder::new(name);
        std::fs::write(folder.0.join("secret"), "at least sixteen bytes").unwrap();
        let content: Vec<u8> =
            (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(folder.0.join("image"), &content).unwrap();
        let mut trial = Self { folder, content, hosts: Vec::new() };
        trial.hosts = (0..lab.hosts().len()).map(|host| trial.serve(lab, host)).collect();
        trial
    }

    fn serve(&self, lab: &Lab, host: usize) -> Running {
        let own = self.folder.0.join(format!("h{host}"));
        std::fs::create_dir(&own).unwrap();
        let mut serve = lab.command_on(host, SQUALL);
        serve.arg("serve").arg("--folder").arg(own).arg("--secret-file").arg(self.folder.0.join("secret"));
        let running = Running::start({
            serve.stdout(Stdio::null()).stderr(Stdio::null());
            serve
        });
        let listens = ["-c", "ss -Hltn 'sport = :7401' | grep -q ."];
        await_that("the host listens", || {
            lab.command_on(host, "sh").args(listens).status().unwrap().success()
        });
        running
    }

    /// Copies the file to all hosts, from a place beside them.
    fn copy(&self, lab: &Lab) -> Output {
        let mut copy = lab.command_outside(SQUALL);
        let targets = (0..self.hosts.len()).map(|host| format!("{}:image", address(lab, host)));
        copy.arg("cp").arg(self.folder.0.join("image")).args(targets);
        copy.arg("--secret-file").arg(self.folder.0.join("secret")).output().unwrap()
    }

    fn assert_complete(&self, lab: &Lab) {
        let Output { status, stderr, .. } = self.copy(lab);
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        for host in 0..self.hosts.len() {
            let copied = std::fs::read(self.folder.0.join(format!("h{host}/image"))).unwrap();
            assert!(copied == self.content, "host {host}");
        }
    }
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_copy_reaches_all_hosts() {
    let lab = build(&LabPlan::new(3));
    CopyTrial::new(&lab, "copy").assert_complete(&lab);
}

/// No packet of TCP leaves a host but from port 7401 or to it: no other port takes a connection there, and none reaches the source.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_copy_needs_one_port_at_each_host_and_none_at_the_source() {
    let lab = build(&LabPlan::new(3));
    let rules = [
        "10 ipproto tcp sport 7401 lookup main",
        "11 ipproto tcp dport 7401 lookup main",
        "12 ipproto tcp prohibit",
    ];
    for (host, rule) in (0..3).flat_map(|host| rules.map(|rule| (host, rule))) {
        printed(lab.command_on(host, "ip").args(["rule", "add", "pref"]).args(rule.split(' ')));
    }
    CopyTrial::new(&lab, "one-port").assert_complete(&lab);
}

/// Two hosts that do not reach each other are named, with the address; when they do again, the same hosts take the copy.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn hosts_that_do_not_reach_each_other_are_named() {
    let lab = build(&LabPlan::new(3));
    let trial = CopyTrial::new(&lab, "pair");
    let [first, second] = [0, 1].map(|host| address(&lab, host));
    let route = |what: &str| {
        printed(lab.command_on(1, "ip").args(["route", what, "unreachable", &first]));
    };
    route("add");
    let Output { status, stderr, .. } = trial.copy(&lab);
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{text}");
    assert!(
        text.contains(&format!("{second} has no link with {first}: cannot reach {first} at port 7401")),
        "{text}"
    );
    route("del");
    trial.assert_complete(&lab);
}

/// A network as bad as a bad one is: nothing is lost, nothing comes twice, no healthy member is excluded.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_bad_network_excludes_no_member() {
    let lab = build(&LabPlan { has_switch: true, seed: 7, ..LabPlan::new(3) });
    let bad = LinkConditions {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(2),
        loss: Share(0.02),
        duplicates: Share(0.02),
        corruption: Share(0.005),
        reordering: Share(0.02),
        ..LinkConditions::default()
    };
    lab.set(None, None, bad).unwrap();
    let sent = json(&lab, "bench multicast --members 3 --senders all --size 64 --messages 300 --json");
    assert_eq!(sent["transport"], "tcp", "{sent}");
}

/// A slow disk under the log of a member, one that fails, by which the member ends and comes back, and then a death.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn chaos_with_bad_disks_violates_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut chaos = Command::new(SQUALL);
    chaos.args(
        "chaos --lab --members 4 --pace 500 --script slow-disk~2000,failing-disk,kill --json".split(' '),
    );
    let outcome: serde_json::Value = serde_json::from_str(&printed(&mut chaos)).unwrap();
    assert!(outcome["agree"] == true && outcome["happened"]["slow-disk"]["times"] == 1, "{outcome}");
    assert_eq!(outcome["ended_by_disk"], 1, "{outcome}");
}

/// Kills, halts, cut links and a network with faults, under load, judged by the accounts of all members and the clients' history.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn chaos_between_hosts_violates_nothing() {
    let mut chaos = Command::new(SQUALL);
    chaos.args(
        "chaos --lab --seconds 20 --pace 500 --seed 3 --faults kill,halt,network,cut,outage --json"
            .split(' '),
    );
    let outcome = printed(&mut chaos);
    let outcome: serde_json::Value = serde_json::from_str(&outcome).unwrap();
    assert!(outcome["agree"] == true && outcome["acknowledged"].as_u64().unwrap() > 100, "{outcome}");
}
