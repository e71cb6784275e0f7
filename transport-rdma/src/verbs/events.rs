//! What a device reports outside any work request.
//!
//! Owns nothing. Invariant: an event is acknowledged before its translation is returned, so destroying the object it
//! names never waits for us. Never follows a pointer after the acknowledgement.
#![expect(unsafe_code, reason = "foreign calls")]

use std::io;
use std::mem::MaybeUninit;

use super::device::Context;
use super::error::VerbsError;
use super::ffi::*;

/// An event with the object it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// About the queue pair of this number.
    QueuePair {
        /// 24 bits.
        number: u32,
        /// What happened.
        what: QueuePairEvent,
    },
    /// A completion queue overran or broke.
    CompletionQueueFailed {
        /// See [`CompletionQueue::number`](super::CompletionQueue::number).
        number: u32,
    },
    /// The shared receive queue broke.
    SharedReceiveFailed,
    /// The shared receive queue fell below its limit.
    SharedReceiveLow,
    /// The port went up.
    PortUp(u8),
    /// The port went down.
    PortDown(u8),
    /// The port's address table changed.
    AddressesChanged(u8),
    /// The device is unusable.
    DeviceFailed,
    /// A kind that this version does not know.
    Unknown(u32),
}

/// What happened to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePairEvent {
    /// It is in the error state.
    Failed,
    /// A packet came before it was ready to send.
    Established,
    /// It will consume no more receives of its shared queue.
    LastReceiveConsumed,
}

impl Context {
    /// Takes and acknowledges one waiting event; `None` when there is none.
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut raw = MaybeUninit::<ibv_async_event>::zeroed();
        let next = self.library.ibv_get_async_event;
        // SAFETY: the context is open and the struct writable.
        let code = unsafe { next(self.raw.as_ptr(), raw.as_mut_ptr()) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(VerbsError::new("ibv_get_async_event", self.name(), error)),
            };
        }
        // SAFETY: the library has filled the struct.
        let mut raw = unsafe { raw.assume_init() };
        let event = translate(&raw);
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&mut raw) };
        Ok(Some(event))
    }
}

fn translate(raw: &ibv_async_event) -> AsyncEvent {
    let queue_pair = |what| {
        let qp = raw.element.cast::<ibv_qp>();
        // SAFETY: for these kinds the element is a queue pair, and destroying it waits for our acknowledgement.
        let number = unsafe { (*qp).qp_num };
        AsyncEvent::QueuePair { number, what }
    };
    // The port number is an `int` in the same union: on a little-endian machine the low bytes of the pointer.
    let port = raw.element as usize as u8;
    match raw.event_type {
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            queue_pair(QueuePairEvent::Failed)
        }
        IBV_EVENT_COMM_EST => queue_pair(QueuePairEvent::Established),
        IBV_EVENT_QP_LAST_WQE_REACHED => queue_pair(QueuePairEvent::LastReceiveConsumed),
        IBV_EVENT_CQ_ERR => {
            let cq = raw.element.cast::<ibv_cq>();
            // SAFETY: for this kind the element is a completion queue, and destroying it waits for our acknowledgement.
            let number = unsafe { (*cq).cq_context } as usize as u32;
            AsyncEvent::CompletionQueueFailed { number }
        }
        IBV_EVENT_SRQ_ERR => AsyncEvent::SharedReceiveFailed,
        IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SharedReceiveLow,
        IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFailed,
        IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp(port),
        IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
        IBV_EVENT_GID_CHANGE => AsyncEvent::AddressesChanged(port),
        other => AsyncEvent::Unknown(other),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn unknown_events_keep_their_number_and_ports_are_read_from_the_union() {
        let event = |element: usize, event_type| {
            translate(&ibv_async_event { element: ptr::without_provenance_mut(element), event_type })
        };
        assert_eq!(event(2, IBV_EVENT_PORT_ERR), AsyncEvent::PortDown(2));
        assert_eq!(event(0, 12345), AsyncEvent::Unknown(12345));
    }
}
