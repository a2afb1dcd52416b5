//! What `squall top` shows: what all members do, from two looks at their totals.

pub(crate) mod columns;
pub(crate) mod draw;
mod host;
pub(crate) mod live;
pub(crate) mod serve;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use squall::{MemberStatus, TrafficLine, ViewChangeLine};
use squall_harness::terminal::units;

use crate::census::AnsweredInquiry;
use crate::commands::status::{WaitedMember, waits_for};

/// What the members said at one time.
#[derive(Debug)]
pub(crate) struct GroupLook {
    at: Instant,
    /// Members that answer, by their numbers; then addresses that do not.
    lines: Vec<(String, Result<MemberStatus, String>)>,
}

impl GroupLook {
    pub(crate) fn new(at: Instant, answers: Vec<AnsweredInquiry>) -> Self {
        let mut lines = BTreeMap::new();
        for AnsweredInquiry { address, answer, .. } in answers {
            // A member may be reached at several addresses.
            let key = match &answer {
                Ok(status) => (0, format!("{:08}", status.node)),
                Err(_) => (1, address.to_string()),
            };
            lines.insert(key, (address.to_string(), answer));
        }
        Self { at, lines: lines.into_values().collect() }
    }

    fn statuses(&self) -> impl Iterator<Item = &MemberStatus> {
        self.lines.iter().filter_map(|(_, answer)| answer.as_ref().ok())
    }

    /// Returns why no member answers, if none does: each reason once.
    pub(crate) fn silence(&self) -> Option<String> {
        if self.statuses().next().is_some() {
            return None;
        }
        let mut reasons: Vec<&str> =
            self.lines.iter().filter_map(|(_, answer)| Some(answer.as_ref().err()?.as_str())).collect();
        reasons.dedup();
        Some(reasons.join("\n"))
    }
}

/// What the members do.
#[derive(Debug, Serialize)]
pub(crate) struct GroupActivity {
    members: Vec<MemberActivity>,
    /// The latest view changes, as the oldest member of the latest view knows them, the latest first.
    changes: Vec<ViewChangeLine>,
}

/// What one member does; without numbers, if it does not answer.
#[derive(Debug, Default, PartialEq, Serialize)]
struct MemberActivity {
    address: String,
    rank: Option<u64>,
    view: Option<u64>,
    state: &'static str,
    /// Messages of all subgroups; none before the second look at the member.
    sent_per_second: Option<f64>,
    delivered_per_second: Option<f64>,
    /// By how many messages and nulls it is behind in the subgroup where it is behind the most.
    lag: Option<u64>,
    /// The part of its window that is used, in the subgroup where that is the most.
    window_used: Option<f64>,
    /// The part of the time for which its application found no space in its window, in the subgroup where that is the most; none before
    /// the second look at it, and if it sends in no subgroup.
    window_full: Option<f64>,
    /// The messages and nulls of durable subgroups that are not on its disk.
    unpersisted: Option<u64>,
    /// What its log has written; none before the second look at it, and without a log.
    log_bytes_per_second: Option<f64>,
    /// What the transport has carried to and from all other members; none before the second look at it, and where that is not counted:
    /// in shared memory, and for what RDMA devices receive.
    peers_sent_bytes_per_second: Option<f64>,
    peers_received_bytes_per_second: Option<f64>,
    /// What 99 % of its own messages took at most, from being sent to being delivered, in the subgroup where that is the longest.
    latency_p99_nanos: Option<u64>,
    /// The members that it waits for, and why.
    waits_for: Vec<WaitedMember>,
    error: Option<String>,
}

impl GroupActivity {
    /// Compares two looks.
    pub(crate) fn between(before: Option<&GroupLook>, now: &GroupLook) -> Self {
        let members = now.lines.iter().map(|(address, answer)| match answer {
            Err(error) => MemberActivity {
                address: address.clone(),
                state: "silent",
                error: Some(error.clone()),
                ..MemberActivity::default()
            },
            Ok(status) => {
                let earlier = before.and_then(|look| {
                    let status = look.statuses().find(|earlier| earlier.node == status.node)?;
                    Some((status, now.at.saturating_duration_since(look.at)))
                });
                activity(address, status, earlier, now)
            }
        });
        let members = members.collect();
        // Of those in the latest view, the one that has been there for the longest knows the most changes.
        let latest = now.statuses().min_by_key(|status| (Reverse(status.view), status.node));
        let changes = latest.map_or_else(Vec::new, |status| status.changes.iter().rev().copied().collect());
        Self { members, changes }
    }
}

