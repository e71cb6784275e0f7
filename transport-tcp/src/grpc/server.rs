//! Answers gRPC clients: a connection of HTTP/2 as calls of byway's dispatch.
//!
//! Owns [`serve`]. A handler is polled by the task that hyper runs for its request until
//! the reply begins, and by one of its own from then on; most unary calls never have one. Invariants: every call that
//! was dispatched gets exactly one end; after the drain's time is over nothing of the connection is left running.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::adapter::HttpService;
use byway_runtime::dispatch::{Drain, Inline, Router};
use byway_runtime::framing::{Acceptance, Messages};
use byway_runtime::output::Segments;
use byway_runtime::session::Incoming;
use byway_runtime::{Carrier, ConnectionInfo};
use http::header::ALLOW;
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

use super::headers::{ACCEPT_ENCODING, IDENTITY, Refusal, is_grpc, received_head, reply_end};
use super::outgoing::{Outgoing, Sending, Stream, THIS};
use super::serving::{ServerHalf, Serving, alone};
use super::status::request_failed;
use super::{MAX_FRAME, acceptance, call_window, connection_window};
use crate::web;
use crate::wire::{FrameWatch, Settings, Sign, Wire};
use byway_runtime::Options;

/// How long a connection may take to say its last words once its calls were ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// How many calls a client may reset before this side has looked at them, whatever number it may have open: what hyper
/// allows. Beyond it the connection ends, and all its calls with it.
const LEAST_RESETS: usize = 20;

/// A connection that is being served, until it is over: why it broke, in words, unless it was closed in good order.
pub type Served = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// What a connection is served with.
pub struct Host {
    /// Answers calls.
    pub router: Arc<Router>,
    /// Answers requests that are not gRPC.
    pub web: Option<Arc<HttpService>>,
    /// The connection.
    pub info: Arc<ConnectionInfo>,
    /// What this side accepts, and how a dead peer is noticed.
    pub options: Options,
    /// How long the client's settings, the second half of its preface, may take.
    pub settings_timeout: Duration,
}

/// Serves a connection whose first bytes, the preface of HTTP/2 or a part of it, were read already.
pub fn serve<S>(io: S, first: Bytes, host: Host, drain: Drain) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Host { router, web, info, options, settings_timeout } = host;
    let Options { limits, keepalive } = &options;
    let shared = Arc::new(Shared {
        router,
        info,
        web,
        acceptance: acceptance(limits, unexpected_flag),
        max_headers: AtomicU32::new(u32::MAX),
        greeted: Notify::new(),
        open: Mutex::default(),
        idle: Notify::new(),
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(call_window(limits))
        .initial_connection_window_size(connection_window(limits))
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(u32::from(limits.max_calls))
        // As many as a client may have open it may also give up at once.
        .max_pending_accept_reset_streams(usize::from(limits.max_calls).max(LEAST_RESETS))
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
            // What settings do not name stays as it is.
            if let Some(headers) = headers {
                watching.max_headers.store(headers, Ordering::Relaxed);
            }
            watching.greeted.notify_one();
        }
    });
    let wire = Wire::new(first, io, Some(watch));
    let connection = builder.serve_connection(TokioIo::new(wire), service);
    let left = Arc::clone(&shared);
    Box::pin(async move {
        let ended = async move {
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
                Err(_) => shared.end_calls(&Status::unavailable(
                    "the server is shutting down, and the call took too long",
                )),
            }
            // What is left after that is dropped with the connection, and every handler with it.
            match tokio::time::timeout(FAREWELL, connection).await {
                Ok(ended) => ended.map_err(|error| words(&error)),
                Err(_) => Err("the client did not let go of it in time".to_owned()),
            }
        }
        .await;
        // hyper's tasks learn of the end, and drop their handlers, each when it is its turn.
        left.until_idle().await;
        ended
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
    /// The last of them has ended.
    idle: Notify,
}

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

    /// Waits until no handler is left.
    async fn until_idle(&self) {
        while !self.open.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.idle.notified().await;
        }
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
        let mut open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(self.key);
        if open.is_empty() {
            self.shared.idle.notify_one();
        }
    }
}

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

/// A reply that consists of its end.
fn ended(headers: HeaderMap) -> Response<Reply> {
    let mut response = Response::new(Reply::Web(tonic::body::Body::empty()));
    *response.headers_mut() = alone(headers);
    response
}
