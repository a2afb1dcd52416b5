//! Repair of a folder from what is in it: copies that are bad, bits that have rotted, files that count for nothing.
//!
//! [`plan_repair`] says what can be done, and changes nothing; [`repair`] does it. What only other processes know is not repaired here:
//! the end of a log, and a register without a good copy.
//!
//! # What is repaired
//! - *One of the two copies* of the identity or the register is bad, or older: it is written again from the good one.
//! - *A bit* of a frame has flipped. A checksum that fails by exactly what one bit contributes names that bit; another change of the frame
//!   that gives the same difference has a probability below 2^-40 (a body of 1 MiB, CRC-64), and the header has to fit the chain, too.
//!   The frame is then exactly what was written, and the log is followed behind it.
//! - *Files* that nothing counts: unfinished ones, checkpoints that are not as they were written, spare segments of another length.
//!
//! # Order
//! Nothing is deleted: a file that goes is moved to the folder `aside`, and one that changes is copied there before, with its name behind
//! that of its folder. A repair that is interrupted can be done again.
//!
//! # Invariants
//! - A repair never makes a log shorter: all frames that were found before are found after it, with the same bytes.
//! - All bytes that were in the folder before are in it afterwards.

use std::collections::{BTreeMap, BTreeSet};

use crate::backup::copy_file;
use crate::buffer::AlignedBuffer;
use crate::check::crc64;
use crate::copies::CopyPair;
use crate::disk::{Disk, DiskCause, DiskError};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::identity::IdentityError;
use crate::names;
use crate::record::read_records;
use crate::recovery::{Recovered, follow, follows};
use crate::settings::LogSettings;
use crate::storage::{Storage, StorageError};

/// What can be repaired, and what the log is before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPlan {
    /// In the order in which they are done.
    pub steps: Vec<RepairStep>,
    /// The log as it is found.
    pub before: Recovered,
    /// The log as it will be.
    pub after: Recovered,
    /// Whether the register has a good copy.
    pub has_register: bool,
}

/// A step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairStep {
    /// A file goes to the folder `aside`.
    Aside {
        /// The file.
        path: String,
        /// Why it counts for nothing.
        reason: AsideReason,
    },
    /// Both copies in a file are written again, from the newest good one.
    Copies {
        /// The file.
        path: &'static str,
    },
    /// A bit of a frame is turned back.
    Bit {
        /// The number of the frame.
        frame: u64,
        /// Its segment.
        segment: u32,
        /// The byte in the segment.
        offset: u64,
        /// The bit in the byte, as a mask.
        mask: u8,
    },
}

/// Why a file counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsideReason {
    /// It was being made when its process ended.
    Unfinished,
    /// A checkpoint that is not as it was written.
    BadCheckpoint,
    /// A segment that the log has left behind, and that cannot be used again since its length is wrong.
    SpareLength,
}

/// Says what [`repair`] would do. Nothing is changed.
///
/// # Errors
/// If the folder cannot be read, has no good identity, or is an unfinished backup.
pub fn plan_repair(disk: &dyn Disk, settings: LogSettings) -> Result<RepairPlan, StorageError> {
    let storage = Storage::inspect(disk, settings)?;
    storage.is_backup()?;
    let mut steps = files_that_count_for_nothing(&storage)?;
    for path in [names::IDENTITY, names::REGISTER] {
        let is_needed = path == names::IDENTITY || storage.register().is_some();
        if is_needed && !CopyPair::is_whole(disk, path)? {
            steps.push(RepairStep::Copies { path });
        }
    }
    let before = storage.recover(&mut |_, _| ())?;
    let patched = PatchedDisk::new(disk);
    let (settings, log) = (*storage.settings(), storage.identity().log);
    let mut found = before.clone();
    let mut bits = 0;
    while let Some(bit) = flipped_bit(&patched, &settings, log, &found).filter(|_| bits < BITS_MAX) {
        patched.flip(&bit);
        steps.push(bit);
        bits += 1;
        let last = found.last;
        follow(&patched, &settings, log, &mut found, &mut |_| ())?;
        assert!(found.last != last, "a frame that was repaired is found");
    }
    let after = match bits {
        0 => before.clone(),
        _ => Storage::inspect(&patched as &dyn Disk, settings)?.recover(&mut |_, _| ())?,
    };
    Ok(RepairPlan { steps, before, after, has_register: storage.register().is_some() })
}

