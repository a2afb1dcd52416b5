//! Outages and breaks for longer, with all that carries messages. (`.ci/long outages`)

use std::process::Command;
use std::time::{Duration, Instant};

use squall_harness::lab::{Flapping, HostPlan, Lab, LabPlan, LinkConditions, Share};

use super::outages::{CLIENTS, Traffic, TrafficCarrier, resumes_within};
use super::programs::NodePlan;
use super::{SQUALL, build, json, printed};

/// How long each kind of break lasts, and the longest outage.
fn seconds(variable: &str, default: u64) -> Duration {
    let value = std::env::var(variable).ok().map(|text| text.parse().expect("seconds"));
    Duration::from_secs(value.unwrap_or(default))
}

fn lab_with_disks() -> Lab {
    // Each process with a log of its own writes some 200 MiB at first.
    let host = HostPlan { disk: Some(2 << 30), ..HostPlan::default() };
    build(&LabPlan { host, has_switch: true, ..LabPlan::new(3) })
}

/// All links fail, for 0.1 s to the longest time, with every carrier and two suspicion times.
#[test]
#[ignore = "needs root, and takes long: .ci/long outages"]
fn outages_of_all_links_are_pauses_for_all_carriers() {
    let subgroup = CLIENTS.nodes.settings;
    let storage = "[storage]\npath = \"/mnt/log\"\n";
    let log = |mode: &str, storage: &str| ("node", format!("{subgroup}mode = \"{mode}\"\n{storage}"));
    let carriers = [
        (log("unordered", ""), CLIENTS),
        (log("atomic", ""), CLIENTS),
        (log("durable", storage), CLIENTS),
        (("dds node", String::new()), KEPT_TOPIC),
        (("dds node", storage.into()), LOGGED_TOPIC),
    ];
    for suspicion in [1, 5].map(Duration::from_secs) {
        for (number, ((command, settings), carrier)) in carriers.iter().enumerate() {
            let settings = format!("suspicion_after_ms = {}\n{settings}", suspicion.as_millis());
            let carrier = TrafficCarrier { nodes: NodePlan { command, settings: &settings }, ..*carrier };
            let traffic = Traffic::start_in(lab_with_disks(), "long-outages", carrier);
            traffic.await_traffic();
            let longest = if number < 3 { seconds("SQUALL_LAB_OUTAGE_SECONDS", 20) } else { suspicion * 3 };
            for span in [suspicion / 50, suspicion.mul_f64(0.65), suspicion * 2, longest] {
                let took = traffic.cut(&[0, 1, 2], span);
                println!("{} {suspicion:?}: all links for {span:?}: again after {took:?}", carrier.receive);
                resumes_within(took, suspicion / 4 + Duration::from_secs(1));
            }
            traffic.end();
        }
    }
}

const KEPT_TOPIC: TrafficCarrier<'_> = TrafficCarrier {
    send: "dds pub numbers --profile kept",
    receive: "dds sub numbers --profile kept",
    ..CLIENTS
};
const LOGGED_TOPIC: TrafficCarrier<'_> = TrafficCarrier {
    send: "dds pub numbers --profile logged",
    receive: "dds sub numbers --profile logged",
    ..CLIENTS
};

/// After an outage of all links those of a majority come back first: it continues, within a suspicion time more, and the member that it has
/// excluded ends when it learns that.
#[test]
#[ignore = "needs root, and takes long: .ci/long outages"]
fn a_majority_that_is_back_continues() {
    let suspicion = Duration::from_secs(5);
    let mut traffic = Traffic::start_in(lab_with_disks(), "long-majority", CLIENTS);
    traffic.await_traffic();
    traffic.set_cut(&[0, 1, 2], true);
    std::thread::sleep(suspicion * 2);
    traffic.mend_pair(0, 1);
    let took = traffic.await_traffic_at(&[0, 1]);
    println!("the links of a majority: again after {took:?}");
    resumes_within(took, suspicion * 5 / 4 + Duration::from_secs(1));
    traffic.set_cut(&[2], false);
    let log = traffic.await_end(2);
    assert!(log.contains("continued without"), "{log}");
    traffic.end_at(&[0, 1]);
}

/// A member that is cut off for a little less than others wait for it stays.
#[test]
#[ignore = "needs root, and takes long: .ci/long outages"]
fn short_outages_of_one_member_exclude_none() {
    for suspicion in [1, 5].map(Duration::from_secs) {
        let settings = format!("suspicion_after_ms = {}\n{}", suspicion.as_millis(), CLIENTS.nodes.settings);
        let carrier = TrafficCarrier { nodes: NodePlan { settings: &settings, ..CLIENTS.nodes }, ..CLIENTS };
        let traffic = Traffic::start_in(lab_with_disks(), "long-one", carrier);
        traffic.await_traffic();
        for _ in 0..10 {
            let took = traffic.cut(&[2], suspicion.mul_f64(0.69));
            println!("one of three for 0.69 of {suspicion:?}: again after {took:?}");
            resumes_within(took, suspicion / 4 + Duration::from_secs(1));
        }
        traffic.end();
    }
}

