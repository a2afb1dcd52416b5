//! Sessions: what makes a client's update count once, though it is sent again after a failure (Derecho app. A).
//!
//! A session is opened by an update of its own, so all members number sessions alike. It remembers the number of its last
//! update and the reply, unless that is too long, which its client is told each time. There are at most `sessions_max`; when one more is opened, the one that was used least recently
//! is forgotten, the same at all members because it is decided by the order of updates. Its client is told so, and nothing
//! of it is applied any more: forgetting never applies twice. The table travels with the state.

use std::collections::BTreeMap;
use std::fmt;

use super::mutation::{Mutation, is_on};
use crate::coverage::{Point, reach};

/// The sessions of a shard, which are part of its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// How many have ever been opened: the last number that was given.
    opened: u64,
    /// Uses so far, which order sessions by their last use.
    uses: u64,
    table: BTreeMap<u64, Session>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    /// The number of the last update; 0 before the first.
    last: u64,
    /// Its reply, or how long it was if it was too long to be kept.
    reply: Result<Vec<u8>, u64>,
    /// When it was used last.
    used: u64,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAnswer {
    /// The session has this number.
    Opened(u64),
    /// The reply to the update: applied now, or when it came for the first time.
    Reply(Vec<u8>),
    /// The update is applied, but its reply has so many bytes, more than sessions keep.
    ReplyTooLong(u64),
    /// A later update of the session came first; this one was applied before it, or never will be.
    Overtaken,
    /// The session was forgotten because too many others were opened; the update is not applied now.
    Forgotten,
}

impl Sessions {
    /// Opens a session; forgets the one used least recently if there are `sessions_max` already.
    pub(super) fn open(&mut self, sessions_max: usize) -> SessionAnswer {
        if self.table.len() >= sessions_max.max(1) {
            let oldest = self.table.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.and_then(|id| self.table.remove(&id));
        }
        self.opened += 1;
        self.uses += 1;
        self.table.insert(self.opened, Session { last: 0, reply: Ok(Vec::new()), used: self.uses });
        SessionAnswer::Opened(self.opened)
    }

    /// Applies update `number` of session `id` by `apply`, unless it was applied before [A3]; keeps the reply if it has at
    /// most `reply_bytes_max` bytes.
    pub(super) fn update(
        &mut self,
        id: u64,
        number: u64,
        reply_bytes_max: usize,
        apply: impl FnOnce() -> Vec<u8>,
    ) -> SessionAnswer {
        let Some(session) = self.table.get_mut(&id) else {
            reach(Point::SessionForgotten);
            return SessionAnswer::Forgotten;
        };
        self.uses += 1;
        session.used = self.uses;
        if number > session.last || is_on(Mutation::ApplyRepeated) {
            session.last = number;
            let reply = apply();
            session.reply = if reply.len() > reply_bytes_max { Err(reply.len() as u64) } else { Ok(reply) };
        } else if number < session.last {
            return SessionAnswer::Overtaken;
        } else {
            reach(Point::UpdateRepeated);
        }
        session.reply.clone().map_or_else(SessionAnswer::ReplyTooLong, SessionAnswer::Reply)
    }

    /// The table as bytes: words, little endian, and replies with their lengths.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let word = |word: u64, bytes: &mut Vec<u8>| bytes.extend(word.to_le_bytes());
        for counter in [self.opened, self.uses, self.table.len() as u64] {
            word(counter, &mut bytes);
        }
        for (id, session) in &self.table {
            let length =
                session.reply.as_ref().map_or_else(|long| long | TOO_LONG, |reply| reply.len() as u64);
            for field in [*id, session.last, session.used, length] {
                word(field, &mut bytes);
            }
            bytes.extend(session.reply.iter().flatten());
        }
        bytes
    }

    /// Reads a table.
    ///
    /// # Errors
    /// [`SessionsError`]: the bytes are not a table.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, SessionsError> {
        let [opened, uses, count] = words(&mut bytes)?;
        let mut table = BTreeMap::new();
        for _ in 0..count {
            let [id, last, used, length] = words(&mut bytes)?;
            let known = table.last_key_value().map_or(0, |(id, _)| *id);
            if id <= known || id > opened || used > uses {
                return Err(SessionsError);
            }
            let reply = if length & TOO_LONG != 0 {
                Err(length & !TOO_LONG)
            } else {
                let length = usize::try_from(length).map_err(|_| SessionsError)?;
                let (reply, rest) = bytes.split_at_checked(length).ok_or(SessionsError)?;
                bytes = rest;
                Ok(reply.to_vec())
            };
            table.insert(id, Session { last, reply, used });
        }
        if bytes.is_empty() { Ok(Self { opened, uses, table }) } else { Err(SessionsError) }
    }
}

