//! `squall config check`: whether a configuration can be used, and what it means.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use squall::Config;
use squall::config::keys::{ConfigKey, KeyDefault, KeyTable, TABLES};
use squall::config::{
    Address, DeliveryMode, Encryption, GivenValue, PartitionSafety, Ranks, SlowConsumer, SubgroupConfig,
    Transport, given_values,
};
use squall_harness::terminal::{CommandVerdict, escaped_text, output, units};

use super::is_table;

/// Check a configuration, and say what it means: the exit status is 1 if it cannot be used
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArguments {
    /// The file
    file: PathBuf,
    /// Where the member will be reached, instead of `listen` in the file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Prints the members, the transport and the subgroups, then every key with its value and the line that gives \
it, or `default`. The secret is not printed. Of a file that cannot be used, all errors are printed, each with its line and key.

Examples:
  squall config check squall.toml
  squall config check squall.toml --listen 192.0.2.1:7400 --json";

pub(super) fn run(arguments: &CheckArguments) -> Result<CommandVerdict> {
    let config = Config::load_for(&arguments.file, arguments.listen.clone(), None);
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            let errors = Config::errors_in(&arguments.file, arguments.listen.as_ref());
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            if arguments.json {
                let first = error.to_string();
                let result =
                    json!({ "file": arguments.file, "valid": false, "error": first, "errors": errors });
                output::json(&result)?;
                return Ok(CommandVerdict::Bad);
            }
            // The last one is printed as that of the command.
            let (last, others) = errors.split_last().ok_or(error)?;
            others.iter().for_each(|error| output::note(escaped_text(error)));
            bail!("{last}");
        }
    };
    let text = std::fs::read_to_string(&arguments.file)
        .with_context(|| format!("cannot read {}", arguments.file.display()))?;
    let keys = key_lines(&config, &given_values(&text)?, arguments.listen.as_ref());
    if arguments.json {
        let mut meaning = group_json(&config);
        meaning["file"] = json!(arguments.file);
        meaning["keys"] = json!(keys);
        output::json(&meaning)?;
    } else {
        output::line(format_args!("{} can be used.", arguments.file.display()));
        output::write(&meaning(&config));
        output::write(&key_table(&keys));
    }
    Ok(CommandVerdict::Good)
}

/// What the configuration means, in paragraphs.
fn meaning(config: &Config) -> String {
    let mut text = format!("\nThe group {}\n", config.cluster);
    let mut row = |name: &str, value: &str| {
        writeln!(text, "  {name:<12}{value}").expect("a String takes all");
    };
    row("members", &members(config));
    let rank = config.rank.map_or("any free rank".into(), |rank| format!("rank {rank}"));
    row("this member", &format!("listens at {}, with {rank}", config.listen));
    row("contacts", &contacts(config));
    row("transport", &transport(config));
    row("failures", &failures(config));
    if let Some(file) = &config.flight_record {
        row("flight record", &format!("{}, when this member ends", file.display()));
    }
    if let Some(metrics) = &config.metrics {
        row("metrics", &format!("http://{}/metrics, for anyone who can reach that address", metrics.listen));
    }
    for (name, subgroup) in &config.subgroups {
        write!(text, "\nThe subgroup {name}\n").expect("a String takes all");
        for (name, value) in subgroup_rows(subgroup, config.members) {
            writeln!(text, "  {name:<12}{value}").expect("a String takes all");
        }
    }
    if let Some(genuine) = &config.genuine {
        text.push_str("\nShards, to which messages are sent in one order\n");
        for (name, ranks) in &genuine.shards {
            let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            writeln!(text, "  {name:<12}ranks {}", ranks.join(", ")).expect("a String takes all");
        }
    }
    text
}

/// The number of members that may fail at once, so that the others are still a majority.
const fn losses(members: usize) -> usize {
    (members - 1) / 2
}

fn members(config: &Config) -> String {
    let count = config.members;
    let start = if count == 1 { "1 process".into() } else { format!("{count} processes") };
    match (config.partition_safety, count) {
        (PartitionSafety::Off, _) => {
            format!("{start} at the start; any part of them continues without the others")
        }
        (PartitionSafety::Majority, 1) => format!("{start} at the start; others can join"),
        (PartitionSafety::Majority, 2) => {
            format!("{start} at the start; none of them may fail, since 1 of 2 is no majority")
        }
        (PartitionSafety::Majority, _) => {
            let lost = losses(count);
            format!(
                "{start} at the start; {lost} of them may fail at once, since {} are a majority",
                count - lost
            )
        }
    }
}

