//! The queue with a kernel that takes any number of bytes.

use super::*;
use squall_fabric::RegionId;

/// A fixed sequence of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("below a usize")
    }
}

/// Returns what the kernel would take from the queue if it took at most `limit` bytes.
fn take(output: &mut OutputQueue, limit: usize) -> Vec<u8> {
    let mut pieces = [IoPiece::EMPTY; PIECES_MAX];
    let count = output.gather(&mut pieces);
    let mut taken: Vec<u8> = Vec::new();
    for piece in &pieces[..count] {
        // SAFETY: `gather` collects memory that is alive, and nothing here changes it meanwhile.
        taken.extend(unsafe { std::slice::from_raw_parts(piece.start(), piece.length()) });
    }
    taken.truncate(limit);
    output.advance(taken.len());
    taken
}

fn all(output: &mut OutputQueue) -> Vec<u64> {
    let mut bytes = Vec::new();
    while !output.is_empty() {
        bytes.extend(take(output, usize::MAX));
    }
    words(&bytes)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
}

#[test]
fn the_stream_is_what_was_posted_whatever_the_kernel_takes() {
    let region = Region::heap(RegionId(1), 4 * REFERENCE_WORDS_MIN);
    for seed in 1..200 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        (0..region.words()).for_each(|word| region.store(word, random.below(1 << 60) as u64));
        let (mut output, mut expected, mut sent) = (OutputQueue::default(), Vec::new(), Vec::new());
        for _ in 0..300 {
            let first = random.below(region.words());
            let end = first + 1 + random.below(region.words() - first);
            let frame = TcpFrame::Ack { connection: 1, count: random.below(1 << 30) as u64 };
            match random.below(4) {
                0 => {
                    output.push_mirror(3, &region, first..end);
                    expected.extend(mirror_header(3, narrow(first), narrow(end - first)));
                    expected.extend((first..end).map(|word| region.load(word)));
                }
                1 => {
                    output.push_frame(frame);
                    expected.extend(&frame.encode().0[..HEADER_WORDS]);
                }
                _ => sent.extend(take(&mut output, random.below(4000))),
            }
        }
        while !output.is_empty() {
            sent.extend(take(&mut output, 1 + random.below(4000)));
        }
        assert_eq!(words(&sent), expected, "seed {seed}");
        assert_eq!(output.copied_bytes(), 0);
    }
}

/// By value the stream is the same, however much is taken at a time.
#[test]
fn words_that_are_taken_by_value_are_what_was_posted() {
    let region = Region::heap(RegionId(1), 4 * REFERENCE_WORDS_MIN);
    (0..region.words()).for_each(|word| region.store(word, 7 * word as u64));
    for seed in 1..200 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (mut output, mut expected, mut sent) = (OutputQueue::default(), Vec::new(), Vec::new());
        let mut take = |output: &mut OutputQueue, limit: usize| {
            let mut target = vec![0; limit];
            let taken = output.take_words(&mut target);
            sent.extend_from_slice(&target[..taken]);
        };
        for _ in 0..200 {
            let first = random.below(region.words());
            let end = first + 1 + random.below(region.words() - first);
            match random.below(3) {
                0 => {
                    output.push_mirror(3, &region, first..end);
                    expected.extend(mirror_header(3, narrow(first), narrow(end - first)));
                    expected.extend((first..end).map(|word| region.load(word)));
                }
                1 => {
                    let frame = TcpFrame::Ack { connection: 1, count: random.below(1 << 30) as u64 };
                    output.push_frame(frame);
                    expected.extend(&frame.encode().0[..HEADER_WORDS]);
                }
                _ => take(&mut output, random.below(500)),
            }
        }
        while !output.is_empty() {
            take(&mut output, 1 + random.below(500));
        }
        assert!(sent == expected, "seed {seed}");
        assert!(!output.has_posts(), "the queue is empty");
    }
}

/// A word of which the kernel took one half must end with the other half of the same value [F3].
#[test]
fn a_word_that_the_kernel_split_stays_whole() {
    let count = REFERENCE_WORDS_MIN;
    let region = Region::heap(RegionId(1), count);
    for split in 1..8 {
        (0..count).for_each(|word| region.store(word, u64::MAX));
        let mut output = OutputQueue::default();
        output.push_mirror(0, &region, 0..count);
        let mut sent = take(&mut output, 16 + 8 * 5 + split);
        (0..count).for_each(|word| region.store(word, 0));
        while !output.is_empty() {
            sent.extend(take(&mut output, 3));
        }
        let landed = &words(&sent)[HEADER_WORDS..];
        assert!(landed[..6].iter().all(|word| *word == u64::MAX), "split at byte {split}: {landed:x?}");
        assert!(landed[6..].iter().all(|word| *word == 0), "split at byte {split}: {landed:x?}");
    }
}

#[test]
fn a_word_replaces_itself_only_at_the_tail() {
    let region = Region::heap(RegionId(1), 4);
    let mut output = OutputQueue::default();
    assert!(output.push_mirror_word(0, 1, 10));
    assert!(!output.push_mirror_word(0, 1, 11), "nothing is between");
    assert!(output.push_mirror_word(0, 2, 20), "another word");
    assert!(output.push_mirror_word(0, 1, 12), "another word is between [M1]");
    assert!(output.push_mirror_word(1, 1, 30), "another attachment");
    output.push_mirror(1, &region, 0..1);
    assert!(output.push_mirror_word(1, 1, 31), "a range is between [M1]");
    let values: Vec<u64> = all(&mut output).chunks(3).map(|frame| frame[2]).collect();
    assert_eq!(values, [11, 20, 12, 30, 0, 31]);
}

/// A frame that the kernel has begun to take is not changed.
#[test]
fn a_word_that_is_being_sent_is_not_replaced() {
    let mut output = OutputQueue::default();
    output.push_mirror_word(0, 1, 10);
    let mut sent = take(&mut output, 1);
    assert!(output.push_mirror_word(0, 1, 11));
    sent.extend(take(&mut output, usize::MAX));
    assert!(output.push_mirror_word(0, 1, 12), "all is sent");
    sent.extend(take(&mut output, usize::MAX));
    let values: Vec<u64> = words(&sent).chunks(3).map(|frame| frame[2]).collect();
    assert_eq!(values, [10, 11, 12]);
}

#[test]
fn memory_is_reclaimed_while_the_queue_is_never_empty() {
    let mut output = OutputQueue::default();
    output.push_mirror_word(0, 0, 0);
    for k in 0..2_000_000 {
        output.push_mirror_word(0, 1 + k % 2, 0);
        take(&mut output, 24);
    }
    assert_eq!(output.copied_bytes(), 24);
    assert!(output.copied.capacity() <= 4 * KEPT_WORDS, "{} words", output.copied.capacity());
}
