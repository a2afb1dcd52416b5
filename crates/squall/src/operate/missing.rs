//! What of its data a member does not have yet: it is in the group, and messages flow, before it has all of it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::durable::ProcessLog;
use crate::slot::SubgroupSlot;

/// What a member is still getting from the others, or makes from its log, in a [`crate::MemberStatus`].
///
/// ```
/// # fn show(status: &squall::MemberStatus) {
/// if !status.missing.is_empty() {
///     println!("member {}: {}", status.rank, status.missing);
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MissingData {
    /// The subgroups and shards with an object whose state this member is to have and does not have yet.
    pub objects: Vec<String>,
    /// How many messages and nulls of earlier views its log lacks, as far as is known; `None` if it lacks none, or is none.
    pub messages: Option<u64>,
}

impl MissingData {
    /// Looks at the slots of a member's subgroups, by name, and at its log.
    pub(crate) fn of_member<'a>(
        slots: impl Iterator<Item = (&'a String, &'a Arc<SubgroupSlot>)>,
        log: Option<&ProcessLog>,
    ) -> Self {
        let lacking = slots.filter(|(_, slot)| slot.lacks_state()).map(|(name, _)| name.clone());
        Self { objects: lacking.collect(), messages: log.and_then(ProcessLog::missing) }
    }

    /// Returns whether the member has all that it is to have.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.messages.is_none()
    }
}

impl fmt::Display for MissingData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects: Vec<String> = self.objects.iter().map(|name| format!("`{name}`")).collect();
        match objects.len() {
            0 => {}
            1 => write!(f, "the state of {} is not here yet", objects[0])?,
            _ => write!(f, "the states of {} are not here yet", objects.join(", "))?,
        }
        if !objects.is_empty() && self.messages.is_some() {
            f.write_str(", and ")?;
        }
        match self.messages {
            None if objects.is_empty() => f.write_str("nothing is missing"),
            None => Ok(()),
            Some(0) => f.write_str("its log is being compared with those of the other members"),
            Some(1) => f.write_str("1 message or null of earlier views is being fetched for its log"),
            Some(count) => {
                write!(f, "{count} messages and nulls of earlier views are being fetched for its log")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_sentence() {
        let text = |objects: &[&str], messages| {
            MissingData { objects: objects.iter().map(ToString::to_string).collect(), messages }.to_string()
        };
        assert_eq!(text(&[], None), "nothing is missing");
        assert_eq!(text(&["stock/2"], None), "the state of `stock/2` is not here yet");
        assert_eq!(
            text(&["a", "b"], Some(200)),
            "the states of `a`, `b` are not here yet, and 200 messages and nulls of earlier views are being fetched for its log"
        );
    }
}
