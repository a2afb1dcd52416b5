//! What is in the segments of a log, and where it begins.

use std::collections::BTreeMap;

use crate::record::LogPosition;

/// Segments that are not needed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recycling {
    /// The segments, the oldest first.
    pub segments: Vec<u32>,
    /// Where the log begins without them.
    pub base: LogBase,
    /// The greatest position of each subgroup in them.
    pub positions: BTreeMap<u32, LogPosition>,
}

/// Where a log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogBase {
    /// The first segment.
    pub segment: u32,
    /// The number of the frame before its first one.
    pub before: u64,
    /// What its first frame has as `chain`.
    pub chain: u64,
}

impl LogBase {
    /// Returns the base of a log that has never been written, and begins in `segment`.
    #[must_use]
    pub const fn new(segment: u32) -> Self {
        Self { segment, before: 0, chain: 0 }
    }
}

/// What is in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentContents {
    /// The number of the frame before its first one.
    pub before: u64,
    /// What its first frame has as `chain`.
    pub chain: u64,
    /// The greatest position of each subgroup.
    pub positions: BTreeMap<u32, LogPosition>,
}

/// Raises a subgroup's position.
pub(crate) fn raise(positions: &mut BTreeMap<u32, LogPosition>, subgroup: u32, position: LogPosition) {
    let greatest = positions.entry(subgroup).or_insert(position);
    *greatest = (*greatest).max(position);
}
