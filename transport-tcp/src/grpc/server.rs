//! Answers gRPC clients: a connection of HTTP/2 as calls of byway's dispatch.
//!
//! Owns [`serve`] and the server's side of a call. A handler is polled by the task that hyper runs for its request until
//! the reply begins, and by one of its own from then on; most unary calls never have one. Invariants: every call that
//! was dispatched gets exactly one end; after the drain's time is over nothing of the connection is left running.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::adapter::HttpService;
use byway_runtime::dispatch::{Drain, Inline, Router};
use byway_runtime::framing::{Acceptance, Budget, Messages};
use byway_runtime::output::Segments;
use byway_runtime::session::{CallId, Incoming, Metadata};
use byway_runtime::{Carrier, ConnectionInfo, End, Inbound, Part, SendError};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming as RequestBody;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::headers::{
    ACCEPT_ENCODING, GRPC, IDENTITY, Refusal, is_grpc, over, received_head, reply_end, reply_head,
};
use super::outgoing::{Outgoing, Sending, Stream, register};
use super::status::request_failed;
use super::{MAX_FRAME, call_window, connection_window};
use crate::options::Options;
use crate::web;
use crate::wire::{FrameWatch, Settings, Sign, Wire};

/// How long a connection may take to say its last words once its calls were ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the pseudo-header of a reply counts, in bytes.
const STATUS_LINE: usize = 42;

/// The only call of its carrier.
const THIS: CallId = CallId(0);

/// A connection that is being served, until it is over: why it broke, in words, unless it was closed in good order.
pub type Served = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Serves a connection whose first bytes, the preface of HTTP/2 or a part of it, were read already. Requests that are not
/// gRPC go to `web`. A client whose settings, the second half of its preface, do not come within `settings_timeout` is cut
/// off.
#[expect(clippy::too_many_arguments, reason = "each is of another kind, and this is called in one place")]
pub fn serve<S>(
    io: S,
    first: Bytes,
    info: Arc<ConnectionInfo>,
    options: Options,
    router: Arc<Router>,
    web: Option<Arc<HttpService>>,
    settings_timeout: Duration,
    drain: Drain,
) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Options { limits, keepalive } = options;
    let limits = &limits;
    let shared = Arc::new(Shared {
        router,
        info,
        web,
        acceptance: Acceptance {
            max_message: limits.max_message as usize,
            compressed: unexpected_flag,
            budget: Some(Arc::new(Budget::new(usize::try_from(limits.receive_budget).unwrap_or(usize::MAX)))),
        },
        max_headers: AtomicU32::new(u32::MAX),
        greeted: Notify::new(),
        open: Mutex::default(),
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(call_window(limits))
        .initial_connection_window_size(connection_window(limits))
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(u32::from(limits.max_calls))
        .max_header_list_size(u32::from(limits.max_head))
        .keep_alive_interval(keepalive.interval)
        .keep_alive_timeout(keepalive.timeout);
    let service = {
        let shared = Arc::clone(&shared);
        service_fn(move |request| Arc::clone(&shared).answer(request))
    };
    let watching = Arc::clone(&shared);
    let watch = FrameWatch::after_preface(move |sign| {
        if let Sign::Settings(Settings { headers, .. }) = sign {
            watching.max_headers.store(headers.unwrap_or(u32::MAX), Ordering::Relaxed);
            watching.greeted.notify_one();
        }
    });
    let wire = Wire::new(first, io, Some(watch));
    let connection = builder.serve_connection(TokioIo::new(wire), service);
    Box::pin(async move {
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(|error| words(&error)),
            greeted = tokio::time::timeout(settings_timeout, shared.greeted.notified()) => {
                greeted.map_err(|_| format!("cut off: it sent no settings in {settings_timeout:?}"))?;
            }
        }
        let until = tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(|error| words(&error)),
            until = drain => until,
        };
        connection.as_mut().graceful_shutdown();
        match tokio::time::timeout_at(until, connection.as_mut()).await {
            Ok(ended) => return ended.map_err(|error| words(&error)),
            Err(_) => shared
                .end_calls(&Status::unavailable("the server is shutting down, and the call took too long")),
        }
        // What is left after that is dropped with the connection, and every handler with it.
        match tokio::time::timeout(FAREWELL, connection).await {
            Ok(ended) => ended.map_err(|error| words(&error)),
            Err(_) => Err("the client did not let go of it in time".to_owned()),
        }
    })
}

fn words(error: &hyper::Error) -> String {
    super::status::failure(error).status.message().to_owned()
}

fn unexpected_flag(flag: u8) -> Status {
    match flag {
        1 => Status::internal("a message is compressed, but the request names no grpc-encoding"),
        _ => Status::internal(format!(
            "a message begins with the byte {flag}, which is not a compression flag"
        )),
    }
}