fn contacts(config: &Config) -> String {
    let names: Vec<String> = config.contacts.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let count = config.contacts.len();
    let majority = count / 2 + 1;
    match count {
        0 => "none: this member brings the others together".into(),
        1 => format!("{names}, which must run at the first start"),
        2 => format!("{names}; the first of them must run at the first start"),
        _ if config.members < majority => format!("{names}; the first of them must run at the first start"),
        _ if count.is_multiple_of(2) => {
            format!(
                "{names}; at the first start {majority} of them must run, or {} with the first",
                count / 2
            )
        }
        _ => format!("{names}; at the first start {majority} of them must run"),
    }
}

fn transport(config: &Config) -> String {
    let encrypted = match config.encryption {
        Encryption::Off => "not encrypted",
        Encryption::On => "encrypted between hosts",
        Encryption::Always => "encrypted, also within a host",
    };
    match config.transport {
        Transport::Shm => "shared memory: all members are on one host".into(),
        Transport::Tcp => format!("TCP, {encrypted}"),
        Transport::Verbs => "RDMA, which is not encrypted".into(),
        Transport::Auto => {
            format!("for each pair the fastest of shared memory, RDMA and TCP; TCP is {encrypted}")
        }
    }
}

fn failures(config: &Config) -> String {
    let part = match config.partition_safety {
        PartitionSafety::Majority => "only a majority continues",
        PartitionSafety::Off => "both parts of a partitioned network continue",
    };
    match config.suspicion_after {
        Some(silence) => format!("a member that is silent for {silence:?} is excluded; {part}"),
        None => format!("a member is excluded when its connections break, not when it is silent; {part}"),
    }
}

fn subgroup_rows(subgroup: &SubgroupConfig, members: usize) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("members", ranks(&subgroup.members)),
        ("senders", ranks(&subgroup.senders)),
        ("delivery", delivery(subgroup.mode).into()),
        ("messages", messages(subgroup)),
    ];
    if let Some(large) = subgroup.large_max {
        let large = units::bytes(large as f64);
        rows.push(("large", format!("messages of up to {large}, outside the window and in the same order")));
    }
    rows.push(("memory", memory(subgroup, members)));
    if subgroup.shards > 1 || subgroup.replicas > 0 {
        let replicas = match subgroup.replicas {
            0 => "all its members".into(),
            replicas => units::things(replicas as u64, "member"),
        };
        rows.push(("shards", format!("{}, each held by {replicas}", subgroup.shards)));
    }
    if subgroup.slow_consumer == SlowConsumer::Exclude {
        let after = format!("is excluded after {:?}", subgroup.slow_after);
        rows.push(("slow member", format!("a member that takes no messages while others wait {after}")));
    }
    rows
}

fn ranks(ranks: &Ranks) -> String {
    match ranks {
        Ranks::All => "all".into(),
        Ranks::These(ranks) => {
            let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, ranks.join(", "))
        }
    }
}

const fn delivery(mode: DeliveryMode) -> &'static str {
    match mode {
        DeliveryMode::Atomic => "atomic: in one total order, when all members have a message",
        DeliveryMode::Unordered => "unordered: at once, in each sender's order",
        DeliveryMode::Raw => "raw: at once, without any guarantee when a member dies",
        DeliveryMode::Durable => "durable: in one total order, when a message is on the disks of all members",
    }
}

fn messages(subgroup: &SubgroupConfig) -> String {
    let bytes = |bytes: usize| units::bytes(bytes as f64);
    format!(
        "of up to {}; a sender has at most {} and {} of them under way",
        bytes(subgroup.message_max),
        subgroup.window,
        bytes(subgroup.window_bytes)
    )
}

/// The memory that a member reserves for the windows of a subgroup, or of one shard.
fn memory(subgroup: &SubgroupConfig, members: usize) -> String {
    let settings = subgroup.settings(members);
    let large = settings.large.map_or(0, |large| large.window_bytes + large.message_max);
    let each = settings.window_bytes + large;
    let senders = settings.senders.len();
    let shard = if subgroup.shards > 1 { " of each shard that it holds" } else { "" };
    let bytes = |bytes: usize| units::bytes(bytes as f64);
    format!(
        "{} at each member: {} for each of {}{shard}",
        bytes(each * senders),
        bytes(each),
        units::things(senders as u64, "sender")
    )
}

