//! The messages between members and clients about one shard, and the positions of updates in its order (Derecho §3.4,
//! app. A).
//!
//! A message of the shard's subgroup has one or more updates ([`items`]): updates that waited for space in the window
//! are sent in one message. A [`ShardRequest`] asks a member for something, and a [`ShardAnswer`] reports its
//! outcome; both are bytes on a stream, in little-endian words of 8 bytes and lengths of 4 bytes.

use std::fmt;
use std::sync::Arc;

use squall_fabric::NodeId;

use super::sessions::SessionAnswer;
use crate::words::{put_bytes, put_words, take_byte, take_bytes, take_half, take_word};

/// A position in the order of a shard: after all messages of earlier views and `sequence` sequences of this one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardPosition {
    /// The view.
    pub view: u64,
    /// The number of sequences of the view that precede it.
    pub sequence: u64,
}

impl fmt::Debug for ShardPosition {
    /// As applications know it: `squall::Position`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { view, sequence } = self;
        f.debug_struct("Position").field("view", view).field("sequence", sequence).finish()
    }
}

impl ShardPosition {
    /// Returns the position at which a view begins.
    #[must_use]
    pub const fn start_of(view: u64) -> Self {
        Self { view, sequence: 0 }
    }
}

/// The origin of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOrigin {
    /// The sender's own update; the number is the sender's.
    Member(u64),
    /// It opens a session for a client; the number is the sender's.
    Open(u64),
    /// Not an update, but a query that its sender answers when the message is delivered; the number is the sender's.
    Query(u64),
    /// A client's update, which the sender passes on.
    Session {
        /// The session's number.
        id: u64,
        /// Ascending by one within the session.
        number: u64,
        /// How many updates of the session before this one still have no answer: the client has given up those before
        /// them, or knows their outcome.
        open: u32,
    },
}

/// The length of what precedes an update's bytes in a message: its origin and length.
pub const HEADER_BYTES: usize = 24;

/// Sessions are numbered from 1 in the order in which they are opened, so these numbers are not sessions.
const MEMBER: u64 = 0;
const OPEN: u64 = u64::MAX;
const QUERY: u64 = u64::MAX - 1;

impl UpdateOrigin {
    /// Appends an update with its header.
    ///
    /// # Panics
    /// If the update is longer than 4 GiB.
    pub fn append(self, update: &[u8], message: &mut Vec<u8>) {
        message.extend(self.header(update.len()));
        message.extend(update);
    }

    /// Returns what precedes an update of this length.
    ///
    /// # Panics
    /// If it is longer than 4 GiB.
    #[must_use]
    pub fn header(self, length: usize) -> [u8; HEADER_BYTES] {
        let (id, number, open) = match self {
            Self::Member(number) => (MEMBER, number, 0),
            Self::Open(number) => (OPEN, number, 0),
            Self::Query(number) => (QUERY, number, 0),
            Self::Session { id, number, open } => (id, number, open),
        };
        let length = u32::try_from(length).expect("an update is shorter than 4 GiB");
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&id.to_le_bytes());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        header[16..20].copy_from_slice(&open.to_le_bytes());
        header[20..].copy_from_slice(&length.to_le_bytes());
        header
    }
}

/// Returns the updates of a message, in order; a truncated one at its end is skipped, by all members alike.
pub fn items(mut message: &[u8]) -> impl Iterator<Item = (UpdateOrigin, &[u8])> {
    std::iter::from_fn(move || {
        let (id, number) = (take_word(&mut message)?, take_word(&mut message)?);
        let open = take_half(&mut message)?;
        let update = take_bytes(&mut message)?;
        let origin = match id {
            MEMBER => UpdateOrigin::Member(number),
            OPEN => UpdateOrigin::Open(number),
            QUERY => UpdateOrigin::Query(number),
            id => UpdateOrigin::Session { id, number, open },
        };
        Some((origin, update))
    })
}

/// A request to a member about one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardRequest {
    /// Open a session.
    Open,
    /// Apply an update, once, after those of the session with lower numbers.
    Update {
        /// The session.
        session: u64,
        /// Its number in the session.
        number: u64,
        /// See [`UpdateOrigin::Session`].
        open: u32,
        /// Its bytes.
        update: Arc<[u8]>,
    },
    /// Answer a query from a state of this view or a later one.
    Query {
        /// The caller's view.
        view: u64,
        /// Its bytes.
        query: Arc<[u8]>,
    },
    /// Answer a query from a state that includes every update acknowledged to any caller before the query was made.
    Latest {
        /// Its bytes.
        query: Arc<[u8]>,
    },
    /// Answer with the replies of this shard to a caller's update to several shards, when it is applied.
    Replies {
        /// The member that made the update.
        caller: NodeId,
        /// Its number among that member's updates.
        number: u64,
    },
    /// Send the state, if it includes everything up to the start of this view.
    State {
        /// The first view of the joiner in the shard.
        since: u64,
    },
}

