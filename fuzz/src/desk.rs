//! What comes to a desk, or from one: requests, answers and reports, from peers that have proved the secret.

use squall_transports::bootstrap::read_foreign;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let kinds = read_foreign(bytes);
    assert!(kinds <= 3, "{kinds} kinds of messages");
}

/// An entry, a greeting, an admission with one member, a wait, a report.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = [&[2][..], &[7; 32], &[1, 7], b"unix:@a", &[4], b"name"].concat();
    let admission = [&[5, 9, 7, 0, 1, 0, 7][..], b"unix:@a", &[2, 1, 2]].concat();
    let wait = [&[3, 4][..], b"soon"].concat();
    vec![entry, vec![3, 9, 7], admission, wait, vec![1]]
}
