//! Errors in a configuration: what is wrong, where, and what to write instead.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A place in a configuration.
///
/// ```
/// use squall::config::ConfigPlace;
///
/// let place = ConfigPlace { file: None, line: Some(3) };
/// assert_eq!(place.to_string(), "line 3");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPlace {
    /// The file; `None` if the text did not come from a file.
    pub file: Option<Box<Path>>,
    /// The line, counted from 1; `None` if the error concerns the whole text.
    pub line: Option<usize>,
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{}:{line}", file.display()),
            (Some(file), None) => write!(f, "{}", file.display()),
            (None, Some(line)) => write!(f, "line {line}"),
            (None, None) => f.write_str("the configuration"),
        }
    }
}

squall_fabric::debug_as_text!(ConfigError);

/// Why a configuration cannot be used.
///
/// ```
/// use squall::Config;
///
/// let error = Config::parse("cluster = \"kitchen\"\nmembres = 3\n").unwrap_err();
/// println!("{error}"); // names the line, the key, and the key that was meant
/// assert!(error.to_string().contains("members"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        /// The configuration, or its `secret_file`.
        file: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The text is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: ConfigPlace,
        /// What is wrong.
        message: String,
    },
    /// A key that does not exist.
    #[error("{place}: unknown key `{key}` in {table}; {}", advice(*nearest, known))]
    UnknownKey {
        /// Where.
        place: ConfigPlace,
        /// The key.
        key: String,
        /// The table that contains it, like `[subgroups.log]`.
        table: String,
        /// The known key with the most similar spelling, if one is similar.
        nearest: Option<&'static str>,
        /// All known keys of the table.
        known: Vec<&'static str>,
    },
    /// A required key is missing.
    #[error("{place}: `{key}` is missing in {table}: {advice}")]
    Missing {
        /// The file.
        place: ConfigPlace,
        /// The key.
        key: &'static str,
        /// The table that it belongs to.
        table: String,
        /// What to write.
        advice: &'static str,
    },
    /// A value that is not valid.
    #[error("{place}: `{key} = {value}`: {expected}")]
    Value {
        /// Where.
        place: ConfigPlace,
        /// The key.
        key: String,
        /// The value as it was written.
        value: String,
        /// What to write.
        expected: String,
    },
    /// Values that contradict each other.
    #[error("{place}: {message}")]
    Conflict {
        /// Where one of them is.
        place: ConfigPlace,
        /// The table that has them, like `[subgroups.log]`, if it is one alone.
        table: Option<String>,
        /// Which values contradict each other, and what to change.
        message: String,
    },
}

fn advice(nearest: Option<&str>, known: &[&str]) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("known keys are {}", known.join(", ")),
    }
}