/// What every call of a connection needs.
struct Shared {
    router: Arc<Router>,
    info: Arc<ConnectionInfo>,
    web: Option<Arc<HttpService>>,
    acceptance: Acceptance,
    /// How large the headers of a reply may be, as HTTP/2 counts them.
    max_headers: AtomicU32,
    /// The client has sent its settings.
    greeted: Notify,
    /// Calls that are open, to be ended when the drain's time is over.
    open: Mutex<Slab<Weak<Serving>>>,
}

type Serving = Stream<ServerHalf>;

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Result<Response<Reply>, Infallible> {
        if let Some(web) = &self.web
            && !is_grpc(request.headers())
        {
            return Ok(web::answer(web, request).await.map(Reply::Web));
        }
        let (parts, body) = request.into_parts();
        let head = match received_head(parts) {
            Ok(head) => head,
            Err(Refusal::Grpc(status)) => return Ok(ended(reply_end(Err(&status)))),
            Err(Refusal::Encoding(status)) => {
                let mut response = ended(reply_end(Err(&status)));
                response.headers_mut().insert(ACCEPT_ENCODING, IDENTITY);
                return Ok(response);
            }
            Err(Refusal::Http(status, text)) => {
                let mut response = web::plain(status, text).map(Reply::Web);
                if status == StatusCode::METHOD_NOT_ALLOWED {
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                }
                return Ok(response);
            }
        };
        let messages = Messages::new(body, self.acceptance.clone(), request_failed);
        let ended = messages.is_at_end();
        let max_headers = self.max_headers.load(Ordering::Relaxed) as usize;
        let call = Stream::new(Outgoing::new(), ServerHalf::new(messages, max_headers));
        let _open = OpenCall::note(&self, &call);
        let carrier: Arc<dyn Carrier> = Arc::clone(&call) as Arc<dyn Carrier>;
        let incoming = Incoming { id: THIS, head, message: None, ended };
        let mut running = self.router.dispatch(&carrier, &self.info, incoming, &mut Inline::new());
        drop(carrier);
        // The handler runs here until its reply begins. When the client resets the call, hyper drops all of this.
        let headers = poll_fn(|cx| {
            if let Some(handling) = &mut running
                && Pin::new(handling).poll(cx).is_ready()
            {
                running = None;
            }
            call.rest().poll_answered(cx)
        })
        .await;
        let body = Sending(Arc::clone(&call));
        if let Some(running) = running {
            let open = _open;
            tokio::spawn(async move {
                running.await;
                drop(open);
            });
        }
        let mut response = Response::new(Reply::Call(body));
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Ends every call that is open with `status`.
    fn end_calls(&self, status: &Status) {
        let open: Vec<_> = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.iter().filter_map(|(_, call)| call.upgrade()).collect()
        };
        for call in open {
            call.finish(THIS, status);
        }
    }
}

/// A call that is open, for as long as its handler runs.
struct OpenCall {
    shared: Arc<Shared>,
    key: usize,
}

impl OpenCall {
    fn note(shared: &Arc<Shared>, call: &Arc<Serving>) -> Self {
        let key = shared.open.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::downgrade(call));
        Self { shared: Arc::clone(shared), key }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(self.key);
    }
}

// ---- One call ----

/// What a server keeps of a call beside what it sends.
struct ServerHalf {
    messages: Messages<RequestBody>,
    /// Whether the end of the request, or its failure, was handed over.
    received: bool,
    answer: Answer,
    max_headers: usize,
    /// hyper's task, which waits for the reply to begin.
    waiting: Option<Waker>,
}

/// How far the reply is.
enum Answer {
    Nothing,
    /// Its headers are there, for hyper to take.
    Begun(HeaderMap),
    Taken,
}

impl ServerHalf {
    fn new(messages: Messages<RequestBody>, max_headers: usize) -> Self {
        Self { messages, received: false, answer: Answer::Nothing, max_headers, waiting: None }
    }

    /// # Errors
    /// Headers that are larger than the client accepts.
    fn check(&self, headers: &HeaderMap) -> Result<(), SendError> {
        let limit = self.max_headers;
        over(headers, STATUS_LINE, limit).map_or(Ok(()), |len| Err(SendError::HeadTooLarge { len, limit }))
    }

    fn has_not_begun(&self) -> bool {
        matches!(self.answer, Answer::Nothing)
    }

    fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<HeaderMap> {
        match std::mem::replace(&mut self.answer, Answer::Taken) {
            Answer::Begun(headers) => Poll::Ready(headers),
            other => {
                self.answer = other;
                register(&mut self.waiting, cx.waker());
                Poll::Pending
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Inbound> {
        if self.received {
            let over = End::Outcome(Err(Status::cancelled("the call is over")));
            return Poll::Ready(Inbound { end: Some(over), ..Inbound::default() });
        }
        let Poll::Ready(next) = self.messages.poll_message(cx) else { return Poll::Pending };
        let (message, end) = match next {
            Ok(Some(message)) => (Some(message), self.messages.is_at_end().then(|| Ok(Metadata::default()))),
            Ok(None) => (None, Some(Ok(Metadata::default()))),
            Err(status) => (None, Some(Err(status))),
        };
        self.received = end.is_some();
        Poll::Ready(Inbound { head: None, message, end: end.map(End::Outcome) })
    }
}

impl Serving {
    /// Ends the call with `status` unless it has ended.
    fn end(&self, status: &Status) {
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return;
        }
        let mut half = self.rest();
        let mut headers = reply_end(Err(status));
        if let Err(error) = half.check(&headers) {
            headers = reply_end(Err(&error.status()));
        }
        if half.has_not_begun() {
            half.answer = Answer::Begun(alone(headers));
            outgoing.end(None);
        } else {
            outgoing.end(Some(headers));
        }
        self.wake(outgoing, half);
    }

    /// Wakes hyper's task, wherever it waits. The order of the locks is the same everywhere.
    fn wake(&self, mut outgoing: MutexGuard<'_, Outgoing>, mut half: MutexGuard<'_, ServerHalf>) {
        let woken = [outgoing.take_reader(), half.waiting.take()];
        drop(half);
        drop(outgoing);
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Carrier for Serving {
    fn poll_receive(&self, _: CallId, cx: &mut Context<'_>) -> Poll<Inbound> {
        self.rest().poll_receive(cx)
    }

    fn poll_send(&self, _: CallId, cx: &mut Context<'_>, part: Part<'_>) -> Poll<Result<(), SendError>> {
        let message = part.message.map(|message| (message, message.encoded_len()));
        if let Some((_, len)) = message
            && u32::try_from(len).is_err()
        {
            return Poll::Ready(Err(SendError::TooLarge { len, limit: u32::MAX as usize }));
        }
        let mut outgoing = self.outgoing();
        if outgoing.is_closed() {
            return Poll::Ready(Err(SendError::Over));
        }
        let mut half = self.rest();
        let begins = half.has_not_begun();
        // An end that nothing comes before is in the headers, and is all there is.
        let is_alone = message.is_none() && part.head.is_none_or(MetadataMap::is_empty) && part.end.is_some();
        let head = (begins && !is_alone).then(|| reply_head(part.head));
        let end = part.end.map(reply_end);
        for headers in head.iter().chain(&end) {
            if let Err(error) = half.check(headers) {
                return Poll::Ready(Err(error));
            }
        }
        if let Some((message, len)) = message {
            if !outgoing.has_room(len, cx.waker()) {
                return Poll::Pending;
            }
            outgoing.push(message, len);
        }
        match (head, end) {
            (None, Some(end)) if begins => {
                half.answer = Answer::Begun(alone(end));
                outgoing.end(None);
            }
            (head, end) => {
                if let Some(head) = head {
                    half.answer = Answer::Begun(head);
                }
                if end.is_some() {
                    outgoing.end(end);
                }
            }
        }
        self.wake(outgoing, half);
        Poll::Ready(Ok(()))
    }

    fn limit_messages(&self, _: CallId, max: usize) {
        self.rest().messages.limit(max);
    }

    fn poll_over(&self, _: CallId, cx: &mut Context<'_>) -> Poll<()> {
        self.outgoing().poll_closed(cx.waker())
    }

    fn finish(&self, _: CallId, status: &Status) {
        self.end(status);
        let observer = self.outgoing().take_observer();
        observer.into_iter().for_each(Waker::wake);
    }

    fn abandon(&self, _: CallId, status: &Status) {
        self.end(status);
    }
}

// ---- Replies ----

/// The body of any reply.
enum Reply {
    Call(Sending<ServerHalf>),
    Web(tonic::body::Body),
}

impl Body for Reply {
    type Data = Segments;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Segments>, Self::Error>>> {
        match self.get_mut() {
            Self::Call(body) => Pin::new(body).poll_frame(cx),
            Self::Web(body) => {
                let frame = Pin::new(body).poll_frame(cx).map_err(|_| h2::Reason::INTERNAL_ERROR.into());
                frame.map_ok(|frame| frame.map_data(Segments::from))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Call(body) => body.is_end_stream(),
            Self::Web(body) => body.is_end_stream(),
        }
    }
}

/// The headers of a reply that consists of its end.
fn alone(mut headers: HeaderMap) -> HeaderMap {
    headers.insert(CONTENT_TYPE, GRPC);
    headers
}

/// A reply that consists of its end.
fn ended(headers: HeaderMap) -> Response<Reply> {
    let mut response = Response::new(Reply::Web(tonic::body::Body::empty()));
    *response.headers_mut() = alone(headers);
    response
}