fn group_json(config: &Config) -> Value {
    let subgroup = |(name, subgroup): (&String, &SubgroupConfig)| {
        let ranks = |ranks: &Ranks| ranks.among(&(0..config.members).collect::<Vec<_>>());
        let settings = subgroup.settings(config.members);
        let value = json!({
            "members": ranks(&subgroup.members),
            "senders": ranks(&subgroup.senders),
            "mode": format!("{:?}", subgroup.mode).to_lowercase(),
            "window": subgroup.window,
            "message_max": subgroup.message_max,
            "window_bytes": subgroup.window_bytes,
            "large_max": subgroup.large_max,
            "shards": subgroup.shards,
            "replicas": subgroup.replicas,
            "senders_at_start": settings.senders.len(),
        });
        (name.clone(), value)
    };
    json!({
        "valid": true,
        "error": null,
        "cluster": config.cluster,
        "members": config.members,
        "losses_at_once": match config.partition_safety {
            PartitionSafety::Majority => losses(config.members),
            PartitionSafety::Off => config.members - 1,
        },
        "listen": config.listen.to_string(),
        "rank": config.rank,
        "contacts": config.contacts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "transport": format!("{:?}", config.transport).to_lowercase(),
        "encryption": format!("{:?}", config.encryption).to_lowercase(),
        "flight_record": config.flight_record,
        "metrics": config.metrics.as_ref().map(|metrics| metrics.listen.to_string()),
        "suspicion_after_ms": config.suspicion_after.map(|silence| silence.as_millis()),
        "genuine_shards": config.genuine.as_ref().map(|genuine| &genuine.shards),
        "subgroups": config.subgroups.iter().map(subgroup).collect::<serde_json::Map<_, _>>(),
    })
}

/// A key of the configuration, with its value.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct KeyLine {
    /// As in brackets; empty in front of all tables.
    table: String,
    key: &'static str,
    /// As the file has it, or as the reference describes the default.
    value: String,
    /// Whether the value is a default.
    default: bool,
    /// The line of the file; none for defaults and options.
    line: Option<usize>,
}

impl KeyLine {
    fn origin(&self) -> String {
        match self.line {
            Some(line) => format!("line {line}"),
            None if self.default => "default".into(),
            None => "--listen".into(),
        }
    }
}

/// All keys of the tables that the configuration has: those of the group, then those of each subgroup and each shard.
fn key_lines(config: &Config, given: &[GivenValue], listen: Option<&Address>) -> Vec<KeyLine> {
    let (named, of_group): (Vec<&KeyTable>, Vec<&KeyTable>) =
        TABLES.iter().partition(|table| table.path.contains(NAME));
    let is_there = |table: &&&KeyTable| table.path != "genuine" || config.genuine.is_some();
    let group = of_group.iter().filter(is_there).map(|table| (table.path.to_owned(), table.keys));
    let of = |kind: &'static str, name: String| {
        let tables = named.iter().filter(move |table| table.path.starts_with(kind));
        tables.map(move |table| (table.path.replace(NAME, &name), table.keys))
    };
    let subgroups = config.subgroups.keys().flat_map(|name| of("subgroups.", name.clone()));
    let shards = config.genuine.iter().flat_map(|genuine| genuine.shards.keys());
    let shards = shards.flat_map(|name| of("genuine.", name.clone()));
    let mut lines = Vec::new();
    for (path, keys) in group.chain(subgroups).chain(shards) {
        let keys = keys.iter().filter(|key| !is_table(key));
        lines.extend(keys.filter_map(|key| key_line(&path, key, given, listen)));
    }
    lines
}

/// Stands for the name of a subgroup or a shard in the path of a table.
const NAME: &str = "NAME";

fn key_line(table: &str, key: &ConfigKey, given: &[GivenValue], listen: Option<&Address>) -> Option<KeyLine> {
    let line =
        |value: String, default, line| KeyLine { table: table.into(), key: key.name, value, default, line };
    if let Some(listen) = listen.filter(|_| table.is_empty() && key.name == "listen") {
        return Some(line(format!("\"{listen}\""), false, None));
    }
    if let Some(given) = given.iter().find(|given| given.table == table && given.key == key.name) {
        return Some(line(given.value.clone(), false, Some(given.line)));
    }
    match key.default {
        KeyDefault::Value(value) => Some(line(value.into(), true, None)),
        // The secret, of which another key gives the value.
        KeyDefault::Words(_) if key.name.starts_with("secret") => None,
        KeyDefault::Words(words) => Some(line(words.into(), true, None)),
        KeyDefault::Required => None,
    }
}