fn activity(
    address: &str,
    status: &MemberStatus,
    earlier: Option<(&MemberStatus, Duration)>,
    look: &GroupLook,
) -> MemberActivity {
    let sent = |status: &MemberStatus| status.subgroups.iter().map(|line| line.sent_total).sum::<u64>();
    let delivered =
        |status: &MemberStatus| status.subgroups.iter().map(|line| line.delivered_total).sum::<u64>();
    let rate = |total: &dyn Fn(&MemberStatus) -> u64| {
        let (earlier, passed) = earlier?;
        Some(total(status).saturating_sub(total(earlier)) as f64 / passed.as_secs_f64().max(1e-3))
    };
    let carried = |total: &dyn Fn(&TrafficLine) -> Option<u64>| {
        let (earlier, passed) = earlier?;
        Some(carried(&earlier.traffic, &status.traffic, total)? as f64 / passed.as_secs_f64().max(1e-3))
    };
    let lags = look.statuses().flat_map(|other| &other.subgroups).flat_map(|line| &line.lags);
    let lag = lags.filter(|lag| lag.node == status.node).map(|lag| lag.behind).max().unwrap_or(0);
    let used = status.subgroups.iter().filter_map(|line| line.window);
    let used = used.map(|window| window.used as f64 / window.size.max(1) as f64);
    let unpersisted: Vec<u64> = status.subgroups.iter().filter_map(|line| line.unpersisted).collect();
    MemberActivity {
        address: address.into(),
        rank: Some(status.rank),
        view: Some(status.view),
        state: state(status),
        sent_per_second: rate(&sent),
        delivered_per_second: rate(&delivered),
        lag: Some(lag),
        window_used: used.reduce(f64::max),
        unpersisted: (!unpersisted.is_empty()).then(|| unpersisted.iter().sum()),
        window_full: earlier.and_then(|(earlier, passed)| window_full(earlier, status, passed)),
        log_bytes_per_second: status.log.and_then(|_| rate(&|status| status.log.map_or(0, |log| log.bytes))),
        peers_sent_bytes_per_second: carried(&|line| Some(line.sent)),
        peers_received_bytes_per_second: carried(&|line| line.received),
        latency_p99_nanos: status.subgroups.iter().filter_map(|line| Some(line.latency?.p99_nanos)).max(),
        waits_for: waits_for(status),
        error: None,
    }
}

/// Returns the bytes that were carried between two looks at a member; `None` if `total` knows nothing of any line. The count of a peer
/// begins again when it is connected again.
fn carried(
    before: &[TrafficLine],
    now: &[TrafficLine],
    total: impl Fn(&TrafficLine) -> Option<u64>,
) -> Option<u64> {
    let since = |line: &TrafficLine| {
        let earlier = before.iter().find(|earlier| earlier.node == line.node).and_then(&total).unwrap_or(0);
        total(line).map(|now| now.checked_sub(earlier).unwrap_or(now))
    };
    now.iter().filter_map(since).reduce(u64::saturating_add)
}

/// Returns the part of `passed` for which a window of the member was full, for the window for which that is the most.
fn window_full(earlier: &MemberStatus, status: &MemberStatus, passed: Duration) -> Option<f64> {
    let parts = status.subgroups.iter().filter(|line| line.window.is_some()).map(|line| {
        let earlier = earlier.subgroups.iter().find(|earlier| earlier.name == line.name);
        let earlier = earlier.map_or(0, |earlier| earlier.window_full_millis);
        let full = line.window_full_millis.saturating_sub(earlier) as f64 / 1e3;
        (full / passed.as_secs_f64().max(1e-3)).min(1.0)
    });
    parts.reduce(f64::max)
}

/// The latest view changes, a line for each.
pub(crate) fn change_lines(activity: &GroupActivity) -> Vec<String> {
    let line = |change: &ViewChangeLine| {
        let ago = Duration::from_millis(change.ago_millis);
        let what = match change.took_micros {
            None => "joined here".into(),
            Some(micros) => {
                let parts = [(change.removed, "gone"), (change.joined, "new")];
                let parts = parts.into_iter().filter(|(count, _)| *count > 0);
                let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
                let parts = if parts.is_empty() { "the same members".into() } else { parts.join(", ") };
                format!("{parts}, took {}", units::nanos(micros.saturating_mul(1000)))
            }
        };
        let members = units::things(change.members, "member");
        format!("{:>8} ago  view {}: {members}; {what}", age(ago), change.to)
    };
    activity.changes.iter().map(line).collect()
}

/// A time that has passed, as in `3 s` and `2 h`.
fn age(passed: Duration) -> String {
    let seconds = passed.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// What a member is doing, in a word or two.
fn state(status: &MemberStatus) -> &'static str {
    match (status.ready, status.without_majority) {
        (true, _) if !status.missing.is_empty() => "fetches data",
        (true, _) => "ready",
        (false, true) => "no majority",
        (false, false) => "changing",
    }
}

