//! The wire state of the calls of one connection, without I/O.
//!
//! [`Session`] knows neither sockets nor clocks nor tasks. Its driver puts in what arrives and takes out what to do:
//!
//! 1. [`Session::handle_frame`] for every frame, in the order in which the peer pushed them; a server's may answer
//!    with a call to dispatch. [`Session::handle_landed`] when a body that was [`Later`](crate::link::Body::Later)
//!    is there.
//! 2. Callers and handlers use [`Session::open`], [`Session::poll_send`], [`Session::poll_receive`],
//!    [`Session::poll_over`] and [`Session::abandon`]. Frames go straight into the [`Link`](crate::link::Link) that
//!    is passed in.
//! 3. After any of these, [`Session::take_woken`] holds the tasks to wake, best after the lock was released.
//! 4. [`Session::handle_failure`], once, when the link is over.
//!
//! Invariants, which `tests/` checks against an oracle: every call that was opened ends exactly once; parts of a call
//! arrive in the order in which they were sent; a reader that does not read holds back its own sender only; nothing
//! that a peer sends makes memory grow past the limits.

mod arrivals;
mod callers;
mod error;
mod frame;
mod half;
mod head;
mod hello;
mod slots;
mod state;
mod window;

pub use error::{ConnectionError, Failure, Reset};
pub use frame::{CallId, Flags, Frame, HEADER_LEN, Header, Kind};
pub use head::{Metadata, Outcome, Path, ReceivedHead, RequestHead, is_reserved};
pub use hello::{HELLO_LEN, Hello, HelloError, MAGIC, VERSION};
pub use state::{Event, Incoming, OpenError, Role, Session};
