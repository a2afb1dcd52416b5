//! Message contents that identify their sender: every byte depends on the sender, the message's number and the byte's
//! position.

use squall_fabric::sim::Prng;

/// Returns the length of message `number` of `sender`: 0, short, or up to `longest`, as drawn from the seed.
pub(crate) fn length(seed: u64, sender: usize, number: u64, longest: usize) -> usize {
    let mut prng = source(seed, sender, number);
    match prng.below(4) {
        0 => 0,
        1 => prng.index(longest.min(16) + 1),
        2 => longest,
        _ => prng.index(longest + 1),
    }
}

/// Writes the contents of message `number` of `sender`.
pub(crate) fn fill(seed: u64, sender: usize, number: u64, bytes: &mut [u8]) {
    let mut prng = source(seed ^ 0x5ca1e, sender, number);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&prng.draw().to_le_bytes()[..chunk.len()]);
    }
}

/// Returns whether `bytes` are message `number` of `sender`.
pub(crate) fn matches(seed: u64, sender: usize, number: u64, longest: usize, bytes: &[u8]) -> bool {
    if bytes.len() != length(seed, sender, number, longest) {
        return false;
    }
    let mut expected = vec![0; bytes.len()];
    fill(seed, sender, number, &mut expected);
    bytes == expected
}

fn source(seed: u64, sender: usize, number: u64) -> Prng {
    Prng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (sender as u64) << 48 ^ number)
}