/// Repairs the folder as [`plan_repair`] says, and returns what was done. The folder `aside` has to be there; its process must not run.
///
/// # Errors
/// As [`plan_repair`], and if the disk fails: then a part may have been done, and the rest can be done later.
pub fn repair(disk: &dyn Disk, settings: LogSettings) -> Result<RepairPlan, StorageError> {
    let plan = plan_repair(disk, settings)?;
    let storage = Storage::inspect(disk, settings)?;
    let block = storage.settings().block;
    let mut kept = BTreeSet::new();
    for step in &plan.steps {
        match step {
            RepairStep::Aside { path, .. } => {
                disk.rename(path, &aside(disk, path)?)?;
                disk.flush_folder(path.rsplit_once('/').map_or("", |(folder, _)| folder))?;
            }
            RepairStep::Copies { path } => {
                keep_aside(disk, path, block)?;
                write_copies(&storage, path)?;
            }
            RepairStep::Bit { segment, offset, mask, .. } => {
                let path = names::segment(*segment);
                if kept.insert(*segment) {
                    keep_aside(disk, &path, block)?;
                }
                let begin = offset / block as u64 * block as u64;
                let mut bytes = AlignedBuffer::zeroed(block);
                disk.read(&path, begin, &mut bytes)?;
                bytes.bytes_mut()[usize::try_from(offset - begin).expect("in the block")] ^= mask;
                disk.write(&path, begin, &bytes)?;
            }
        }
    }
    disk.flush_folder(names::ASIDE)?;
    Ok(plan)
}

fn files_that_count_for_nothing(storage: &Storage<&dyn Disk>) -> Result<Vec<RepairStep>, StorageError> {
    let disk = *storage.disk();
    let mut steps = Vec::new();
    let mut add = |path: String, reason| steps.push(RepairStep::Aside { path, reason });
    for folder in ["", names::LOG, names::CHECKPOINTS] {
        for name in disk.list(folder)?.into_iter().filter(|name| name.ends_with(names::UNFINISHED)) {
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            add(path, AsideReason::Unfinished);
        }
    }
    let good = storage.checkpoints();
    for name in disk.list(names::CHECKPOINTS)? {
        let found = names::parse_checkpoint(&name);
        let is_good = |(subgroup, at)| good.get(&subgroup).is_some_and(|all| all.contains(&at));
        if found.is_some_and(|found| !is_good(found)) {
            add(format!("{}/{name}", names::CHECKPOINTS), AsideReason::BadCheckpoint);
        }
    }
    let base = storage.register().map_or(0, |register| register.base.segment);
    let length = u64::from(storage.settings().segment_bytes);
    for number in disk.list(names::LOG)?.iter().filter_map(|name| names::parse_segment(name)) {
        let path = names::segment(number);
        if number < base && disk.length(&path)? != length {
            add(path, AsideReason::SpareLength);
        }
    }
    Ok(steps)
}

/// The bit that keeps the frame behind `found` from being good, if it is one.
fn flipped_bit(disk: &dyn Disk, settings: &LogSettings, log: u64, found: &Recovered) -> Option<RepairStep> {
    let names = disk.list(names::LOG).ok()?;
    let segments = names.iter().filter_map(|name| names::parse_segment(name));
    let later = segments.filter(|number| *number > found.segment).map(|number| (number, 0));
    let here = (found.offset < u64::from(settings.segment_bytes)).then_some((found.segment, found.offset));
    here.into_iter().chain(later).find_map(|(segment, offset)| {
        let frame = FrameBytes { disk, settings, log, segment, offset };
        let (number, at, mask) = frame.flipped_bit(found)?;
        Some(RepairStep::Bit { frame: number, segment, offset: offset + at as u64, mask })
    })
}

/// The place of a frame.
struct FrameBytes<'a> {
    disk: &'a dyn Disk,
    settings: &'a LogSettings,
    log: u64,
    segment: u32,
    offset: u64,
}

impl FrameBytes<'_> {
    fn read(&self, length: usize) -> Option<AlignedBuffer> {
        let mut bytes = AlignedBuffer::zeroed(length);
        let read = self.disk.read(&names::segment(self.segment), self.offset, &mut bytes).ok()?;
        (read == length).then_some(bytes)
    }

    /// The number of the frame, and the byte and the bit that have flipped.
    fn flipped_bit(&self, found: &Recovered) -> Option<(u64, usize, u8)> {
        let block = self.read(self.settings.block)?;
        let header: [u8; FRAME_HEADER_BYTES] = *block.bytes().first_chunk()?;
        let fits = |header: &FrameHeader| {
            let place = self.offset / self.settings.block as u64;
            (header.log, header.segment, u64::from(header.place)) == (self.log, self.segment, place)
                && follows(header, found)
                && self.offset + header.padded(self.settings.block) <= u64::from(self.settings.segment_bytes)
        };
        if let Ok(header) = FrameHeader::from_bytes(&header) {
            return fits(&header).then(|| self.in_body(&header)).flatten();
        }
        (0..8 * FRAME_HEADER_BYTES).find_map(|bit| {
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            let mut bytes = header;
            bytes[at] ^= mask;
            let header = FrameHeader::from_bytes(&bytes).ok().filter(fits)?;
            let body = self.body(&header)?;
            let is_good = header.has_body(&body) && read_records(&body, header.records, |_| ()).is_ok();
            is_good.then_some((header.number, at, mask))
        })
    }

    fn body(&self, header: &FrameHeader) -> Option<Vec<u8>> {
        let frame = self.read(usize::try_from(header.padded(self.settings.block)).ok()?)?;
        Some(frame.bytes().get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.length as usize)?.to_vec())
    }

    fn in_body(&self, header: &FrameHeader) -> Option<(u64, usize, u8)> {
        let mut body = self.body(header)?;
        let (at, mask) = bit_of_difference(crc64(&body) ^ header.body_check, body.len())?;
        body[at] ^= mask;
        let is_good = header.has_body(&body) && read_records(&body, header.records, |_| ()).is_ok();
        is_good.then_some((header.number, FRAME_HEADER_BYTES + at, mask))
    }
}

