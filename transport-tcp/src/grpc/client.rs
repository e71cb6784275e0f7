//! Calls any gRPC server: what begins calls over a connection of HTTP/2.
//!
//! Owns [`connect`], [`Caller`] and the client's side of a call. Invariants: no more calls are handed to hyper than the
//! server allows at once, so that hyper queues none; a call that is dropped is reset; one that the server never looked at
//! is reported as such. Never: redials; a channel does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use byway_runtime::framing::{Acceptance, Budget, Messages};
use byway_runtime::session::CallId;
use byway_runtime::{
    Call, CallRef, Carrier, ConnectionInfo, Deadline, End, Inbound, Invoke, NewCall, Part, ReadyFuture,
    SendError, StartError,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};
use tokio::time::Sleep;
use tonic::Status;

use super::headers::{ReplyHead, received_end, received_reply, request_head};
use super::outgoing::{Outgoing, Sending, Stream};
use super::status::{failure, reply_failed};
use super::{MAX_FRAME, call_window, connection_window};
use crate::options::Options;
use crate::wire::{FrameWatch, Sign, Wire};

/// Calls that are open at once where the server sets no limit.
const MAX_CALLS: usize = 65_535;

/// Servers of gRPC close connections on which they are asked for a sign of life more often than this.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(300);

/// The only call of its carrier.
const THIS: CallId = CallId(0);

/// Why a stream did not become a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The stream failed.
    Http2(hyper::Error),
    /// The peer closed the stream before it said anything.
    Closed,
    /// The peer answered with something else; these are its first bytes.
    NotHttp2([u8; 9]),
    /// The name of the server cannot be one of HTTP.
    Authority(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http2(error) => write!(f, "the connection failed: {}", failure(error).status.message()),
            Self::Closed => f.write_str("the peer closed the connection instead of speaking HTTP/2"),
            Self::NotHttp2(first) => {
                write!(f, "the peer does not speak HTTP/2: it answered \"{}\"", first.escape_ascii())
            }
            Self::Authority(name) => write!(f, "\"{name}\" cannot be named in an HTTP request"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http2(error) => Some(error),
            Self::Closed | Self::NotHttp2(_) | Self::Authority(_) => None,
        }
    }
}

/// Connects over a stream, and waits until the peer has said that it speaks HTTP/2. `authority` is what requests name
/// their server by. The connection is driven by tasks until it is closed.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect<S>(
    io: S,
    authority: &str,
    info: Arc<ConnectionInfo>,
    options: Options,
) -> Result<Caller, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Options { limits, keepalive } = options;
    let authority: Authority =
        authority.parse().map_err(|_| ConnectError::Authority(authority.to_owned()))?;
    let (heard, mut hears) = watch::channel(None);
    let peer = Arc::new(Peer {
        places: Arc::new(Semaphore::new(0)),
        allowed: AtomicUsize::new(0),
        closed: OnceLock::new(),
        heard,
    });
    let watching = Arc::clone(&peer);
    let wire = Wire::watched(io, FrameWatch::new(move |sign| watching.note(sign)));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(call_window(&limits))
        .initial_connection_window_size(connection_window(&limits))
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(u32::from(limits.max_head))
        .keep_alive_interval(keepalive.interval.max(LEAST_KEEPALIVE))
        .keep_alive_timeout(keepalive.timeout);
    let (sender, connection) = builder.handshake(TokioIo::new(wire)).await.map_err(ConnectError::Http2)?;
    let ending = Arc::clone(&peer);
    tokio::spawn(async move {
        let status = match connection.await {
            Ok(()) => Status::unavailable("the connection was closed"),
            Err(error) => failure(&error).status,
        };
        ending.close(status);
        ending.heard.send_if_modified(|heard| {
            let is_first = heard.is_none();
            heard.get_or_insert(Heard::Nothing);
            is_first
        });
    });
    let heard = hears.wait_for(Option::is_some).await.map(|heard| *heard);
    match heard {
        Ok(Some(Heard::Http2)) => {}
        Ok(Some(Heard::Other(first))) => return Err(ConnectError::NotHttp2(first)),
        Ok(Some(Heard::Nothing) | None) | Err(_) => return Err(ConnectError::Closed),
    }
    let budget = usize::try_from(limits.receive_budget).unwrap_or(usize::MAX);
    let acceptance = Acceptance {
        max_message: limits.max_message as usize,
        compressed: |_| Status::internal("the server sent a compressed message, which nobody asked for"),
        budget: Some(Arc::new(Budget::new(budget))),
    };
    Ok(Caller { sender, peer, authority, acceptance, info })
}

/// What is known of the server.
struct Peer {
    /// Calls that may begin.
    places: Arc<Semaphore>,
    /// Calls that the server allows at once.
    allowed: AtomicUsize,
    /// Why no calls may begin any more.
    closed: OnceLock<Status>,
    /// What it said first.
    heard: watch::Sender<Option<Heard>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Http2,
    Other([u8; 9]),
    Nothing,
}

