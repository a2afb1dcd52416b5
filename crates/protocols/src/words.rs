//! Messages as bytes: little-endian words of 8 and 4 bytes, and bytes with their length (beside Derecho §3.4).

/// Appends words.
pub(crate) fn put_words(words: &[u64], bytes: &mut Vec<u8>) {
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
}

/// Appends bytes with their length.
///
/// # Panics
/// If they are 4 GiB or more.
pub(crate) fn put_bytes(part: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend(u32::try_from(part.len()).expect("less than 4 GiB").to_le_bytes());
    bytes.extend(part);
}

fn take_array<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*first)
}

/// Takes a byte from the front; `None` if there is none.
pub(crate) fn take_byte(from: &mut &[u8]) -> Option<u8> {
    take_array(from).map(|[byte]| byte)
}

/// Takes a word of 4 bytes from the front.
pub(crate) fn take_half(from: &mut &[u8]) -> Option<u32> {
    take_array(from).map(u32::from_le_bytes)
}

/// Takes a word of 8 bytes from the front.
pub(crate) fn take_word(from: &mut &[u8]) -> Option<u64> {
    take_array(from).map(u64::from_le_bytes)
}

/// Takes bytes with their length from the front.
pub(crate) fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_half(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}