/// Connections break again and again while members send as fast as they can: no member is excluded. The rates are printed.
#[test]
#[ignore = "needs root, nftables and conntrack, and takes long: .ci/long outages"]
fn breaks_exclude_none() {
    let pause = |seconds: u64| std::thread::sleep(Duration::from_secs(seconds));
    measure_breaks("connections killed every 5 s", 1.0, &|lab, _| {
        on_each_host(lab, "ss -K dst 198.18.0.0/16");
        pause(5);
    });
    measure_breaks("the table of connections forgotten every 20 s", 1.0, &|lab, _| {
        on_each_host(lab, FIREWALL);
        pause(20);
        on_each_host(lab, "conntrack -F 2>&1");
    });
    measure_breaks("a firewall that is loaded again every 10 s, and refuses meanwhile", 1.0, &|lab, _| {
        on_each_host(lab, REFUSING_FIREWALL);
        on_each_host(lab, FIREWALL);
        pause(10);
    });
    let [up, down] = [Duration::from_millis(300); 2];
    let flapping = LinkConditions { flapping: Flapping { up, down }, ..LinkConditions::default() };
    // It works for half of the time.
    measure_breaks("one link that works for 0.3 s, and then does not", 0.3, &|lab, round| {
        // Set again, it would begin anew.
        if round == 0 {
            lab.set(Some(0), Some(1), flapping).unwrap();
            lab.set(Some(1), Some(0), flapping).unwrap();
        }
        pause(1);
    });
    // A record of the benchmark takes some five frames.
    let damaged = LinkConditions { damage: Share(0.000_02), ..LinkConditions::default() };
    measure_breaks("one record of some 10,000 damaged", 1.0, &|lab, _| {
        lab.set(None, None, damaged).unwrap();
        pause(1);
    });
}

/// Only the first packet of a connection opens it: what the table has forgotten is dropped.
const FIREWALL: &str = "sysctl -q net.netfilter.nf_conntrack_tcp_loose=0; nft -f - <<'END'
        flush ruleset
        table inet wall { chain input { type filter hook input priority 0; policy drop;
            iif lo accept
            ct state established,related accept
            meta l4proto icmp accept
            tcp flags & (syn | ack) == syn ct state new accept
        }
        }
END
";
const REFUSING_FIREWALL: &str = "nft -f - <<'END'
        flush ruleset
        table inet wall { chain input { type filter hook input priority 0; policy drop;
            iif lo accept
            meta l4proto tcp reject with tcp reset
        }
        }
END
";

fn on_each_host(lab: &Lab, script: &str) {
    for host in 0..3 {
        printed(lab.command_on(host, "sh").args(["-c", script]));
    }
}

/// Measures the rate of messages without breaks and with them, in a lab of its own; `duty` is the share of the messages that can be
/// expected, and `breaks` breaks something and waits, again and again, given how often it did.
fn measure_breaks(what: &str, duty: f64, breaks: &dyn Fn(&Lab, u32)) {
    let rate = |lab: &Lab, messages: u64| {
        let bench =
            format!("bench multicast --members 3 --senders one --size 8192 --messages {messages} --json");
        json(lab, &bench)["messages_per_second"].as_f64().unwrap()
    };
    let lab = build(&LabPlan { has_switch: true, ..LabPlan::new(3) });
    let without = rate(&lab, 50_000);
    let span = seconds("SQUALL_LAB_BREAK_SECONDS", 20).as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of messages")]
    let messages = (without * duty * span) as u64;
    let with = std::thread::scope(|scope| {
        let measured = scope.spawn(|| rate(&lab, messages));
        for round in 0.. {
            if measured.is_finished() {
                break;
            }
            breaks(&lab, round);
        }
        measured.join().unwrap()
    });
    println!("{what}: {with:.0} messages/s, {without:.0} without, {:.2}", with / without);
}

/// Objects, their clients and shards that agree by themselves, through the same outages.
#[test]
#[ignore = "needs root, and takes long: .ci/long outages"]
fn outages_of_all_links_are_pauses_for_objects() {
    let longest = seconds("SQUALL_LAB_OUTAGE_SECONDS", 20).as_millis();
    for suspicion in [1_000, 5_000] {
        let spans =
            [100, suspicion / 2, 3_000, 7_000, longest].map(|span| format!("outage~{span}")).join(",");
        for more in ["", " --transactions"] {
            let begun = Instant::now();
            let chaos = format!(
                "chaos --lab --members 5 --pace 200 --suspicion-ms {suspicion} --script {spans} --json{more}"
            );
            let outcome = printed(Command::new(SQUALL).args(chaos.split(' ')));
            let outcome: serde_json::Value = serde_json::from_str(&outcome).unwrap();
            assert!(outcome["agree"] == true && outcome["acknowledged"].as_u64() > Some(100), "{outcome}");
            assert_eq!(outcome["happened"]["outage"]["times"], 5, "{outcome}");
            println!("objects, suspicion {suspicion} ms{more}: {spans} in {:?}", begun.elapsed());
        }
    }
}
