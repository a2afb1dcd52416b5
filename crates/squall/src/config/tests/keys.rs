//! The keys as the page of the configuration describes them.

use super::super::keys::{self, KeyDefault, KeyScope};
use super::*;

/// Each described key is one that the parser takes, with the example that the page shows; the stated default is what holds
/// without the key; and members that differ in it refuse each other just if the page says so.
#[test]
fn keys_are_as_they_are_described() {
    let base = Config::parse(&of_four()).unwrap();
    let agreed = |config: &Config| {
        let plan = config.plan();
        (plan.cluster, plan.members, plan.contacts, plan.agreement)
    };
    for table in &keys::TABLES {
        for key in table.keys {
            if key.name.starts_with("secret") {
                // It is never shown, and proved before anything is compared.
                continue;
            }
            // A table that must have another key has it in any case.
            let is_inline = !["", "subgroups.NAME"].contains(&table.path);
            let required = table
                .keys
                .iter()
                .filter(|other| is_inline && other.default == KeyDefault::Required && other.name != key.name);
            let beside: String =
                required.map(|other| format!("{} = {}, ", other.name, other.example)).collect();
            let with = |value: &str| with_key(table.path, key.name, &beside, value);
            let base = match beside.strip_suffix(", ") {
                None => base.clone(),
                Some(beside) => {
                    let (name, value) = beside.split_once(" = ").unwrap();
                    Config::parse(&with_key(table.path, name, "", value)).unwrap()
                }
            };
            let config = Config::parse(&with(key.example));
            let config = config.unwrap_or_else(|error| panic!("{} in [{}]: {error}", key.name, table.path));
            assert_ne!(
                format!("{config:?}"),
                format!("{base:?}"),
                "{}: the example is the default",
                key.name
            );
            let is_own = agreed(&config) == agreed(&base);
            assert_eq!(is_own, key.scope == KeyScope::Member, "{} in [{}]", key.name, table.path);
            if let KeyDefault::Value(default) = key.default {
                let usual = Config::parse(&with(default)).unwrap();
                assert_eq!(format!("{usual:?}"), format!("{base:?}"), "{}", key.name);
            }
        }
    }
}

/// A configuration of four members with a value for a key, instead of the one that it may have, and with keys beside it.
fn with_key(table: &str, key: &str, beside: &str, value: &str) -> String {
    let line = match table {
        "" | "subgroups.NAME" => format!("{key} = {value}"),
        "genuine.shards.NAME" => format!("genuine.shards.some.{key} = {value}"),
        table => format!("{} = {{ {beside}{key} = {value} }}", table.rsplit('.').next().unwrap()),
    };
    let (mut group, mut subgroup) =
        (of_four().replace("[subgroups.orders]\n", ""), "[subgroups.orders]\n".to_owned());
    if table.starts_with("subgroups") {
        subgroup += &line;
    } else {
        // A key of another table may have the same name.
        let is_old = |line: &&str| table.is_empty() && line.starts_with(&format!("{key} ="));
        let lines = group.lines().filter(|line| !is_old(line));
        group = format!("{}\n{line}\n", lines.collect::<Vec<_>>().join("\n"));
    }
    if key == "subgroups" { group } else { group + &subgroup }
}

fn of_four() -> String {
    GOOD.replace("members = 3", "members = 4").replace("mode = \"atomic\"\n", "")
}
