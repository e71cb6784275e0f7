//! Keys: what a simulated device checks before it touches memory.
//!
//! ```text
//!          bind posted          invalidation posted          its completion polled
//!  Free ---------------> Bound --------------------> Ending -----------------------> Free (buffer returned)
//!                          ^                           |
//!                          `--- invalidation failed ---'          any state -- free --> gone (buffer returned)
//! ```
//!
//! Owns the buffer of a window from the posting of the bind. A peer has access only from the *execution* of the bind to
//! that of the invalidation, only through the queue pair that the bind was posted to, only with the window's current
//! key, only in the way that was granted, and only inside the window's bytes.
//! Addresses that peers use are the device's own and the same in every run: never those of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{Buffer, Memory, PAGE, Registration};
use crate::nic::{NicError, RemoteAccess, RemoteSlice};

/// The registration of one allocation.
#[derive(Debug)]
pub(super) struct Region {
    key: u32,
    domain: u64,
    /// Where the memory is in this process, to find a buffer's place in it.
    real: u64,
    /// Where a peer sees it.
    shown: u64,
    len: u64,
    registered: Arc<AtomicU64>,
}

impl Registration for Region {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }

    fn domain(&self) -> u64 {
        self.domain
    }

    fn deregister(&mut self) -> bool {
        self.registered.fetch_sub(self.len, Ordering::Relaxed);
        true
    }
}

/// Makes registrations of one device.
pub(super) struct Regions {
    domain: u64,
    next_address: u64,
    next_key: u32,
    bytes_max: u64,
    /// How many bytes are registered now.
    registered: Arc<AtomicU64>,
}

/// Keys of registrations have this bit, those of windows do not.
const REGION_KEY: u32 = 1 << 31;

impl Regions {
    pub(super) fn new(nic: u32, domain: u64, bytes_max: u64) -> Self {
        // Apart from those of every other device.
        let next_address = u64::from(nic + 1) << 40;
        Self { domain, next_address, next_key: REGION_KEY, bytes_max, registered: Arc::default() }
    }

    pub(super) fn domain(&self) -> u64 {
        self.domain
    }

    pub(super) fn registered(&self) -> u64 {
        self.registered.load(Ordering::Relaxed)
    }

    /// `None` when the limit on registered memory does not allow it.
    pub(super) fn register(&mut self, memory: &Memory) -> Option<Region> {
        let len = memory.len() as u64;
        if self.registered().saturating_add(len) > self.bytes_max {
            return None;
        }
        self.registered.fetch_add(len, Ordering::Relaxed);
        let (key, shown) = (self.next_key, self.next_address);
        self.next_key = REGION_KEY | self.next_key.wrapping_add(0x100);
        // With a page that belongs to nobody behind it.
        self.next_address += len + PAGE as u64;
        let registered = Arc::clone(&self.registered);
        Some(Region { key, domain: self.domain, real: memory.address(), shown, len, registered })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Bound,
    Ending,
}

struct Window {
    consumer: u32,
    key: u32,
    phase: Phase,
    /// Whether the device has executed the bind, and no invalidation.
    active: bool,
    qp: u32,
    access: RemoteAccess,
    shown: u64,
    buffer: Option<Buffer>,
}

/// The windows of one device, found by key.
pub(super) struct Windows {
    /// The number of the first one, so that two devices' keys differ.
    first: u32,
    windows: Vec<Option<Window>>,
}

/// How many windows one device can number.
const WINDOWS_MAX: usize = 1 << 22;

impl Windows {
    pub(super) fn new(first: u32) -> Self {
        Self { first, windows: Vec::new() }
    }

    /// Allocates an unbound window; `None` when the device has numbered all it can.
    pub(super) fn allocate(&mut self, consumer: u32) -> Option<u32> {
        let id = self.windows.len();
        if id >= WINDOWS_MAX {
            return None;
        }
        let id = id as u32;
        let (access, buffer) = (RemoteAccess::Read, None);
        let key = (self.first + id) << 8;
        let phase = Phase::Free;
        let window = Window { consumer, key, phase, active: false, qp: 0, access, shown: 0, buffer };
        self.windows.push(Some(window));
        Some(id)
    }

