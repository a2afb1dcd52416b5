//! The sealed part of a hello: what an end says about encryption and what it is, from a peer that knows the secret.

use squall_transports::session::read_foreign;

/// What is taken can be written again, and an end that insists on encryption gets it.
pub fn feed(bytes: &[u8]) {
    read_foreign(bytes);
}

/// A wish without addresses and two with two, of callers of the first kind and of another; the rest is zero.
pub fn seeds() -> Vec<Vec<u8>> {
    let address =
        |host: u8, port: u16| [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, host], &port.to_le_bytes()].concat();
    let ends = [address(1, 50_000), address(2, 7400)].concat();
    let rest = |kind: u8| [&[kind][..], &[0; 117]].concat();
    let seeds = [[&[0, 0][..], &[0; 36], &rest(0)], [&[1, 1], &ends, &rest(6)], [&[2, 1], &ends, &rest(255)]];
    let seeds = seeds.map(|parts| parts.concat());
    assert!(seeds.iter().all(|seed| read_foreign(seed)), "all of them are understood");
    seeds.to_vec()
}