/// A member's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardAnswer {
    /// The session has this number.
    Opened(u64),
    /// The reply to an update or a query.
    Reply(Vec<u8>),
    /// The update is applied, but its reply has this number of bytes, which is more than members keep.
    ReplyTooLong(u64),
    /// A later update of the session arrived first; this one was applied before it, or never will be.
    Overtaken,
    /// An earlier update of the session is missing, so this one was not applied.
    Early,
    /// The session was forgotten; the update was not applied now.
    Forgotten,
    /// The state follows.
    State {
        /// Its position.
        position: ShardPosition,
        /// The clients' sessions.
        sessions: Vec<u8>,
        /// Its length in bytes, if that is known.
        bytes: Option<u64>,
    },
    /// Nothing was done: ask again, or ask another member.
    NotYet,
    /// This member is not in the shard.
    Elsewhere,
    /// The shard's state is lost, which these members held last.
    Lost(Vec<NodeId>),
    /// No member will ever do this, for this reason.
    Refused(String),
    /// This member cannot tell the outcome, for this reason.
    Failed(String),
}

impl From<SessionAnswer> for ShardAnswer {
    fn from(answer: SessionAnswer) -> Self {
        match answer {
            SessionAnswer::Opened(id) => Self::Opened(id),
            SessionAnswer::Reply(bytes) => Self::Reply(bytes),
            SessionAnswer::ReplyTooLong(bytes) => Self::ReplyTooLong(bytes),
            SessionAnswer::Overtaken => Self::Overtaken,
            SessionAnswer::Early => Self::Early,
            SessionAnswer::Forgotten => Self::Forgotten,
        }
    }
}

impl ShardRequest {
    /// Appends it to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Open => bytes.push(0),
            Self::Update { session, number, open, update } => {
                bytes.push(1);
                put_words(&[*session, *number], bytes);
                bytes.extend(open.to_le_bytes());
                put_bytes(update, bytes);
            }
            Self::Query { view, query } => {
                bytes.push(2);
                put_words(&[*view], bytes);
                put_bytes(query, bytes);
            }
            Self::State { since } => {
                bytes.push(3);
                put_words(&[*since], bytes);
            }
            Self::Latest { query } => {
                bytes.push(4);
                put_bytes(query, bytes);
            }
            Self::Replies { caller, number } => {
                bytes.push(5);
                bytes.extend(caller.0.to_le_bytes());
                put_words(&[*number], bytes);
            }
        }
    }

    /// Reads all of `bytes`; `None` if they are not a request. Fuzzed as `objects`.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let request = match take_byte(from)? {
            0 => Self::Open,
            1 => Self::Update {
                session: take_word(from)?,
                number: take_word(from)?,
                open: take_half(from)?,
                update: take_bytes(from)?.into(),
            },
            2 => Self::Query { view: take_word(from)?, query: take_bytes(from)?.into() },
            3 => Self::State { since: take_word(from)? },
            4 => Self::Latest { query: take_bytes(from)?.into() },
            5 => Self::Replies { caller: NodeId(take_half(from)?), number: take_word(from)? },
            _ => return None,
        };
        from.is_empty().then_some(request)
    }
}

