//! What participants send each other in the subgroup of a topic: samples with a header, and announcements of endpoints.

use serde::{Deserialize, Serialize};
use squall::Payload;

use crate::cache::ChangeKind;
use crate::error::TopicNameError;
use crate::presence::GoneProcess;
use crate::qos::{DurabilityService, Qos};
use crate::sample::EndpointId;

/// Bytes in front of key and data: kind (1), nothing (1), number (2), node (4), source time (8), length of the key (4), topic (4).
/// A multiple of 8, so that data without a key begins where the message's alignment allows words.
pub(crate) const HEADER_BYTES: usize = 24;

/// A message of a subgroup that carries topics. Each has a number, by which frames name it; a topic that has a subgroup of its own
/// has the number [`OWN_SUBGROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopicFrame<'a> {
    Change(ChangeHeader<'a>, &'a [u8]),
    /// A serialised [`EndpointAnnouncement`] of this topic.
    Announcement(u32, &'a [u8]),
    /// A serialised [`DurabilityService`]: what a participant expects a topic that has a subgroup of its own to keep.
    Service(&'a [u8]),
    /// A serialised [`RegisteredTopic`] that is to be created.
    Creation(&'a [u8]),
    /// A client outside the group wants a number; if it is the first one, this number chooses it.
    Client(u32),
    /// The client with this number is there.
    Renewal(u32),
    /// A process has gone.
    Gone(GoneProcess),
    /// Changes that become visible together; [`read_set`] returns them.
    Set(&'a [u8]),
}

/// The number of a topic that has a subgroup of its own.
pub(crate) const OWN_SUBGROUP: u32 = u32::MAX;

/// What comes in front of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeHeader<'a> {
    pub(crate) kind: ChangeKind,
    pub(crate) topic: u32,
    pub(crate) writer: EndpointId,
    pub(crate) source_time: u64,
    pub(crate) key: &'a [u8],
}

impl ChangeHeader<'_> {
    /// Returns the length of the message with this much data.
    pub(crate) const fn length_with(&self, data: usize) -> usize {
        HEADER_BYTES + self.key.len() + data
    }

    /// Writes the message whose data `fill` writes.
    pub(crate) fn put(&self, message: &mut Payload<'_>, fill: impl FnOnce(&mut Payload<'_>)) {
        message.put(&self.head());
        message.put(self.key);
        fill(message);
    }

    /// Writes the header and the key, and returns what follows them.
    pub(crate) fn write<'m>(&self, message: &'m mut [u8]) -> &'m mut [u8] {
        let (head, rest) = message.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&self.head());
        let (key, data) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        data
    }

    fn head(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            ChangeKind::Data => DATA,
            ChangeKind::Dispose => DISPOSE,
            ChangeKind::Unregister => UNREGISTER,
        };
        let key_length = u32::try_from(self.key.len()).expect("a key is shorter than a message");
        let mut head = [0; HEADER_BYTES];
        head[..2].copy_from_slice(&[kind, 0]);
        head[2..4].copy_from_slice(&self.writer.number.to_le_bytes());
        head[4..8].copy_from_slice(&self.writer.node.to_le_bytes());
        head[8..16].copy_from_slice(&self.source_time.to_le_bytes());
        head[16..20].copy_from_slice(&key_length.to_le_bytes());
        head[20..24].copy_from_slice(&self.topic.to_le_bytes());
        head
    }
}

impl<'a> TopicFrame<'a> {
    /// Reads a message; `None` if it is none. Not fuzzed: a property below gives it arbitrary bytes.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let kind = match *bytes.first()? {
            ANNOUNCEMENT => {
                let (topic, body) = bytes[1..].split_first_chunk()?;
                return Some(Self::Announcement(u32::from_le_bytes(*topic), body));
            }
            SERVICE => return Some(Self::Service(&bytes[1..])),
            CREATION => return Some(Self::Creation(&bytes[1..])),
            CLIENT => return Some(Self::Client(u32::from_le_bytes(bytes[1..].try_into().ok()?))),
            RENEWAL => return Some(Self::Renewal(u32::from_le_bytes(bytes[1..].try_into().ok()?))),
            GONE => return postcard::from_bytes(&bytes[1..]).ok().map(Self::Gone),
            SET => return Some(Self::Set(&bytes[1..])),
            DATA => ChangeKind::Data,
            DISPOSE => ChangeKind::Dispose,
            UNREGISTER => ChangeKind::Unregister,
            _ => return None,
        };
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let number = u16::from_le_bytes(header[2..4].try_into().ok()?);
        let node = u32::from_le_bytes(header[4..8].try_into().ok()?);
        let source_time = u64::from_le_bytes(header[8..16].try_into().ok()?);
        let key_length = u32::from_le_bytes(header[16..20].try_into().ok()?);
        let topic = u32::from_le_bytes(header[20..24].try_into().ok()?);
        let (key, data) = rest.split_at_checked(key_length as usize)?;
        let writer = EndpointId { node, number };
        Some(Self::Change(ChangeHeader { kind, topic, writer, source_time, key }, data))
    }
}

