//! Identities of a log's folder.

use squall_log::LogIdentity;

/// What is taken is written again, and read as the same.
pub fn feed(bytes: &[u8]) {
    if let Ok(identity) = LogIdentity::from_bytes(bytes) {
        assert_eq!(LogIdentity::from_bytes(&identity.to_bytes()), Ok(identity));
    }
}

/// One, and one of a newer format.
pub fn seeds() -> Vec<Vec<u8>> {
    let (cluster, member) = ("cluster".into(), "member".into());
    let identity =
        LogIdentity { cluster, member, log: 7, block: 4096, segment_bytes: 64 << 20, in_flight_max: 4 };
    let mut newer = identity.to_bytes();
    newer[0] += 1;
    vec![identity.to_bytes(), newer]
}
