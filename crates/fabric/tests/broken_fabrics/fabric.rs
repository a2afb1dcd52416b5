//! A simulated fabric that breaks one promise.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use squall_fabric::conformance::Harness;
use squall_fabric::sim::{Adversary, SimConfig, SimFabric, SimWorld};
use squall_fabric::{
    Capabilities, Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey,
    NodeId, PostError, Region, RegionId, Shortage, Token, Write, WriteSource,
};

use crate::breach::Breach;

thread_local! {
    static NEXT: Cell<(Breach, u64)> = const { Cell::new((Breach::None, 0)) };
}

/// A cluster of fabrics that all break the same promise.
pub(crate) struct BrokenHarness {
    world: SimWorld,
    nodes: Vec<BrokenFabric>,
}

impl BrokenHarness {
    /// Sets the breach of the next clusters of this thread, and their seeds.
    pub(crate) fn next(breach: Breach, seed: u64) {
        NEXT.set((breach, seed));
    }
}

impl Harness for BrokenHarness {
    type Fabric = BrokenFabric;

    fn new(nodes: u32) -> Self {
        let (breach, seed) = NEXT.get();
        NEXT.set((breach, seed + 1));
        let adversary = Adversary {
            delay_max: Duration::from_micros(5),
            late_source_per_mille: 1000,
            late_done_max: Duration::from_micros(5),
            late_notice_max: Duration::from_micros(20),
            glimpse_per_mille: 300,
            ..Adversary::default()
        };
        let config = SimConfig {
            adversary: Some(adversary),
            early_sight: breach == Breach::DenyEarlySight,
            one_sided_progress: breach != Breach::ClaimOneSidedProgress,
            queue_posts_max: 64,
            ..SimConfig::adversarial(seed)
        };
        let world = SimWorld::new(seed, config, nodes);
        let shared = Rc::new(RefCell::new(Shared::default()));
        let broken = |i| BrokenFabric::new(world.fabric(i), breach, Rc::clone(&shared));
        Self { nodes: (0..nodes).map(broken).collect(), world }
    }

    fn node(&mut self, i: u32) -> &mut BrokenFabric {
        &mut self.nodes[i as usize]
    }

    fn step(&mut self) {
        let limit = self.world.now() + Duration::from_millis(1);
        match self.world.next_event_at() {
            Some(at) if at <= limit => assert!(self.world.step(), "there is an event"),
            _ => self.world.advance_to(limit),
        }
    }

    fn kill(&mut self, i: u32) {
        self.world.crash(i);
    }
}

/// What a fabric needs to know to break a promise: the memory and grants of all nodes.
#[derive(Default)]
struct Shared {
    regions: Vec<Region>,
    grants: Vec<Grant>,
    revoked: Vec<Grant>,
}

impl Shared {
    fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions.iter().find(|region| region.id() == id)
    }

    /// Stores the words of a write as if it had landed.
    fn land(&self, write: &Write<'_>, first: usize) {
        let Some(region) = self.region(write.grant.region) else { return };
        for (i, value) in words(&write.source).into_iter().enumerate() {
            let word = first.saturating_add(i);
            if word < region.words() {
                region.store(word, value);
            }
        }
    }
}

/// One node of the cluster.
pub(crate) struct BrokenFabric {
    inner: SimFabric,
    breach: Breach,
    shared: Rc<RefCell<Shared>>,
    /// Invented events, for the next poll.
    invented: Vec<FabricEvent>,
    /// A write that is held back to land after the next one.
    held: Option<Held>,
    /// A push that is held back until after the next one.
    held_push: Option<(MirrorId, Range<usize>)>,
    /// A pushed word that is held back until after the next one.
    held_word: Option<(MirrorId, usize)>,
    /// Writes by reference that are not done: what to land again, and where.
    writes: Vec<(ConnId, Token, Region, Range<usize>, RegionId, usize)>,
    conns: Vec<ConnId>,
    attachments: Vec<(NodeId, Region, Region)>,
    published: Vec<MirrorId>,
    sent: bool,
}

