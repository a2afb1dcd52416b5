//! What a recovery has to find.

use std::rc::Rc;

use squall_log::{LogPosition, RecordKind, Recovered, SimDisk, Storage, TailVerdict};

use super::cluster::LogRun;
use super::model::{AbandonedModel, ModelFrame, state};

/// A record as it was found: frame, kind, subgroup, position, sender, time, bytes.
pub(super) type FoundRecord = (u64, RecordKind, u32, LogPosition, u32, u64, Vec<u8>);

impl LogRun<'_> {
    /// Checks what was found, and continues with it.
    pub(super) fn check_recovery(
        &mut self,
        storage: &Storage<Rc<SimDisk>>,
        recovered: &Recovered,
        found: &[FoundRecord],
    ) {
        self.check_register(storage);
        self.restore(recovered);
        let Some(begin) = self.begin_of(storage) else { return };
        let frames = &self.model.frames;
        let kept = frames[begin..].iter().take_while(|frame| frame.number <= recovered.last).count();
        let end = begin + kept;
        self.check_prefix(begin, end, recovered, found);
        self.check_loss(end, recovered);
        self.check_checkpoints(storage);
        self.has_cut = end < self.model.frames.len();
        if self.has_cut {
            self.abandoned.push(AbandonedModel::new(end, self.model.clone()));
        }
        self.model.cut(end);
    }

    /// Takes back what earlier recoveries have cut, if it is found, or the life behind the last one has left nothing on the disk.
    fn restore(&mut self, recovered: &Recovered) {
        for abandoned in &mut self.abandoned {
            abandoned.handle_frames(&self.model.frames);
        }
        let is_lost = |frame: &ModelFrame| !frame.is_written || frame.is_damaged;
        let opening_of = |abandoned: &AbandonedModel| {
            let number = abandoned.opening?;
            self.model.frames.iter().position(|frame| frame.number == number)
        };
        let found = self.abandoned.iter().rposition(|abandoned| {
            let opening = opening_of(abandoned);
            abandoned.has(recovered.last) && opening.is_none_or(|at| is_lost(&self.model.frames[at]))
        });
        let newest = self.abandoned.len().checked_sub(1).filter(|_| self.has_cut);
        let nothing = newest.filter(|at| {
            let opening = opening_of(&self.abandoned[*at]).map(|at| &self.model.frames[at]);
            opening.is_none_or(|opening| !opening.is_written && recovered.last < opening.number)
        });
        let Some(at) = found.or(nothing) else { return };
        let abandoned = self.abandoned.remove(at);
        if let Some(opening) = opening_of(&abandoned)
            && self.model.frames[opening].is_damaged
        {
            self.check_loss(opening, recovered);
        }
        let end = abandoned.end;
        let model = abandoned.into_model(&self.model);
        self.abandoned.insert(0, AbandonedModel::new(end, std::mem::replace(&mut self.model, model)));
    }

    /// \[W9\]
    fn check_register(&mut self, storage: &Storage<Rc<SimDisk>>) {
        let (completed, begun) = self.register;
        let Some(register) = storage.register() else {
            return self.fail("register", "[W9] both copies are bad".into());
        };
        let mut words = register.protocol.chunks(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let value = words.next().unwrap_or(0);
        if words.any(|word| word != value) {
            return self.fail("register", format!("[W9] the register has a part of {value}"));
        }
        if !(completed..=begun).contains(&value) {
            let text = format!("[W9] the register has {value}, and changes up to {completed} were completed");
            return self.fail("register", text);
        }
        self.register = (value, value.max(begun));
    }

    /// The first frame of the log in the model; what was recycled before it is noted.
    fn begin_of(&mut self, storage: &Storage<Rc<SimDisk>>) -> Option<usize> {
        let base = storage.register()?.base;
        let frames = &self.model.frames;
        let begin = frames.iter().position(|frame| frame.number > base.before).unwrap_or(frames.len());
        let end = frames.get(begin).map_or(self.model.records.len(), |frame| frame.begin);
        for record in &self.model.records[..end] {
            let greatest = self.model.recycled.entry(record.subgroup).or_insert(record.position);
            *greatest = (*greatest).max(record.position);
        }
        Some(begin)
    }

    /// \[W1\] \[W2\] \[W3\]
    fn check_prefix(&mut self, begin: usize, end: usize, recovered: &Recovered, found: &[FoundRecord]) {
        let frames = &self.model.frames[begin..end];
        if frames.last().is_some_and(|frame| frame.number != recovered.last)
            || recovered.frames != frames.len() as u64
        {
            let text = format!(
                "[W3] {} frames were found, up to {:#x}, where {} were written up to {:#x}",
                recovered.frames,
                recovered.last,
                frames.len(),
                frames.last().map_or(0, |frame| frame.number)
            );
            return self.fail("prefix", text);
        }
        let expected = frames.iter().flat_map(|frame| {
            let records = self.model.records[frame.begin..frame.end].iter();
            records.map(|record| {
                let bytes = record.bytes();
                let written = record.record(&bytes);
                let (kind, sender) = (written.kind, written.sender);
                (frame.number, kind, record.subgroup, record.position, sender, record.time, bytes)
            })
        });
        if !expected.eq(found.iter().cloned()) {
            self.fail("prefix", "[W3] the records are not those that were written".into());
        }
    }

    /// \[W5\] \[W7\]: what is missing at the end.
    fn check_loss(&mut self, end: usize, recovered: &Recovered) {
        let frames = &self.model.frames;
        let is_damaged = recovered.verdict == TailVerdict::Damaged;
        let harmed = self.model.is_doubtful || frames.iter().any(|frame| frame.is_damaged);
        if is_damaged && !harmed {
            let text = format!("[W7] the disk is good, and the log is damaged: {:?}", recovered.evidence);
            return self.fail("verdict", text);
        }
        let Some(missing) = frames.get(end) else { return };
        let reported = missing.begin < missing.end && missing.end <= self.model.acknowledged
            || missing.begin < self.model.acknowledged;
        if reported && !missing.is_damaged {
            let text =
                format!("[W5] frame {:#x} was reported as persisted, and is not there", missing.number);
            return self.fail("durable", text);
        }
        let proves = |frame: &&ModelFrame| {
            frame.is_written && !frame.is_damaged && frame.known_durable >= missing.number
        };
        let proof = frames[end + 1..].iter().find(proves);
        if let Some(proof) = proof.filter(|_| !is_damaged) {
            let text = format!(
                "[W7] frame {:#x} is missing, which {:#x} knows to be durable, and the log is {}",
                missing.number, proof.number, recovered.verdict
            );
            self.fail("verdict", text);
        }
    }

    /// \[W10\] \[W11\] \[W14\]
    fn check_checkpoints(&mut self, storage: &Storage<Rc<SimDisk>>) {
        let verified = storage.checkpoints();
        for (subgroup, position) in
            verified.iter().flat_map(|(group, all)| all.iter().map(|at| (*group, *at)))
        {
            let mut bytes = Vec::new();
            let outcome =
                storage.read_checkpoint(subgroup, position, &mut |part| bytes.extend_from_slice(part));
            if outcome.is_err() || bytes != state(subgroup, position) {
                return self.fail("checkpoint", format!("[W10] {subgroup} {position:?}: {outcome:?}"));
            }
        }
        for (subgroup, position) in self.model.recycled.clone() {
            let newest = verified.get(&subgroup).and_then(|all| all.last()).copied();
            if newest.is_none_or(|newest| newest < position) {
                let text = format!("[W11] {subgroup} is recycled up to {position:?}, and has {newest:?}");
                return self.fail("checkpoint", text);
            }
            let wanted = self.wanted.get(&subgroup).copied().unwrap_or_default();
            if position > wanted {
                let text =
                    format!("[W14] {subgroup} is recycled up to {position:?}, and {wanted:?} is wanted");
                return self.fail("versions", text);
            }
        }
        self.checkpoints = verified;
    }
}
