//! The application of a test, which provides memory, now or later, and checks every notification (RDMC §2).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use squall_fabric::sim::{Prng, SimFabric};

use super::contents;
use squall_protocols::rdmc::{
    GroupId, HeldBlocks, ObjectAnswer, ObjectMemory, RdmcApplication, RdmcFailure, RdmcObject,
};

/// The first violation that a checker has found, at any member.
pub(super) type RdmcFindings = Rc<RefCell<Option<String>>>;

/// The application of one member.
pub(super) struct RdmcApp {
    pub(super) node: u32,
    watch: RdmcFindings,
    pub(super) streams: BTreeMap<GroupId, RdmcMember>,
    prng: Prng,
    /// How often it answers `Later`, per mille.
    pub(super) later_per_mille: u32,
    /// How often it offers memory in advance, per mille of the opportunities.
    pub(super) offers_per_mille: u32,
    /// The object for which it has no memory, if any.
    pub(super) refused: Option<(GroupId, u64)>,
    asked: Vec<RdmcObject>,
    /// The objects received in this turn.
    pub(super) received: Vec<RdmcObject>,
}

/// The state of one group at one member.
pub(super) struct RdmcMember {
    pub(super) key: u64,
    pub(super) block_bytes: u64,
    /// The number of the first object.
    pub(super) first: u64,
    /// The numbers of the next objects to be asked for, received and released.
    pub(super) next_asked: u64,
    pub(super) next_received: u64,
    pub(super) next_released: u64,
    /// The released objects with their memory, if it is kept because a group may resume from it; otherwise it is
    /// overwritten.
    pub(super) kept: Option<BTreeMap<u64, (RdmcObject, ObjectMemory)>>,
    /// The memory offered for an object, until the object is received or asked for.
    pub(super) offered: Option<(u64, ObjectMemory)>,
    pub(super) failure: Option<RdmcFailure>,
    /// The contents of the memory of unfinished objects when the failure was reported.
    unfinished: Vec<Vec<u64>>,
}

impl RdmcApp {
    pub(super) fn new(node: u32, watch: &RdmcFindings, seed: u64) -> Self {
        Self {
            node,
            watch: Rc::clone(watch),
            streams: BTreeMap::new(),
            prng: Prng::new(seed ^ u64::from(node) << 32),
            later_per_mille: 0,
            offers_per_mille: 0,
            refused: None,
            asked: Vec::new(),
            received: Vec::new(),
        }
    }

    pub(super) fn stream(&self, group: GroupId) -> &RdmcMember {
        &self.streams[&group]
    }

    /// Takes the objects for which memory was promised.
    pub(super) fn take_asked(&mut self) -> Vec<RdmcObject> {
        std::mem::take(&mut self.asked)
    }

    /// Draws the memory to be offered, and for which objects.
    pub(super) fn draw_offers(&mut self, fabric: &mut SimFabric) -> Vec<(RdmcObject, ObjectMemory)> {
        let Self { streams, prng, offers_per_mille, .. } = self;
        let mut offers = Vec::new();
        let idle = |stream: &RdmcMember| stream.offered.is_none() && stream.failure.is_none();
        for (group, stream) in streams.iter().filter(|(_, stream)| *offers_per_mille > 0 && idle(stream)) {
            if prng.chance(*offers_per_mille) {
                let (number, words) =
                    (stream.next_asked.max(stream.next_received), [1, 6, 40, 800][prng.index(4)]);
                let object = RdmcObject { group: *group, number, bytes: 8 * words as u64 };
                offers.push((object, contents::empty(fabric, words)));
            }
        }
        offers
    }

    /// Records that RDMC has accepted offered memory.
    pub(super) fn on_offered(&mut self, object: RdmcObject, memory: ObjectMemory) {
        self.streams.get_mut(&object.group).expect("known").offered = Some((object.number, memory));
    }

    pub(super) fn note(&self, result: Result<(), String>) {
        if let Err(text) = result {
            self.watch.borrow_mut().get_or_insert(format!("node {}: {text}", self.node));
        }
    }

    fn expect(&self, what: &str, expected: u64, object: &RdmcObject) {
        let is_right = object.number == expected;
        self.note(if is_right { Ok(()) } else { Err(format!("{what} {object:?} instead of {expected}")) });
    }
}

impl RdmcMember {
    pub(super) fn new(key: u64, block_bytes: u64, first: u64, keeps: bool) -> Self {
        Self {
            key,
            block_bytes,
            first,
            next_asked: first,
            next_received: first,
            next_released: first,
            kept: keeps.then(BTreeMap::new),
            offered: None,
            failure: None,
            unfinished: Vec::new(),
        }
    }

