//! What the members of a shard keep for the callers of updates: which updates are applied, and their replies (RamCast §2.2;
//! sessions of Derecho, app. A) \[G18\] \[G19\].
//!
//! It is part of the shard's state: it goes to joiners with it, and is the same at all members at one position. So any of them
//! answers a caller, whichever has died meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;

use super::mutation;
use super::update::ShardedUpdate;
use super::{GenuinePosition, Timestamp};
use crate::coverage::{Point, reach};
use crate::words::{put_bytes, put_words, take_bytes, take_word};

/// The replies of one shard to an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReplies {
    /// The position of the update.
    pub position: GenuinePosition,
    /// A reply to each part, in the order of the parts.
    pub replies: Vec<Vec<u8>>,
}

/// What a member has for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyState<'a> {
    /// The update is applied, with these replies.
    Replies(&'a PartReplies),
    /// The update is not applied here yet.
    NotYet,
    /// The caller has reported that it has the replies.
    Forgotten,
}

/// The callers of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateReplies {
    callers: BTreeMap<NodeId, CallerReplies>,
}

/// Those of one caller: all updates of this shard below `known` are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CallerReplies {
    known: u64,
    /// By number, at least `known`.
    kept: BTreeMap<u64, PartReplies>,
}

impl UpdateReplies {
    /// An update of `caller` is delivered: applies it by `apply`, which returns a reply to each part, unless it was applied before
    /// \[G18\]. Forgets what the caller says that it has. Returns whether it was applied now.
    pub fn apply(
        &mut self,
        caller: NodeId,
        position: GenuinePosition,
        update: &ShardedUpdate<'_>,
        apply: impl FnOnce() -> Vec<Vec<u8>>,
    ) -> bool {
        let of_caller = self.callers.entry(caller).or_default();
        of_caller.known = of_caller.known.max(update.known);
        of_caller.kept = of_caller.kept.split_off(&of_caller.known);
        let is_known = update.number < of_caller.known || of_caller.kept.contains_key(&update.number);
        if is_known && !mutant!(ApplyAgain) {
            reach(Point::UpdateAppliedBefore);
            return false;
        }
        of_caller.kept.insert(update.number, PartReplies { position, replies: apply() });
        true
    }

    /// Returns what there is for update `number` of `caller`.
    #[must_use]
    pub fn reply(&self, caller: NodeId, number: u64) -> ReplyState<'_> {
        let Some(of_caller) = self.callers.get(&caller) else { return ReplyState::NotYet };
        match of_caller.kept.get(&number) {
            Some(replies) => ReplyState::Replies(replies),
            None if number < of_caller.known => ReplyState::Forgotten,
            None => ReplyState::NotYet,
        }
    }

    /// Forgets callers that are gone, when a view begins.
    pub fn retain(&mut self, members: &[NodeId]) {
        let members: BTreeSet<&NodeId> = members.iter().collect();
        self.callers.retain(|caller, _| members.contains(caller));
    }

    /// Appends it as bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        put_words(&[self.callers.len() as u64], bytes);
        for (caller, of_caller) in &self.callers {
            put_words(&[u64::from(caller.0), of_caller.known, of_caller.kept.len() as u64], bytes);
            for (number, replies) in &of_caller.kept {
                put_words(&[*number], bytes);
                replies.encode(bytes);
            }
        }
    }

    /// Reads it from the front of `bytes`; `None` if it is not there. Fuzzed as `sharded_object`.
    #[must_use]
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut callers = BTreeMap::new();
        for _ in 0..take_word(bytes)? {
            let caller = NodeId(u32::try_from(take_word(bytes)?).ok()?);
            let mut of_caller = CallerReplies { known: take_word(bytes)?, kept: BTreeMap::new() };
            for _ in 0..take_word(bytes)? {
                let number = take_word(bytes)?;
                let is_next = of_caller.kept.last_key_value().is_none_or(|(last, _)| *last < number);
                if number < of_caller.known || !is_next {
                    return None;
                }
                of_caller.kept.insert(number, PartReplies::take(bytes)?);
            }
            if callers.last_key_value().is_some_and(|(last, _)| *last >= caller) {
                return None;
            }
            callers.insert(caller, of_caller);
        }
        Some(Self { callers })
    }
}