    fn by_id(&mut self, id: u32) -> Option<&mut Window> {
        self.windows.get_mut(id as usize)?.as_mut()
    }

    fn by_key(&mut self, key: u32) -> Option<&mut Window> {
        let id = (key >> 8).checked_sub(self.first)?;
        self.by_id(id).filter(|window| window.key == key)
    }

    /// Whether the consumer has such a window.
    pub(super) fn exists(&self, consumer: u32, id: u32) -> bool {
        let window = self.windows.get(id as usize).and_then(Option::as_ref);
        window.is_some_and(|window| window.consumer == consumer)
    }

    /// Whether a bind of `buffer` may be posted.
    pub(super) fn check_bind(&mut self, id: u32, buffer: &Buffer, domain: u64) -> Result<(), NicError> {
        match self.by_id(id) {
            Some(window) if window.phase == Phase::Free && window.buffer.is_none() => {}
            _ => return Err(NicError::State("the window must be invalidated before it is bound again")),
        }
        if buffer.domain() == domain { Ok(()) } else { Err(NicError::ForeignMemory) }
    }

    /// A checked bind was posted: the buffer is the window's, and nobody's to read.
    pub(super) fn bind(
        &mut self,
        id: u32,
        qp: u32,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> Option<RemoteSlice> {
        let registration: &dyn std::any::Any = buffer.registration();
        let region = registration.downcast_ref::<Region>()?;
        let address = region.shown + (buffer.address() - region.real);
        let window = self.by_id(id)?;
        let key = next_key(window.key);
        let slice = RemoteSlice { address, len: buffer.capacity() as u64, key };
        let (phase, buffer) = (Phase::Bound, Some(buffer));
        let consumer = window.consumer;
        *window = Window { consumer, key, phase, active: false, qp, access, shown: address, buffer };
        Some(slice)
    }

    /// The device executes a bind. `false` when the window is gone.
    pub(super) fn execute_bind(&mut self, id: u32, key: u32) -> bool {
        let window = self.by_id(id).filter(|window| window.key == key && window.buffer.is_some());
        window.map(|window| window.active = true).is_some()
    }

    /// Whether an invalidation may be posted; if so it counts as posted, and this is the key that it names.
    pub(super) fn invalidate(&mut self, id: u32) -> Result<u32, NicError> {
        let window = self.by_id(id).filter(|window| window.phase == Phase::Bound);
        let window = window.ok_or(NicError::State("only a bound window can be invalidated"))?;
        window.phase = Phase::Ending;
        Ok(window.key)
    }

    /// The device executes an invalidation. `false` when the window is not bound to that queue pair with that key.
    pub(super) fn execute_invalidate(&mut self, id: u32, qp: u32, key: u32) -> bool {
        let bound = |window: &&mut Window| window.active && window.qp == qp && window.key == key;
        self.by_id(id).filter(bound).map(|window| window.active = false).is_some()
    }

    /// An invalidation was reported as done: the buffer is out of the peer's reach.
    pub(super) fn invalidated(&mut self, id: u32) -> Option<Buffer> {
        let window = self.by_id(id)?;
        window.phase = Phase::Free;
        window.buffer.take()
    }

    /// An invalidation was reported as failed: the peer may still have access.
    pub(super) fn still_bound(&mut self, id: u32) {
        if let Some(window) = self.by_id(id) {
            window.phase = Phase::Bound;
        }
    }

    /// Frees a window; `None` when the consumer has none of that number.
    pub(super) fn free(&mut self, consumer: u32, id: u32) -> Option<Option<Buffer>> {
        let slot = self.windows.get_mut(id as usize)?;
        let window = slot.take_if(|window| window.consumer == consumer)?;
        Some(window.buffer)
    }

    /// Frees every window of a consumer and returns what they covered.
    pub(super) fn free_all_of(&mut self, consumer: u32) -> Vec<Buffer> {
        let ours = |slot: &mut Option<Window>| slot.take_if(|window| window.consumer == consumer);
        self.windows.iter_mut().filter_map(ours).filter_map(|window| window.buffer).collect()
    }

    /// Where the buffers of a consumer's windows are.
    pub(super) fn addresses(&self, consumer: u32) -> Vec<u64> {
        let ours = self.windows.iter().flatten().filter(|window| window.consumer == consumer);
        ours.filter_map(|window| window.buffer.as_ref()).map(Buffer::address).collect()
    }

    /// Whether a peer has access through a window that is bound to this queue pair.
    pub(super) fn any_active(&self, qp: u32) -> bool {
        self.windows.iter().flatten().any(|window| window.active && window.qp == qp)
    }

    /// The buffer that `len` bytes at `address` may be written to with `key` by the peer of `qp`, and where in it.
    pub(super) fn writable(
        &mut self,
        qp: u32,
        key: u32,
        address: u64,
        len: u32,
    ) -> Option<(&mut Buffer, usize)> {
        let window = self.by_key(key)?;
        if !window.active || window.qp != qp || window.access != RemoteAccess::Write {
            return None;
        }
        let offset = address.checked_sub(window.shown)?;
        let end = offset.checked_add(u64::from(len))?;
        let buffer = window.buffer.as_mut()?;
        (end <= buffer.capacity() as u64).then_some((buffer, offset as usize))
    }
}

/// The key of the next binding: the low byte is the owner's to choose. It comes back after 256 bindings.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Slab;

