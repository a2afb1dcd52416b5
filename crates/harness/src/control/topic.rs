//! The work of members that write and read a topic.

use serde::{Deserialize, Serialize};

/// The first member writes samples of a topic as fast as it can, or one at a time; the others take them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DdsJob {
    pub(crate) profile: ProfileName,
    pub(crate) size: usize,
    /// Samples that the writer writes.
    pub(crate) samples: u64,
    pub(crate) window: usize,
    /// One sample at a time, to which each reader answers.
    pub(crate) latency: bool,
    /// Readers read samples where they are.
    pub(crate) in_place: bool,
    /// The folder for the members' logs, with the profile `logged`.
    pub(crate) storage: Option<std::path::PathBuf>,
}

impl DdsJob {
    /// The number of the sample.
    pub(crate) const SIZE_MIN: usize = 8;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProfileName {
    /// In the order of each writer; nothing is kept
    Unordered,
    /// In one order for all; nothing is kept
    Atomic,
    /// As atomic, and kept in memory for readers that come later
    Kept,
    /// As kept, on the disks of all members; needs --storage
    Logged,
}

impl ProfileName {
    /// Whether samples are kept for readers that come later.
    pub(crate) const fn keeps(self) -> bool {
        matches!(self, Self::Kept | Self::Logged)
    }

    /// The name for people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Unordered => "unordered",
            Self::Atomic => "atomic",
            Self::Kept => "kept",
            Self::Logged => "logged",
        }
    }
}
