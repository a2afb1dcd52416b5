//! Sessions, by which a client's update counts once, although it is sent again after a failure (Derecho app. A).
//!
//! A session is opened by an update of its own, so all members number sessions alike. Its updates are numbered from 1
//! and are applied in this order: the next one, or, if the client has given up those before it, the first that it has
//! not given up. The session keeps the replies to the updates that the client reports as open, so that any of them
//! can be sent again; a reply that is too long is not kept, and its client learns that each time.
//!
//! There are at most `sessions_max` sessions, with replies of at most `replies_bytes_max` bytes together; when there
//! are more, the least recently used one is forgotten, the same at all members because the order of updates decides
//! it. Its client learns that, and no update of the session is applied any more: forgetting never makes an update
//! count twice. The table is sent with the state. A shard that begins again, without the state of before, gives its sessions numbers that
//! none has had, so that a client of before learns that its session is forgotten \[A18\].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use super::core::ReplicaSettings;
use super::mutation;
use crate::coverage::{Point, reach};

/// The sessions of a shard, which are part of its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The number of sessions ever opened, which is the last number that was assigned.
    opened: u64,
    /// The number of uses so far, by which sessions are ordered by their last use.
    uses: u64,
    table: BTreeMap<u64, Session>,
    /// The bytes of all replies that are kept.
    reply_bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    /// The number of the last update; 0 before the first.
    last: u64,
    /// The replies to the latest updates, that to `last` at the end; or their lengths, if they were too long to be
    /// kept.
    replies: VecDeque<Result<Vec<u8>, u64>>,
    /// The use at which it was last used.
    used: u64,
}

impl Session {
    fn reply_bytes(&self) -> usize {
        self.replies.iter().flatten().map(Vec::len).sum()
    }

    /// Returns the answer to an update that was applied: its reply, if that is kept.
    fn reply(&self, number: u64) -> SessionAnswer {
        let back = usize::try_from(self.last - number).ok();
        let place = back.and_then(|back| self.replies.len().checked_sub(back + 1));
        let Some(reply) = place.and_then(|place| self.replies.get(place)) else {
            return SessionAnswer::Overtaken;
        };
        reply.clone().map_or_else(SessionAnswer::ReplyTooLong, SessionAnswer::Reply)
    }
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAnswer {
    /// The session has this number.
    Opened(u64),
    /// The reply to the update, which was applied now, or when it arrived for the first time.
    Reply(Vec<u8>),
    /// The update is applied, but its reply has this number of bytes, which is more than sessions keep.
    ReplyTooLong(u64),
    /// A later update of the session arrived first; this one was applied before it, or never will be.
    Overtaken,
    /// An earlier update that the client has not given up is missing: this one is not applied now \[A11\].
    Early,
    /// The session was forgotten because too many others were opened; the update is not applied now.
    Forgotten,
}

/// The number of updates of one session that may be open at a time.
pub const OPEN_MAX: u32 = 1024;

impl Sessions {
    /// Returns the sessions of a shard that begins in a view: their numbers are greater than those of all sessions that were opened in
    /// earlier views.
    pub(super) fn beginning_in(view: u64) -> Self {
        Self { opened: view.saturating_mul(SESSIONS_BETWEEN), ..Self::default() }
    }

    /// Opens a session.
    pub(super) fn open(&mut self, settings: ReplicaSettings) -> SessionAnswer {
        self.opened += 1;
        self.uses += 1;
        self.table.insert(self.opened, Session { used: self.uses, ..Session::default() });
        self.forget(settings);
        SessionAnswer::Opened(self.opened)
    }

    /// Forgets sessions until the limits are met, but never the one that was used last.
    fn forget(&mut self, ReplicaSettings { sessions_max, replies_bytes_max, .. }: ReplicaSettings) {
        while self.table.len() > sessions_max.max(1)
            || (self.reply_bytes > replies_bytes_max && self.table.len() > 1)
        {
            let oldest = self.table.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            let forgotten = oldest.and_then(|id| self.table.remove(&id));
            self.reply_bytes -= forgotten.map_or(0, |session| session.reply_bytes());
        }
    }

