//! Registered memory of one device, by size: registering is costly, so it is done once and memory is used again.
//!
//! Owns [`Pool`]: *staging* for what goes out, cut from big regions; *landings* for large messages that come in, and
//! *leases* for callers, each a registration of its own, since a peer can reach what is in the same one. Three budgets,
//! so that neither can starve the others. Invariants: what is handed out comes back exactly once, by dropping; memory
//! that another connection has used is cleared before a peer can make it part of a message. Never blocks, and never
//! fails a call that has begun: without staging its driver waits, without a landing a message is refused. Who waits for
//! staging gets any that comes back: every buffer holds a message, and a body goes in parts of any size.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::memory::{Buffer, Frozen, Memory, Slab};
use crate::options::RdmaOptions;
use crate::protocol::budget::Budget;

/// The smallest staging buffer, unless messages are longer, and the largest: one part of a large body. The region that
/// buffers are cut from holds several of either, while the budget allows it.
const STAGING_MIN: usize = 32 << 10;
const STAGING_MAX: usize = 256 << 10;
const STAGING_REGION: usize = 1 << 20;

/// The smallest landing or lease.
const LARGE_MIN: usize = 16 << 10;

/// Registers memory with the device, or says why not.
pub(crate) type Register = Box<dyn Fn(Memory) -> Result<Slab, String> + Send + Sync>;

/// Who used memory last: a connection, numbered once per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

/// Registered memory of one device.
pub struct Pool {
    register: Register,
    keep: usize,
    /// The smallest staging buffer: any message fits into it.
    staging_min: usize,
    state: Mutex<State>,
    /// Leases that were frozen and messages that landed, by address: what is sent from in here needs no copy.
    contents: Mutex<BTreeMap<u64, Known>>,
}

struct State {
    /// Free staging buffers, by the power of two of their size.
    staging: BTreeMap<usize, Vec<Buffer>>,
    /// Bytes that may still be registered for staging, and at first.
    staging_left: usize,
    staging_all: usize,
    /// Drivers that wait for staging.
    waiting: Vec<Waker>,
    /// Free landings and leases, by size, each with whoever used it last.
    large: BTreeMap<usize, Vec<(Owner, Buffer)>>,
    kept: usize,
    landing: Budget,
    leases: Budget,
}

/// Memory for one message or one part of a body; it goes back when it is dropped.
pub(crate) struct Staging {
    buffer: Option<Buffer>,
    pool: Arc<Pool>,
}

impl Staging {
    /// Every byte.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], Buffer::bytes_mut)
    }

    /// The first `len` bytes as content, for posting. Their completion gives the buffer to [`Pool::give_back`].
    pub(crate) fn into_buffer(mut self, len: usize) -> Option<Buffer> {
        let mut buffer = self.buffer.take()?;
        buffer.set_filled(len);
        Some(buffer)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give_back(buffer);
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({:?})", self.buffer)
    }
}

/// A part of registered content that is being sent; the last one brings the memory back.
pub(crate) struct View {
    frozen: Option<Frozen>,
    pool: Arc<Pool>,
}

impl View {
    pub(crate) fn len(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.bytes().len())
    }

    /// For posting. The completion gives it to [`Pool::view_back`].
    pub(crate) fn into_frozen(mut self) -> Option<Frozen> {
        self.frozen.take()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.frozen.take().into_iter().for_each(|frozen| self.pool.view_back(frozen));
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?})", self.frozen)
    }
}

/// Registered memory that a caller writes a payload into, which is then sent from where it is.
pub struct Lease {
    buffer: Option<Buffer>,
    len: usize,
    pool: Arc<Pool>,
}

impl Lease {
    /// The bytes. They may hold what this process sent or received before, and nothing of another one's.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer.bytes_mut()[..len])
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::filled)
    }

    /// The bytes as they are now, to be put into a message. Wherever they are sent from this device, whole or in part,
    /// they are not copied.
    pub fn freeze(mut self) -> Bytes {
        self.buffer.take().map_or_else(Bytes::new, |buffer| self.pool.content(buffer, None))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.lease_back(buffer);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.len)
    }
}

/// The content of a registration of its own, for whoever holds `Bytes` over it.
struct Content {
    frozen: Option<Frozen>,
    address: u64,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        self.frozen.as_ref().map_or(&[], Frozen::bytes)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let known = self.pool.contents().get_mut(&self.address).and_then(|known| known.frozen.take());
        for frozen in known.into_iter().chain(self.frozen.take()) {
            self.pool.view_back(frozen);
        }
    }
}

/// What the pool knows about such content until its memory is back.
struct Known {
    /// To make views of, as long as anybody holds the content.
    frozen: Option<Frozen>,
    /// Of a message that landed: whose it is. Otherwise it is a lease.
    landing: Option<Owner>,
}

