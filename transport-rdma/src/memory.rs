//! Memory that a NIC may read and write while Rust holds it.
//!
//! ```text
//! Memory --register--> Slab --into_buffers--> Buffer <--post / completion--> NIC
//!                        |                      `--freeze--> Frozen (shared, read-only)
//!                        `--expose--> Exposed (a peer may read or write it at any time)
//! ```
//!
//! Owns allocations and the rule of who may touch which bytes. Invariant: at any time a byte belongs to exactly one
//! [`Buffer`], to the [`Frozen`] views of one, or to one [`Exposed`]; a reference to it exists only while a borrow of
//! that owner lives. A buffer given to a NIC is *moved*, so no reference can exist while the NIC works on it. Memory
//! is freed only after its registration is gone; when deregistration fails it is leaked, since the NIC may still
//! use it.
//! Never calls foreign code (Miri runs the tests below), and never hands out uninitialised bytes.
#![expect(unsafe_code, reason = "memory shared with a device is reached through raw pointers")]

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What regions are aligned to. A NIC pins whole pages; two regions in one page would share their protection.
pub const PAGE: usize = 4096;

/// The size of a huge page on x86_64 and on aarch64 with 4 KiB pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// Why memory could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocError {
    /// A length of zero, or one that does not fit the address space.
    Length(usize),
    /// The system has no such amount of memory.
    Exhausted(usize),
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "{len} bytes is no length for a memory region"),
            Self::Exhausted(len) => write!(f, "no memory for a region of {len} bytes"),
        }
    }
}

impl std::error::Error for AllocError {}

/// One zeroed, page-aligned allocation that no NIC knows yet.
pub struct Memory {
    base: NonNull<u8>,
    layout: Layout,
    huge: bool,
}

// SAFETY: `Memory` owns its allocation alone, and the allocator allows freeing from another thread.
unsafe impl Send for Memory {}
// SAFETY: no method reads or writes the bytes through `&Memory`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates at least `len` bytes, rounded up to whole pages.
    pub fn allocate(len: usize) -> Result<Self, AllocError> {
        Self::with_alignment(len, PAGE, |_, _| false)
    }

    /// Allocates at least `len` bytes that start and end on a huge page, and lets `advise` ask the system for huge
    /// pages before the bytes are first touched. `advise` gets the address and the length and tells whether the
    /// system agreed; when it did not, the memory is of normal pages and equally usable.
    pub fn allocate_huge(
        len: usize,
        advise: impl FnOnce(NonNull<u8>, usize) -> bool,
    ) -> Result<Self, AllocError> {
        Self::with_alignment(len, HUGE_PAGE, advise)
    }

    fn with_alignment(
        len: usize,
        align: usize,
        advise: impl FnOnce(NonNull<u8>, usize) -> bool,
    ) -> Result<Self, AllocError> {
        let rounded = len.checked_next_multiple_of(align).filter(|&n| n > 0);
        let layout =
            rounded.and_then(|n| Layout::from_size_align(n, align).ok()).ok_or(AllocError::Length(len))?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc(layout) };
        let base = NonNull::new(base).ok_or(AllocError::Exhausted(layout.size()))?;
        let huge = advise(base, layout.size());
        // SAFETY: `base` points to `layout.size()` fresh bytes that nothing else refers to.
        unsafe { base.write_bytes(0, layout.size()) };
        Ok(Self { base, layout, huge })
    }

    /// Length in bytes, a multiple of the page size.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Whether the system agreed to back the memory with huge pages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// The first byte, for a registration call.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc` with this very layout, and `Memory` is not `Clone`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.address(), self.len())
    }
}

/// A number for a protection domain, unique in this process whatever kind of NIC the domain is of.
pub(crate) fn new_domain() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a NIC gives for registered memory. Implemented by each kind of NIC in this crate.
pub trait Registration: Any + Send + Sync + fmt::Debug {
    /// The key that work requests of the owning protection domain name the memory by.
    fn local_key(&self) -> u32;

    /// The key that a peer names the memory by; it grants nothing unless the memory was exposed.
    fn remote_key(&self) -> u32;

    /// The protection domain, numbered uniquely in this process. Posting elsewhere is refused.
    fn domain(&self) -> u64;

    /// Ends the registration. `false` means that the NIC may still use the memory, which is then never freed.
    /// Called once, before the memory is freed.
    fn deregister(&mut self) -> bool;
}

