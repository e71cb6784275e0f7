//! Which NIC an asynchronous event goes to: a device has one queue of events for all.
//!
//! Owns a mailbox for each NIC. Invariants: an event about a queue pair or a completion queue reaches the NIC that has
//! it, or nobody; every other event reaches every NIC; wakers are called after the lock was released.
//! A number that the device uses again is never confused: taking an event and looking up its number are one step, and
//! a NIC withdraws the number before it destroys the object, whose events the kernel then drops.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::device::Context;
use super::error::VerbsError;
use super::events::{AsyncEvent, QueuePairEvent};
use crate::mailbox::Mailbox;
use crate::nic::{Event, QueuePairId};

/// How many events one call takes from the device; the rest waits for the next call.
const EVENTS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct EventRouter {
    routes: Mutex<Routes>,
}

#[derive(Default)]
struct Routes {
    /// By the number of its completion queue.
    nics: BTreeMap<u32, Recipient>,
    /// By the number that peers use: the NIC, and its name of the queue pair.
    queue_pairs: BTreeMap<u32, (u32, QueuePairId)>,
}

#[derive(Default)]
struct Recipient {
    mailbox: Mailbox,
    waker: Option<Waker>,
}

impl EventRouter {
    pub(super) fn add_nic(&self, nic: u32) {
        self.lock().nics.insert(nic, Recipient::default());
    }

    /// Forgets a NIC and its queue pairs.
    pub(super) fn remove_nic(&self, nic: u32) {
        let mut routes = self.lock();
        routes.queue_pairs.retain(|_, (owner, _)| *owner != nic);
        let removed = routes.nics.remove(&nic);
        drop(routes);
        // A waker may do anything when it is dropped.
        drop(removed);
    }

    pub(super) fn add_queue_pair(&self, number: u32, nic: u32, id: QueuePairId) {
        self.lock().queue_pairs.insert(number, (nic, id));
    }

    pub(super) fn remove_queue_pair(&self, number: u32) {
        self.lock().queue_pairs.remove(&number);
    }

    pub(super) fn set_waker(&self, nic: u32, waker: Option<Waker>) {
        let mut routes = self.lock();
        let recipient = routes.nics.get_mut(&nic);
        let old = recipient.map(|recipient| std::mem::replace(&mut recipient.waker, waker));
        drop(routes);
        drop(old);
    }

    /// Moves events from the device to the mailboxes, and wakes their owners but for `caller`. `true` when there may be
    /// more.
    pub(super) fn route(&self, context: &Context, caller: Option<u32>) -> Result<bool, VerbsError> {
        let mut woken = Vec::new();
        let mut routes = self.lock();
        let mut outcome = Ok(true);
        for _ in 0..EVENTS_MAX {
            match context.take_event() {
                Ok(Some(event)) => routes.put(event, caller, &mut woken),
                Ok(None) => {
                    outcome = Ok(false);
                    break;
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        drop(routes);
        woken.into_iter().for_each(Waker::wake);
        outcome
    }

    /// Appends what has come for a NIC.
    pub(super) fn take(&self, nic: u32, into: &mut Vec<Event>) {
        if let Some(recipient) = self.lock().nics.get_mut(&nic) {
            recipient.mailbox.take(into);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        // No code panics while it holds the lock, so the routes are whole even if the flag says otherwise.
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routes {
    fn put(&mut self, event: AsyncEvent, caller: Option<u32>, woken: &mut Vec<Waker>) {
        let (only, event) = match event {
            AsyncEvent::QueuePair { number, what } => {
                let Some(&(nic, id)) = self.queue_pairs.get(&number) else { return };
                let event = match what {
                    QueuePairEvent::Failed => Event::QueuePairFailed(id),
                    QueuePairEvent::Established => Event::Established(id),
                    QueuePairEvent::LastReceiveConsumed => Event::LastReceiveConsumed(id),
                };
                (Some(nic), event)
            }
            AsyncEvent::CompletionQueueFailed { number } => (Some(number), Event::CompletionQueueFailed),
            AsyncEvent::SharedReceiveFailed => (None, Event::SharedReceiveFailed),
            AsyncEvent::SharedReceiveLow => (None, Event::SharedReceiveLow),
            AsyncEvent::PortUp(port) => (None, Event::PortUp(port)),
            AsyncEvent::PortDown(port) => (None, Event::PortDown(port)),
            AsyncEvent::AddressesChanged(port) => (None, Event::AddressesChanged(port)),
            AsyncEvent::DeviceFailed => (None, Event::DeviceFailed),
            AsyncEvent::Unknown(code) => (None, Event::Unknown(code)),
        };
        for (&nic, recipient) in &mut self.nics {
            if only.is_none_or(|only| only == nic) {
                recipient.mailbox.put(event);
                woken.extend(recipient.waker.clone().filter(|_| caller != Some(nic)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn put(router: &EventRouter, event: AsyncEvent, caller: Option<u32>) {
        let mut woken = Vec::new();
        router.lock().put(event, caller, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    fn taken(router: &EventRouter, nic: u32) -> Vec<Event> {
        let mut events = Vec::new();
        router.take(nic, &mut events);
        events
    }

    #[test]
    fn an_event_reaches_whom_it_concerns() {
        let router = EventRouter::default();
        let failed = |number| AsyncEvent::QueuePair { number, what: QueuePairEvent::Failed };
        [7, 8].into_iter().for_each(|nic| router.add_nic(nic));
        // Two NICs may call their queue pairs the same.
        router.add_queue_pair(100, 7, QueuePairId(0));
        router.add_queue_pair(101, 8, QueuePairId(0));
        put(&router, failed(101), None);
        put(&router, failed(999), None);
        put(&router, AsyncEvent::CompletionQueueFailed { number: 7 }, None);
        put(&router, AsyncEvent::PortDown(1), None);
        assert_eq!(taken(&router, 7), [Event::CompletionQueueFailed, Event::PortDown(1)]);
        assert_eq!(taken(&router, 8), [Event::QueuePairFailed(QueuePairId(0)), Event::PortDown(1)]);
        router.remove_nic(8);
        router.add_nic(9);
        router.add_queue_pair(100, 9, QueuePairId(5));
        put(&router, failed(101), None);
        put(&router, failed(100), None);
        assert_eq!(taken(&router, 9), [Event::QueuePairFailed(QueuePairId(5))]);
        router.remove_queue_pair(100);
        put(&router, failed(100), None);
        assert_eq!((taken(&router, 7), taken(&router, 8), taken(&router, 9)), (vec![], vec![], vec![]));
    }

    #[test]
    fn others_are_woken_and_the_caller_is_not() {
        let router = EventRouter::default();
        let counts = [7, 8].map(|nic| {
            let count = Arc::new(Count::default());
            router.add_nic(nic);
            router.set_waker(nic, Some(Arc::clone(&count).into()));
            count
        });
        put(&router, AsyncEvent::DeviceFailed, Some(7));
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
        put(&router, AsyncEvent::DeviceFailed, None);
        router.set_waker(8, None);
        put(&router, AsyncEvent::DeviceFailed, None);
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [2, 2]);
    }
}
