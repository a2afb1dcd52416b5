//! Copies between regions at byte positions: from the ring to a receive, and from a send to a position with another
//! alignment (EXS fig. 5).

use squall_fabric::Region;

/// Copies `length` bytes from byte `from_byte` of `from` to byte `to_byte` of `to`. Other bytes of the first and the
/// last word of the target keep their values; no other thread or peer may write these words meanwhile.
///
/// # Panics
/// If a range ends beyond its region.
#[inline]
pub(super) fn copy_bytes(to: &Region, to_byte: usize, from: &Region, from_byte: usize, length: usize) {
    if (to_byte | from_byte | length).is_multiple_of(8) {
        return to.copy_words(to_byte / 8, from, from_byte / 8..(from_byte + length) / 8);
    }
    copy_parts(to, to_byte, from, from_byte, length);
}

/// Copies like [`copy_bytes`], but for ranges that are not whole words.
fn copy_parts(to: &Region, to_byte: usize, from: &Region, from_byte: usize, length: usize) {
    let head = if to_byte.is_multiple_of(8) { 0 } else { (8 - to_byte % 8).min(length) };
    if head > 0 {
        merge(to, to_byte, read(from, from_byte, head), head);
    }
    let (to_byte, from_byte) = (to_byte + head, from_byte + head);
    let words = (length - head) / 8;
    if from_byte.is_multiple_of(8) {
        to.copy_words(to_byte / 8, from, from_byte / 8..from_byte / 8 + words);
    } else {
        copy_shifted(to, to_byte / 8, from, from_byte, words);
    }
    let tail = (length - head) % 8;
    if tail > 0 {
        merge(to, to_byte + 8 * words, read(from, from_byte + 8 * words, tail), tail);
    }
}

/// Copies whole words from a byte position that is not at a word.
fn copy_shifted(to: &Region, first: usize, from: &Region, from_byte: usize, words: usize) {
    if words == 0 {
        return;
    }
    let shift = from_byte % 8 * 8;
    let mut low = from.load_relaxed(from_byte / 8);
    for i in 0..words {
        let high = from.load_relaxed(from_byte / 8 + i + 1);
        to.store_relaxed(first + i, low >> shift | high << (64 - shift));
        low = high;
    }
}

/// Returns `count` bytes (`1..=8`) from byte `byte` on, with the first as the least significant, and zeros above.
pub(super) fn read(from: &Region, byte: usize, count: usize) -> u64 {
    let (word, shift) = (byte / 8, byte % 8);
    let mut value = from.load_relaxed(word) >> (8 * shift);
    if shift + count > 8 {
        value |= from.load_relaxed(word + 1) << (64 - 8 * shift);
    }
    value & low_bytes(count)
}

/// Stores the lowest `count` bytes of `value` at byte `byte`, all within one word.
fn merge(to: &Region, byte: usize, value: u64, count: usize) {
    let (word, shift) = (byte / 8, 8 * (byte % 8));
    let mask = low_bytes(count) << shift;
    to.store_relaxed(word, to.load_relaxed(word) & !mask | value << shift & mask);
}

/// Returns a mask of the lowest `count` bytes (`0..=8`).
pub(super) fn low_bytes(count: usize) -> u64 {
    if count >= 8 { u64::MAX } else { (1 << (8 * count)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    fn bytes(region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; region.words() * 8];
        region.copy_bytes_out(0, &mut bytes);
        bytes
    }

    /// For all alignments and small lengths, exactly the requested bytes change.
    #[test]
    fn every_alignment_copies_exactly_its_bytes() {
        let from = Region::heap(RegionId(1), 6);
        from.copy_bytes_in(0, &(1..=48).collect::<Vec<u8>>());
        let source = bytes(&from);
        for (to_byte, from_byte) in (0..8).flat_map(|to| (0..8).map(move |from| (to, from))) {
            for length in 0..=40 {
                let to = Region::heap(RegionId(2), 6);
                to.copy_bytes_in(0, &[0xee; 48]);
                copy_bytes(&to, to_byte, &from, from_byte, length);
                let mut expected = vec![0xee; 48];
                expected[to_byte..to_byte + length].copy_from_slice(&source[from_byte..from_byte + length]);
                assert_eq!(bytes(&to), expected, "{length} bytes from {from_byte} to {to_byte}");
            }
        }
    }

    #[test]
    fn bytes_are_read_at_any_position() {
        let from = Region::heap(RegionId(1), 2);
        from.copy_bytes_in(0, &(0..16).collect::<Vec<u8>>());
        for (byte, count) in (0..16).flat_map(|byte| (1..=8.min(16 - byte)).map(move |count| (byte, count))) {
            let mut expected = [0; 8];
            (0..count).for_each(|i| expected[i] = (byte + i) as u8);
            assert_eq!(read(&from, byte, count).to_le_bytes(), expected);
        }
    }
}
