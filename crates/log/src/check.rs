//! The two checksums of the format.

use crc_fast::CrcAlgorithm;

/// Returns the CRC-64/NVME of `bytes`: bodies of frames, blocks of checkpoints, copies of registers.
#[must_use]
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Returns the CRC-32C of `bytes`: headers of frames.
#[must_use]
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published check values of both: a log outlives the crate that computes them.
    #[test]
    fn checksums_never_change() {
        assert_eq!(crc32(b"123456789"), 0xe306_9283);
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
    }
}
