//! `squall status`: the state of the members, as each reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::{Address, quantity};
use squall::{Config, MemberStatus, SlowestLine};
use squall_harness::terminal::{CommandVerdict, PendingNote, output, table};
use squall_transports::bootstrap::described_lead;

use crate::census::{self, AnsweredInquiry};

/// Ask the members of a running group for their state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Members to ask first, instead of `contacts` in the file
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<Address>,
    /// A subgroup that has stalled for this long, with messages waiting, is not well
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "5s")]
    stalled_after: Duration,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "1500ms")]
    timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Any member that answers names the others, which are then asked, too. The exit status is 0 if \
all members of the latest view answer, messages can flow at all of them, all have their data, no subgroup has stalled for longer \
than --stalled-after because a member takes no messages, no disk or lack of processors holds one up, and there are not two groups \
with the cluster's name. A member that `fetches data` lacks the state of an object, or messages of its log: lines below the table say \
what, and name nearly full disks and clocks that differ by 5 seconds or more. The columns `sent` and `delivered` count since the member has joined. The column `held up by` names \
the member that others wait for, and why: its consumer (its application takes no messages), its disk, its processor (other programs \
have it), or its link. Of a group with shards, a second \
table has the messages that each member of a shard has sent and delivered, those that it has not delivered yet (pending), the latest \
timestamp of its shard (clock), and the ranks of the members for which messages wait there, with their number.

Examples:
  squall status --config squall.toml
  squall status -c squall.toml 192.0.2.2:7400 --json
  until squall status -c squall.toml; do sleep 1; done    (wait for a group)";

#[derive(Debug, Serialize)]
struct Line {
    address: String,
    /// What the member reports.
    status: Option<MemberStatus>,
    /// Why there is no answer.
    error: Option<String>,
    /// By how much its clock is ahead of this host's.
    #[serde(skip)]
    lead_millis: Option<i64>,
}

/// A subgroup that has stalled because a member takes no messages.
#[derive(Debug, PartialEq, Serialize)]
struct Stall {
    subgroup: String,
    /// The rank of the member that takes none.
    rank: u64,
    seconds: f64,
}

/// A member that is slow in a subgroup, so that others wait for it for most of the time.
#[derive(Debug, PartialEq, Serialize)]
struct SlowMember {
    subgroup: String,
    rank: u64,
    /// `consumer`, `disk`, `link` or `processor`.
    cause: String,
    /// Of the last second.
    percent: u32,
}

impl SlowMember {
    /// A link may be long, and a consumer that takes nothing is a stall.
    fn is_fault(&self) -> bool {
        ["disk", "processor"].contains(&self.cause.as_str())
    }
}

/// A view that its members are in, as far as they answer.
#[derive(Debug, PartialEq, Serialize)]
struct LiveView {
    view: u64,
    /// Of the members that answer.
    addresses: Vec<String>,
}

