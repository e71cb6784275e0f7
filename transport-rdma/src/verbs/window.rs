//! Memory windows of type 2: a peer's temporary access to one buffer.
//!
//! ```text
//!          bind posted             invalidate posted            invalidate completed
//!  Free --------------> Bound ------------------------> Ending ----------------------> Free (buffer returned)
//!                         |  ^                             |
//!                         |  `---- invalidate failed ------'
//!   any state ------------'-- free --> Freed (buffer returned, the peer can no longer reach it)
//! ```
//!
//! Owns the buffer from the moment the bind is posted until an invalidation has completed or the window is freed: the
//! peer may write it in between, so Rust must not see it. Invariant: the buffer is returned only when the device has
//! confirmed that the window's key is dead; if freeing fails, the buffer is leaked. Never unbinds by itself: a
//! failed bind keeps the buffer until the window is freed.
#![expect(unsafe_code, reason = "foreign calls")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{VerbsError, check};
use super::ffi::*;
use super::region::{MemoryRegion, ProtectionDomain};
use crate::memory::{Buffer, Registration};
use crate::nic::{NicError, RemoteAccess, RemoteSlice};

/// A memory window.
pub struct Window {
    pub(super) domain: Arc<ProtectionDomain>,
    dealloc: DeallocMw,
    inner: Mutex<Inner>,
}

struct Inner {
    /// `None` once freed.
    raw: Option<NonNull<ibv_mw>>,
    key: u32,
    phase: Phase,
    buffer: Option<Buffer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Bound,
    Ending,
}

// SAFETY: libibverbs allows calls on a window from any thread, and the lock orders ours.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Allocates an unbound window.
    pub fn allocate(domain: &Arc<ProtectionDomain>) -> Result<Arc<Self>, VerbsError> {
        let context = &domain.context;
        let (Some(alloc), Some(dealloc)) = (context.ops().alloc_mw, context.ops().dealloc_mw) else {
            let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(VerbsError::new("ibv_alloc_mw", context.name(), source));
        };
        // SAFETY: the domain is alive.
        let raw = unsafe { alloc(domain.raw.as_ptr(), IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_alloc_mw", context.name()))?;
        // SAFETY: the provider returned a valid window.
        let key = unsafe { raw.as_ref() }.rkey;
        let inner = Inner { raw: Some(raw), key, phase: Phase::Free, buffer: None };
        Ok(Arc::new(Self { domain: Arc::clone(domain), dealloc, inner: Mutex::new(inner) }))
    }

    /// Ends the peer's access at once and returns the buffer, in whatever state the window is.
    pub fn free(&self) -> Result<Option<Buffer>, VerbsError> {
        let mut inner = self.lock();
        let buffer = inner.buffer.take();
        let Some(raw) = inner.raw.take() else {
            return Ok(None);
        };
        // SAFETY: the window is allocated, and taken out so that it is freed once; requests that name it were copied
        // by the provider when they were posted.
        let code = unsafe { (self.dealloc)(raw.as_ptr()) };
        let outcome = check(code, "ibv_dealloc_mw", || self.domain.context.name().to_owned());
        if let Err(error) = outcome {
            // The peer may still write: the bytes must never be used again.
            std::mem::forget(buffer);
            return Err(error);
        }
        Ok(buffer)
    }

    /// Lets `post` post the bind of `buffer` and takes the buffer when it succeeded.
    pub(super) fn bind(
        &self,
        buffer: Buffer,
        access: RemoteAccess,
        post: impl FnOnce(wr_bind_mw) -> Result<(), NicError>,
    ) -> Result<RemoteSlice, (NicError, Buffer)> {
        let mut inner = self.lock();
        let (raw, bind_info) = match self.bind_info(&inner, &buffer, access) {
            Ok(checked) => checked,
            Err(error) => return Err((error, buffer)),
        };
        let key = next_key(inner.key);
        if let Err(error) = post(wr_bind_mw { mw: raw.as_ptr(), rkey: key, bind_info }) {
            return Err((error, buffer));
        }
        // The provider names the window by its current key at the next bind.
        // SAFETY: the window is allocated, and only this code, under the lock, touches the field.
        unsafe { (*raw.as_ptr()).rkey = key };
        let slice = RemoteSlice { address: buffer.address(), len: buffer.capacity() as u64, key };
        inner.key = key;
        inner.phase = Phase::Bound;
        inner.buffer = Some(buffer);
        Ok(slice)
    }

    fn bind_info(
        &self,
        inner: &Inner,
        buffer: &Buffer,
        access: RemoteAccess,
    ) -> Result<(NonNull<ibv_mw>, ibv_mw_bind_info), NicError> {
        let raw = inner.raw.ok_or(NicError::State("the window is freed"))?;
        if inner.phase != Phase::Free {
            return Err(NicError::State("the window must be invalidated before it is bound again"));
        }
        let registration: &dyn std::any::Any = buffer.registration();
        let region = registration
            .downcast_ref::<MemoryRegion>()
            .filter(|region| region.domain() == self.domain.id())
            .ok_or(NicError::ForeignMemory)?;
        let bind_info = ibv_mw_bind_info {
            mr: region.raw.as_ptr(),
            addr: buffer.address(),
            length: buffer.capacity() as u64,
            mw_access_flags: match access {
                RemoteAccess::Read => IBV_ACCESS_REMOTE_READ,
                RemoteAccess::Write => IBV_ACCESS_REMOTE_WRITE,
            },
        };
        Ok((raw, bind_info))
    }

    /// Lets `post` post the invalidation of the window's key.
    pub(super) fn invalidate(&self, post: impl FnOnce(u32) -> Result<(), NicError>) -> Result<(), NicError> {
        let mut inner = self.lock();
        if inner.raw.is_none() || inner.phase != Phase::Bound {
            return Err(NicError::State("only a bound window can be invalidated"));
        }
        post(inner.key)?;
        inner.phase = Phase::Ending;
        Ok(())
    }

    /// The invalidation completed: the buffer is out of the peer's reach.
    pub(super) fn invalidated(&self) -> Option<Buffer> {
        let mut inner = self.lock();
        inner.phase = Phase::Free;
        inner.buffer.take()
    }

    /// The invalidation failed: the peer may still have access.
    pub(super) fn still_bound(&self) {
        self.lock().phase = Phase::Bound;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it holds the lock, so the state is whole even if the flag says otherwise.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of the next binding: the low byte is the owner's to choose, and a peer's old key must not match.
/// It comes back after 256 bindings, so a peer that kept a key that long could use it again.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

impl Drop for Window {
    fn drop(&mut self) {
        // A failure leaks the buffer; there is nobody left to tell.
        drop(self.free());
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        write!(f, "Window({:#x}, {:?})", inner.key, inner.phase)
    }
}

#[cfg(test)]
mod tests {
    use super::next_key;

    #[test]
    fn only_the_low_byte_of_a_key_changes() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
