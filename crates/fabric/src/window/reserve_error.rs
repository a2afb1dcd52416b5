//! Why a message cannot be reserved (Spindle §2.3).

use std::fmt;

/// Why a message cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// The window is full until all members have delivered older messages.
    Full,
    /// The message is longer than the window allows.
    TooLong {
        /// The message's bytes.
        length: usize,
        /// The longest message in bytes.
        message_max: usize,
    },
    /// The window's group has ended; no more messages can be sent.
    Closed,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => {
                f.write_str("the window is full (try again when all members have delivered older messages)")
            }
            Self::TooLong { length, message_max } => {
                write!(
                    f,
                    "a message of {length} bytes is longer than the maximum of {message_max} (raise message_max or large_max in the configuration)"
                )
            }
            Self::Closed => f.write_str("the group has ended; no more messages can be sent"),
        }
    }
}

impl std::error::Error for ReserveError {}
