//! Windows: sent messages are read, once and in order, however records and indexes wrap (Spindle §2.3).

use std::collections::VecDeque;
use std::panic::catch_unwind;

use super::mutation::{WindowMutation, with};
use super::*;
use crate::{RegionId, trusted};

/// A source of numbers, random enough to vary lengths.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn ring(
    records: usize,
    message_max: usize,
    bytes: usize,
) -> (Region, WindowGeometry, WindowWriter, WindowPublisher) {
    let geometry = WindowGeometry::new(3, records, message_max, bytes);
    let region = Region::heap(RegionId(1), 3 + geometry.words());
    let (writer, publisher) = trusted::window(&region, geometry, None);
    (region, geometry, writer, publisher)
}

/// Sends a message of `length` bytes `byte`, by either function, or by a burst of one.
fn send(writer: &mut WindowWriter, written: bool, length: usize, byte: u8) -> Result<(), ReserveError> {
    match written {
        true if byte.is_multiple_of(2) => {
            writer.add_written(length, |payload| payload.put_repeated(byte, length))?;
            writer.show();
            Ok(())
        }
        true => writer.send_written(length, |payload| payload.put_repeated(byte, length)),
        false => writer.send(length, |bytes| bytes.fill(byte)),
    }
}

/// Messages of all lengths, nulls anywhere, a window that is full most of the time: the messages taken are
/// those sent, in place and in order, over many laps. What is taken without a question is what the question would find.
#[test]
fn readers_take_what_was_sent() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let mut sure = 0;
        let (records, longest) = (1 + draw.below(20) as usize, draw.below(100) as usize);
        let (region, geometry, mut writer, mut publisher) =
            ring(records, longest, 1 + draw.below(2000) as usize);
        let mut reader = WindowReader::new(&region, geometry);
        let (mut sent, mut taken, mut index) = (0u64, 0u64, 0u64);
        for _ in 0..2000 {
            let length = draw.below(longest as u64 + 1) as usize;
            if send(&mut writer, draw.below(2) == 0, length, sent as u8).is_ok() {
                sent += 1;
            }
            if draw.below(3) == 0 {
                publisher.publish(draw.below(5), |words| assert!(words.end <= region.words()));
            }
            if draw.below(5) == 0 {
                publisher.raise(publisher.announcement().indexes + draw.below(3));
            }
            while index < publisher.announcement().indexes && draw.below(4) > 0 {
                if draw.below(2) == 0 {
                    reader.note_announced(publisher.announcement());
                }
                let quick = reader.clone().take_sure(index);
                let record = reader.take(index, publisher.announcement()).unwrap();
                assert!(quick.is_none() || quick == record, "seed {seed}: {quick:?} for {record:?}");
                sure += u64::from(quick.is_some());
                if let Some(record) = record {
                    let bytes = trusted::payload(&reader, record);
                    assert!(bytes.iter().all(|byte| *byte == taken as u8), "seed {seed}");
                    taken += 1;
                }
                index += 1;
            }
            if draw.below(3) == 0 {
                publisher.free(index);
            }
        }
        assert!(sent > 50 && taken + 2 * records as u64 >= sent, "seed {seed}: {taken} of {sent}");
        assert!(4 * sure > taken, "seed {seed}: {sure} of {taken}");
    }
}

/// Record counts wrap in the announcement, while indexes approach their limit and as many records as allowed
/// are outstanding.
#[test]
fn counts_wrap_and_indexes_end() {
    let (region, geometry, mut writer, mut publisher) = ring(RECORDS_MAX, 8, RECORDS_MAX * 16);
    let mut reader = WindowReader::new(&region, geometry);
    let mut draw = Draw(7);
    let mut index = INDEXES_MAX - 300_000;
    publisher.raise(index);
    let (mut sent, mut taken) = (0_u64, 0_u64);
    while taken < 200_000 {
        while sent < 200_000 && writer.send(8, |bytes| bytes.copy_from_slice(&sent.to_le_bytes())).is_ok() {
            sent += 1;
        }
        publisher.publish(1 + draw.below(u64::from(u16::MAX)), |_| ());
        for _ in 0..draw.below(2 * RECORDS_MAX as u64) {
            if index == publisher.announcement().indexes {
                break;
            }
            let record = reader.take(index, publisher.announcement()).unwrap().expect("no nulls here");
            assert_eq!(trusted::payload(&reader, record), taken.to_le_bytes());
            (taken, index) = (taken + 1, index + 1);
        }
        publisher.free(index);
    }
    assert_eq!(index, INDEXES_MAX - 100_000);
    publisher.raise(INDEXES_MAX - 1);
    assert_eq!(reader.take(index, publisher.announcement()), Ok(None));
}

