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
        let (mut output, mut expected, mut sent) = (OutputQueue::new(false), Vec::new(), Vec::new());
        for _ in 0..300 {
            let frame = TcpFrame::Ack { connection: 1, count: random.below(1 << 30) as u64 };
            match random.below(4) {
                0 => post_range(&mut output, &mut expected, &region, &mut random),
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
        assert_eq!(output.unsent_bytes(), 0);
    }
}

/// By value the stream is the same, however much is taken at a time.
#[test]
fn words_that_are_taken_by_value_are_what_was_posted() {
    let region = Region::heap(RegionId(1), 4 * REFERENCE_WORDS_MIN);
    (0..region.words()).for_each(|word| region.store(word, 7 * word as u64));
    for seed in 1..200 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (mut output, mut expected, mut sent) = (OutputQueue::new(false), Vec::new(), Vec::new());
        let mut take = |output: &mut OutputQueue, limit: usize| {
            let mut target = vec![0; limit];
            let taken = output.take_words(&mut target);
            sent.extend_from_slice(&target[..taken]);
        };
        for _ in 0..200 {
            match random.below(3) {
                0 => post_range(&mut output, &mut expected, &region, &mut random),
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
        let mut output = OutputQueue::new(false);
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
    let mut output = OutputQueue::new(false);
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
    let mut output = OutputQueue::new(false);
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
    let mut output = OutputQueue::new(false);
    output.push_mirror_word(0, 0, 0);
    for k in 0..2_000_000 {
        output.push_mirror_word(0, 1 + k % 2, 0);
        take(&mut output, 24);
    }
    assert_eq!(output.unsent_bytes(), 24);
    assert!(output.copied.capacity() <= 4 * SPARE_WORDS, "{} words", output.copied.capacity());
}

/// The other end of a stream: what it has handled, and the beginning of a word.
#[derive(Default)]
struct Receiver {
    handled: Vec<u64>,
    rest: Vec<u8>,
}

impl Receiver {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        let whole = self.rest.len() / 8 * 8;
        self.handled.extend(words(&self.rest[..whole]));
        self.rest.drain(..whole);
    }

    /// The connection breaks: the beginning of a word is lost with it.
    fn break_off(&mut self) -> u64 {
        self.rest.clear();
        self.handled.len() as u64
    }
}

/// Posts a range of a mirror, of any length.
fn post_range(output: &mut OutputQueue, expected: &mut Vec<u64>, region: &Region, random: &mut Random) {
    let first = random.below(region.words());
    let end = first + 1 + random.below(region.words() - first);
    output.push_mirror(3, region, first..end);
    expected.extend(mirror_header(3, narrow(first), narrow(end - first)));
    expected.extend((first..end).map(|word| region.load(word)));
}

/// Whatever a connection took and lost, the receiver gets each word once and in order \[C1, C2, C7, C15\]. By seed, half of the streams are
/// taken by value, as sealed ones are.
#[test]
fn a_stream_goes_on_at_the_word_that_the_peer_has_handled() {
    let mut replaced_after_break = 0;
    for seed in 1..400 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let region = Region::heap(RegionId(1), 4 * REFERENCE_WORDS_MIN);
        (0..region.words()).for_each(|word| region.store(word, random.below(1 << 60) as u64));
        let (mut output, mut expected) = (OutputQueue::new(true), Vec::new());
        let (mut receiver, mut acknowledged, mut was_broken) = (Receiver::default(), 0, false);
        for step in 0..600 {
            match random.below(12) {
                0 => post_range(&mut output, &mut expected, &region, &mut random),
                1..5 => {
                    let (word, value) = (narrow(random.below(2)), random.below(1 << 30) as u64);
                    if output.push_mirror_word(1, word, value) {
                        expected.extend(mirror_header(1, word, 1));
                        expected.push(value);
                    } else {
                        assert!(
                            receiver.handled.len() < expected.len(),
                            "seed {seed}: replaced, and handled"
                        );
                        *expected.last_mut().unwrap() = value;
                        replaced_after_break += u64::from(was_broken);
                    }
                }
                5..9 => {
                    let limit = random.below(3000);
                    // What is lost of it goes with the connection.
                    let arrives = random.below(4) > 0;
                    let bytes = if seed % 2 == 0 {
                        let mut target = vec![0; limit / 8];
                        let taken = output.take_words(&mut target);
                        as_bytes(&target[..taken]).to_vec()
                    } else {
                        take(&mut output, limit)
                    };
                    let part = if arrives { bytes.len() } else { random.below(bytes.len() + 1) };
                    receiver.take(&bytes[..part]);
                    if part < bytes.len() {
                        was_broken = true;
                        output.resume_at(receiver.break_off());
                        assert_eq!(output.next(), output.kept());
                    }
                }
                9 => {
                    let handled = receiver.handled.len() - acknowledged;
                    acknowledged += random.below(handled + 1);
                    output.trim(acknowledged as u64);
                }
                // An old acknowledgement.
                10 => output.trim(random.below(acknowledged + 1) as u64),
                _ => {
                    was_broken = true;
                    output.resume_at(receiver.break_off());
                }
            }
            assert_eq!(output.end(), expected.len() as u64, "seed {seed}, step {step}");
            let handled = receiver.handled.len() as u64;
            assert!(output.kept() <= handled && handled <= output.next(), "seed {seed}, step {step}");
            assert!(receiver.handled == expected[..receiver.handled.len()], "seed {seed}, step {step}");
        }
        while !output.is_empty() {
            receiver.take(&take(&mut output, 1 + random.below(4000)));
        }
        assert!(receiver.handled == expected, "seed {seed}");
        output.trim(expected.len() as u64);
        assert!(output.kept_bytes() == 0 && output.references.is_empty(), "seed {seed}");
    }
    assert!(
        replaced_after_break > 100,
        "{replaced_after_break} words were replaced in a queue that was moved back"
    );
}

/// What the peer has not handled stays, however much a socket has taken, and counts against the bound \[C2, C6\].
#[test]
fn what_is_kept_is_bounded() {
    let mut output = OutputQueue::new(true);
    let mut target = vec![0; 1 << 16];
    while !output.is_full() {
        output.push_words(&[0; 1 << 10]);
        output.take_words(&mut target);
        assert!(output.is_empty());
    }
    assert_eq!(output.kept_bytes(), KEPT_BYTES_MAX);
    output.trim(1 << 10);
    assert!(!output.is_full() && output.copied.len() as u64 <= KEPT_BYTES_MAX / 8);
    output.trim(output.next());
    assert!(output.kept_bytes() == 0 && output.copied.capacity() <= SPARE_WORDS);
}
