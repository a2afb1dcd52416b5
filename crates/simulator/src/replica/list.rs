//! The object: the list of all updates (Derecho app. A).

use std::rc::Rc;

use squall_protocols::replica::{HEADER_BYTES, Machine};

/// Cheap to copy, as states should be that are given away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppendList(Rc<Vec<u64>>);

impl AppendList {
    pub(super) fn ids(&self) -> &[u64] {
        &self.0
    }
}

impl Machine for AppendList {
    /// The update's place in the list.
    type Reply = u64;
    type Snapshot = Self;

    fn apply(&mut self, update: &[u8]) -> u64 {
        Rc::make_mut(&mut self.0).push(id_of(update).expect("updates begin with their ids"));
        self.0.len() as u64 - 1
    }

    fn encode(reply: &u64) -> Vec<u8> {
        reply.to_le_bytes().to_vec()
    }

    /// All of it.
    fn query(&self, _query: &[u8]) -> Vec<u8> {
        self.0.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    fn snapshot(&self) -> Self {
        self.clone()
    }
}

/// The list that a query was answered with.
pub(super) fn ids_of(reply: &[u8]) -> Vec<u64> {
    let (words, rest) = reply.as_chunks();
    assert!(rest.is_empty(), "lists are words");
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// An update's bytes: its id, and some more that differ in length.
pub(super) fn update(id: u64) -> Vec<u8> {
    let more = usize::try_from(id * 7 % 24).expect("small");
    [&id.to_le_bytes()[..], &vec![id as u8; more]].concat()
}

/// The longest update with its header.
pub(super) const UPDATE_MAX: usize = HEADER_BYTES + 8 + 23;

/// The id of an update.
pub(super) fn id_of(update: &[u8]) -> Option<u64> {
    update.first_chunk().map(|id| u64::from_le_bytes(*id))
}

/// A reply, as [`Machine::encode`] has written it.
pub(super) fn place_of(reply: &[u8]) -> u64 {
    id_of(reply).expect("replies are words")
}