/// A header has only the low bits of an index. Where these begin again at 0, messages are still taken at their indexes, and
/// nulls, also long runs of them, at theirs; bodies have the indexes of their messages.
#[test]
fn the_low_bits_of_indexes_wrap() {
    for seed in 0..50 {
        let mut draw = Draw(seed);
        let geometry = WindowGeometry::new(0, 6, 16, 1000);
        let bodies = WindowGeometry::of_bodies(0, 4, 40, 1000);
        let ((mut writer, mut publisher), mut reader) = with_bodies(1, geometry, bodies);
        let wrap = (1 + seed % 3) << 31;
        let mut index = wrap - 100 - draw.below(50);
        publisher.raise(index);
        let mut sent = VecDeque::new();
        while index < wrap + 100 {
            let (number, length) = (sent.len() as u64, draw.below(41) as usize);
            if send(&mut writer, true, length, number as u8).is_ok() {
                let at = publisher.announcement().indexes;
                publisher.publish(u64::MAX, |_| ());
                publisher.publish_bodies(|body| assert_eq!(body.index, at, "seed {seed}"));
                if length > geometry.message_max {
                    publisher.release_body();
                }
                sent.push_back((at, length, number as u8));
            }
            if draw.below(8) == 0 {
                publisher.raise(publisher.announcement().indexes + draw.below(40));
            }
            while index < publisher.announcement().indexes && draw.below(4) > 0 {
                let record = reader.take(index, publisher.announcement()).expect("in order");
                let next = sent.pop_front_if(|(at, ..)| *at == index);
                let taken = record.map(|record| trusted::payload(&reader, record).to_vec());
                assert_eq!(
                    taken,
                    next.map(|(_, length, byte)| vec![byte; length]),
                    "seed {seed}, index {index}"
                );
                index += 1;
            }
            if draw.below(2) == 0 {
                publisher.free(index.min(publisher.unreleased()));
            }
        }
    }
}

/// No bytes of an earlier message are visible: neither to the code that fills a message, nor to a reader of
/// the part that was not filled.
#[test]
fn old_bytes_are_not_shown() {
    let (region, geometry, mut writer, mut publisher) = ring(2, 40, 1);
    let mut reader = WindowReader::new(&region, geometry);
    let mut index = 0;
    let mut take = |publisher: &mut WindowPublisher, right: &[u8]| {
        publisher.publish(u64::MAX, |_| ());
        let record = reader.take(index, publisher.announcement()).unwrap().unwrap();
        assert_eq!(trusted::payload(&reader, record), right);
        index += 1;
        publisher.free(index);
    };
    for _ in 0..5 {
        writer.send(40, |bytes| bytes.fill(0xff)).unwrap();
        take(&mut publisher, &[0xff; 40]);
        writer.reserve(40).unwrap().fill(0xee);
        assert_eq!(*writer.reserve(40).unwrap(), [0; 40], "dropped, and reserved again");
        writer.send(40, |bytes| bytes[..2].copy_from_slice(b"ab")).unwrap();
        take(&mut publisher, &[b"ab".as_slice(), &[0; 38]].concat());
        writer.send(40, |bytes| bytes.fill(0xff)).unwrap();
        take(&mut publisher, &[0xff; 40]);
        writer.send_written(40, |payload| payload.put(b"ab")).unwrap();
        take(&mut publisher, &[b"ab".as_slice(), &[0; 38]].concat());
    }
}

fn with_bodies(
    id: u64,
    geometry: WindowGeometry,
    bodies: WindowGeometry,
) -> ((WindowWriter, WindowPublisher), WindowReader) {
    let region = Region::heap(RegionId(id), geometry.words());
    let ring = Region::heap(RegionId(id + 1), bodies.first + bodies.words());
    let ends = trusted::window(&region, geometry, Some((&ring, bodies)));
    (ends, WindowReader::new(&region, geometry).with_bodies(&ring, bodies))
}

