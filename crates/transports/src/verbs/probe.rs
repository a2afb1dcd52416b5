//! The start-up test: tests a device against itself before anything relies on it.
//!
//! Two queue pairs of the device are connected with each other. The test writes data and counters as
//! protocols do, and checks that whenever a counter is visible, its data is visible, too [F1, F4]. It then
//! revokes a key, after which a write must be refused and must not land [F9, F10]. A device or a setting that
//! reorders writes, or that does not report refusals, is not used.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::Region;

use super::completion::{CompletionBatch, CompletionChannel, CompletionQueue};
use super::device::VerbsDevice;
use super::domain::{KeyAccess, MemoryKey, ProtectionDomain};
use super::endpoint::{EndpointRole, EndpointState, VerbsEndpoint};
use super::ffi;
use super::memory::VerbsRegions;
use super::order;
use super::post::{PostChain, PostData, PostRelease, RemoteMemory, VerbsPost, VerbsTarget};
use super::queue_pair::{QueueDepth, QueuePair};
use super::{Unsuitable, VerbsError};

/// Tests a device.
///
/// # Errors
/// Returns an error if the device violates an axiom, or memory cannot be locked.
pub(super) fn try_out(device: &Arc<VerbsDevice>) -> Result<(), VerbsError> {
    let broken = |detail: String| VerbsError::NoDevice {
        wanted: None,
        refusals: vec![(device.name().to_owned(), Unsuitable::Broken(detail))],
    };
    let mut trial = Trial::new(device).map_err(|failure| match failure {
        Failure::Shortage(error) => error,
        Failure::Device(error) => broken(format!("it cannot connect to itself: {error}")),
    })?;
    trial.order().map_err(broken)?;
    trial.refusal().map_err(broken)
}

/// A writer and its target, both on one device.
struct Trial {
    writer: VerbsEndpoint,
    _reader: QueuePair,
    completions: Arc<CompletionQueue>,
    source: Region,
    source_key: u32,
    target: Region,
    /// The right to write all of `target`; `None` once it is revoked.
    memory: Option<MemoryKey>,
    remote: RemoteMemory,
    chain: PostChain,
    batch: CompletionBatch,
    /// Keeps the keys of the sources alive.
    _regions: VerbsRegions,
}

enum Failure {
    /// Memory could not be locked.
    Shortage(VerbsError),
    Device(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Device(error)
    }
}

impl Trial {
    fn new(device: &Arc<VerbsDevice>) -> Result<Self, Failure> {
        let mut regions = VerbsRegions::new();
        let [source, target] = [SOURCE_WORDS, SOURCE_WORDS + 1].map(|words| regions.allocate(words));
        let domain = ProtectionDomain::new(device)?;
        let (base, bytes) = (target.pointer(0).cast::<u8>(), 8 * target.words());
        let address = base.as_ptr().addr() as u64;
        // SAFETY: the region lives in the trial as long as the key, and its words are atomics.
        let memory = unsafe { domain.register(base, bytes, address, KeyAccess::Remote) };
        let memory = memory.map_err(|cause| Failure::Shortage(VerbsError::MemoryLock { bytes, cause }))?;
        let remote = RemoteMemory { address, key: memory.remote() };
        let place = regions.place(&source);
        let source_key = regions.local_key(place, 0, &domain).map_err(Failure::Shortage)?;
        let channel = CompletionChannel::new(device)?;
        let completions = CompletionQueue::new(&channel, 4 * DEPTH.posts)?;
        let [writer, reader] = [(); 2].map(|()| QueuePair::new(&domain, &completions, DEPTH));
        let (writer, reader) = (writer?, reader?);
        let address = device.port_used().address;
        reader.connect(&address, writer.name(), true)?;
        writer.connect(&address, reader.name(), false)?;
        let mut writer = VerbsEndpoint::new(EndpointRole::MirrorOut, 0, writer, DEPTH, domain);
        writer.state = EndpointState::Connected;
        Ok(Self {
            writer,
            _reader: reader,
            completions,
            source,
            source_key,
            target,
            memory: Some(memory),
            remote,
            chain: PostChain::new(),
            batch: CompletionBatch::new(),
            _regions: regions,
        })
    }

    /// Tests the order of writes: writes data, then its counter, repeatedly.
    fn order(&mut self) -> Result<(), String> {
        for lap in 1..=LAPS {
            (0..SOURCE_WORDS).for_each(|word| self.source.store_relaxed(word, lap));
            let address = self.source.pointer(0).as_ptr().addr() as u64;
            self.post(1, PostData::Memory { address, bytes: 8 * SOURCE_WORDS, key: self.source_key });
            self.post(0, PostData::words(&[lap]));
            let target = self.target.clone();
            let status = self.finish(|| {
                let seen = target.load(0);
                let least = (1..=SOURCE_WORDS).map(|word| target.load_relaxed(word)).min();
                if least >= Some(seen) { Ok(()) } else { Err("a counter was seen before its data".into()) }
            })?;
            if status != ffi::IBV_WC_SUCCESS {
                return Err(format!("a write failed with status {status}"));
            }
            if self.target.load(0) != lap {
                return Err("a write was reported as completed before it had landed".into());
            }
        }
        Ok(())
    }

    /// Tests the refusal of a write under a revoked key.
    fn refusal(&mut self) -> Result<(), String> {
        let memory = self.memory.take().expect("revoked once");
        memory.revoke().map_err(|error| format!("it failed to revoke a key: {error}"))?;
        self.post(0, PostData::words(&[u64::MAX]));
        let status = self.finish(|| Ok(()))?;
        if status == ffi::IBV_WC_SUCCESS || self.target.load(0) == u64::MAX {
            return Err("a write under a revoked key was not refused".into());
        }
        Ok(())
    }

    fn post(&mut self, word: u64, payload: PostData) {
        let address = self.remote.address + 8 * word;
        let target =
            VerbsTarget::Memory { remote: RemoteMemory { address, key: self.remote.key }, immediate: None };
        self.writer.push(VerbsPost { target, payload, signal: None, release: PostRelease::Nothing });
    }

    /// Waits for the completion of the last post, and calls `look` meanwhile to check the memory. Returns the
    /// first status that is not a success.
    fn finish(&mut self, mut look: impl FnMut() -> Result<(), String>) -> Result<ffi::ibv_wc_status, String> {
        self.writer.flush(0, &mut self.chain).map_err(|error| format!("it accepts no post: {error}"))?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            look()?;
            let taken = self.completions.poll(&mut self.batch);
            order::from_device();
            for completion in taken {
                if completion.status != ffi::IBV_WC_SUCCESS {
                    return Ok(completion.status);
                }
                self.writer.retire(completion.wr_id, drop);
            }
            if self.writer.outstanding() == 0 {
                return Ok(ffi::IBV_WC_SUCCESS);
            }
            std::thread::yield_now();
        }
        Err(format!("a write to itself did not complete within {PATIENCE:?}"))
    }
}

const DEPTH: QueueDepth = QueueDepth { posts: 4, receives: 1 };

/// Enough words for several packets.
const SOURCE_WORDS: usize = 1536;

const LAPS: u64 = 8;

const PATIENCE: Duration = Duration::from_secs(10);
