//! What members and clients of objects say to each other: requests, answers, states in chunks.

use squall::object::read_foreign;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let kinds = read_foreign(bytes);
    assert!(kinds <= 2, "{kinds} kinds of messages");
}

/// A query, an update, the length of a reply that is not kept, a state with its chunks.
pub fn seeds() -> Vec<Vec<u8>> {
    let query = vec![8, 0, 0, 0, 2, b'k', b'v', 3, 2, 1, 1, 7];
    let update = vec![9, 0, 0, 0, 2, b'k', b'v', 0, 1, 4, 1, 1, 7];
    let long = vec![2, 0, 0, 0, 2, 9];
    let state = vec![6, 0, 0, 0, 5, 1, 0, 0, 1, 3, 3, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0];
    vec![query, update, long, state]
}