/// The bit of `length` bytes that changes their CRC-64 by `difference`, as a byte and a mask. A bit changes it by the same amount,
/// whatever the others are; and one place earlier by that amount multiplied by x.
fn bit_of_difference(difference: u64, length: usize) -> Option<(usize, u8)> {
    let polynomial = crc64(&[0x80]) ^ crc64(&[0]);
    let mut of_bit = polynomial;
    for back in 0..8 * length {
        if of_bit == difference {
            return Some((length - 1 - back / 8, 0x80 >> (back % 8)));
        }
        of_bit = of_bit >> 1 ^ if of_bit & 1 == 1 { polynomial } else { 0 };
    }
    None
}

/// Writes both copies of the identity or the register again, from the newest good one.
fn write_copies(storage: &Storage<&dyn Disk>, path: &'static str) -> Result<(), StorageError> {
    if path == names::REGISTER {
        return storage.change_register(|_| ()).map(drop);
    }
    let disk = *storage.disk();
    let opened = CopyPair::open(disk, path, storage.settings().block)?;
    let (mut pair, bytes) = opened.ok_or(IdentityError::Unreadable)?;
    Ok(pair.write(disk, &bytes)?)
}

/// A name in the folder `aside` that is free.
fn aside(disk: &dyn Disk, path: &str) -> Result<String, DiskError> {
    let there = disk.list(names::ASIDE)?;
    let name = path.replace('/', "-");
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let free = [name.clone()].into_iter().chain(numbered).find(|name| !there.contains(name));
    Ok(format!("{}/{}", names::ASIDE, free.expect("a folder has few files")))
}

/// Copies a file of a log to the folder `aside`, which has to be there, before it is changed.
///
/// # Errors
/// If the disk fails.
pub fn keep_aside(disk: &dyn Disk, path: &str, block: usize) -> Result<(), DiskError> {
    copy_file(disk, path, disk, &aside(disk, path)?, block)?;
    disk.flush_folder(names::ASIDE)
}

/// A disk as it would be with bits turned back.
struct PatchedDisk<'a> {
    disk: &'a dyn Disk,
    bits: std::cell::RefCell<BTreeMap<(u32, u64), u8>>,
}

impl<'a> PatchedDisk<'a> {
    fn new(disk: &'a dyn Disk) -> Self {
        Self { disk, bits: std::cell::RefCell::default() }
    }

    fn flip(&self, step: &RepairStep) {
        if let RepairStep::Bit { segment, offset, mask, .. } = step {
            *self.bits.borrow_mut().entry((*segment, *offset)).or_default() ^= mask;
        }
    }

    fn refuse(path: &str) -> DiskError {
        let cause = DiskCause::System(rustix::io::Errno::ROFS.raw_os_error());
        DiskError { operation: "change", path: path.into(), cause }
    }
}

impl Disk for PatchedDisk<'_> {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(folder)
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        self.disk.length(path)
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        let read = self.disk.read(path, offset, buffer)?;
        let segment = path.rsplit('/').next().and_then(names::parse_segment);
        if let Some(segment) = segment {
            let bits = self.bits.borrow();
            for ((_, at), mask) in bits.range((segment, offset)..(segment, offset + read as u64)) {
                buffer.bytes_mut()[usize::try_from(at - offset).expect("in the buffer")] ^= mask;
            }
        }
        Ok(read)
    }

    fn create_in_steps(&self, path: &str, _: u64, _: &mut dyn FnMut(u64)) -> Result<(), DiskError> {
        Err(Self::refuse(path))
    }

    fn write(&self, path: &str, _: u64, _: &AlignedBuffer) -> Result<(), DiskError> {
        Err(Self::refuse(path))
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        Err(Self::refuse(from))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        Err(Self::refuse(path))
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        Err(Self::refuse(folder))
    }
}

/// Bits that are looked for: each takes as long as reading a segment. A disk that has lost more of them is replaced.
const BITS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit of a body is named by what it changes, and nothing else is.
    #[test]
    fn a_difference_names_its_bit() {
        let body: Vec<u8> = (0..90_u32).map(|at| (at * 7) as u8).collect();
        for bit in 0..8 * body.len() {
            let mut wrong = body.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let difference = crc64(&wrong) ^ crc64(&body);
            assert_eq!(bit_of_difference(difference, body.len()), Some((bit / 8, 1 << (bit % 8))));
            wrong[(bit / 8 + 3) % 90] ^= 5;
            assert_eq!(bit_of_difference(crc64(&wrong) ^ crc64(&body), body.len()), None);
        }
        assert_eq!(bit_of_difference(0, body.len()), None);
    }
}