    /// Applies update `number` of session `id` by `apply`, unless it was applied before \[A3\], or `open` updates before it
    /// are not \[A11\]; keeps the reply if it is short enough.
    pub(super) fn update(
        &mut self,
        (id, number, open): (u64, u64, u32),
        settings: ReplicaSettings,
        apply: impl FnOnce() -> Vec<u8>,
    ) -> SessionAnswer {
        let Some(session) = self.table.get_mut(&id) else {
            reach(Point::SessionForgotten);
            return SessionAnswer::Forgotten;
        };
        self.uses += 1;
        session.used = self.uses;
        let oldest = number.saturating_sub(open.into()).max(1);
        if number <= session.last && !mutant!(ApplyRepeated) {
            reach(Point::UpdateRepeated);
            return session.reply(number);
        }
        let is_next = number == oldest.max(session.last + 1) || mutant!(ApplyEarly) || mutant!(ApplyRepeated);
        if !is_next || open >= OPEN_MAX {
            return SessionAnswer::Early;
        }
        // The client no longer asks for updates before `oldest`.
        let kept = usize::try_from(number - oldest).expect("below OPEN_MAX");
        let is_kept = |session: &Session| !session.replies.is_empty();
        while is_kept(session) && (session.replies.len() > kept || mutant!(ForgetReplies)) {
            let dropped = session.replies.pop_front().expect("there is one");
            self.reply_bytes -= dropped.map_or(0, |reply| reply.len());
        }
        session.last = number;
        let reply = apply();
        let is_long = reply.len() > settings.reply_bytes_max;
        self.reply_bytes += if is_long { 0 } else { reply.len() };
        session.replies.push_back(if is_long { Err(reply.len() as u64) } else { Ok(reply) });
        let answer = session.reply(number);
        self.forget(settings);
        answer
    }

    /// Returns the table as bytes: little-endian words, and replies with their lengths.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let word = |word: u64, bytes: &mut Vec<u8>| bytes.extend(word.to_le_bytes());
        for counter in [self.opened, self.uses, self.table.len() as u64] {
            word(counter, &mut bytes);
        }
        for (id, session) in &self.table {
            for field in [*id, session.last, session.used, session.replies.len() as u64] {
                word(field, &mut bytes);
            }
            for reply in &session.replies {
                word(
                    reply.as_ref().map_or_else(|long| long | TOO_LONG, |reply| reply.len() as u64),
                    &mut bytes,
                );
                bytes.extend(reply.iter().flatten());
            }
        }
        bytes
    }

    /// Reads a table. Fuzzed as `sessions`.
    ///
    /// # Errors
    /// [`SessionsError`]: the bytes are not a table.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, SessionsError> {
        let [opened, uses, count] = words(&mut bytes)?;
        let mut table = BTreeMap::new();
        for _ in 0..count {
            let [id, last, used, count] = words(&mut bytes)?;
            let known = table.last_key_value().map_or(0, |(id, _)| *id);
            if id <= known || id > opened || used > uses || count > last.min(OPEN_MAX.into()) {
                return Err(SessionsError);
            }
            let replies = (0..count).map(|_| reply(&mut bytes)).collect::<Result<_, _>>()?;
            table.insert(id, Session { last, replies, used });
        }
        let reply_bytes = table.values().map(Session::reply_bytes).sum();
        if bytes.is_empty() { Ok(Self { opened, uses, table, reply_bytes }) } else { Err(SessionsError) }
    }
}

/// Takes a reply from the front.
fn reply(bytes: &mut &[u8]) -> Result<Result<Vec<u8>, u64>, SessionsError> {
    let [length] = words(bytes)?;
    if length & TOO_LONG != 0 {
        return Ok(Err(length & !TOO_LONG));
    }
    let length = usize::try_from(length).map_err(|_| SessionsError)?;
    let (reply, rest) = bytes.split_at_checked(length).ok_or(SessionsError)?;
    *bytes = rest;
    Ok(Ok(reply.to_vec()))
}

/// More sessions than are opened in all views before a later one: each takes a message.
const SESSIONS_BETWEEN: u64 = 1 << 32;

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

/// A state arrived with a table of sessions that cannot be read: its provider runs another version, or is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsError;

impl fmt::Display for SessionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the state's table of sessions cannot be read: run the same release at all members")
    }
}

