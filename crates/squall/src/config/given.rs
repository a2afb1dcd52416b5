//! Lists the values that a configuration gives; all other keys have their defaults.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::table::ConfigText;

/// A value that a configuration gives for a key.
///
/// ```
/// use squall::config::given_values;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let values = given_values("members = 3\n[subgroups.log]\nwindow = 64\n")?;
/// let shown: Vec<String> = values.iter().map(|given| format!("{}: [{}] {}", given.line, given.table, given.key)).collect();
/// assert_eq!(shown, ["1: [] members", "3: [subgroups.log] window"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenValue {
    /// The path of the key's table, like `subgroups.log`; empty for the keys in front of all tables.
    pub table: String,
    /// The key.
    pub key: String,
    /// The value as the text has it, in one line; `…` for the secret.
    pub value: String,
    /// The line, counted from 1.
    pub line: usize,
}

/// Returns the values that a text gives, in its order. The text is not checked beyond its syntax; see
/// [`super::Config::parse`].
///
/// # Errors
/// [`ConfigError::Syntax`], if the text is not TOML.
pub fn given_values(text: &str) -> Result<Vec<GivenValue>, ConfigError> {
    let parsed = ConfigText { file: None, text, lenient: None }.parse()?;
    let mut values = Vec::new();
    add(&mut values, text, "", parsed.get_ref());
    values.sort_by_key(|value| value.line);
    Ok(values)
}

fn add(values: &mut Vec<GivenValue>, text: &str, table: &str, entries: &DeTable<'_>) {
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        if let DeValue::Table(inner) = value.get_ref() {
            let path = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
            add(values, text, &path, inner);
            continue;
        }
        let is_secret = table.is_empty() && name == "secret";
        let line = text.as_bytes()[..key.span().start].iter().filter(|byte| **byte == b'\n').count() + 1;
        let value = if is_secret { "…".into() } else { written(text, value) };
        values.push(GivenValue { table: table.into(), key: name.into(), value, line });
    }
}

/// The value as the text has it; a list without its comments and line breaks.
fn written(text: &str, value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(|element| written(text, element)).collect();
            format!("[{}]", elements.join(", "))
        }
        _ => text[value.span()].into(),
    }
}
