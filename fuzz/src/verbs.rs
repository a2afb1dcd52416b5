//! Frames of a verbs control stream, from a peer that has proved the cluster's secret.

use squall_transports::verbs::read_foreign;

/// What is read of a frame is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    read_foreign(bytes);
}

/// A frame of each kind, and of some that are none.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..20).map(|kind| [&[kind][..], &[0; 39]].concat()).collect()
}