impl Peer {
    fn note(&self, sign: Sign) {
        match sign {
            Sign::NotHttp2(first) => {
                self.heard.send_replace(Some(Heard::Other(first)));
            }
            Sign::GoAway(code, text) => {
                let code = h2::Reason::from(code);
                let text = if text.is_empty() { text } else { format!(" ({text})") };
                let what = format!("the server takes no more calls on this connection: {code}{text}");
                self.close(Status::unavailable(what));
            }
            Sign::Settings(allowed) => {
                let first = self.heard.borrow().is_none();
                if let Some(allowed) = allowed {
                    self.allow((allowed as usize).min(MAX_CALLS));
                } else if first {
                    self.allow(MAX_CALLS);
                }
                if first {
                    self.heard.send_replace(Some(Heard::Http2));
                }
            }
        }
    }

    fn allow(&self, allowed: usize) {
        let before = self.allowed.swap(allowed, Ordering::Relaxed);
        if allowed > before {
            self.places.add_permits(allowed - before);
        } else {
            // Places that are taken now are missed when they come back; until then hyper keeps to the limit.
            let forgotten = self.places.forget_permits(before - allowed);
            self.allowed.store(before - forgotten, Ordering::Relaxed);
        }
    }

    fn close(&self, status: Status) {
        let _ = self.closed.set(status);
        self.places.close();
    }

    fn closed(&self) -> Status {
        let lost = || Status::unavailable("the connection was closed");
        self.closed.get().cloned().unwrap_or_else(lost)
    }
}

/// A connection to a gRPC server, as what begins calls. When it is dropped, the calls that are open go on and the
/// connection closes after the last one.
pub struct Caller {
    sender: SendRequest<Sending<ClientHalf>>,
    peer: Arc<Peer>,
    authority: Authority,
    acceptance: Acceptance,
    info: Arc<ConnectionInfo>,
}

impl Caller {
    /// Where the connection leads and how.
    pub fn info(&self) -> &Arc<ConnectionInfo> {
        &self.info
    }

    /// Why the connection takes no new calls, if so.
    pub fn closed(&self) -> Option<Status> {
        self.peer.closed.get().cloned()
    }

    fn uri(&self, path: &str) -> Result<Uri, StartError> {
        if !path.starts_with('/') {
            return Err(StartError::Failed(SendError::NoPath.status()));
        }
        let path = PathAndQuery::try_from(path).map_err(|error| {
            StartError::Failed(Status::invalid_argument(format!("{path} is not the path of a call: {error}")))
        })?;
        let parts =
            Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path);
        parts.build().map_err(|error| StartError::Failed(Status::internal(error.to_string())))
    }
}

impl Invoke for Caller {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        if let Some(status) = self.closed() {
            return Err(StartError::Closed(status));
        }
        let place = match Arc::clone(&self.peer.places).try_acquire_owned() {
            Ok(place) => place,
            Err(TryAcquireError::NoPermits) => return Err(StartError::Busy),
            Err(TryAcquireError::Closed) => return Err(StartError::Closed(self.peer.closed())),
        };
        let uri = self.uri(call.head.path)?;
        let mut outgoing = Outgoing::default();
        if let Some(message) = call.message {
            let len = message.encoded_len();
            if u32::try_from(len).is_err() {
                let limit = u32::MAX as usize;
                return Err(StartError::Failed(SendError::TooLarge { len, limit }.status()));
            }
            outgoing.push(message, len);
        }
        if call.end {
            outgoing.end(None);
        }
        let half = ClientHalf {
            phase: Phase::Over,
            deadline: call.deadline,
            timer: None,
            acceptance: self.acceptance.clone(),
            _place: Some(place),
        };
        let stream = Stream::new(outgoing, half);
        let mut request = Request::new(Sending(Arc::clone(&stream)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        *request.headers_mut() = request_head(call.head.metadata, call.head.timeout);
        // hyper begins with it when its task is next polled, whether or not anybody waits for the response.
        let response = self.sender.clone().try_send_request(request);
        stream.rest().phase = Phase::Waiting(Box::pin(response));
        Ok(Call::new(CallRef::new(stream, THIS)))
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(async move {
            match self.peer.places.acquire().await {
                Ok(_) => Ok(()),
                Err(_) => Err(self.peer.closed()),
            }
        })
    }
}

// ---- One call ----

type ResponseFuture = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Sending<ClientHalf>>>>> + Send>,
>;

/// What a client keeps of a call beside what it sends.
struct ClientHalf {
    phase: Phase,
    deadline: Option<Deadline>,
    /// Runs out at the deadline, once somebody waits.
    timer: Option<Pin<Box<Sleep>>>,
    acceptance: Acceptance,
    _place: Option<OwnedSemaphorePermit>,
}

/// How far the reply is.
enum Phase {
    /// Nothing has come.
    Waiting(ResponseFuture),
    /// It has begun.
    Begun(Messages<Incoming>),
    /// It has ended for this side, which is still to be told.
    Ended(Status),
    /// Nothing follows.
    Over,
}

impl ClientHalf {
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        let arrived = match &mut self.phase {
            Phase::Waiting(response) => match ready!(response.as_mut().poll(cx)) {
                Ok(response) => self.begun(response, cx),
                Err(error) => Inbound { end: Some(not_answered(error)), ..Inbound::default() },
            },
            Phase::Begun(messages) => ready!(poll_messages(messages, cx)),
            Phase::Ended(status) => {
                let status = std::mem::replace(status, Status::ok(""));
                Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() }
            }
            Phase::Over => {
                let status = Status::cancelled("the call is over");
                Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() }
            }
        };
        if arrived.end.is_some() {
            self.close();
        }
        Poll::Ready(arrived)
    }

    fn begun(&mut self, response: Response<Incoming>, cx: &mut Context<'_>) -> Inbound {
        let (parts, body) = response.into_parts();
        match received_reply(parts.status, parts.headers) {
            ReplyHead::Ended(outcome) => Inbound { end: Some(End::Outcome(outcome)), ..Inbound::default() },
            ReplyHead::Begun(metadata) => {
                let mut messages = Messages::new(body, self.acceptance.clone(), reply_failed);
                // The reply to a unary call often comes as a whole.
                let arrived = match poll_messages(&mut messages, cx) {
                    Poll::Ready(arrived) => arrived,
                    Poll::Pending => Inbound::default(),
                };
                self.phase = Phase::Begun(messages);
                Inbound { head: Some(metadata), ..arrived }
            }
        }
    }

    /// Whether the deadline has passed; until then it wakes the task.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.at())));
        timer.as_mut().poll(cx)
    }

    fn close(&mut self) {
        self.phase = Phase::Over;
        self.timer = None;
        self._place = None;
    }
}