/// The keys as columns: a heading for each table, then key, origin and value.
fn key_table(lines: &[KeyLine]) -> String {
    let mut text = String::from("\nAll keys, and where their values come from\n");
    for rows in lines.chunk_by(|a, b| a.table == b.table) {
        if !rows[0].table.is_empty() {
            writeln!(text, "  [{}]", rows[0].table).expect("a String takes all");
        }
        for row in rows {
            writeln!(text, "  {:<20}{:<10}{}", row.key, row.origin(), row.value).expect("a String takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
cluster = "x"
secret = "never print this"
contacts = [
    "10.0.0.1:7400", # the first
    "10.0.0.2:7400",
]
listen = "10.0.0.1:7400"
members = 5
encryption = "off"

[subgroups.orders]
[subgroups."a.b"]
members = [0, 2]
batching = { send = false }

[genuine.shards.accounts]
members = [0, 1]
"#;

    /// Each key is there once for each table, with its line or its default.
    #[test]
    fn keys_have_the_values_of_the_file_or_their_defaults() {
        let config = Config::parse(TEXT).unwrap();
        let given = given_values(TEXT).unwrap();
        let lines = key_lines(&config, &given, Some(&"unix:@other".parse().unwrap()));
        let of = |table: &str, key: &str| {
            let mut found = lines.iter().filter(|line| line.table == table && line.key == key);
            let line = found.next().map(|line| (line.value.as_str(), line.origin()));
            assert!(found.next().is_none(), "{key} is there twice");
            line
        };
        let given = |value, line: usize| Some((value, format!("line {line}")));
        let default = |value| Some((value, "default".to_owned()));
        assert_eq!(of("", "cluster"), given("\"x\"", 2));
        assert_eq!(of("", "secret"), given("…", 3));
        assert_eq!(of("", "secret_file"), None);
        assert_eq!(of("", "contacts"), given("[\"10.0.0.1:7400\", \"10.0.0.2:7400\"]", 4));
        assert_eq!(of("", "listen"), Some(("\"unix:@other\"", "--listen".into())));
        assert_eq!(of("timeouts", "join"), default("\"60s\""));
        assert_eq!(of("subgroups.orders", "members"), default("\"all\""));
        assert_eq!(of("subgroups.a.b", "members"), given("[0, 2]", 14));
        assert_eq!(of("subgroups.a.b.batching", "send"), given("false", 15));
        assert_eq!(of("subgroups.a.b.batching", "receive"), default("true"));
        assert_eq!(of("genuine.shards.accounts", "members"), given("[0, 1]", 18));
        assert_eq!(of("genuine", "window"), default("64"));
        assert!(!key_table(&lines).contains("never print this"));
    }

    /// The words for a group of each size, and for each number of contacts.
    #[test]
    fn the_meaning_of_members_and_contacts() {
        let mut config = Config::parse(TEXT).unwrap();
        let mut words = |count: usize, of_contacts: usize| {
            config.members = count;
            config.contacts = (0..of_contacts).map(|_| "unix:@a".parse().unwrap()).collect();
            (members(&config), contacts(&config))
        };
        let (one, none) = words(1, 0);
        assert_eq!(one, "1 process at the start; others can join");
        assert_eq!(none, "none: this member brings the others together");
        let (two, first) = words(2, 2);
        assert!(
            two.contains("none of them may fail")
                && first.ends_with("; the first of them must run at the first start")
        );
        let (four, half) = words(4, 4);
        assert!(four.ends_with("1 of them may fail at once, since 3 are a majority"), "{four}");
        assert!(half.ends_with("3 of them must run, or 2 with the first"), "{half}");
        let (five, three) = words(5, 3);
        assert!(five.contains("2 of them may fail at once, since 3 are"), "{five}");
        assert!(three.ends_with("at the first start 2 of them must run"), "{three}");
        assert!(words(1, 5).1.ends_with("the first of them must run at the first start"));
    }
}
