//! What members and external clients say to each other: frames with introductions, batches and notices.

use squall::external::read_foreign;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let frames = read_foreign(bytes);
    // As a request and as a notice; the shortest frame has a length and one byte.
    assert!(frames <= 2 * bytes.len() / 5, "{frames} frames");
}

/// An observer, a publisher that was here before, a batch, a message with what was lost before it, a refusal.
pub fn seeds() -> Vec<Vec<u8>> {
    let observer = vec![7, 0, 0, 0, 0, 3, b'l', b'o', b'g', 0x80, 0x40];
    let publisher = vec![7, 0, 0, 0, 1, 3, b'l', b'o', b'g', 1, 5];
    let batch = vec![8, 0, 0, 0, 2, 0, 2, 1, 2, b'a', b'b', b'c'];
    let message = vec![2, 0, 0, 0, 6, 9, 6, 0, 0, 0, 5, 1, 0, 7, b'h', b'i'];
    let refusal = vec![13, 0, 0, 0, 0, 3, b'w', b'h', b'y', 1, 6, b'u', b'n', b'i', b'x', b':', b'a'];
    vec![observer, publisher, batch, message, refusal]
}
