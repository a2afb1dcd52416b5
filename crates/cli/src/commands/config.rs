//! `squall config`: checks a configuration, and describes all of its keys.

mod check;

use std::fmt::Write as _;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use squall::config::keys::{ConfigKey, KeyDefault, KeyScope, KeyTable, TABLES};
use squall::metrics::{self, METRICS, MetricDescription};
use squall_harness::terminal::{CommandVerdict, output};

/// Check a configuration, print an example, or list all keys or metrics
#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Check(check::CheckArguments),
    Example(ExampleArguments),
    Reference(ReferenceArguments),
    Metrics(MetricsArguments),
}

/// Print a complete configuration with a comment for each key
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  squall config example > squall.toml")]
struct ExampleArguments {}

/// Print the reference of all keys in Markdown, or as JSON
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  squall config reference | less\n  squall config reference --json")]
struct ReferenceArguments {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Print the list of a member's metrics in Markdown, or as JSON
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  squall config metrics | less\n  squall config metrics --json")]
struct MetricsArguments {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ConfigArguments) -> Result<CommandVerdict> {
    match &arguments.command {
        ConfigCommand::Check(arguments) => check::run(arguments),
        ConfigCommand::Example(_) => {
            output::write(&example());
            Ok(CommandVerdict::Good)
        }
        ConfigCommand::Reference(arguments) if arguments.json => {
            let tables: Vec<_> = TABLES.iter().map(table_json).collect();
            output::json(&tables)?;
            Ok(CommandVerdict::Good)
        }
        ConfigCommand::Reference(_) => {
            output::write(&reference());
            Ok(CommandVerdict::Good)
        }
        ConfigCommand::Metrics(arguments) if arguments.json => {
            let metrics: Vec<_> = METRICS.iter().map(metric_json).collect();
            output::json(&metrics)?;
            Ok(CommandVerdict::Good)
        }
        ConfigCommand::Metrics(_) => {
            output::write(&metrics::reference());
            Ok(CommandVerdict::Good)
        }
    }
}

/// A file with all keys: those that are needed, and the others behind `#` with their defaults.
fn example() -> String {
    let mut text = String::from(
        "# A configuration of Squall with all of its keys; docs/configuration.md says more about them.\n",
    );
    for table in &TABLES {
        // The subgroup of the example; a group needs one.
        let path = table.path.replace("NAME", "log");
        match table.path {
            "" => {}
            "subgroups.NAME" => add(&mut text, format_args!("\n[{path}]")),
            _ => add(&mut text, format_args!("\n# [{path}]")),
        }
        for key in table.keys.iter().filter(|key| !is_table(key)) {
            let is_needed = matches!(key.default, KeyDefault::Required) || NEEDED.contains(&key.name);
            let (sign, value) = match key.default {
                KeyDefault::Value(default) => ("# ", default),
                _ if is_needed && table.path.is_empty() => ("", key.example),
                _ => ("# ", key.example),
            };
            for line in comment(key) {
                add(&mut text, format_args!("# {line}"));
            }
            add(&mut text, format_args!("{sign}{} = {value}\n", key.name));
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Keys that the example needs, although another key or an option can replace each.
const NEEDED: [&str; 3] = ["secret", "listen", "contacts"];

/// Whether the key's value is a table, which has a part of its own in the file and on the page.
fn is_table(key: &ConfigKey) -> bool {
    key.takes.starts_with("a table")
}

/// What the example says about a key, in lines that fit 80 columns.
fn comment(key: &ConfigKey) -> Vec<String> {
    let default = match key.default {
        KeyDefault::Required => String::new(),
        KeyDefault::Value(_) => " This is the default.".into(),
        KeyDefault::Words(words) => format!(" Default: {words}."),
    };
    let scope = if key.scope == KeyScope::Member { " Each member has its own." } else { "" };
    let mut lines = Vec::new();
    for paragraph in [key.meaning.to_owned(), format!("Values: {}.{default}{scope}", key.takes)] {
        lines.push(String::new());
        for word in paragraph.split(' ') {
            let line = lines.last_mut().expect("there is one");
            if !line.is_empty() && line.len() + 1 + word.len() > COMMENT_COLUMNS {
                lines.push(word.to_owned());
            } else {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(word);
            }
        }
    }
    lines
}

/// Without the sign in front of a comment.
const COMMENT_COLUMNS: usize = 78;

/// The page docs/configuration.md.
fn reference() -> String {
    let mut text = String::from(HEAD);
    for table in &TABLES {
        match table.path {
            "" => add(&mut text, format_args!("\n## In front of all tables\n")),
            path => add(&mut text, format_args!("\n## [{path}]\n")),
        }
        add(&mut text, format_args!("{}\n", table.meaning));
        add(
            &mut text,
            format_args!("| key | takes | default | must agree | meaning |\n|---|---|---|---|---|"),
        );
        for key in table.keys {
            let default = match key.default {
                KeyDefault::Required => "required".into(),
                KeyDefault::Value(value) => format!("`{value}`"),
                KeyDefault::Words(words) => words.into(),
            };
            let agrees = if key.scope == KeyScope::Group { "yes" } else { "no" };
            let ConfigKey { name, takes, meaning, .. } = key;
            add(&mut text, format_args!("| `{name}` | {takes} | {default} | {agrees} | {meaning} |"));
        }
    }
    text
}

const HEAD: &str = "# Configuration

A group is described by one TOML file, which is the same at all members except for the keys that need not agree.
`squall config example` prints a file with all keys, and `squall config check FILE` checks one and says what it means. This page
is the output of `squall config reference`; a test compares them.

A key that must agree has the same value at all members; members that differ in it refuse each other, and say in which key. `members`
and `contacts` must agree at the first start of a group only: a process that joins one that runs may have others. Sizes are numbers of
bytes, or texts with KB, MB, GB (powers of 1000), KiB, MiB or GiB (of 1024). Times are texts with `us`, `ms`, `s`, `m`, `h` or
`d`, or numbers of milliseconds if the name of the key ends in `_ms`; options of commands that take a TIME are written alike.
";

fn table_json(table: &KeyTable) -> serde_json::Value {
    let key = |key: &ConfigKey| {
        let default = match key.default {
            KeyDefault::Value(value) => Some(value),
            KeyDefault::Required | KeyDefault::Words(_) => None,
        };
        json!({
            "key": key.name,
            "takes": key.takes,
            "required": key.default == KeyDefault::Required,
            "default": default,
            "must_agree": key.scope == KeyScope::Group,
            "meaning": key.meaning,
        })
    };
    json!({ "table": table.path, "meaning": table.meaning, "keys": table.keys.iter().map(key).collect::<Vec<_>>() })
}

fn metric_json(metric: &MetricDescription) -> serde_json::Value {
    let MetricDescription { name, kind, labels, help, .. } = metric;
    json!({ "metric": name, "kind": kind.name(), "labels": labels, "meaning": help })
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall::Config;

    #[test]
    fn the_example_can_be_used_and_has_all_keys() {
        let text = example();
        let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((config.members, config.subgroups.len()), (3, 1));
        for key in TABLES.iter().flat_map(|table| table.keys).filter(|key| !is_table(key)) {
            let is_line = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{} = ", key.name));
            assert!(text.lines().any(is_line), "{}", key.name);
        }
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    /// Each line behind `#` that is a key has a value that can be used.
    #[test]
    fn what_the_example_leaves_out_can_be_put_in() {
        let text = example();
        let is_key = |line: &str| {
            let key = line.strip_prefix("# ").and_then(|line| line.split_once(" = ")).map(|(key, _)| key);
            key.is_some_and(|key| !key.contains(' ') && key != "secret_file")
        };
        let put_in = text.lines().map(|line| {
            let is_header = line.starts_with("# [");
            if is_key(line) || is_header { line.trim_start_matches("# ") } else { line }
        });
        let text = put_in.collect::<Vec<_>>().join("\n");
        Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }

    #[test]
    fn the_pages_are_what_the_code_says() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let found = std::fs::read_to_string(page).unwrap_or_default();
        assert!(found == reference(), "write it again: squall config reference > docs/configuration.md");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let found = std::fs::read_to_string(page).unwrap_or_default();
        assert!(found == metrics::reference(), "write it again: squall config metrics > docs/metrics.md");
    }
}
