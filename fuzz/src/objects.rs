//! What members and clients of objects say to each other: requests, answers, states in chunks.

use squall::object::read_foreign;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let kinds = read_foreign(bytes);
    assert!(kinds <= 2, "{kinds} kinds of messages");
}

/// A query, an update, the length of a reply that is not kept, a state and its chunks.
pub fn seeds() -> Vec<Vec<u8>> {
    let asked =
        |request: &[u8]| [&[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, b'k', b'v'], request].concat();
    let answered = |answer: &[u8]| [&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], answer].concat();
    let query = [&[2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7][..]].concat();
    let update =
        [&[1][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[4, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0], &[1, 0, 0, 0, 7]];
    let long = [&[2][..], &[9, 0, 0, 0, 0, 0, 0, 0]];
    let state = [&[6][..], &[0; 32], &[1, 0, 0, 0, 5]];
    let chunks = vec![3, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0];
    vec![asked(&query), asked(&update.concat()), answered(&long.concat()), answered(&state.concat()), chunks]
}