/// A member whose clock differs from that of another one.
#[derive(Debug, PartialEq, Serialize)]
struct ClockLead {
    rank: u64,
    /// How many milliseconds it is ahead; below 0: behind.
    millis: i64,
    /// The rank of the other member, which has the median of all clocks.
    reference: u64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    members: &'a [Line],
    /// More than one if members of the cluster are in groups apart.
    views: &'a [LiveView],
    stalls: &'a [Stall],
    slow: &'a [SlowMember],
    clocks: &'a [ClockLead],
    well: bool,
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<CommandVerdict> {
    let config = Config::load_for_client(&arguments.config)?;
    let pending = PendingNote::new("waiting for answers...".into());
    let answers = census::ask(&config, census::first(&config, &arguments.addresses), arguments.timeout)?;
    drop(pending);
    let mut lines = BTreeMap::new();
    for AnsweredInquiry { address, answer, lead_millis } in answers {
        let (status, error) = match answer {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error)),
        };
        // A member may be reached at several addresses.
        let key = status.as_ref().map_or_else(
            || (1, address.to_string()),
            |status| (0, format!("{:08} {}", status.node, status.group)),
        );
        lines.insert(key, Line { address: address.to_string(), status, error, lead_millis });
    }
    let lines: Vec<Line> = lines.into_values().collect();
    let views = live_views(&lines);
    let stalls = stalls(&lines);
    let slow = slow_members(&lines);
    let clocks = clock_leads(&lines);
    let has_stalled = |stall: &Stall| stall.seconds >= arguments.stalled_after.as_secs_f64();
    let well = is_well(&lines)
        && views.len() < 2
        && !stalls.iter().any(has_stalled)
        && !slow.iter().any(SlowMember::is_fault);
    if arguments.json {
        let report =
            Report { members: &lines, views: &views, stalls: &stalls, slow: &slow, clocks: &clocks, well };
        output::json(&report)?;
    }
    let is_answered = lines.iter().any(|line| line.status.is_some());
    // The reasons say what to do: start a member, or compare the secrets.
    ensure!(is_answered, "{}", reasons(&lines));
    if !arguments.json {
        print(&lines, &stalls, &slow);
        print_apart(&views);
        print_clocks(&clocks);
        print_errors(&lines);
    }
    Ok(if well { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// Why no member answers: each reason once, with the first address that has it.
fn reasons(lines: &[Line]) -> String {
    let mut reasons: Vec<&str> = lines.iter().filter_map(|line| line.error.as_deref()).collect();
    reasons.dedup();
    reasons.join("\nsquall: ")
}

/// Which member holds up which subgroup, and for how long: as the waiting members report, and as a member reports of itself.
fn stalls(lines: &[Line]) -> Vec<Stall> {
    let mut longest: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for status in lines.iter().filter_map(|line| line.status.as_ref()) {
        for subgroup in &status.subgroups {
            let held = subgroup.held_up_by.map(|held| (held.rank, held.millis));
            let own = subgroup.stood_still_millis.map(|millis| (status.rank, millis));
            for (rank, millis) in held.into_iter().chain(own) {
                let known = longest.entry((&subgroup.name, rank)).or_default();
                *known = millis.max(*known);
            }
        }
    }
    let stall = |((subgroup, rank), millis): ((&str, u64), u64)| Stall {
        subgroup: subgroup.to_owned(),
        rank,
        seconds: Duration::from_millis(millis).as_secs_f64(),
    };
    longest.into_iter().filter(|(_, millis)| *millis >= SHOWN_MILLIS).map(stall).collect()
}

/// Which member is slow in which subgroup, and why, as the member reports that waits for it the most.
fn slow_members(lines: &[Line]) -> Vec<SlowMember> {
    let mut most: BTreeMap<(&str, u64), &SlowestLine> = BTreeMap::new();
    for status in lines.iter().filter_map(|line| line.status.as_ref()) {
        for subgroup in &status.subgroups {
            let Some(slowest) = subgroup.slowest.as_ref().filter(|slowest| slowest.percent >= SHOWN_PERCENT)
            else {
                continue;
            };
            let known = most.entry((&subgroup.name, slowest.rank)).or_insert(slowest);
            if known.percent < slowest.percent {
                *known = slowest;
            }
        }
    }
    let slow = |((subgroup, rank), slowest): ((&str, u64), &SlowestLine)| SlowMember {
        subgroup: subgroup.to_owned(),
        rank,
        cause: slowest.cause.clone(),
        percent: slowest.percent,
    };
    most.into_iter().map(slow).collect()
}

/// Which clocks differ from the middle one.
fn clock_leads(lines: &[Line]) -> Vec<ClockLead> {
    let known = |line: &Line| Some((line.lead_millis?, line.status.as_ref()?.rank));
    let mut leads: Vec<(i64, u64)> = lines.iter().filter_map(known).collect();
    leads.sort_unstable();
    let Some((middle, reference)) = leads.get(leads.len().saturating_sub(1) / 2).copied() else {
        return Vec::new();
    };
    let lead = |(lead, rank): (i64, u64)| ClockLead { rank, millis: lead.saturating_sub(middle), reference };
    let differs = |lead: &ClockLead| described_lead(lead.millis).is_some();
    leads.into_iter().map(lead).filter(differs).collect()
}

/// Shorter pauses are normal.
const SHOWN_MILLIS: u64 = 500;
const SHOWN_PERCENT: u32 = 50;

/// The views in which messages flow, apart from one that some of its members have left already for a later one. There is one, or the
/// cluster has two groups.
fn live_views(lines: &[Line]) -> Vec<LiveView> {
    let answers = || lines.iter().filter_map(|line| Some((&line.address, line.status.as_ref()?)));
    let key = |status: &MemberStatus| {
        let nodes: Vec<u32> = status.members.iter().map(|member| member.node).collect();
        (status.group, status.view, nodes)
    };
    let mut views: BTreeMap<(u64, u64, Vec<u32>), Vec<String>> = BTreeMap::new();
    for (address, status) in answers().filter(|(_, status)| status.ready) {
        views.entry(key(status)).or_default().push(address.clone());
    }
    views.retain(|view, _| {
        let (group, number, nodes) = view;
        let has_left = |status: &MemberStatus| {
            status.group == *group && nodes.contains(&status.node) && status.view > *number
        };
        !answers().any(|(_, status)| has_left(status))
    });
    views.into_iter().map(|((_, view, _), addresses)| LiveView { view, addresses }).collect()
}

/// Says that the cluster has two groups, and where.
fn print_apart(views: &[LiveView]) {
    if views.len() < 2 {
        return;
    }
    let each =
        views.iter().map(|LiveView { view, addresses }| format!("view {view} at {}", addresses.join(", ")));
    output::note(format_args!(
        "squall: the cluster has {} groups apart from each other: {}. Each takes messages of its own: end the members of all but one of \
         them (`squall recover` says how far each log goes), and start these with empty folders",
        views.len(),
        each.collect::<Vec<_>>().join("; ")
    ));
}

/// Whether all members of the latest view report that they are in it, that messages can flow, and that they have their data.
fn is_well(lines: &[Line]) -> bool {
    let statuses: Vec<&MemberStatus> = lines.iter().filter_map(|line| line.status.as_ref()).collect();
    let Some(latest) = statuses.iter().max_by_key(|status| status.view) else { return false };
    latest.members.iter().all(|member| {
        let of_member = statuses.iter().find(|status| status.node == member.node);
        of_member
            .is_some_and(|status| status.ready && status.missing.is_empty() && status.view == latest.view)
    })
}

fn print(lines: &[Line], stalls: &[Stall], slow: &[SlowMember]) {
    let heads = ["address", "rank", "view", "members", "state", "sent", "delivered", "held up by"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for line in lines {
        let Some(status) = &line.status else {
            rows.push(vec![
                line.address.clone(),
                String::new(),
                String::new(),
                String::new(),
                "no answer".into(),
            ]);
            continue;
        };
        let members: Vec<String> = status.members.iter().map(|member| member.rank.to_string()).collect();
        let state = match (status.ready, status.without_majority) {
            (true, _) if !status.missing.is_empty() => "fetches data",
            (true, _) => "ready",
            (false, true) => "waits for a majority",
            (false, false) => "changes views",
        };
        rows.push(vec![
            line.address.clone(),
            status.rank.to_string(),
            status.view.to_string(),
            members.join(","),
            state.into(),
            status.subgroups.iter().map(|subgroup| subgroup.sent_total).sum::<u64>().to_string(),
            status.subgroups.iter().map(|subgroup| subgroup.delivered_total).sum::<u64>().to_string(),
            waits_for(status).iter().map(WaitedMember::to_string).collect::<Vec<_>>().join(", "),
        ]);
    }
    table::lines(&rows).iter().for_each(output::line);
    print_shards(lines);
    for Stall { subgroup, rank, seconds } in stalls {
        output::line(format!("{subgroup}: held up by member {rank} for {seconds:.1} s"));
    }
    for SlowMember { subgroup, rank, cause, percent } in slow {
        output::line(format!(
            "{subgroup}: waits for the {cause} of member {rank}, {percent} % of the last second"
        ));
    }
    for status in lines.iter().filter_map(|line| line.status.as_ref()) {
        if !status.missing.is_empty() {
            output::line(format!("member {}: {}", status.rank, status.missing));
        }
        if status.log.is_some_and(|log| log.is_short) {
            output::line(format!(
                "member {}: its disk is nearly full, and it takes no new durable messages",
                status.rank
            ));
        }
    }
}

fn print_clocks(clocks: &[ClockLead]) {
    for ClockLead { rank, millis, reference } in clocks {
        if let Some(lead) = described_lead(*millis) {
            output::line(format!("member {rank}: its clock is {lead} that of member {reference}"));
        }
    }
}

fn print_errors(lines: &[Line]) {
    let errors = lines.iter().filter_map(|line| line.error.as_ref());
    errors.for_each(output::note);
}

/// What the members of shards have delivered, and for whom their messages wait.
fn print_shards(lines: &[Line]) {
    let statuses = || lines.iter().filter_map(|line| line.status.as_ref());
    let heads = ["shard", "rank", "sent", "delivered", "pending", "clock", "waits for"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for status in statuses() {
        let Some(shards) = &status.shards else { continue };
        let Some(own) = &shards.own else { continue };
        let rank = |node| status.members.iter().find(|member| member.node == node).map(|member| member.rank);
        let waits = shards.lags.iter().filter_map(|lag| Some(format!("{}:{}", rank(lag.node)?, lag.behind)));
        rows.push(vec![
            own.name.clone(),
            format!("{}{}", status.rank, if own.leads { " leads" } else { "" }),
            shards.sent_total.to_string(),
            own.delivered_total.to_string(),
            own.pending.to_string(),
            own.clock.to_string(),
            waits.collect::<Vec<_>>().join(" "),
        ]);
    }
    rows[1..].sort();
    if rows.len() > 1 {
        table::lines(&rows).iter().for_each(output::line);
    }
}

/// The ranks of the members that this member waits for, and why.
pub(crate) fn waits_for(status: &MemberStatus) -> Vec<WaitedMember> {
    let mut found = BTreeSet::new();
    for subgroup in &status.subgroups {
        let held = subgroup.held_up_by.filter(|held| held.millis >= SHOWN_MILLIS);
        found.extend(held.map(|held| WaitedMember { rank: held.rank, cause: "consumer".into() }));
        let slowest = subgroup.slowest.as_ref().filter(|slowest| slowest.percent >= SHOWN_PERCENT);
        found
            .extend(slowest.map(|slowest| WaitedMember { rank: slowest.rank, cause: slowest.cause.clone() }));
    }
    found.into_iter().collect()
}

/// A member for which another one waits, in some subgroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct WaitedMember {
    pub(crate) rank: u64,
    /// `consumer`, `disk`, `link` or `processor`.
    pub(crate) cause: String,
}

impl fmt::Display for WaitedMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rank, self.cause)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a member of `view` answers, whose nodes are `members`.
    fn line(group: u64, view: u64, node: u32, members: &[u32]) -> Line {
        let member = |node: &u32| json!({ "node": node, "rank": node, "address": "" });
        let members: Vec<serde_json::Value> = members.iter().map(member).collect();
        let status = json!({
            "group": group, "node": node, "rank": node, "view": view, "ready": true, "without_majority": false,
            "missing": { "objects": [], "messages": null }, "members": members, "leaving": [], "holders": [],
            "subgroups": [], "changes": [], "traffic": [], "log": null, "shards": null, "clock_millis": 0,
        });
        let status = serde_json::from_value(status).expect("it is a status");
        Line { address: format!("10.0.0.{node}:7400"), status: Some(status), error: None, lead_millis: None }
    }

    fn live(lines: &[Line]) -> Vec<(u64, Vec<String>)> {
        live_views(lines).into_iter().map(|view| (view.view, view.addresses)).collect()
    }

    /// Members that were split, by a recovery for example, are in two views, and so are those of groups that began apart.
    #[test]
    fn groups_that_are_apart_are_found() {
        let split = [line(7, 1, 0, &[0, 1]), line(7, 1, 1, &[0, 1]), line(7, 2, 2, &[2])];
        let addresses = |nodes: &[u32]| nodes.iter().map(|node| format!("10.0.0.{node}:7400")).collect();
        assert_eq!(live(&split), [(1, addresses(&[0, 1])), (2, addresses(&[2]))]);
        let apart = [line(7, 0, 0, &[0]), line(8, 0, 0, &[0])];
        assert_eq!(live(&apart).len(), 2);
    }

    /// A member that has not noticed the next view yet, or is no member of it any more, is no second group.
    #[test]
    fn a_view_that_members_have_left_is_over() {
        let late = [line(7, 2, 0, &[0, 1]), line(7, 1, 1, &[0, 1, 2]), line(7, 1, 2, &[0, 1, 2])];
        assert_eq!(live(&late), [(2, vec!["10.0.0.0:7400".to_owned()])]);
        assert_eq!(live(&[line(7, 1, 0, &[0, 1]), line(7, 1, 1, &[0, 1])]).len(), 1);
    }
}
