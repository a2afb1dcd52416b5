//! Digests of logs: equal digests mean equal logs.
//!
//! SHA-256, because it is in the program already, runs at memory speed on processors with SHA instructions, and
//! leaves no doubt: a rolling checksum could agree by chance. Each message counts with its sender and length, so
//! that two logs with the same bytes and other borders differ. Messages are gathered and digested in blocks.

use sha2::{Digest as _, Sha256};

/// Bytes gathered before they are digested.
const BLOCK_BYTES: usize = 1 << 14;

/// The digest of a growing sequence of messages.
#[derive(Clone)]
pub(crate) struct SequenceDigest {
    hash: Sha256,
    block: Vec<u8>,
}

impl SequenceDigest {
    pub(crate) fn new() -> Self {
        Self { hash: Sha256::new(), block: Vec::with_capacity(2 * BLOCK_BYTES) }
    }

    /// Appends a message.
    #[inline]
    pub(crate) fn append(&mut self, sender: usize, message: &[u8]) {
        self.block.extend_from_slice(&(sender as u64).to_le_bytes());
        self.block.extend_from_slice(&(message.len() as u64).to_le_bytes());
        self.block.extend_from_slice(message);
        if self.block.len() >= BLOCK_BYTES {
            self.hash.update(&self.block);
            self.block.clear();
        }
    }

    /// The digest in hexadecimal digits.
    pub(crate) fn finish(mut self) -> String {
        self.hash.update(&self.block);
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(messages: &[(usize, &str)]) -> String {
        let mut digest = SequenceDigest::new();
        messages.iter().for_each(|(sender, message)| digest.append(*sender, message.as_bytes()));
        digest.finish()
    }

    #[test]
    fn order_senders_and_borders_count() {
        let log = digest(&[(0, "ab"), (1, "c")]);
        assert_eq!(log, digest(&[(0, "ab"), (1, "c")]));
        for other in [
            &[(1, "c"), (0, "ab")][..],
            &[(1, "ab"), (1, "c")],
            &[(0, "a"), (1, "bc")],
            &[(0, "ab")],
            &[(0, "ab"), (1, "c"), (1, "")],
        ] {
            assert_ne!(log, digest(other), "{other:?}");
        }
    }

    #[test]
    fn blocks_do_not_show() {
        let long = "x".repeat(BLOCK_BYTES + 1);
        let mut whole = Sha256::new();
        for message in [&long[..], "y"] {
            whole.update(3u64.to_le_bytes());
            whole.update((message.len() as u64).to_le_bytes());
            whole.update(message);
        }
        let whole: String = whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest(&[(3, &long), (3, "y")]), whole);
    }
}
