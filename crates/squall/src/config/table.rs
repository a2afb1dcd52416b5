//! Reading TOML tables: each value knows its key and its line, and a table knows its keys.
//!
//! `serde` could fill the structs, but it forgets the lines, and its errors know neither the nearest key nor the
//! range of a number. The keys that a table may have are those that [`super::keys`] describes.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::all_errors::Leniency;
use super::error::{ConfigError, ConfigPlace};
use super::keys::ConfigKey;
use super::nearest::nearest;
use super::quantity;

/// The text that is read, by which errors name their places.
#[derive(Clone, Copy)]
pub(super) struct ConfigText<'s> {
    pub(super) file: Option<&'s Path>,
    pub(super) text: &'s str,
    /// What is known to be wrong, if more errors are to be found.
    pub(super) lenient: Option<&'s Leniency>,
}

impl<'s> ConfigText<'s> {
    /// Reads the text as TOML. Fuzzed as `config`.
    pub(super) fn parse(self) -> Result<Spanned<DeTable<'s>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| {
            let place = error.span().map_or_else(|| self.whole(), |span| self.place(span.start));
            ConfigError::Syntax { place, message: error.message().replace('\n', ", ") }
        })
    }

    /// Returns the place that stands for the whole file.
    pub(super) fn whole(self) -> ConfigPlace {
        ConfigPlace { file: self.file.map(Into::into), line: None }
    }

    /// Returns whether a key is to be read as if it was not there; its value, or itself, is at `span`.
    fn leaves_out(self, key: &str, span: Range<usize>) -> bool {
        self.lenient.is_some_and(|lenient| lenient.leaves_out(self.text, key, span))
    }

    fn place(self, offset: usize) -> ConfigPlace {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        let lines = before.iter().filter(|byte| **byte == b'\n').count();
        ConfigPlace { line: Some(lines + 1), ..self.whole() }
    }
}

/// A table and its place.
#[derive(Clone)]
pub(super) struct ConfigTable<'t> {
    pub(super) source: ConfigText<'t>,
    /// The name as it is written in brackets; empty for the root.
    pub(super) path: String,
    entries: &'t DeTable<'t>,
}

impl<'t> ConfigTable<'t> {
    pub(super) const fn root(source: ConfigText<'t>, entries: &'t DeTable<'t>) -> Self {
        Self { source, path: String::new(), entries }
    }

    /// Returns the values of the table, which has no other keys than `keys`.
    pub(super) fn values(&self, keys: &'static [ConfigKey]) -> Result<ConfigValues<'_, 't>, ConfigError> {
        let known: Vec<&'static str> = keys.iter().map(|key| key.name).collect();
        let is_unknown = |key: &str, span| !known.contains(&key) && !self.source.leaves_out(key, span);
        if let Some((key, _)) = self.entries.iter().find(|(key, _)| is_unknown(key.get_ref(), key.span())) {
            return Err(ConfigError::UnknownKey {
                place: self.source.place(key.span().start),
                key: key.get_ref().to_string(),
                table: self.name(),
                nearest: nearest(key.get_ref(), &known),
                known,
            });
        }
        Ok(ConfigValues { table: self, known })
    }

    /// Returns the tables in this one, under any names.
    pub(super) fn tables(&self) -> Result<Vec<(String, ConfigTable<'t>)>, ConfigError> {
        let is_read = |name: &str| {
            let table = format!("[{}.{name}]", self.path);
            self.source.lenient.is_none_or(|lenient| !lenient.leaves_out_table(&table))
        };
        let entries = self.entries.iter().filter(|(key, value)| {
            is_read(key.get_ref()) && !self.source.leaves_out(key.get_ref(), value.span())
        });
        let tables = entries.map(|(key, value)| {
            let name = key.get_ref().to_string();
            let value =
                ConfigValue { source: self.source, table: self.path.clone(), key: name.clone(), value };
            if !is_name(&name) {
                return Err(value.unexpected(NAME));
            }
            Ok((name, value.table()?))
        });
        tables.collect()
    }

