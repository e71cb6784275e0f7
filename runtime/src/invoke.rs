//! The seam between policy and what carries a call.
//!
//! Owns [`Invoke`] (begin a call), [`Carrier`] (go on with it) and [`Call`], the handle that both sides hold. Native
//! connections implement them over a session and a link, HTTP/2 over its own streams. Heads, messages and outcomes
//! pass here, never bytes of a protocol. Invariant: a call that is dropped before its end is cancelled, exactly once.
//! Never: knows retries or message types; those live above.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::codec::Encode;
use crate::deadline::Deadline;
use crate::session::{CallId, Metadata, Outcome, RequestHead};

/// A part of a call that arrived. Any of its fields may be there; they apply in their order.
#[derive(Debug, Default)]
pub struct Inbound {
    /// Initial metadata; from a server only, once.
    pub head: Option<Metadata>,
    /// One message.
    pub message: Option<Bytes>,
    /// The end of what the peer sends.
    pub end: Option<End>,
}

/// How the peer's side of a call ended.
#[derive(Debug)]
pub enum End {
    /// To a client: trailers or a status. To a server: `Ok` when the client has sent everything, and a status when it
    /// has gone.
    Outcome(Outcome),
    /// To a client: the call never reached the server, or the server never looked at it. It is safe to send it again.
    NotSent(Status),
}

/// A part of a call to be sent. At least one field is set.
#[derive(Default, Clone, Copy)]
pub struct Part<'a> {
    /// Initial metadata; by a server only, once, before or with the first message.
    pub head: Option<&'a MetadataMap>,
    /// One message.
    pub message: Option<&'a dyn Encode>,
    /// The end of this side. `Ok` with trailers, if any, or a status; a client's is `Ok(None)`.
    pub end: Option<Result<Option<&'a MetadataMap>, &'a Status>>,
}

/// Why a part was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The message is larger than the peer accepts, both in bytes. Nothing was sent, and the call goes on.
    TooLarge {
        /// Its length.
        len: usize,
        /// What the peer accepts.
        limit: usize,
    },
    /// Metadata or the status are larger than the peer accepts, in bytes. Nothing was sent, and the call goes on.
    HeadTooLarge {
        /// Their length.
        len: usize,
        /// What the peer accepts.
        limit: usize,
    },
    /// Metadata have more entries than a peer accepts. Nothing was sent, and the call goes on.
    TooManyEntries {
        /// Their number.
        count: usize,
        /// What every peer accepts.
        limit: usize,
    },
    /// The path of the call does not begin with a slash. Nothing was sent.
    NoPath,
    /// The call is over: cancelled, answered, or lost with its connection.
    Over,
}

impl SendError {
    /// The status for the caller's own side.
    pub fn status(self) -> Status {
        match self {
            Self::TooLarge { len, limit } => Status::resource_exhausted(format!(
                "a message of {len} bytes is larger than the {limit} bytes that the peer accepts"
            )),
            Self::HeadTooLarge { len, limit } => Status::resource_exhausted(format!(
                "metadata and status of {len} bytes are larger than the {limit} bytes that the peer accepts"
            )),
            Self::TooManyEntries { count, limit } => Status::resource_exhausted(format!(
                "metadata of {count} entries are more than the {limit} that a peer accepts"
            )),
            Self::NoPath => {
                Status::invalid_argument("the path of a call begins with a slash: /package.Service/Method")
            }
            Self::Over => Status::cancelled("the call is over"),
        }
    }
}

/// Leaves `waker` in `place`, to be woken from there; one that wakes the same task already stays.
#[inline]
pub fn register(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(known) if known.will_wake(waker) => {}
        _ => *place = Some(waker.clone()),
    }
}

/// What carries calls: operations on the call with a given id.
///
/// One carrier serves many calls, so a call needs no allocation of its own. An id whose call is over stays valid and
/// answers that it is over.
pub trait Carrier: Send + Sync + 'static {
    /// Takes the next part that arrived, or registers the task to be woken when there is one.
    fn poll_receive(&self, id: CallId, cx: &mut Context<'_>) -> Poll<Inbound>;

    /// Sends a part, or registers the task to be woken when there is room for its message.
    ///
    /// # Errors
    /// See [`SendError`].
    fn poll_send(&self, id: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>>;

    /// Says how large a message the reader of a call takes, in bytes, so that a larger one may be refused before it has
    /// come. The reader checks in any case.
    fn limit_messages(&self, _: CallId, _max: usize) {}

    /// Ready once the call is over, whoever ended it. A server learns here that its caller has gone.
    fn poll_over(&self, id: CallId, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends a call with `status` while its owner still holds it: a server sends it, a client cancels the call and its
    /// reader finds `status`.
    fn finish(&self, id: CallId, status: &Status);

    /// Ends a call for its owner, who will not use it again. A client's is cancelled; a server's gets `status`. When
    /// the call is over already, only the owner leaves.
    fn abandon(&self, id: CallId, status: &Status);
}

/// The operations of one call, without the duty to end it.
#[derive(Clone)]
pub struct CallRef {
    carrier: Arc<dyn Carrier>,
    id: CallId,
}

impl CallRef {
    /// The call that `carrier` knows as `id`.
    pub fn new(carrier: Arc<dyn Carrier>, id: CallId) -> Self {
        Self { carrier, id }
    }

    /// See [`Carrier::poll_receive`].
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.carrier.poll_receive(self.id, cx)
    }

    /// Waits for the next part.
    pub async fn receive(&self) -> Inbound {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// See [`Carrier::poll_send`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_send(&self, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        self.carrier.poll_send(self.id, cx, part)
    }

    /// See [`Carrier::poll_over`].
    pub fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.carrier.poll_over(self.id, cx)
    }

    /// See [`Carrier::finish`].
    pub fn finish(&self, status: &Status) {
        self.carrier.finish(self.id, status);
    }
}

