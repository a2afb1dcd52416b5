//! Control messages between the root and the receivers of a bulk session (RDMC §2).

use squall::bulk::read_foreign;

/// A message is written in the words that it was read from.
pub fn feed(bytes: &[u8]) {
    read_foreign(bytes);
}

/// A message of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let seeds: [Vec<u8>; 5] = [&[1, 1, 2][..], &[2, 3], &[3, 4], &[4, 5], &[5, 6, 7, 0, 9]].map(words);
    assert!(seeds.iter().all(|seed| read_foreign(seed)), "all of them are messages");
    seeds.to_vec()
}
