//! Digests of files (BLAKE3), also of one that arrives: its blocks are hashed in order as soon as they are here, so that little is left to
//! do when the last one comes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use squall::bulk::HeldBlocks;
use squall_fabric::mutex::{lock, unpoisoned};

use super::BLOCK_BYTES;

/// Returns the digest of the first `bytes` bytes of a file, in hexadecimal.
pub(crate) fn digest(file: &File, bytes: u64) -> Result<String> {
    let mut digest = FileDigest::default();
    while digest.at < bytes {
        digest.read(file, bytes)?;
    }
    Ok(digest.end())
}

/// Returns the digest of a file's content, in hexadecimal.
pub(crate) fn digest_of(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// What is read stays in the cache until it is hashed.
const READ_BYTES: u64 = 128 << 10;

/// The digest of a file up to a place.
#[derive(Default)]
struct FileDigest {
    hash: blake3::Hasher,
    at: u64,
    buffer: Vec<u8>,
}

impl FileDigest {
    /// Hashes the next block of a file of `bytes` bytes.
    fn read(&mut self, file: &File, bytes: u64) -> Result<()> {
        let end = bytes.min(self.at + BLOCK_BYTES);
        while self.at < end {
            let length = usize::try_from((end - self.at).min(READ_BYTES)).expect("a read is short");
            self.buffer.resize(length, 0);
            file.read_exact_at(&mut self.buffer, self.at)?;
            self.hash.update(&self.buffer);
            self.at += length as u64;
        }
        Ok(())
    }

    fn end(&self) -> String {
        self.hash.finalize().to_hex().to_string()
    }
}

/// The digest of a file whose blocks arrive in any order, computed by a thread of its own. Dropping it ends the thread.
pub(crate) struct ArrivingDigest {
    arrivals: Arc<Arrivals>,
    /// Some until the end.
    thread: Option<JoinHandle<Result<String>>>,
}

/// What the thread waits for.
pub(crate) struct Arrivals {
    state: Mutex<ArrivalState>,
    news: Condvar,
}

struct ArrivalState {
    here: HeldBlocks,
    /// No more blocks come.
    is_over: bool,
    /// The digest is not wanted any more.
    is_given_up: bool,
}

impl Arrivals {
    /// Notes that a block is in the file.
    pub(crate) fn note(&self, block: u64) {
        self.state().here.insert(block);
        self.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, ArrivalState> {
        lock(&self.state)
    }

    /// Waits until a block is here; false if it does not come, or is not wanted.
    fn wait(&self, block: u64) -> bool {
        let mut state = self.state();
        while !state.here.contains(block) && !state.is_over {
            state = unpoisoned(self.news.wait(state));
        }
        state.here.contains(block) && !state.is_given_up
    }
}

impl ArrivingDigest {
    /// Begins with the blocks that are here already, of a file of `bytes` bytes.
    pub(crate) fn start(file: File, bytes: u64, here: HeldBlocks) -> Result<Self> {
        let state = Mutex::new(ArrivalState { here, is_over: false, is_given_up: false });
        let arrivals = Arc::new(Arrivals { state, news: Condvar::new() });
        let awaited = Arc::clone(&arrivals);
        let run = move || {
            let mut digest = FileDigest::default();
            while digest.at < bytes {
                let block = digest.at / BLOCK_BYTES;
                ensure!(awaited.wait(block), "block {block} has not arrived");
                digest.read(&file, bytes)?;
            }
            Ok(digest.end())
        };
        let thread = std::thread::Builder::new().name("squall digest".into()).spawn(run)?;
        Ok(Self { arrivals, thread: Some(thread) })
    }

    /// Returns where blocks that arrive are noted.
    pub(crate) fn arrivals(&self) -> Arc<Arrivals> {
        Arc::clone(&self.arrivals)
    }

    /// Returns the digest, in hexadecimal, when all blocks have arrived.
    pub(crate) fn finish(mut self) -> Result<String> {
        self.end().expect("it ends once")
    }

    fn end(&mut self) -> Option<Result<String>> {
        self.arrivals.state().is_over = true;
        self.arrivals.news.notify_one();
        Some(self.thread.take()?.join().expect("a digest does not panic"))
    }
}

impl Drop for ArrivingDigest {
    fn drop(&mut self) {
        self.arrivals.state().is_given_up = true;
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file without a name, of this many bytes.
    fn file(bytes: usize) -> (File, Vec<u8>) {
        let path = std::env::temp_dir().join(format!("squall-digest-{}-{bytes}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        file.write_all_at(&content, 0).expect("space");
        (file, content)
    }

    #[test]
    fn blocks_may_arrive_in_any_order() {
        let block = usize::try_from(BLOCK_BYTES).expect("short");
        for bytes in [0, 1, block, 3 * block + 17] {
            let (file, content) = file(bytes);
            let right = digest_of(&content);
            let length = bytes as u64;
            assert_eq!(digest(&file, length).expect("it can be read"), right);
            let mut held = HeldBlocks::none(super::super::blocks(length));
            if bytes > 2 * block {
                held.insert(1);
            }
            let order: Vec<u64> = (0..held.blocks()).rev().filter(|block| !held.contains(*block)).collect();
            let arriving = ArrivingDigest::start(file, length, held).expect("a thread");
            let arrivals = arriving.arrivals();
            order.into_iter().for_each(|block| arrivals.note(block));
            assert_eq!(arriving.finish().expect("all is here"), right, "{bytes} bytes");
        }
    }

    /// A copy that fails ends the thread.
    #[test]
    fn a_digest_of_half_a_file_is_none() {
        let (file, _) = file(2 * usize::try_from(BLOCK_BYTES).expect("short") + 5);
        let bytes = 2 * BLOCK_BYTES + 5;
        let arriving = ArrivingDigest::start(file.try_clone().expect("a handle"), bytes, HeldBlocks::none(3));
        let arriving = arriving.expect("a thread");
        arriving.arrivals().note(0);
        let error = arriving.finish().expect_err("two blocks are missing").to_string();
        assert!(error.contains("block 1 has not arrived"), "{error}");
        drop(ArrivingDigest::start(file, bytes, HeldBlocks::none(3)).expect("a thread"));
    }
}