/// Messages of all lengths, the long ones with bodies that are released late. The messages taken are those
/// sent, nothing is overwritten before it is freed and released, and the backlog continues in the next
/// window.
#[test]
fn large_messages_keep_their_place_and_their_bytes() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let (longest, large) = (draw.below(40) as usize, 41 + draw.below(300) as usize);
        let geometry = WindowGeometry::new(0, 1 + draw.below(9) as usize, longest, draw.below(600) as usize);
        let bodies =
            WindowGeometry::of_bodies(5, 1 + draw.below(4) as usize, large, draw.below(900) as usize);
        let ((mut writer, mut publisher), mut reader) = with_bodies(1, geometry, bodies);
        let (mut sent, mut taken, mut index, mut large_sent) = (0u64, 0u64, 0u64, 0);
        let mut unreleased = VecDeque::new();
        let mut check = |reader: &mut WindowReader, index: u64, announced: Announcement| {
            if let Some(record) = reader.take(index, announced).unwrap() {
                assert!(
                    trusted::payload(reader, record).iter().all(|byte| *byte == taken as u8),
                    "seed {seed}"
                );
                taken += 1;
            }
        };
        for _ in 0..1000 {
            let most = if draw.below(2) == 0 { large } else { longest };
            let length = draw.below(most as u64 + 1) as usize;
            if send(&mut writer, draw.below(2) == 0, length, sent as u8).is_ok() {
                sent += 1;
            }
            if draw.below(3) == 0 {
                publisher.publish(draw.below(5), |_| ());
                publisher.publish_bodies(|body| {
                    assert_eq!(body.number, large_sent);
                    large_sent += 1;
                    unreleased.push_back(body.index);
                });
            }
            if draw.below(5) == 0 {
                publisher.raise(publisher.announcement().indexes + draw.below(3));
            }
            while index < publisher.announcement().indexes && draw.below(4) > 0 {
                check(&mut reader, index, publisher.announcement());
                index += 1;
            }
            if !unreleased.is_empty() && draw.below(2) == 0 {
                publisher.release_body();
                unreleased.pop_front();
            }
            if draw.below(3) == 0 {
                assert_eq!(publisher.unreleased(), unreleased.front().copied().unwrap_or(u64::MAX));
                publisher.free(index.min(publisher.unreleased()));
            }
        }
        publisher.close();
        let mut backlog = publisher.backlog(index);
        drop(writer);
        let ((mut next, mut publisher), mut reader) = with_bodies(3, geometry, bodies);
        let mut index = 0;
        while !backlog.is_done() {
            backlog.move_into(&mut next);
            publisher.publish(u64::MAX, |_| ());
            publisher.publish_bodies(|_| large_sent += 1);
            while publisher.unreleased() < u64::MAX {
                publisher.release_body();
            }
            for index in index..publisher.announcement().indexes {
                check(&mut reader, index, publisher.announcement());
            }
            index = publisher.announcement().indexes;
            publisher.free(index);
        }
        assert!(sent > 20 && large_sent > 5, "seed {seed}: {sent}, {large_sent} large");
        assert_eq!(taken, sent, "seed {seed}");
    }
}

#[test]
fn a_full_window_is_a_value_and_a_long_message_an_error() {
    let (_, _, mut writer, mut publisher) = ring(2, 8, 1000);
    writer.send(8, |_| ()).unwrap();
    writer.send(8, |_| ()).unwrap();
    assert_eq!(writer.send(8, |_| ()), Err(ReserveError::Full));
    assert_eq!(writer.send_written(8, |_| ()), Err(ReserveError::Full));
    let too_long = ReserveError::TooLong { length: 9, message_max: 8 };
    assert_eq!(writer.send(9, |_| ()), Err(too_long));
    assert_eq!(writer.send_written(9, |_| ()), Err(too_long));
    publisher.publish(u64::MAX, |_| ());
    publisher.free(1);
    writer.send(0, |_| ()).unwrap();
    publisher.close();
    assert_eq!(writer.send(8, |_| ()), Err(ReserveError::Closed));
    assert_eq!(writer.send_written(8, |_| ()), Err(ReserveError::Closed));
}

