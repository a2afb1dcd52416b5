//! Introductions and messages of the two ends of a stream, from a peer that has proved the secret (EXS §II.B, §III).

use squall_fabric::{Grant, NodeId, RegionId};
use squall_protocols::stream::{Advert, MESSAGE_BYTES_MAX, Phase, StreamMessage, read_foreign};

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    assert!(read_foreign(bytes) <= 1, "introductions and messages begin with different bytes");
}

/// An introduction, an empty message, a message with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    let grant = Grant { owner: NodeId(1), peer: NodeId(2), region: RegionId(3), first: 4, words: 5, key: 6 };
    // Mark and version, stream, dynamic; credits, receives, renewal.
    let hello =
        [&[0xe6, 1, 0, 0][..], &[8, 0, 0, 0], &[16, 0, 0, 0], &[1, 0, 0, 0], &grant.to_bytes()].concat();
    let advert = Advert { grant, start: 0, length: 40, wait_all: true, phase: Phase(2), sequence: 9 };
    let full = StreamMessage {
        credits: 7,
        freed: 1 << 40,
        withdraw: true,
        adverts: vec![advert, advert],
        too_long: Some(9),
        withdrawn: true,
        awaits_advert: true,
        end: true,
        end_seen: true,
    };
    let seeds = vec![hello, written(&StreamMessage::default()), written(&full)];
    assert!(seeds.iter().all(|seed| read_foreign(seed) == 1), "all of them are introductions or messages");
    seeds
}

fn written(message: &StreamMessage) -> Vec<u8> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = message.encode(&mut bytes);
    bytes[..length].to_vec()
}