/// Registered memory, shared by the buffers cut from it.
struct Home {
    memory: ManuallyDrop<Memory>,
    registration: Box<dyn Registration>,
    local_key: u32,
    domain: u64,
}

impl Home {
    fn new(memory: Memory, registration: Box<dyn Registration>) -> Self {
        Self {
            local_key: registration.local_key(),
            domain: registration.domain(),
            memory: ManuallyDrop::new(memory),
            registration,
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.registration.deregister() {
            // SAFETY: dropped here only, and never used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// Registered memory that is not divided yet.
pub struct Slab {
    home: Home,
}

impl Slab {
    /// Joins memory with the registration that a NIC made for it.
    pub fn new(memory: Memory, registration: Box<dyn Registration>) -> Self {
        Self { home: Home::new(memory, registration) }
    }

    /// The whole slab as one buffer.
    pub fn into_buffer(self) -> Buffer {
        let capacity = self.home.memory.len();
        Buffer { base: self.home.memory.base, capacity, filled: 0, home: Arc::new(self.home) }
    }

    /// Divides the slab into buffers of `size` bytes; a remainder is left unused. `size` must not be zero.
    pub fn into_buffers(self, size: usize) -> Vec<Buffer> {
        assert!(size > 0, "a buffer has at least one byte");
        let mut rest = self.into_buffer();
        let mut buffers = Vec::with_capacity(rest.capacity / size);
        while rest.capacity >= size {
            let tail = rest.split_off(size);
            buffers.push(std::mem::replace(&mut rest, tail));
        }
        buffers
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({:?})", *self.home.memory)
    }
}

/// An exclusive piece of registered memory: the unit that is posted to a NIC and comes back with its completion.
///
/// The first [`filled`](Self::filled) bytes are the content: what a send transmits, what a receive has written.
pub struct Buffer {
    base: NonNull<u8>,
    capacity: usize,
    filled: usize,
    home: Arc<Home>,
}

// SAFETY: a buffer is the only owner of its bytes, and they may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: through `&Buffer` bytes are only read, and writing needs `&mut Buffer`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// How many bytes the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The content.
    pub fn filled(&self) -> &[u8] {
        // SAFETY: the bytes are initialised since allocation, `filled <= capacity`, and they are this buffer's alone;
        // a NIC never holds them while `self` can be borrowed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.filled) }
    }

    /// Every byte of the buffer, to write content into; see [`set_filled`](Self::set_filled).
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `filled`, and `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.capacity) }
    }

    /// Declares the first `len` bytes to be the content. Panics when `len` is beyond the capacity.
    pub fn set_filled(&mut self, len: usize) {
        assert!(len <= self.capacity, "content of {len} bytes in a buffer of {}", self.capacity);
        self.filled = len;
    }

    /// Replaces the content by `bytes`. Panics when they do not fit.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        self.set_filled(bytes.len());
        self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }

    /// Cuts the buffer at `at`; the tail is returned as a buffer of its own, empty. Panics beyond the capacity.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.capacity, "cut at {at} in a buffer of {}", self.capacity);
        // SAFETY: `at <= capacity`, so the result is inside the allocation or one past its end.
        let base = unsafe { self.base.add(at) };
        let tail = Self { base, capacity: self.capacity - at, filled: 0, home: Arc::clone(&self.home) };
        self.capacity = at;
        self.filled = self.filled.min(at);
        tail
    }

    /// Turns the content into a read-only view that can be cloned, sent more than once, and read meanwhile.
    pub fn freeze(self) -> Frozen {
        Frozen { start: 0, len: self.filled, buffer: Arc::new(self) }
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The key that a work request names this memory by.
    pub fn local_key(&self) -> u32 {
        self.home.local_key
    }

    /// The protection domain that the memory is registered in.
    pub fn domain(&self) -> u64 {
        self.home.domain
    }

    /// Whether this buffer is all of its registration, so that a window over it cannot reach a neighbour.
    pub fn is_whole_registration(&self) -> bool {
        self.capacity == self.home.memory.len()
    }

    /// What the NIC gave for this memory.
    pub fn registration(&self) -> &dyn Registration {
        &*self.home.registration
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} of {} bytes)", self.address(), self.filled, self.capacity)
    }
}

/// A shared read-only view of a buffer's content. A NIC may read it while Rust does.
#[derive(Clone)]
pub struct Frozen {
    buffer: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Frozen {
    /// The bytes of this view.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.filled()[self.start..self.start + self.len]
    }

    /// A view of `len` bytes from `start` on. Panics when they are not inside this view.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        let end = start.checked_add(len).expect("a view ends inside the address space");
        assert!(end <= self.len, "bytes {start}..{end} of a view of {}", self.len);
        Self { buffer: Arc::clone(&self.buffer), start: self.start + start, len }
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.start as u64
    }

    /// The key that a work request names this memory by.
    pub fn local_key(&self) -> u32 {
        self.buffer.local_key()
    }

    /// The protection domain that the memory is registered in.
    pub fn domain(&self) -> u64 {
        self.buffer.domain()
    }

    /// The buffer itself from the last of its views, whichever is given back last: of several that are given back at
    /// once, one gets it.
    pub fn into_buffer(self) -> Option<Buffer> {
        Arc::into_inner(self.buffer)
    }

    /// The buffer itself, when this is its last view.
    pub fn try_into_buffer(self) -> Result<Buffer, Self> {
        let Self { buffer, start, len } = self;
        Arc::try_unwrap(buffer).map_err(|buffer| Self { buffer, start, len })
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({:#x}, {} bytes)", self.address(), self.len)
    }
}

/// Registered memory that a peer may read or change at any moment. No reference to its bytes is ever made.
pub struct Exposed {
    home: Home,
}

impl Exposed {
    /// Joins memory with a registration that grants remote access.
    pub fn new(memory: Memory, registration: Box<dyn Registration>) -> Self {
        Self { home: Home::new(memory, registration) }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.home.memory.len()
    }

    /// The address that a peer names.
    pub fn address(&self) -> u64 {
        self.home.memory.address()
    }

    /// The key that a peer names.
    pub fn remote_key(&self) -> u32 {
        self.home.registration.remote_key()
    }

    /// Copies bytes out, one by one: what a peer writes meanwhile may be seen in part. Panics beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = self.cell(offset + index).load(Ordering::Relaxed);
        }
    }

    /// Copies bytes in, one by one: a peer that reads meanwhile may see them in part. Panics beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            self.cell(offset + index).store(*byte, Ordering::Relaxed);
        }
    }

    fn cell(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len(), "byte {offset} of {}", self.len());
        // SAFETY: `offset` is inside the allocation.
        let byte = unsafe { self.home.memory.base.add(offset) };
        // SAFETY: the byte lives as long as `self`, is initialised, and in Rust it is only ever reached as an atomic.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({:?})", *self.home.memory)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[derive(Debug)]
    struct Fake {
        deregistered: Arc<AtomicBool>,
        succeeds: bool,
    }

    impl Registration for Fake {
        fn local_key(&self) -> u32 {
            7
        }
        fn remote_key(&self) -> u32 {
            8
        }
        fn domain(&self) -> u64 {
            9
        }
        fn deregister(&mut self) -> bool {
            assert!(!self.deregistered.swap(true, Ordering::SeqCst), "deregistered twice");
            self.succeeds
        }
    }

    fn registration(succeeds: bool) -> (Box<dyn Registration>, Arc<AtomicBool>) {
        let deregistered = Arc::new(AtomicBool::new(false));
        let fake = Fake { deregistered: Arc::clone(&deregistered), succeeds };
        (Box::new(fake), deregistered)
    }

    fn slab(len: usize) -> (Slab, Arc<AtomicBool>) {
        let (registration, deregistered) = registration(true);
        let memory = Memory::allocate(len).expect("a few pages");
        (Slab::new(memory, registration), deregistered)
    }

    #[test]
    fn lengths_are_whole_pages_and_bytes_are_zero() {
        let memory = Memory::allocate(PAGE + 1).expect("two pages");
        assert_eq!(memory.len(), 2 * PAGE);
        assert_eq!(memory.address() % PAGE as u64, 0);
        let (registration, _) = registration(true);
        let mut buffer = Slab::new(memory, registration).into_buffer();
        assert!(buffer.bytes_mut().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, isize::MAX as usize] {
            assert_eq!(Memory::allocate(len).err(), Some(AllocError::Length(len)));
        }
    }

    #[test]
    fn huge_pages_are_asked_for_before_the_first_touch_and_fall_back() {
        let mut asked = None;
        let memory = Memory::allocate_huge(1, |base, len| {
            asked = Some((base.as_ptr() as usize % HUGE_PAGE, len));
            false
        })
        .expect("one huge page");
        assert_eq!(asked, Some((0, HUGE_PAGE)));
        assert!(!memory.is_huge());
        assert_eq!(memory.len(), HUGE_PAGE);
    }

    #[test]
    fn buffers_of_a_slab_are_disjoint_and_keep_it_registered() {
        let (slab, deregistered) = slab(4 * PAGE);
        let mut buffers = slab.into_buffers(3000);
        assert_eq!(buffers.len(), 5);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill_from(&[index as u8; 3000]);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.filled(), [index as u8; 3000]);
            assert!(!buffer.is_whole_registration());
        }
        let last = buffers.pop();
        drop(buffers);
        assert!(!deregistered.load(Ordering::SeqCst));
        drop(last);
        assert!(deregistered.load(Ordering::SeqCst));
    }

    #[test]
    fn a_failed_deregistration_leaks_the_memory_instead_of_freeing_it() {
        let (registration, _) = registration(false);
        let memory = Memory::allocate(PAGE).expect("one page");
        let (base, layout) = (memory.base, memory.layout);
        drop(Slab::new(memory, registration));
        // SAFETY: the memory was leaked, so it is still allocated and nothing else refers to it.
        assert_eq!(unsafe { base.read() }, 0);
        // SAFETY: as above; freed here so that the leak checker sees only what the code under test forgets.
        unsafe { dealloc(base.as_ptr(), layout) };
    }

    #[test]
    fn a_device_thread_writes_into_a_buffer_that_was_moved_to_it() {
        let (slab, _) = slab(PAGE);
        let buffer = slab.into_buffer();
        let (post, posted) = mpsc::channel::<Buffer>();
        let (complete, completed) = mpsc::channel::<Buffer>();
        let device = thread::spawn(move || {
            for mut buffer in posted {
                // SAFETY: the device owns the buffer, and nothing borrows it.
                unsafe { buffer.base.write_bytes(0xAB, 16) };
                buffer.set_filled(16);
                complete.send(buffer).expect("the test waits for it");
            }
        });
        post.send(buffer).expect("the device runs");
        let buffer = completed.recv().expect("the device answers");
        assert_eq!(buffer.filled(), [0xAB; 16]);
        drop(post);
        device.join().expect("the device does not panic");
    }

    #[test]
    fn frozen_views_share_and_the_last_one_gives_the_buffer_back() {
        let (slab, _) = slab(PAGE);
        let mut buffer = slab.into_buffer();
        buffer.fill_from(b"hello, world");
        let all = buffer.freeze();
        let world = all.slice(7, 5);
        assert_eq!(world.bytes(), b"world");
        assert_eq!(world.address(), all.address() + 7);
        let all = all.try_into_buffer().expect_err("a view is left");
        drop(world);
        assert_eq!(all.try_into_buffer().expect("the last view").filled(), b"hello, world");
    }

    #[test]
    fn exposed_memory_is_read_while_a_peer_writes_it() {
        let (registration, deregistered) = registration(true);
        let memory = Memory::allocate(PAGE).expect("one page");
        let exposed = Arc::new(Exposed::new(memory, registration));
        let peer = Arc::clone(&exposed);
        let writer = thread::spawn(move || peer.write(100, &[5; 64]));
        let mut seen = [0; 64];
        exposed.read(100, &mut seen);
        assert!(seen.iter().all(|&byte| byte == 0 || byte == 5));
        writer.join().expect("the writer does not panic");
        exposed.read(100, &mut seen);
        assert_eq!(seen, [5; 64]);
        drop(exposed);
        assert!(deregistered.load(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "byte 4096 of 4096")]
    fn exposed_memory_has_an_end() {
        let (registration, _) = registration(true);
        let memory = Memory::allocate(PAGE).expect("one page");
        Exposed::new(memory, registration).read(PAGE - 1, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "content of 4097 bytes in a buffer of 4096")]
    fn content_beyond_the_capacity_is_refused() {
        let (slab, _) = slab(PAGE);
        slab.into_buffer().set_filled(PAGE + 1);
    }
}