impl ShardAnswer {
    /// Appends it to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut tagged = |tag: u8| bytes.push(tag);
        match self {
            Self::Opened(id) => (tagged(0), put_words(&[*id], bytes)).1,
            Self::Reply(reply) => (tagged(1), put_bytes(reply, bytes)).1,
            Self::ReplyTooLong(length) => (tagged(2), put_words(&[*length], bytes)).1,
            Self::Overtaken => tagged(3),
            Self::Early => tagged(4),
            Self::Forgotten => tagged(5),
            Self::State { position, sessions, bytes: length } => {
                tagged(6);
                put_words(&[position.view, position.sequence], bytes);
                put_words(&[u64::from(length.is_some()), length.unwrap_or(0)], bytes);
                put_bytes(sessions, bytes);
            }
            Self::NotYet => tagged(7),
            Self::Elsewhere => tagged(8),
            Self::Lost(holders) => {
                tagged(9);
                let holders: Vec<u8> = holders.iter().flat_map(|node| node.0.to_le_bytes()).collect();
                put_bytes(&holders, bytes);
            }
            Self::Refused(why) => (tagged(10), put_bytes(why.as_bytes(), bytes)).1,
            Self::Failed(why) => (tagged(11), put_bytes(why.as_bytes(), bytes)).1,
        }
    }

    /// Reads all of `bytes`; `None` if they are not an answer. Fuzzed as `objects`.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let answer = match take_byte(from)? {
            0 => Self::Opened(take_word(from)?),
            1 => Self::Reply(take_bytes(from)?.to_vec()),
            2 => Self::ReplyTooLong(take_word(from)?),
            3 => Self::Overtaken,
            4 => Self::Early,
            5 => Self::Forgotten,
            6 => {
                let position = ShardPosition { view: take_word(from)?, sequence: take_word(from)? };
                let (is_known, length) = (take_word(from)?, take_word(from)?);
                let bytes = (is_known != 0).then_some(length);
                Self::State { position, sessions: take_bytes(from)?.to_vec(), bytes }
            }
            7 => Self::NotYet,
            8 => Self::Elsewhere,
            9 => {
                let (nodes, rest) = take_bytes(from)?.as_chunks();
                rest.is_empty().then_some(())?;
                Self::Lost(nodes.iter().map(|node| NodeId(u32::from_le_bytes(*node))).collect())
            }
            10 => Self::Refused(text(take_bytes(from)?)),
            11 => Self::Failed(text(take_bytes(from)?)),
            _ => return None,
        };
        from.is_empty().then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Updates are read as they were written, in their order; a truncated one is not read.
    #[test]
    fn items_are_read_as_they_were_written() {
        let origins = [
            UpdateOrigin::Member(7),
            UpdateOrigin::Open(1),
            UpdateOrigin::Query(5),
            UpdateOrigin::Session { id: 3, number: u64::MAX, open: 9 },
        ];
        let mut message = Vec::new();
        origins.iter().for_each(|origin| origin.append(&[9, 9], &mut message));
        assert_eq!(message.len(), 4 * (HEADER_BYTES + 2));
        let found: Vec<_> = items(&message).collect();
        assert_eq!(found, origins.map(|origin| (origin, &[9, 9][..])));
        assert_eq!(items(&message[..message.len() - 1]).count(), 3);
        assert_eq!(items(&[0; HEADER_BYTES - 1]).count(), 0);
    }

    fn requests() -> Vec<ShardRequest> {
        let bytes: Arc<[u8]> = [7, 8].into();
        vec![
            ShardRequest::Open,
            ShardRequest::Update { session: 1, number: 2, open: 3, update: Arc::clone(&bytes) },
            ShardRequest::Query { view: 4, query: Arc::clone(&bytes) },
            ShardRequest::Latest { query: bytes },
            ShardRequest::State { since: 5 },
            ShardRequest::Replies { caller: NodeId(6), number: 7 },
        ]
    }

    fn answers() -> Vec<ShardAnswer> {
        let state = |bytes| ShardAnswer::State {
            position: ShardPosition { view: 1, sequence: 2 },
            sessions: vec![3],
            bytes,
        };
        vec![
            ShardAnswer::Opened(1),
            ShardAnswer::Reply(vec![1, 2]),
            ShardAnswer::ReplyTooLong(1 << 40),
            ShardAnswer::Overtaken,
            ShardAnswer::Early,
            ShardAnswer::Forgotten,
            state(None),
            state(Some(9)),
            ShardAnswer::NotYet,
            ShardAnswer::Elsewhere,
            ShardAnswer::Lost(vec![NodeId(3), NodeId(9)]),
            ShardAnswer::Refused("no".into()),
            ShardAnswer::Failed("gone".into()),
        ]
    }

    /// Requests and answers are read as they were written; truncated or lengthened, they are refused; with any byte
    /// changed they are read or refused.
    #[test]
    fn requests_and_answers_are_read_as_they_were_written() {
        for request in requests() {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(ShardRequest::decode(&bytes), Some(request));
            check_others(&bytes, |bytes| ShardRequest::decode(bytes).is_some());
        }
        for answer in answers() {
            let mut bytes = Vec::new();
            answer.encode(&mut bytes);
            assert_eq!(ShardAnswer::decode(&bytes), Some(answer));
            check_others(&bytes, |bytes| ShardAnswer::decode(bytes).is_some());
        }
    }

    fn check_others(bytes: &[u8], is_read: impl Fn(&[u8]) -> bool) {
        assert!((0..bytes.len()).all(|length| !is_read(&bytes[..length])));
        assert!(!is_read(&[bytes, &[0]].concat()));
        for (at, byte) in (0..bytes.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
            let mut changed = bytes.to_vec();
            changed[at] = byte;
            let _ = is_read(&changed);
        }
    }
}
