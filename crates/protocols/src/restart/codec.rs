//! The bytes of a register: words of 8 bytes, little endian (Derecho §3.4, "Total failures").
//!
//! The file around them has the format's version and a checksum for each copy. Whatever the bytes are, reading them is safe: a
//! list takes at most sixteen times the memory of the bytes that it is read from: a set of ranks, one word here, has a bit for each rank.

use std::fmt;

use squall_fabric::NodeId;

use super::register::{Register, ViewRecord};
use super::view_chain::ViewChain;
use super::view_end::{DurableView, EndOrigin, ViewEnd, Vote};
use crate::ends::Ballot;
use crate::membership::{MEMBERS_MAX, RankSet};

/// Why bytes are no register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// They end too soon.
    Short,
    /// Something follows the register.
    Long,
    /// A word has no such meaning: its place, counted from 0.
    Word(usize),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "the register ends too soon; use its other copy"),
            Self::Long => write!(f, "bytes follow the register; use its other copy"),
            Self::Word(place) => write!(f, "word {place} of the register has no meaning; use its other copy"),
        }
    }
}

impl std::error::Error for RegisterError {}

impl Register {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { group, node, tag, layout, starts, damaged_in, record, promise, vote } = self;
        let mut words = vec![*group, u64::from(node.0), *tag, *layout, *starts];
        words.extend(damaged_in.map_or([0, 0], |view| [1, view]));
        words.push(record.view.shards.len() as u64);
        put_record(&mut words, record);
        put_ballot(&mut words, *promise);
        put_vote(&mut words, vote.as_ref());
        to_bytes(&words)
    }

    /// Reads what [`Register::encode`] has written. Fuzzed as `restart_register`.
    ///
    /// # Errors
    /// The bytes are no register.
    pub fn decode(bytes: &[u8]) -> Result<Self, RegisterError> {
        let mut words = RegisterWords::new(bytes);
        let (group, node) = (words.next()?, NodeId(words.number()?));
        let (tag, layout, starts) = (words.next()?, words.next()?, words.next()?);
        let damaged_in = words.optional(RegisterWords::next, 0)?;
        let shards = words.list(1)?;
        let record = words.record(shards)?;
        let promise = words.optional_ballot()?;
        let vote = words.optional_vote(shards, Some(record.view.number))?;
        let is_ordered = vote.as_ref().map(|vote| vote.ballot) <= promise;
        match words.bytes {
            [] if is_ordered => {}
            [] => return Err(words.wrong()),
            _ => return Err(RegisterError::Long),
        }
        Ok(Self { group, node, tag, layout, starts, damaged_in, record, promise, vote })
    }
}

/// The bytes of words.
pub(super) fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Puts a view and the ends of those before it.
pub(super) fn put_record(words: &mut Vec<u64>, ViewRecord { view, chain }: &ViewRecord) {
    put_view(words, view);
    words.extend([chain.first(), chain.counted().count() as u64]);
    words.extend(chain.counted().map(|(view, _)| view));
    chain.counted().for_each(|(_, trims)| words.extend(trims));
}

/// Puts a ballot behind a flag.
pub(super) fn put_ballot(words: &mut Vec<u64>, ballot: Option<Ballot>) {
    words.extend(ballot.map_or([0; 3], |ballot| [1, ballot.round, u64::from(ballot.place)]));
}

/// Puts a vote behind a flag.
pub(super) fn put_vote(words: &mut Vec<u64>, vote: Option<&Vote>) {
    words.push(u64::from(vote.is_some()));
    if let Some(Vote { ballot, end }) = vote {
        words.extend([ballot.round, u64::from(ballot.place)]);
        put_end(words, end);
    }
}

/// Puts the end of a view.
pub(super) fn put_end(words: &mut Vec<u64>, end: &ViewEnd) {
    words.push(u64::from(end.origin == EndOrigin::Live));
    words.extend(&end.trims);
    put_view(words, &end.next);
}

fn put_view(words: &mut Vec<u64>, view: &DurableView) {
    words.extend([view.number, view.members.len() as u64]);
    words.extend(view.members.iter().map(|node| u64::from(node.0)));
    words.extend(view.shards.iter().flat_map(|shard| shard.words(set_room(view.members.len()))));
}

/// A set of ranks takes a word at least, also in the view of a process that knows none.
fn set_room(members: usize) -> usize {
    members.max(1)
}

/// The words that are still to be read.
pub(super) struct RegisterWords<'a> {
    pub(super) bytes: &'a [u8],
    /// Words read.
    place: usize,
}

