//! A receiver's side: it attaches, copies at the others' pace or reads in place, and releases (RDMC §2, fig. 1).

use squall_fabric::copy::CopyStrategies;
use squall_fabric::{Fabric, Instant, Region};

use super::{BUFFERS_MAX, OBJECTS_MAX, OFFERED, PATIENCE, Progress, READY, Rows, buffer_key, descriptor};

#[derive(Debug)]
pub(super) struct LocalReceiver {
    block_bytes: usize,
    /// The root's buffers, by number; `None` until one has an object.
    attachments: Vec<Option<Region>>,
    /// Objects below this number have been seen in the root's row: `given_back <= seen <= offered`.
    seen: u64,
    pub(super) given_back: u64,
    /// The number of blocks copied of the next object.
    blocks: u64,
    pace: Pace,
    strategies: CopyStrategies,
    pub(super) breached: bool,
}

/// The state of waiting for the others.
#[derive(Debug, Default)]
struct Pace {
    /// Since when no receiver that this one waits for has made progress, and their progress then.
    still: Option<(Instant, u64)>,
    /// The ranks that this receiver no longer waits for during this object.
    absent: Vec<usize>,
}

/// An object that can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectOffer {
    /// Its number.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The outcome of an attempt to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyProgress {
    /// A block was copied; there are more.
    Block,
    /// Nothing was copied, because others are behind. Let them have the processor.
    Later,
    /// All of the object has been copied.
    All,
}

impl LocalReceiver {
    pub(super) fn new(block_bytes: usize) -> Self {
        let attachments = (0..BUFFERS_MAX).map(|_| None).collect();
        let (pace, strategies) = (Pace::default(), CopyStrategies::default());
        Self {
            block_bytes,
            attachments,
            seen: 0,
            given_back: 0,
            blocks: 0,
            pace,
            strategies,
            breached: false,
        }
    }

    /// Attaches the buffers of new objects; returns the amount of work done.
    pub(super) fn poll<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) -> usize {
        let offered = rows.rows[0].load(OFFERED);
        if offered < self.seen || offered > self.given_back + OBJECTS_MAX {
            self.breached = true;
        }
        let mut work = 0;
        while self.seen < offered && !self.breached {
            let [index, words, bytes] = read_descriptor(rows, self.seen);
            if index >= BUFFERS_MAX as u64 || words > WORDS_MAX || bytes.div_ceil(8) > words {
                self.breached = true;
                return 1;
            }
            let (index, words) = (index as usize, words as usize);
            let attachment = self.attachments[index]
                .get_or_insert_with(|| fabric.attach(rows.members[0], buffer_key(rows.key, index), words));
            self.breached |= attachment.words() != words;
            self.seen += 1;
            work += 1;
        }
        work
    }

    pub(super) fn next(&self, rows: &Rows) -> Option<ObjectOffer> {
        // What is stored into this member's row before all have attached it may never reach them [M5].
        let can_report = rows.is_ready() && !self.breached;
        let is_ready = can_report && self.given_back < rows.rows[0].load(READY).min(self.seen);
        is_ready.then(|| ObjectOffer {
            number: self.given_back,
            bytes: read_descriptor(rows, self.given_back)[2],
        })
    }

    pub(super) fn copy<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows, target: &mut [u8]) -> CopyProgress {
        let offer = self.next(rows).expect("there is a next object");
        assert_eq!(target.len() as u64, offer.bytes, "the target has the object's size");
        if !self.may_go_on(fabric.now(), rows) {
            return CopyProgress::Later;
        }
        let first = usize::try_from(self.blocks).expect("inside memory") * self.block_bytes;
        let end = (first + self.block_bytes).min(target.len());
        if first < end {
            let (attachment, object_bytes) = (self.attachment(rows), target.len());
            let block = &mut target[first..end];
            self.strategies.copy_bytes_out(&attachment, first, block, object_bytes, || fabric.now());
        }
        if end == target.len() {
            return CopyProgress::All;
        }
        self.blocks += 1;
        rows.show(fabric, super::PROGRESS, Progress::new(self.given_back, self.blocks).0);
        CopyProgress::Block
    }

    pub(super) fn lease<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) -> Region {
        assert!(self.next(rows).is_some(), "there is a next object");
        self.blocks = u64::from(u32::MAX);
        rows.show(fabric, super::PROGRESS, Progress::new(self.given_back, self.blocks).0);
        self.attachment(rows)
    }

    pub(super) fn give_back<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) {
        assert!(self.next(rows).is_some(), "there is a next object");
        self.given_back += 1;
        self.blocks = 0;
        self.pace = Pace::default();
        rows.raise(fabric, super::PROGRESS, Progress::new(self.given_back, 0).0);
    }

    /// Returns the memory of the next object.
    fn attachment(&self, rows: &Rows) -> Region {
        let [index, ..] = read_descriptor(rows, self.given_back);
        let index = usize::try_from(index).expect("checked when it was seen");
        self.attachments[index].clone().expect("attached when it was seen")
    }

    /// Returns whether no other receiver is more than a block behind, except those that make no progress.
    fn may_go_on(&mut self, now: Instant, rows: &Rows) -> bool {
        let floor = Progress::new(self.given_back, self.blocks.saturating_sub(BLOCKS_AHEAD));
        if self.blocks < BLOCKS_AHEAD {
            return true;
        }
        let is_behind = |rank: &usize| rows.progress(*rank) < floor && !self.pace.absent.contains(rank);
        let behind: Vec<usize> = rows.other_receivers().filter(is_behind).collect();
        if behind.is_empty() {
            self.pace.still = None;
            return true;
        }
        let sum = behind.iter().fold(0, |sum: u64, rank| sum.wrapping_add(rows.progress(*rank).0));
        match self.pace.still {
            Some((since, at)) if at == sum => {
                if now.since(since) > PATIENCE {
                    self.pace.absent.extend(behind);
                }
            }
            _ => self.pace.still = Some((now, sum)),
        }
        false
    }
}

fn read_descriptor(rows: &Rows, number: u64) -> [u64; 3] {
    let mut words = [0; 3];
    rows.rows[0].copy_out(descriptor(number), &mut words);
    words
}

/// The number of blocks by which a receiver may be ahead of the slowest.
const BLOCKS_AHEAD: u64 = 1;
/// 2^45 bytes: beyond any host's memory, within the address space.
const WORDS_MAX: u64 = 1 << 42;