impl Pool {
    pub(crate) fn new(register: Register, options: &RdmaOptions) -> Arc<Self> {
        let staging_min = (options.receive_size as usize).next_power_of_two().max(STAGING_MIN);
        // Without any nothing could be sent at all.
        let staging = options.staging.max(staging_min);
        Arc::new(Self {
            register,
            keep: options.keep,
            staging_min,
            state: Mutex::new(State {
                staging: BTreeMap::new(),
                staging_left: staging,
                staging_all: staging,
                waiting: Vec::new(),
                large: BTreeMap::new(),
                kept: 0,
                landing: Budget::new(options.landing),
                leases: Budget::new(options.leases),
            }),
            contents: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contents(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Staging of at least `len` bytes, if there is any. Otherwise `waker` is woken when some comes back.
    pub(crate) fn staging(self: &Arc<Self>, len: usize, waker: &Waker) -> Option<Staging> {
        let size = self.staging_size(len);
        self.find_staging(size, size, waker)
    }

    /// Staging for a part of what is `len` bytes, as large a part as there is staging for, if there is any. Otherwise
    /// `waker` is woken when some comes back.
    pub(crate) fn staging_for_part(self: &Arc<Self>, len: usize, waker: &Waker) -> Option<Staging> {
        let size = self.staging_size(len.min(STAGING_MAX));
        self.find_staging(size, self.staging_min, waker)
    }

    /// Staging of `size` bytes, of more, or else of as much as there is, but at least `least`.
    fn find_staging(self: &Arc<Self>, size: usize, least: usize, waker: &Waker) -> Option<Staging> {
        if let Some(staging) = self.free_staging(size) {
            return Some(staging);
        }
        if !self.grow_staging(size) {
            self.grow_staging(least);
        }
        let mut state = self.lock();
        let found = state.take_staging(size, least);
        if found.is_none() && !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        drop(state);
        found.map(|buffer| Staging { buffer: Some(buffer), pool: Arc::clone(self) })
    }

    /// Staging of at least `len` bytes, if some of about that size is free now.
    pub(crate) fn free_staging(self: &Arc<Self>, len: usize) -> Option<Staging> {
        let size = self.staging_size(len);
        let buffer = self.lock().staging.get_mut(&size)?.pop()?;
        Some(Staging { buffer: Some(buffer), pool: Arc::clone(self) })
    }

    fn staging_size(&self, len: usize) -> usize {
        len.next_power_of_two().max(self.staging_min)
    }

    /// Registers another region of staging, cut to `size`; `false` when the budget has no room for one.
    fn grow_staging(&self, size: usize) -> bool {
        let region = {
            let mut state = self.lock();
            let region = STAGING_REGION.max(2 * size).min(state.staging_left - state.staging_left % size);
            state.staging_left -= region;
            region
        };
        if region == 0 {
            return false;
        }
        let registered = Memory::allocate(region).map_err(|error| error.to_string());
        match registered.and_then(|memory| (self.register)(memory)) {
            Ok(slab) => self.lock().staging.entry(size).or_default().extend(slab.into_buffers(size)),
            Err(_) => self.lock().staging_left += region,
        }
        true
    }

    /// Whether little staging is left, so that what comes back is waited for, or soon will be.
    pub(crate) fn is_scarce(&self) -> bool {
        let state = self.lock();
        let free: usize = state.staging.iter().map(|(size, free)| size * free.len()).sum();
        state.staging_left < self.staging_min && free < state.staging_all / 4
    }

    /// The longest message, in bytes: every staging buffer holds one.
    pub(crate) fn message_max(&self) -> usize {
        self.staging_min
    }

    /// A registration of its own beyond all budgets, if the device has it.
    pub(crate) fn register_one(&self, len: usize) -> Option<Buffer> {
        let memory = Memory::allocate(len).ok()?;
        (self.register)(memory).ok().map(Slab::into_buffer)
    }

    /// Takes back staging that was posted.
    pub(crate) fn give_back(&self, buffer: Buffer) {
        let size = buffer.capacity();
        let woken = {
            let mut state = self.lock();
            state.staging.entry(size).or_default().push(buffer);
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Takes back a view that was posted; the last one brings the memory back.
    pub(crate) fn view_back(&self, frozen: Frozen) {
        let Some(buffer) = frozen.into_buffer() else { return };
        let known = self.contents().remove(&buffer.address());
        match known.and_then(|known| known.landing) {
            Some(owner) => self.landing_back(buffer, owner),
            None => self.lease_back(buffer),
        }
    }

    /// Memory for a large message of `len` bytes, a registration of its own.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(crate) fn landing(&self, len: usize, owner: Owner) -> Result<Buffer, String> {
        let size = large_size(len);
        if !self.lock().landing.reserve(size as u64) {
            return Err("the registered memory for large messages is used up".into());
        }
        self.large(size, owner).inspect_err(|_| self.lock().landing.release(size as u64))
    }

    /// The same for a message that may never come: as long as half of the budget is left for those that do.
    pub(crate) fn landing_in_advance(&self, len: usize, owner: Owner) -> Option<Buffer> {
        let size = large_size(len);
        if !self.lock().landing.reserve_of_half(size as u64) {
            return None;
        }
        self.large(size, owner).inspect_err(|_| self.lock().landing.release(size as u64)).ok()
    }

    /// Takes back a landing that nobody has read.
    pub(crate) fn landing_back(&self, buffer: Buffer, owner: Owner) {
        self.lock().landing.release(buffer.capacity() as u64);
        self.large_back(buffer, owner);
    }

    /// A large message of `len` bytes in the landing that it was written to. The memory comes back when the last
    /// reference to the message is dropped.
    pub(crate) fn landed(self: &Arc<Self>, mut buffer: Buffer, len: usize, owner: Owner) -> Bytes {
        buffer.set_filled(len);
        self.content(buffer, Some(owner))
    }

    fn content(self: &Arc<Self>, buffer: Buffer, landing: Option<Owner>) -> Bytes {
        let (address, frozen) = (buffer.address(), buffer.freeze());
        self.contents().insert(address, Known { frozen: Some(frozen.clone()), landing });
        Bytes::from_owner(Content { frozen: Some(frozen), address, pool: Arc::clone(self) })
    }

    /// Registered memory of `len` bytes for a caller.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub fn lease(self: &Arc<Self>, len: usize) -> Result<Lease, String> {
        let size = large_size(len);
        if !self.lock().leases.reserve(size as u64) {
            return Err("the registered memory for callers is used up".into());
        }
        let buffer = self.large(size, LEASES);
        let mut buffer = buffer.inspect_err(|_| self.lock().leases.release(size as u64))?;
        buffer.set_filled(len);
        Ok(Lease { buffer: Some(buffer), len, pool: Arc::clone(self) })
    }

    fn lease_back(&self, buffer: Buffer) {
        self.lock().leases.release(buffer.capacity() as u64);
        self.large_back(buffer, LEASES);
    }

    /// The registered memory that `bytes` are in, when they are of a lease or of a message that landed.
    pub(crate) fn find(self: &Arc<Self>, bytes: &[u8]) -> Option<View> {
        let address = bytes.as_ptr() as u64;
        let contents = self.contents();
        let (&start, known) = contents.range(..=address).next_back()?;
        let frozen = known.frozen.as_ref()?;
        let offset = (address - start) as usize;
        let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= frozen.bytes().len());
        inside.then(|| View { frozen: Some(frozen.slice(offset, bytes.len())), pool: Arc::clone(self) })
    }

    /// Bytes that are reserved: for landings, for leases, and kept for either.
    pub fn used(&self) -> (u64, u64, usize) {
        let state = self.lock();
        (state.landing.reserved(), state.leases.reserved(), state.kept)
    }

    /// Bytes that may still be registered for staging, and registered ones that are free.
    #[cfg(test)]
    pub(crate) fn staging_accounts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.staging_left, state.staging.iter().map(|(size, free)| size * free.len()).sum())
    }

    fn large(&self, size: usize, owner: Owner) -> Result<Buffer, String> {
        if let Some((last, mut buffer)) = self.lock().take_large(size, owner) {
            if last != owner {
                // A peer that does not write all of a message must not see what came for others.
                buffer.bytes_mut().fill(0);
            }
            return Ok(buffer);
        }
        let registered = Memory::allocate(size).map_err(|error| error.to_string());
        registered.and_then(|memory| (self.register)(memory)).map(Slab::into_buffer)
    }

    fn large_back(&self, mut buffer: Buffer, owner: Owner) {
        buffer.set_filled(0);
        let size = buffer.capacity();
        let mut state = self.lock();
        if state.kept + size <= self.keep {
            state.kept += size;
            state.large.entry(size).or_default().push((owner, buffer));
            return;
        }
        drop(state);
        // Deregistered here, without the lock.
        drop(buffer);
    }
}

/// The owner of memory that callers of this process fill themselves.
const LEASES: Owner = Owner(0);

impl State {
    /// The smallest free staging buffer of at least `size` bytes, or else the largest of at least `least`.
    fn take_staging(&mut self, size: usize, least: usize) -> Option<Buffer> {
        let larger = self.staging.range_mut(size..).find_map(|(_, free)| free.pop());
        larger.or_else(|| self.staging.range_mut(least..size).rev().find_map(|(_, free)| free.pop()))
    }

    /// A free buffer of this size, of the same owner where there is one.
    fn take_large(&mut self, size: usize, owner: Owner) -> Option<(Owner, Buffer)> {
        let free = self.large.get_mut(&size)?;
        let index = free.iter().rposition(|(last, _)| *last == owner).or(free.len().checked_sub(1))?;
        let taken = free.swap_remove(index);
        if free.is_empty() {
            self.large.remove(&size);
        }
        self.kept -= size;
        Some(taken)
    }
}

/// Whole pages, in four steps from one power of two to the next: at most a fifth is wasted.
fn large_size(len: usize) -> usize {
    if len <= LARGE_MIN {
        return LARGE_MIN;
    }
    let step = (len.next_power_of_two() / 8).max(crate::memory::PAGE);
    len.next_multiple_of(step)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("used", &self.used()).finish_non_exhaustive()
    }
}
