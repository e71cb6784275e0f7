//! What a handler can know about its call beside the request.
//!
//! Owns [`CallContext`], found in `request.extensions()`, and [`ConnectionInfo`], shared by all calls of a connection.

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

/// What is known of a call. A handler finds it in `request.extensions()`.
///
/// ```
/// # use byway_runtime::CallContext;
/// # fn handler(request: tonic::Request<()>) {
/// let left = request.extensions().get::<CallContext>().and_then(|call| call.deadline()).map(|at| at.remaining());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CallContext {
    pub(crate) deadline: Option<Deadline>,
    pub(crate) connection: Arc<ConnectionInfo>,
}

impl CallContext {
    /// What a transport knows of a call.
    pub fn new(deadline: Option<Deadline>, connection: Arc<ConnectionInfo>) -> Self {
        Self { deadline, connection }
    }

    /// When the caller gives up. Pass what remains of it on to the calls that this one makes.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// The connection that the call came by.
    pub fn connection(&self) -> &ConnectionInfo {
        &self.connection
    }
}