/// A write that owns its words.
struct Held {
    conn: ConnId,
    source: Result<(Region, Range<usize>), Vec<u64>>,
    grant: Grant,
    offset: usize,
    immediate: Option<u32>,
    signal: Option<Token>,
}

impl Held {
    fn new(conn: ConnId, write: &Write<'_>) -> Self {
        let source = match &write.source {
            WriteSource::Region(region, range) => Ok(((*region).clone(), range.clone())),
            WriteSource::Value(words) => Err(words.to_vec()),
        };
        let Write { grant, offset, immediate, signal, .. } = *write;
        Self { conn, source, grant: *grant, offset, immediate, signal }
    }

    fn post(&self, fabric: &mut SimFabric) -> Result<(), PostError> {
        let source = match &self.source {
            Ok((region, range)) => WriteSource::Region(region, range.clone()),
            Err(words) => WriteSource::Value(words),
        };
        let Self { offset, immediate, signal, .. } = *self;
        fabric.write(self.conn, Write { source, grant: &self.grant, offset, immediate, signal })
    }
}

fn words(source: &WriteSource<'_>) -> Vec<u64> {
    match source {
        WriteSource::Region(region, range) => range.clone().map(|word| region.load(word)).collect(),
        WriteSource::Value(words) => words.to_vec(),
    }
}

impl BrokenFabric {
    fn new(inner: SimFabric, breach: Breach, shared: Rc<RefCell<Shared>>) -> Self {
        Self {
            inner,
            breach,
            shared,
            invented: Vec::new(),
            held: None,
            held_push: None,
            held_word: None,
            writes: Vec::new(),
            conns: Vec::new(),
            attachments: Vec::new(),
            published: Vec::new(),
            sent: false,
        }
    }

    /// Changes the result of a post as the breach requires.
    fn outcome(&self, result: Result<(), PostError>) -> Result<(), PostError> {
        match (self.breach, result) {
            (Breach::PostToTheDead, Err(PostError::NotConnected)) => Ok(()),
            (Breach::NeverFull, Err(PostError::Full)) => Ok(()),
            (_, result) => result,
        }
    }

    /// Posts a write, with the defect of the breach.
    fn write_wrongly(&mut self, conn: ConnId, mut write: Write<'_>) -> Result<(), PostError> {
        let first = usize::try_from(write.grant.first).unwrap_or(usize::MAX).saturating_add(write.offset);
        match self.breach {
            Breach::SwapWrites => return self.swap(conn, &write),
            Breach::StallAllAfterSend if self.sent => return Ok(()),
            Breach::SpillOver => self.spill(&write, first),
            Breach::TearWords => self.tear(&write, first),
            Breach::LateValues => return self.write_later_values(conn, &write),
            Breach::LandAtOnce => self.shared.borrow().land(&write, first),
            Breach::ShiftOffsets => write.offset = write.offset.saturating_sub(1),
            Breach::CheckNoGrant => {
                self.shared.borrow().land(&write, first);
                return Ok(());
            }
            Breach::WriteAfterRevoked if self.shared.borrow().revoked.contains(write.grant) => {
                self.shared.borrow().land(&write, first);
            }
            Breach::ReadAfterDone => self.remember(conn, &write, first),
            Breach::EarlyDone => {
                let signal = write.signal;
                let posted = self.inner.write(conn, write);
                let done = signal.filter(|_| posted.is_ok()).map(|token| FabricEvent::Done { conn, token });
                self.invented.extend(done);
                return posted;
            }
            _ => {}
        }
        self.inner.write(conn, write)
    }

    /// Holds back every other write until the next has been posted.
    fn swap(&mut self, conn: ConnId, write: &Write<'_>) -> Result<(), PostError> {
        let Some(held) = self.held.take() else {
            // Only a write that is accepted may be held back.
            self.held = Some(Held::new(conn, write));
            return Ok(());
        };
        let result = Held::new(conn, write).post(&mut self.inner);
        match result {
            Err(PostError::Full) => self.held = Some(held),
            _ => drop(held.post(&mut self.inner)),
        }
        result
    }