impl std::error::Error for SessionsError {}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: ReplicaSettings =
        ReplicaSettings { sessions_max: 2, reply_bytes_max: 9, replies_bytes_max: 1000 };

    fn reply(text: &str) -> SessionAnswer {
        SessionAnswer::Reply(text.into())
    }

    /// Makes update `number` of session `id` with `open` before it; returns the answer, and whether it was applied.
    fn update(sessions: &mut Sessions, id: u64, number: u64, open: u32, text: &str) -> (SessionAnswer, bool) {
        let mut is_applied = false;
        let answer = sessions.update((id, number, open), SETTINGS, || {
            is_applied = true;
            text.into()
        });
        (answer, is_applied)
    }

    /// [A3] A repeated update gets the first reply, one that was given up gets none, and neither is applied.
    #[test]
    fn an_update_counts_once() {
        let mut sessions = Sessions::default();
        assert_eq!(update(&mut sessions, 1, 1, 0, ""), (SessionAnswer::Forgotten, false));
        assert_eq!(sessions.open(SETTINGS), SessionAnswer::Opened(1));
        assert_eq!(update(&mut sessions, 1, 1, 0, "first"), (reply("first"), true));
        assert_eq!(update(&mut sessions, 1, 1, 0, "again"), (reply("first"), false));
        assert_eq!(update(&mut sessions, 1, 2, 1, "second"), (reply("second"), true));
        assert_eq!(update(&mut sessions, 1, 1, 0, "again"), (reply("first"), false), "it is open");
        assert_eq!(update(&mut sessions, 1, 3, 1, "third"), (reply("third"), true));
        assert_eq!(update(&mut sessions, 1, 1, 0, "again"), (SessionAnswer::Overtaken, false));
        assert_eq!(update(&mut sessions, 1, 2, 0, "again"), (reply("second"), false));
    }

    /// [A11] An update that arrives before an earlier open one is not applied; an update that its client has given up
    /// is skipped.
    #[test]
    fn updates_are_applied_in_their_order() {
        let mut sessions = Sessions::default();
        sessions.open(SETTINGS);
        assert_eq!(update(&mut sessions, 1, 2, 1, "second"), (SessionAnswer::Early, false));
        assert_eq!(update(&mut sessions, 1, 3, 1, "third"), (SessionAnswer::Early, false));
        assert_eq!(update(&mut sessions, 1, 3, 0, "third"), (reply("third"), true));
        assert_eq!(update(&mut sessions, 1, 2, 0, "second"), (SessionAnswer::Overtaken, false));
        let far = u64::from(OPEN_MAX) + 4;
        assert_eq!(update(&mut sessions, 1, far, OPEN_MAX, ""), (SessionAnswer::Early, false));
    }

    /// A reply that is too long is not kept; an update that is sent again gets the same answer, and is not applied.
    #[test]
    fn long_replies_are_not_kept() {
        let mut sessions = Sessions::default();
        sessions.open(SETTINGS);
        assert_eq!(update(&mut sessions, 1, 1, 0, "nine byte"), (reply("nine byte"), true));
        assert_eq!(update(&mut sessions, 1, 2, 1, "ten bytes."), (SessionAnswer::ReplyTooLong(10), true));
        let mut restored = Sessions::decode(&sessions.encode()).unwrap();
        assert_eq!(restored, sessions);
        assert_eq!(update(&mut restored, 1, 2, 1, ""), (SessionAnswer::ReplyTooLong(10), false));
    }

    /// The least recently used session is forgotten, and its client learns that.
    #[test]
    fn sessions_are_bounded() {
        let mut sessions = Sessions::default();
        (0..2).for_each(|_| drop(sessions.open(SETTINGS)));
        update(&mut sessions, 1, 1, 0, "");
        assert_eq!(sessions.open(SETTINGS), SessionAnswer::Opened(3));
        assert_eq!(update(&mut sessions, 2, 1, 0, ""), (SessionAnswer::Forgotten, false));
        assert_eq!(update(&mut sessions, 1, 1, 0, ""), (reply(""), false));
    }

    /// Replies together take no more memory than is allowed, and the session in use is kept.
    #[test]
    fn replies_are_bounded() {
        let mut sessions = Sessions::default();
        let settings = ReplicaSettings { replies_bytes_max: 20, sessions_max: 9, ..SETTINGS };
        (0..3).for_each(|_| drop(sessions.open(settings)));
        for id in 1..=3 {
            sessions.update((id, 1, 0), settings, || vec![0; 8]);
        }
        assert_eq!(sessions.table.keys().copied().collect::<Vec<_>>(), [2, 3]);
        for number in 2..=9 {
            let answer = sessions.update((3, number, 8), settings, || vec![0; 8]);
            assert_eq!(answer, SessionAnswer::Reply(vec![0; 8]));
        }
        assert_eq!((sessions.table.len(), sessions.reply_bytes), (1, 72));
        sessions.update((3, 10, 0), settings, Vec::new);
        assert_eq!(sessions.reply_bytes, 0, "the client has them");
    }

    /// A table is read as it was written; one that is truncated, lengthened or out of order is refused.
    #[test]
    fn tables_are_read_as_they_were_written() {
        let mut sessions = Sessions::default();
        let settings = ReplicaSettings { sessions_max: 9, ..SETTINGS };
        (0..3).for_each(|_| drop(sessions.open(settings)));
        (1..=3).for_each(|number| drop(sessions.update((2, number, 2), settings, || b"text".to_vec())));
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
