//! What an end of a connection says in the handshake about encryption, from a peer that knows the secret.

use squall_transports::session::read_foreign;

/// What is taken can be written again, and an end that insists on encryption gets it.
pub fn feed(bytes: &[u8]) {
    read_foreign(bytes);
}

/// A wish without addresses, and one with two.
pub fn seeds() -> Vec<Vec<u8>> {
    let address =
        |host: u8, port: u16| [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, host], &port.to_le_bytes()].concat();
    let ends = [address(1, 50_000), address(2, 7400)].concat();
    let seeds = [[&[0, 0][..], &[0; 36]], [&[1, 1], &ends], [&[2, 1], &ends]].map(|parts| parts.concat());
    assert!(seeds.iter().all(|seed| read_foreign(seed)), "all of them are wishes");
    seeds.to_vec()
}
