//! `squall trace`: what the members of a group have noticed lately, from their flight recorders.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use squall::config::{Address, quantity};
use squall::{Config, FlightLine, FlightRecord};
use squall_harness::terminal::{CommandVerdict, PendingNote, output, units};

use crate::census::{self, AnsweredInquiry};

/// Show what the members of a running group have noticed lately: views, suspicions, stalls
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Members to ask first, instead of `contacts` in the file
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<Address>,
    /// Write a trace into this file, for ui.perfetto.dev or chrome://tracing, instead of printing lines
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "1500ms")]
    timeout: Duration,
    /// Print the records as JSON
    #[arg(long, conflicts_with = "out")]
    json: bool,
}

const EXAMPLES: &str =
    "Each member keeps its latest events, whether anyone asks or not. Any member that answers names the others, which are then asked, \
too. The lines of all are in one order, by the clocks of their hosts. The exit status is 0 if all members answer. A member that has \
ended does not answer: `squall node --trace FILE`, and `flight_record` in the configuration, write what it had into a file.

Examples:
  squall trace --config squall.toml
  squall trace -c squall.toml --out views.json
  squall trace -c squall.toml 192.0.2.2:7400 --json
  curl http://127.0.0.1:9464/trace >member.json    (one member, by [metrics])";

pub(crate) fn run(arguments: &TraceArguments) -> Result<CommandVerdict> {
    let config = Config::load_for_client(&arguments.config)?;
    let pending = PendingNote::new("waiting for answers...".into());
    let answers = census::ask(&config, census::first(&config, &arguments.addresses), arguments.timeout)?;
    let mut records: Vec<FlightRecord> = Vec::new();
    let mut silent = Vec::new();
    for AnsweredInquiry { address, answer, .. } in answers {
        let asked = || squall::ask_flight_record(&config, &address).map_err(|error| error.to_string());
        match answer.and_then(|_| asked()) {
            // A member may be reached at several addresses.
            Ok(record) if records.iter().any(|other| other.node == record.node) => {}
            Ok(record) => records.push(record),
            Err(error) => silent.push(error),
        }
    }
    drop(pending);
    silent.dedup();
    silent.iter().for_each(|error| output::note(format_args!("squall: {error}")));
    ensure!(!records.is_empty(), "no member has answered");
    records.sort_by_key(|record| (record.rank, record.node));
    if arguments.json {
        output::json(&records)?;
    } else if let Some(file) = &arguments.out {
        let trace = squall::trace::of_records(&records);
        std::fs::write(file, trace).with_context(|| format!("failed to write {}", file.display()))?;
        let members = units::things(records.len() as u64, "member");
        output::line(format_args!(
            "The trace of {members} is in {}: open it in ui.perfetto.dev.",
            file.display()
        ));
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        lines(&records, now).iter().for_each(output::line);
    }
    Ok(if silent.is_empty() { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// The events of all members in the order of time. The steps of view changes are for drawings: the events say the same and more.
fn lines(records: &[FlightRecord], now_nanos: u64) -> Vec<String> {
    let of_record = |record: &FlightRecord| {
        let rank = record.rank;
        record.lines.clone().into_iter().map(move |line| (rank, line))
    };
    let mut all: Vec<(u64, FlightLine)> = records.iter().flat_map(of_record).collect();
    all.retain(|(_, line)| line.lasted_nanos.is_none());
    all.sort_by_key(|(_, line)| line.unix_nanos);
    let line = |(rank, line): &(u64, FlightLine)| {
        let ago = Duration::from_nanos(now_nanos.saturating_sub(line.unix_nanos));
        format!("{:>14.6} s ago  rank {rank:<2}  {}", ago.as_secs_f64(), line.text)
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_all_members_are_in_one_order() {
        let text = r#"[
            {"node": 7, "rank": 0, "missed": 0, "ended": null, "messages": [], "lines": [
                {"unix_nanos": 1000, "lasted_nanos": 5, "kind": "wedged", "text": "view 1"},
                {"unix_nanos": 9000, "lasted_nanos": null, "kind": "wedges", "text": "sends nothing"}]},
            {"node": 8, "rank": 12, "missed": 0, "ended": null, "messages": [], "lines": [
                {"unix_nanos": 4000, "lasted_nanos": null, "kind": "accuses", "text": "does not hear rank 0"}]}
        ]"#;
        let records: Vec<FlightRecord> = serde_json::from_str(text).expect("it is a list of records");
        assert_eq!(
            lines(&records, 2_000_004_000),
            [
                "      2.000000 s ago  rank 12  does not hear rank 0",
                "      1.999995 s ago  rank 0   sends nothing"
            ]
        );
    }
}
