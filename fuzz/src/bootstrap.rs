//! The messages by which processes meet (requests, answers, reports and notices), from peers that have proved the secret.

use squall_transports::bootstrap::read_foreign;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let kinds = read_foreign(bytes);
    assert!(kinds <= 4, "{kinds} kinds of messages");
}

/// An entry, a greeting, an admission with one member, a wait, a report, a roster of two members.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = [&[2][..], &[7; 32], &[1, 7], b"unix:@a", &[4], b"name", &[0]].concat();
    let admission = [&[5, 9, 7, 0, 1, 0, 7][..], b"unix:@a", &[2, 1, 2]].concat();
    let greeting = [&[3, 9, 7, 7][..], b"unix:@a"].concat();
    let wait = [&[3, 4][..], b"soon"].concat();
    let roster = [&[1, 9, 1, 2, 7][..], b"unix:@a", &[7], b"unix:@b"].concat();
    let seeds = vec![entry, greeting, admission, wait, vec![1], roster];
    assert!(seeds.iter().all(|seed| read_foreign(seed) > 0), "all of them are messages");
    seeds
}