/// What an endpoint does in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TopicRole {
    Writer,
    Reader,
    /// It has been closed.
    Gone,
}

/// What a participant says of one of its endpoints; a later announcement replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointAnnouncement {
    pub(crate) id: EndpointId,
    pub(crate) role: TopicRole,
    pub(crate) type_name: String,
    pub(crate) qos: Qos,
}

impl EndpointAnnouncement {
    /// Returns the announcement that the endpoint has gone. It is not longer than the one that it was there.
    pub(crate) fn end(&self) -> Self {
        let (user_data, topic_data, group_data) = Default::default();
        let qos = Qos { user_data, topic_data, group_data, ..self.qos.clone() };
        Self { id: self.id, role: TopicRole::Gone, type_name: String::new(), qos }
    }

    /// Returns the announcement that the endpoint has gone with its process: it does not dispose of its instances.
    pub(crate) fn loss(&self) -> Self {
        let mut end = self.end();
        end.qos.autodispose_unregistered_instances = false;
        end
    }

    pub(crate) fn encode(&self, topic: u32) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("policies can be serialised");
        [&[ANNOUNCEMENT], &topic.to_le_bytes()[..], &body[..]].concat()
    }

    /// Reads an announcement; `None` if it is none. Not fuzzed: a property below gives it arbitrary bytes.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body).ok()
    }
}

/// Returns the message by which a client outside the group asks for a number.
pub(crate) fn encode_client(first: u32) -> Vec<u8> {
    [&[CLIENT], &first.to_le_bytes()[..]].concat()
}

/// Returns the message by which a client says that it is there.
pub(crate) fn encode_renewal(client: u32) -> Vec<u8> {
    [&[RENEWAL], &client.to_le_bytes()[..]].concat()
}

/// Returns the message that a process has gone.
pub(crate) fn encode_gone(gone: GoneProcess) -> Vec<u8> {
    let body = postcard::to_stdvec(&gone).expect("numbers can be serialised");
    [&[GONE], &body[..]].concat()
}

/// Returns the message of an empty set.
pub(crate) fn begin_set() -> Vec<u8> {
    vec![SET]
}

/// Adds a change to the message of a set.
pub(crate) fn extend_set(set: &mut Vec<u8>, change: &[u8]) {
    let length = u32::try_from(change.len()).expect("a change is shorter than 4 GiB");
    set.extend_from_slice(&length.to_le_bytes());
    set.extend_from_slice(change);
}

/// Reads the changes of a set, each with its bytes and its data; `None` if one of them is none. Not fuzzed: a property below gives it arbitrary
/// bytes.
pub(crate) fn read_set(mut body: &[u8]) -> Option<Vec<SetChange<'_>>> {
    let mut changes = Vec::new();
    while !body.is_empty() {
        let (length, rest) = body.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let TopicFrame::Change(header, data) = TopicFrame::decode(bytes)? else { return None };
        changes.push(SetChange { header, data, bytes });
        body = rest;
    }
    Some(changes)
}

/// A change of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetChange<'a> {
    pub(crate) header: ChangeHeader<'a>,
    pub(crate) data: &'a [u8],
    /// The change as a message.
    pub(crate) bytes: &'a [u8],
}

/// Returns the message that says what a participant expects the topic to keep.
pub(crate) fn encode_service(service: DurabilityService) -> Vec<u8> {
    let body = postcard::to_stdvec(&service).expect("a policy can be serialised");
    [&[SERVICE], &body[..]].concat()
}

/// Reads what a participant expects the topic to keep; `None` if it is nothing of the kind, or empty. Not fuzzed: a property below gives it
/// arbitrary bytes.
pub(crate) fn decode_service(body: &[u8]) -> Option<DurabilityService> {
    postcard::from_bytes(body).ok().filter(|service: &DurabilityService| !service.is_empty())
}

/// A topic that was created at run time, as all participants know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegisteredTopic {
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) type_hash: u64,
    pub(crate) qos: Qos,
}

impl RegisteredTopic {
    /// Returns the message that creates the topic.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("a topic can be serialised");
        [&[CREATION], &body[..]].concat()
    }

    /// Reads a topic that is to be created; `None` if it is none, or its policies are refused. Not fuzzed: a property below gives it arbitrary
    /// bytes.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body)
            .ok()
            .filter(|topic: &Self| topic.qos.check().is_ok() && check_name(&topic.name).is_ok())
    }
}

/// Checks that a name can be one of a topic: tools print it, and members keep it.
pub(crate) fn check_name(name: &str) -> Result<(), TopicNameError> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control) {
        return Ok(());
    }
    let mut shown: String = name.chars().take(NAME_SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME_SHOWN).is_some() {
        shown.push('…');
    }
    Err(TopicNameError { name: shown })
}