    fn check(&self, object: &RdmcObject, memory: &ObjectMemory, held: &HeldBlocks) -> Result<(), String> {
        let block_words = usize::try_from(self.block_bytes / 8).expect("small");
        contents::check(self.key, object, memory, held, block_words)
    }

    fn check_whole(&self, object: &RdmcObject, memory: &ObjectMemory) -> Result<(), String> {
        self.check(object, memory, &HeldBlocks::all(object.bytes.div_ceil(self.block_bytes)))
    }

    /// Checks that the held blocks of unfinished objects are correct.
    fn check_unfinished(&self) -> Result<(), String> {
        let unfinished = self.failure.iter().flat_map(|failure| &failure.unfinished);
        for left in unfinished {
            if let Some(memory) = &left.memory {
                self.check(&left.object, memory, &left.held)
                    .map_err(|text| format!("[B7] unfinished: {text}"))?;
            }
        }
        Ok(())
    }

    /// Checks that memory which was offered for the object, and not used, is too small and untouched.
    fn check_refused(&mut self, object: &RdmcObject) -> Result<(), String> {
        let Some((_, memory)) = self.offered.take_if(|(number, _)| *number == object.number) else {
            return Ok(());
        };
        if object.words() <= memory.region.words() - memory.first {
            return Err(format!("asked for memory for {object:?}, which fits the offered memory"));
        }
        let clean = contents::snapshot(&memory).iter().all(|word| *word == contents::POISON);
        if clean { Ok(()) } else { Err(format!("{object:?} has landed in memory that was too small")) }
    }

    /// Checks offered memory after a failure. No block of an object that was not announced counts as held, but parts
    /// of it may have landed.
    fn check_offered(&self) -> Result<(), String> {
        let Some((group, (number, memory))) =
            self.failure.as_ref().map(|failure| failure.group).zip(self.offered.as_ref())
        else {
            return Ok(());
        };
        let object =
            RdmcObject { group, number: *number, bytes: 8 * (memory.region.words() - memory.first) as u64 };
        self.check(&object, memory, &HeldBlocks::none(object.bytes.div_ceil(self.block_bytes)))
    }

    /// Checks that the memory of unfinished objects has not changed since the failure was reported.
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        match self.unfinished == self.snapshot() {
            true => Ok(()),
            false => {
                Err("[B7] the memory of unfinished objects has changed since the failure was reported".into())
            }
        }
    }

    fn snapshot(&self) -> Vec<Vec<u64>> {
        let unfinished = self.failure.iter().flat_map(|failure| &failure.unfinished);
        let left = unfinished.filter_map(|left| left.memory.as_ref());
        left.chain(self.offered.as_ref().map(|(_, memory)| memory)).map(contents::snapshot).collect()
    }
}

impl RdmcApplication<SimFabric> for RdmcApp {
    fn memory(&mut self, fabric: &mut SimFabric, object: &RdmcObject) -> ObjectAnswer {
        let stream = self.streams.get_mut(&object.group).expect("known");
        let expected = stream.next_asked.max(object.number);
        stream.next_asked = object.number + 1;
        let refused = stream.check_refused(object);
        self.note(refused);
        self.expect("asked for memory for", expected, object);
        if self.refused == Some((object.group, object.number)) {
            return ObjectAnswer::Refuse;
        }
        if self.prng.chance(self.later_per_mille) {
            self.asked.push(*object);
            return ObjectAnswer::Later;
        }
        ObjectAnswer::Memory(contents::empty(fabric, object.words()))
    }

    fn on_received(&mut self, object: &RdmcObject, memory: &ObjectMemory) {
        let stream = self.streams.get_mut(&object.group).expect("known");
        let expected = stream.next_received;
        stream.next_received += 1;
        stream.offered.take_if(|(number, _)| *number == object.number);
        let result = stream.check_whole(object, memory);
        self.received.push(*object);
        self.expect("received", expected, object);
        self.note(result);
    }

    fn on_released(&mut self, object: &RdmcObject, memory: ObjectMemory) {
        let stream = self.streams.get_mut(&object.group).expect("known");
        let expected = stream.next_released;
        stream.next_released += 1;
        let result = stream.check_whole(object, &memory);
        match &mut stream.kept {
            Some(kept) => drop(kept.insert(object.number, (*object, memory))),
            None => contents::spoil(&memory),
        }
        self.expect("released", expected, object);
        self.note(result);
    }

    fn on_failed(&mut self, failure: RdmcFailure) {
        let stream = self.streams.get_mut(&failure.group).expect("known");
        assert!(stream.failure.is_none(), "a failure is reported once");
        stream.failure = Some(failure);
        stream.unfinished = stream.snapshot();
        let result = stream.check_unfinished().and_then(|()| stream.check_offered());
        self.note(result);
    }
}