/// A burst is shown as a whole: when its end is shown, when another message is sent, when the window is full, since the space
/// that it waits for comes only when these are delivered, and when the writer is dropped.
#[test]
fn a_burst_is_shown_at_its_end_or_when_it_cannot_continue() {
    let (_, _, mut writer, mut publisher) = ring(4, 8, 1000);
    let add = |writer: &mut WindowWriter| writer.add_written(8, |payload| payload.put(&[1]));
    for _ in 0..2 {
        add(&mut writer).unwrap();
        assert_eq!(publisher.ready(), 0);
    }
    writer.show();
    assert_eq!(publisher.ready(), 2);
    add(&mut writer).unwrap();
    writer.send(8, |_| ()).unwrap();
    assert_eq!(publisher.publish(u64::MAX, |_| ()), 4);
    publisher.free(3);
    for _ in 0..3 {
        add(&mut writer).unwrap();
    }
    assert_eq!(publisher.ready(), 0);
    assert_eq!(add(&mut writer), Err(ReserveError::Full));
    assert_eq!(publisher.publish(u64::MAX, |_| ()), 3);
    publisher.free(7);
    add(&mut writer).unwrap();
    publisher.close();
    assert_eq!(add(&mut writer), Err(ReserveError::Closed));
    drop(writer);
    assert_eq!((publisher.ready(), publisher.backlog(7).left()), (1, 1));
    let (_, _, mut writer, publisher) = ring(4, 8, 1000);
    add(&mut writer).unwrap();
    drop(writer);
    assert_eq!((publisher.ready(), publisher.backlog(0).is_done()), (1, false));
}

/// [N1] a reservation that is dropped leaves no trace; [N6] an empty message is not a null.
#[test]
fn a_dropped_reservation_is_not_sent_and_an_empty_message_is() {
    let (region, geometry, mut writer, mut publisher) = ring(4, 8, 1000);
    let _ = writer.reserve(8).unwrap();
    assert_eq!(publisher.ready(), 0);
    publisher.raise(1);
    writer.send(0, |_| ()).unwrap();
    publisher.publish(u64::MAX, |_| ());
    let mut reader = WindowReader::new(&region, geometry);
    assert_eq!(reader.take(0, publisher.announcement()), Ok(None));
    let record = reader.take(1, publisher.announcement()).unwrap().unwrap();
    assert_eq!(trusted::payload(&reader, record), []);
}

/// What is found to have space is sent, and asking for it leaves no trace.
#[test]
fn space_that_is_found_is_there() {
    let (_, _, mut writer, mut publisher) = ring(2, 8, 1000);
    for _ in 0..2 {
        writer.check_space(8).unwrap();
        writer.send_written(8, |payload| payload.put(b"12345678")).unwrap();
    }
    assert_eq!(writer.check_space(8), Err(ReserveError::Full));
    assert_eq!(writer.check_space(9), Err(ReserveError::TooLong { length: 9, message_max: 8 }));
    publisher.publish(u64::MAX, |_| ());
    publisher.free(1);
    assert_eq!((writer.check_space(8), publisher.ready()), (Ok(()), 0));
}

/// [O6] A record is sure from its announcement on, and not before: until then its publisher may correct the index in its header. A
/// message of any length is, but for one whose bytes are elsewhere, or that is longer than any.
#[test]
fn only_announced_records_are_sure() {
    let (region, geometry, mut writer, mut publisher) = ring(4, 16, 1000);
    let mut reader = WindowReader::new(&region, geometry);
    writer.send(8, |bytes| bytes.fill(1)).unwrap();
    reader.note_announced(publisher.announcement());
    assert_eq!(reader.take_sure(0), None, "committed for index 0");
    publisher.raise(1);
    publisher.publish(u64::MAX, |_| ());
    assert_eq!(reader.take_sure(1), None, "announced, and not noted");
    reader.note_announced(publisher.announcement());
    assert_eq!(reader.take_sure(0), None, "a null");
    let record = reader.take_sure(1).expect("announced");
    assert_eq!(trusted::payload(&reader, record), [1; 8]);
    assert_eq!(reader.take_sure(2), None, "beyond what is announced");
    for length in [16, 0, 3] {
        writer.send(length, |bytes| bytes.fill(2)).unwrap();
    }
    publisher.publish(u64::MAX, |_| ());
    reader.note_announced(publisher.announcement());
    let lengths = [2, 3, 4].map(|index| reader.take_sure(index).map(|record| record.length));
    assert_eq!(lengths, [16, 0, 3].map(Some));
    publisher.free(5);
    writer.send(8, |_| ()).unwrap();
    publisher.publish(u64::MAX, |_| ());
    reader.note_announced(publisher.announcement());
    let place = geometry.first + reader.head;
    for wrong in
        [WindowHeader::new(5, 17, false), WindowHeader::new(5, 8, true), WindowHeader::new(6, 8, false)]
    {
        region.store(place, wrong.to_word());
        assert_eq!(reader.take_sure(5), None, "{wrong:?}");
        assert!(reader.clone().take(5, publisher.announcement()).is_err(), "{wrong:?}");
    }
}