    fn spill(&self, write: &Write<'_>, first: usize) {
        let shared = self.shared.borrow();
        let beyond = first.saturating_add(write.source.words());
        if let Some(region) = shared.region(write.grant.region).filter(|region| beyond < region.words()) {
            region.store(beyond, 0xbad);
        }
    }

    fn tear(&self, write: &Write<'_>, first: usize) {
        if let (Some(region), Some(value)) =
            (self.shared.borrow().region(write.grant.region), words(&write.source).first())
        {
            region.store(first, value >> 32 << 32);
        }
    }

    fn write_later_values(&mut self, conn: ConnId, write: &Write<'_>) -> Result<(), PostError> {
        let mut held = Held::new(conn, write);
        if let Err(words) = &mut held.source {
            words.iter_mut().for_each(|word| *word += 1);
        }
        held.post(&mut self.inner)
    }

    fn remember(&mut self, conn: ConnId, write: &Write<'_>, first: usize) {
        if let (WriteSource::Region(region, range), Some(token)) = (&write.source, write.signal) {
            self.writes.push((conn, token, (*region).clone(), range.clone(), write.grant.region, first));
        }
    }

    /// Lands the words of finished writes again, with the source's current values.
    fn land_again(&mut self) {
        for (_, _, source, range, region, first) in &self.writes {
            if let Some(target) = self.shared.borrow().region(*region) {
                target.copy_words(*first, source, range.clone());
            }
        }
    }

    /// Copies attachments by hand, so that they can be lost.
    fn copy_attachments(&self) {
        for (_, seen, mine) in &self.attachments {
            mine.copy_words(0, seen, 0..seen.words());
        }
    }

    /// Returns the event as it reaches the caller, if it does.
    fn alter(&mut self, event: FabricEvent) -> Option<FabricEvent> {
        match (self.breach, &event) {
            (Breach::HideBreaks, FabricEvent::Broken { .. } | FabricEvent::PeerLost { .. }) => return None,
            (Breach::EarlyDone, FabricEvent::Done { .. })
            | (Breach::AttachedTooEarly, FabricEvent::Attached { .. }) => {
                return None;
            }
            (_, FabricEvent::Revoked { grant }) => self.shared.borrow_mut().revoked.push(*grant),
            (Breach::CloseAllAtLoss, FabricEvent::PeerLost { .. }) => {
                self.conns.drain(..).for_each(|conn| self.inner.close(conn));
            }
            (Breach::ForgetTheDead, FabricEvent::PeerLost { peer, .. }) => {
                for (_, _, mine) in self.attachments.iter().filter(|(owner, _, _)| owner == peer) {
                    (0..mine.words()).for_each(|word| mine.store(word, 0));
                }
                self.attachments.clear();
            }
            _ => {}
        }
        Some(event)
    }
}

impl Fabric for BrokenFabric {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn capabilities(&self) -> Capabilities {
        let true_ones = self.inner.capabilities();
        Capabilities {
            one_sided_progress: true_ones.one_sided_progress || self.breach == Breach::ClaimOneSidedProgress,
            early_sight: true_ones.early_sight && self.breach != Breach::DenyEarlySight,
        }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        let region = self.inner.try_register(words)?;
        self.shared.borrow_mut().regions.push(region.clone());
        Ok(region)
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        let region = self.inner.adopt(memory);
        self.shared.borrow_mut().regions.push(region.clone());
        region
    }

    fn release(&mut self, region: &Region) {
        if self.breach != Breach::KeepAdopted {
            self.inner.release(region);
            self.shared.borrow_mut().regions.retain(|other| other.id() != region.id());
        }
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        let conn = self.inner.open(peer, channel);
        self.conns.push(conn);
        conn
    }

