//! Files as objects: they are sent from, and received into, their pages (RDMC §2: the receiver chooses the memory).
//!
//! **Over TCP** what is sent and received passes by the file's descriptor. **Over RDMA** it cannot: kernels do not let a device write the pages of a
//! file (Linux since 6.5), and a read-only mapping cannot be registered with every device. So a file is read into
//! registered memory, and at a receiver each block is written to the file as it arrives. During a transfer, that
//! takes memory of the file's size at each member.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex};

use squall_fabric::bulk::BulkBuffer;
use squall_fabric::mutex::lock;
use squall_fabric::region::Access;
use squall_fabric::{Region, trusted};
use squall_protocols::rdmc::{HeldBlocks, ObjectMemory};

use super::network::NetworkSession;
use super::{BulkError, Engine, Session};
use crate::transport::AnyFabric;

/// Where a file is received.
///
/// ```no_run
/// use squall::Config;
/// use squall::bulk::{FileTarget, HeldBlocks, Session};
/// use std::fs::File;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut session = Session::join(&Config::load("squall.toml")?)?;
/// let bytes = session.next_object()?.bytes;
/// let file = File::options().read(true).write(true).create(true).truncate(false).open("object")?;
/// file.set_len(bytes)?; // and allocate it
/// let blocks = bytes.div_ceil(session.block_bytes()?);
/// let on_block = Box::new(|block| println!("block {block} is there"));
/// session.receive_file(FileTarget { file: &file, held: HeldBlocks::none(blocks), on_block })?;
/// # Ok(())
/// # }
/// ```
pub struct FileTarget<'f> {
    /// The file, open for reading, and for writing unless it has all blocks. All its bytes should be allocated: if there is no space when
    /// a block arrives, this member leaves the session.
    pub file: &'f File,
    /// The blocks that the file already has, from an earlier attempt.
    pub held: HeldBlocks,
    /// Called with each block that has arrived, after it is in the file.
    pub on_block: Box<dyn FnMut(u64) + Send>,
}

impl std::fmt::Debug for FileTarget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTarget").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Session {
    /// Returns the size of a block in bytes.
    ///
    /// # Errors
    /// [`BulkError::NotFiles`] on shared memory, where objects are not divided into blocks that are sent.
    pub fn block_bytes(&mut self) -> Result<u64, BulkError> {
        self.network().map(|network| network.block_bytes())
    }

    /// Sends the first `bytes` bytes of a file. What cannot be read, since the file was truncated meanwhile or its disk fails, arrives as
    /// zeros: compare digests. `on_progress` is called a few times a second with a receiver's rank and the number of blocks that it has.
    ///
    /// # Errors
    /// The errors of [`Session::send`]; [`BulkError::NotFiles`]; or [`BulkError::File`] if the file cannot be read.
    pub fn send_file(
        &mut self,
        file: &File,
        bytes: u64,
        on_progress: &mut dyn FnMut(usize, u64),
    ) -> Result<(), BulkError> {
        self.require_root(true)?;
        let network = self.network()?;
        let region = match region(network, file, bytes, Access::ReadOnly)? {
            Some(region) => region,
            None => trusted::object_memory(&read(network, file, bytes)?).clone(),
        };
        network.send(&ObjectMemory { region, first: 0 }, bytes, on_progress)
    }

    /// Receives the next object into a file.
    ///
    /// # Errors
    /// The errors of [`Session::next_object`]; [`BulkError::NotFiles`]; or [`BulkError::File`] if the file cannot be
    /// read or written.
    pub fn receive_file(&mut self, target: FileTarget<'_>) -> Result<(), BulkError> {
        let bytes = self.next_object()?.bytes;
        let network = self.network()?;
        let FileTarget { file, held, on_block } = target;
        if let Some(region) = region(network, file, bytes, Access::ReadWrite)? {
            return network.receive(&ObjectMemory { region, first: 0 }, bytes, &held, Some(on_block));
        }
        // Other members may ask for the blocks that the file already has, so they are read.
        let memory = if held.count() == 0 { allocate(network, bytes)? } else { read(network, file, bytes)? };
        let region = trusted::object_memory(&memory).clone();
        let block_bytes = network.block_bytes();
        let copy = Copying { region: region.clone(), file: file.try_clone()?, bytes, block_bytes };
        let (on_block, failure) = copy.before(on_block);
        network.receive(&ObjectMemory { region, first: 0 }, bytes, &held, Some(on_block))?;
        let failed = lock(&failure).take();
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn network(&mut self) -> Result<&mut NetworkSession, BulkError> {
        match &mut self.engine {
            Engine::Network(network) => Ok(network),
            Engine::Host(_) => Err(BulkError::NotFiles),
        }
    }
}

