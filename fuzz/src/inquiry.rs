//! Questions that members are asked, their answers, and the token of an admission, from peers that have proved the secret.

use squall::read_foreign_inquiry;

/// What is read is read again from what is written of it.
pub fn feed(bytes: &[u8]) {
    let kinds = read_foreign_inquiry(bytes);
    assert!(kinds <= 7, "{kinds} kinds of messages");
}

/// A question, the address of a service, the status of a member with two members and one subgroup.
pub fn seeds() -> Vec<Vec<u8>> {
    let service = [&[1, 7][..], b"unix:@a"].concat();
    let members = [&[2, 7, 0, 7][..], b"unix:@a", &[8, 1, 7], b"unix:@b"].concat();
    // The subgroup's name, what was sent and delivered, a member that holds it up, for how long the consumer has stalled, what is not
    // on the disk, the totals, the window, a member that is behind.
    let subgroups = [
        &[1, 3][..],
        b"log",
        &[9, 8],
        &[1, 8, 1, 200, 1],
        &[1, 44],
        &[1, 5],
        &[9, 8],
        &[1, 3, 100],
        &[1, 8, 4],
    ]
    .concat();
    let changes = [1, 3, 2, 1, 0, 200, 1, 1, 77];
    let status = [&[7, 0, 3, 1][..], &members, &[0], &[1, 3], &subgroups, &changes].concat();
    let seeds = vec![vec![1], service, status];
    assert!(seeds.iter().all(|seed| read_foreign_inquiry(seed) > 0), "all of them are messages");
    seeds
}
