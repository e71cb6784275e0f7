//! A bounded first-in-first-out queue between calls and the threads that compute.
//!
//! Owns its entries until a thread takes them. Invariants: it never holds more than its capacity; after it was closed
//! nobody waits at it. Never: blocks whoever adds.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

struct State<T> {
    entries: VecDeque<T>,
    is_closed: bool,
}

/// Why an entry was not added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushError<T> {
    Full(T),
    Closed(T),
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let state = State { entries: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    /// Adds an entry of which `takers` threads can each take a part.
    pub(super) fn push(&self, entry: T, takers: usize) -> Result<(), PushError<T>> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(PushError::Closed(entry));
        }
        if state.entries.len() >= self.capacity {
            return Err(PushError::Full(entry));
        }
        state.entries.push_back(entry);
        drop(state);
        match takers {
            0 | 1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
        Ok(())
    }

    /// Waits until `take` finds something among the entries, oldest first, which it removes as it sees fit. `None` once
    /// the queue is closed.
    pub(super) fn take<R>(&self, mut take: impl FnMut(&mut VecDeque<T>) -> Option<R>) -> Option<R> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(taken) = take(&mut state.entries) {
                return Some(taken);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the oldest entry; `None` once the queue is closed.
    pub(super) fn pop(&self) -> Option<T> {
        self.take(VecDeque::pop_front)
    }

    /// Sends everybody who waits away, and drops what is queued.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        self.changed.notify_all();
        drop(entries);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// How many entries are as `is_meant` says.
    pub(super) fn count(&self, mut is_meant: impl FnMut(&T) -> bool) -> usize {
        self.lock().entries.iter().filter(|entry| is_meant(entry)).count()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn entries_leave_in_the_order_in_which_they_came() {
        let queue = Queue::new(3);
        for entry in 1..=3 {
            assert_eq!(queue.push(entry, 1), Ok(()));
        }
        assert_eq!(queue.push(4, 1), Err(PushError::Full(4)), "it is bounded");
        assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(2)));
        assert_eq!(queue.push(5, 1), Ok(()), "there is room again");
        assert_eq!((queue.pop(), queue.pop(), queue.len()), (Some(3), Some(5), 0));
    }

    #[test]
    fn a_waiting_thread_gets_what_comes_and_leaves_when_it_is_closed() {
        let queue = Arc::new(Queue::new(1));
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                while let Some(entry) = queue.pop() {
                    sender.send(entry).expect("the test listens");
                }
            }
        });
        assert_eq!(queue.push("one", 1), Ok(()));
        assert_eq!(receiver.recv(), Ok("one"));
        queue.close();
        waiting.join().expect("no panic");
        assert_eq!(queue.push("two", 1), Err(PushError::Closed("two")));
    }

    #[test]
    fn what_is_queued_when_it_closes_is_dropped() {
        let queue = Queue::new(1);
        let entry = Arc::new(());
        assert_eq!(queue.push(Arc::clone(&entry), 1), Ok(()));
        queue.close();
        assert_eq!((Arc::strong_count(&entry), queue.pop()), (1, None));
    }
}
