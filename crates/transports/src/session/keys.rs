//! The keys of a session: one for each direction, with the number of the next record, which is its nonce.

use std::sync::{Arc, Mutex, MutexGuard};

use snow::TransportState;
use squall_fabric::mutex::lock;

/// Keys for one thread, or shared by a thread for each direction.
pub(super) enum RecordKeys {
    Own(TransportState),
    Shared(Arc<Mutex<TransportState>>),
}

/// A key of AES-GCM should not encrypt more than 2^34 blocks of 16 bytes; this number of records has at most
/// 2^31.
const REKEY_RECORDS: u64 = 1 << 20;

impl RecordKeys {
    /// Returns two handles of the same keys. Each direction must be used by one of them only.
    pub(super) fn shared(self) -> (Self, Self) {
        let keys = match self {
            Self::Own(keys) => Arc::new(Mutex::new(keys)),
            Self::Shared(keys) => keys,
        };
        (Self::Shared(Arc::clone(&keys)), Self::Shared(keys))
    }

    /// Encrypts the next record into `sealed`, which must have space for the tag, too; returns its length.
    pub(super) fn seal(&mut self, plain: &[u8], sealed: &mut [u8]) -> usize {
        self.with(|keys| {
            if is_due(keys.sending_nonce()) {
                keys.rekey_outgoing();
            }
            keys.write_message(plain, sealed).expect("the sizes are right, and 2^64 records are never sent")
        })
    }

    /// Decrypts the next record; returns `None` if it does not verify.
    pub(super) fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Option<usize> {
        self.with(|keys| {
            if is_due(keys.receiving_nonce()) {
                keys.rekey_incoming();
            }
            keys.read_message(sealed, plain).ok()
        })
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut TransportState) -> T) -> T {
        match self {
            Self::Own(keys) => act(keys),
            Self::Shared(keys) => {
                let mut keys: MutexGuard<'_, _> = lock(keys);
                act(&mut keys)
            }
        }
    }
}

/// Returns whether the key is changed before the record with this number.
const fn is_due(record: u64) -> bool {
    record > 0 && record.is_multiple_of(REKEY_RECORDS)
}
