//! Calls any gRPC server: what begins calls over a connection of HTTP/2.
//!
//! Owns [`connect`], [`Caller`] and the client's side of a call. Invariants: no more calls are handed to hyper than the
//! server allows at once, so that hyper queues none; a call that is dropped is reset; one that the server never looked at
//! is reported as such. Never: redials; a channel does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
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
use tokio::time::Sleep;
use tonic::Status;

use super::headers::{ReplyHead, over, received_end, received_reply, request_head};
use super::outgoing::{Outgoing, Sending, Stream, register};
use super::peer::{Heard, Peer, Place};
use super::status::{failure, reply_failed};
use super::{MAX_FRAME, call_window, connection_window};
use crate::options::Options;
use crate::wire::{FrameWatch, Wire};

/// What the four pseudo-headers of a request count without its path and host, in bytes.
const REQUEST_LINE: usize = 165;

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
    let peer = Peer::new();
    let watching = Arc::clone(&peer);
    let watch = FrameWatch::new(move |sign| watching.note(sign));
    let wire = Wire::new(Bytes::new(), io, Some(watch));
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
        ending.ended(status);
    });
    match peer.greeting().await {
        Heard::Http2 => {}
        Heard::Other(first) => return Err(ConnectError::NotHttp2(first)),
        Heard::Nothing => return Err(ConnectError::Closed),
    }
    let budget = usize::try_from(limits.receive_budget).unwrap_or(usize::MAX);
    let acceptance = Acceptance {
        max_message: limits.max_message as usize,
        compressed: |_| Status::internal("the server sent a compressed message, which nobody asked for"),
        budget: Some(Arc::new(Budget::new(budget))),
    };
    Ok(Caller { sender, peer, authority, acceptance, info })
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
        let lost = || Status::unavailable("the connection was closed");
        // hyper may have given the connection up a moment before anybody was told why.
        self.peer.closed().cloned().or_else(|| self.sender.is_closed().then(lost))
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
        let Some(place) = self.peer.place() else { return Err(StartError::Busy) };
        let uri = self.uri(call.head.path)?;
        let headers = request_head(call.head.metadata, call.head.timeout);
        let limit = self.peer.max_headers();
        let line = REQUEST_LINE + call.head.path.len() + self.authority.as_str().len();
        if let Some(len) = over(&headers, line, limit) {
            return Err(StartError::Failed(SendError::HeadTooLarge { len, limit }.status()));
        }
        let mut outgoing = Outgoing::new();
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
            reader: None,
            acceptance: Acceptance {
                max_message: self.acceptance.max_message.min(call.max_reply),
                ..self.acceptance.clone()
            },
            _place: Some(place),
        };
        let stream = Stream::new(outgoing, half);
        let mut request = Request::new(Sending(Arc::clone(&stream)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        // hyper begins with it when its task is next polled, whether or not anybody waits for the response.
        let response = self.sender.clone().try_send_request(request);
        stream.rest().phase = Phase::Waiting(Box::pin(response));
        Ok(Call::new(CallRef::new(stream, THIS)))
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(self.peer.until_free())
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
    /// The task that waits for the reply.
    reader: Option<Waker>,
    acceptance: Acceptance,
    _place: Option<Place>,
}

/// How far the reply is.
#[expect(
    clippy::large_enum_variant,
    reason = "every call comes to the largest, which a box would make dearer"
)]
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
        let (phase, reader) = {
            let mut half = self.rest();
            if matches!(half.phase, Phase::Over) && status.is_some() {
                return;
            }
            let left = status.map_or(Phase::Over, Phase::Ended);
            let phase = std::mem::replace(&mut half.phase, left);
            half.timer = None;
            half._place = None;
            (phase, half.reader.take())
        };
        drop(phase);
        let woken = {
            let mut outgoing = self.outgoing();
            outgoing.reset();
            [reader, outgoing.take_reader(), outgoing.take_observer()]
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
                Poll::Pending => {
                    register(&mut half.reader, cx.waker());
                    half.poll_deadline(cx)
                }
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
