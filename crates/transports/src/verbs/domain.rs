//! Protection domains and memory keys: which queue pairs may use which memory [F8].
//!
//! A node has a domain for each peer. A key that was issued to one peer cannot be used on another peer's
//! connections, because the device refuses keys of other domains.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{VerbsDevice, status};
use super::ffi;

/// A protection domain.
pub(super) struct ProtectionDomain {
    device: Arc<VerbsDevice>,
    domain: NonNull<ffi::ibv_pd>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(device: &Arc<VerbsDevice>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let domain = NonNull::new(unsafe { device.library().ibv_alloc_pd(device.context().as_ptr()) });
        let domain = domain.ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { device: device.clone(), domain }))
    }

    pub(super) fn device(&self) -> &Arc<VerbsDevice> {
        &self.device
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.domain.as_ptr()
    }

    /// Registers `bytes` bytes from `base` on, which the device may then read, and write as `access` says.
    /// Peers address them by `address`, whose offset within a page must be that of `base`. The pages remain
    /// in memory until the key is dropped.
    ///
    /// # Safety
    /// The memory must be valid for loads and stores of this many bytes, must be accessed only by atomics
    /// while peers write it, and the device must get no post that names the key after the memory is gone.
    /// (Pages that are still registered when they are unmapped stay with the device and are not reused.)
    pub(super) unsafe fn register(
        self: &Arc<Self>,
        base: NonNull<u8>,
        bytes: usize,
        address: u64,
        access: KeyAccess,
    ) -> io::Result<MemoryKey> {
        // Never IBV_ACCESS_RELAXED_ORDERING: with it, writes would not land in order [F1].
        let flags = match access {
            KeyAccess::Local => ffi::IBV_ACCESS_LOCAL_WRITE,
            KeyAccess::Remote => ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE,
        };
        let flags = i32::try_from(flags).expect("small flags");
        let (domain, base) = (self.as_ptr(), base.as_ptr().cast());
        // SAFETY: the domain is alive; the caller promises that the memory is valid.
        let region = unsafe { self.device.library().ibv_reg_mr_iova(domain, base, bytes, address, flags) };
        let region = NonNull::new(region).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call returned it; its keys never change.
        let keys = unsafe { region.as_ref() };
        Ok(MemoryKey { local: keys.lkey, remote: keys.rkey, region: Some(region), domain: self.clone() })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything that was created in this domain holds it, so it is gone.
        unsafe { self.device.library().ibv_dealloc_pd(self.as_ptr()) };
    }
}

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAccess {
    /// This node's own posts: as a source, and as memory of receives.
    Local,
    /// The writes of the domain's peer as well.
    Remote,
}

/// Memory that the device may use, until this is dropped.
pub(super) struct MemoryKey {
    local: u32,
    remote: u32,
    /// `None` once it has been revoked.
    region: Option<NonNull<ffi::ibv_mr>>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for MemoryKey {}
// SAFETY: as above.
unsafe impl Sync for MemoryKey {}

impl MemoryKey {
    /// Returns the key for posts of this node.
    pub(super) fn local(&self) -> u32 {
        self.local
    }

    /// Returns the key for writes of the peer.
    pub(super) fn remote(&self) -> u32 {
        self.remote
    }

    /// Revokes the key. If this returns without an error, the device no longer uses the memory, and no write
    /// that names the key lands: F9 depends on this.
    pub(super) fn revoke(mut self) -> io::Result<()> {
        self.deregister()
    }

    fn deregister(&mut self) -> io::Result<()> {
        let Some(region) = self.region.take() else { return Ok(()) };
        // SAFETY: created by `register` and taken out of `self`, so it is deregistered once.
        status(unsafe { self.domain.device.library().ibv_dereg_mr(region.as_ptr()) })
    }
}

impl Drop for MemoryKey {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            crate::log::error!(%error, "failed to deregister memory with {}", self.domain.device.name());
        }
    }
}
