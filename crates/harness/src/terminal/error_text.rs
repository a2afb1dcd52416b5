//! An error as a person reads it: each cause once, and nothing that moves the cursor.

use std::error::Error;
use std::fmt;

use super::escape::escaped_text;

/// Returns what an error says, and what its causes add to that.
#[must_use]
pub fn error_text(error: &anyhow::Error) -> String {
    struct WithCauses<'e>(&'e dyn Error);
    impl fmt::Display for WithCauses<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            squall_fabric::write_error(self.0, f)
        }
    }
    escaped_text(&WithCauses(error.as_ref()).to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn each_cause_is_said_once_and_escaped() {
        let error = anyhow!("no answer within 5 s").context("127.0.0.1:7400: no answer within 5 s");
        assert_eq!(error_text(&error), "127.0.0.1:7400: no answer within 5 s");
        let error = anyhow!("of \x1b[2J").context("another topic").context("cannot read");
        assert_eq!(error_text(&error), "cannot read: another topic: of \\u{1b}[2J");
    }
}
