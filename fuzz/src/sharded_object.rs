//! Updates of several shards, their replies, and what comes with the state of a shard, from a member.

use squall_fabric::NodeId;
use squall_protocols::genuine::{
    DeliveredMarks, GenuinePosition, PartKind, PartReplies, SHARDS_MAX, ShardedUpdate, Timestamp, UpdatePart,
    UpdateReplies,
};

/// What is read is written in the same bytes.
pub fn feed(bytes: &[u8]) {
    if let Some(update) = ShardedUpdate::decode(bytes) {
        let parts = (0..SHARDS_MAX).map(|shard| update.parts(shard).count()).sum::<usize>();
        assert!(parts <= bytes.len());
        let mut replies = UpdateReplies::default();
        assert!(replies.apply(NodeId(1), position(), &update, Vec::new));
        assert!(!replies.apply(NodeId(1), position(), &update, Vec::new), "it counts once");
    }
    if let Some(replies) = PartReplies::decode(bytes) {
        let mut again = Vec::new();
        replies.encode(&mut again);
        assert_eq!(again, bytes);
    }
    let mut rest = bytes;
    if let Some(marks) = DeliveredMarks::decode(&mut rest)
        && let Some(replies) = UpdateReplies::decode(&mut rest)
    {
        let mut again = Vec::new();
        marks.encode(&mut again);
        replies.encode(&mut again);
        assert_eq!(again, bytes[..bytes.len() - rest.len()]);
    }
}

const fn position() -> GenuinePosition {
    GenuinePosition { view: 1, timestamp: Timestamp { clock: 2, shard: 0 } }
}

/// An update of two shards; replies to two parts; marks of two senders, with replies to one.
pub fn seeds() -> Vec<Vec<u8>> {
    let part = |shard, kind, bytes| UpdatePart { shard, kind, bytes };
    let update = ShardedUpdate::encode(
        5,
        3,
        [
            part(0, PartKind::Update, &b"a"[..]),
            part(1, PartKind::Query, b"bc"),
            part(0, PartKind::Query, b""),
        ],
    );
    let (mut replies, mut state) = (Vec::new(), Vec::new());
    PartReplies { position: position(), replies: vec![vec![1, 2], Vec::new()] }.encode(&mut replies);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    state.extend(words(&[1, 1, 2, 0, 2, 3, 7, 2, 8, 9, 4, 0, 0]));
    let mut kept = UpdateReplies::default();
    kept.apply(NodeId(3), position(), &ShardedUpdate::decode(&update).expect("it was written"), || {
        vec![vec![9]]
    });
    kept.encode(&mut state);
    vec![update, replies, state]
}
