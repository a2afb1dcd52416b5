//! What a folder belongs to, and what its process has promised: identity and register.

use std::collections::BTreeMap;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::disk::{DiskCause, DiskError};
use crate::names;
use crate::record::LogPosition;
use crate::segment::LogBase;
use crate::subgroups::LogSubgroups;

/// The version of the format. A folder of a newer one is refused.
///
/// Version 2: the register says what has been recycled. A folder of version 1, in which nothing was, is read, and has version 2 when
/// it has been opened for writing.
///
/// Version 3: the register has the names of the durable subgroups. A folder of an earlier version, in which the subgroups were known by their
/// places, is read.
pub const FORMAT: u32 = 3;

/// What a folder belongs to, and the sizes that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogIdentity {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the member.
    pub member: String,
    /// The log's id, random, new for each log that begins in the folder.
    pub log: u64,
    /// [`LogSettings::block`](crate::LogSettings::block)
    pub block: u32,
    /// [`LogSettings::segment_bytes`](crate::LogSettings::segment_bytes)
    pub segment_bytes: u32,
    /// [`LogSettings::in_flight_max`](crate::LogSettings::in_flight_max)
    pub in_flight_max: u32,
}

/// What must not be in the part of a log that a crash can cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterValue {
    /// The log to which it belongs.
    pub log: u64,
    /// How often the log was opened for writing: its frames have numbers of their own in each life.
    pub life: u64,
    /// Where the log begins.
    pub base: LogBase,
    /// What the protocol keeps of views and votes, in its own words; empty before it has written any.
    pub protocol: Vec<u8>,
    /// Up to which position records of each subgroup are not here any more: they were recycled, or a checkpoint of another process has taken
    /// their place. An older checkpoint has no log behind it.
    pub recycled: BTreeMap<u32, LogPosition>,
    /// The durable subgroups.
    pub subgroups: LogSubgroups,
}

/// Why bytes are no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The folder was written by a newer release.
    #[error(
        "the folder has the format {0}, and this release knows formats up to {FORMAT}: use the release that has written it, or a newer one"
    )]
    Newer(u32),
    /// The bytes are something else.
    #[error(
        "the identity cannot be read: restore the file from a copy, or move the folder away, and the member joins as a new one"
    )]
    Unreadable,
}

impl LogIdentity {
    /// Returns an id for a new log, which no other log has.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn random_log() -> Result<u64, DiskError> {
        let mut bytes = [0; 8];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|errno| DiskError {
            operation: "choose a random id for",
            path: names::LOG.into(),
            cause: DiskCause::System(errno.raw_os_error()),
        })?;
        debug_assert_eq!(filled, bytes.len(), "the kernel does not split short requests");
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the identity, behind the version of the format.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_le_bytes().to_vec();
        bytes.extend(postcard::to_stdvec(self).expect("memory takes everything"));
        bytes
    }

    /// Reads an identity. Fuzzed as `identity`.
    ///
    /// # Errors
    /// If the bytes are none, or of a newer format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, IdentityError> {
        let (format, rest) = bytes.split_first_chunk().ok_or(IdentityError::Unreadable)?;
        let format = u32::from_le_bytes(*format);
        if format > FORMAT {
            return Err(IdentityError::Newer(format));
        }
        postcard::from_bytes(rest).map_err(|_| IdentityError::Unreadable)
    }
}

impl RegisterValue {
    /// Returns the register of a log that has never been opened.
    #[must_use]
    pub fn new(log: u64, segment: u32) -> Self {
        let base = LogBase::new(segment);
        Self {
            log,
            life: 0,
            base,
            protocol: Vec::new(),
            recycled: BTreeMap::new(),
            subgroups: LogSubgroups::default(),
        }
    }

    /// Whether records that were read between both belong to both.
    pub(crate) fn is_of_same_log(&self, other: &Self) -> bool {
        let parts = |value: &Self| {
            (value.base, value.recycled.clone(), value.protocol.clone(), value.subgroups.clone())
        };
        parts(self) == parts(other)
    }

    /// Writes the register.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("memory takes everything")
    }

    /// Reads a register. Fuzzed as `register`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // A register of an earlier version ends before what a later one has added.
        let earlier = |recycled: bool| {
            let (log, life, base, protocol, recycled) = if recycled {
                postcard::from_bytes(bytes).ok()?
            } else {
                let (log, life, base, protocol) = postcard::from_bytes(bytes).ok()?;
                (log, life, base, protocol, BTreeMap::new())
            };
            Some(Self { log, life, base, protocol, recycled, subgroups: LogSubgroups::default() })
        };
        postcard::from_bytes(bytes).ok().or_else(|| earlier(true)).or_else(|| earlier(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> LogIdentity {
        let (block, segment_bytes, in_flight_max) = (4096, 64 << 20, 4);
        LogIdentity { cluster: "c".into(), member: "m".into(), log: 7, block, segment_bytes, in_flight_max }
    }

    #[test]
    fn values_are_read_as_written() {
        assert_eq!(LogIdentity::from_bytes(&identity().to_bytes()), Ok(identity()));
        let register = RegisterValue { life: 3, protocol: vec![1], ..RegisterValue::new(7, 1) };
        assert_eq!(RegisterValue::from_bytes(&register.to_bytes()), Some(register.clone()));
        let (base, protocol) = (register.base, register.protocol.clone());
        let earlier = postcard::to_stdvec(&(7_u64, 3_u64, base, &protocol)).expect("it fits");
        assert_eq!(RegisterValue::from_bytes(&earlier), Some(register.clone()), "version 1");
        let recycled = [(4, LogPosition { view: 2, sequence: 9 })].into();
        let register = RegisterValue { recycled, ..register };
        let earlier = postcard::to_stdvec(&(7_u64, 3_u64, base, &register.protocol, &register.recycled));
        let read = RegisterValue::from_bytes(&earlier.expect("it fits"));
        assert_eq!(read, Some(register.clone()), "version 2");
        let subgroups = LogSubgroups { numbers: [("orders".into(), 3)].into(), next: 4, change: None };
        let register = RegisterValue { subgroups, ..register };
        assert_eq!(RegisterValue::from_bytes(&register.to_bytes()), Some(register));
    }

    #[test]
    fn a_newer_format_is_refused_with_words() {
        let mut bytes = identity().to_bytes();
        bytes[0] = 4;
        let error = LogIdentity::from_bytes(&bytes).expect_err("it is newer");
        assert_eq!(error, IdentityError::Newer(4));
        assert!(error.to_string().contains("format 4"), "{error}");
        assert_eq!(LogIdentity::from_bytes(b"abc"), Err(IdentityError::Unreadable));
    }
}
