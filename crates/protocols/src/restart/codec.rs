//! The bytes of a register: words of 8 bytes, little endian (Derecho §3.4, "Total failures").
//!
//! The file around them has the format's version and a checksum for each copy. Whatever the bytes are, reading them is safe: a
//! list takes no more memory than the bytes that it is read from.

use std::fmt;

use squall_fabric::NodeId;

use super::ballot::Ballot;
use super::register::{Register, ViewChain, ViewRecord};
use super::view_end::{DurableView, EndOrigin, ViewEnd, Vote};
use crate::membership::MEMBERS_MAX;

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
        let Self { group, node, starts, damaged_in, record, promise, vote } = self;
        let mut words = vec![*group, u64::from(node.0), *starts];
        words.extend(damaged_in.map_or([0, 0], |view| [1, view]));
        words.push(record.view.shards.len() as u64);
        put_view(&mut words, &record.view);
        words.extend([record.chain.first, record.chain.trims.len() as u64]);
        record.chain.trims.iter().for_each(|trims| words.extend(trims));
        words.extend(promise.map_or([0; 3], |ballot| [1, ballot.round, u64::from(ballot.place)]));
        words.push(u64::from(vote.is_some()));
        if let Some(Vote { ballot, end }) = vote {
            words.extend([ballot.round, u64::from(ballot.place), u64::from(end.origin == EndOrigin::Live)]);
            words.extend(&end.trims);
            put_view(&mut words, &end.next);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what [`Register::encode`] has written. Fuzzed as `restart_register`.
    ///
    /// # Errors
    /// The bytes are no register.
    pub fn decode(bytes: &[u8]) -> Result<Self, RegisterError> {
        let mut words = RegisterWords { bytes, place: 0 };
        let (group, node, starts) = (words.next()?, NodeId(words.number()?), words.next()?);
        let damaged_in = words.optional(RegisterWords::next, 0)?;
        let shards = words.list(1)?;
        let view = words.view(shards)?;
        let chain = words.chain(shards)?;
        if chain.first.checked_add(chain.trims.len() as u64) != Some(view.number) {
            return Err(words.wrong());
        }
        let promise = words.optional(RegisterWords::ballot, Ballot { round: 0, place: 0 })?;
        let vote = match words.flag()? {
            true => Some(words.vote(shards, &view)?),
            false => None,
        };
        let is_ordered = vote.as_ref().map(|vote| vote.ballot) <= promise;
        match words.bytes {
            [] if is_ordered => {}
            [] => return Err(words.wrong()),
            _ => return Err(RegisterError::Long),
        }
        Ok(Self { group, node, starts, damaged_in, record: ViewRecord { view, chain }, promise, vote })
    }
}

fn put_view(words: &mut Vec<u64>, view: &DurableView) {
    words.extend([view.number, view.members.len() as u64]);
    words.extend(view.members.iter().map(|node| u64::from(node.0)));
    words.extend(&view.shards);
}

/// The words that are still to be read.
struct RegisterWords<'a> {
    bytes: &'a [u8],
    /// Words read.
    place: usize,
}

impl RegisterWords<'_> {
    fn next(&mut self) -> Result<u64, RegisterError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(RegisterError::Short)?;
        (self.bytes, self.place) = (rest, self.place + 1);
        Ok(u64::from_le_bytes(*word))
    }

    /// The last word read has no such meaning.
    const fn wrong(&self) -> RegisterError {
        RegisterError::Word(self.place.saturating_sub(1))
    }

    fn number(&mut self) -> Result<u32, RegisterError> {
        u32::try_from(self.next()?).map_err(|_| self.wrong())
    }

    fn flag(&mut self) -> Result<bool, RegisterError> {
        match self.next()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong()),
        }
    }

    /// A value after a flag. Without the flag it is `absent`, so that a register has one form only.
    fn optional<T: PartialEq>(
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
    fn list(&mut self, words: usize) -> Result<usize, RegisterError> {
        let length = self.next()?;
        let is_here = |length: &usize| length.saturating_mul(words.max(1)) <= self.bytes.len() / 8;
        usize::try_from(length).ok().filter(is_here).ok_or(RegisterError::Short)
    }

    fn list_of(&mut self, length: usize) -> Result<Vec<u64>, RegisterError> {
        (0..length).map(|_| self.next()).collect()
    }

    fn view(&mut self, shards: usize) -> Result<DurableView, RegisterError> {
        let number = self.next()?;
        let length = self.list(1)?;
        if length > MEMBERS_MAX {
            return Err(self.wrong());
        }
        let members = (0..length).map(|_| self.number().map(NodeId)).collect::<Result<Vec<_>, _>>()?;
        let shards = self.list_of(shards)?;
        let view = DurableView { number, members, shards };
        let all = view.ranks();
        let is_valid = view.shards.iter().all(|ranks| ranks & !all == 0)
            && (0..length).all(|rank| view.rank(view.members[rank]) == Some(rank));
        if is_valid { Ok(view) } else { Err(self.wrong()) }
    }

    fn chain(&mut self, shards: usize) -> Result<ViewChain, RegisterError> {
        let first = self.next()?;
        let length = self.list(shards)?;
        let trims = (0..length).map(|_| self.list_of(shards)).collect::<Result<_, _>>()?;
        Ok(ViewChain { first, trims })
    }

    fn ballot(&mut self) -> Result<Ballot, RegisterError> {
        Ok(Ballot { round: self.next()?, place: self.number()? })
    }

    fn vote(&mut self, shards: usize, view: &DurableView) -> Result<Vote, RegisterError> {
        let ballot = self.ballot()?;
        let origin = if self.flag()? { EndOrigin::Live } else { EndOrigin::Restart };
        let trims = self.list_of(shards)?;
        let next = self.view(shards)?;
        if Some(next.number) != view.number.checked_add(1) {
            return Err(self.wrong());
        }
        Ok(Vote { ballot, end: ViewEnd { trims, next, origin } })
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