/// Marks the length of a reply that is not kept.
const TOO_LONG: u64 = 1 << 63;

/// Takes words from the front.
fn words<const N: usize>(bytes: &mut &[u8]) -> Result<[u64; N], SessionsError> {
    let mut found = [0; N];
    for word in &mut found {
        let (first, rest) = bytes.split_first_chunk().ok_or(SessionsError)?;
        (*word, *bytes) = (u64::from_le_bytes(*first), rest);
    }
    Ok(found)
}

/// A state came with a table of sessions that cannot be read: its giver runs another version, or is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsError;

impl fmt::Display for SessionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the state came with sessions that cannot be read: run the same version at all members")
    }
}

impl std::error::Error for SessionsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> SessionAnswer {
        SessionAnswer::Reply(text.into())
    }

    /// [A3] A repeated update gets the first reply, an overtaken one none, and neither is applied.
    #[test]
    fn an_update_counts_once() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.update(1, 1, 9, || unreachable!()), SessionAnswer::Forgotten);
        assert_eq!(sessions.open(2), SessionAnswer::Opened(1));
        assert_eq!(sessions.update(1, 1, 9, || b"first".to_vec()), reply("first"));
        assert_eq!(sessions.update(1, 1, 9, || unreachable!()), reply("first"));
        assert_eq!(sessions.update(1, 2, 9, || b"second".to_vec()), reply("second"));
        assert_eq!(sessions.update(1, 1, 9, || unreachable!()), SessionAnswer::Overtaken);
    }

    /// A reply that is too long is not kept; what is sent again is told the same, and is not applied.
    #[test]
    fn long_replies_are_not_kept() {
        let mut sessions = Sessions::default();
        sessions.open(2);
        assert_eq!(sessions.update(1, 1, 9, || vec![0; 9]), SessionAnswer::Reply(vec![0; 9]));
        assert_eq!(sessions.update(1, 2, 9, || vec![0; 10]), SessionAnswer::ReplyTooLong(10));
        let mut restored = Sessions::decode(&sessions.encode()).unwrap();
        assert_eq!(restored, sessions);
        assert_eq!(restored.update(1, 2, 9, || unreachable!()), SessionAnswer::ReplyTooLong(10));
    }

    /// The one used least recently goes, and its client hears that it did.
    #[test]
    fn there_are_at_most_so_many() {
        let mut sessions = Sessions::default();
        (0..2).for_each(|_| drop(sessions.open(2)));
        sessions.update(1, 1, 9, Vec::new);
        assert_eq!(sessions.open(2), SessionAnswer::Opened(3));
        assert_eq!(sessions.update(2, 1, 9, || unreachable!()), SessionAnswer::Forgotten);
        assert_eq!(sessions.update(1, 1, 9, || unreachable!()), reply(""));
    }

    /// A table comes out as it went in; one that is cut, lengthened or out of order is refused.
    #[test]
    fn tables_survive_the_way() {
        let mut sessions = Sessions::default();
        (0..3).for_each(|_| drop(sessions.open(9)));
        sessions.update(2, 5, 9, || b"five".to_vec());
        let bytes = sessions.encode();
        assert_eq!(Sessions::decode(&bytes), Ok(sessions));
        for length in 0..bytes.len() {
            assert_eq!(Sessions::decode(&bytes[..length]), Err(SessionsError));
        }
        assert_eq!(Sessions::decode(&[&bytes[..], &[0]].concat()), Err(SessionsError));
        let mut disordered = bytes;
        disordered[24] = 3;
        assert_eq!(Sessions::decode(&disordered), Err(SessionsError));
    }
}
