//! The threads of a window in explored schedules: an application that reserves, fills and commits; a polling
//! thread that assigns indexes, announces, counts nulls and frees; and a reader in another process (Spindle
//! §2.3, §3.1).

use std::ops::Range;

use super::*;
use crate::atomics::AtomicU64;
use crate::explore::{draw, explore, finds_failure, point, thread, yield_now};
use crate::{Instant, RegionId, trusted};

/// A deliberate defect of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The application fills a message after it has committed it.
    FillAfterCommit,
    /// The application shows a message of a burst before it is filled.
    ShowUnfilled,
    /// The polling thread announces records before their words have reached the reader.
    AnnounceFirst,
    /// The polling thread frees a message that the reader still reads.
    FreeUnread,
    /// The reader accepts a part of an express record as the whole.
    PartOfExpress,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Whether the reader maps the sender's memory; if not, it has a copy that receives only what is pushed.
    shared: bool,
    express: bool,
    /// The most messages in the window: few enough that their number or their bytes fill it.
    records: usize,
    mutation: Option<Mutation>,
}

impl Case {
    const fn new(shared: bool, express: bool) -> Self {
        Self { shared, express, records: 2, mutation: None }
    }

    const fn with(self, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..self }
    }

    fn is_on(self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

const MESSAGES: u64 = 12;
/// The most nulls that the polling thread adds.
const NULLS: u64 = 3;
/// The word of the announcement, as in the row of a subgroup: the express slot fills the rest of its cache
/// line.
const ANNOUNCED: usize = 0;
const LARGE_MAX: usize = 48;

/// Returns lengths of all kinds, beginning with kind `first`: empty, short, the longest of the ring, large.
fn length(number: u64, first: usize) -> usize {
    const LENGTHS: [usize; 8] = [16, 0, 24, LARGE_MAX, 8, 0, 1, 32];
    LENGTHS[(usize::try_from(number).expect("small") + first) % LENGTHS.len()]
}

fn byte(number: u64, at: usize) -> u8 {
    u8::try_from(number * 16 + at as u64 % 16 + 1).expect("few messages")
}

fn geometries(case: Case) -> (WindowGeometry, WindowGeometry) {
    let express = case.express.then(|| ExpressSlot::at(1));
    let window = WindowGeometry { express, ..WindowGeometry::new(8, case.records, 24, 1) };
    (window, WindowGeometry::of_bodies(8 + window.words(), 2, LARGE_MAX, 1))
}

fn regions(case: Case) -> (Region, Region) {
    let (window, bodies) = geometries(case);
    let words = 8 + window.words() + bodies.words();
    let sender = Region::heap(RegionId(1), words);
    let view = if case.shared { sender.read_only() } else { Region::heap(RegionId(2), words) };
    (sender, view)
}

fn apply(mut writer: WindowWriter, region: &Region, first: usize, case: Case) {
    for number in 0..MESSAGES {
        let length = length(number, first);
        // A reservation that is dropped leaves no trace.
        drop(writer.reserve(length));
        loop {
            match writer.reserve(length) {
                Ok(mut message) if case.is_on(Mutation::FillAfterCommit) => {
                    let start = message.as_mut_ptr().addr() - region.pointer(0).as_ptr().addr();
                    message.commit();
                    let bytes: Vec<u8> = (0..length).map(|at| byte(number, at)).collect();
                    region.copy_bytes_in(start / 8, &bytes);
                    break;
                }
                Ok(mut message) if draw(2) == 0 => {
                    for at in 0..length {
                        if at % 8 == 0 {
                            point();
                        }
                        message[at] = byte(number, at);
                    }
                    message.commit();
                    break;
                }
                // A burst: this message is shown with a later one, or at the end.
                Ok(message) => {
                    drop(message);
                    if case.is_on(Mutation::ShowUnfilled) {
                        // SYNC: pairs with the acquire in `WindowPublisher::ready`, as `show` does, but too early.
                        writer.shared.ready.0.store(writer.reserved + 1, Ordering::Release);
                    }
                    let fill = |payload: &mut Payload<'_>| {
                        for at in 0..length {
                            if at % 8 == 0 {
                                point();
                            }
                            payload.put(&[byte(number, at)]);
                        }
                    };
                    writer.add_written(length, fill).expect("there is space");
                    break;
                }
                Err(ReserveError::Full) => yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Copies words to the reader, in no order.
fn push(case: Case, sender: &Region, view: &Region, words: Range<usize>) {
    if !case.shared {
        let (first, count) = (words.start, words.len());
        let offset = draw(count);
        let words = (0..count).map(|i| first + (i + offset) % count);
        words.for_each(|word| view.store_relaxed(word, sender.load_relaxed(word)));
    }
}

fn announce(case: Case, sender: &Region, view: &Region, announcement: Announcement) {
    sender.store(ANNOUNCED, announcement.to_word());
    push(case, sender, view, ANNOUNCED..ANNOUNCED + 1);
}

fn poll(
    mut publisher: WindowPublisher,
    (sender, view): &(Region, Region),
    delivered: &AtomicU64,
    case: Case,
) {
    let (mut sent, mut nulls) = (0, 0);
    let mut freed = 0;
    while freed < MESSAGES {
        let mut work = 0;
        if let Some(words) = publisher.publish_express() {
            push(case, sender, view, words);
            work += 1;
        } else {
            let mut pushed = Vec::new();
            work += publisher.publish(u64::MAX, |words| pushed.push(words));
            publisher.publish_bodies(|body| pushed.push(body.words));
            while publisher.unreleased() < u64::MAX {
                publisher.release_body();
            }
            if work > 0 && case.is_on(Mutation::AnnounceFirst) {
                announce(case, sender, view, publisher.announcement());
            }
            pushed.into_iter().for_each(|words| push(case, sender, view, words));
            if work > 0 {
                announce(case, sender, view, publisher.announcement());
            }
        }
        sent += work;
        if nulls < NULLS && publisher.ready() == 0 {
            nulls += publisher.raise(publisher.announcement().indexes + 1);
            announce(case, sender, view, publisher.announcement());
        }
        // SYNC: pairs with the release in `read`.
        let read = delivered.load(Ordering::Acquire);
        let early = u64::from(case.is_on(Mutation::FreeUnread));
        let done = publisher.free((read + early).min(publisher.announcement().indexes));
        freed += done;
        if work + done == 0 {
            yield_now();
        }
    }
    assert_eq!(sent, MESSAGES);
}

/// Returns the announcement that the reader sees, as a subgroup computes it.
fn announced(view: &Region, express: Option<ExpressSlot>, case: Case) -> Announcement {
    let stored = Announcement::from_word(view.load(ANNOUNCED));
    let Some(express) = express else { return stored };
    let claimed = express.announcement(view);
    let is_whole =
        claimed.indexes > stored.indexes && (case.is_on(Mutation::PartOfExpress) || express.is_whole(view));
    if is_whole { claimed } else { stored }
}

fn read(view: &Region, delivered: &AtomicU64, first: usize, case: Case) {
    let (window, bodies) = geometries(case);
    let mut reader = WindowReader::new(view, window).with_bodies(view, bodies);
    let (mut index, mut number) = (0, 0);
    let mut known = Announcement::default();
    while number < MESSAGES {
        known = known.max(announced(view, window.express, case));
        if known.indexes <= index {
            yield_now();
        }
        while index < known.indexes {
            if let Some(record) = reader.take(index, known).expect("as announced") {
                let bytes = trusted::payload(&reader, record);
                assert_eq!(bytes.len(), length(number, first), "message {number}");
                for (at, found) in bytes.iter().enumerate() {
                    if at % 8 == 0 {
                        point();
                    }
                    assert_eq!(*found, byte(number, at), "byte {at} of message {number}");
                }
                number += 1;
            }
            index += 1;
            // SYNC: pairs with the acquire in `poll`.
            delivered.store(index, Ordering::Release);
        }
    }
}

fn run(case: Case) {
    let case = Case { records: 2 + 2 * draw(2), ..case };
    let regions = regions(case);
    let (window, bodies) = geometries(case);
    let (writer, publisher) = trusted::window(&regions.0, window, Some((&regions.0, bodies)));
    let delivered = Arc::new(AtomicU64::new(0));
    let (sender, view, seen) = (regions.0.clone(), regions.1.clone(), Arc::clone(&delivered));
    let first = draw(8);
    let threads = [
        thread::spawn(move || apply(writer, &sender, first, case)),
        thread::spawn(move || read(&view, &seen, first, case)),
    ];
    poll(publisher, &regions, &delivered, case);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// [O2] [O3] [O5] [O6] [N1] Committed messages are read: once, in order, whole, however nulls and laps fall.
#[test]
fn what_is_committed_is_read() {
    for (shared, express) in [(true, false), (true, true), (false, false), (false, true)] {
        explore(5000, move || run(Case::new(shared, express)));
    }
}

#[test]
fn errors_of_each_side_are_found() {
    for case in [
        Case::new(true, false).with(Mutation::FillAfterCommit),
        Case::new(false, true).with(Mutation::FillAfterCommit),
        Case::new(true, false).with(Mutation::ShowUnfilled),
        Case::new(false, true).with(Mutation::ShowUnfilled),
        Case::new(false, false).with(Mutation::AnnounceFirst),
        Case::new(true, false).with(Mutation::FreeUnread),
        Case::new(false, true).with(Mutation::FreeUnread),
        Case::new(true, true).with(Mutation::PartOfExpress),
        Case::new(false, true).with(Mutation::PartOfExpress),
    ] {
        assert!(finds_failure(10_000, move || run(case)), "{case:?}");
    }
}

/// [V7] A window that closes while the application sends: its committed messages continue in the next window,
/// once and in order, however late they are committed.
#[test]
fn messages_of_a_closed_window_continue_in_the_next() {
    explore(10_000, || {
        let ring = |id| {
            let geometry = WindowGeometry::new(0, 3, 24, 1);
            let region = Region::heap(RegionId(id), geometry.words());
            let ends = trusted::window(&region, geometry, None);
            (region, geometry, ends)
        };
        let (_, _, (mut writer, mut publisher)) = ring(1);
        let (region, geometry, (mut next, mut next_publisher)) = ring(2);
        let application = thread::spawn(move || {
            let mut sent = 0_u8;
            loop {
                let length = usize::from(sent) % 24 + 1;
                let added = match draw(2) {
                    0 => writer.send(length, |bytes| bytes.fill(sent)),
                    // The end of the window may come before the end of the burst.
                    _ => writer.add_written(length, |payload| payload.put_repeated(sent, length)),
                };
                match added {
                    Ok(()) => sent += 1,
                    Err(ReserveError::Full) => yield_now(),
                    Err(_) => return sent,
                }
            }
        });
        let mut index = 0;
        for _ in 0..2 {
            index += publisher.publish(u64::MAX, |_| ());
            publisher.free(index.saturating_sub(1));
        }
        let mut expected = u8::try_from(index.saturating_sub(1)).expect("few");
        publisher.close();
        let mut backlog = publisher.backlog(u64::from(expected));
        let mut reader = WindowReader::new(&region, geometry);
        let mut taken = 0;
        while !backlog.is_done() {
            if backlog.move_into(&mut next) == 0 {
                yield_now();
            }
            next_publisher.publish(u64::MAX, |_| ());
            while taken < next_publisher.announcement().indexes {
                let record =
                    reader.take(taken, next_publisher.announcement()).expect("whole").expect("no null");
                let bytes = trusted::payload(&reader, record);
                assert!(
                    bytes.iter().all(|byte| *byte == expected)
                        && bytes.len() == usize::from(expected) % 24 + 1
                );
                (taken, expected) = (taken + 1, expected + 1);
            }
            next_publisher.free(taken);
        }
        assert_eq!(application.join().expect("no panic"), expected, "all messages are moved, and none twice");
    });
}

/// The time that the publisher takes is that of the message whose index it takes, or, if a question became void while it was answered,
/// of a later one; and it takes one time for each question at most.
#[test]
fn times_belong_to_their_messages() {
    explore(5000, || {
        let geometry = WindowGeometry::new(0, 2, 8, 1);
        let region = Region::heap(RegionId(1), geometry.words());
        let (mut writer, mut publisher) = trusted::window(&region, geometry, None);
        let application = thread::spawn(move || {
            let mut sent = 0;
            while sent < MESSAGES {
                if writer.wants_time() {
                    writer.note_time(Instant::from_nanos(100 + sent));
                }
                match writer.send(8, |bytes| bytes.fill(1)) {
                    Ok(()) => sent += 1,
                    Err(_) => yield_now(),
                }
            }
        });
        let (mut published, mut from, mut is_void, mut is_open) = (0, 0, false, false);
        while published < MESSAGES {
            if draw(3) == 0 {
                is_void |= is_open;
                (from, is_open) = ((published + draw(4) as u64).max(1), true);
                publisher.ask_time(from - published);
            }
            published += publisher.publish(u64::MAX, |_| ());
            publisher.free(published);
            if let Some((index, time)) = publisher.take_time() {
                assert!(is_open && (from..published).contains(&index), "{index} of {from}..{published}");
                let record = time.as_nanos() - 100;
                assert!(record == index || is_void && record > index, "the time of {record} for {index}");
                (is_open, is_void) = (false, false);
            }
            yield_now();
        }
        application.join().expect("no panic");
    });
}