/// The longest name of a topic.
const NAME_BYTES_MAX: usize = 256;
/// How many characters of a name that is refused are shown.
const NAME_SHOWN: usize = 40;
const DATA: u8 = 1;
const DISPOSE: u8 = 2;
const UNREGISTER: u8 = 3;
const ANNOUNCEMENT: u8 = 4;
const SERVICE: u8 = 5;
const CREATION: u8 = 6;
const SET: u8 = 7;
const CLIENT: u8 = 8;
const RENEWAL: u8 = 9;
const GONE: u8 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_arrive_as_they_were_sent(
            kind in 0usize..3, topic in any::<u32>(), node in any::<u32>(), number in any::<u16>(), source_time in any::<u64>(),
            key in proptest::collection::vec(any::<u8>(), 0..20),
            data in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let kind = [ChangeKind::Data, ChangeKind::Dispose, ChangeKind::Unregister][kind];
            let header = ChangeHeader { kind, topic, writer: EndpointId { node, number }, source_time, key: &key };
            let mut message = vec![0xee; header.length_with(data.len())];
            header.write(&mut message).copy_from_slice(&data);
            prop_assert_eq!(TopicFrame::decode(&message), Some(TopicFrame::Change(header, &data)));
            for length in 0..HEADER_BYTES + key.len() {
                prop_assert_eq!(TopicFrame::decode(&message[..length]), None);
            }
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0u8..12) {
            let bytes = [&[kind], &bytes[..]].concat();
            match TopicFrame::decode(&bytes) {
                Some(TopicFrame::Announcement(_, body)) => drop(EndpointAnnouncement::decode(body)),
                Some(TopicFrame::Service(body)) => drop(decode_service(body)),
                Some(TopicFrame::Creation(body)) => drop(RegisteredTopic::decode(body)),
                Some(TopicFrame::Set(body)) => drop(read_set(body)),
                _ => {}
            }
        }
    }

    #[test]
    fn names_of_topics_are_checked() {
        for name in ["a", "Grüße an/alle", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "two\nlines", "\u{1b}[2J", "\u{9b}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let error = check_name(name).unwrap_err();
            assert!(
                !error.to_string().contains(char::is_control) && error.to_string().len() < 200,
                "{error}"
            );
            let topic =
                RegisteredTopic { name: name.into(), type_name: "T".into(), type_hash: 0, qos: Qos::KEPT };
            assert_eq!(RegisteredTopic::decode(&topic.encode()[1..]), None);
        }
    }

    #[test]
    fn sets_arrive_as_they_were_sent() {
        let change = |topic: u32, data: &[u8]| {
            let writer = EndpointId { node: 1, number: 2 };
            let header = ChangeHeader { kind: ChangeKind::Data, topic, writer, source_time: 3, key: b"k" };
            let mut bytes = vec![0; header.length_with(data.len())];
            header.write(&mut bytes).copy_from_slice(data);
            bytes
        };
        let changes = [change(4, b"a"), change(5, b""), change(4, b"bcd")];
        let mut set = begin_set();
        changes.iter().for_each(|change| extend_set(&mut set, change));
        let Some(TopicFrame::Set(body)) = TopicFrame::decode(&set) else { panic!("{set:?}") };
        let read = read_set(body).expect("it is a set");
        assert!(read.iter().map(|change| change.bytes).eq(&changes));
        assert_eq!((read[2].header.topic, read[2].data), (4, &b"bcd"[..]));
        for length in 1..body.len() {
            assert!(read_set(&body[..length]).is_none_or(|read| read.len() < 3), "a part is not a whole set");
        }
        let mut nested = begin_set();
        extend_set(&mut nested, &set);
        assert_eq!(read_set(&nested[1..]), None, "a set has no sets");
    }

    #[test]
    fn what_is_said_of_processes_arrives_as_it_was_sent() {
        assert_eq!(TopicFrame::decode(&encode_client(7)), Some(TopicFrame::Client(7)));
        assert_eq!(TopicFrame::decode(&encode_renewal(7)), Some(TopicFrame::Renewal(7)));
        let gone = GoneProcess { node: u32::MAX, before: u64::MAX };
        assert_eq!(TopicFrame::decode(&encode_gone(gone)), Some(TopicFrame::Gone(gone)));
        assert_eq!(TopicFrame::decode(&encode_client(7)[..3]), None);
    }

    #[test]
    fn announcements_arrive_as_they_were_sent() {
        let id = EndpointId { node: 7, number: 1 };
        let sent =
            EndpointAnnouncement { id, role: TopicRole::Writer, type_name: "T".into(), qos: Qos::LOGGED };
        let message = sent.encode(3);
        let Some(TopicFrame::Announcement(3, body)) = TopicFrame::decode(&message) else {
            panic!("{message:?}")
        };
        assert_eq!(EndpointAnnouncement::decode(body), Some(sent));
    }
}
