//! Sizes of a log.

use crate::frame::FRAME_HEADER_BYTES;

/// Sizes, which a folder keeps from its creation on (`block`, `segment_bytes`), and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Frames begin at multiples of it. A power of two, at least the length of a header.
    pub block: usize,
    /// The length of a segment, a multiple of the block.
    pub segment_bytes: u32,
    /// A frame that would grow beyond is full. A record that is longer has a frame of its own.
    pub frame_bytes: usize,
    /// Frames that are written at a time if they are full. The verdict on a log relies on it, so it is part of the format.
    pub in_flight_max: usize,
    /// Full frames that wait; then [`AppendError::Full`](crate::AppendError::Full).
    pub queue_frames_max: usize,
}

impl LogSettings {
    /// What a disk is used with: blocks that all devices accept, segments that are few and quickly made, frames long enough that
    /// the disk's bandwidth is the limit.
    pub const DEFAULT: Self = Self {
        block: 4096,
        segment_bytes: 64 << 20,
        frame_bytes: 1 << 20,
        in_flight_max: 4,
        queue_frames_max: 8,
    };

    /// Returns the longest record with its header.
    #[must_use]
    pub const fn record_bytes_max(&self) -> usize {
        self.segment_bytes as usize - FRAME_HEADER_BYTES
    }

    /// Returns whether the sizes go together.
    #[must_use]
    pub const fn are_valid(&self) -> bool {
        self.block.is_power_of_two()
            && self.block >= FRAME_HEADER_BYTES
            && self.segment_bytes > 0
            && (self.segment_bytes as usize).is_multiple_of(self.block)
            && self.in_flight_max > 0
            && self.queue_frames_max > 0
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}
