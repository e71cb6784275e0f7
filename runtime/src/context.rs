//! What a handler can know about its call beside the request.
//!
//! Owns [`CallContext`], which a handler can ask for, and [`ConnectionInfo`], shared by all calls of a connection.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::deadline::Deadline;

/// Where a connection leads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Endpoint {
    /// An internet address.
    Internet(SocketAddr),
    /// A Unix socket. The path of a client's end is usually empty.
    Unix(String),
    /// The same process.
    Local,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{path}"),
            Self::Local => f.write_str("local"),
        }
    }
}

/// What is known of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The link that carries it: `tcp`, `unix`, `loopback`.
    pub link: &'static str,
    /// The other side.
    pub peer: Endpoint,
}

/// What is known of a call. A handler finds its own by [`CallContext::current`].
///
/// ```
/// # use byway_runtime::CallContext;
/// # async fn handler() {
/// let left = CallContext::current().and_then(|call| call.deadline()).map(|deadline| deadline.remaining());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CallContext {
    deadline: Option<Deadline>,
    connection: Arc<ConnectionInfo>,
}

thread_local! {
    static CURRENT: RefCell<Option<CallContext>> = const { RefCell::new(None) };
}

impl CallContext {
    /// The call whose handler is being polled, or the stream of its replies.
    ///
    /// It is not put into `request.extensions()`, where it would cost more than the rest of a small call. Like a tokio
    /// task-local it does not follow into tasks that a handler spawns: take it along. A service behind
    /// `add_tower_service` finds it in the extensions of its HTTP request too.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub(crate) fn new(deadline: Option<Deadline>, connection: &Arc<ConnectionInfo>) -> Self {
        Self { deadline, connection: Arc::clone(connection) }
    }

    /// The context of the next call over `connection`, made of the last call's where that saves a reference.
    pub(crate) fn renew(
        last: Option<Self>,
        deadline: Option<Deadline>,
        connection: &Arc<ConnectionInfo>,
    ) -> Self {
        match last {
            Some(last) if Arc::ptr_eq(&last.connection, connection) => Self { deadline, ..last },
            _ => Self::new(deadline, connection),
        }
    }

    /// When the caller gives up. Pass what remains of it on to the calls that this one makes.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// The connection that the call came by.
    pub fn connection(&self) -> &ConnectionInfo {
        &self.connection
    }

    /// Runs `work`, which must not unwind, with `call` as the current call.
    pub(crate) fn scope<R>(call: &mut Option<Self>, work: impl FnOnce() -> R) -> R {
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, call));
        let result = work();
        CURRENT.with_borrow_mut(|current| std::mem::swap(current, call));
        result
    }
}
