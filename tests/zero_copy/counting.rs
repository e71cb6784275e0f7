//! Counts the allocations of each thread, and the large ones among them.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; this one forwards to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Size of the buffer that small frames and the beginnings of large ones are read to. One is replaced now and then, when
/// frames in it are still held; it is counted apart.
const READ_BUFFER: usize = 64 << 10;

thread_local! {
    static COUNTS: Cell<Allocations> = const { Cell::new(Allocations { all: 0, buffers: 0, larger: 0 }) };
}

/// How often memory was allocated or grown.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocations {
    pub(crate) all: usize,
    /// Of the size of a read buffer.
    pub(crate) buffers: usize,
    /// Larger.
    pub(crate) larger: usize,
}

impl Allocations {
    /// Those of this thread, so far.
    pub(crate) fn of_this_thread() -> Self {
        COUNTS.get()
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            all: self.all - before.all,
            buffers: self.buffers - before.buffers,
            larger: self.larger - before.larger,
        }
    }
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(size: usize) {
    // A thread that is ending allocates nothing that is measured.
    let _ = COUNTS.try_with(|counts| {
        let mut all = counts.get();
        all.all += 1;
        if size == READ_BUFFER {
            all.buffers += 1
        } else if size > READ_BUFFER {
            all.larger += 1
        }
        counts.set(all);
    });
}

// SAFETY: every method forwards to the system's allocator, which keeps the contract; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same; `memory` came from the system.
        unsafe { System.dealloc(memory, layout) }
    }
}
