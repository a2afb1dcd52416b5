//! What happens to the disk while the machine is off.

use std::collections::BTreeSet;
use std::rc::Rc;

use squall_log::{DiskFault, SimDisk, Storage, StorageOwner, copy_from_bytes};

use super::cluster::LogRun;
use super::plan::RestFault;

impl LogRun<'_> {
    /// What happens while the machine is off.
    pub(super) fn rest(&mut self, rest: RestFault) {
        match rest {
            RestFault::RotFrame(back) | RestFault::Unreadable(back) => {
                let frames = &self.model.frames;
                let Some(frame) = frames.len().checked_sub(back as usize).map(|at| &frames[at]) else {
                    return;
                };
                let path = format!("log/{:010}.segment", frame.segment);
                let offset = frame.offset + self.prng.below(frame.length / 8) * 8;
                match rest {
                    RestFault::RotFrame(_) => self.disk.rot(&path, offset),
                    _ => self.disk.make_unreadable(&path, offset),
                }
                self.take_struck();
            }
            RestFault::RotRegister(copy) => self.rot_register(copy),
            RestFault::RotCheckpoint(subgroup) => {
                // One of two that are kept may rot.
                let Some(kept) = self.checkpoints.get_mut(&subgroup).filter(|kept| kept.len() > 1) else {
                    return;
                };
                let Some(newest) = kept.pop_last() else { return };
                let path = format!("checkpoints/{subgroup}-{}-{}", newest.view, newest.sequence);
                self.disk.rot(&path, self.prng.below(4) * 8);
            }
            // A folder without frames is not taken for an empty one if it is misread: nothing to be checked.
            RestFault::ReadRot(_) if self.model.frames.is_empty() => {}
            RestFault::ReadRot(after) => self.disk.arm(DiskFault::ReadRot, "log/", after),
            RestFault::Anew => self.begin_anew(),
            RestFault::OtherCopy => {}
        }
    }

    /// One copy may rot while the other one is whole.
    fn rot_register(&mut self, copy: u64) {
        let Some(bytes) = self.disk.contents("register") else { return };
        let distance = bytes.len() / 2;
        if distance > 0 && bytes.chunks(distance).all(|copy| copy_from_bytes(copy).is_some()) {
            self.disk.rot("register", copy * distance as u64 + self.prng.below(4) * 8);
        }
    }

    fn begin_anew(&mut self) {
        let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
        let id = self.prng.draw();
        if let Ok(storage) = Storage::open(Rc::clone(&self.disk), &owner, self.plan.settings, id) {
            let id = self.prng.draw();
            self.anew.insert(id);
            if self.prng.chance(500) {
                self.disk.stop_after(self.prng.below(8));
            }
            let is_complete = storage.begin_anew(id).is_ok();
            self.note(&format!("begins anew: {is_complete}"));
            self.disk.crash();
        }
    }

    /// Replaces a segment in whose predecessor this life has written records by that of the other copy.
    pub(super) fn take_other_copy(&mut self, copy: &SimDisk, first_segment: u32) {
        let frames = self.model.frames.iter().filter(|frame| frame.segment > first_segment);
        let later: BTreeSet<u32> = frames.map(|frame| frame.segment).collect();
        let Some(segment) = later.into_iter().next() else { return };
        // The copy has lived differently before: else this would be the segment that it should be.
        let before = self.model.frames.iter().rev().find(|frame| frame.segment < segment);
        let bytes_of = |disk: &SimDisk| {
            let frame = before?;
            let bytes = disk.contents(&format!("log/{:010}.segment", frame.segment))?;
            Some(bytes.get(frame.offset as usize..(frame.offset + frame.length) as usize)?.to_vec())
        };
        if bytes_of(copy) == bytes_of(&self.disk) {
            return;
        }
        let path = format!("log/{segment:010}.segment");
        if let Some(bytes) = copy.contents(&path) {
            self.note(&format!("takes {path} from the other copy"));
            self.disk.replace(&path, bytes);
            self.harm(segment, 0, u64::MAX / 2, true);
        }
    }
}
