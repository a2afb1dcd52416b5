//! Headers of the log's frames.

use squall_log::{FRAME_HEADER_BYTES, FrameHeader};

/// What is taken is written again; whatever is claimed of the body is only compared.
pub fn feed(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else { return };
    if let Ok(found) = FrameHeader::from_bytes(header) {
        assert_eq!(found.to_bytes(), *header);
        let _ = found.has_body(body);
    }
}

/// An opening, and a frame with a body.
pub fn seeds() -> Vec<Vec<u8>> {
    let opening = FrameHeader {
        log: 7,
        segment: 1,
        place: 0,
        is_opening: true,
        number: squall_log::opening_number(1),
        known_durable: 0,
        chain: 0,
        length: 0,
        records: 0,
        body_check: 0,
    };
    let frame = FrameHeader { place: 1, is_opening: false, number: opening.number + 1, length: 8, ..opening };
    vec![opening.to_bytes().to_vec(), [&frame.to_bytes()[..], &[1; 8]].concat()]
}
