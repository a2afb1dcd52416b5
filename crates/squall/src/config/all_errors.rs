//! All errors of a configuration at once: what is wrong is left out, or assumed, and the rest is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::error::ConfigError;
use super::file::{self, OwnSettings};
use super::keys::{KeyTable, TABLES};
use super::table::ConfigText;

/// What is not read as it is, because an error in it is known.
#[derive(Debug, Default)]
pub(super) struct Leniency {
    /// Keys that are left out, each with the line of its value.
    left_out: BTreeSet<(usize, String)>,
    /// Tables that are left out, in brackets.
    tables: BTreeSet<String>,
    /// Values of required keys that are missing, by table and key.
    assumed: BTreeMap<(String, String), Spanned<DeValue<'static>>>,
}

impl Leniency {
    /// Returns whether a key is left out whose value is at these bytes of `text`.
    pub(super) fn leaves_out(&self, text: &str, key: &str, value: Range<usize>) -> bool {
        let line =
            |offset: usize| 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
        (line(value.start)..=line(value.end)).any(|line| self.left_out.contains(&(line, key.to_owned())))
    }

    pub(super) fn leaves_out_table(&self, table: &str) -> bool {
        self.tables.contains(table)
    }

    /// Returns the value that is assumed for a key.
    pub(super) fn assumed(&self, table: &str, key: &str) -> Option<&Spanned<DeValue<'static>>> {
        self.assumed.get(&(table.to_owned(), key.to_owned()))
    }

    /// Has the text be read without the error; returns whether it is one of its own, and whether there may be others.
    fn note(&mut self, error: &ConfigError) -> (bool, bool) {
        let is_first = self.left_out.is_empty() && self.tables.is_empty() && self.assumed.is_empty();
        match error {
            ConfigError::UnknownKey { place, key, .. } | ConfigError::Value { place, key, .. } => {
                (true, self.left_out.insert((place.line.unwrap_or(0), key.clone())))
            }
            ConfigError::Missing { key, table, .. } => {
                let follows = self.left_out.iter().any(|(_, left_out)| left_out == key);
                let value = example(table, key).and_then(|example| DeValue::parse(example).ok());
                let place = (table.clone(), (*key).to_owned());
                (!follows, value.is_some_and(|value| self.assumed.insert(place, value).is_none()))
            }
            ConfigError::Conflict { table: Some(table), .. } => (true, self.tables.insert(table.clone())),
            // It may be one with what is assumed.
            ConfigError::Conflict { table: None, .. } => (is_first, false),
            ConfigError::Syntax { .. } | ConfigError::Read { .. } => (true, false),
        }
    }
}

/// Returns all errors of a text, in the order in which they are found; none if it can be used.
pub(super) fn all_errors(source: ConfigText<'_>, own: &dyn Fn() -> OwnSettings) -> Vec<ConfigError> {
    let (mut leniency, mut errors) = (Leniency::default(), Vec::new());
    while let Err(error) = file::read(ConfigText { lenient: Some(&leniency), ..source }, own()) {
        let (is_own, continues) = leniency.note(&error);
        if is_own {
            errors.push(error);
        }
        if !continues || errors.len() >= ERRORS_MAX {
            break;
        }
    }
    errors
}

/// Returns the example of a key in a table, which is written in brackets. Not fuzzed: examples are this program's own.
fn example(table: &str, key: &str) -> Option<&'static str> {
    let path = table.strip_prefix('[').and_then(|table| table.strip_suffix(']')).unwrap_or_default();
    let fits = |described: &&KeyTable| {
        let described = described.path.split('.');
        described.clone().count() == path.split('.').count()
            && described.zip(path.split('.')).all(|(described, part)| ["NAME", part].contains(&described))
    };
    let keys = TABLES.iter().find(fits)?.keys;
    keys.iter().find(|described| described.name == key).map(|described| described.example)
}

/// A file with more errors is no configuration.
const ERRORS_MAX: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let source = ConfigText { file: None, text, lenient: None };
        all_errors(source, &OwnSettings::default).iter().map(ToString::to_string).collect()
    }

    /// Each error is reported once, with its line and its key, whatever else is wrong.
    #[test]
    fn all_errors_of_a_file_are_reported_at_once() {
        let text = "cluster = \"kitchen\"\nsecret = \"short\"\nlisten = \"127.0.0.1:7400\"\nmembres = 3\ntransport = \"pigeon\"\n\
                    [subgroups.a]\nwindow = 0\nmode = \"atomick\"\n[subgroups.b]\nsenders = [7]\n[storage]\ntimeout = \"1s\"\n";
        let found = errors(text);
        let expected = [
            ("line 4", "membres"),
            ("line 2", "secret"),
            ("line 5", "transport"),
            ("the configuration", "`members` is missing"),
            ("the configuration", "`path` is missing in [storage]"),
            ("line 7", "window"),
            ("line 8", "mode"),
            ("line 10", "[subgroups.b]"),
        ];
        for (line, part) in expected {
            let count = found.iter().filter(|error| error.starts_with(line) && error.contains(part)).count();
            assert_eq!(count, 1, "{line} {part}: {found:#?}");
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn a_file_that_can_be_used_has_no_errors() {
        let good = "cluster = \"kitchen\"\nsecret = \"at least sixteen bytes\"\nlisten = \"127.0.0.1:7400\"\nmembers = 3\n[subgroups.a]\n";
        assert_eq!(errors(good), Vec::<String>::new());
        let syntax = errors("cluster = \n");
        assert!(syntax.len() == 1 && syntax[0].starts_with("line 1"), "{syntax:?}");
        // What is assumed for a missing key is in no conflict.
        let missing = errors(
            "cluster = \"a\"\nsecret = \"at least sixteen bytes\"\nmembers = 1\ntransport = \"shm\"\n[subgroups.a]\n",
        );
        assert!(missing.len() == 1 && missing[0].contains("listen"), "{missing:?}");
    }
}
