//! What members of an RDMC group say to each other, from peers that have proved the secret (RDMC §3.2).

use squall_fabric::{GRANT_BYTES, Grant, NodeId};
use squall_protocols::rdmc::{BlockSummary, FailureCause, GroupId, ObjectSlot, RdmcMessage};

/// What is taken can be written again, and is the same when it is read again.
pub fn feed(bytes: &[u8]) {
    if let Ok(message) = RdmcMessage::decode(bytes) {
        let (written, length) = message.encode();
        assert_eq!(RdmcMessage::decode(&written[..length]), Ok(message));
    }
}

/// A message of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let credits = Grant::from_bytes(&[0; GRANT_BYTES]).expect("a grant of nothing");
    let group = GroupId(7);
    let slot = ObjectSlot { index: 3, uses: 1 };
    let cause = FailureCause::Lost(NodeId(2));
    let messages = [
        RdmcMessage::Hello { credits },
        RdmcMessage::Join { group, digest: 1 },
        RdmcMessage::Announce { group, number: 2, bytes: 3, slot },
        RdmcMessage::Ready {
            group,
            number: 2,
            slot: 3,
            grant: credits,
            bound: 4,
            held: BlockSummary::default(),
        },
        RdmcMessage::Failed { group, cause },
        RdmcMessage::Stopped { group },
    ];
    let encoded = messages.iter().map(|message| {
        let (bytes, length) = message.encode();
        bytes[..length].to_vec()
    });
    encoded.collect()
}