impl PartReplies {
    /// Appends them as bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        self.position.encode(bytes);
        put_words(&[self.replies.len() as u64], bytes);
        self.replies.iter().for_each(|reply| put_bytes(reply, bytes));
    }

    /// Reads all of `bytes`; `None` if they are something else. Fuzzed as `sharded_object`.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let replies = Self::take(&mut bytes)?;
        bytes.is_empty().then_some(replies)
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let position = GenuinePosition::take(bytes)?;
        let count = take_word(bytes)?;
        let replies = (0..count).map(|_| take_bytes(bytes).map(<[u8]>::to_vec)).collect::<Option<_>>()?;
        Some(Self { position, replies })
    }
}

impl GenuinePosition {
    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        let Self { view, timestamp: Timestamp { clock, shard } } = self;
        put_words(&[view, clock, shard as u64], bytes);
    }

    pub(super) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (view, clock) = (take_word(bytes)?, take_word(bytes)?);
        let shard = usize::try_from(take_word(bytes)?).ok()?;
        Some(Self { view, timestamp: Timestamp { clock, shard } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: NodeId = NodeId(3);

    fn at(clock: u64) -> GenuinePosition {
        GenuinePosition { view: 1, timestamp: Timestamp { clock, shard: 0 } }
    }

    /// Applies an update; returns whether it was applied now.
    fn apply(replies: &mut UpdateReplies, number: u64, known: u64, clock: u64) -> bool {
        let bytes = ShardedUpdate::encode(number, known, []);
        let update = ShardedUpdate::decode(&bytes).unwrap();
        replies.apply(CALLER, at(clock), &update, || vec![number.to_le_bytes().to_vec()])
    }

    /// \[G18\] \[G19\] What was applied before is not applied once more, and replies are kept until the caller has them.
    #[test]
    fn an_update_counts_once_and_its_reply_is_kept() {
        let mut replies = UpdateReplies::default();
        assert_eq!(replies.reply(CALLER, 0), ReplyState::NotYet);
        assert!(apply(&mut replies, 0, 0, 1) && apply(&mut replies, 2, 0, 2));
        assert!(!apply(&mut replies, 0, 0, 3));
        let first = PartReplies { position: at(1), replies: vec![vec![0; 8]] };
        assert_eq!(replies.reply(CALLER, 0), ReplyState::Replies(&first));
        assert_eq!(replies.reply(CALLER, 1), ReplyState::NotYet);
        assert!(apply(&mut replies, 1, 0, 4) && apply(&mut replies, 5, 2, 5));
        assert_eq!(replies.reply(CALLER, 1), ReplyState::Forgotten);
        assert!(matches!(replies.reply(CALLER, 2), ReplyState::Replies(_)));
        assert!(!apply(&mut replies, 1, 0, 6), "the caller has its reply");
        replies.retain(&[NodeId(4)]);
        assert_eq!(replies, UpdateReplies::default());
    }

    #[test]
    fn what_is_written_is_read() {
        let mut replies = UpdateReplies::default();
        (3..6).for_each(|number| assert!(apply(&mut replies, number, 3, number)));
        let mut bytes = Vec::new();
        replies.encode(&mut bytes);
        bytes.push(7);
        let mut rest = &bytes[..];
        assert_eq!((UpdateReplies::decode(&mut rest), rest), (Some(replies), &[7][..]));
        assert!((0..bytes.len() - 1).all(|length| UpdateReplies::decode(&mut &bytes[..length]).is_none()));
        let mut unordered = bytes;
        unordered[24..32].copy_from_slice(&9_u64.to_le_bytes());
        assert_eq!(UpdateReplies::decode(&mut &unordered[..]), None);
    }
}