    pub(super) fn missing(&self, key: &'static str, advice: &'static str) -> ConfigError {
        ConfigError::Missing { place: self.source.whole(), key, table: self.name(), advice }
    }

    /// Returns the error that its values contradict each other.
    pub(super) fn conflict(&self, message: &str) -> ConfigError {
        let first = self.entries.keys().map(|key| key.span().start).min();
        let place = first.map_or_else(|| self.source.whole(), |offset| self.source.place(offset));
        let (table, message) = (Some(self.name()), format!("{}: {message}", self.name()));
        ConfigError::Conflict { place, table, message }
    }

    fn name(&self) -> String {
        if self.path.is_empty() { "the configuration".into() } else { format!("[{}]", self.path) }
    }
}

/// The values of a table whose keys are all known.
pub(super) struct ConfigValues<'v, 't> {
    table: &'v ConfigTable<'t>,
    known: Vec<&'static str>,
}

impl<'t> ConfigValues<'_, 't> {
    /// Returns the value of a key, if it has one.
    ///
    /// # Panics
    /// If the table does not know the key.
    pub(super) fn get(&self, key: &str) -> Option<ConfigValue<'t>> {
        assert!(self.known.contains(&key), "`{key}` is not described");
        let (source, table) = (self.table.source, self.table.path.clone());
        let read = self.table.entries.get(key).filter(|value| !source.leaves_out(key, value.span()));
        let lenient = source.lenient;
        let is_table_left_out = lenient.is_some_and(|lenient| lenient.leaves_out_table(&format!("[{key}]")));
        let read = read.filter(|_| !is_table_left_out);
        let assumed = || lenient.and_then(|lenient| lenient.assumed(&self.table.name(), key));
        let value = match read {
            Some(value) => value,
            None => assumed()?,
        };
        Some(ConfigValue { source, table, key: key.into(), value })
    }
}

/// A value and its place.
#[derive(Clone)]
pub(super) struct ConfigValue<'t> {
    source: ConfigText<'t>,
    table: String,
    key: String,
    value: &'t Spanned<DeValue<'t>>,
}

