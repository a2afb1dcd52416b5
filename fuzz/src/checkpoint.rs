//! Blocks of checkpoints.

use squall_log::{CheckpointBlock, LogPosition};

/// What is taken is written again.
pub fn feed(bytes: &[u8]) {
    if let Some(block) = CheckpointBlock::from_bytes(bytes) {
        let written = block.to_bytes();
        assert_eq!(written, bytes[..written.len()]);
    }
}

/// An empty state, and a block of a longer one.
pub fn seeds() -> Vec<Vec<u8>> {
    let position = LogPosition { view: 1, sequence: 2 };
    let last = CheckpointBlock { subgroup: 3, position, index: 0, is_last: true, bytes: b"" };
    vec![last.to_bytes(), CheckpointBlock { is_last: false, bytes: &[9; 100], ..last }.to_bytes()]
}
