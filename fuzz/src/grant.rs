//! Grants, as a peer sends them after it has proved the cluster's secret.

use squall_fabric::{GRANT_BYTES, Grant};

/// What is taken can be written again.
pub fn feed(bytes: &[u8]) {
    if let Ok(grant) = Grant::from_bytes(bytes) {
        assert_eq!(grant.to_bytes(), bytes);
        assert!(grant.range().end >= grant.range().start);
    }
}

/// Grants of no and of some words.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![vec![0; GRANT_BYTES], (0..).take(GRANT_BYTES).collect()]
}
