//! Protection domains and registered memory.
//!
//! Owns registrations. Invariant: a registration outlives every use of its memory, since buffers keep it alive; memory
//! that buffers are cut from grants a peer nothing by itself, only windows over it do. Never registers memory that
//! this crate does not own.
#![expect(unsafe_code, reason = "foreign calls")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Context;
use super::error::VerbsError;
use super::ffi::*;
use crate::memory::{AllocError, Exposed, Memory, Registration, Slab, new_domain};

/// Allocates memory on huge pages where the system grants them, on normal ones otherwise.
pub fn allocate_huge(len: usize) -> Result<Memory, AllocError> {
    Memory::allocate_huge(len, |base, len| {
        // SAFETY: advice about fresh memory of the caller's; it changes no content.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) == 0 }
    })
}

/// The scope of keys: work requests reach only memory of their queue pair's domain.
pub struct ProtectionDomain {
    pub(super) raw: NonNull<ibv_pd>,
    pub(super) context: Arc<Context>,
    windows: bool,
    atomics: bool,
    id: u64,
}

// SAFETY: libibverbs allows calls on a protection domain from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a domain on the device.
    pub fn allocate(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        let attributes = context.attributes()?;
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_alloc_pd", context.name()))?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
            windows: attributes.windows,
            atomics: attributes.atomics,
            id: new_domain(),
        }))
    }

    /// The domain's number in this process; see [`Registration::domain`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Registers memory for local use, and for windows where the device has them.
    pub fn register(self: &Arc<Self>, memory: Memory) -> Result<Slab, (VerbsError, Memory)> {
        let bind = if self.windows { IBV_ACCESS_MW_BIND } else { 0 };
        match self.region(&memory, IBV_ACCESS_LOCAL_WRITE | bind) {
            Ok(region) => Ok(Slab::new(memory, Box::new(region))),
            Err(error) => Err((error, memory)),
        }
    }

    /// Registers memory that every queue pair's peer in this domain may read, write and change atomically.
    pub fn expose(self: &Arc<Self>, memory: Memory) -> Result<Exposed, (VerbsError, Memory)> {
        match self.region(&memory, IBV_ACCESS_LOCAL_WRITE | self.remote_access()) {
            Ok(region) => Ok(Exposed::new(memory, Box::new(region))),
            Err(error) => Err((error, memory)),
        }
    }

    /// All remote access that the device offers.
    pub(super) fn remote_access(&self) -> u32 {
        let atomic = if self.atomics { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | atomic
    }

    fn region(self: &Arc<Self>, memory: &Memory, access: u32) -> Result<MemoryRegion, VerbsError> {
        let access = access as i32;
        let register = self.context.library.ibv_reg_mr;
        // SAFETY: the range is one allocation of ours; whoever holds the result frees it only after deregistration.
        let raw = unsafe { register(self.raw.as_ptr(), memory.as_ptr().cast(), memory.len(), access) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let object = format!("{} bytes on {}", memory.len(), self.context.name());
            VerbsError::from_errno("ibv_reg_mr", object)
        })?;
        // SAFETY: the library returned a valid region, which it does not change afterwards.
        let region = unsafe { raw.as_ref() };
        Ok(MemoryRegion { raw, local_key: region.lkey, remote_key: region.rkey, domain: Arc::clone(self) })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: this is the last owner, and every object made in the domain holds an `Arc` of it.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({} on {})", self.id, self.context.name())
    }
}

/// The registration of one allocation.
pub(super) struct MemoryRegion {
    pub(super) raw: NonNull<ibv_mr>,
    local_key: u32,
    remote_key: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs allows calls on a region from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl Registration for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }

    fn domain(&self) -> u64 {
        self.domain.id
    }

    fn deregister(&mut self) -> bool {
        // SAFETY: called once, before the memory is freed; no request or window names the region any more, since
        // each would hold a buffer of it.
        unsafe { (self.domain.context.library.ibv_dereg_mr)(self.raw.as_ptr()) == 0 }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({:#x} in {:?})", self.local_key, self.domain)
    }
}
