//! Transfers: writes with immediate to the peer's memory, direct or through its ring (EXS §II.B).

use squall_fabric::Grant;

use super::SendId;

/// The maximum length of a transfer in bytes: the greatest multiple of a word that the immediate of a write can hold.
pub const TRANSFER_BYTES_MAX: u64 = (1 << LENGTH_BITS) - 8;

/// A piece of a send to be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTransfer {
    /// The send.
    pub send: SendId,
    /// The piece's first byte within the send.
    pub offset: u64,
    /// Its length in bytes; 0 only for an empty packet.
    pub length: u64,
    /// Whether it is the last of its send.
    pub is_last: bool,
    /// Its destination.
    pub route: TransferRoute,
}

/// The destination of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferRoute {
    /// The memory of the peer's head receive \[E1\].
    Direct {
        /// The right to write the memory.
        grant: Grant,
        /// The first byte, counted from the beginning of the granted range.
        start: u64,
    },
    /// The peer's ring.
    Indirect {
        /// The first word within the ring; the transfer does not wrap \[E5\].
        word: u64,
        /// The number of bytes before the piece in its first word, so that source and target have the same alignment.
        skip: u64,
    },
}

impl StreamTransfer {
    /// Returns the transfer as its receiver sees it.
    #[must_use]
    pub const fn arrival(&self) -> TransferArrival {
        match self.route {
            TransferRoute::Direct { .. } => TransferArrival::Direct { length: self.length },
            TransferRoute::Indirect { skip, .. } => TransferArrival::Indirect { skip, length: self.length },
        }
    }
}

/// A transfer as its receiver sees it, encoded in 32 bits. Its position follows from the earlier arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferArrival {
    /// The transfer is in the head receive.
    Direct {
        /// Bytes.
        length: u64,
    },
    /// The transfer is at the next word of the ring.
    Indirect {
        /// The number of bytes of the first word that do not belong to it; below 8.
        skip: u64,
        /// The number of bytes after these.
        length: u64,
    },
}

impl TransferArrival {
    /// Returns the immediate of the write.
    ///
    /// # Panics
    /// If the transfer is longer than [`TRANSFER_BYTES_MAX`].
    #[must_use]
    pub fn to_immediate(self) -> u32 {
        let (kind, skip, length) = match self {
            Self::Direct { length } => (0, 0, length),
            Self::Indirect { skip, length } => (INDIRECT, skip, length),
        };
        assert!(length <= TRANSFER_BYTES_MAX && skip < 8, "{self:?} does not fit an immediate");
        kind | u32::try_from(skip << LENGTH_BITS | length).expect("31 bits")
    }

    /// Decodes the immediate of a write. All values are valid.
    #[must_use]
    pub fn from_immediate(immediate: u32) -> Self {
        let length = u64::from(immediate & ((1 << LENGTH_BITS) - 1));
        let skip = u64::from(immediate >> LENGTH_BITS & 7);
        if immediate & INDIRECT == 0 { Self::Direct { length } } else { Self::Indirect { skip, length } }
    }
}

const LENGTH_BITS: u32 = 28;
const INDIRECT: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_return_the_same_arrival() {
        for length in [0, 1, 7, 8, 4095, TRANSFER_BYTES_MAX] {
            let direct = TransferArrival::Direct { length };
            assert_eq!(TransferArrival::from_immediate(direct.to_immediate()), direct);
            for skip in 0..8 {
                let indirect = TransferArrival::Indirect { skip, length };
                assert_eq!(TransferArrival::from_immediate(indirect.to_immediate()), indirect);
            }
        }
    }
}
