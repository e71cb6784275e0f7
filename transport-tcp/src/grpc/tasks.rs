//! The tasks that hyper runs for a client's calls.
//!
//! Owns [`Tasks`], which spawns them, and how a call learns which of them sends its request. hyper looks at nothing of a
//! call while a part of its request waits for the server's window, once the reply has begun: one that is given up then
//! would stay open on both sides, for as long as its connection. Ending the task resets the stream. Invariant: a call knows
//! the task that sends its request and no other.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Weak;

use hyper::rt::Executor;
use tokio::task::AbortHandle;

/// What is sent by a task.
pub(super) trait Sent: Send + Sync {
    /// The task that sends it from here on.
    fn sent_by(&self, task: AbortHandle);
}

thread_local! {
    /// The request that hyper has looked at for the first time. When that does not end it, a task for the rest of it is what
    /// hyper spawns next, on the same thread; when it does, hyper drops the request before it spawns anything.
    static BEGUN: RefCell<Option<Weak<dyn Sent>>> = const { RefCell::new(None) };
}

/// hyper looks at a request for the first time.
pub(super) fn begins(request: Weak<dyn Sent>) {
    BEGUN.set(Some(request));
}

/// hyper has dropped a request.
pub(super) fn is_over() {
    // A thread that ends has nothing to forget.
    let _ = BEGUN.try_with(RefCell::take);
}

/// Spawns hyper's tasks.
#[derive(Clone, Copy)]
pub(super) struct Tasks;

impl<F> Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        let request = BEGUN.take().and_then(|request| request.upgrade());
        let task = tokio::spawn(future);
        if let Some(request) = request {
            request.sent_by(task.abort_handle());
        }
    }
}