    fn close(&mut self, conn: ConnId) {
        self.inner.close(conn);
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        let range =
            if self.breach == Breach::Lenient { range.start..range.end.min(region.words()) } else { range };
        let grant = self.inner.grant(region, range, peer);
        self.shared.borrow_mut().grants.push(grant);
        grant
    }

    fn revoke(&mut self, grant: &Grant) {
        let neighbours: Vec<_> = self
            .shared
            .borrow()
            .grants
            .iter()
            .filter(|other| other.region == grant.region)
            .copied()
            .collect();
        for other in
            neighbours.iter().filter(|other| *other == grant || self.breach == Breach::RevokeNeighbours)
        {
            self.inner.revoke(other);
        }
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        if self.breach == Breach::Lenient {
            let inside = match &write.source {
                WriteSource::Region(region, range) => range.end <= region.words(),
                WriteSource::Value(words) => words.len() <= WriteSource::VALUE_WORDS_MAX,
            };
            if !inside {
                return Ok(());
            }
        }
        let result = self.write_wrongly(conn, write);
        self.outcome(result)
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        self.sent = true;
        let bytes = match self.breach {
            Breach::ShortenSends => &bytes[..bytes.len().min(16)],
            Breach::Lenient => &bytes[..bytes.len().min(squall_fabric::SEND_BYTES_MAX)],
            _ => bytes,
        };
        let result = self.inner.send(conn, bytes, signal);
        self.outcome(result)
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        let range =
            if self.breach == Breach::Lenient { range.start..range.end.min(region.words()) } else { range };
        let result = self.inner.post_receive(conn, region, range, token);
        self.outcome(result)
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        if self.breach == Breach::AttachedTooEarly {
            self.invented.extend(readers.iter().map(|reader| FabricEvent::Attached { key, reader: *reader }));
        }
        let mirror = self.inner.publish(key, region, readers);
        self.published.push(mirror);
        mirror
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let seen = self.inner.attach(owner, key, words);
        if !matches!(self.breach, Breach::ForgetTheDead) {
            self.attachments.push((owner, seen.clone(), seen.clone()));
            return seen;
        }
        let mine = Region::heap(RegionId(u64::MAX), words);
        self.attachments.push((owner, seen, mine.clone()));
        mine.read_only()
    }

    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        match self.breach {
            Breach::Lenient => {}
            Breach::SwapPushes => self.held_push = Some((mirror, range)),
            _ => self.inner.push(mirror, range),
        }
    }

    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        match self.breach {
            Breach::Lenient => return,
            Breach::SwapWords if self.held_word.is_none() => self.held_word = Some((mirror, word)),
            Breach::PushWordsByReference => self.inner.push(mirror, word..word + 1),
            _ => {
                self.inner.push_word(mirror, word);
                if let Some((mirror, word)) = self.held_word.take() {
                    self.inner.push_word(mirror, word);
                }
            }
        }
        if let Some((mirror, range)) = self.held_push.take() {
            self.inner.push(mirror, range);
        }
    }

    fn freeze(&mut self, attachment: &Region) {
        match self.breach {
            Breach::ThawAttachments => {}
            Breach::FreezeAll => {
                self.attachments.iter().for_each(|(_, attachment, _)| self.inner.freeze(attachment))
            }
            Breach::ForgetTheDead => {}
            _ => self.inner.freeze(attachment),
        }
    }

    fn retire(&mut self, mirror: MirrorId) {
        match self.breach {
            Breach::KeepMirrors => {}
            Breach::RetireAll => self.published.drain(..).for_each(|mirror| self.inner.retire(mirror)),
            _ => self.inner.retire(mirror),
        }
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        if self.breach == Breach::ForgetTheDead {
            self.copy_attachments();
        }
        if self.breach == Breach::ReadAfterDone {
            self.land_again();
        }
        std::mem::take(&mut self.invented).into_iter().for_each(&mut *sink);
        let mut events = Vec::new();
        let work = self.inner.poll(&mut |event| events.push(event));
        events.into_iter().filter_map(|event| self.alter(event)).for_each(sink);
        work
    }
}