/// Copies blocks from memory to a file.
struct Copying {
    region: Region,
    file: File,
    /// The size of the file.
    bytes: u64,
    block_bytes: u64,
}

/// Why a file is incomplete, if it is.
type FirstFailure = Arc<Mutex<Option<io::Error>>>;

impl Copying {
    fn copy(&self, block: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        let first = block * self.block_bytes;
        let bytes = self.block_bytes.min(self.bytes - first);
        let word = usize::try_from(first / 8).expect("inside the region");
        buffer.resize(usize::try_from(bytes).expect("inside the region"), 0);
        self.region.copy_bytes_out(word, buffer);
        self.file.write_all_at(buffer, first)
    }

    /// Returns a function that copies each block before it calls `on_block`. After a failure nothing more is copied
    /// or reported.
    fn before(self, mut on_block: Box<dyn FnMut(u64) + Send>) -> (Box<dyn FnMut(u64) + Send>, FirstFailure) {
        let failure = FirstFailure::default();
        let (noted, mut buffer) = (Arc::clone(&failure), Vec::new());
        let copied = move |block| {
            let mut noted = lock(&noted);
            if noted.is_some() {
                return;
            }
            match self.copy(block, &mut buffer) {
                Ok(()) => on_block(block),
                Err(error) => *noted = Some(error),
            }
        };
        (Box::new(copied), failure)
    }
}

/// Makes a region of a file, if the transport can use one.
fn region(
    network: &mut NetworkSession,
    file: &File,
    bytes: u64,
    access: Access,
) -> Result<Option<Region>, BulkError> {
    match network.fabric() {
        AnyFabric::Tcp(fabric) => Ok(Some(fabric.file_region(file, length(bytes)?, access)?)),
        AnyFabric::Shm(_) | AnyFabric::Verbs(_) | AnyFabric::Auto(_) => Ok(None),
    }
}

/// Allocates memory that the transport can use.
fn allocate(network: &mut NetworkSession, bytes: u64) -> Result<BulkBuffer, BulkError> {
    Ok(BulkBuffer::try_register(network.fabric(), length(bytes)?)?)
}

/// Reads a file into memory that the transport can use.
fn read(network: &mut NetworkSession, file: &File, bytes: u64) -> Result<BulkBuffer, BulkError> {
    let mut memory = allocate(network, bytes)?;
    file.read_exact_at(&mut memory, 0)?;
    Ok(memory)
}

fn length(bytes: u64) -> Result<usize, BulkError> {
    usize::try_from(bytes).map_err(|_| BulkError::TooLarge { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    #[test]
    fn blocks_are_in_the_file_before_they_are_reported() {
        let path = std::env::temp_dir().join(format!("squall-blocks-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        file.set_len(20).expect("space");
        let region = Region::heap(RegionId(0), 3);
        region.copy_bytes_in(0, b"eight by and eight b");
        let copying =
            Copying { region, file: file.try_clone().expect("a handle"), bytes: 20, block_bytes: 8 };
        let (heard, there) = (Arc::new(Mutex::new(Vec::new())), file.try_clone().expect("a handle"));
        let reported = Arc::clone(&heard);
        let (mut on_block, failure) = copying.before(Box::new(move |block| {
            let mut byte = [0];
            there.read_exact_at(&mut byte, 8 * block).expect("the file is that long");
            reported.lock().expect("one thread").push((block, byte[0]));
        }));
        for block in [2, 0] {
            on_block(block);
        }
        assert_eq!(*heard.lock().expect("one thread"), [(2, b'h'), (0, b'e')]);
        let mut all = [0; 20];
        file.read_exact_at(&mut all, 0).expect("20 bytes");
        assert_eq!(&all, b"eight by\0\0\0\0\0\0\0\0ht b");
        assert!(failure.lock().expect("one thread").is_none());
    }

    #[test]
    fn a_block_that_cannot_be_written_is_not_reported() {
        let file = File::open("/dev/null").expect("it is there");
        let copying = Copying { region: Region::heap(RegionId(0), 2), file, bytes: 16, block_bytes: 8 };
        let (mut on_block, failure) = copying.before(Box::new(|block| panic!("block {block} is not there")));
        on_block(0);
        on_block(1);
        assert!(failure.lock().expect("one thread").is_some());
    }
}