/// The next message, and the end if it is there.
fn poll_messages(messages: &mut Messages<Incoming>, cx: &mut Context<'_>) -> Poll<Inbound> {
    let message = match ready!(messages.poll_message(cx)) {
        Ok(message) => message,
        Err(status) => {
            return Poll::Ready(Inbound { end: Some(End::Outcome(Err(status))), ..Inbound::default() });
        }
    };
    let end = if message.is_none() { Some(trailers_of(messages)) } else { None };
    Poll::Ready(Inbound { head: None, message, end })
}

fn trailers_of(messages: &mut Messages<Incoming>) -> End {
    End::Outcome(received_end(messages.take_trailers().unwrap_or_default()))
}

fn not_answered(error: TrySendError<Request<Sending<ClientHalf>>>) -> End {
    let never_sent = error.message().is_some();
    let lost = failure(error.error());
    if never_sent || lost.never_seen { End::NotSent(lost.status) } else { End::Outcome(Err(lost.status)) }
}

type Calling = Stream<ClientHalf>;

impl Calling {
    /// Gives the call up; `status` is what its reader finds.
    fn give_up(&self, status: Option<Status>) {
        // What hyper holds of the call is dropped without the locks: it takes them itself.
        let phase = {
            let mut half = self.rest();
            if matches!(half.phase, Phase::Over) && status.is_some() {
                return;
            }
            let left = status.map_or(Phase::Over, Phase::Ended);
            let phase = std::mem::replace(&mut half.phase, left);
            half.timer = None;
            half._place = None;
            phase
        };
        drop(phase);
        let woken = {
            let mut outgoing = self.outgoing();
            outgoing.reset();
            [outgoing.take_reader(), outgoing.take_observer()]
        };
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Carrier for Calling {
    fn poll_receive(&self, _: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        let passed = {
            let mut half = self.rest();
            match half.poll_reply(cx) {
                Poll::Ready(arrived) => return Poll::Ready(arrived),
                Poll::Pending => half.poll_deadline(cx),
            }
        };
        ready!(passed);
        self.give_up(None);
        Poll::Ready(Inbound { end: Some(End::Outcome(Err(Deadline::status()))), ..Inbound::default() })
    }

    fn poll_send(&self, _: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return Poll::Ready(Err(SendError::Over));
        }
        if let Some(message) = part.message {
            let len = message.encoded_len();
            if u32::try_from(len).is_err() {
                return Poll::Ready(Err(SendError::TooLarge { len, limit: u32::MAX as usize }));
            }
            if !outgoing.has_room(len, cx.waker()) {
                return Poll::Pending;
            }
            outgoing.push(message, len);
        }
        if part.end.is_some() {
            outgoing.end(None);
        }
        let reader = outgoing.take_reader();
        drop(outgoing);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn poll_over(&self, _: CallId, cx: &mut Context<'_>) -> Poll<()> {
        self.outgoing().poll_closed(cx.waker())
    }

    fn finish(&self, _: CallId, status: &Status) {
        self.give_up(Some(status.clone()));
    }

    fn abandon(&self, _: CallId, _: &Status) {
        self.give_up(None);
    }
}
