//! `squall status`: how the members are, as they say themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::Address;
use squall::{Config, MemberStatus};
use squall_harness::terminal::{CommandVerdict, output, table};

/// Ask the members of a group that runs how they are
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Members to ask first, instead of `contacts` in the file
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<Address>,
    /// A subgroup that has stood still for so many seconds, with messages waiting, is not well
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    stalled_after: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Any member that answers tells who the others are, and they are asked, too. The exit status is 0 if \
all members of the latest view answer, messages can flow at all of them, and no subgroup has stood still for longer \
than --stalled-after because a member takes no messages. The column `held up by` names that member.

Examples:
  squall status --config squall.toml
  squall status -c squall.toml 192.0.2.2:7400 --json";

#[derive(Debug, Serialize)]
struct Line {
    address: String,
    /// What the member says.
    status: Option<MemberStatus>,
    /// Why there is no answer.
    error: Option<String>,
}

/// A subgroup that stands still since a member takes no messages.
#[derive(Debug, PartialEq, Serialize)]
struct Stall {
    subgroup: String,
    /// The rank of the member that takes none.
    rank: u64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    members: &'a [Line],
    stalls: &'a [Stall],
    well: bool,
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<CommandVerdict> {
    let config = Config::load(&arguments.config)?;
    let first =
        if arguments.addresses.is_empty() { config.contacts.clone() } else { arguments.addresses.clone() };
    let first = if first.is_empty() { vec![config.listen.clone()] } else { first };
    let mut lines = BTreeMap::new();
    for (address, answer) in ask(&config, first)? {
        let (status, error) = match answer {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error)),
        };
        // A member may be reached at several addresses.
        let key = status
            .as_ref()
            .map_or_else(|| (1, address.to_string()), |status| (0, format!("{:08}", status.node)));
        lines.insert(key, Line { address: address.to_string(), status, error });
    }
    let lines: Vec<Line> = lines.into_values().collect();
    let stalls = stalls(&lines);
    let well = is_well(&lines) && stalls.iter().all(|stall| stall.seconds < arguments.stalled_after);
    if arguments.json {
        output::line(serde_json::to_string(&Report { members: &lines, stalls: &stalls, well })?);
    } else {
        print(&lines, &stalls);
    }
    ensure!(lines.iter().any(|line| line.status.is_some()), "no member answers: is the group running?");
    Ok(if well { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// An address that was asked, and what came of it.
type Answered = (Address, Result<MemberStatus, String>);

/// Asks `first`, and all members that any of them names: all at once, so that a member that hangs costs the patience for
/// one answer, once.
fn ask(config: &Config, first: Vec<Address>) -> Result<Vec<Answered>> {
    let (answers, heard) = channel();
    let (mut asked, mut to_ask, mut found) = (BTreeMap::new(), first, Vec::new());
    let mut deadline = Instant::now();
    loop {
        for address in to_ask.drain(..) {
            if asked.contains_key(&address.to_string()) {
                continue;
            }
            asked.insert(address.to_string(), address.clone());
            deadline = Instant::now() + ANSWER_PATIENCE;
            let (config, answers) = (config.clone(), answers.clone());
            // It may outlive the command, when nobody hears it any more.
            std::thread::Builder::new().spawn(move || {
                let answer = squall::ask_status(&config, &address).map_err(|error| error.to_string());
                let _ = answers.send((address, answer));
            })?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((address, answer)) = heard.recv_timeout(left) else { break };
        if let Ok(status) = &answer {
            to_ask.extend(status.members.iter().filter_map(|member| member.address.parse().ok()));
        }
        found.push((address, answer));
        let is_heard = |address: &Address| found.iter().any(|(other, _)| other == address);
        if to_ask.iter().all(|address| asked.contains_key(&address.to_string()))
            && asked.values().all(is_heard)
        {
            return Ok(found);
        }
    }
    let late =
        || Err(format!("no answer within {:.1} s: it hangs, or is far away", ANSWER_PATIENCE.as_secs_f64()));
    let silent = asked.into_values().filter(|address| found.iter().all(|(other, _)| other != address));
    let silent: Vec<Answered> = silent.map(|address| (address, late())).collect();
    found.extend(silent);
    Ok(found)
}

/// For one answer; members answer within milliseconds.
const ANSWER_PATIENCE: Duration = Duration::from_millis(1500);

/// Who holds which subgroup up, and for how long: as those say who wait, and as a member says of itself.
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

/// A pause as short as that is none.
const SHOWN_MILLIS: u64 = 500;

/// Whether all members of the latest view say that they are in it, and that messages can flow.
fn is_well(lines: &[Line]) -> bool {
    let statuses: Vec<&MemberStatus> = lines.iter().filter_map(|line| line.status.as_ref()).collect();
    let Some(latest) = statuses.iter().max_by_key(|status| status.view) else { return false };
    latest.members.iter().all(|member| {
        let of_member = statuses.iter().find(|status| status.node == member.node);
        of_member.is_some_and(|status| status.ready && status.view == latest.view)
    })
}

fn print(lines: &[Line], stalls: &[Stall]) {
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
        let state = if status.ready { "ready" } else { "changes views" };
        rows.push(vec![
            line.address.clone(),
            status.rank.to_string(),
            status.view.to_string(),
            members.join(","),
            state.into(),
            status.subgroups.iter().map(|subgroup| subgroup.sent).sum::<u64>().to_string(),
            status.subgroups.iter().map(|subgroup| subgroup.delivered).sum::<u64>().to_string(),
            held_up_by(status),
        ]);
    }
    table::lines(&rows).iter().for_each(output::line);
    for Stall { subgroup, rank, seconds } in stalls {
        output::line(format!("{subgroup}: held up by member {rank} for {seconds:.1} s"));
    }
    let errors = lines.iter().filter_map(|line| line.error.as_ref());
    errors.for_each(output::note);
}

/// The ranks of those that this member waits for.
fn held_up_by(status: &MemberStatus) -> String {
    let held = status.subgroups.iter().filter_map(|subgroup| subgroup.held_up_by);
    let ranks: BTreeSet<u64> =
        held.filter(|held| held.millis >= SHOWN_MILLIS).map(|held| held.rank).collect();
    ranks.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}