    fn buffer(regions: &mut Regions) -> Buffer {
        let memory = Memory::allocate(PAGE).expect("a page");
        let region = regions.register(&memory).expect("no limit");
        Slab::new(memory, Box::new(region)).into_buffer()
    }

    #[test]
    fn bounds_are_checked_without_overflow() {
        let mut regions = Regions::new(0, 1, u64::MAX);
        let mut windows = Windows::new(3);
        let id = windows.allocate(0).expect("a number");
        let slice = windows.bind(id, 7, buffer(&mut regions), RemoteAccess::Write).expect("a region");
        assert!(windows.writable(7, slice.key, slice.address, 1).is_none(), "not executed yet");
        assert!(windows.execute_bind(id, slice.key));
        let page = PAGE as u32;
        let last = slice.address + u64::from(page) - 1;
        for (address, len, allowed) in [
            (slice.address, page, true),
            (slice.address, page + 1, false),
            (slice.address - 1, 1, false),
            (last, 1, true),
            (last, 2, false),
            (last + 1, 0, true),
            (u64::MAX, 1, false),
            (u64::MAX, u32::MAX, false),
            (0, 1, false),
        ] {
            assert_eq!(windows.writable(7, slice.key, address, len).is_some(), allowed, "{address:#x} {len}");
        }
        for (qp, key) in [(8, slice.key), (7, slice.key + 1), (7, slice.key - 0x100), (7, 0), (7, u32::MAX)] {
            assert!(windows.writable(qp, key, slice.address, 1).is_none(), "{qp} {key:#x}");
        }
        assert_eq!(windows.invalidate(id).ok(), Some(slice.key));
        assert!(windows.writable(7, slice.key, slice.address, 1).is_some(), "posted, not executed");
        assert!(!windows.execute_invalidate(id, 8, slice.key), "another queue pair's");
        assert!(windows.execute_invalidate(id, 7, slice.key));
        assert!(windows.writable(7, slice.key, slice.address, 1).is_none());
        assert!(windows.invalidated(id).is_some());
    }

    #[test]
    fn registered_memory_has_a_limit_and_is_given_back() {
        let mut regions = Regions::new(0, 1, PAGE as u64);
        let first = buffer(&mut regions);
        let memory = Memory::allocate(1).expect("a page");
        assert!(regions.register(&memory).is_none());
        drop(first);
        assert_eq!(regions.registered(), 0);
        assert!(regions.register(&memory).is_some_and(|mut region| region.deregister()));
    }
}