/// [O6] A record that came by the express slot is read there, whatever an earlier lap has left in the ring: also what looks like
/// its header (`squall simulate --scenario replica`, seed 1289).
#[test]
fn bytes_that_look_like_a_header_are_no_record() {
    let express = ExpressSlot::at(1);
    let geometry = WindowGeometry { express: Some(express), ..WindowGeometry::new(8, 4, 8, 1000) };
    let region = Region::heap(RegionId(1), 8 + geometry.words());
    let (mut writer, mut publisher) = trusted::window(&region, geometry, None);
    writer.send(8, |bytes| bytes.fill(7)).unwrap();
    let words = publisher.publish_express().expect("it is alone");
    let copy = Region::heap(RegionId(2), 8 + geometry.words());
    words.for_each(|word| copy.store(word, region.load(word)));
    copy.store(geometry.first, WindowHeader::new(0, 8, false).to_word());
    let mut reader = WindowReader::new(&copy, geometry);
    reader.note_announced(publisher.announcement());
    assert_eq!(reader.take_sure(0), None);
    let record = reader.take(0, publisher.announcement()).unwrap().expect("a message");
    assert_eq!(trusted::payload(&reader, record), [7; 8]);
}

/// Each mutation of a reader is caught by one of these tests.
#[test]
fn mutations_of_a_reader_are_found() {
    let tests: [fn(); 2] = [readers_take_what_was_sent, only_announced_records_are_sure];
    for mutation in WindowMutation::ALL {
        let is_found = |test: fn()| with(*mutation, || catch_unwind(test)).is_err();
        assert!(tests.into_iter().any(is_found), "{mutation:?}");
    }
}

/// [O6] a record that never arrived is detected: it is not taken for a null.
#[test]
fn a_lost_record_is_corrupt() {
    let (region, geometry, mut writer, mut publisher) = ring(4, 8, 1000);
    writer.send(8, |_| ()).unwrap();
    publisher.publish(u64::MAX, |_| ());
    region.store(3, 0);
    let mut reader = WindowReader::new(&region, geometry);
    assert!(reader.take(0, publisher.announcement()).is_err());
}

/// A piece has as many whole messages as end within it, at least one, and the next piece has the next ones, also
/// where the ring wraps.
#[test]
fn a_piece_is_as_many_messages_as_fit_but_at_least_one() {
    let (_, _, mut writer, mut publisher) = ring(8, 24, 1000);
    let mut lengths = [8, 24, 0, 16, 8, 24, 24, 0, 8].iter().cycle();
    let mut words = VecDeque::new();
    for words_max in (0..12).cycle().take(500) {
        while let Ok(()) = writer.send(*lengths.clone().next().expect("a cycle"), |_| ()) {
            words.push_back(record_words(*lengths.next().expect("a cycle")));
        }
        let mut pushed = 0;
        let sent = publisher.publish_piece(u64::MAX, words_max, |range| pushed += range.len());
        let sent = usize::try_from(sent).expect("few");
        let taken: usize = words.drain(..sent).sum();
        assert_eq!(pushed, taken);
        assert!(sent == 1 || taken <= words_max, "{sent} messages of {taken} words in {words_max}");
        publisher.free(publisher.announcement().indexes);
    }
}

/// A batch is one contiguous range, or two if it wraps (Spindle §3.2).
#[test]
fn a_batch_that_wraps_is_pushed_in_two() {
    let (_, _, mut writer, mut publisher) = ring(3, 8, 1000);
    let mut pushes = Vec::new();
    for _ in 0..2 {
        writer.send(8, |_| ()).unwrap();
    }
    publisher.publish(u64::MAX, |words| pushes.push(words));
    publisher.free(2);
    for _ in 0..2 {
        writer.send(8, |_| ()).unwrap();
    }
    publisher.publish(u64::MAX, |words| pushes.push(words));
    assert_eq!(pushes, [3..7, 7..9, 3..5]);
}