/// For tests: two members, of which the second is behind and holds the first up, and an address without an answer.
#[cfg(test)]
fn example() -> GroupActivity {
    let member = |rank, lag, waits_for| MemberActivity {
        address: format!("192.0.2.{rank}:7400"),
        rank: Some(rank),
        view: Some(3),
        state: "ready",
        sent_per_second: Some(12_300.0),
        delivered_per_second: Some(36_900.0),
        lag: Some(lag),
        window_used: Some(0.93),
        window_full: Some(0.25),
        peers_sent_bytes_per_second: Some(41e6),
        peers_received_bytes_per_second: Some(20e6),
        latency_p99_nanos: Some(1 << 18),
        waits_for,
        ..MemberActivity::default()
    };
    let silent = MemberActivity {
        address: "192.0.2.3:7400".into(),
        state: "silent",
        error: Some("no answer from 192.0.2.3:7400 within 1.5s".into()),
        ..MemberActivity::default()
    };
    GroupActivity {
        members: vec![
            member(1, 0, vec![WaitedMember { rank: 2, cause: "disk".into() }]),
            member(2, 17, Vec::new()),
            silent,
        ],
        changes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that is connected again counts from zero, and one that has gone has no line.
    #[test]
    fn what_was_carried_is_the_growth_of_each_peer() {
        let lines = |text: &str| serde_json::from_str::<Vec<TrafficLine>>(text).expect("it is JSON");
        let before = lines(
            r#"[{"node":1,"sent":100,"received":10},{"node":2,"sent":900,"received":null},{"node":3,"sent":7000,"received":7000}]"#,
        );
        let now = lines(
            r#"[{"node":1,"sent":150,"received":30},{"node":2,"sent":40,"received":null},{"node":4,"sent":5,"received":6}]"#,
        );
        assert_eq!(carried(&before, &now, |line| Some(line.sent)), Some(50 + 40 + 5));
        assert_eq!(carried(&before, &now, |line| line.received), Some(20 + 6));
        assert_eq!(carried(&before, &now[1..2], |line| line.received), None, "a device does not count it");
    }

    #[test]
    fn the_window_that_is_full_for_the_longest_counts() {
        let line = |name: &str, window: bool, full: u64| {
            let window = if window { r#"{"used":1,"size":2}"# } else { "null" };
            format!(
                r#"{{"name":"{name}","sent":0,"delivered":0,"held_up_by":null,"slowest":null,"stood_still_millis":null,"unpersisted":null,
                "sent_total":0,"delivered_total":0,"window":{window},"window_full_millis":{full},"latency":null,"lags":[]}}"#
            )
        };
        let status = |lines: &[String]| {
            let text = format!(
                r#"{{"node":1,"rank":0,"view":0,"ready":true,"members":[],"leaving":[],"holders":[],"subgroups":[{}],"changes":[],
                "traffic":[],"log":null,"shards":null,"clock_millis":0}}"#,
                lines.join(",")
            );
            serde_json::from_str::<MemberStatus>(&text).expect("it is a status")
        };
        let before = status(&[line("a", true, 100), line("b", true, 5000), line("c", false, 0)]);
        let now = status(&[line("a", true, 700), line("b", true, 5400), line("c", false, 2000)]);
        let full =
            |before: &MemberStatus, now: &MemberStatus| window_full(before, now, Duration::from_secs(2));
        assert_eq!(full(&before, &now), Some(0.3));
        assert_eq!(full(&status(&[]), &now), Some(1.0), "never more than all of the time");
        assert_eq!(full(&before, &status(&[line("c", false, 2000)])), None, "it sends nowhere");
    }

    /// As `squall status` says it: a member is in the group, and messages flow, before it has all of its data.
    #[test]
    fn a_member_that_lacks_data_is_not_ready() {
        let status = |ready: bool, fields: &str| {
            let text = format!(
                r#"{{"node":1,"rank":0,"view":0,"ready":{ready},"members":[],"leaving":[],"holders":[],"subgroups":[],"changes":[],
                "traffic":[],"log":null,"shards":null,"clock_millis":0{fields}}}"#
            );
            state(&serde_json::from_str(&text).expect("it is a status"))
        };
        assert_eq!(status(true, r#","missing":{"objects":["accounts"],"messages":null}"#), "fetches data");
        assert_eq!([status(true, ""), status(false, "")], ["ready", "changing"]);
        assert_eq!(status(false, r#","without_majority":true"#), "no majority");
    }

    #[test]
    fn ages_have_one_unit() {
        let ages = [0, 119, 120, 7200, 200_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0 s", "119 s", "2 min", "2 h", "2 d"]);
    }
}