impl<'t> ConfigValue<'t> {
    pub(super) fn table(&self) -> Result<ConfigTable<'t>, ConfigError> {
        let path =
            if self.table.is_empty() { self.key.clone() } else { format!("{}.{}", self.table, self.key) };
        match self.value.get_ref() {
            DeValue::Table(entries) => Ok(ConfigTable { source: self.source, path, entries }),
            _ => Err(self.unexpected(format!("make it a table: [{path}]"))),
        }
    }

    pub(super) fn text(&self) -> Result<&'t str, ConfigError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.unexpected("write a text in quotation marks")),
        }
    }

    /// Reads the name of a cluster or a subgroup.
    pub(super) fn name(&self) -> Result<String, ConfigError> {
        let text = self.text()?;
        if is_name(text) { Ok(text.into()) } else { Err(self.unexpected(NAME)) }
    }

    /// Reads a text that `T` can be parsed from.
    pub(super) fn parse<T: FromStr<Err: Display>>(&self) -> Result<T, ConfigError> {
        self.text()?.parse().map_err(|error: T::Err| self.unexpected(error.to_string()))
    }

    pub(super) fn flag(&self) -> Result<bool, ConfigError> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.unexpected("write true or false")),
        }
    }

    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let expected =
            || self.unexpected(format!("write a number from {} to {}", range.start(), range.end()));
        self.whole_number().filter(|number| range.contains(number)).ok_or_else(expected)
    }

    /// Reads a number as [`ConfigValue::integer`] does, for counts of things in memory.
    pub(super) fn count(&self, range: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        let range = *range.start() as u64..=*range.end() as u64;
        Ok(usize::try_from(self.integer(range)?).expect("within a range of usize"))
    }

    /// Reads a number of bytes, with or without a unit.
    pub(super) fn bytes(&self, range: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        let bytes = match self.value.get_ref() {
            DeValue::String(text) => quantity::bytes(text).map_err(|expected| self.unexpected(expected))?,
            _ => self
                .whole_number()
                .ok_or_else(|| self.unexpected("write a number of bytes, like 512 or \"10KB\""))?,
        };
        let within = usize::try_from(bytes).ok().filter(|bytes| range.contains(bytes));
        within.ok_or_else(|| self.unexpected(format!("write {} to {} bytes", range.start(), range.end())))
    }

    pub(super) fn duration(&self) -> Result<std::time::Duration, ConfigError> {
        let expected = |expected| self.unexpected(expected);
        let text = self.text().map_err(|_| {
            expected("write a time with its unit, like \"10s\" (units: us, ms, s, m, h, d)".into())
        })?;
        quantity::duration(text)
            .and_then(
                |duration| {
                    if duration.is_zero() { Err("write a time above zero".into()) } else { Ok(duration) }
                },
            )
            .map_err(expected)
    }

    /// Reads one of several words.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Result<T, ConfigError> {
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        let expected = || match self.text().ok().and_then(|text| nearest(text, &words)) {
            Some(nearest) => format!("did you mean \"{nearest}\"?"),
            None => format!("write one of \"{}\"", words.join("\", \"")),
        };
        let text = self.text().map_err(|_| self.unexpected(expected()))?;
        let chosen = choices.iter().find(|(word, _)| *word == text);
        chosen.map(|(_, choice)| *choice).ok_or_else(|| self.unexpected(expected()))
    }

    /// Returns the elements of a list; each has the key of the list.
    pub(super) fn list(&self) -> Result<Vec<ConfigValue<'t>>, ConfigError> {
        match self.value.get_ref() {
            DeValue::Array(elements) => {
                Ok(elements.iter().map(|value| ConfigValue { value, ..self.clone() }).collect())
            }
            _ => Err(self.unexpected("write a list in brackets")),
        }
    }

    /// Returns the error that the value is not the expected one.
    pub(super) fn unexpected(&self, expected: impl Into<String>) -> ConfigError {
        let value = self.source.text.get(self.value.span()).unwrap_or("…");
        if value.starts_with("[") && matches!(self.value.get_ref(), DeValue::Table(_)) {
            // The header of a table is not the value of a key.
            return self.conflict(format!("{value}: {}", expected.into()));
        }
        let shown =
            if value.contains('\n') || value.chars().count() > VALUE_SHOWN_MAX { "…" } else { value };
        ConfigError::Value {
            place: self.place(),
            key: self.key.clone(),
            value: shown.into(),
            expected: expected.into(),
        }
    }

    /// Returns the error of [`ConfigValue::unexpected`] for a value that must not be printed.
    pub(super) fn unexpected_secret(&self, expected: impl Into<String>) -> ConfigError {
        let (place, key, expected) = (self.place(), self.key.clone(), expected.into());
        ConfigError::Value { place, key, value: "…".into(), expected }
    }

    /// Returns the error that the value contradicts another.
    pub(super) fn conflict(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::Conflict { place: self.place(), table: None, message: message.into() }
    }

    fn place(&self) -> ConfigPlace {
        self.source.place(self.value.span().start)
    }

    fn whole_number(&self) -> Option<u64> {
        match self.value.get_ref() {
            DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix()).ok(),
            _ => None,
        }
    }
}

/// The longest value that an error repeats.
const VALUE_SHOWN_MAX: usize = 60;

/// The longest name of a cluster or subgroup.
const NAME_LETTERS_MAX: usize = 64;

const NAME: &str = "choose a name of 1 to 64 letters, digits, `-`, `_` or `.`";

fn is_name(text: &str) -> bool {
    (1..=NAME_LETTERS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