impl<'a> RegisterWords<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, place: 0 }
    }

    pub(super) fn next(&mut self) -> Result<u64, RegisterError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(RegisterError::Short)?;
        (self.bytes, self.place) = (rest, self.place + 1);
        Ok(u64::from_le_bytes(*word))
    }

    /// The last word read has no such meaning.
    pub(super) const fn wrong(&self) -> RegisterError {
        RegisterError::Word(self.place.saturating_sub(1))
    }

    fn number(&mut self) -> Result<u32, RegisterError> {
        u32::try_from(self.next()?).map_err(|_| self.wrong())
    }

    pub(super) fn flag(&mut self) -> Result<bool, RegisterError> {
        match self.next()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong()),
        }
    }

    /// A value after a flag. Without the flag it is `absent`, so that a register has one form only.
    pub(super) fn optional<T: PartialEq>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, RegisterError>,
        absent: T,
    ) -> Result<Option<T>, RegisterError> {
        let is_there = self.flag()?;
        let value = read(self)?;
        if is_there {
            Ok(Some(value))
        } else if value == absent {
            Ok(None)
        } else {
            Err(self.wrong())
        }
    }

    /// The length of a list of items with `words` words each, which must be here.
    pub(super) fn list(&mut self, words: usize) -> Result<usize, RegisterError> {
        let length = self.next()?;
        let is_here = |length: &usize| length.saturating_mul(words.max(1)) <= self.bytes.len() / 8;
        usize::try_from(length).ok().filter(is_here).ok_or(RegisterError::Short)
    }

    pub(super) fn list_of(&mut self, length: usize) -> Result<Vec<u64>, RegisterError> {
        (0..length).map(|_| self.next()).collect()
    }

    fn view(&mut self, shards: usize) -> Result<DurableView, RegisterError> {
        let number = self.next()?;
        let length = self.list(1)?;
        if length > MEMBERS_MAX {
            return Err(self.wrong());
        }
        let members = (0..length).map(|_| self.number().map(NodeId)).collect::<Result<Vec<_>, _>>()?;
        let each = RankSet::words_for(set_room(length));
        let set = |_| self.list_of(each).map(RankSet::from_words);
        let shards = (0..shards).map(set).collect::<Result<Vec<_>, _>>()?;
        let view = DurableView { number, members, shards };
        let all = view.ranks();
        let is_valid = view.shards.iter().all(|ranks| ranks.is_subset(&all))
            && (0..length).all(|rank| view.rank(view.members[rank]) == Some(rank));
        if is_valid { Ok(view) } else { Err(self.wrong()) }
    }

    /// The list of the views before `end`.
    fn chain(&mut self, shards: usize, end: u64) -> Result<ViewChain, RegisterError> {
        let first = self.next()?;
        let length = self.list(shards.saturating_add(1))?;
        let views = self.list_of(length)?;
        let trims = self.list_of(length * shards)?;
        ViewChain::from_parts(first, end, views, trims).ok_or(self.wrong())
    }

    fn ballot(&mut self) -> Result<Ballot, RegisterError> {
        Ok(Ballot { round: self.next()?, place: self.number()? })
    }

    pub(super) fn optional_ballot(&mut self) -> Result<Option<Ballot>, RegisterError> {
        self.optional(Self::ballot, Ballot { round: 0, place: 0 })
    }

    /// A vote after a flag, about the end of the view with this number.
    pub(super) fn optional_vote(
        &mut self,
        shards: usize,
        view: Option<u64>,
    ) -> Result<Option<Vote>, RegisterError> {
        if !self.flag()? {
            return Ok(None);
        }
        Ok(Some(Vote { ballot: self.ballot()?, end: self.end(shards, view)? }))
    }

    /// The end of the view with this number.
    pub(super) fn end(&mut self, shards: usize, view: Option<u64>) -> Result<ViewEnd, RegisterError> {
        let origin = if self.flag()? { EndOrigin::Live } else { EndOrigin::Restart };
        let trims = self.list_of(shards)?;
        let next = self.view(shards)?;
        if view.and_then(|number| number.checked_add(1)) != Some(next.number) {
            return Err(self.wrong());
        }
        Ok(ViewEnd { trims, next, origin })
    }

    pub(super) fn record(&mut self, shards: usize) -> Result<ViewRecord, RegisterError> {
        let view = self.view(shards)?;
        let chain = self.chain(shards, view.number)?;
        Ok(ViewRecord { view, chain })
    }
}

#[cfg(test)]
mod tests {
    use super::super::register::tests::{end, view};
    use super::*;

    fn register() -> Register {
        let mut register = Register::new(7, NodeId(2), view(0, &[0, 1, 2]));
        register.end_view(&end(9, view(1, &[0, 2])));
        register.start(true);
        assert!(register.vote(Vote { ballot: Ballot::live(1), end: end(3, view(2, &[2])) }));
        assert!(register.promise(Ballot::above(register.promise, NodeId(2))));
        register
    }

    #[test]
    fn what_is_written_is_read() {
        let joiner = Register::new(7, NodeId(9), DurableView::default());
        for register in [register(), joiner] {
            assert_eq!(Register::decode(&register.encode()), Ok(register));
        }
    }

    #[test]
    fn what_is_cut_or_continued_is_refused() {
        let bytes = register().encode();
        for length in 0..bytes.len() {
            assert!(Register::decode(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        assert_eq!(Register::decode(&[&bytes[..], &[0]].concat()), Err(RegisterError::Long));
    }

    /// A length is believed only as far as the bytes reach, a rank only if there is such a member.
    #[test]
    fn a_word_that_is_too_large_is_refused() {
        let bytes = register().encode();
        for word in 0..bytes.len() / 8 {
            let mut large = bytes.clone();
            large[8 * word..8 * word + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            if let Ok(read) = Register::decode(&large) {
                assert_eq!(read.encode(), large, "word {word}");
            }
        }
        let mut twice = Register::new(7, NodeId(0), view(0, &[0, 1]));
        twice.record.view.members[1] = NodeId(0);
        assert!(matches!(Register::decode(&twice.encode()), Err(RegisterError::Word(_))));
    }

    /// What a flag declares absent is zero: the same register has no other form.
    #[test]
    fn what_is_absent_is_zero() {
        let bytes = Register::new(7, NodeId(9), DurableView::default()).encode();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 2;
            if let Ok(read) = Register::decode(&other) {
                assert_eq!(read.encode(), other, "byte {at}");
            }
        }
    }
}