impl fmt::Debug for CallRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallRef").field(&self.id).finish()
    }
}

/// What a caller expects of the reply to its call. What carries the call may make use of it; the reader checks in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Largest message, in bytes: a larger one may be refused before it has come.
    pub max_message: usize,
    /// Whether one message is all: then what follows it may be looked at before anybody asks.
    pub single: bool,
}

impl Default for Expected {
    /// Anything.
    fn default() -> Self {
        Self { max_message: usize::MAX, single: false }
    }
}

/// A call that is to begin.
#[derive(Clone, Copy)]
pub struct NewCall<'a> {
    /// What the client says.
    pub head: RequestHead<'a>,
    /// When the call ends with `DEADLINE_EXCEEDED`: `head.timeout` from now. What carries the call sees to it.
    pub deadline: Option<Deadline>,
    /// The first message, where it is known: a unary request is one part.
    pub message: Option<&'a dyn Encode>,
    /// Whether that is everything.
    pub end: bool,
    /// What the caller expects of the reply.
    pub expected: Expected,
    /// The task that the first reply is to wake, which saves its first poll.
    pub waker: Option<&'a Waker>,
}

impl<'a> NewCall<'a> {
    /// A call without deadline, message or end.
    pub fn new(head: RequestHead<'a>) -> Self {
        Self { head, deadline: None, message: None, end: false, expected: Expected::default(), waker: None }
    }
}

/// One call, owned by whoever makes or answers it. Dropping it before its end cancels it.
#[derive(Debug)]
pub struct Call {
    call: CallRef,
    over: bool,
    /// Whether the task that polls next is known to wait already.
    awaited: bool,
}

impl Call {
    /// Takes on the duty to end `call`.
    pub fn new(call: CallRef) -> Self {
        Self { call, over: false, awaited: false }
    }

    /// The same call, begun with the waker of the task that goes on to poll it.
    pub(crate) fn awaited_by(mut self, waker: Option<&Waker>) -> Self {
        self.awaited = waker.is_some();
        self
    }

    /// The operations alone, for a second task. They keep working until this handle is dropped.
    pub fn by_ref(&self) -> CallRef {
        self.call.clone()
    }

    /// See [`Carrier::finish`].
    pub fn finish(&self, status: &Status) {
        self.call.finish(status);
    }

    /// See [`Carrier::limit_messages`].
    pub fn limit_messages(&self, max: usize) {
        self.call.carrier.limit_messages(self.call.id, max);
    }

    /// As a client: takes the next part. The one with an end is the last.
    pub fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        if std::mem::take(&mut self.awaited) {
            return Poll::Pending;
        }
        let part = self.call.poll_receive(cx);
        if let Poll::Ready(Inbound { end: Some(_), .. }) = &part {
            self.over = true;
        }
        part
    }

    /// As a server: takes the next part of the request.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.call.poll_receive(cx)
    }

    /// As a server: sends a part of the reply. A part with an end is the last.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_answer(&mut self, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let sent = self.call.poll_send(cx, part);
        if part.end.is_some() && matches!(sent, Poll::Ready(Ok(()) | Err(SendError::Over))) {
            self.over |= matches!(sent, Poll::Ready(Ok(())));
        }
        sent
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.over {
            let status = if std::thread::panicking() {
                Status::internal("the handler panicked")
            } else {
                Status::internal("the handler dropped the call without an answer")
            };
            self.call.carrier.abandon(self.call.id, &status);
        }
    }
}

/// Why a call could not begin.
#[derive(Debug)]
pub enum StartError {
    /// Not now: wait for [`Invoke::ready`] and try again.
    Busy,
    /// What would carry it takes no new calls, for this reason. Another connection may.
    Closed(Status),
    /// The call itself cannot be sent.
    Failed(Status),
}

/// A future that borrows what it works on.
pub type ReadyFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Status>> + Send + 'a>>;

/// What begins calls: a connection, a channel over many, an interceptor before either.
pub trait Invoke: Send + Sync {
    /// Begins a call.
    ///
    /// # Errors
    /// See [`StartError`]; in every case nothing was sent.
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError>;

    /// Waits until it is worth to [`start`](Self::start) again: for a connection, a free call, room in the link.
    ///
    /// # Errors
    /// The status that calls end with when there is nothing to wait for, such as `UNAVAILABLE`.
    fn ready(&self) -> ReadyFuture<'_>;

    /// How long a call may take whose request names no time-out.
    fn default_timeout(&self) -> Option<std::time::Duration> {
        None
    }
}

impl<I: Invoke + ?Sized> Invoke for Arc<I> {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        (**self).start(call)
    }

    fn ready(&self) -> ReadyFuture<'_> {
        (**self).ready()
    }

    fn default_timeout(&self) -> Option<std::time::Duration> {
        (**self).default_timeout()
    }
}
