//! Text of others, such as names and messages, in lines for a terminal: it must not move the cursor, or change what was printed before.

use std::borrow::Cow;

/// Returns a name with its control characters escaped, as in `\u{1b}`.
#[must_use]
pub fn escaped(name: &str) -> String {
    escape(name, char::is_control).into_owned()
}

/// Returns a message with its control characters escaped, except for ends of lines and tabulators.
#[must_use]
pub fn escaped_text(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.is_control() && c != '\n' && c != '\t')
}

/// Returns lines of a log with their control characters escaped, except for ends of lines, tabulators and, `with_colours`, what begins a
/// colour.
#[must_use]
pub(super) fn escaped_line(text: &str, with_colours: bool) -> Cow<'_, str> {
    escape(text, |c| c.is_control() && c != '\n' && c != '\t' && !(with_colours && c == '\u{1b}'))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("Grüße"), "Grüße");
        assert_eq!(escaped("a\x1b[2J\n\u{9b}b"), "a\\u{1b}[2J\\n\\u{9b}b");
        assert_eq!(escaped_text("a\x1b[2J\n\tb\r"), "a\\u{1b}[2J\n\tb\\r");
        assert!(matches!(escaped_text("two\nlines"), Cow::Borrowed(_)));
    }
}
